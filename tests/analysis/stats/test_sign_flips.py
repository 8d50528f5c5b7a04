"""The sign-flip test against brute force."""

import itertools

import numpy as np
import pytest

from tailgauge.thresholds import FEWEST_PAIRS
from tailgauge_analysis.stats.sign_flips import flips


def brute(values):
    """Two-sided p-value by writing out every pattern of signs."""
    seen = abs(values.mean())
    patterns = np.array(list(itertools.product((-1, 1), repeat=len(values))))
    return float((np.abs((patterns * values).mean(axis=1)) >= seen - 1e-12).mean())


@pytest.mark.parametrize("seed", range(6))
def test_p_value_is_the_share_of_all_patterns(seed):
    values = np.random.default_rng(seed).normal(0.3, 1, 8)

    assert flips(values).p_value == pytest.approx(brute(values))


@pytest.mark.parametrize("seed", range(6))
def test_ends_of_the_interval_are_where_the_test_turns(seed):
    values = np.random.default_rng(seed).normal(0.1, 1, 9)
    found = flips(values)

    for end, outwards in ((found.low, -1e-6), (found.high, 1e-6)):
        assert brute(values - (end + outwards)) <= 0.05
        assert brute(values - (end - outwards)) > 0.05


def test_drawn_patterns_say_nearly_what_all_of_them_say():
    """16 pairs: 9,999 drawn patterns against all 65,536."""
    values = np.random.default_rng(3).normal(0.6, 1, 16)

    assert flips(values).p_value == pytest.approx(brute(values), abs=0.01)


def test_with_fewer_than_six_pairs_there_is_no_interval():
    few, enough = (flips(np.linspace(0.5, 0.6, n)) for n in (FEWEST_PAIRS - 1, FEWEST_PAIRS))

    assert (few.low, few.high) == (None, None)
    assert few.p_value > 0.05
    assert (enough.low, enough.high) == (0.5, 0.6)
    assert enough.p_value == 2 / 2**FEWEST_PAIRS


def test_differences_that_are_no_numbers_are_refused():
    for bad in ([], [0.1, np.inf], [np.nan]):
        with pytest.raises(ValueError, match="finite differences"):
            flips(np.array(bad))
