"""The acceleration limit lets a steady rate and a doubling pass, and no more."""

from __future__ import annotations

import pytest

from tailgauge.simulator.behaviours.limits import Ramp

S = 1_000_000_000


def refused(ramp: Ramp, rate_per_s: int, since_s: int, seconds: int) -> int:
    """Requests refused of a constant rate."""
    count = 0
    for i in range(rate_per_s * seconds):
        now_ns = since_s * S + i * S // rate_per_s
        if ramp.wait_ns(now_ns):
            count += 1
        else:
            ramp.admit(now_ns)
    return count


def test_switched_off_everything_passes():
    assert refused(Ramp(), 1000, 0, 10) == 0


def test_below_the_floor_everything_passes():
    assert refused(Ramp(growth=1.5, floor=100), 100, 0, 1) == 0


@pytest.mark.parametrize(("factor", "refuses"), [(1, False), (2, False), (3, True), (10, True)])
def test_a_step_in_the_rate_passes_up_to_the_growth(factor, refuses):
    ramp = Ramp(growth=2, window_s=60, floor=600)
    assert refused(ramp, 10, 0, 180) == 0

    assert (refused(ramp, 10 * factor, 180, 60) > 0) == refuses


def test_a_tenfold_step_is_let_in_little_by_little():
    """Twice as much in the first window, four times in the second, and so on."""
    ramp = Ramp(growth=2, window_s=10, floor=100)
    refused(ramp, 10, 0, 30)
    shares = [refused(ramp, 100, 30 + 10 * i, 10) / 1000 for i in range(5)]

    assert shares[0] == pytest.approx(0.8, abs=0.03)
    assert shares == sorted(shares, reverse=True)
    assert shares[4] == 0


@pytest.mark.parametrize("later_s", [0, 7, 31, 59, 61, 100])
def test_the_wait_is_enough_where_nobody_else_comes(later_s):
    ramp = Ramp(growth=2, window_s=60, floor=50)
    refused(ramp, 20, 0, 30)
    now_ns = (30 + later_s) * S
    wait_ns = ramp.wait_ns(now_ns)

    assert ramp.wait_ns(now_ns + wait_ns) == 0
    if wait_ns:
        assert ramp.wait_ns(now_ns + wait_ns - 1) == 1


def test_after_two_idle_windows_only_the_floor_is_left():
    ramp = Ramp(growth=2, window_s=10, floor=5)
    refused(ramp, 10, 0, 60)

    assert refused(ramp, 100, 100, 1) == 95
