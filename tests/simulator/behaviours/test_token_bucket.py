"""The token bucket, to the nanosecond and to the last fraction of a token."""

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tailgauge.simulator.behaviours.limits import NS_PER_S, Bucket

RATES = st.fractions(min_value=Fraction(1, 1000), max_value=10**6, max_denominator=1000)
BURSTS = st.integers(1, 10**6)
STEPS = st.lists(st.tuples(st.integers(0, 10**11), st.integers(-1000, 1000)), max_size=30)


def test_a_new_bucket_is_full():
    bucket = Bucket(Fraction(7, 3), 5, now_ns=10)

    assert bucket.level(10) == 5
    assert bucket.full_at_ns(10) == 10
    assert (bucket.rate_per_s, bucket.burst) == (Fraction(7, 3), 5)


@pytest.mark.parametrize(
    ("limit", "burst", "rate", "depth"), [(60, None, 1, 60), (50, 1, Fraction(5, 6), 1)]
)
def test_a_limit_per_minute_may_be_used_at_once_unless_a_burst_is_named(limit, burst, rate, depth):
    bucket = Bucket.per_minute(limit, burst)

    assert (bucket.rate_per_s, bucket.burst) == (rate, depth)


def test_a_request_for_more_than_there_is_takes_nothing():
    bucket = Bucket(1, 3)

    assert [bucket.take(2, 0), bucket.take(2, 0), bucket.take(1, 0), bucket.take(1, 0)] == [
        True,
        False,
        True,
        False,
    ]
    assert bucket.level(0) == 0


def test_of_two_calls_that_overtook_each_other_the_later_time_holds():
    bucket = Bucket(1, 10, now_ns=5 * NS_PER_S)
    assert bucket.take(10, 5 * NS_PER_S)

    assert bucket.level(3 * NS_PER_S) == 0
    assert bucket.level(6 * NS_PER_S) == 1


@pytest.mark.parametrize(("rate", "burst"), [(0, 1), (1, 0), (-1, 5)])
def test_a_bucket_that_could_never_hold_anything_is_refused(rate, burst):
    with pytest.raises(ValueError, match="above 0"):
        Bucket(rate, burst)


@given(RATES, BURSTS, STEPS)
def test_the_level_never_exceeds_the_burst_and_only_grows_between_costs(rate, burst, steps):
    bucket, now = Bucket(rate, burst), 0
    for gap, cost in steps:
        before = bucket.level(now)
        now += gap
        after = bucket.level(now)
        assert before <= after <= burst
        assert after == min(Fraction(burst), before + rate * Fraction(gap, NS_PER_S))
        bucket.force(cost, now)
        assert bucket.level(now) == min(Fraction(burst), after - cost)


@given(RATES, BURSTS, STEPS, st.integers(0, 10**6))
def test_the_wait_is_enough_and_a_nanosecond_less_is_not(rate, burst, steps, cost):
    bucket, now = Bucket(rate, burst), 0
    for gap, taken in steps:
        now += gap
        bucket.force(taken, now)
    wait = bucket.wait_ns(cost, now)
    if cost > burst:
        assert wait is None
        return
    if wait > 0:
        assert bucket.level(now + wait - 1) < cost
    assert bucket.take(cost, now + wait)


@given(RATES, BURSTS, STEPS)
def test_it_is_full_when_it_says_and_not_a_nanosecond_before(rate, burst, steps):
    bucket, now = Bucket(rate, burst), 0
    for gap, cost in steps:
        now += gap
        bucket.force(cost, now)
    full = bucket.full_at_ns(now)
    assert full >= now
    if full > now:
        assert bucket.level(full - 1) < burst
    assert bucket.level(full) == burst
