"""Legs that are slow together, and the two predictions, against closed forms. Rows 27 and 28 of the method."""

import math

import numpy as np
import pytest

from tailgauge_analysis.sections.fan_out.dependence import (
    STRETCH,
    beta_binomial_any,
    conditional,
    correlation,
    k_eff,
    naive,
    permuted,
    siblings,
    stretches,
)
from tailgauge_analysis.stats.binomial import clopper_pearson

LEGS = 20


def beta_binomial(rng, n, p, rho, legs=LEGS):
    """Whether each leg of n requests is slow; the chance is the request's own."""
    chance = rng.beta(p * (1 - rho) / rho, (1 - p) * (1 - rho) / rho, n)
    return rng.random((n, legs)) < chance[:, None]


@pytest.mark.parametrize(("rho", "share"), [(0.01, 0.168), (0.05, 0.130), (0.2, 0.073), (0.5, 0.035)])
def test_row_27_beta_binomial(full_size, rho, share):
    """One slow leg of twenty, by the correlation of siblings."""
    exact = beta_binomial_any(LEGS, 0.01, rho)
    assert exact == pytest.approx(share, abs=0.0005)

    n = 1_000_000 if full_size else 50_000
    slow = beta_binomial(np.random.default_rng(27), n, 0.01, rho)
    low, high = clopper_pearson(int(slow.any(axis=1).sum()), n, 0.999)
    assert low <= exact <= high
    found, *_ = correlation(slow)
    assert found == pytest.approx(rho, abs=0.02 if full_size else 0.06)
    assert beta_binomial_any(LEGS, float(slow.mean()), found) == pytest.approx(exact, rel=0.1)


def test_without_correlation_the_distribution_is_that_of_independent_legs():
    assert beta_binomial_any(20, 0.01, 0.0) == pytest.approx(1 - 0.99**20) == pytest.approx(0.182, abs=5e-4)
    assert beta_binomial_any(20, 0.01, 1e-9) == pytest.approx(1 - 0.99**20)
    assert beta_binomial_any(20, 0.01, 1.0) == 0.01
    assert k_eff(1 - 0.99**20, 0.01) == pytest.approx(20)
    assert k_eff(0.01, 0.01) == pytest.approx(1)
    assert k_eff(1.0, 0.01) is None


def common_shock(rng, n):
    """Legs slow one in a hundred, nearly always all of a request or none."""
    return beta_binomial(rng, n, 0.01, 0.7)


