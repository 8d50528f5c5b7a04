"""Waits of which some were cut short: the share beyond a bound, and quantiles.

A wait that was cut short (its user left, the run ended) says "longer than this", and is used as that: neither dropped nor
taken for an answer. It must have been cut short for a reason that has nothing to do with how long it would have lasted.
A wait that failed never gets its answer, from then on. F(t), the share answered by t, is the Aalen-Johansen estimate:

    S(t) = product over t_i <= t of (1 - ends at t_i / waits still open just before t_i), an end being an answer or a failure
    F(t) = sum over t_i <= t of S(t_i-) * answers at t_i / waits still open just before t_i

Without failures 1 - F is the Kaplan-Meier estimate, without cuts it is the plain share. Its variance is that of the
influences of the waits (Greenwood's), taken in order of arrival and so with their correlation; n_eff is the number of
independent waits, none cut short, with this variance. Intervals are those of shares and quantiles with that n_eff.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from tailgauge_analysis.stats import quantiles
from tailgauge_analysis.stats.binomial import clopper_pearson
from tailgauge_analysis.stats.proportions import Proportion, proportion
from tailgauge_analysis.stats.quantiles import BEYOND, Floats, Ints, Mask, Quantile, confidence

TINY = 1e-12  # rounding of a share
SLACK = 0.01  # of a bound: who left so little before it has waited for it, clocks do not start at one moment


@dataclass(frozen=True)
class Waits:
    """Waits in order of arrival: those `seen` ended with an answer after `ms`, those `cut` were cut short, others failed."""

    ms: Floats
    seen: Mask
    cut: Mask

    @staticmethod
    def joined(parts: Sequence[Waits]) -> Waits:
        """One after the other."""
        ms, seen, cut = zip(*((one.ms, one.seen, one.cut) for one in parts), strict=True)
        return Waits(np.concatenate(ms), np.concatenate(seen), np.concatenate(cut))

    def only(self, which: Mask) -> Waits:
        """Some of them."""
        return Waits(self.ms[which], self.seen[which], self.cut[which])

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
            return _of_none(proportion(late))
        if self.trusted is not self:
            return self.trusted.beyond(bound)
        c = self._curve
        at = int(np.searchsorted(c.at, bound, side="right")) - 1
        share = max(0.0, 1 - float(c.answered[at]))
        n = len(self.ms)
        n_eff = self._n_eff(at, share) or max(1, int(c.waiting[at] / c.before[at]))
        low, high = clopper_pearson(share * n_eff, n_eff, confidence())
        found = _of_none(Proportion(round(share * n), n, n_eff, share, low, high))
        if c.at[-1] >= reached or c.open[-1] <= 0:
            return found
        least = max(0.0, share - float(c.open[-1]))  # of those still open then, any number
        low, _ = clopper_pearson(least * n_eff, n_eff, confidence())
        return Proportion(found.k, n, n_eff, None, low, found.high)

    def quantiles(self, ps: Sequence[float]) -> list[Quantile]:
        """Quantiles `ps`; +inf where the answers end before, with `seen_to` if those that were cut short might go on."""
        if not self.cut.any():
            return quantiles.quantiles(self.values, ps)
        return [self._quantile(p) for p in ps] if self.trusted is self else self.trusted.quantiles(ps)

    def tail(self) -> tuple[Floats, Floats]:
        """When answers came, ascending, and the share beyond each of these times."""
        c = self._curve
        beyond = 1 - c.answered[c.answers > 0]
        return c.at[c.answers > 0], np.where(beyond < TINY, 0.0, beyond)

    def _quantile(self, p: float) -> Quantile:
        n, c = len(self.ms), self._curve
        value = c.when(p)
        last = int(np.searchsorted(c.at, value, side="right")) - 1
        share = 1 - float(c.answered[last])
        n_eff = self._n_eff(last, share) or max(1, int(c.waiting[last] / c.before[last]))
        end = float(c.at[last])
        slow = (self.ms > end) | ~(self.seen | self.cut) | (~self.seen & (self.ms >= end * (1 - SLACK)))
        found = quantiles.worth(slow)
        sure = max(1, n_eff * found.sure // found.n_eff)
        ranks = quantiles.ranks(sure, sure, p, confidence())
        low, high = (None if rank is None else c.when(rank / sure) for rank in ranks)
        is_open = c.open[-1] > 0 and c.answered[-1] + c.open[-1] >= p and math.inf in (value, low, high)
        mark, seen_to = quantiles.mark(n, n_eff, p, found.episodes), float(c.at[-1]) if is_open else None
        return Quantile(p, n, n_eff, value, low, high, mark, found.episodes, seen_to)

    @cached_property
    def trusted(self) -> Waits:
        """Cut short where so many have left that fewer than ten effective waits are open: one stands for all who left."""
        c = self._curve
        few = np.flatnonzero(c.waiting < min(BEYOND, len(self.ms) / 2) * c.before)
        if not len(few) or not few[0]:
            return self
        last = c.at[few[0] - 1]
        return Waits(np.minimum(self.ms, last), self.seen & (self.ms <= last), self.cut | (self.ms > last))

    @cached_property
    def _curve(self) -> _Curve:
        at, place = np.unique(self.ms, return_inverse=True)
        # At a tie, ends come before cuts.
        gone, answers, ends = (np.bincount(place, each, len(at)) for each in (None, self.seen, ~self.cut))
        waiting = len(self.ms) - np.concatenate(([0], gone.cumsum()[:-1]))
        still = np.cumprod(1 - ends / waiting)
        before = np.concatenate(([1.0], still[:-1]))
        answered = np.cumsum(before * answers / waiting)
        return _Curve(at, place, waiting, answers, ends, before, still, answered)

    def _n_eff(self, at: int, share: float) -> int | None:
        """None where all or none were answered by then."""
        n, c = len(self.ms), self._curve
        weight = n * c.before / c.waiting
        lost = n * (c.answered[at] - c.answered) / c.waiting
        paid = np.cumsum(weight * c.answers / c.waiting) - np.cumsum(lost * c.ends / c.waiting)
        until = np.minimum(c.place, at)
        here = c.place <= at
        influence = (here & self.seen) * weight[until] - (here & ~self.cut) * lost[until] - paid[until]
        variance = float(np.square(influence).sum()) * quantiles.correlation_time(influence) / n**2
        if variance <= 0 or not TINY < share < 1 - TINY:
            return None
        return max(1, min(n, math.floor(share * (1 - share) / variance + 1e-6)))


@dataclass(frozen=True, slots=True)
class _Curve:
    """What happened at each of the times `at`. `place`: that of each wait; `open`: share without an end after it."""

    at: Floats
    place: Ints
    waiting: Floats | Ints
    answers: Floats | Ints
    ends: Floats | Ints
    before: Floats
    open: Floats
    answered: Floats

    def when(self, share: float) -> float:
        """When so many were answered; +inf if they never were."""
        reached = np.flatnonzero(self.answered >= share - 1e-9)
        return float(self.at[reached[0]]) if len(reached) else math.inf


def _of_none(share: Proportion) -> Proportion:
    """With the rule of three where none was seen: all that the interval may miss lies above."""
    if share.value != 0:
        return share
    return Proportion(0, share.n, share.n_eff, 0.0, 0.0, 1 - (1 - confidence()) ** (1 / share.n_eff))
