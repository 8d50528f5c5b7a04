"""Quantiles of what was seen, each with how sure it is.

From arrays of one metric in arrival order.

- Estimator: `inverted_cdf`, the ceil(n p)-th smallest value: a value that was really observed.
- Interval: order statistics at ranks from Binomial(m, p), rescaled to n. It assumes no distribution.
- n_eff: latencies under load come in bursts, and those of one conversation are alike, so n of them say less than n
  independent ones: n_eff = n / the effect of their dependence (stats/dependence.py), from the indicator e = 1{x > q_p} in
  arrival order. Values that come in groups (the chunk gaps of one request) are taken a group at a time:
  d_i = sum of e over the group - p_hat * its size, Var(p_hat) = sum of d_i^2 * effect / n^2,
  n_eff = p_hat (1 - p_hat) / Var(p_hat). With groups of one the two are the same. Slow periods may show only further up:
  n_eff is the smaller one of the quantile and of the deeper one with half as much beyond it.
- Nothing seen is not nothing there: with fewer than 20 values beyond, or none, the effect is at least that where 20 are.
- Episodes: exceedances no further apart than their correlation time are one (runs declustering), and so are those of one
  group whose values are alike. Episodes of sizes s_i count as (sum s_i)^2 / sum s_i^2: a long one among short ones is one.
  n_eff is an estimate itself: its variance is that of chi-squared with 2 (sum s_i^2)^2 / sum s_i^4 degrees of freedom, at
  least 4. Hence m = n_eff (z / t)^2, with the normal z (1.96 at 95%) and Student's t of as many.
- Episodes that look separate may hang together, as busy periods do in a queue: no more of them are counted than the
  exceedances are worth at the correlation time of the whole run, which is the
  longer one of the median's and of the upper quartile's.
- Values within 0.01 ms are ties.
- +inf is a value: a request that never got an answer is slower than any that did.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, replace
from functools import cache, cached_property
from itertools import pairwise
from statistics import NormalDist

import numpy as np

from tailgauge_analysis.stats import dependence
from tailgauge_analysis.stats.binomial import binomial_quantile, student
from tailgauge_analysis.stats.dependence import (
    FEW,
    FEWEST_GROUPS,
    WAVES,
    Clusters,
    Floats,
    Grouping,
    Ints,
    Mask,
    clusters_of,
    correlation_time,
    effective_count,
)

__all__ = ["Floats", "Grouping", "Ints", "Mask", "correlation_time"]

CONFIDENCE = 0.95
MISSED = 1 - CONFIDENCE
ENDS = (MISSED / 2, 1 - MISSED / 2)  # the quantiles of resamples between which an interval lies
NORMAL_975 = 1.959964  # quantile of the standard normal distribution that belongs to CONFIDENCE
STRETCH = 1_000_000  # values
TIE = 0.01  # ms within which values are the same
SHOWING = (0.5, 0.9)  # quantiles at which the values of a group may be seen to be alike
NOTICEABLE = 0.9  # part of n below which a reader learns what limits n_eff
BEYOND = (
    10  # effective samples wanted beyond what a slope or a product of several quantiles is about
)

EPISODES = 5  # slow episodes wanted; with fewer, no interval is sure to hold how rare they are
LEAST = 4.0  # degrees of freedom, as of two episodes: one alone has no size to compare with
FEWEST = 50  # effective samples wanted of any quantile
TOO_FEW = "n/a"
UNRELIABLE = "unreliable"
FEW_EPISODES = "few slow periods"
CLIENT = "measurement error"
REQUEST = "request"  # limits n_eff: the values of one request are alike
HIDDEN_TOKENS = "hidden tokens possible"


@dataclass(frozen=True, slots=True)
class Quantile:
    """One quantile with its interval, of 95% unless asked for otherwise; a bound is None where too few samples allow one."""

    p: float
    n: int
    n_eff: int
    value: float | None
    low: float | None
    high: float | None
    mark: str
    """"", UNRELIABLE, FEW_EPISODES, TOO_FEW, CLIENT (the client may have moved it too far), or HIDDEN_TOKENS"""
    episodes: int = 0
    """In how many episodes the values beyond it came."""
    seen_to: float | None = None
    """Where it, or an end of its interval, lies beyond the longest wait and so cannot be observed: that wait."""
    limited_by: str = ""
    """What makes n_eff less than n: the grouping whose values are alike, `neighbours`, `waves`, or `request`."""


@dataclass(frozen=True, slots=True)
class EffectiveSize:
    """What dependent values say of a share: as much as `n_eff` independent ones, `usable` of which an interval may use."""

    n_eff: int
    usable: int
    episodes: int
    """In how many the rarer of the two outcomes came."""
    units: int
    """In how many values, or groups, it came."""
    time: float
    """Correlation time, in values or groups."""
    limited_by: str = ""
    """The grouping whose values are alike, or `neighbours` or `waves`; empty where n_eff is about n."""
    is_of_few_groups: bool = False
    """The values of a group are alike, and there are fewer than 30 groups."""
    alike: frozenset[str] = frozenset()
    """The groupings whose values are shown to be alike."""
    freedom: float = 0.0
    """Degrees of freedom of n_eff."""


@dataclass(frozen=True, slots=True)
class Context:
    """What other levels of a sample show: the groupings whose values are alike, and the effect where 20 values are beyond."""

    alike: frozenset[str] = frozenset()
    effect: float = 1.0
    time: float = 1.0
    limited_by: str = ""
    freedom: float = 0.0
    """Degrees of freedom of that effect."""


NO_CONTEXT = Context()


def n_min(p: float) -> int:
    """Fewest independent samples for which a one-sided 95% upper bound of quantile p exists."""
    return math.ceil(math.log(1 - CONFIDENCE) / math.log(p))


_confidence = ContextVar("confidence", default=CONFIDENCE)


def confidence() -> float:
    """Of the intervals of quantiles and shares: 95%, or what `at_level` says."""
    return _confidence.get()


@contextmanager
def at_level(level: float) -> Iterator[None]:
    """Within, intervals are at this level, one for every number of a report."""
    token = _confidence.set(level)
    try:
        yield
    finally:
        _confidence.reset(token)


def quantiles(
    values: Floats,
    ps: Sequence[float],
    sizes: Ints | None = None,
    groupings: Sequence[Grouping] = (),
    *,
    tie: float = TIE,
) -> list[Quantile]:
    """Quantiles `ps` of values in arrival order; `sizes`: how many values each group has, one group after the other.

    `groupings`: which values, or groups, are of one conversation, user, prompt, ...; `tie`: what no value is known better to,
    by default that of values in ms.
    """
    if not len(values):
        return list(map(_of_nothing, ps))
    sample = Sample(values, sizes, groupings, tie)
    time = max(sample.at_quantile(0.5).time, sample.at_quantile(0.75).time)
    return [_quantile(sample, p, time) for p in ps]


def _of_nothing(p: float) -> Quantile:
    """Return a quantile of no values."""
    return Quantile(p, 0, 0, value=None, low=None, high=None, mark=TOO_FEW)


def _quantile(sample: Sample, p: float, time: float) -> Quantile:
    ordered = sample.ordered
    n = len(ordered)
    at_p = sample.at_quantile(p)
    in_tail = sample.at_quantile((1 + p) / 2)
    limiting = min(at_p, in_tail, key=lambda size: size.n_eff)
    low_rank, high_rank = ranks(n, min(at_p.usable, in_tail.usable), p, confidence())
    episodes = min(at_p.episodes, max(1, math.floor(at_p.units / time + 1e-6)))
    is_of_few_groups = sample.is_of_few_groups or limiting.is_of_few_groups
    return Quantile(
        p=p,
        n=n,
        n_eff=limiting.n_eff,
        value=float(ordered[rank(n, p) - 1]),
        low=_at_rank(ordered, low_rank),
        high=_at_rank(ordered, high_rank),
        mark=mark(n, limiting.n_eff, p, episodes, is_of_few_groups=is_of_few_groups),
        episodes=episodes,
        limited_by=limiting.limited_by,
    )


def _at_rank(ordered: Floats, place: int | None) -> float | None:
    if place is None:
        return None
    return float(ordered[place - 1])


class Sample:
    """A sample, and what its values say of the share beyond each of its quantiles."""

    def __init__(
        self,
        values: Floats,
        sizes: Ints | None = None,
        groupings: Sequence[Grouping] = (),
        tie: float = TIE,
    ) -> None:
        self.values = values
        self.clusters = clusters_of(_of_units(groupings, sizes))
        self.is_of_few_groups = dependence.has_few_groups(groupings)
        self._sizes = sizes
        self._tie = tie
        self._size_by_rank: dict[int, EffectiveSize] = {}
        self._alone_by_rank: dict[int, EffectiveSize] = {}

    @cached_property
    def ordered(self) -> Floats:
        """Return the values, ascending."""
        return np.sort(self.values)

    def at_quantile(self, p: float) -> EffectiveSize:
        """Return what the values say of the share beyond quantile p."""
        place = rank(len(self.values), p)
        if place not in self._size_by_rank:
            context = self.context(len(self.values) - place)
            alone = self._alone_by_rank.get(place)
            is_same = alone is not None and context.effect == 1.0 and context.alike <= alone.alike
            if alone is not None and is_same:
                self._size_by_rank[place] = alone
            else:
                self._size_by_rank[place] = self._size_at_rank(place, context)
        return self._size_by_rank[place]

    def context(self, exceedances: int) -> Context:
        """Return what other levels show for one that so many values are beyond, or not beyond."""
        if min(exceedances, len(self.values) - exceedances) >= FEW:
            return Context(self._alike)
        return self._context_of_few

    @cached_property
    def _alike(self) -> frozenset[str]:
        """Return the groupings whose values are shown to be alike at the levels where that may be seen."""
        if not self.clusters:
            return frozenset()
        n = len(self.values)
        return frozenset().union(*(self._size_alone(rank(n, p)).alike for p in SHOWING))

    @cached_property
    def _context_of_few(self) -> Context:
        """Return what the level with 20 values beyond shows, for one with fewer."""
        n = len(self.values)
        exceedances = max(1, min(FEW, n // 2))
        reference = self._size_at_rank(max(1, n - exceedances), Context(self._alike))
        return Context(
            alike=self._alike,
            effect=n / reference.n_eff,
            time=reference.time,
            limited_by=reference.limited_by,
            freedom=reference.freedom,
        )

    def _size_alone(self, place: int) -> EffectiveSize:
        """Return what a level shows by itself."""
        if place not in self._alone_by_rank:
            self._alone_by_rank[place] = self._size_at_rank(place, NO_CONTEXT)
        return self._alone_by_rank[place]

    def _size_at_rank(self, place: int, context: Context) -> EffectiveSize:
        """Return what the values say of the share beyond the value at this rank, which counts from 1 in ascending order.

        Many ties at that value, such as failures, make the share jump there. Then it is taken above the ties, from them on, or both,
        whichever leaves half to twice as many values beyond as the rank does. `context`: what other levels of the sample show.
        """
        values = self.values
        n = len(values)
        value = self.ordered[place - 1]
        exceedances = n - place
        exceedances_above = n - int(np.searchsorted(self.ordered, value + self._tie, "right"))
        exceedances_from_step = n - int(np.searchsorted(self.ordered, value - self._tie, "left"))
        has_no_ties = exceedances_from_step - exceedances_above < 2
        # By how much the number of values beyond jumps at the ties.
        step = max(exceedances_from_step - exceedances, exceedances - exceedances_above)
        if has_no_ties or step <= exceedances / 10:
            return self._effective_size(values > value, context)
        are_few_above = 2 * exceedances_above < exceedances
        if are_few_above and n - exceedances_from_step < exceedances:
            # Next to all values are the same.
            return EffectiveSize(n, n, n, n, 1.0)
        if are_few_above:
            return self._effective_size(values >= value - self._tie, context)
        if exceedances_from_step > 2 * exceedances:
            return self._effective_size(values > value + self._tie, context)
        above = self._effective_size(values > value + self._tie, context)
        from_step = self._effective_size(values >= value - self._tie, context)
        # Between both: the smaller size counts, with the more episodes.
        smaller = min(above, from_step, key=lambda size: size.n_eff)
        return replace(
            smaller,
            usable=min(above.usable, from_step.usable),
            episodes=max(above.episodes, from_step.episodes),
            units=max(above.units, from_step.units),
            time=max(above.time, from_step.time),
        )

    def _effective_size(self, exceeds: Mask, context: Context) -> EffectiveSize:
        return effective_size(exceeds, self._sizes, self.clusters, context)


def _of_units(groupings: Sequence[Grouping], sizes: Ints | None) -> Sequence[Grouping]:
    """Return the groupings of the groups that have values."""
    if sizes is None or (sizes > 0).all():
        return groupings
    return [grouping.only(sizes > 0) for grouping in groupings]


def mark(n: int, n_eff: int, p: float, episodes: int, *, is_of_few_groups: bool = False) -> str:
    """Return why a quantile may not be believed beyond which the values came in so many episodes."""
    if n < n_min(p):
        return TOO_FEW
    if 0 < episodes < EPISODES:
        return FEW_EPISODES
    return UNRELIABLE if n_eff < FEWEST or is_of_few_groups else ""


def rank(n: int, p: float) -> int:
    """1-based rank of the inverted_cdf estimator; the slack keeps 0.95 * 20 from becoming rank 20."""
    return min(n, max(1, math.ceil(n * p - 1e-9)))


@cache
def normal(level: float) -> float:
    """Return the bound that a standard normal variable exceeds on neither side with this confidence."""
    return NormalDist().inv_cdf((1 + level) / 2)


@cache
def ranks(n: int, n_eff: int, p: float, level: float = CONFIDENCE) -> tuple[int | None, int | None]:
    """1-based ranks of the interval's ends; None where the sample has no such bound."""
    alpha = (1 - level) / 2
    low = binomial_quantile(alpha, n_eff, p)
    high = binomial_quantile(1 - alpha, n_eff, p) + 1
    low_rank = None
    if low >= 1:
        low_rank = max(1, math.floor(low * n / n_eff))
    high_rank = None
    if high <= n_eff:
        high_rank = min(n, math.ceil(high * n / n_eff))
    return low_rank, high_rank


