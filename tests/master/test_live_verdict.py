"""The verdict so far: each bound from both sides, and what is reported."""

import pytest

from tailgauge import quantile_sketch
from tailgauge.master.workers import RunWorker, RunWorkers, Stall, live_verdict
from tailgauge.thresholds import DEGRADED, INVALID, VALID

IDLE = {"delays": b"", "cpu": 0.2}


def packed(*values):
    bins = {}
    for value in values:
        quantile_sketch.add(bins, value)
    return quantile_sketch.packed(bins)


def worker(number=0, state="running", dispatched=0, dropped=0, watch=None):
    counts = {"dispatched": dispatched, "client_drop": dropped}
    return RunWorker(
        f"w{number}", number, {}, 0, state, counters={"counts": counts, "watch": watch or {}}
    )


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
        ({"delays": packed(*[0.1] * 49, *[40.0] * 51)}, DEGRADED, "half of the requests are sent 40 ms late or more"),
        ({"delays": packed(9.9)}, VALID, ""),
        ({"delays": packed(12.0), "cpu": 0.96}, DEGRADED, "half of the requests are sent 12 ms late or more; worker 1 is at 96% of its core"),
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


@pytest.mark.parametrize(
    ("stalls", "before", "why"),
    [
        ([Stall(1, 3.2, is_silent=True)], "", "worker 1 has been silent for 3 s"),
        ([Stall(0, 0.4, is_silent=False), Stall(1, 2.5, is_silent=False)], "", "worker 1 was stalled for 2.5 s"),
        ([Stall(0, 2.4, is_silent=True)], "workers were stalled", "worker 0 has been silent for 2 s"),
        ([], "workers were stalled in 3 of 20 s, by up to 2.5 s", "workers were stalled in 3 of 20 s, by up to 2.5 s"),
    ],
)  # fmt: skip
def test_a_stall_is_named_while_it_lasts_and_after_it(stalls, before, why):
    assert live_verdict(workers(), 100.0, stalls, before) == (DEGRADED, why)
    assert live_verdict(workers(state="lost"), 100.0, stalls, before)[0] == INVALID


def test_a_worker_that_sends_nothing_is_not_valid_until_it_does(monkeypatch):
    """The clock is ours: worker 1 is silent from 10 s to 13 s of a run of 300 s."""
    now_s = [0.0]
    monkeypatch.setattr("tailgauge.master.workers.monotonic_ns", lambda: int(now_s[0] * 1e9))
    run = RunWorkers(lambda _: True)
    for node in "ab":
        run.add(node, {})

    def look(at_s, *senders):
        now_s[0] = at_s
        for node in senders:
            run.by_node[node].last_message_ns = int(at_s * 1e9)
        return run.progress(at_s, 300.0)

    assert look(-1.0).verdict == VALID, "before the start"
    assert look(10.0, "a", "b").verdict == VALID
    during = look(13.0, "a")
    assert (during.verdict, during.reason, during.stalled_s) == (
        DEGRADED,
        "worker 1 has been silent for 3 s",
        3.0,
    )
    after = look(14.0, "a", "b")
    assert (after.verdict, after.stalled_s) == (DEGRADED, 0.0)
    assert after.reason == "workers were stalled in 1 of 14 s, by up to 3.0 s"
    assert look(101.0, "a", "b").verdict == VALID
