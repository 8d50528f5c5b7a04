"""A client that spins, is stopped, traced or late: no sentence blames the target, and no wrong figure is VALID.

The ground truth is the simulated endpoint's own log; its answers take the same time throughout.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from end_to_end.test_stalled_workers import freeze
from run_folders.run_data import RunData
from starting.command import NO_SDK, Finished, Start
from starting.programs import LOCUST

pytestmark = pytest.mark.alone_at_full_size

HERE = Path(__file__).parent
OF_TARGET = re.compile(
    r"target was (?:slower|faster)|does not sustain|(?:TTFT|wait) (?:rises|falls)|looks? like warm-up|got (?:no|only the beginning of an) answer",
    re.IGNORECASE,
)
OPEN = 'process = "poisson"\nrate_per_s = 20.0'
CLOSED = 'process = "closed"\nclosed = {users = 8, think_s = 0.05}'
SCENARIO = """
[arrival]
{arrival}

[stages]
duration_s = {seconds}
warmup_s = 1

[simulated]
ttft_ms = 150
chunk_gap_ms = 10

[traffic.chat]
output_tokens = 20
"""
PS = {"p50": 0.5, "p95": 0.95}


def texts(report: Any) -> str:
    """All sentences of the summary."""
    sentences = [report["result"]["sentence"], *report["result"]["details"], *report["remarks"]]
    sentences.append(report["stability"]["sentence"])
    sentences += [finding["text"] for finding in report["stability"]["findings"]]
    return "\n".join(sentences)


def logged_ms(run: RunData) -> dict[str, Any]:
    """Times by the endpoint's log: TTFT since sent of each attempt, and the gap before each later chunk."""
    keys = ["request_id", "leg", "attempt"]
    attempts = run.table("attempts").query("stage == 'steady'")
    log = run.table("target")[[*keys, "chunk_sent_at_ns"]]
    rows = attempts.merge(log, on=keys, validate="one_to_one")
    rows = rows[rows.first_content_at_ns.notna()]
    first = rows.chunk_sent_at_ns.map(lambda sent: sent[0])
    gaps = np.concatenate([np.diff(sent) for sent in rows.chunk_sent_at_ns])
    return {"ttft": ((first - rows.sent_at_ns) / 1e6).to_numpy(np.float64), "chunk_gap": gaps / 1e6}


def assert_not_blamed(done: Finished) -> None:
    report = done.report_data
    sentences = texts(report)
    print(report["verdict"], sentences)
    if any(reason["check"] == "endpoint" for reason in report["verdict"]["reasons"]):
        pytest.skip("the endpoint itself was late: its log says so, and the report")
    assert not OF_TARGET.search(sentences), sentences
    if report["verdict"]["status"] != "VALID":
        return
    for metric, server_ms in logged_ms(done.run).items():
        since = "sent" if metric == "ttft" else None
        row = next(
            row for row in report["latency"] if (row["metric"], row["since"]) == (metric, since)
        )
        for label, p in PS.items():
            assert_right(
                row["percentiles"][label], np.quantile(server_ms, p, method="inverted_cdf")
            )


def assert_right(figure: dict[str, Any], expected_ms: float) -> None:
    """By the rule of a VALID run, where the figure has no mark of its own."""
    if figure["mark"]:
        return
    ends = (figure["low"], figure["high"])
    half_ms = 0.0 if None in ends else (ends[1] - ends[0]) / 2
    error_ms = abs(figure["value"] - expected_ms)
    print(figure["value"], expected_ms)
    assert error_ms <= max(0.05 * figure["value"], half_ms / 4, 0.5), figure


def scenario(folder: Path, arrival: str, seconds: int) -> Path:
    path = folder / "target.toml"
    path.write_text(SCENARIO.format(arrival=arrival, seconds=seconds))
    return path


def by_locust(start: Start, file: str, path: Path, *sets: str, **env: str) -> Finished:
    line = f"-f {HERE / file} --headless -t 90s --scenario {path} --host simulated"
    return start(*line.split(), *NO_SDK, *sets, program=LOCUST, env=env).finish(120)


def stopped(
    start: Start, path: Path, seconds: int, *, after_s: float, lasts_s: float, every_s: float
):
    """A run of two workers of which one is stopped, again and again where `every_s` is not 0."""
    running = start("run", str(path), "--workers=2", *NO_SDK)
    run = running.wait_for_start(0.5)
    pid = run.facts["workers"][1]["pid"]
    at_s = after_s
    while at_s + lasts_s < seconds:
        freeze(run, pid, after_s=at_s, lasts_s=lasts_s)
        at_s += every_s or seconds
    return running.finish()


@pytest.mark.slow
@pytest.mark.parametrize("loop", [OPEN, CLOSED], ids=["open", "closed"])
@pytest.mark.parametrize(
    ("after_s", "spin_s"), [(4.0, 2.0), (0.5, 0.3), (9.0, 0.8)], ids=["long", "often", "late"]
)
def test_a_client_that_spins(start, tmp_path, loop, after_s, spin_s):
    path = scenario(tmp_path, loop, 20)
    env = {"STALL_AFTER_S": str(after_s), "STALL_S": str(spin_s)}
    assert_not_blamed(by_locust(start, "stalling_locustfile.py", path, **env))


@pytest.mark.parametrize("loop", [OPEN, CLOSED], ids=["open", "closed"])
@pytest.mark.parametrize(
    "file", ["busy_locustfile.py", "stalling_locustfile.py", "tracing_locustfile.py"]
)
@pytest.mark.parametrize("reader", ["compiled", "python"])
def test_a_client_that_computes_or_is_traced(start, tmp_path, full_size, loop, file, reader):
    if not full_size:
        pytest.skip("make verify: other kinds of a late client")
    path = scenario(tmp_path, loop, 20)
    assert_not_blamed(by_locust(start, file, path, f"--set=reader={reader}"))


@pytest.mark.parametrize("loop", [OPEN, CLOSED], ids=["open", "closed"])
@pytest.mark.parametrize(
    ("after_s", "lasts_s", "every_s"),
    [(6.0, 3.0, 0.0), (3.0, 0.4, 2.0), (15.0, 3.0, 0.0)],
    ids=["once", "often", "near the end"],
)
def test_a_worker_that_is_stopped(start, tmp_path, full_size, loop, after_s, lasts_s, every_s):
    if not full_size:
        pytest.skip("make verify: test_stalled_workers has a short one")
    path = scenario(tmp_path, loop, 20)
    assert_not_blamed(stopped(start, path, 20, after_s=after_s, lasts_s=lasts_s, every_s=every_s))
