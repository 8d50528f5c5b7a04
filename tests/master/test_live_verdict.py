"""The verdict so far: each bound from both sides, and what is reported."""

import pytest

from tailgauge import quantile_sketch
from tailgauge.master.workers import RunWorker, live_verdict
from tailgauge.thresholds import DEGRADED, INVALID, VALID

IDLE = {"delays": b"", "cpu": 0.2}


def packed(*values):
    bins = {}
    for value in values:
        quantile_sketch.add(bins, value)
    return quantile_sketch.packed(bins)


def worker(number=0, state="running", dispatched=0, dropped=0, watch=None):
    counts = {"dispatched": dispatched, "client_drop": dropped}
    return RunWorker(f"w{number}", number, {}, 0, state, counters={"counts": counts, "watch": watch or {}})


def workers(**changes):
    """Two workers; the second one with changes."""
    watch = {**IDLE, **{k: v for k, v in changes.items() if k in IDLE}}
    rest = {k: v for k, v in changes.items() if k not in IDLE}
    return [
        worker(0, dispatched=100, watch=dict(IDLE)),
        worker(1, **{"dispatched": 100, **rest}, watch=watch),
    ]


@pytest.mark.parametrize(
    ("changes", "word", "why"),
    [
        ({}, VALID, ""),
        ({"state": "lost"}, INVALID, "worker 1 is gone"),
        ({"dropped": 2}, DEGRADED, "2 of 202 requests dropped at the in-flight cap"),
        ({"dropped": 3}, INVALID, "3 of 203 requests dropped at the in-flight cap"),
        ({"delays": packed(*[0.1] * 50, *[400.0] * 50)}, VALID, ""),  # half of them: the median may be prompt
        ({"delays": packed(*[0.1] * 49, *[40.0] * 51)}, DEGRADED, "every second request is sent 40 ms late or more"),
        ({"delays": packed(9.9)}, VALID, ""),
        ({"delays": packed(12.0), "cpu": 0.96}, DEGRADED, "every second request is sent 12 ms late or more; worker 1 is at 96% of its core"),
        ({"cpu": 0.96}, VALID, ""),
    ],
)  # fmt: skip
def test_the_worst_is_reported_with_its_reason(changes, word, why):
    assert live_verdict(workers(**changes), ttft_p50_ms=100.0) == (word, why)


def test_a_tenth_of_a_slow_answer_may_be_the_clients():
    assert live_verdict(workers(delays=packed(90.0)), ttft_p50_ms=1000.0) == (VALID, "")
    assert live_verdict(workers(delays=packed(120.0)), ttft_p50_ms=1000.0)[0] == DEGRADED


def test_a_run_that_has_said_nothing_yet_is_valid_so_far():
    assert live_verdict([RunWorker("w0", 0, {}, 0), RunWorker("w1", 1, {}, 0)]) == (VALID, "")
