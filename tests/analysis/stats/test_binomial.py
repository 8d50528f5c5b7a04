"""Exact binomial arithmetic against values that are known in closed form."""

import math

import numpy as np
import pytest

from tailgauge_analysis.stats.binomial import (
    beta_cdf,
    binomial_cdf,
    binomial_quantile,
    clopper_pearson,
    detectable,
)


@pytest.mark.parametrize(("n", "p"), [(1, 0.5), (10, 0.1), (40, 0.95), (200, 0.99)])
def test_the_distribution_equals_the_sum_of_its_terms(n, p):
    for k in range(n + 1):
        terms = math.fsum(math.comb(n, i) * p**i * (1 - p) ** (n - i) for i in range(k + 1))

        assert binomial_cdf(k, n, p) == pytest.approx(terms, abs=1e-12)


def test_beta_1_1_is_uniform():
    assert [beta_cdf(x, 1, 1) for x in (-1, 0, 0.25, 1, 2)] == pytest.approx([0, 0, 0.25, 1, 1])


@pytest.mark.parametrize("q", [0.025, 0.5, 0.975])
@pytest.mark.parametrize(("n", "p"), [(1, 0.5), (100, 0.99), (5_000_000, 0.99)])
def test_a_quantile_is_the_smallest_count_that_reaches_the_share(q, n, p):
    k = binomial_quantile(q, n, p)

    assert binomial_cdf(k - 1, n, p) < q <= binomial_cdf(k, n, p)


def test_clopper_pearson_of_nothing_seen_is_the_rule_of_three():
    low, high = clopper_pearson(0, 2995)

    assert low == 0
    assert high == pytest.approx(1 - 0.025 ** (1 / 2995), rel=1e-9)


@pytest.mark.parametrize(
    ("k", "n", "low", "high"),
    [
        (5, 100, 0.0164319, 0.1128349),
        (50, 100, 0.3983211, 0.6016789),
        (100, 100, 0.9637833, 1.0),
        (0, 0, 0, 1),
    ],
)
def test_clopper_pearson_equals_published_values(k, n, low, high):
    assert clopper_pearson(k, n) == pytest.approx((low, high), abs=1e-6)


@pytest.mark.parametrize(("allowed", "n"), [(0.05, 100), (0.01, 1200), (0.5, 50), (0.001, 20_000)])
def test_the_smallest_violation_is_found_in_eight_of_ten_repetitions(allowed, n):
    share = detectable(allowed, n)

    rng = np.random.default_rng(n)
    counts = rng.binomial(n, share, 4000)
    is_found = [clopper_pearson(int(k), n)[0] > allowed for k in counts]
    assert np.mean(is_found) == pytest.approx(0.8, abs=0.025)


def test_one_value_shows_no_violation_of_a_half():
    assert detectable(0.5, 1) is None
