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

    def only(self, which: Mask) -> Waits:
        """Some of them."""
        if which.all():
            return self
        groupings = tuple(grouping.only(which) for grouping in self.groupings)
        return Waits(self.ms[which], self.seen[which], self.cut[which], groupings)

    @property
    def values(self) -> Floats:
        """Where there was no answer +inf."""
        return np.where(self.seen, self.ms, np.inf)

    def beyond(self, bound: float) -> Proportion:
        """The share without an answer within the bound; no value where nobody waited for the bound."""
        reached = bound * (1 - SLACK)
        late = ~(self.seen & (self.ms <= bound))
        known = ~(self.cut & (self.ms < reached))
        if known.all():
            return _of_none(proportion(late, groupings=self.groupings, waits_ms=self.values))
        if self.trusted is not self:
            return self.trusted.beyond(bound)
        curve = self._curve
        last = curve.last_until(bound)
        share = max(0.0, 1 - float(curve.answered[last]))
        n = len(self.ms)
        n_eff = self._n_eff(last, share)
        low, high = clopper_pearson(share * n_eff, n_eff, confidence())
        estimate = _of_none(Proportion(round(share * n), n, n_eff, share, low, high))
        if curve.ms[-1] >= reached or curve.open[-1] <= 0:
            return estimate
        least = max(0.0, share - float(curve.open[-1]))  # of those still open then, any number
        low, _ = clopper_pearson(least * n_eff, n_eff, confidence())
        return Proportion(estimate.k, n, n_eff, None, low, estimate.high)

    def quantiles(self, ps: Sequence[float]) -> list[Quantile]:
        """Quantiles `ps`; +inf where the answers end before, with `seen_to` if those that were cut short might go on."""
        if not self.cut.any():
            return quantiles.quantiles(self.values, ps, groupings=self.groupings)
        if self.trusted is not self:
            return self.trusted.quantiles(ps)
        return [self._quantile(p) for p in ps]

    def tail(self) -> tuple[Floats, Floats]:
        """When answers came, ascending, and the share beyond each of these times."""
        curve = self._curve
        has_answer = curve.answers > 0
        beyond = 1 - curve.answered[has_answer]
        return curve.ms[has_answer], np.where(beyond < TINY, 0.0, beyond)

    def _quantile(self, p: float) -> Quantile:
        n = len(self.ms)
        curve = self._curve
        value = curve.time_of(p)
        last = curve.last_until(value)
        n_eff = self._n_eff(last, 1 - float(curve.answered[last]))
        end_ms = float(curve.ms[last])
        is_slow = (self.ms > end_ms) | ~(self.seen | self.cut)
        is_slow |= ~self.seen & (self.ms >= end_ms * (1 - SLACK))
        sample = self._sample
        known = sample.known(int(is_slow.sum()))
        worth = quantiles.worth(is_slow, None, sample.clusters, known)
        is_of_few_groups = sample.is_of_few_groups or worth.is_of_few_groups
        sure = max(1, n_eff * worth.sure // worth.n_eff)
        ranks = quantiles.ranks(sure, sure, p, confidence())
        low, high = (None if rank is None else curve.time_of(rank / sure) for rank in ranks)
        may_go_on = curve.open[-1] > 0 and curve.answered[-1] + curve.open[-1] >= p
        return Quantile(
            p=p,
            n=n,
            n_eff=n_eff,
            value=value,
            low=low,
            high=high,
            mark=quantiles.mark(n, n_eff, p, worth.episodes, is_of_few_groups=is_of_few_groups),
            episodes=worth.episodes,
            limited_by=worth.limited_by,
            seen_to=float(curve.ms[-1]) if may_go_on and math.inf in (value, low, high) else None,
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
        gone = np.bincount(index, minlength=len(times_ms))
        answers = np.bincount(index, self.seen, len(times_ms))
        ends = np.bincount(index, ~self.cut, len(times_ms))
        waiting = len(self.ms) - np.concatenate(([0], gone.cumsum()[:-1]))
        is_open = np.cumprod(1 - ends / waiting)
        before = np.concatenate(([1.0], is_open[:-1]))
        return _Curve(
            ms=times_ms,
            index=index,
            waiting=waiting,
            answers=answers,
            ends=ends,
            before=before,
            open=is_open,
            answered=np.cumsum(before * answers / waiting),
        )

    def _n_eff(self, last: int, share: float) -> int:
        """How many independent waits would know the share as well; where all or none were answered, how many were open."""
        n = len(self.ms)
        curve = self._curve
        weight = n * curve.before / curve.waiting
        lost = n * (curve.answered[last] - curve.answered) / curve.waiting
        paid = np.cumsum(weight * curve.answers / curve.waiting) - np.cumsum(
            lost * curve.ends / curve.waiting
        )
        until = np.minimum(curve.index, last)
        has_ended = curve.index <= last
        influence = (
            (has_ended & self.seen) * weight[until] - (has_ended & ~self.cut) * lost[until] - paid[until]
        )
        shown = self._sample.known(n // 2).shown
        effect = dependence.dependence(influence, self._sample.clusters).effect(shown)
        variance = float(np.square(influence).sum()) * effect / n**2
        if variance <= 0 or not TINY < share < 1 - TINY:
            known = self._sample.known(0)
            return max(1, int(curve.waiting[last] / curve.before[last] / known.effect))
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
        """The place of the last of the times up to this one; -1 before the first."""
        return int(np.searchsorted(self.ms, ms, side="right")) - 1

    def time_of(self, share: float) -> float:
        """When so many were answered; +inf if they never were."""
        reached = np.flatnonzero(self.answered >= share - 1e-9)
        return float(self.ms[reached[0]]) if len(reached) else math.inf


def _of_none(share: Proportion) -> Proportion:
    """With the rule of three where none was seen: all that the interval may miss lies above."""
    if share.value != 0:
        return share
    return Proportion(0, share.n, share.n_eff, 0.0, 0.0, 1 - (1 - confidence()) ** (1 / share.n_eff))
