"""A machine that allows too little: refused before the start, or the run ends with every row that it has, and says why."""

from __future__ import annotations

import resource
import shutil
import sys
from pathlib import Path

import psutil
import pytest
from run_folders.run_data import RunData, assert_conserved
from starting.command import NO_SDK, QUICK, Finished, Start
from starting.programs import TAILGAUGE

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="prlimit is Linux's")
MOST_REFUSALS = 4
FREE_MB = 230  # of address space: more than a worker must have, and what a few seconds use up


def limited(start: Start, limits: str, *arguments: str) -> Finished:
    """A run with limits of `ulimit`."""
    line = ("-c", f'ulimit {limits} && exec "$0" "$@"', TAILGAUGE, "run", *arguments)
    return start(*line, program="/bin/sh").finish(90)


@pytest.fixture
def out(tmp_path: Path) -> tuple[str, ...]:
    return (f"--out={tmp_path / 'out'}",)


def every_row_is_there(run: RunData) -> None:
    """What was sent has a row, and the endpoint has seen what the rows say."""
    counts, requests, attempts = assert_conserved(run), run.requests(), run.table("attempts")
    assert (counts["lost"], len(requests)) == (0, counts["dispatched"] + counts["client_drop"])
    assert counts["not_reached"] > 0
    seen = set(run.table("target").request_id)
    assert (
        set(attempts[attempts.status.notna()].request_id)
        <= seen
        <= set(attempts[attempts.sent_at_ns.notna()].request_id)
    )
    (worker,) = run.facts["workers"]
    assert worker["state"] == "failed"
    assert not any(worker["unwritten"].values())


@pytest.mark.slow
def test_too_few_descriptors_are_refused_with_the_limit_and_the_number(start, out):
    done = limited(start, "-n 64", "streaming", "--rate=60", "--duration=30", *out)

    assert done.code == 2
    (line,) = [text for text in done.stderr.splitlines() if text.startswith("tailgauge: ")]
    before, _, after = line.partition("limits.in_flight_per_worker: 1,000 need ")
    assert before.endswith(" failed: ")
    number, _, rest = after.partition(
        " file descriptors, RLIMIT_NOFILE allows 64: raise it (ulimit -Hn "
    )
    assert rest.startswith(f"{number.replace(',', '')})")
    assert 1_050 < int(number.replace(",", "")) < 1_200
    assert "Traceback" not in done.stderr
    assert list(done.run.path.glob("requests/*")) == [], "nothing was sent, not even the preflight"


@pytest.mark.slow
def test_a_soft_limit_is_raised_and_calls_beyond_the_hard_one_end_the_run_with_every_row(
    start, out
):
    """Each request has five calls at once: the limit on requests in flight does not bound the descriptors."""
    done = limited(
        start, "-Sn 30 && ulimit -Hn 160", "fan_out", "--rate=20", "--duration=30", *out, "--set=limits.in_flight_per_worker=80",
        "--set=traffic.*.output_tokens=2000", "--set=simulated.ttft_ms=60", *NO_SDK,
    )  # fmt: skip

    run = done.run
    assert (done.code, run.facts["state"]) == (3, "failed"), done.stderr
    every_row_is_there(run)
    attempts = run.table("attempts")
    refused = attempts[attempts.error_type == "no_descriptor"]
    assert 0 < len(refused) < 300, "the first of them ends the run, which had 3,000 calls to go"
    assert set(refused.ended) == {"connect_error"}
    most = (attempts.status.notna() & (attempts.request_id >= 0)).sum()
    assert most > 60, "the soft limit of 30 was raised"
    why = run.facts["workers"][0]["why"]
    assert why.startswith(
        "all file descriptors are in use (RLIMIT_NOFILE 160): raise it (ulimit -Hn), or lower limits."
    )
    assert f"The run failed before its end: {why}" in done.report_text
    assert "Traceback" not in done.stderr + "".join(
        p.read_text() for p in run.path.glob("worker-*.log")
    )


def test_memory_under_a_limit_is_checked_before_the_start_and_ends_a_run_with_every_row(
    start, tmp_path, full_size
):
    if not full_size:
        pytest.skip("at full size")
    load = (
        "streaming",
        "--rate=200",
        "--duration=30",
        "--set=traffic.chat.prompt_tokens=100000",
        *QUICK,
    )
    limit, refusals, out = 700_000, 0, tmp_path / "out"
    while True:  # what a worker takes at its start depends on what it may take
        done = limited(start, f"-v {limit}", *load, f"--out={out}")
        before, is_refused, after = done.stderr.partition("RLIMIT_AS leaves a worker ")
        if not is_refused or refusals == MOST_REFUSALS:
            break
        assert (done.code, before.endswith(" failed: ")) == (2, True)
        refusals += 1
        shutil.rmtree(out)
        limit += (FREE_MB - int(after.partition(" MB, it needs 192: raise it by ")[0])) * 1000

    assert refusals > 0
    run = done.run
    assert (done.code, run.facts["state"]) == (3, "failed"), done.stderr
    every_row_is_there(run)
    why = run.facts["workers"][0]["why"]
    assert why.startswith("no memory is left (RLIMIT_AS ")
    assert "MB): raise it (ulimit -v), add workers, or lower the rate" in why
    assert "Traceback" not in done.stderr + "".join(
        p.read_text() for p in run.path.glob("worker-*.log")
    )


def test_memory_that_ends_from_one_moment_to_the_next_leaves_the_rows_too(start, full_size):
    """The limit comes during the run, so that no reserve was taken: an allocation fails, wherever it is."""
    if not full_size:
        pytest.skip("at full size")
    running = start(
        "run",
        "streaming",
        "--rate=100",
        "--duration=30",
        "--set=traffic.chat.prompt_tokens=30000",
        *QUICK,
    )
    (worker,) = running.wait_for_start(3).facts["workers"]
    limit = psutil.Process(worker["pid"]).memory_info().vms + 5_000_000
    resource.prlimit(worker["pid"], resource.RLIMIT_AS, (limit, limit))

    done = running.finish()

    assert (done.code, done.run.facts["state"]) == (3, "failed"), done.stderr
    every_row_is_there(done.run)
    facts = done.run.facts
    assert facts["ended_at_ns"] - facts["admission_end_at_ns"] < 40e9, (
        "what lost an event is not waited for"
    )
    assert facts["workers"][0]["why"].startswith("no memory is left (RLIMIT_AS ")


@pytest.mark.slow
@pytest.mark.parametrize("more", [-5, 0, 3])
def test_descriptors_that_end_from_one_moment_to_the_next_leave_the_rows_too(start, more):
    """The limit comes during the run, at fewer than are open, at as many, and at a few more: nothing can be opened any more."""
    running = start(
        "run", "streaming", "--rate=40", "--duration=30", *QUICK, "--set=simulated.ttft_ms=400",
        "--set=simulated.chunk_gap_ms=100",
    )  # fmt: skip
    (worker,) = running.wait_for_start(4).facts["workers"]
    highest = max(int(path.name) for path in Path(f"/proc/{worker['pid']}/fd").iterdir())
    limit = highest + 1 + more
    resource.prlimit(worker["pid"], resource.RLIMIT_NOFILE, (limit, limit))

    done = running.finish()

    assert (done.code, done.run.facts["state"]) == (3, "failed"), done.stderr
    every_row_is_there(done.run)
    why = done.run.facts["workers"][0]["why"]
    assert "descriptor" in why, why
    logs = "".join(path.read_text() for path in done.run.path.glob("worker-*.log"))
    assert "Traceback" not in done.stderr + logs
