"""The report names what goes wrong on the way: faults planted in real runs, and a run without them that says nothing.

Rule: what was planted is counted by the endpoint's own log or by the test; a time is asserted only where the plant is many
times longer than what a busy machine adds.
"""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from run_folders.run_data import RunData, assert_conserved
from starting.command import NO_SDK, run_command, run_scenarios, variant
from starting.endpoint import endpoint
from starting.nginx import NGINX, needs_nginx, proxy
from starting.programs import LOCUST

pytestmark = pytest.mark.slow

HERE = Path(__file__).parent
LOAD = ("arrival.rate_per_s=20", "stages.duration_s=3", "stages.warmup_s=0")
PACE = ("ttft_ms=200", "chunk_gap_ms=20")  # forty chunks: 780 ms
STALL_S, SHARE, AT_CHUNK = 1.5, 0.15, 5
FAULTS = tuple(
    f"simulated.faults.{kind}.{key}={value}"
    for kind in ("stall", "error_event", "cut")
    for key, value in (
        ("kind", kind),
        ("share", SHARE),
        ("at_chunk", AT_CHUNK),
        ("seconds", STALL_S),
    )
)
OBJECTIVE = ("slo.pace.metric=tpot", "slo.pace.quantile=0.9", "slo.pace.max_ms=25")
PATIENCE_NS = 250_000_000
ENDED = {"error_event": "stream_error", "cut": "truncated"}


@dataclass(frozen=True)
class Result:
    """A run and what its report says."""

    run: RunData
    folder: Path

    @cached_property
    def report(self) -> Any:
        return json.loads((self.folder / "report.json").read_text())

    @property
    def page(self) -> str:
        return (self.folder / "report.html").read_text()

    @property
    def reasons(self) -> dict[str, str]:
        return {reason["check"]: reason["text"] for reason in self.report["verdict"]["reasons"]}

    @cached_property
    def planted(self) -> dict[str, int]:
        """Calls of the run that met each kind of fault, by the endpoint's log."""
        server_log = self.run.table("target")
        return dict(server_log[server_log.request_id >= 0].fault.value_counts())

    def summary(self, ended: str) -> int:
        return sum(error["attempts"] for error in self.report["errors"] if error["ended"] == ended)


def by_command(folder: Path) -> dict[str, Result]:
    """A run for each target, one after the other. How the verdict judges a busy machine is not at stake here."""
    folder.mkdir()
    with contextlib.ExitStack() as stack:
        paced = [f"simulated.{text}" for text in PACE]
        targets = {"faulty": [*paced, *FAULTS], "healthy": paced}
        if NGINX is not None:
            url = stack.enter_context(endpoint(*(f"--set={text}" for text in PACE), cwd=folder)).url
            for name, *buffers in (
                ("healthy", "off", "64k"),
                ("buffered", "on", "64k"),
                ("pieces", "on", "4k"),
            ):
                targets[name] = [
                    f"target.url={stack.enter_context(proxy(folder / name, url, *buffers))}"
                ]
            targets["pieces"] += ["traffic.chat.output_tokens=120", *OBJECTIVE]
        files = [variant(folder, "streaming", *sets, name=name) for name, sets in targets.items()]
        options = ["--seed=2", *(f"--set={text}" for text in LOAD)]
        reports, _ = run_scenarios(files, *options, out=folder, timeout_s=180)
    runs = [Path(report["run_dir"]) for report in reports]
    return {
        name: Result(RunData(run), folder / "reports" / run.name)
        for name, run in zip(targets, runs, strict=True)
    }


def by_locust(folder: Path, *more: str) -> Result:
    """Of a locustfile that blocks its own hub for a third of the time."""
    paced = (f"simulated.{text}" for text in PACE)
    sets = [f"--set={text}" for text in (*LOAD, *paced, *more)]
    line = f"-f {HERE / 'stalling_locustfile.py'} --headless -t 60s --scenario streaming"
    stalls = {"STALLS": str(folder.with_suffix(".stalls"))}
    done = run_command(
        [LOCUST, *line.split(), *sets, *NO_SDK, "--out", str(folder)], 120, env=stalls
    )
    folders = [*folder.glob("runs/*"), *folder.glob("reports/*")]
    assert len(folders) == 2, done.stderr
    return Result(RunData(folders[0]), folders[1])


