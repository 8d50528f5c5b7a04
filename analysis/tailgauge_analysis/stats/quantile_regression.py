"""Quantile regression: how a quantile depends on covariates.

`fit` minimises the check loss sum of rho_p(y - X b), rho_p(r) = r (p - 1{r < 0}), by majorisation (Hunter and Lange
2000): each step is a weighted least squares, and the loss never rises but for a smoothing that shrinks on the way. The
last step goes to the vertex next to it: an optimum lies exactly on as many observations as there are coefficients
(Koenker and Bassett 1978). Many weightings of the same rows, as a bootstrap has, are solved at once.
"""

from __future__ import annotations

import numpy as np

from tailgauge_analysis.stats.bootstrap import SEED, blocks, draw
from tailgauge_analysis.stats.quantiles import ENDS, Floats

_Steps = tuple[int, float, float]  # their number, what the smoothing shrinks by, its start in deviations of y
EXACT, ROUGH = (150, 0.88, 1.0), (40, 0.8, 0.3)
_AT_ONCE = 50  # weightings: few enough to stay in the processor's cache
_RIDGE = 1e-10  # keeps a resample without one of the kinds solvable


def fit(x: Floats, y: Floats, p: float) -> Floats:
    """Coefficients of the columns of x at quantile p; x must have full column rank."""
    scaled, scale = _scaled(x)
    ones = np.ones((1, len(y)))
    start = np.zeros((1, x.shape[1]))
    smooth = _descend(scaled, y, p, ones, start, EXACT)[0]
    near = np.argsort(np.abs(y - scaled @ smooth), kind="stable")
    exact = _vertex(scaled, y, near)
    best = smooth if exact is None or loss(scaled, y, exact, p) > loss(scaled, y, smooth, p) else exact
    return best / scale


def intervals(x: Floats, y: Floats, p: float, reps: int, combine: Floats | None = None) -> Floats:
    """95% intervals by the stationary bootstrap: a row (low, high) for each coefficient, or for each row of `combine`,
    which is a linear combination of them. Rows are in order of time.
    """
    scaled, scale = _scaled(x)
    rng = np.random.default_rng(SEED)
    best = fit(x, y, p)
    length, n = blocks(y - x @ best), len(y)
    seen = np.empty((reps, x.shape[1]))
    for first in range(0, reps, _AT_ONCE):
        few = range(first, min(reps, first + _AT_ONCE))
        weights = np.stack([np.bincount(draw(n, length, rng), minlength=n) for _ in few]).astype(np.float64)
        start = np.tile(best * scale, (len(few), 1))
        seen[few.start : few.stop] = _descend(scaled, y, p, weights, start, ROUGH) / scale
    if combine is not None:
        seen = seen @ combine.T
    return np.quantile(seen, ENDS, axis=0).T


def loss(x: Floats, y: Floats, b: Floats, p: float) -> float:
    """What `fit` minimises."""
    r = y - x @ b
    return float(np.sum(r * (p - (r < 0))))


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


def _descend(x: Floats, y: Floats, p: float, weights: Floats, b: Floats, how: _Steps) -> Floats:
    """Coefficients for each row of weights, from those in b."""
    columns, (steps, shrink, smooth) = x.shape[1], how
    products = (x[:, :, None] * x[:, None, :]).reshape(len(y), -1)
    pull = (2 * p - 1) * (weights @ x)
    smoothing = smooth * max(float(np.std(y)), 1e-9)
    for _ in range(steps):
        inverse = weights / (smoothing + np.abs(y - b @ x.T))
        gram = (inverse @ products).reshape(-1, columns, columns)
        gram = gram + _RIDGE * np.trace(gram, axis1=1, axis2=2)[:, None, None] * np.eye(columns)
        b = np.asarray(np.linalg.solve(gram, ((inverse * y) @ x + pull)[:, :, None])[:, :, 0], np.float64)
        smoothing *= shrink
    return b


def _vertex(x: Floats, y: Floats, near: np.ndarray) -> Floats | None:
    """The coefficients that meet the nearest observations exactly, as many as there are coefficients."""
    rows: list[int] = []
    for i in near[: 10 * x.shape[1]]:
        if np.linalg.matrix_rank(x[[*rows, int(i)]]) > len(rows):
            rows.append(int(i))
        if len(rows) == x.shape[1]:
            return np.asarray(np.linalg.solve(x[rows], y[rows]), np.float64)
    return None
