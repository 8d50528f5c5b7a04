"""Waits of which some were cut short: the share beyond a bound, and quantiles.

A wait that was cut short (its user left, the run ended) says "longer than this", and is used as that: neither dropped nor
taken for an answer. It must have been cut short for a reason that has nothing to do with how long it would have lasted.
A wait that failed never gets its answer, from then on. F(t), the share answered by t, is the Aalen-Johansen estimate:

    S(t) = product over t_i <= t of (1 - ends at t_i / waits still open just before t_i), an end being an answer or a failure
    F(t) = sum over t_i <= t of S(t_i-) * answers at t_i / waits still open just before t_i

Without failures 1 - F is the Kaplan-Meier estimate, without cuts it is the plain share. Its variance is that of the
influences of the waits (Greenwood's), times the effect of their dependence (stats/dependence.py); n_eff is the number of
independent waits, none cut short, with this variance. Intervals are those of shares and quantiles with that n_eff.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from tailgauge_analysis.stats import dependence, quantiles
from tailgauge_analysis.stats.binomial import clopper_pearson
from tailgauge_analysis.stats.dependence import Grouping
from tailgauge_analysis.stats.proportions import Proportion, proportion
from tailgauge_analysis.stats.quantiles import (
    BEYOND,
    Floats,
    Ints,
    Mask,
    Quantile,
    Sample,
    confidence,
)

TINY = 1e-12  # rounding of a share
SLACK = 0.01  # of a bound: who left so little before it has waited for it, clocks do not start at one moment


@dataclass(frozen=True)
class Waits:
    """Waits in order of arrival: those `seen` ended with an answer after `ms`, those `cut` were cut short, others failed."""

    ms: Floats
    seen: Mask
    cut: Mask
    groupings: tuple[Grouping, ...] = ()

    @staticmethod
    def joined(parts: Sequence[Waits]) -> Waits:
        """One after the other."""
        ms = np.concatenate([part.ms for part in parts])
        seen = np.concatenate([part.seen for part in parts])
        cut = np.concatenate([part.cut for part in parts])
        groupings = dependence.joined([(part.groupings, len(part.ms)) for part in parts])
        return Waits(ms, seen, cut, groupings)

    def only(self, mask: Mask) -> Waits:
        """Some of them."""
        if mask.all():
            return self
        groupings = tuple(grouping.only(mask) for grouping in self.groupings)
        return Waits(self.ms[mask], self.seen[mask], self.cut[mask], groupings)

    @property
    def values(self) -> Floats:
        """Where there was no answer +inf."""
        return np.where(self.seen, self.ms, np.inf)

    def beyond(self, bound: float) -> Proportion:
        """Return the share without an answer within the bound, in ms, with its 95% interval.

        Without waits that were cut short before the bound it is the plain share; else that of the estimated curve. No value, but an
        interval, where the longest wait is shorter than the bound and some were cut short.
        """
        bound_reached = bound * (1 - SLACK)
        late = ~(self.seen & (self.ms <= bound))
        is_known = ~(self.cut & (self.ms < bound_reached))
        if is_known.all():
            return _of_none(proportion(late, groupings=self.groupings, waits_ms=self.values))
        # Where nearly all have left, the few that are still open stand for too many: the waits end before.
        if self.trusted is not self:
            return self.trusted.beyond(bound)
        curve = self._curve
        last_index = curve.last_until(bound)
        share = max(0.0, 1 - float(curve.answered[last_index]))
        n = len(self.ms)
        n_eff = self._n_eff(last_index, share)
        low, high = clopper_pearson(share * n_eff, n_eff, confidence())
        estimate = _of_none(Proportion(round(share * n), n, n_eff, value=share, low=low, high=high))
        if curve.ms[-1] >= bound_reached or curve.open[-1] <= 0:
            return estimate
        low_share = max(0.0, share - float(curve.open[-1]))  # of those still open then, any number
        low, _ = clopper_pearson(low_share * n_eff, n_eff, confidence())
        return Proportion(estimate.k, n, n_eff, value=None, low=low, high=estimate.high)

    def quantiles(self, ps: Sequence[float]) -> list[Quantile]:
        """Quantiles `ps`; +inf where the answers end before, with `seen_to` if those that were cut short might go on."""
        if not self.cut.any():
            return quantiles.quantiles(self.values, ps, groupings=self.groupings)
        if self.trusted is not self:
            return self.trusted.quantiles(ps)
        return [self._quantile(p) for p in ps]

    def tail(self) -> tuple[Floats, Floats]:
        """Return when answers came, ascending, and the share beyond each of these times."""
        curve = self._curve
        has_answer = curve.answers > 0
        shares = 1 - curve.answered[has_answer]
        return curve.ms[has_answer], np.where(shares < TINY, 0.0, shares)

    def _quantile(self, p: float) -> Quantile:
        """Return quantile p of waits of which some were cut short; +inf where the answers end before it.

        `seen_to` is set where the value or an end of its interval is not seen only because waits were cut short.
        """
        n = len(self.ms)
        curve = self._curve
        value = curve.time_of(p)
        last_index = curve.last_until(value)
        n_eff = self._n_eff(last_index, 1 - float(curve.answered[last_index]))
        end_ms = float(curve.ms[last_index])
        # Longer than the quantile, or without an answer for as long: how these depend on each other widens the interval.
        is_slow = (self.ms > end_ms) | ~(self.seen | self.cut)
        is_slow |= ~self.seen & (self.ms >= end_ms * (1 - SLACK))
        sample = self._sample
        context = sample.context(int(is_slow.sum()))
        information = quantiles.effective_size(is_slow, None, sample.clusters, context)
        is_of_few_groups = sample.is_of_few_groups or information.is_of_few_groups
        independent = max(1, n_eff * information.usable // information.n_eff)
        low_rank, high_rank = quantiles.ranks(independent, independent, p, confidence())
        low = curve.time_of_rank(low_rank, independent)
        high = curve.time_of_rank(high_rank, independent)
        seen_to = None
        may_go_on = curve.open[-1] > 0 and curve.answered[-1] + curve.open[-1] >= p
        if may_go_on and math.inf in (value, low, high):
            seen_to = float(curve.ms[-1])
        return Quantile(
            p=p,
            n=n,
            n_eff=n_eff,
            value=value,
            low=low,
            high=high,
            mark=quantiles.mark(
                n, n_eff, p, information.episodes, is_of_few_groups=is_of_few_groups
            ),
            episodes=information.episodes,
            limited_by=information.limited_by,
            seen_to=seen_to,
        )

    @cached_property
    def trusted(self) -> Waits:
        """Cut short where so many have left that fewer than ten effective waits are open: one stands for all who left."""
        curve = self._curve
        few = np.flatnonzero(curve.waiting < min(BEYOND, len(self.ms) / 2) * curve.before)
        if not len(few) or not few[0]:
            return self
        last_ms = curve.ms[few[0] - 1]
        is_later = self.ms > last_ms
        return replace(
            self,
            ms=np.minimum(self.ms, last_ms),
            seen=self.seen & ~is_later,
            cut=self.cut | is_later,
        )

    @cached_property
    def _sample(self) -> Sample:
        """What the waits, as far as they were seen, say of their dependence."""
        return Sample(self.ms, groupings=self.groupings)

    @cached_property
    def _curve(self) -> _Curve:
        times_ms, index = np.unique(self.ms, return_inverse=True)
        # At a tie, ends come before cuts.
        ended = np.bincount(index, minlength=len(times_ms))
        answers = np.bincount(index, self.seen, len(times_ms))
        ends = np.bincount(index, ~self.cut, len(times_ms))
        waiting = len(self.ms) - np.concatenate(([0], ended.cumsum()[:-1]))
        is_open = np.cumprod(1 - ends / waiting)
        open_before = np.concatenate(([1.0], is_open[:-1]))
        return _Curve(
            ms=times_ms,
            index=index,
            waiting=waiting,
            answers=answers,
            ends=ends,
            before=open_before,
            open=is_open,
            answered=np.cumsum(open_before * answers / waiting),
        )

    def _n_eff(self, last_index: int, share: float) -> int:
        """Return how many independent waits, none cut short, would know the share without an answer as well.

        `share`: by the time with number `last_index` of the curve, of those without an answer. Its variance is that of the influences
        of the waits on the curve (Greenwood's), times the effect of their dependence. Where all or none were answered, it
        follows from how many were still waiting.
        """
        n = len(self.ms)
        curve = self._curve
        # For each time of the curve: what an answer then adds to a wait's influence, what its end takes away as it can get no later
        # answer, and what is paid for having waited until then.
        weight = n * curve.before / curve.waiting
        lost = n * (curve.answered[last_index] - curve.answered) / curve.waiting
        paid = np.cumsum(weight * curve.answers / curve.waiting) - np.cumsum(
            lost * curve.ends / curve.waiting
        )
        index = np.minimum(curve.index, last_index)
        has_ended = curve.index <= last_index
        influence = (
            (has_ended & self.seen) * weight[index]
            - (has_ended & ~self.cut) * lost[index]
            - paid[index]
        )
        alike = self._sample.context(n // 2).alike
        effect = dependence.dependence(influence, self._sample.clusters).effect(alike)
        variance = float(np.square(influence).sum()) * effect / n**2
        if variance <= 0 or not TINY < share < 1 - TINY:
            context = self._sample.context(0)
            return max(
                1, int(curve.waiting[last_index] / curve.before[last_index] / context.effect)
            )
        return max(1, min(n, math.floor(share * (1 - share) / variance + 1e-6)))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Curve:
    """What happened at each of the times `ms`; of each: how many were `waiting`, got `answers` and ended in any way, the shares
    `open` before and after it, and the share `answered` by then. `index`: the time of each wait.
    """

    ms: Floats
    index: Ints
    waiting: Floats | Ints
    answers: Floats | Ints
    ends: Floats | Ints
    before: Floats
    open: Floats
    answered: Floats

    def last_until(self, ms: float) -> int:
        """Return the place of the last of the times up to this one; -1 before the first."""
        return int(np.searchsorted(self.ms, ms, side="right")) - 1

    def time_of(self, share: float) -> float:
        """Return when so many were answered; +inf if they never were."""
        places = np.flatnonzero(self.answered >= share - 1e-9)
        if not len(places):
            return math.inf
        return float(self.ms[places[0]])

    def time_of_rank(self, rank: int | None, waits: int) -> float | None:
        """Return when as many of so many waits were answered; None without a rank."""
        if rank is None:
            return None
        return self.time_of(rank / waits)


def _of_none(share: Proportion) -> Proportion:
    """With the rule of three where none was seen: all that the interval may miss lies above."""
    if share.value != 0:
        return share
    high = 1 - (1 - confidence()) ** (1 / share.n_eff)
    return Proportion(0, share.n, share.n_eff, value=0.0, low=0.0, high=high)
