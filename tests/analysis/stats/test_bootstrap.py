"""The stationary bootstrap covers what it promises where neighbours depend on each other."""

import math

import numpy as np
import pytest

from tailgauge_analysis.stats.bootstrap import blocks, draw, ratio


def autoregressive(rng, n, phi):
    noise = rng.normal(size=n + 200)
    out = np.zeros(n + 200)
    for i in range(1, n + 200):
        out[i] = phi * out[i - 1] + noise[i]
    return out[200:]


def test_a_draw_goes_through_the_rows_in_stretches():
    rng = np.random.default_rng(1)
    rows = draw(10_000, 50, rng)
    breaks = ((np.diff(rows) % 10_000) != 1).sum()

    assert rows.min() >= 0
    assert rows.max() < 10_000
    assert 160 < breaks < 240
    assert np.bincount(rows, minlength=10_000).mean() == 1


@pytest.mark.slow
def test_the_ratio_of_dependent_rows_is_covered(full_size):
    """A hit share whose state lasts for some 20 rows; as if independent, it would be covered half of the time."""
    rng = np.random.default_rng(2)
    hits = naive = 0
    runs, n = (400, 1500) if full_size else (60, 400)
    for _ in range(runs):
        total = rng.integers(100, 1000, n).astype(float)
        read = total * (autoregressive(rng, n, 0.9) > 0)
        low, high = ratio(read, total, reps=300)
        hits += low <= 0.5 <= high
        low, high = ratio(read, total, block=1, reps=300)
        naive += low <= 0.5 <= high

    assert 0.89 * runs <= hits <= 0.99 * runs
    assert naive <= 0.75 * runs


def test_the_same_rows_give_the_same_interval():
    values = np.random.default_rng(4).exponential(size=200)

    assert ratio(values, np.ones(200), reps=100) == ratio(values, np.ones(200), reps=100)


def test_nothing_to_divide_by():
    assert ratio(np.zeros(3), np.zeros(3)) == (0.0, math.inf)
    assert ratio(np.empty(0), np.empty(0)) == (0.0, math.inf)
    assert blocks(np.ones(1)) == 1.0


def test_many_rows_are_added_up_first():
    rng = np.random.default_rng(6)
    total = rng.integers(100, 1000, 100_000).astype(float)
    low, high = ratio(total * (rng.random(100_000) < 0.3), total, reps=200)

    assert low < 0.3 < high
    assert high - low == pytest.approx(2 * 1.96 * math.sqrt(0.21 / 100_000) * 1.1, rel=0.3)


def test_a_share_stays_a_share():
    low, high = ratio(np.array([0.0, 0, 0, 1, 1, 1, 1, 1]), np.ones(8))

    assert 0 <= low < 0.625 < high <= 1
