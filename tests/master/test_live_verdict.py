"""The verdict so far: each bound from both sides, and what is reported."""

import pytest

from tailgauge import quantile_sketch
from tailgauge.master.workers import RunWorker, live_verdict
from tailgauge.rows.schema import HealthRow
from tailgauge.thresholds import DEGRADED, INVALID, VALID
from tailgauge.worker.counters import Counters
from tailgauge.worker.health import Watch

IDLE = {"first": 100, "intervals": 0, "delays": b"", "seconds": 20.0, "bad": 0.0, "lagging": 0.0, "cpu": 0.2}


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
        ({"bad": 4.0}, VALID, ""),
        ({"bad": 4.1}, DEGRADED, "worker 1 was stalled for 4 of 20 s"),
        ({"bad": 20.0}, DEGRADED, "worker 1 was stalled for 20 of 20 s"),
        ({"bad": 20.1}, INVALID, "worker 1 was stalled for 20 of 20 s"),
        ({"delays": packed(*[0.1] * 99, 40.0)}, VALID, ""),
        ({"delays": packed(*[0.1] * 98, 40.0, 40.0)}, DEGRADED, "requests are sent up to 40 ms late (p99)"),
        ({"delays": packed(8.0)}, DEGRADED, "requests are sent up to 8 ms late (p99)"),
        ({"intervals": 2}, VALID, ""),
        ({"intervals": 3}, DEGRADED, "1.5% of first chunks shared a read with later ones"),
        ({"lagging": 0.4}, VALID, ""),
        ({"lagging": 1.0}, DEGRADED, "user-space timestamps were late in 1 s (busy process)"),
        ({"bad": 5.0, "cpu": 0.96}, DEGRADED, "worker 1 was stalled for 5 of 20 s; worker 1 is at 96% of its core"),
        ({"cpu": 0.96}, VALID, ""),
    ],
)  # fmt: skip
def test_the_worst_is_reported_with_its_reason(changes, word, why):
    assert live_verdict(workers(**changes)) == (word, why)


def test_of_slow_answers_a_hundredth_may_be_the_clients():
    assert live_verdict(workers(delays=packed(8.0)), ttft_p50_ms=1000.0) == (VALID, "")
    assert live_verdict(workers(delays=packed(12.0)), ttft_p50_ms=1000.0)[0] == DEGRADED


def test_one_bad_second_alone_says_nothing():
    assert live_verdict([worker(0, watch={**IDLE, "seconds": 3.0, "bad": 1.2})]) == (VALID, "")


def test_a_run_that_has_said_nothing_yet_is_valid_so_far():
    assert live_verdict([RunWorker("w0", 0, {}, 0), RunWorker("w1", 1, {}, 0)]) == (VALID, "")


def row(at_s, lag_ms=0.0, cpu=0.1, intervals=0):
    made = HealthRow(*[0] * 16)
    made.chunk_intervals = intervals
    made.at_ns, made.loop_lag_max_ns, made.cpu_share = int(at_s * 1e9), int(lag_ms * 1e6), cpu
    return made


@pytest.mark.parametrize(("user", "lagging"), [(False, 0.0), (True, 3.0)])
def test_a_worker_watches_its_steady_seconds(user, lagging):
    """From 1 to 9 s: a bad second before it, one inside, one of 50 ms, one at 71% of the core, one after it."""
    watch = Watch(Counters(), 1_000_000_000, 9_000_000_000, user_clock=user)
    lags = {1: 80.0, 4: 50.1, 5: 50.0, 6: 4.9, 10: 80.0}
    for second in range(1, 11):
        watch.second(row(second, lags.get(second, 0.0), 0.71 if second == 7 else 0.7, second))

    summary = watch.summary()
    assert (summary["seconds"], summary["bad"], summary["lagging"]) == (8.0, 1.0, lagging)


def test_a_lag_that_blurred_no_stamp_is_no_bad_second():
    watch = Watch(Counters(), 0, 9_000_000_000, user_clock=False)
    for second in range(1, 5):
        watch.second(row(second, 80.0, intervals=7))

    assert watch.summary()["bad"] == 1.0  # the first, which brought the seven