def effective_size(
    exceeds: Mask,
    sizes: Ints | None = None,
    clusters: Sequence[Clusters] = (),
    context: Context = NO_CONTEXT,
) -> EffectiveSize:
    """Return how many independent values say as much of the share of `exceeds` as these dependent ones, in arrival order.

    `sizes`: how many values each group has, one group after the other; `clusters`: groupings of the values, or groups, that may be
    alike. Of fewer than 20 of the rarer outcome, and of values that are all the same, no more than `context` allows: what other
    levels of the same sample show.
    """
    n = len(exceeds)
    k = int(np.count_nonzero(exceeds))
    if k in {0, n}:
        whole = max(1, math.floor(n / context.effect + 1e-6))
        return EffectiveSize(
            n_eff=whole,
            usable=whole,
            episodes=k,
            units=k,
            time=context.time,
            limited_by=context.limited_by,
        )
    totals: Ints | int = 1
    counts: Ints | Mask = exceeds
    if sizes is not None:
        totals = sizes[sizes > 0]
        counts = _counts(exceeds, totals)
    # From here on a unit is a group, or a single value without groups.
    deviations = counts - k / n * totals
    rarer = counts.astype(np.float64)
    if 2 * k > n:
        rarer = totals - rarer
    result = dependence.dependence(deviations, clusters)
    squares = float(np.square(deviations).sum())
    independent = k * (1 - k / n)
    # The variance of the count over that of independent values.
    effect = max(1.0, squares * result.effect(context.alike) / independent)
    limited_by = result.limited_by(context.alike)
    if squares > result.effect(context.alike) * independent:
        limited_by = REQUEST
    time = result.time
    if min(k, n - k) < FEW:
        time = max(time, context.time)
    is_of_known = min(k, n - k) < FEW and context.effect >= effect
    if is_of_known:
        effect = context.effect
        limited_by = context.limited_by
    places = np.flatnonzero(rarer)
    episodes = _episodes(rarer, places, time)
    # How well n_eff itself is known: by the episodes, the groups or the batches that show it, whichever are fewest.
    freedom = dependence.freedom(episodes)
    count = effective_count(episodes)
    largest = result.largest(context.alike)
    if largest is not None:
        group = next(groups for groups in clusters if groups.name == largest.name)
        sums = _group_sums(rarer, group)
        count = min(count, effective_count(sums))
        freedom = min(freedom, largest.freedom)
    if limited_by == WAVES:
        freedom = min(freedom, result.batches - 1.0)
    if is_of_known:
        freedom = max(freedom, context.freedom)
    n_eff = n / effect
    level = confidence()
    rounded = round(max(LEAST, freedom), 1)
    # An interval uses fewer values where n_eff is known less well: by Student's t in place of the normal distribution.
    independent_count = n_eff * (normal(level) / student(rounded, level)) ** 2
    return EffectiveSize(
        n_eff=max(1, math.floor(n_eff + 1e-6)),
        usable=max(1, math.floor(independent_count + 1e-6)),
        episodes=max(1, round(count)),
        units=len(places),
        time=time,
        limited_by=limited_by if n_eff < NOTICEABLE * n else "",
        is_of_few_groups=largest is not None and largest.groups < FEWEST_GROUPS,
        alike=result.shown,
        freedom=freedom,
    )


