"""Quantiles and their intervals, against processes whose quantiles are known."""

import math

import numpy as np
import pytest

from tailgauge_analysis.stats.binomial import binomial_cdf
from tailgauge_analysis.stats.quantiles import (
    FEW_EPISODES,
    TOO_FEW,
    UNRELIABLE,
    correlation_time,
    effective_size,
    n_min,
    quantiles,
    rank,
    ranks,
)


def one(values, p, sizes=None):
    return quantiles(np.asarray(values, float), (p,), sizes)[0]


def covers(q, planted):
    return (q.low is None or q.low <= planted) and (q.high is None or planted <= q.high)


def mm1_sojourn(rng, n, rho):
    """Times in an M/M/1 queue with arrival rate 1: exponential with rate 1/rho - 1."""
    service = rng.exponential(rho, n)
    steps = np.concatenate(([0.0], np.cumsum(service[:-1] - rng.exponential(1.0, n - 1))))
    return steps - np.minimum.accumulate(steps) + service


@pytest.mark.parametrize("p", [0.5, 0.9, 0.95, 0.99])
def test_the_estimator_is_numpys_inverted_cdf(p):
    rng = np.random.default_rng(5)
    for n in (1, 2, 19, 20, 21, 100, 1001):
        values = rng.exponential(size=n)

        assert one(values, p).value == np.quantile(values, p, method="inverted_cdf")


def test_the_rank_does_not_suffer_from_binary_fractions():
    assert [rank(20, 0.95), rank(100, 0.99), rank(10, 0.3), rank(1, 0.99)] == [19, 99, 3, 1]


@pytest.mark.parametrize(("p", "n"), [(0.5, 5), (0.95, 59), (0.99, 299), (0.999, 2995)])
def test_fewest_samples_for_a_bound(p, n):
    assert n_min(p) == n


@pytest.mark.parametrize("p", [0.5, 0.9, 0.95, 0.99])
@pytest.mark.parametrize("n", [1000, 5000, 20_000])
def test_the_ranks_hold_the_quantile_with_95_percent(n, p):
    """Ranks are whole numbers: the chance is met from above, by at most 3 points at these sizes."""
    low, high = ranks(n, n, p)

    assert 0.95 <= binomial_cdf(high - 1, n, p) - binomial_cdf(low - 1, n, p) <= 0.98


@pytest.mark.slow
def test_row_24_independent_values_are_covered_as_often_as_promised(full_size):
    """Estimating n_eff costs a little width: covered a little more often than by plain order statistics, never less."""
    n, reps = (20_000, 1000) if full_size else (1000, 400)
    rng = np.random.default_rng(1)
    hits, plain = dict.fromkeys((0.5, 0.9, 0.99), 0), dict.fromkeys((0.5, 0.9, 0.99), 0)
    for _ in range(reps):
        values = rng.exponential(size=n)
        ordered = np.sort(values)
        for q in quantiles(values, tuple(hits)):
            planted, (low, high) = -math.log(1 - q.p), ranks(n, n, q.p)
            hits[q.p] += covers(q, planted)
            plain[q.p] += ordered[low - 1] <= planted <= ordered[high - 1]

    slack = 0.0 if full_size else 0.015
    assert all(0.93 - slack <= k / reps <= 0.97 + slack for k in plain.values()), plain
    assert all(0.93 - slack <= k / reps <= 0.985 + slack for k in hits.values()), hits


def test_row_24_waiting_times_in_a_queue_are_covered_far_better_than_if_they_were_independent(
    full_size,
):
    """Nominal 95%, M/M/1 at half load, p99, n = 20,000; as if independent it is some 47%."""
    rng, planted = np.random.default_rng(2), math.log(100) / (1 / 0.5 - 1)
    ours = naive = 0
    reps, (low, high) = 1000 if full_size else 100, ranks(20_000, 20_000, 0.99)
    for _ in range(reps):
        values = mm1_sojourn(rng, 20_000, 0.5)
        ours += covers(one(values, 0.99), planted)
        ordered = np.sort(values)
        naive += ordered[low - 1] <= planted <= ordered[high - 1]

    assert ours >= 0.90 * reps
    assert naive <= (0.55 if full_size else 0.7) * reps


def test_values_in_groups_count_as_their_groups():
    """100 requests of 50 gaps that are alike within the request say as much as 100 values."""
    rng = np.random.default_rng(3)
    sizes = np.full(100, 50)
    alike = np.repeat(rng.exponential(size=100), 50)
    mixed = rng.exponential(size=5000)

    assert one(alike, 0.9, sizes).n_eff == pytest.approx(100, rel=0.35)
    assert one(mixed, 0.9, sizes).n_eff > 3000


def test_groups_of_one_are_the_plain_case():
    rng = np.random.default_rng(4)
    values = mm1_sojourn(rng, 2000, 0.7)

    assert effective_size(values > 3, np.ones(2000, int)).n_eff == effective_size(values > 3).n_eff


