"""What the slowest leg would take if the legs of a request were independent.

Leg times have a row per request, in order of time, and a column per leg.

    naive        G(t) = product over the kinds of legs of F(t) ** count, F over the whole stage
    conditional  G(t) = mean over stretches of 50 requests of the product over the leg numbers of F within the stretch: legs
                 share the load of the moment. It is what legs exchanged at random within their stretch give, without drawing
    interval     where G crosses q -+ 1.96 standard errors of G there; each request's share in G, and the time over which
                 these are correlated, give the standard error

    naive -> conditional      the load drifted, and slow legs came at the same time
    conditional -> measured   the legs of one request share something: a connection, a refused burst, the burst they are
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from tailgauge_analysis.stats import quantiles
from tailgauge_analysis.stats.quantiles import TOO_FEW, Floats, Ints, Quantile

Z = 1.959963984540054  # NORMAL_975 to all digits: results depend on them
POINTS = 60  # of a curve, over all of it and as many more in its tail


@dataclass(frozen=True, slots=True)
class Curves:
    """Share of the requests whose slowest leg takes longer than `at_ms`: measured, and as both predictions have it."""

    at_ms: Floats
    measured: Floats
    naive: Floats
    conditional: Floats


def curves(times: Floats, kinds: Ints, stretch: Ints) -> Curves:
    """At few points, dense in the tail."""
    slowest = np.sort(times.max(axis=1))
    n = len(slowest)
    ranks = np.concatenate((np.linspace(1, n, POINTS), n + 1 - np.geomspace(1, n, POINTS))).astype(np.int64)
    at = np.unique(slowest[ranks - 1])
    sizes = np.bincount(stretch)
    in_stretches = [(_in_stretches(times, stretch, sizes, t)[1] * sizes).sum() / n for t in at]
    measured = np.searchsorted(slowest, at, side="right") / n
    return Curves(at, 1 - measured, 1 - _independent(times, kinds, at), 1 - np.array(in_stretches))


def _independent(times: Floats, kinds: Ints, at: Floats) -> Floats:
    """The product over the kinds of legs of F ** count."""
    product = np.ones(len(at))
    for kind in np.unique(kinds):
        legs = np.flatnonzero(kinds == kind)
        ordered = np.sort(times[:, legs], axis=None)
        product *= (np.searchsorted(ordered, at, side="right") / len(ordered)) ** len(legs)
    return product


def _in_stretches(times: Floats, stretch: Ints, sizes: Ints, t: float) -> tuple[Floats, Floats]:
    """The share of each leg number at most t, by stretch, and their product."""
    parts = np.column_stack([np.bincount(stretch, weights=leg <= t) / sizes for leg in times.T])
    return parts, parts.prod(axis=1)


def naive(times: Floats, kinds: Ints, ps: Sequence[float]) -> list[Quantile]:
    """Quantiles of the slowest of independent legs; `kinds` is the kind of each leg."""
    grid = np.unique(times)
    columns = [np.flatnonzero(kinds == kind) for kind in np.unique(kinds)]
    product = _independent(times, kinds, grid)

    def shares(t: float) -> Floats:
        """What each request adds to G(t)."""
        whole = 1.0
        added = np.zeros(len(times))
        for legs in columns:
            below = (times[:, legs] <= t).mean(axis=1)
            f = float(below.mean())
            whole *= f ** len(legs)
            added += len(legs) * (below - f) / f if f else 0.0
        return added * whole

    return [_quantile(q, len(times), grid, product.__getitem__, shares) for q in ps]


def conditional(times: Floats, stretch: Ints, ps: Sequence[float]) -> list[Quantile]:
    """Quantiles of the slowest leg after the legs changed requests within their stretches."""
    grid = np.unique(times)
    sizes = np.bincount(stretch)

    def whole(at: int) -> float:
        return float((_in_stretches(times, stretch, sizes, grid[at])[1] * sizes).sum()) / len(times)

    def shares(t: float) -> Floats:
        parts, product = _in_stretches(times, stretch, sizes, t)
        influence: Floats = product[stretch] - (product * sizes).sum() / len(times)
        with np.errstate(divide="ignore", invalid="ignore"):
            for leg, part in zip(times.T, parts.T, strict=True):
                added = product[stretch] / part[stretch] * ((leg <= t) - part[stretch])
                influence += np.where(part[stretch] > 0, added, 0.0)
        return influence

    return [_quantile(q, len(times), grid, whole, shares) for q in ps]


def _quantile(
    q: float, n: int, grid: Floats, whole: Callable[[int], float], shares: Callable[[float], Floats]
) -> Quantile:
    """`whole`: G at each time of the grid; `shares`: what each request adds to it."""

    def place(q: float) -> int | None:
        """Where G reaches q."""
        at = bisect_left(range(len(grid)), q - 1e-12, key=whole) if q <= 1 else len(grid)
        return at if at < len(grid) else None

    at = place(q)
    if at is None or not n:
        return Quantile(q, n, 0, None, None, None, TOO_FEW)
    influence = shares(grid[at])
    error = 0.0
    if influence.std() > 0:
        error = math.sqrt(float(np.square(influence).mean()) * quantiles.correlation_time(influence) / n)
    n_eff = max(1, min(n, round(q * (1 - q) / error**2))) if error else n
    ends = (place(end) if 0 < end < 1 else None for end in (q - Z * error, q + Z * error))
    low, high = (None if end is None else float(grid[end]) for end in ends)
    mark = quantiles.UNRELIABLE if n_eff * (1 - q) < quantiles.BEYOND else ""
    return Quantile(q, n, n_eff, float(grid[at]), low, high, TOO_FEW if n < quantiles.n_min(q) else mark)