def _episodes(rarer: Floats, places: Ints, time: float) -> Floats:
    """Return the sizes of episodes: values no further apart than the correlation time.

    Where most places have some, as with the median of groups, all would be one episode: there each correlation time is one.
    """
    if 2 * len(places) > len(rarer):
        number = (places / max(1.0, time)).astype(np.int64)
    else:
        number = np.concatenate(([0], np.cumsum(np.diff(places) > time)))
    return np.bincount(number, rarer[places]).astype(np.float64)


def _group_sums(rarer: Floats, clusters: Clusters) -> Floats:
    """Return how many values of each group are of the rarer outcome; values of no group by themselves."""
    values = rarer.copy()
    sums = clusters.sums(values)
    values[clusters.places] = 0.0
    return np.concatenate((sums, values[values > 0]))


def _counts(exceeds: Mask, sizes: Ints) -> Ints:
    """Return how many of each group exceed, a stretch of groups at a time: the sums are made of 4 bytes a value."""
    ends = np.cumsum(sizes)
    cuts = np.unique(
        np.append(np.searchsorted(ends, np.arange(0, len(exceeds), STRETCH)), len(ends))
    )
    begin = ends - sizes
    flags = exceeds.view(np.uint8)  # faster than truth values
    counts = []
    for a, b in pairwise(cuts):
        stretch = flags[begin[a] : ends[b - 1]]
        counts.append(np.add.reduceat(stretch, begin[a:b] - begin[a], dtype=np.uint32))
    return np.concatenate(counts).astype(np.int64)
