"""Quantile regression: how a quantile depends on covariates.

`fit` minimises the check loss sum of rho_p(y - X b), rho_p(r) = r (p - 1{r < 0}), by majorisation (Hunter and Lange
2000): each step is a weighted least squares, and the loss never rises but for a smoothing that shrinks on the way. Many
weightings of the same rows, as a bootstrap has, are solved at once.
"""

from __future__ import annotations

import numpy as np

from tailgauge_analysis.stats.bootstrap import SEED, blocks, draw
from tailgauge_analysis.stats.quantiles import ENDS, NORMAL_975, Floats

STEPS = 50
SHRINK = 0.8  # of the smoothing, by step; it begins at the deviation of y
_AT_ONCE = 50  # weightings: few enough to stay in the processor's cache
_RIDGE = 1e-10  # keeps a resample without one of the kinds solvable


def fit(x: Floats, y: Floats, p: float) -> Floats:
    """Return the coefficients of the columns of x at quantile p; x must have full column rank."""
    scaled, scale = _scaled(x)
    coefficients: Floats = _descend(scaled, y, p, np.ones((1, len(y))))[0] / scale
    return coefficients


def predicted(columns: dict[str, Floats], y: Floats, p: float) -> Floats:
    """Return the quantile p of y that the columns predict in each row."""
    x = np.stack(list(independent(columns).values()), axis=1)
    values: Floats = x @ fit(x, y, p)
    return values


def errors(x: Floats, y: Floats, p: float, reps: int, combine: Floats | None = None) -> tuple[Floats, float]:
    """Return the standard errors of the coefficients, or of the rows of `combine`, and their degrees of freedom.

    By the stationary bootstrap of the same estimator; rows are in order of time. Each row of `combine` is a linear combination
    of coefficients. There are as many degrees of freedom as blocks, less one.
    """
    scaled, scale = _scaled(x)
    rng = np.random.default_rng(SEED)
    rows = len(y)
    length = blocks(y - x @ fit(x, y, p))
    resampled = np.empty((reps, x.shape[1]))
    for first in range(0, reps, _AT_ONCE):
        last = min(reps, first + _AT_ONCE)
        draws = [np.bincount(draw(rows, length, rng), minlength=rows) for _ in range(first, last)]
        resampled[first:last] = _descend(scaled, y, p, np.stack(draws).astype(np.float64)) / scale
    if combine is not None:
        resampled = resampled @ combine.T
    low, high = np.quantile(resampled, ENDS, axis=0)
    # Not the deviation: a resample that is nearly singular has no bounds.
    deviations: Floats = (high - low) / (2 * NORMAL_975)
    return deviations, max(1.0, rows / length - 1)


def independent(columns: dict[str, Floats]) -> dict[str, Floats]:
    """Without columns that follow from those before them."""
    kept: dict[str, Floats] = {}
    for name, values in columns.items():
        largest = [max(float(np.abs(v).max(initial=0.0)), 1e-300) for v in (*kept.values(), values)]
        scaled = np.stack((*kept.values(), values), axis=1) / largest
        if np.linalg.matrix_rank(scaled, tol=1e-6 * np.sqrt(max(1, len(scaled)))) > len(kept):
            kept[name] = values
    return kept


def _scaled(x: Floats) -> tuple[Floats, Floats]:
    scale: Floats = np.abs(x).max(axis=0)
    scale[scale == 0] = 1.0
    return x / scale, scale


def _descend(x: Floats, y: Floats, p: float, weights: Floats) -> Floats:
    """Return the coefficients for each row of weights."""
    columns = x.shape[1]
    products = (x[:, :, None] * x[:, None, :]).reshape(len(y), -1)
    pull = (2 * p - 1) * (weights @ x)
    smoothing = max(float(np.std(y)), 1e-9)
    coefficients: Floats = np.zeros((len(weights), columns))
    for _ in range(STEPS):
        inverse = weights / (smoothing + np.abs(y - coefficients @ x.T))
        gram = (inverse @ products).reshape(-1, columns, columns)
        gram = gram + _RIDGE * np.trace(gram, axis1=1, axis2=2)[:, None, None] * np.eye(columns)
        moments = ((inverse * y) @ x + pull)[:, :, None]
        coefficients = np.asarray(np.linalg.solve(gram, moments)[:, :, 0], np.float64)
        smoothing *= SHRINK
    return coefficients
