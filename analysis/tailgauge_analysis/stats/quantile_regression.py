"""Quantile regression: how one quantile depends on covariates, without an interval. rank_regression.py has intervals.

`independent` leaves out covariates that follow from others.

`fit` minimises the check loss sum of rho_p(y - X b), rho_p(r) = r (p - 1{r < 0}), by majorisation (Hunter and Lange
2000): each step is a weighted least squares, and the loss never rises but for a smoothing that shrinks on the way.
"""

from __future__ import annotations

import numpy as np

from tailgauge_analysis.stats.quantiles import Floats

STEPS = 50
SHRINK = 0.8  # of the smoothing, by step; it begins at the deviation of y
_RIDGE = 1e-10  # keeps a column of few rows solvable


def fit(x: Floats, y: Floats, p: float) -> Floats:
    """Return the coefficients of the columns of x at quantile p; x must have full column rank."""
    scaled, scale = _scaled(x)
    coefficients: Floats = _descend(scaled, y, p) / scale
    return coefficients


def predicted(columns: dict[str, Floats], y: Floats, p: float) -> Floats:
    """Return the quantile p of y that the columns predict in each row."""
    x = np.stack(list(independent(columns).values()), axis=1)
    values: Floats = x @ fit(x, y, p)
    return values


def independent(columns: dict[str, Floats]) -> dict[str, Floats]:
    """Without columns that follow from those before them."""
    basis: dict[str, Floats] = {}
    for name, values in columns.items():
        stacked = np.stack((*basis.values(), values), axis=1)
        largest = np.abs(stacked).max(axis=0, initial=0.0)
        scaled = stacked / np.maximum(largest, 1e-300)
        if np.linalg.matrix_rank(scaled, tol=1e-6 * np.sqrt(max(1, len(scaled)))) > len(basis):
            basis[name] = values
    return basis


def _scaled(x: Floats) -> tuple[Floats, Floats]:
    scale: Floats = np.abs(x).max(axis=0)
    scale[scale == 0] = 1.0
    return x / scale, scale


def _descend(x: Floats, y: Floats, p: float) -> Floats:
    """Return the coefficients."""
    columns = x.shape[1]
    pull = (2 * p - 1) * x.sum(axis=0)
    smoothing = max(float(np.std(y)), 1e-9)
    coefficients: Floats = np.zeros(columns)
    for _ in range(STEPS):
        inverse = 1 / (smoothing + np.abs(y - x @ coefficients))
        gram = (x * inverse[:, None]).T @ x
        gram += _RIDGE * np.trace(gram) * np.eye(columns)
        coefficients = np.asarray(np.linalg.solve(gram, x.T @ (inverse * y) + pull), np.float64)
        smoothing *= SHRINK
    return coefficients