Runs = dict[str, Callable[[], Result]]


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Runs]:
    """Both commands at the same time; a test waits for its own."""
    folder = tmp_path_factory.mktemp("planted")
    with ThreadPoolExecutor(2) as pool:
        command = pool.submit(by_command, folder / "command")
        locust = pool.submit(by_locust, folder / "locust")
        yield {
            "blocked": locust.result,
            **{
                name: partial(_of, command, name)
                for name in ("faulty", "healthy", "buffered", "pieces")
            },
        }


def _of(command: Future[dict[str, Result]], name: str) -> Result:
    return command.result()[name]


@pytest.fixture(scope="module")
def blocked(runs: Runs) -> Path:
    """When the hub of that run was blocked."""
    return runs["blocked"]().folder.parents[1].with_suffix(".stalls")


def test_a_healthy_run_says_nothing_of_any_of_them(runs):
    seen = runs["healthy"]()
    streams = seen.report["streams"]

    assert_conserved(seen.run)
    assert streams["answers"] == len(seen.run.requests()) > 40
    assert (streams["buffered"], streams["stalls"], streams["stalled_share"]) == (0, 0, 0.0)
    assert seen.report["errors"] == []
    assert set(seen.report["conservation"]["ended"]) == {"ok"}
    assert not {"drops", "order", "conservation"} & set(seen.reasons)
    assert "collects the stream" not in seen.page
    assert "No attempt failed." in seen.page


def all_buffered_but_for_those_read_late(seen: Any) -> int:
    """Answers that were buffered: all, but for those that a busy machine reads late."""
    found = {one["reason"]: one["answers"] for one in seen.report["tpot_missing"]["reasons"]}
    assert sum(found.values()) == seen.report["streams"]["answers"]
    assert set(found) <= {"buffered", "read_late"}
    assert found["buffered"] > 10
    return int(found["buffered"])


@needs_nginx
def test_a_buffering_proxy_is_found(runs):
    seen = runs["buffered"]()
    streams = seen.report["streams"]
    ttft = next(
        row for row in seen.report["latency"] if row["metric"] == "ttft" and row["since"] == "sent"
    )

    assert_conserved(seen.run)
    assert streams["answers"] == len(seen.run.requests()) > 40
    found = all_buffered_but_for_those_read_late(seen)
    assert streams["buffered"] == found
    assert streams["buffered_share"] == streams["buffered"] / streams["answers"]
    assert "Something between client and target collects the stream" in seen.page
    assert ttft["percentiles"]["p50"]["value"] > 700, "the whole answer, held back"


@needs_nginx
def test_pieces_of_four_kilobytes_have_no_pace(runs):
    """An answer of 120 chunks comes in four or five pieces: TPOT would be a quarter below the true 20 ms."""
    seen = runs["pieces"]()
    n = seen.report["streams"]["answers"]

    assert n == len(seen.run.requests()) > 40
    assert seen.report["streams"]["buffered"] == all_buffered_but_for_those_read_late(seen)
    assert not [row for row in seen.report["latency"] if row["metric"].startswith("tpot")]
    assert [slo["outcome"] for slo in seen.report["slo"]] == ["inconclusive"]
    assert f"TPOT is unknown for {n} of {n} answers: " in seen.page
    assert "the stream was buffered (" in seen.page


@needs_nginx
def test_the_same_proxy_without_buffering_is_not(runs):
    """It is what the healthy run went through."""
    seen = runs["healthy"]()
    p50 = {
        row["metric"]: row["percentiles"]["p50"]["value"]
        for row in seen.report["latency"]
        if row["since"] == "sent" and row["group"] == "all"
    }

    assert p50["ttft"] < 0.6 * p50["e2e"], "by plan a fifth"
    assert not any("buffers" in text for text in seen.reasons.values())


def test_every_stalled_stream_is_found(runs):
    seen = runs["faulty"]()
    streams, planted = seen.report["streams"], seen.planted["stall"]

    assert planted > 3
    assert streams["stalls"] == planted
    assert streams["stalled_share"] == planted / streams["answers"]
    assert f"{planted} chunk gaps longer than" in re.sub("<[^>]*>", "", seen.page)
    assert streams["stall_time_share"] > 0


