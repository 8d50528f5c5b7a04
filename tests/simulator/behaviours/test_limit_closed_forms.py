"""Rows 13 and 14 of the ground truths: what a bucket refuses is known exactly, or as the loss of an M/D/1/K queue."""

from __future__ import annotations

from fractions import Fraction
from math import exp, floor

import numpy as np
import pytest

from tailgauge.scenario.simulated import LimitsTable
from tailgauge.simulator.behaviours.limits import Bucket, Limits

S = 1_000_000_000
RATE = 10  # per second


def loss(rho: float, places: int) -> float:
    """Share of Poisson arrivals lost by an M/D/1 queue that holds `places`, from the chain at departures."""
    arrivals = np.cumprod([exp(-rho), *(rho / k for k in range(1, places + 1))])
    chain = np.zeros((places, places))
    for i in range(places):
        first = max(0, i - 1)
        chain[i, first:] = arrivals[: places - first]
        chain[i, -1] += 1 - chain[i].sum()
    balance = np.vstack([chain.T - np.eye(places), np.ones(places)])
    empty = np.linalg.lstsq(balance, np.append(np.zeros(places), 1), rcond=None)[0][0]
    return float(1 - 1 / (empty + rho))


def poisson_ns(rate_per_s: float, count: int, seed: int) -> list[int]:
    gaps = np.random.Generator(np.random.Philox(seed)).exponential(S / rate_per_s, count)
    return np.cumsum(gaps).astype(np.int64).tolist()


@pytest.fixture(scope="module")
def size(full_size):
    """Arrivals, and the tolerance of a share: four standard errors of either size."""
    return (200_000, 0.005) if full_size else (30_000, 0.013)


@pytest.mark.parametrize(
    ("rho", "places", "known"),
    [
        (0.5, 1, 1 / 3), (0.8, 1, 0.8 / 1.8), (0.8, 2, 0.20), (0.8, 5, 0.035), (0.8, 10, 0.0036),
        (1.5, 5, 1 / 3), (1.5, 20, 1 / 3),
    ],
)  # fmt: skip
def test_the_formula_gives_the_numbers_of_the_method(rho, places, known):
    assert loss(rho, places) == pytest.approx(known, abs=0.006)


@pytest.mark.parametrize(
    ("rate", "arriving", "burst"),
    [
        (10, 11, 2),
        (10, 15, 7),
        (10, 40, 100),
        (Fraction(5, 6), 3, 50),
        (Fraction(1000, 60), 50, 1000),
    ],
)
def test_row_13_constant_arrivals_above_the_rate_are_refused_by_exactly_the_excess(
    rate, arriving, burst
):
    bucket, admitted = Bucket(rate, burst), 0
    for i in range(arriving * 600):
        now_ns = i * S // arriving
        admitted += bucket.take(1, now_ns)
        allowed = burst + rate * Fraction(now_ns, S)
        assert admitted <= allowed
        if admitted < i:  # once it has refused
            assert abs(admitted - floor(allowed)) <= 1

    refused_later = arriving * 600 - admitted
    assert abs(refused_later - (arriving * 600 - burst - rate * 600)) <= 1


def test_row_13_needs_a_burst_of_two_or_refill_is_lost_between_the_calls():
    """At 110% of the rate a burst of 1 refuses every second request, not every eleventh: it is full too early."""
    for burst, share in ((1, Fraction(1, 2)), (2, Fraction(1, 11))):
        bucket = Bucket(10, burst)
        refused = sum(not bucket.take(1, i * S // 11) for i in range(11_000))
        assert abs(refused - 11_000 * share) <= burst


@pytest.mark.parametrize("burst", [1, 2, 5, 10])
@pytest.mark.parametrize("rho", [0.5, 0.8, 1.5])
def test_row_14_poisson_arrivals_lose_as_an_mdk_queue_does(rho, burst, size):
    count, tolerance = size
    bucket = Bucket(RATE, burst)
    arrivals = poisson_ns(RATE * rho, count, seed=round(100 * rho) + burst)
    refused = sum(not bucket.take(1, at) for at in arrivals)

    assert refused / count == pytest.approx(loss(rho, burst), abs=tolerance)


def test_retries_after_the_time_given_succeed_where_nobody_else_comes():
    target = Limits(LimitsTable(rpm=7, burst=1, itpm=900, itpm_burst=500), 0)
    now = 0
    for tokens in (500, 400, 3, 250, 500, 1, 1):
        decision = target.admit("m", tokens, 1, now)
        if not decision.admitted:
            assert decision.retry_after_s is not None
            assert not target.admit("m", tokens, 1, now + (decision.retry_after_s - 1) * S).admitted
            now += decision.retry_after_s * S
            assert target.admit("m", tokens, 1, now).admitted
