"""Every scheduled request is accounted for, whatever happened, and the schedule does not depend on the workers."""

from __future__ import annotations

import json
import os
import signal
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow.parquet as pq
import pytest
from run_folders.run_data import RunData, assert_conserved
from starting.command import NO_SDK, QUICK, Finished, free_port, run_in, until, variant

from tailgauge.patterns.table import Traffic
from tailgauge.schedule.schedule import plan
from tailgauge.schedule.settings import Arrival

LONG = ("--set=stages.duration_s=60", "--set=stages.warmup_s=1")
RATE, SECONDS, SEED = 60.0, 4.0, 11


def planned() -> dict[int, int]:
    """Request ids and times of the plan, drawn here a second time."""
    schedule = plan(
        Arrival(rate_per_s=RATE),
        {"chat": Traffic(prompt_tokens=100, output_tokens=20)},
        SECONDS,
        SEED,
    )
    return {row[0]: row[1] for row in schedule.slice(0, int(SECONDS * 1e9))}


def scheduled(run: RunData) -> dict[int, int]:
    rows, start = run.requests(), run.facts["start_at_ns"]
    return dict(zip(rows.request_id, rows.scheduled_at_ns - start, strict=True))


SCENARIOS = {
    "schedule": ("simulated.ttft_ms=60", "simulated.chunk_gap_ms=5"),
    "capped": (
        "simulated.ttft_ms=1500",
        "simulated.chunk_gap_ms=1",
        "limits.in_flight_per_worker=5",
    ),
}


@pytest.fixture(scope="module")
def by(tmp_path_factory: pytest.TempPathFactory) -> Callable[[int], Finished]:
    """What some number of workers make of the schedule, and of one that is more than they may have in flight."""

    @cache
    def run(workers: int) -> Finished:
        folder = tmp_path_factory.mktemp(f"by-{workers}")
        files = [variant(folder, "streaming", *sets, name=name) for name, sets in SCENARIOS.items()]
        args = (
            f"--workers={workers}",
            f"--rate={RATE}",
            f"--duration={SECONDS}",
            f"--seed={SEED}",
            QUICK[2],
            *NO_SDK,
        )
        return run_in(folder, *files, *args, "--json")

    return run


@pytest.mark.parametrize("workers", [1, 2, 3, 4])
def test_every_worker_count_sends_exactly_the_schedule(by, workers, full_size):
    if workers != 2 and not full_size:
        pytest.skip("at full size")

    done = by(workers)
    run = done.run_of("schedule")

    summary = json.loads(done.stdout.splitlines()[0])
    assert summary["exit_code"] in {0, 3, 5}, done.stderr  # the verdict depends on the machine
    counts = assert_conserved(run)
    assert run.facts["state"] == "complete"
    assert scheduled(run) == planned()
    assert (counts["client_drop"], counts["not_reached"], counts["lost"]) == (0, 0, 0)
    assert len(run.facts["workers"]) == workers
    server_log, attempts = run.table("target"), run.table("attempts")
    assert sorted(server_log.request_id) == sorted(attempts.request_id)
    assert server_log.client_request_id.is_unique
    ok = attempts[attempts.ended == "ok"].merge(
        server_log, on="request_id", suffixes=("", "_logged")
    )
    assert (ok.output_tokens == ok.output_tokens_logged).all()
    assert (ok.input_tokens == ok.input_tokens_logged).all()
    assert_health_rows_add_up(run)


def test_arrivals_beyond_the_in_flight_cap_are_dropped_and_never_queued(by):
    done = by(2)
    run = done.run_of("capped")

    assert done.code == 3, "so many drops make the run INVALID"
    assert json.loads(done.stdout.splitlines()[1])["exit_code"] == 3
    counts = assert_conserved(run)
    assert counts["client_drop"] > counts["dispatched"] / 2
    drops = run.requests().query("ended == 'client_drop'")
    assert drops.dispatched_at_ns.isna().all()
    attempts = run.table("attempts")
    assert not set(drops.request_id) & set(attempts.request_id)


def assert_health_rows_add_up(run: RunData) -> None:
    """What the workers counted by the second is, at the end, what their rows say."""
    files = [
        pq.read_table(path).to_pandas() for path in sorted((run.path / "health").glob("part-*"))
    ]
    last = pd.DataFrame([rows.iloc[-1] for rows in files])
    attempts, chunks = run.table("attempts"), run.table("chunks")
    begun = attempts[(attempts.stage != "preflight") & attempts.first_content_at_ns.notna()]
    assert last.first_chunks.sum() == len(begun)
    assert last.first_intervals.sum() == begun.first_content_low_at_ns.notna().sum()
    assert (last.chunks.sum(), last.chunk_intervals.sum()) == (
        len(chunks),
        chunks.low_at_ns.notna().sum(),
    )
    assert last.pool_waits.sum() == attempts.connection_is_new.sum()
    seconds = pd.concat(files)
    summary = seconds[seconds.receive_lag_p50_ns.notna()]
    assert len(summary) >= len(files)
    assert (summary.receive_lag_p50_ns <= summary.receive_lag_p99_ns).all()
    assert (summary.receive_lag_p99_ns <= summary.receive_lag_max_ns).all()
    assert (seconds.dispatch_late_p99_ns.dropna() <= seconds.dispatch_late_max_ns.max()).all()
    assert (seconds.core_wait_ns.dropna() >= 0).all()


