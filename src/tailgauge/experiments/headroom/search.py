"""Which rates to try next: pure, from the rates judged until now.

Up from today's rate by steps, faster towards a limit in the headers but at most doubling per minute; down if today's rate
already fails; then, once a limit or the capacity is known, both sides of it; else bisection on the logarithm of the rate,
by the more likely outcome of inconclusive rates. Both ends are run `confirm` times, in random order.

A capacity is what a target answers while calls pile up. It is used as long as no rate above it passes and none below it
fails: a target that does more with a short queue, or that misses an objective earlier, is bisected.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

from tailgauge.experiments.headroom.judge import Rate, Tried
from tailgauge_analysis import (
    FAIL,
    INCONCLUSIVE,
    PASS,
)

PER_MINUTE = 2.0  # providers refuse faster growth
SLACK = 1.2  # times the precision: so much wider an interval is narrow enough
STEPS_OUT = 8  # of the precision, on either side of where a search without a known limit ends
LEAST = 1 / 64  # of today's rate
FAR = 1.2  # times the capacity: there a backlog is seen to grow, if not just above it


@dataclass(frozen=True, slots=True)
class SearchPlan:
    """How the search goes: rates in requests/s. `period_s`: from the start of one step to the next. `narrow`: gap between the
    ends, as a ratio, at which it is over.
    """

    today: float
    most: float
    growth: float
    precision: float
    confirm: int
    period_s: float
    narrow: float


class JudgedLoad(Protocol):
    """What a search needs of a rate that was run; `leans`: the more likely outcome of an inconclusive one."""

    @property
    def rate_per_s(self) -> float:
        """Return the rate of its runs."""

    @property
    def runs(self) -> Sequence[Any]:
        """Return its runs, at least one."""

    @property
    def outcome(self) -> str:
        """Return PASS, FAIL or INCONCLUSIVE."""

    @property
    def leans(self) -> str:
        """Return PASS or FAIL."""


_Load = TypeVar("_Load", bound=JudgedLoad)


@dataclass(frozen=True, slots=True)
class NextRate:
    """A rate to run so many times; `above`: expected to fail, so it begins with a burst that empties the bucket."""

    rate_per_s: float
    times: int
    above: bool


def ends(tried: Sequence[_Load]) -> tuple[_Load | None, _Load | None]:
    """Highest pass below the lowest fail, and that fail."""
    fails = [one for one in tried if one.outcome == FAIL]
    top = min(fails, key=lambda one: one.rate_per_s, default=None)
    under = [one for one in tried if one.outcome == PASS and (top is None or one.rate_per_s < top.rate_per_s)]
    return max(under, key=lambda one: one.rate_per_s, default=None), top


def agrees(capacity: Rate, tried: Tried) -> bool:
    """Whether nothing passed above it, failed below it, or missed an objective before it was reached."""
    low, high = ends(tried)
    is_above = low is not None and low.rate_per_s > capacity.high
    is_below = high is not None and high.rate_per_s < capacity.low
    missed = (of.missed for one in tried if one.rate_per_s <= capacity.high for of in one.objectives)
    return not (is_above or is_below or any(missed))


def attempts(
    tried: Tried, plan: SearchPlan, known: Rate | None, ceiling: float | None, *, by_capacity: bool = False
) -> list[NextRate]:
    """What to run now; empty when the search is over."""
    low, high = ends(tried)
    if not tried:
        return [NextRate(plan.today, 1, above=False)]
    if known is None or (by_capacity and not agrees(known, tried)):
        return bisect(tried, plan, ceiling)
    if high is None:
        return _up(tried, plan, ceiling)
    if low is None or high.rate_per_s / low.rate_per_s > plan.narrow:
        more = _around(tried, plan, known, by_capacity=by_capacity)
        if more or low is None:
            return more
    left = [(one, plan.confirm - _runs(tried, one.rate_per_s)) for one in (low, high)]
    bursts = not by_capacity
    return [NextRate(one.rate_per_s, times, above=bursts and one is high) for one, times in left if times > 0]


def _runs(tried: Sequence[JudgedLoad], rate_per_s: float) -> int:
    return sum(len(one.runs) for one in tried if one.rate_per_s == rate_per_s)


def _up(tried: Sequence[JudgedLoad], plan: SearchPlan, ceiling: float | None) -> list[NextRate]:
    last = max(one.rate_per_s for one in tried)
    if last >= plan.most:
        times = plan.confirm - _runs(tried, last)
        return [NextRate(last, times, above=False)] if times > 0 else []
    step = last * plan.growth
    if ceiling is not None and step < ceiling:
        beyond = ceiling * (1 + plan.precision)
        step = max(step, min(beyond, last * PER_MINUTE ** (plan.period_s / 60)))
    return [NextRate(min(step, plan.most), 1, above=False)]


def _around(tried: Tried, plan: SearchPlan, known: Rate, *, by_capacity: bool) -> list[NextRate]:
    """Both sides of what is known, each a step further out if it was run and not confirmed."""
    low, high = ends(tried)
    wide = 1 + plan.precision
    below, above = min(known.value / wide, known.low), max(known.value * wide, known.high)
    above = known.high * FAR if by_capacity else above
    unsure = [one for one in tried if one.outcome == INCONCLUSIVE and len(one.runs) >= plan.confirm]
    for one in sorted(unsure, key=lambda one: -one.rate_per_s):
        if not one.emptied and one.rate_per_s < known.value and one.rate_per_s <= below * math.sqrt(wide):
            below = one.rate_per_s / wide
    for one in unsure:
        burst = one.emptied or by_capacity
        if burst and one.rate_per_s > known.value and one.rate_per_s >= above / math.sqrt(wide):
            above = one.rate_per_s * wide
    sides = (
        (NextRate(below, plan.confirm, above=False), low is None or low.rate_per_s < below / math.sqrt(wide)),
        (NextRate(above, plan.confirm, above=not by_capacity), high is None or high.rate_per_s > above * math.sqrt(wide)),
    )  # fmt: skip
    return [side for side, is_open in sides if is_open]


def bisect(tried: Sequence[JudgedLoad], plan: SearchPlan, ceiling: float | None) -> list[NextRate]:
    """Search without a known limit: by the more likely outcome of each rate, until the gap is narrow; then both ends, confirmed.

    `tried`: one rate at least.
    """
    top = min((one.rate_per_s for one in tried if one.leans == FAIL), default=None)
    if top is None:
        return _up(tried, plan, ceiling)
    under = max((one.rate_per_s for one in tried if one.leans == PASS and one.rate_per_s < top), default=None)
    if under is None:
        lower = top / min(plan.growth**2, PER_MINUTE)
        return [NextRate(lower, 1, above=False)] if lower >= LEAST * plan.today else []
    if top / under > plan.narrow:
        return [NextRate(math.sqrt(under * top), 1, above=False)]
    wide = plan.narrow ** (0.5 / SLACK)
    return [*_confirmed(tried, plan, under, 1 / wide, PASS), *_confirmed(tried, plan, top, wide, FAIL)]


def _confirmed(
    tried: Sequence[JudgedLoad], plan: SearchPlan, rate: float, step: float, outcome: str
) -> list[NextRate]:
    """The nearest rate on this side that may still have this outcome; further out if one stayed inconclusive."""
    for _ in range(STEPS_OUT):
        here = [one for one in tried if math.isclose(one.rate_per_s, rate)]
        left = plan.confirm - sum(len(one.runs) for one in here)
        if left > 0:
            return [NextRate(here[0].rate_per_s if here else rate, left, above=False)]
        if any(one.outcome == outcome for one in here):
            return []
        rate *= step
    return []
