"""A proportion of what was counted, with its exact interval on effective n; ratios of quantiles.

Outcomes come in order of time; dependent ones count less (quantiles.effective_size). However little they count, an end is no
further away than Markov's inequality allows. A share of nothing has no value. Ratios of two independent quantiles have an
interval from their two intervals, by recovery of the variances on logarithms (Zou and Donner 2008); those of two quantiles that
slow down together are in bootstrap.py.
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
    effective_size,
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
    low_distance = math.hypot(a.value - a.low, b.high - b.value)
    high_distance = math.hypot(a.high - a.value, b.value - b.low)
    return Difference(value, max(-1.0, value - low_distance), min(1.0, value + high_distance))


def proportion(
    outcomes: Mask,
    sizes: Ints | None = None,
    groupings: Sequence[Grouping] = (),
    *,
    waits_ms: Floats | None = None,
) -> Proportion:
    """Return the share of True; `sizes`: how many values each group has, one group after the other.

    `groupings`: which values, or groups, are of one conversation, user, prompt, ...; `waits_ms`: of the same values, whose
    dependence counts where next to none are True, or False. Marked where the rarer of the two came in bursts, and those were
    few, or in too few groups that are alike. Single ones are taken as they are.
    """
    n = len(outcomes)
    k = int(outcomes.sum())
    # The values whose dependence stands in where too few outcomes of one sort show theirs.
    values = waits_ms
    if values is None:
        values = outcomes.astype(np.float64)
    sample = quantiles.Sample(values, sizes, groupings)
    context = quantiles.NO_CONTEXT
    is_few = min(k, n - k) < FEW
    if n and waits_ms is not None and (is_few or sizes is None):  # there may be millions in groups
        context = sample.context(k)
    information = effective_size(outcomes, sizes, sample.clusters, context)
    mark = ""
    if 0 < information.episodes < min(EPISODES, k, n - k):
        mark = FEW_EPISODES
    elif n and (sample.is_of_few_groups or information.is_of_few_groups):
        mark = UNRELIABLE
    return replace(
        _proportion(k, n, information.usable),
        n_eff=information.n_eff if n else 0,
        episodes=information.episodes,
        mark=mark,
        limited_by=information.limited_by,
    )


def times_to_decide(share: Proportion, allowed: float) -> float:
    """Return how many times as many values decide whether a share is at most `allowed`; +inf beyond `MOST_TIMES`."""
    if (
        share.high is not None
        and share.low is not None
        and (share.high <= allowed or share.low > allowed)
    ):
        return 1.0
    value = share.value or 0.0
    independent = _independent_count(share)
    times = 1.0
    while times <= MOST_TIMES:
        n = independent * times
        low, high = clopper_pearson(value * n, n)
        if high <= allowed or low > allowed:
            return times
        times *= STEP
    return math.inf


def _independent_count(share: Proportion) -> float:
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
    """Return the share k / n of what is independent, or of what says as much as `n_eff` that are."""
    return _proportion(k, n, n if n_eff is None else n_eff)


def _proportion(k: int, n: int, n_eff: int) -> Proportion:
    if not n:
        return Proportion(0, 0, 0, value=None, low=None, high=None)
    share = k / n
    low, high = clopper_pearson(share * n_eff, n_eff, quantiles.confidence())
    low = max(low, _markov_low(share))
    high = min(high, 1 - _markov_low(1 - share))
    return Proportion(k, n, n_eff, value=share, low=low, high=high)


def _markov_low(share: float) -> float:
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


def quantile_ratio(numerator: Quantile, denominator: Quantile) -> Ratio:
    """Return the ratio of two quantiles with its 95% interval; without a value where a quantile has none, or too few samples."""
    a = _log(numerator.value)
    b = _log(denominator.value)
    if a is None or b is None or TOO_FEW in {numerator.mark, denominator.mark}:
        return Ratio(numerator.p, None, None, None)

    def end(sign: int, dividend: float | None, divisor: float | None) -> float | None:
        far = _log(dividend)
        near = _log(divisor)
        if far is None or near is None:
            return None
        return math.exp(a - b + sign * math.hypot(a - far, b - near))

    return Ratio(
        numerator.p,
        math.exp(a - b),
        end(-1, numerator.low, denominator.high),
        end(1, numerator.high, denominator.low),
    )


def _log(value: float | None) -> float | None:
    if value is None or not math.isfinite(value) or value <= 0:
        return None
    return math.log(value)