def drift(rng, n):
    """Legs that know nothing of each other, ten times as often slow in some stretches of the run."""
    chance = 0.01 * (1 + 9 * (np.arange(n) // 250 % 8 == 0))
    return rng.random((n, LEGS)) < chance[:, None]


def test_row_28_rejects_a_common_shock_and_no_drift(full_size):
    seeds = range(20 if full_size else 4)
    n = 8000 if full_size else 3000
    shocks = [siblings(common_shock(np.random.default_rng([28, seed]), n)) for seed in seeds]
    drifts = [siblings(drift(np.random.default_rng([28, seed]), n)) for seed in seeds]

    assert [one.p_value for one in shocks if one.p_value >= 0.01] == []
    assert sum(one.p_value < 0.01 for one in drifts) <= 1
    assert np.mean([one.p_value for one in drifts]) > 0.2
    for one in shocks:  # naive and conditional agree, what was seen lies far below
        assert one.any_conditional == pytest.approx(one.any_naive, rel=0.2)
        assert one.any.high < 0.5 * one.any_conditional
    for one in drifts:  # naive is wrong, conditional is right
        assert one.any.low <= one.any_conditional <= one.any.high
        assert one.any_conditional < 0.9 * one.any_naive
    assert (
        np.mean([one.correlation for one in drifts]) > 0.005
    )  # what an unconditional test would take for a shock


def test_permutations_do_what_their_exact_moments_say():
    """Each leg number keeps its slow legs in its stretch: pairs are as many as hypergeometric draws make."""
    rng = np.random.default_rng(3)
    slow = rng.random((200, 3)) < np.repeat(rng.random((4, 3)), 50, axis=0)
    stretch = stretches(200)
    by = np.stack([slow[stretch == b].sum(axis=0) for b in range(4)])
    expected = sum((by[:, i] * by[:, j] / 50).sum() for i in range(3) for j in range(i))
    variance = sum(
        (by[:, i] * by[:, j] * (50 - by[:, i]) * (50 - by[:, j]) / (50**2 * 49)).sum()
        for i in range(3)
        for j in range(i)
    )

    pairs, mean, _, reps = permuted(slow, stretch)

    counts = slow.sum(axis=1)
    assert pairs == (counts * (counts - 1) // 2).sum()
    assert mean == pytest.approx(expected, abs=4 * math.sqrt(variance / reps))


def test_blocks_are_of_about_fifty():
    assert np.bincount(stretches(76)).tolist() == [38, 38]
    assert set(np.bincount(stretches(1017)).tolist()) <= {STRETCH, STRETCH + 1}
    assert stretches(10).tolist() == [0] * 10
    assert len(stretches(0)) == 0


def test_few_slow_legs_or_one_leg_give_no_estimate():
    few = np.zeros((500, 5), np.bool_)
    few[:19, 0] = True
    assert siblings(few) is None
    assert siblings(np.ones((500, 1), np.bool_)) is None
    assert siblings(np.zeros((0, 5), np.bool_)) is None
    few[19, 0] = True
    assert siblings(few).slow_legs == 20


def exponential_max(q, legs):
    return -math.log(1 - q ** (1 / legs))


@pytest.mark.parametrize("predict", ["naive", "conditional"])
def test_predictions_of_independent_legs_are_the_closed_form(predict):
    n, legs = 20_000, 5
    times = np.random.default_rng(5).exponential(size=(n, legs))
    found = (
        naive(times, np.zeros(legs, int), (0.5, 0.99))
        if predict == "naive"
        else conditional(times, stretches(n), (0.5, 0.99))
    )

    for q in found:
        exact = exponential_max(q.p, legs)
        assert q.low < exact < q.high
        assert q.value == pytest.approx(exact, rel=0.02)
        assert q.high - q.low < 0.15 * q.value


def test_legs_of_several_kinds_are_each_measured_by_their_own():
    """Of two short and one long leg: G = (1 - e^-t)^2 (1 - e^-t/3)."""
    rng = np.random.default_rng(6)
    times = rng.exponential(size=(20_000, 3)) * np.array([1, 1, 3])
    (q,) = naive(times, np.array([0, 0, 1]), (0.95,))

    t = q.value
    assert (1 - math.exp(-t)) ** 2 * (1 - math.exp(-t / 3)) == pytest.approx(0.95, abs=0.004)


def test_intervals_of_the_predictions_cover(full_size):
    reps, n, legs, p = 400 if full_size else 60, 400, 4, 0.95
    exact, rng = exponential_max(p, legs), np.random.default_rng(7)
    hits = {"naive": 0, "conditional": 0}
    for _ in range(reps):
        times = rng.exponential(size=(n, legs))
        for name, (q,) in (
            ("naive", naive(times, np.zeros(legs, int), (p,))),
            ("conditional", conditional(times, stretches(n), (p,))),
        ):
            hits[name] += q.low <= exact <= q.high

    for hit in hits.values():
        assert (0.92 if full_size else 0.85) <= hit / reps


def test_the_conditional_prediction_follows_a_drift_and_the_naive_one_does_not():
    """Legs ten times slower in the last tenth of the run, independent of each other all the same."""
    rng = np.random.default_rng(8)
    times = rng.exponential(size=(10_000, 10)) * np.where(np.arange(10_000) < 9000, 1, 10)[:, None]
    seen = np.sort(times.max(axis=1))[int(0.5 * 10_000) - 1]
    (flat,), (timed,) = naive(times, np.zeros(10, int), (0.5,)), conditional(times, stretches(10_000), (0.5,))

    assert timed.value == pytest.approx(seen, rel=0.05)
    assert flat.value > 1.5 * seen
