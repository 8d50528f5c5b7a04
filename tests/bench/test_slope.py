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

    held = [
        (f := slope.growth(*drawn(0.002, 1.0, seed=n))).low <= 0.002 * 895 <= f.high
        for n in range(400)
    ]

    assert 0.92 < np.mean(held) < 0.98


@pytest.mark.parametrize(
    ("grows", "noise", "passes"), [(0.0, 0.5, True), (0.01, 0.5, False), (0.0, 50.0, False)]
)
def test_only_growth_that_is_shown_to_be_small_passes(grows, noise, passes):
    import slope

    assert slope.growth(*drawn(grows, noise)).within(2.0) is passes


def lags(grows, rng, bursts=2, burst_s=40):
    """One value a second: spread of a third, and bursts of 15 times as much while something else runs."""
    of = 400 * np.exp(rng.normal(0, 0.3, 900)) + grows * np.arange(900) / 900
    for start in rng.integers(0, 900 - burst_s, bursts):
        of[start : start + burst_s] *= 15
    return range(900), of


@pytest.mark.parametrize("bursts", [0, 2])
def test_bursts_of_the_machine_neither_hide_growth_nor_look_like_it(bursts):
    import slope

    rng = np.random.default_rng(1911 + bursts)
    covered, passed = {}, {}
    for grows in (0, 1000, 2000):
        found = [slope.growth_behind_bursts(*lags(grows, rng, bursts)) for _ in range(200)]
        covered[grows] = np.mean([f.low <= grows <= f.high for f in found])
        passed[grows] = np.mean([f.within(1000) for f in found])

    assert all(share > 0.9 for share in covered.values()), covered
    assert passed[0] > 0.85
    assert passed[1000] < 0.1
    assert passed[2000] < 0.02


def test_what_begins_in_the_last_blocks_is_seen_by_least_squares():
    import slope

    at, of = drawn(0.0, 0.1)
    of[-15:] += 20

    assert not slope.growth(at, of).within(3.0)


def test_too_few_samples_are_refused():
    import slope

    with pytest.raises(ValueError, match="at least 24 samples"):
        slope.growth([1.0, 2.0], [1.0, 2.0])