def test_ctrl_c_keeps_and_reports_what_was_recorded(start):
    running = start("run", "streaming", "quickstart", "--rate=40", "--duration=60", *QUICK)
    running.wait_for_start(3)

    running.signal(signal.SIGINT)
    done = running.finish()

    assert done.code == 130
    counts = assert_conserved(done.run)  # the only one: the second scenario did not begin
    assert counts["not_reached"] > 0
    assert counts["dispatched"] > 0
    assert counts["censored"] == 0, "one Ctrl-C waits for the open requests"
    assert done.run.facts["state"] == "interrupted"
    assert done.stdout.startswith("INTERRUPTED  after ")
    assert f"{counts['dispatched']} requests" in " ".join(done.stdout.split())
    assert f"recorded in runs/{done.run.path.name}" in " ".join(done.stdout.split())
    assert "INTERRUPTED" in done.report_text
    assert "Traceback" not in done.stderr


@pytest.mark.slow
def test_a_second_ctrl_c_closes_the_open_requests(start):
    slow = (
        "--set=simulated.ttft_ms=100",
        "--set=simulated.chunk_gap_ms=200",
        "--set=traffic.chat.output_tokens=600",
    )
    running = start("run", "streaming", "--rate=20", "--duration=60", *slow, *NO_SDK)
    running.wait_for_start(3)

    running.signal(signal.SIGINT)
    time.sleep(0.5)  # two signals at once may reach a process as one
    running.signal(signal.SIGINT)
    done = running.finish(30)

    assert done.code == 130
    counts = assert_conserved(done.run)
    assert counts["censored"] == counts["dispatched"] > 0
    attempts = done.run.table("attempts")
    open_at_end = attempts[attempts.ended == "censored"]
    assert (open_at_end.chunks > 0).mean() > 0.5, "what had arrived of an open call is kept"
    assert open_at_end.ended_at_ns.isna().all()


def _live(page: str) -> dict[str, Any]:
    summary: dict[str, Any] = json.load(
        urllib.request.urlopen(f"{page}/tailgauge/live.json", timeout=5)
    )
    return summary


def _post(url: str, **headers: str) -> str:
    form = b"user_count=1&spawn_rate=1"
    try:
        answer = urllib.request.urlopen(urllib.request.Request(url, form, headers), timeout=5)
    except urllib.error.HTTPError as error:
        return f"{error.code} {error.read().decode()}"
    return str(answer.read().decode())


@pytest.mark.slow
def test_a_killed_worker_is_noticed_shown_counted_and_makes_the_run_invalid(start):
    page = f"http://127.0.0.1:{(port := free_port())}"
    running = start(
        "run", "streaming", "--workers=2", "--rate=30", "--duration=16", f"--web={port}", *QUICK
    )
    run = running.wait_for_start(6)
    victim = run.facts["workers"][0]

    os.kill(victim["pid"], signal.SIGKILL)
    until(lambda: "worker 0 is gone" in _live(page)["run"]["reason"], timeout_s=9)
    shown = _live(page)
    assert "`tailgauge run` starts its scenarios itself" in _post(f"{page}/swarm")
    assert (
        _post(f"{page}/stop", Origin="http://elsewhere.example")
        == "403 a request from another site\n"
    )
    done = running.finish()

    assert done.code == 3
    assert (shown["run"]["verdict"], shown["run"]["state"]) == ("INVALID", "running")
    assert [worker["state"] for worker in shown["workers"]] == ["lost", "running"]
    assert f"live view on {page}/tailgauge" in done.stderr
    counts = assert_conserved(done.run)
    assert counts["lost"] > 0
    assert [w["state"] for w in done.run.facts["workers"]] == ["lost", "drained"]
    assert any("worker 0 was lost" in note for note in done.run.facts["notes"])
    assert done.run.facts["verdict"]["verdict"] == "INVALID"
    survivor = done.run.requests()
    late = survivor[survivor.scheduled_at_ns > done.run.facts["start_at_ns"] + 15e9]
    assert len(late) > 0, "later slices go to the living"


@pytest.mark.slow
def test_a_dead_master_leaves_rows_from_which_the_report_is_made(start):
    running = start("run", "streaming", "--workers=2", "--rate=30", *LONG, *QUICK)
    run = running.wait_for_start(5)
    workers = [json.loads((run.path / "workers" / f"{n}.json").read_text())["pid"] for n in (0, 1)]

    running.signal(signal.SIGKILL)
    running.finish(20)
    deadline = time.monotonic() + 20
    while any(Path(f"/proc/{pid}").exists() for pid in workers) and time.monotonic() < deadline:
        time.sleep(0.1)

    assert not any(Path(f"/proc/{pid}").exists() for pid in workers), "workers follow their master"
    done = start("report", str(run.path), "--out", str(running.out)).finish(60)
    assert "The master died before its workers ended" in " ".join(done.stdout.split())
    assert done.code in {0, 3, 5}, (
        done.stdout + done.stderr
    )  # 3: what was open then leaves the target's health inconclusive
    assert run.requests().request_id.is_unique
    assert len(run.requests()) > 50
