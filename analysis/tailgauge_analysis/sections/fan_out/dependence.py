"""Siblings: whether the legs of one request are slow together.

The input has a row per request, in order of time, and a column per leg: True where the leg was slower than the threshold of
its kind. With K legs, S slow ones in a request and p the share of slow legs:

    correlation    rho = (Var(S) / (K p (1 - p)) - 1) / (K - 1), the intraclass correlation of being slow
    beta-binomial  P(any) = 1 - B(a, b + K) / B(a, b), a = p (1 - rho) / rho, b = (1 - p)(1 - rho) / rho
    K_eff          ln(1 - P(any)) / ln(1 - p): independent legs that would be slow as often
    test           pairs of slow siblings against those after legs changed requests within stretches of 50 requests, leg
                   number by leg number: what drifts over the run stays, what a request shares is separated

Also here: what the slowest leg would take if the legs of a request were independent.

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
from tailgauge_analysis.stats.bootstrap import SEED, ratio
from tailgauge_analysis.stats.proportions import proportion
from tailgauge_analysis.stats.quantiles import TOO_FEW, Floats, Ints, Mask, Quantile
from tailgauge_analysis.text.quantile import Finding

STRETCH = 50  # requests within which legs change places
FEWEST = 20  # slow legs, below which nothing is estimated
MOST_REPS, FEWEST_REPS = 999, 199
DRAWS = 20_000_000  # of slow legs, in all repetitions together


class Siblings(Finding):
    """Dependence of the slow legs. `any` is the share of the requests with a slow leg."""

    def __init__(self, slow: Mask, p: float) -> None:
        n, legs = slow.shape
        rho, low, high = correlation(slow)
        seen = proportion(slow.sum(axis=1) > 0)
        by_leg = slow.mean(axis=0)
        stretch = stretches(n)
        pairs, expected, p_value, reps = permuted(slow, stretch)
        self.slow_share = p
        self.slow_legs = int(slow.sum())
        self.any = seen
        self.any_naive = float(1 - np.prod(1 - by_leg))
        self.any_conditional = _any_in_stretches(slow, stretch)
        self.any_beta_binomial = beta_binomial_any(legs, p, rho)
        self.correlation = rho
        self.correlation_low = low
        self.correlation_high = high
        self.k_eff = k_eff(seen.value, p)
        self.k_eff_low = k_eff(seen.low, p)
        self.k_eff_high = k_eff(seen.high, p)
        self.pairs = pairs
        self.pairs_expected = expected
        self.p_value = p_value
        self.permutations = reps


def siblings(slow: Mask) -> Siblings | None:
    """None where there are too few slow legs, or no siblings."""
    legs = slow.shape[1]
    p, total = float(slow.mean()) if slow.size else 0.0, int(slow.sum())
    if legs < 2 or total < FEWEST or p >= 1:
        return None
    return Siblings(slow, p)


def correlation(slow: Mask) -> tuple[float, float | None, float | None]:
    """rho, and its 95% interval by the bootstrap over requests."""
    legs: int = slow.shape[1]
    by_leg = slow.mean(axis=0)
    expected = float((by_leg * (1 - by_leg)).sum())
    squares: Floats = np.square(slow.sum(axis=1) - by_leg.sum())
    ends = ratio(squares, np.full(len(squares), expected), reps=500)
    rho, low, high = ((of - 1) / (legs - 1) for of in (float(squares.mean()) / expected, *ends))
    return rho, low, high


def beta_binomial_any(legs: int, p: float, rho: float) -> float:
    """P(at least one of `legs` is slow); with no or negative correlation as if they were independent."""
    if rho <= 0:
        return 1 - (1 - p) ** legs
    if rho >= 1:
        return p
    a, a_plus_b = p * (1 - rho) / rho, (1 - rho) / rho  # the ratio of beta functions as a product
    return -math.expm1(sum(math.log1p(-a / (a_plus_b + i)) for i in range(legs)))


def k_eff(any_slow: float | None, p: float) -> float | None:
    """Independent legs of which one is slow as often; None where every request has one."""
    if any_slow is None or any_slow >= 1:
        return None
    return math.log1p(-any_slow) / math.log1p(-p)


def stretches(n: int) -> Ints:
    """The stretch of each of n requests: as many of about 50 as there are."""
    count = max(1, round(n / STRETCH))
    return np.arange(n) * count // max(n, 1)


def _any_in_stretches(slow: Mask, stretch: Ints) -> float:
    """Expected share with a slow leg after the legs changed requests: exact, no draws."""
    sizes = np.bincount(stretch)
    none = np.prod([1 - np.bincount(stretch, weights=leg) / sizes for leg in slow.T], axis=0)
    return float(1 - np.average(none, weights=sizes))


def permuted(slow: Mask, stretch: Ints) -> tuple[int, float, float, int]:
    """Pairs of slow siblings, as many as expected, the one-sided p, and from how many repetitions.

    A repetition puts each slow leg on another request of its stretch; no two of one leg number meet.
    """
    n, legs = slow.shape
    sizes = np.bincount(stretch)
    starts = np.cumsum(sizes) - sizes
    request, leg = np.nonzero(slow)
    of = stretch[request]
    pairs = _pairs(slow.sum(axis=1))
    reps = int(min(MOST_REPS, max(FEWEST_REPS, DRAWS // max(1, len(request)))))
    rng = np.random.default_rng(SEED)
    at_least, total = 1, 0  # the measured order is one of the possible ones
    for _ in range(reps):
        moved = _drawn(rng, starts[of], sizes[of], leg, n, legs)
        seen = _pairs(np.bincount(moved, minlength=n))
        at_least += seen >= pairs
        total += seen
    return pairs, total / reps, at_least / (reps + 1), reps


def _drawn(rng: np.random.Generator, start: Ints, size: Ints, leg: Ints, n: int, legs: int) -> Ints:
    """A request of its stretch for each slow leg; those that meet one of the same number are drawn again."""
    at = start + (rng.random(len(start)) * size).astype(np.int64)
    taken = np.zeros(n * legs, np.bool_)
    left = np.arange(len(at))
    while len(left):
        place = at[left] * legs + leg[left]
        _, first = np.unique(place, return_index=True)
        free = np.zeros(len(left), np.bool_)
        free[first] = True
        free &= ~taken[place]
        taken[place[free]] = True
        left = left[~free]
        at[left] = start[left] + (rng.random(len(left)) * size[left]).astype(np.int64)
    return at


def _pairs(counts: Ints) -> int:
    return int((counts * (counts - 1) // 2).sum())


# --- the slowest leg of independent ones --------------------------------------------------------------------------

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
