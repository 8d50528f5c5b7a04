"""Clock offsets over a run: whatever the network does, the true offset lies within the error that is reported."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tailgauge.channel.clock_offset import EVERY_S, WINDOW, Ping, over_run, tightest
from tailgauge.clock import Offset, offset_from_ping

MS = 1_000_000
S = 1_000_000_000


def pinged(at_ns, theta_ns, there_ns, back_ns, answering_ns=20_000):
    """A ping sent at `at_ns` of the worker's clock; master clock = worker clock + theta_ns."""
    t1 = at_ns + there_ns + theta_ns
    t3 = at_ns + there_ns + answering_ns + back_ns
    return Ping(t3, offset_from_ping(at_ns, t1, t1 + answering_ns, t3))


def run_of_pings(seed, theta_ns, drift_ppb=0, seconds=600):
    """Pings as a worker sends them: eight at once, one every five seconds, eight at the end; delays by chance, each way its own."""
    rng = np.random.default_rng([30, seed])
    times = (
        [0] * WINDOW + [s * S for s in range(EVERY_S, seconds, EVERY_S)] + [seconds * S] * WINDOW
    )
    there, back = (
        100_000 + rng.exponential(400_000, len(times)) * 10 ** rng.integers(0, 2, len(times))
        for _ in "ab"
    )
    return [
        pinged(at, theta_ns + at * drift_ppb // S, int(a), int(b))
        for at, a, b in zip(times, there, back, strict=True)
    ]


@pytest.mark.parametrize("theta_ms", [-50, 50])
def test_row_30_an_injected_offset_is_recovered_within_half_the_round_trip(theta_ms, full_size):
    for seed in range(1000 if full_size else 50):
        pings = run_of_pings(seed, theta_ms * MS)
        kept, found = tightest(pings), over_run(pings)

        assert abs(found.offset_ns - theta_ms * MS) <= found.error_ns
        assert abs(found.offset_ns - theta_ms * MS) <= max(p.offset.error_ns for p in kept)
        assert found.error_ns <= 2 * max(p.offset.error_ns for p in kept) + 1
        first = over_run(pings[:WINDOW])  # what the start of the run is mapped by
        half = min(p.offset.error_ns for p in pings[:WINDOW])
        assert abs(first.offset_ns - theta_ms * MS) <= first.error_ns <= half + 1


@pytest.mark.parametrize("drift_ppb", [-50_000, 1000, 100_000])
def test_a_clock_that_drifts_evenly_stays_within_the_error_all_the_time(drift_ppb, full_size):
    for seed in range(200 if full_size else 20):
        pings = run_of_pings(seed, 50 * MS, drift_ppb)
        found, widest = over_run(pings), max(p.offset.error_ns for p in tightest(pings))
        ends = (50 * MS, 50 * MS + 600 * drift_ppb)

        assert all(
            abs(found.offset_ns - end) <= found.error_ns + 2000 for end in ends
        )  # and what drifts within a ping
        assert found.error_ns <= abs(600 * drift_ppb) / 2 + 2 * widest + 2000
        assert found.drift_ppb == pytest.approx(drift_ppb, abs=4 * widest / 600)


@given(
    st.lists(st.tuples(st.integers(0, 10**7), st.integers(0, 10**7)), min_size=1, max_size=40),
    st.integers(-(10**12), 10**12),
)
def test_any_delays_and_any_offset(delays, theta_ns):
    pings = [pinged(i * S, theta_ns, there, back) for i, (there, back) in enumerate(delays)]
    found = over_run(pings)

    assert abs(found.offset_ns - theta_ns) <= found.error_ns
    assert abs(found.offset_ns - theta_ns) <= max(p.offset.error_ns for p in tightest(pings))


def test_the_tightest_of_each_window_is_kept_and_the_last_window_is_whole():
    pings = [Ping(i, Offset(0, error)) for i, error in enumerate([5, 3, 9, 2, 8, 4, 7])]

    assert [p.at_ns for p in tightest(pings, 3)] == [3, 5]
    assert [p.at_ns for p in tightest(pings[:6], 3)] == [1, 3]
    assert [p.at_ns for p in tightest(pings[:2], 3)] == [1]


def test_a_moment_tells_of_no_drift():
    assert over_run([Ping(i * S, Offset(i * MS, 5)) for i in range(WINDOW)]).drift_ppb is None
