"""The fewest samples of a bound, and Holm's correction, against their tables."""

import numpy as np
import pytest

from tailgauge_analysis.stats.binomial import needed
from tailgauge_analysis.stats.estimate import holm


@pytest.mark.parametrize(("beyond", "n"), [(0, 459), (1, 662), (5, 1307), (10, 2010), (50, 6898)])
def test_the_requests_that_mlperf_asks_for(beyond, n):
    assert needed(beyond, 0.99, 0.99) == n


def test_holm_by_hand():
    assert holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])
    assert holm([0.9, 0.8]) == [1.0, 1.0]
    assert holm([]) == []


def test_holm_keeps_the_familys_level():
    """Ten true null hypotheses: one false finding or more in 5% of families at most; without correction in 40%."""
    p = np.random.default_rng(1).random((2000, 10))
    adjusted = np.array([min(holm(family)) for family in p])

    assert (adjusted < 0.05).mean() < 0.065
    assert (p.min(axis=1) < 0.05).mean() > 0.35
