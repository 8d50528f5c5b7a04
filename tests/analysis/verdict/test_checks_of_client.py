"""Each check of the client from both sides of its bound, and what it says to do."""

import numpy as np
import pytest

from tailgauge.thresholds import DEGRADED, INVALID, VALID
from tailgauge_analysis.load.frames import load
from tailgauge_analysis.sections.findings import evidence_of
from tailgauge_analysis.verdict.checks import CHECKS
from tailgauge_analysis.verdict.verdict import reasons, worst

N = 1000  # 20 s on two workers, from 1 s on steady: 38 seconds of workers, 950 requests
MS = 1_000_000
SECONDS = 21


def judged(folder):
    return reasons(CHECKS, evidence_of(load([folder])))


def late(seconds, lag_ms=80.0):
    """Health rows whose loop was late in so many of the steady seconds, with interval stamps in all."""
    column = np.where((np.arange(SECONDS) >= 1) & (np.arange(SECONDS) <= seconds), int(lag_ms * MS), 0)
    return {"health": {"loop_lag_max_ns": column, "chunk_intervals": np.arange(1, SECONDS + 1)}}


def some(n, value, usual=0.03):
    """A value for the last `n` requests, the usual one for the others."""
    return np.where(np.arange(N) >= N - n, value, usual)


def cpu(seconds, value):
    return np.where((np.arange(SECONDS) >= 1) & (np.arange(SECONDS) <= seconds), value, 0.2)


@pytest.mark.parametrize(
    ("check", "word", "changes"),
    [
        ("pool_waits", VALID, {"pool_wait_ms": some(9, 30.0)}),
        ("pool_waits", DEGRADED, {"pool_wait_ms": some(10, 30.0)}),
        ("pool_waits", VALID, {"pool_wait_ms": some(50, 5.0)}),
        ("pool_waits", VALID, {"pool_wait_ms": some(50, 9.0), "ttft_ms": 1000.0}),  # 1% of the TTFT
        ("pool_waits", DEGRADED, {"pool_wait_ms": some(50, 11.0), "ttft_ms": 1000.0}),
        ("bad_seconds", VALID, late(1)),
        ("bad_seconds", DEGRADED, late(2)),  # 4 of 38
        ("bad_seconds", DEGRADED, late(9)),
        ("bad_seconds", INVALID, late(10)),  # 20 of 38
        ("bad_seconds", VALID, late(19, 50.0)),
        ("loop_lag", VALID, {"stamps": "user", "cpu_share": cpu(19, 0.7)}),
        ("loop_lag", DEGRADED, {"stamps": "user", "cpu_share": cpu(1, 0.71)}),
        ("loop_lag", VALID, {"stamps": "user"} | late(19, 5.0)),
        ("loop_lag", DEGRADED, {"stamps": "user"} | late(1, 5.1)),
        ("loop_lag", VALID, {"cpu_share": cpu(19, 0.71)}),  # kernel stamps do not care
        ("exact", VALID, {"interval_every": 106}),  # 9 of 950
        ("exact", DEGRADED, {"interval_every": 95}),  # 10
    ],
)  # fmt: skip
def test_a_check_falls_at_its_bound(write, check, word, changes):
    against = judged(write(n=N, chunks=1, **changes))

    assert (worst(against), [reason.check for reason in against]) == (
        word,
        [check] if word != VALID else [],
    )
    for reason in against:
        assert reason.text.endswith(".")
        assert reason.advice.endswith(".")


def test_bad_seconds_are_named_with_worker_time_and_lag(write):
    against = judged(write(n=N, chunks=1, **late(3)))
    (reason,) = against

    assert reason.text == (
        "Workers were stalled for more than 50 ms in 15.8% of their seconds: worker 0 from 00:01 to 00:04, event loop late "
        "by up to 80.0 ms; worker 1 from 00:01 to 00:04, event loop late by up to 80.0 ms."
    )


@pytest.mark.parametrize(
    ("changes", "advice"),
    [
        ({}, "The workers read promptly: look for a proxy that buffers the stream"),
        (late(19), "The workers mostly read promptly: look for a proxy that buffers the stream"),
        (late(19) | {"read_lag_ms": 6.0}, "Use more workers"),
    ],
)
def test_what_came_in_one_piece_while_the_client_was_prompt_is_laid_to_the_way(write, changes, advice):
    against = judged(write(n=N, chunks=1, interval_every=1, **changes))
    (exact,) = [reason for reason in against if reason.check == "exact"]

    assert exact.advice.startswith(advice)


def test_a_busy_core_asks_for_so_many_workers_that_each_has_room(write):
    """Two workers at 96% of a core are 1.92 cores: at 70% each that takes three."""
    against = judged(write(n=N, chunks=1, delay_ms=some(50, 9.0, 0.1), cpu_share=0.96))

    assert against[0].advice.startswith(
        "Use 3 workers, on more machines (this one has 2 cores) or a lower rate"
    )


def test_what_was_dropped_counts_as_asked_for(write):
    """Half of it was dropped: six workers for what two could not do."""
    drops = dict.fromkeys(range(0, N, 2), "client_drop")
    against = judged(write(n=N, chunks=1, ended=drops, cpu_share=0.96))

    assert (against[0].verdict, against[0].check) == (INVALID, "drops")
    assert against[0].advice.startswith("Use 6 workers, on more machines")


def test_where_no_core_was_full_nobody_counts_workers(write):
    against = judged(write(n=N, chunks=1, delay_ms=some(50, 9.0, 0.1)))

    assert against[0].advice.startswith("Use more workers or a lower rate")


def test_a_prompt_worker_sends_us_to_the_target_for_its_interval_stamps(write):
    folder = write(
        n=N,
        chunks=1,
        interval_every=50,
        health={"first_chunks": np.arange(SECONDS) * 50, "first_intervals": np.arange(SECONDS)},
    )
    (reason,) = judged(folder)

    assert "Worst: worker 0 (2.0%)." in reason.text
    assert reason.advice.startswith("The workers read promptly: look for a proxy")


def test_a_dry_run_has_no_client(write):
    evidence = evidence_of(load([write(n=N, chunks=1, **late(19))]))
    evidence.frames.run["dry_run"] = True

    assert reasons(CHECKS, evidence) == []
