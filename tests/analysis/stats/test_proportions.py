"""Intervals of shares: on what dependent values are worth, and never beyond what Markov's inequality allows."""

import numpy as np
import pytest

from tailgauge_analysis.stats.proportions import counted, proportion
from tailgauge_analysis.stats.quantiles import at_level

ALLOWED = 0.01  # of the default objective on complete answers


@pytest.mark.parametrize("failed", [[1, 0], [0, 1, 0, 1], [1, 1, 0, 0], [0, 0, 1, 1, 1, 0]])
def test_a_share_of_failures_far_above_the_allowed_one_is_shown_by_few_requests(failed):
    share = proportion(np.array(failed, np.bool_))

    assert share.low > ALLOWED
    assert share.low >= 0.025 * share.value
    assert share.high <= 1 - 0.025 * (1 - share.value)


@pytest.mark.parametrize("failed", [[1, 0, 0], [1] + [0] * 9])
def test_one_failure_in_a_few_requests_shows_nothing(failed):
    assert proportion(np.array(failed, np.bool_)).low < ALLOWED


@pytest.mark.parametrize("k", [0, 1, 5, 10])
def test_the_interval_of_independent_values_is_that_of_clopper_and_pearson(k):
    ends = {0: (0.0, 0.308), 1: (0.003, 0.445), 5: (0.187, 0.813), 10: (0.692, 1.0)}

    assert (counted(k, 10).low, counted(k, 10).high) == pytest.approx(ends[k], abs=0.001)


def test_a_higher_level_allows_a_wider_interval():
    with at_level(0.99):
        share = proportion(np.array([1, 0, 1, 0], np.bool_))

    assert share.low == pytest.approx(0.005 * 0.5)


@pytest.mark.parametrize("length", [2, 8, 30])
def test_a_share_that_is_as_allowed_is_hardly_ever_called_above_it_however_failures_cluster(length):
    """Bursts of failures: a hundredth of all requests, in runs of 10."""
    random = np.random.default_rng(length)
    starts = random.random((4000, 10 + length)) < ALLOWED / length
    called = 0
    for run in starts:
        failed = np.convolve(run, np.ones(length), "valid")[:10] > 0
        called += proportion(failed).low > ALLOWED

    assert called / 4000 < 0.025
