"""A proportion of what was counted, with its exact interval on effective n; ratios of quantiles.

Indicators come in order of time; dependent ones count less (quantiles.worth). However little they count, an end is no
further away than Markov's inequality allows. A share of nothing has no value. Ratios
of two quantiles have an interval from the two intervals by the method of variance estimates recovery on logarithms (Zou
and Donner 2008); there is no ratio where a quantile has no value, falls among failures or has too few samples.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from tailgauge_analysis.stats import quantiles
from tailgauge_analysis.stats.binomial import clopper_pearson
from tailgauge_analysis.stats.dependence import FEW, Floats, Grouping, Ints, Mask
from tailgauge_analysis.stats.quantiles import (
    EPISODES,
    FEW_EPISODES,
    TOO_FEW,
    UNRELIABLE,
    Quantile,
    worth,
)

MOST_TIMES = 50.0  # as many values: more would not be called "longer"
STEP = 1.1
SAME_WIDTH = 0.95  # of an interval, whose ends are rounded and bounded


@dataclass(frozen=True, slots=True)
class Proportion:
    """`k` of `n`, with the 95% interval."""

    k: int
    n: int
    n_eff: int
    value: float | None
    low: float | None
    high: float | None
    episodes: int = 0
    """In how many episodes the rarer of the two came."""
    mark: str = ""  # or FEW_EPISODES, or UNRELIABLE
    limited_by: str = ""
    """What makes n_eff less than n: the grouping whose values are alike, `neighbours`, `waves`, or `request`."""


@dataclass(frozen=True, slots=True)
class Difference:
    """One share minus another, with its 95% interval."""

    value: float | None
    low: float | None
    high: float | None


def difference(a: Proportion, b: Proportion) -> Difference:
    """a - b of shares that have nothing to do with each other: their intervals recover the variances (Newcombe 1998)."""
    if a.value is None or a.low is None or a.high is None:
        return Difference(None, None, None)
    if b.value is None or b.low is None or b.high is None:
        return Difference(None, None, None)
    value = a.value - b.value
    below = math.hypot(a.value - a.low, b.high - b.value)
    above = math.hypot(a.high - a.value, b.value - b.low)
    return Difference(value, max(-1.0, value - below), min(1.0, value + above))


def proportion(
    seen: Mask,
    sizes: Ints | None = None,
    groupings: Sequence[Grouping] = (),
    *,
    waits_ms: Floats | None = None,
) -> Proportion:
    """The share of True; `sizes`: how many values each group has, one group after the other.

    `groupings`: which values, or groups, are of one conversation, user, prompt, ...; `waits_ms`: of the same values, whose
    dependence counts where next to none are True, or False. Marked where the rarer of the two came in bursts, and those were
    few, or in too few groups that are alike. Single ones are taken as they are.
    """
    n = len(seen)
    k = int(seen.sum())
    values = seen.astype(np.float64) if waits_ms is None else waits_ms
    sample = quantiles.Sample(values, sizes, groupings)
    known = quantiles.NOTHING_KNOWN
    is_few = min(k, n - k) < FEW
    if n and waits_ms is not None and (is_few or sizes is None):  # there may be millions in groups
        known = sample.known(k)
    found = worth(seen, sizes, sample.clusters, known)
    mark = ""
    if 0 < found.episodes < min(EPISODES, k, n - k):
        mark = FEW_EPISODES
    elif n and (sample.is_of_few_groups or found.is_of_few_groups):
        mark = UNRELIABLE
    return replace(
        _of(k, n, found.sure),
        n_eff=found.n_eff if n else 0,
        episodes=found.episodes,
        mark=mark,
        limited_by=found.limited_by,
    )


def times_to_decide(share: Proportion, allowed: float) -> float:
    """Return how many times as many values decide whether a share is at most `allowed`; +inf beyond `MOST_TIMES`."""
    if share.high is not None and share.low is not None and (share.high <= allowed or share.low > allowed):
        return 1.0
    value = share.value or 0.0
    sure = _sure(share)
    times = 1.0
    while times <= MOST_TIMES:
        n = sure * times
        low, high = clopper_pearson(value * n, n)
        if high <= allowed or low > allowed:
            return times
        times *= STEP
    return math.inf


def _sure(share: Proportion) -> float:
    """Return the number of independent values that gives the interval of a share: fewer than `n_eff` after few slow periods."""
    value = share.value or 0.0
    n: float = share.n_eff
    if share.low is None or share.high is None:
        return n
    while n > 1:
        low, high = clopper_pearson(value * n, n)
        if high - low >= SAME_WIDTH * (share.high - share.low):
            break
        n /= STEP
    return n


def counted(k: int, n: int, n_eff: int | None = None) -> Proportion:
    """The share k / n of what is independent, or of what says as much as `n_eff` that are."""
    return _of(k, n, n if n_eff is None else n_eff)


def _of(k: int, n: int, n_eff: int) -> Proportion:
    if not n:
        return Proportion(0, 0, 0, None, None, None)
    share = k / n
    low, high = clopper_pearson(share * n_eff, n_eff, quantiles.confidence())
    low = max(low, _least(share))
    high = min(high, 1 - _least(1 - share))
    return Proportion(k, n, n_eff, share, low, high)


def _least(share: float) -> float:
    """Return the low end of a share that holds however its values depend on each other.

    By Markov's inequality a share of s or more has a chance of at most p / s where the true share is p.
    """
    return share * (1 - quantiles.confidence()) / 2


@dataclass(frozen=True, slots=True)
class Ratio:
    """Quantile p of one series over that of another."""

    p: float
    value: float | None
    low: float | None
    high: float | None


def quantile_ratio(over: Quantile, under: Quantile) -> Ratio:
    """`over` / `under`."""
    a = _log(over.value)
    b = _log(under.value)
    if a is None or b is None or TOO_FEW in {over.mark, under.mark}:
        return Ratio(over.p, None, None, None)

    def end(sign: int, of: float | None, by: float | None) -> float | None:
        far = _log(of)
        near = _log(by)
        return None if far is None or near is None else math.exp(a - b + sign * math.hypot(a - far, b - near))

    return Ratio(over.p, math.exp(a - b), end(-1, over.low, under.high), end(1, over.high, under.low))


def _log(value: float | None) -> float | None:
    return math.log(value) if value is not None and math.isfinite(value) and value > 0 else None
