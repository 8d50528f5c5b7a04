"""Intervals for statistics other than quantiles: the stationary bootstrap.

Of a ratio of sums, from rows in order of time. Rows under load depend on their neighbours, so whole stretches are drawn
again: each begins anywhere, goes on round the end, and its length is geometric with mean `block` (Politis and Romano
1994). A block should be several times as long as the dependence: `blocks` takes the square root of n or ten correlation
times, whichever is longer.

A sample of few blocks varies less about its own mean than about the parameter: the interval's ends are drawn apart, by what
blocks of geometric length lose of the variance, 1 - 2 block / n, and by Student's t for n / block blocks. Without it a
nominal 95% came out as 81 to 94%; with it as 90 to 95% (shares of 300 to 4000 rows, correlated by 0 to 0.97).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from tailgauge_analysis.stats import quantiles
from tailgauge_analysis.stats.quantiles import ENDS, Floats, Ints, Quantile, rank

REPS = 2000
MOST = 4000  # rows to draw from; more are added up in stretches first
SEED = 20_240_229  # the same rows give the same interval

# Of quantile_ratio_interval.
IN_STRETCH = 10  # values of each series in a stretch, about
STRETCHES = (20, 200)
WANTED = 2 * quantiles.BEYOND  # values beyond the quantile in each
PAIRED_REPS = (200, 1000)
PAIRED_WORK = 50_000_000  # values examined for one interval


@dataclass(frozen=True, slots=True)
class Timed:
    """Values, and when each was scheduled."""

    at_ns: Floats
    values: Floats


def blocks(values: Floats) -> float:
    """Mean block length for a series."""
    n = len(values)
    times = 1.0
    if n > 1 and values.std() > 0:
        times = quantiles.correlation_time(values)
    return min(max(1.0, n / 4), max(math.sqrt(n), 10 * times))


def draw(n: int, block: float, rng: np.random.Generator) -> Ints:
    """Indices of one resample of n rows."""
    starts = rng.random(n) < 1 / block
    starts[0] = True
    place = rng.integers(0, n, n)
    begins = np.flatnonzero(starts)
    ahead = np.repeat(place[begins] - begins, np.diff(begins, append=n))
    drawn: Ints = (ahead + np.arange(n)) % n
    return drawn


def ratio(
    numerators: Floats, denominators: Floats, block: float | None = None, reps: int = REPS
) -> tuple[float, float]:
    """Return the 95% interval of sum(numerators) / sum(denominators), rows in order of time; (0, inf) where there is nothing to divide by.

    Whole stretches of rows are drawn again, of `block` rows on average; by default as long as the rows depend on each other. It stays
    at or above 0 and at or below 1 where every row does.
    """
    numerators = _fewer(numerators)
    denominators = _fewer(denominators)
    n = len(numerators)
    if not n or denominators.sum() <= 0:
        return 0.0, math.inf
    centre = numerators.sum() / denominators.sum()
    # `blocks` estimates the mean length of a stretch from how long the rows are correlated.
    length = block
    if length is None:
        length = blocks(numerators - centre * denominators)
    rng = np.random.default_rng(SEED)
    ratios = np.full(reps, centre)
    for i in range(reps):
        rows = draw(n, length, rng)
        divisor = denominators[rows].sum()
        if divisor > 0:
            ratios[i] = numerators[rows].sum() / divisor
    # Few stretches vary too little about their mean: the ends are drawn apart.
    low, high = _ends(ratios, centre, _widening(n, length))
    if numerators.min() >= 0:
        low = max(0.0, low)
    if (numerators <= denominators).all():
        high = min(1.0, high)
    return low, high


def _fewer(values: Floats) -> Floats:
    """Sums of stretches that are equally long but for one row: sums of sums are the same sums."""
    if len(values) <= MOST:
        return values
    return np.add.reduceat(values, np.linspace(0, len(values), MOST + 1).astype(np.int64)[:-1])


def _widening(n: int, block: float) -> float:
    """Return how much wider an interval of n rows in blocks has to be than the resamples are."""
    df = max(2.0, n / block - 1)
    z = quantiles.NORMAL_975  # Student's t is expanded about it
    t = z + (z**3 + z) / (4 * df) + (5 * z**5 + 16 * z**3 + 3 * z) / (96 * df**2)
    return t / z / math.sqrt(max(0.5, 1 - 2 * block / n))


def _ends(resamples: Floats, centre: float, factor: float) -> tuple[float, float]:
    low, high = np.quantile(resamples, ENDS)
    return float(centre - (centre - low) * factor), float(centre + (high - centre) * factor)


def of_pairs(resamples: Floats, centre: float, n: int) -> tuple[float, float]:
    """Return the 95% interval about `centre` from the figures of resamples of n independent pairs."""
    return _ends(resamples, centre, _widening(n, 1.0))


def quantile_ratio_interval(
    variant: Timed, control: Timed, numerator: Quantile, denominator: Quantile
) -> tuple[float, float] | None:
    """Return the 95% interval of quantile numerator.p of the variant over that of the control; None where the run is too short.

    `numerator`, `denominator`: the same quantiles as estimated of each. None also where a resample has a failure, or 0, at the
    quantile.

    What slows the target slows both at once, so both are resampled together: the time is cut into as many stretches as give
    each about ten values, at most 200, and stretches are drawn. Fewer than 20 stretches, or than 20 values beyond the
    quantile, give none.
    """
    count = min(STRETCHES[1], min(len(variant.values), len(control.values)) // IN_STRETCH)
    slower_values = min(numerator.n, denominator.n) * (1 - numerator.p)
    has_too_few = quantiles.TOO_FEW in {numerator.mark, denominator.mark}
    if count < STRETCHES[0] or slower_values < WANTED or has_too_few:
        return None
    at_ns = np.concatenate((variant.at_ns, control.at_ns))
    edges = np.linspace(at_ns.min(), at_ns.max(), count + 1)[1:-1]
    variant_stretches = np.searchsorted(edges, variant.at_ns)
    control_stretches = np.searchsorted(edges, control.at_ns)
    variant_slow = _slow(variant_stretches, variant.values, numerator, count)
    control_slow = _slow(control_stretches, control.values, denominator, count)
    # How long stretches depend on each other: in the difference, because what slows both cancels in the ratio.
    length = blocks(variant_slow / len(variant.values) - control_slow / len(control.values))
    rng = np.random.default_rng(SEED)
    # Fewer resamples of many values, so that one interval takes no longer.
    reps = int(np.clip(PAIRED_WORK // len(at_ns), *PAIRED_REPS))
    draws = []
    for _ in range(reps):
        draws.append(np.bincount(draw(count, length, rng), minlength=count))
    # How often each stretch was drawn, a row per resample.
    weights = np.stack(draws)
    a = weighted_quantiles(variant_stretches, variant.values, numerator.p, weights)
    b = weighted_quantiles(control_stretches, control.values, numerator.p, weights)
    if not (np.isfinite(a) & np.isfinite(b) & (b > 0)).all():
        return None
    low, high = np.sort(a / b)[[rank(reps, end) - 1 for end in ENDS]]
    return float(low), float(high)


def _slow(stretches: Ints, values: Floats, q: Quantile, count: int) -> Floats:
    """Requests beyond the quantile in each interval, minus the number expected."""
    bound = np.inf if q.value is None else q.value
    exceeds = values > bound
    return np.bincount(stretches, weights=exceeds - exceeds.mean(), minlength=count).astype(
        np.float64
    )


def weighted_quantiles(stretches: Ints, values: Floats, p: float, weights: Ints) -> Floats:
    """Return the quantile of each draw (row of `weights`): each value counts as often as its stretch was drawn; NaN if no value was."""
    order = np.argsort(values, kind="stable")
    stretch = stretches[order]
    ordered = values[order]
    out = np.full(len(weights), np.nan)
    for i, times in enumerate(weights):
        counted = np.cumsum(times[stretch])
        if counted[-1]:
            out[i] = ordered[int(np.searchsorted(counted, rank(int(counted[-1]), p)))]
    return out
