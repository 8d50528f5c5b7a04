"""The estimator of alternating blocks: value, interval and its coverage."""

import math

import numpy as np
import pytest

from tailgauge_analysis.stats.contrast import LARGEST_LOG, mean_contrast, quantile_contrast

PAIRS = 10
REQUESTS = 60
STEADY = np.ones(PAIRS)


def blocks(rng, factor=1.0, spread=STEADY):
    return [factor * change * rng.lognormal(5, 0.5, REQUESTS) for change in spread]


def test_the_change_is_that_of_all_blocks_together():
    rng = np.random.default_rng(1)
    a = blocks(rng)
    b = blocks(rng, 1.5)
    contrast = quantile_contrast(a, b, 0.95)
    quantiles = [np.quantile(np.concatenate(side), 0.95, method="inverted_cdf") for side in (a, b)]

    assert (contrast.a, contrast.b) == pytest.approx(tuple(quantiles))
    assert contrast.value == pytest.approx(math.log(quantiles[1] / quantiles[0]))
    assert 0 < contrast.low < math.log(1.5) < contrast.high


def test_means_are_those_of_all_values_so_a_long_block_counts_more():
    a = [np.array([1.0, 0.0]), np.zeros(4)] * 3
    b = [np.array([1.0]), np.array([1.0, 0.0])] * 3

    assert mean_contrast(a, b).value == pytest.approx(2 / 3 - 1 / 6)


def test_a_failure_is_slower_than_everything_and_two_are_not_compared():
    rng = np.random.default_rng(3)
    off = blocks(rng)
    failed = [np.where(np.arange(REQUESTS) < 10, np.inf, block) for block in off]

    assert quantile_contrast(off, failed, 0.95).value == LARGEST_LOG
    assert quantile_contrast(failed, failed, 0.95) is None


def test_few_pairs_are_not_compared():
    a = blocks(np.random.default_rng(1))[:5]

    assert quantile_contrast(a, a, 0.5) is None
    assert mean_contrast(a, a) is None


def test_equal_variants_differ_as_rarely_as_the_interval_says_also_under_drift():
    """The target becomes three times slower during the run; both blocks of a pair have the same speed."""
    differs = 0
    for seed in range(80):
        rng = np.random.default_rng(seed)
        drift = np.geomspace(1, 3, PAIRS)
        contrast = quantile_contrast(blocks(rng, spread=drift), blocks(rng, spread=drift), 0.9)
        differs += contrast.low > 0 or contrast.high < 0

    assert differs <= 10  # of 80 at 5%: more have a chance of 0.3%


def test_a_gain_of_half_is_shown_under_drift():
    rng = np.random.default_rng(5)
    drift = np.geomspace(1, 3, PAIRS)
    contrast = quantile_contrast(blocks(rng, spread=drift), blocks(rng, 0.5, drift), 0.9)

    assert contrast.high < 0
    assert contrast.smallest < math.log(2)
