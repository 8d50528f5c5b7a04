"""Which rates to try next.

Rule: pure, from what was judged so far. Up from today's rate by steps, faster towards a limit that headers name but never
more than twice in a minute; down where today's rate fails already; then, as soon as a limit or the capacity is known,
both sides of it; else bisection on the logarithm of the rate. The two ends are tried `confirm` times, in random order.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from tailgauge_analysis.experiment.answer import FAIL, OPEN, PASS
from tailgauge_analysis.headroom.judgement import Judged
from tailgauge_analysis.headroom.level import Rate

A_MINUTE = 2.0  # more growth in a minute is refused by providers
SLACK = 1.2  # times the precision: so much wider an interval is narrow enough
NEAR = 1.5  # times the precision: rates that were inconclusive lie no closer
LEAST = 1 / 64  # of today's rate


@dataclass(frozen=True, slots=True)
class Plan:
    """How the search goes: rates in requests a second. `period_s`: from one level to the next."""

    today: float
    most: float
    growth: float
    precision: float
    confirm: int
    period_s: float


@dataclass(frozen=True, slots=True)
class Wanted:
    """A rate to try so many times; `above`: it is expected to fail, so its limit is used up first."""

    rate_per_s: float
    times: int
    above: bool


def ends(tried: Sequence[Judged]) -> tuple[Judged | None, Judged | None]:
    """Highest pass below the lowest fail, and that fail."""
    fails = [one for one in tried if one.outcome == FAIL]
    top = min(fails, key=lambda one: one.rate_per_s, default=None)
    under = [one for one in tried if one.outcome == PASS and (top is None or one.rate_per_s < top.rate_per_s)]
    return max(under, key=lambda one: one.rate_per_s, default=None), top


def wanted(tried: Sequence[Judged], plan: Plan, known: Rate | None, ceiling: float | None) -> list[Wanted]:
    """What to run now; nothing when the search is over."""
    low, high = ends(tried)
    if not tried:
        return [Wanted(plan.today, 1, above=False)]
    if high is None:
        return _up(tried, plan, ceiling)
    if low is None and known is None:
        return _down(high, plan)
    if low is None or high.rate_per_s / low.rate_per_s > (1 + plan.precision) ** (2 * SLACK):
        more = _around(tried, plan, known) if known is not None else _between(tried, plan, low, high)
        if more or low is None:
            return more
    left = [(one, plan.confirm - _runs(tried, one.rate_per_s)) for one in (low, high)]
    return [
        Wanted(one.rate_per_s, times, above=one is high and known is not None)
        for one, times in left
        if times > 0
    ]


def _runs(tried: Sequence[Judged], rate_per_s: float) -> int:
    return sum(len(one.levels) for one in tried if one.rate_per_s == rate_per_s)


def _up(tried: Sequence[Judged], plan: Plan, ceiling: float | None) -> list[Wanted]:
    last = max(one.rate_per_s for one in tried)
    if last >= plan.most:
        times = plan.confirm - _runs(tried, last)
        return [Wanted(last, times, above=False)] if times > 0 else []
    step = last * plan.growth
    if ceiling is not None and step < ceiling:
        beyond = ceiling * (1 + plan.precision)
        step = max(step, min(beyond, last * A_MINUTE ** (plan.period_s / 60)))
    return [Wanted(min(step, plan.most), 1, above=False)]


def _down(high: Judged, plan: Plan) -> list[Wanted]:
    next_rate = high.rate_per_s / plan.growth**2
    return [Wanted(next_rate, 1, above=False)] if next_rate >= LEAST * plan.today else []


def _around(tried: Sequence[Judged], plan: Plan, known: Rate) -> list[Wanted]:
    """Both sides of what is known, each one step further out where it was tried and not confirmed."""
    low, high = ends(tried)
    wide = 1 + plan.precision
    below, above = min(known.value / wide, known.low), max(known.value * wide, known.high)
    unsure = [one for one in tried if one.outcome == OPEN and len(one.levels) >= plan.confirm]
    for one in sorted(unsure, key=lambda one: -one.rate_per_s):
        if not one.emptied and one.rate_per_s < known.value and one.rate_per_s <= below * math.sqrt(wide):
            below = one.rate_per_s / wide
    for one in unsure:
        if one.emptied and one.rate_per_s > known.value and one.rate_per_s >= above / math.sqrt(wide):
            above = one.rate_per_s * wide
    out = []
    if low is None or low.rate_per_s < below / math.sqrt(wide):
        out.append(Wanted(below, plan.confirm, above=False))
    if high is None or high.rate_per_s > above * math.sqrt(wide):
        out.append(Wanted(above, plan.confirm, above=True))
    return out


def _between(tried: Sequence[Judged], plan: Plan, low: Judged | None, high: Judged) -> list[Wanted]:
    """The middle of the widest gap, rates between that were inconclusive being ends of gaps too."""
    if low is None:
        return _down(high, plan)
    inside = sorted({one.rate_per_s for one in tried if low.rate_per_s <= one.rate_per_s <= high.rate_per_s})
    gap = max(pairwise(inside), key=lambda pair: pair[1] / pair[0])
    if gap[1] / gap[0] <= (1 + plan.precision) ** NEAR:
        again = [one for one in tried if one.outcome == OPEN and one.rate_per_s in inside]
        return [Wanted(one.rate_per_s, 1, above=False) for one in again[:1] if len(one.levels) < plan.confirm]
    return [Wanted(math.sqrt(gap[0] * gap[1]), 1, above=False)]
