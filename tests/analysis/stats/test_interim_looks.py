"""Whoever stops at the first look at which a p95 is known to 5% has an interval that covers, on series with a known p95."""

import math

import numpy as np
import pytest

from tailgauge.plan.looks import ALL_LOOKS_MAY_MISS, HALVINGS
from tailgauge_analysis.objectives.precision import half_width, is_known
from tailgauge_analysis.stats.quantiles import at_level, quantiles

P, Z = 0.95, 1.6448536


def lognormal(rng, n):
    return np.exp(0.6 * rng.normal(size=n)), math.exp(0.6 * Z)


def correlated(rng, n, phi=0.9):
    """A lognormal whose logarithm is AR(1)."""
    steps, level = rng.normal(size=n) * math.sqrt(1 - phi**2), rng.normal()
    series = np.empty(n)
    for i, step in enumerate(steps.tolist()):
        level = phi * level + step
        series[i] = level
    return np.exp(0.3 * series), math.exp(0.3 * Z)


def mm1(rng, n, rho=0.7):
    """Times in system of a queue, the first 20,000 left out: it began empty."""
    work, gaps = rng.exponential(1, n + 20_000), rng.exponential(1 / rho, n + 20_000)
    walk = np.concatenate(([0], np.cumsum(work[:-1] - gaps[1:])))
    return (walk - np.minimum.accumulate(walk) + work)[20_000:], math.log(20) / (1 - rho)


def pareto(rng, n):
    return rng.pareto(1.5, n) + 1, 20 ** (1 / 1.5)


def first_known(values):
    """The share of the values at which it stops, and the quantile there."""
    before = 0.0
    for share in (*(0.5**i for i in range(HALVINGS, 0, -1)), 1.0):
        with at_level(1 - ALL_LOOKS_MAY_MISS * (share - before)):
            (found,) = quantiles(values[: int(share * len(values))], (P,))
        before = share
        if is_known(found, 0.05):
            break
    return share, found


@pytest.mark.slow
@pytest.mark.parametrize(
    ("series", "n", "seeds"), [(lognormal, 32_000, 60), (correlated, 60_000, 40), (pareto, 80_000, 40), (mm1, 1_000_000, 0)]
)  # fmt: skip
def test_the_interval_covers_wherever_it_stops(series, n, seeds, full_size):
    seeds = 200 if full_size else seeds
    if not seeds:
        pytest.skip("at full size")
    covers, early = 0, 0
    for seed in range(seeds):
        values, planted = series(np.random.default_rng([seed, n]), n)
        share, found = first_known(values)
        assert found.low is not None
        assert found.high is not None
        covers += found.low <= planted <= found.high
        early += share < 1 and (half_width(found) or 1) <= 0.05

    assert covers >= 0.95 * seeds - 2 * math.sqrt(0.05 * 0.95 * seeds)
    assert early >= 0.5 * seeds, "it is the stopping that is tried"