@pytest.mark.parametrize("fault", ENDED)
def test_every_broken_stream_is_found_and_no_success(runs, fault):
    """An error after HTTP 200, and an end without the end mark: both had content, neither is an answer."""
    seen = runs["faulty"]()
    ended, planted = ENDED[fault], seen.planted[fault]
    rows = seen.run.requests()
    requests = seen.report["conservation"]["ended"]

    assert planted > 3
    assert seen.summary(ended) == requests[ended] == planted
    assert {e["status"] for e in seen.report["errors"] if e["ended"] == ended} == {200}
    assert seen.page.count(ended) > 1
    assert requests["ok"] == len(rows) - sum(seen.planted[one] for one in ENDED)
    assert set(rows[rows.ended == ended].winner) == {0}, "what came before it broke was read"


def test_broken_streams_stand_in_the_denominator(runs):
    seen = runs["faulty"]()
    rows, failed = len(seen.run.requests()), sum(seen.planted[one] for one in ENDED)
    by = {row["population"]: row for row in seen.report["latency"] if (row["metric"], row["since"], row["group"]) == ("e2e", "scheduled", "all")}  # fmt: skip

    assert by["offered"]["n"] == rows
    assert by["completed"]["n"] == rows - failed
    assert by["offered"]["percentiles"]["p90"]["beyond"] == (failed > 0.1 * rows)
    assert not by["completed"]["percentiles"]["p90"]["beyond"]


def test_hidden_queueing_at_the_client_is_found(runs, blocked):
    """Requests wait in the client for a hub that is blocked: the target is quick, and the verdict says whose time it was.

    What was due while the hub was blocked cannot have been sent before it went on.
    """
    seen = runs["blocked"]()
    delay = next(row for row in seen.report["latency"] if row["metric"] == "client_delay")
    due = seen.run.requests().query("stage == 'steady'").scheduled_at_ns.to_numpy()
    floor = np.zeros(len(due))
    for began, ended in np.loadtxt(blocked, dtype=np.int64, ndmin=2):
        held = (due >= began) & (due < ended)
        floor[held] = (ended - due[held]) / 1e6

    assert (floor > 0).mean() > 0.15, "the hub was blocked for a third of the time"
    assert delay["n"] == len(due)
    for p in ("p50", "p90", "p95"):
        server_log = np.quantile(floor, float(p[1:]) / 100, method="inverted_cdf")
        assert delay["percentiles"][p]["value"] >= server_log, p
    assert np.quantile(floor, 0.9) > 30
    log = seen.run.table("target").query("request_id >= 0")
    took = log.chunk_sent_at_ns.str[0] - log.received_at_ns
    # On a busy machine the endpoint is late itself, and what the client moved is less of it.
    if np.quantile(took, 0.95, method="inverted_cdf") < 220e6:
        assert "by sending late" in seen.reasons["client_error"]
        assert "by sending late" in seen.page
        assert seen.report["verdict"]["status"] != "VALID"


def test_what_came_in_time_while_the_client_was_blocked_is_not_asked_for_again(tmp_path):
    """Timers and sockets of a blocked hub are late together: what was written before a call's time was over counts."""
    folder = tmp_path / "run"
    seen = by_locust(
        folder, "stages.duration_s=60", "arrival.rate_per_s=60", "traffic.chat.output_tokens=5",
        f"traffic.chat.fallback.after_s={PATIENCE_NS / 1e9}", "simulated.ttft_ms=220", "simulated.ttft_sigma=0.2",
    )  # fmt: skip

    calls = seen.run.attempts().set_index("request_id")
    first, second = calls[calls.attempt == 0], calls[calls.attempt == 1]
    target = seen.run.table("target")
    log = target.query("attempt == 0").set_index("request_id").reindex(first.index)
    stamped = log.chunk_sent_at_ns.map(lambda sent: sent[0] if len(sent) else np.inf)
    # The endpoint stamps a chunk just before it writes it. It has one thread: at its next stamp, the chunk has left.
    stamps = np.sort(np.append(np.concatenate(target.chunk_sent_at_ns), np.inf))
    written = stamps[np.searchsorted(stamps[:-1], stamped, side="right")]
    over = first.sent_at_ns + PATIENCE_NS
    in_time = written < over
    asked_again = pd.Series(first.index.isin(second.index), first.index)
    stalls = np.loadtxt(folder.with_suffix(".stalls"), dtype=np.int64)
    began, ended = stalls.T
    both = (began < written[:, None]) & (over.to_numpy()[:, None] < ended)

    assert (in_time & both.any(axis=1)).sum() > 20
    assert not (in_time & asked_again).any()
    assert asked_again.sum() > 20
    assert set(first.ended[asked_again]) == {"timeout"}
    assert set(first.ended[~asked_again]) <= {"ok", "censored"}
