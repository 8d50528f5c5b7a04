"""Quantile regression against known values: samples of a known distribution, and vertices found by trying all."""

from itertools import combinations

import numpy as np
import pytest

from tailgauge_analysis.stats.quantile_regression import fit


def loss(x, y, coefficients, p):
    residuals = y - x @ coefficients
    return float(np.sum(residuals * (p - (residuals < 0))))


def sample(n, seed):
    """The spread grows with the size, so the slope at p is 20 - 3 ln(1 - p)."""
    rng = np.random.default_rng(seed)
    size, part = rng.uniform(1, 5, n), rng.random(n) < 0.5
    x = np.stack([np.ones(n), size, np.where(part, size, 0.0)], axis=1)
    return x, 50 + 20 * size - 15 * x[:, 2] + 3 * size * rng.exponential(1, n)


@pytest.mark.parametrize("p", [0.5, 0.95])
def test_a_known_law_is_recovered(p):
    found = fit(*sample(20_000, 3), p)

    assert found == pytest.approx([50, 20 - 3 * np.log(1 - p), -15], abs=0.6 if p == 0.5 else 1.5)


@pytest.mark.parametrize("p", [0.25, 0.5, 0.9])
@pytest.mark.parametrize("seed", range(5))
def test_the_loss_is_that_of_the_best_vertex(p, seed):
    """An optimum lies on as many observations as there are coefficients: of 24 rows all can be tried."""
    x, y = sample(24, seed)
    best = min(
        loss(x, y, np.linalg.solve(x[list(rows)], y[list(rows)]), p) for rows in _solvable(x)
    )

    assert loss(x, y, fit(x, y, p), p) <= best * 1.001


def _solvable(x):
    return (
        r
        for r in combinations(range(len(x)), x.shape[1])
        if np.linalg.matrix_rank(x[list(r)]) == x.shape[1]
    )


def test_a_median_is_the_sample_median():
    y = np.random.default_rng(1).lognormal(0, 1, 101)

    assert fit(np.ones((101, 1)), y, 0.5)[0] == pytest.approx(np.median(y), rel=1e-3)


def test_the_unit_of_a_column_does_not_matter():
    x, y = sample(300, 9)

    assert fit(x * [1, 1e6, 1e-3], y, 0.5) == pytest.approx(
        fit(x, y, 0.5) / [1, 1e6, 1e-3], rel=1e-6
    )
