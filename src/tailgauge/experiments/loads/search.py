"""Which loads to run next: pure, from the loads judged until now.

Double until a load fails, halve while the first one does, then halve the widest gap between the largest load that holds and
the smallest that fails. Where a limit is known, both sides of it are run instead.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Protocol, TypeVar

from tailgauge.experiments.loads.run import Interval
from tailgauge_analysis import FAIL, INCONCLUSIVE, PASS

PER_MINUTE = 2.0  # providers refuse faster growth
SAME = 1e-6  # relative difference of loads that are the same


class TriedLoad(Protocol):
    """What a search needs of a load that was run; `leans`: the more likely outcome of an inconclusive one."""

    @property
    def load(self) -> float:
        """Return its arrivals/s, or requests in flight."""

    @property
    def emptied(self) -> bool:
        """Return whether its runs began with a burst that empties the bucket."""

    @property
    def runs(self) -> Sequence[Any]:
        """Return its runs, at least one."""

    @property
    def outcome(self) -> str:
        """Return PASS, FAIL or INCONCLUSIVE."""

    @property
    def leans(self) -> str:
        """Return PASS or FAIL."""


_Load = TypeVar("_Load", bound=TriedLoad)


@dataclass(frozen=True, slots=True)
class NextLoad:
    """A load to run so many times; `emptied`: begin with a burst that empties the bucket."""

    load: float
    times: int = 1
    emptied: bool = False


def bracket(tried: Sequence[_Load]) -> tuple[_Load | None, _Load | None]:
    """Return the largest load that holds below the smallest that fails, and that one."""
    fails = [load for load in tried if load.outcome == FAIL]
    high = min(fails, key=lambda load: load.load, default=None)
    limit = math.inf if high is None else high.load
    below = [load for load in tried if load.outcome == PASS and load.load < limit]
    return max(below, key=lambda load: load.load, default=None), high


@dataclass(frozen=True, slots=True, kw_only=True)
class Search:
    """How loads are chosen: `least` and `most` bound them, `growth` is the ratio of two steps upwards.

    The gaps are halved until they are `narrow`, a ratio. `at_once`: so many loads of a round. Both ends, and loads that stay
    inconclusive between them, are run `confirm` times. `period_s`: from the start of one run to the next.
    """

    start: float
    least: float
    most: float
    growth: float
    narrow: float
    at_once: int = 1
    confirm: int = 1
    period_s: float = 0.0
    whole: bool = False

    def next_loads(
        self, tried: Sequence[TriedLoad], known: Interval | None = None, ceiling: float | None = None
    ) -> list[NextLoad]:
        """Return what to run now, nothing when the search is over.

        `known`: the load that a known limit sustains; `ceiling`: above it a limit in the headers refuses for certain.
        """
        if not tried:
            return [NextLoad(self.start)]
        loads = [load.load for load in tried]
        high = min((load.load for load in tried if load.leans == FAIL), default=None)
        if high is None:
            return self._upwards(tried, max(loads), ceiling)
        if not any(load.leans == PASS and load.load < high for load in tried):
            lower = min(loads) / min(self.growth**2, PER_MINUTE)
            return [NextLoad(self._rounded(lower))] if lower >= self.least else []
        if known is not None:
            return self._beside(tried, known)
        return self._between(tried) or self._confirmed(tried)

    def _upwards(self, tried: Sequence[TriedLoad], highest: float, ceiling: float | None) -> list[NextLoad]:
        if highest >= self.most * (1 - SAME):
            return self._repeated(tried, highest)
        load = highest * self.growth
        if ceiling is not None and load < ceiling:
            fastest = highest * PER_MINUTE ** (self.period_s / 60)
            load = max(load, min(ceiling * self.narrow, fastest))
        return [NextLoad(self._rounded(min(load, self.most)))]

    def _between(self, tried: Sequence[TriedLoad]) -> list[NextLoad]:
        """Halve the widest gaps between the ends."""
        low, high = bracket(tried)
        loads = sorted({load.load for load in tried})
        lowest = loads[0] if low is None else low.load
        highest = loads[-1] if high is None else high.load
        inside = [load for load in loads if lowest <= load <= highest]
        chosen: list[float] = []
        for _ in range(self.at_once):
            gaps = [(upper / lower, lower, upper) for lower, upper in pairwise(inside)]
            ratio, lower, upper = max(gaps, default=(1.0, 0.0, 0.0))
            middle = self._rounded(math.sqrt(lower * upper))
            if ratio <= self.narrow or middle in inside:
                break
            chosen.append(middle)
            inside = sorted([*inside, middle])
        return [NextLoad(load) for load in chosen]

    def _confirmed(self, tried: Sequence[TriedLoad]) -> list[NextLoad]:
        """Repeat the ends and what is inconclusive between them."""
        low, high = bracket(tried)
        unsure = [load for load in tried if load.outcome == INCONCLUSIVE]
        lowest = 0.0 if low is None else low.load
        highest = math.inf if high is None else high.load
        inside = {load.load for load in unsure if lowest < load.load < highest}
        ends = {end.load for end in (low, high) if end is not None}
        return [again for load in sorted(inside | ends) for again in self._repeated(tried, load)]

    def _beside(self, tried: Sequence[TriedLoad], known: Interval) -> list[NextLoad]:
        """Run both sides of a known limit: below it, and above it with an empty bucket."""
        below = self._rounded(min(known.value / self.narrow, known.low))
        above = self._rounded(max(known.value * self.narrow, known.high))
        sides = [*self._repeated(tried, below), *self._repeated(tried, above, emptied=True)]
        low, _ = bracket(tried)
        if low is not None and below < low.load <= known.high:
            return [side for side in sides if side.emptied]
        return sides

    def _repeated(self, tried: Sequence[TriedLoad], load: float, *, emptied: bool = False) -> list[NextLoad]:
        near = math.sqrt(self.narrow)
        alike = [other for other in tried if other.emptied == emptied and 1 / near < other.load / load < near]
        same = sorted(alike, key=lambda other: abs(other.load - load))[:1]
        times = self.confirm - sum(len(other.runs) for other in same)
        if times <= 0:
            return []
        return [NextLoad(same[0].load if same else load, times, emptied)]

    def _rounded(self, load: float) -> float:
        if self.whole:
            return float(max(1, round(load)))
        return float(f"{load:.4g}")