def test_constant_values_have_a_point_for_an_interval():
    q = one(np.full(1000, 7.0), 0.99)

    assert (q.value, q.low, q.high, q.n_eff, q.mark) == (7.0, 7.0, 7.0, 1000, "")


def test_too_few_values_are_not_a_percentile():
    assert one(np.arange(298), 0.99).mark == TOO_FEW
    assert one(np.arange(299), 0.99).mark == FEW_EPISODES
    assert one(np.arange(299), 0.99).high is None
    assert one(np.random.default_rng(0).permutation(2000), 0.99).mark == ""
    assert one([], 0.5).mark == TOO_FEW


def test_a_burst_of_failures_counts_as_one_event_and_not_as_many():
    """30 failures of 1,000 in one go do not prove that the p99 of the target is a failure."""
    rng = np.random.default_rng(6)
    burst, spread = rng.exponential(size=1000), rng.exponential(size=1000)
    burst[500:530] = np.inf
    spread[rng.choice(1000, 30, replace=False)] = np.inf

    assert math.isinf(one(burst, 0.99).value)
    assert one(burst, 0.99).n_eff < 100
    assert math.isfinite(one(burst, 0.99).low)
    assert math.isinf(one(spread, 0.99).low)


def test_correlation_time_of_an_autoregression_is_the_known_one_whatever_its_length():
    """(1 + phi) / (1 - phi); series longer than a block, and correlations longer than the first lags looked at."""
    rng = np.random.default_rng(7)
    for phi, n, slack in ((0.5, 2000, 0.3), (0.9, 100_000, 0.15), (0.998, 400_000, 0.35)):
        series = np.convolve(rng.standard_normal(n), phi ** np.arange(min(n, 5000)))[:n]

        assert correlation_time(series) == pytest.approx((1 + phi) / (1 - phi), rel=slack)


@pytest.mark.parametrize(("bursts", "mark"), [(1, FEW_EPISODES), (4, FEW_EPISODES), (8, "")])
def test_slow_requests_that_came_in_few_episodes_are_marked_with_their_number(bursts, mark):
    rng = np.random.default_rng(bursts)
    values = rng.exponential(size=4000)
    for i in range(bursts):
        values[200 + 450 * i : 200 + 450 * i + 80 // bursts] += 100
    found = one(values, 0.99)

    assert found.mark == mark
    assert 0.8 * bursts <= found.episodes <= 1.5 * bursts


def test_a_slow_period_below_the_deeper_percentile_widens_the_interval_of_the_percentile_too():
    """3% in two periods among 7% of short exceedances: of those the indicator at p90 is hardly correlated."""
    rng = np.random.default_rng(9)
    even, uneven = rng.exponential(size=4000), rng.exponential(size=4000)
    even[rng.choice(4000, 240, replace=False)] += 50
    uneven[1000:1120] += 50
    uneven[3000:3120] += 50

    assert one(uneven, 0.9).n_eff < one(even, 0.9).n_eff / 10


def test_slow_gaps_of_few_answers_are_few_episodes_although_they_are_many():
    rng = np.random.default_rng(10)
    sizes = np.full(500, 40)
    gaps = rng.exponential(size=20_000)
    gaps[40 * 100 : 40 * 103] += 30
    gaps[40 * 400 : 40 * 403] += 30

    assert (one(gaps, 0.99, sizes).mark, one(gaps, 0.99, sizes).episodes) == (FEW_EPISODES, 2)
    assert one(rng.exponential(size=20_000), 0.99, sizes).mark == ""


@pytest.mark.parametrize("p", [0.5, 0.9, 0.95])
def test_gaps_of_which_every_answer_has_some_beyond_are_not_one_episode(p):
    """Neighbours would all belong together, however many answers there are."""
    rng = np.random.default_rng(12)
    sizes = np.full(185, 39)
    gaps = rng.exponential(size=185 * 39)
    paces = np.repeat(rng.lognormal(sigma=0.1, size=185), 39)

    assert one(gaps, p, sizes).mark == ""
    assert one(gaps * paces, p, sizes).mark == ""


def test_a_median_of_less_than_fifty_effective_requests_is_marked():
    found = one(mm1_sojourn(np.random.default_rng(11), 1500, 0.95), 0.5)

    assert found.n_eff < 50
    assert found.mark in {UNRELIABLE, FEW_EPISODES}


def test_failures_in_one_go_leave_a_median_far_below_them_alone():
    values = np.full(400, 200.0)
    values[150:170] = np.inf

    assert one(values, 0.5).mark == ""
    assert (one(values, 0.5).n_eff, one(values, 0.5).high) == (400, 200.0)
    assert one(values, 0.95).mark == FEW_EPISODES


@pytest.mark.parametrize(
    "made", [np.arange, lambda n: -np.arange(n), lambda n: np.tile([1.0, 2.0], n // 2)]
)
def test_odd_orders_have_an_interval_or_a_mark(made):
    """Steadily slower, steadily faster, alternating."""
    found = one(made(2000), 0.95)

    assert found.mark == FEW_EPISODES or found.low <= found.value <= found.high
