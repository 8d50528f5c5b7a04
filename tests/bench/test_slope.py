"""What grows is found, what does not is passed, and what is too noisy to tell is not."""

import numpy as np
import pytest


def drawn(slope, noise, seconds=900, seed=1):
    at = np.arange(0.0, seconds, 5.0)
    return at, 100 + slope * at + np.random.default_rng(seed).normal(0, noise, len(at))


def test_a_straight_line_is_recovered_exactly():
    import slope

    found = slope.growth(*drawn(0.01, 0.0))

    assert found.change == pytest.approx(0.01 * 895)
    assert (found.low, found.high) == (pytest.approx(found.change), pytest.approx(found.change))


def test_the_interval_covers_the_planted_slope_as_often_as_promised():
    import slope

    held = [(f := slope.growth(*drawn(0.002, 1.0, seed=n))).low <= 0.002 * 895 <= f.high for n in range(400)]

    assert 0.92 < np.mean(held) < 0.98


@pytest.mark.parametrize(
    ("grows", "noise", "passes"), [(0.0, 0.5, True), (0.01, 0.5, False), (0.0, 50.0, False)]
)
def test_only_growth_that_is_shown_to_be_small_passes(grows, noise, passes):
    import slope

    assert slope.growth(*drawn(grows, noise)).within(2.0) is passes


def test_too_few_samples_are_refused():
    import slope

    with pytest.raises(ValueError, match="at least 24 samples"):
        slope.growth([1.0, 2.0], [1.0, 2.0])
