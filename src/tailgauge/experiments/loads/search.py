"""Which loads to run next: pure, from the loads judged until now.

Double until a load fails, halve while the first one does, then halve the widest gap between the largest load that holds and
the smallest that fails. Where a limit is known, a load just below it is confirmed instead, at once.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from tailgauge.experiments.loads.run import Interval
from tailgauge_analysis import FAIL, INCONCLUSIVE, PASS

BESIDE = 1.005  # ratio of a load to one that was run
PER_MINUTE = 2.0  # providers refuse faster growth
SAME = 1e-6  # relative difference of loads that are the same


@dataclass(frozen=True, slots=True, kw_only=True)
class TriedLoad:
    """A load with its runs, at least one: arrivals/s, or requests in flight.

    `arrived` varies around the planned load. `leans`: the more likely outcome of an inconclusive one.
    """

    load: float
    arrived: float
    runs: tuple[Any, ...]
    outcome: str
    leans: str


_Load = TypeVar("_Load", bound=TriedLoad)


@dataclass(frozen=True, slots=True)
class NextLoad:
    """A load to run so many times."""

    load: float
    times: int = 1


def smallest_failing(tried: Iterable[TriedLoad]) -> float | None:
    """Return the smallest load that rather fails."""
    return min((load.load for load in tried if load.leans == FAIL), default=None)


def largest_holding(tried: Iterable[TriedLoad], limit: float) -> float | None:
    """Return the largest load that rather holds, below another one."""
    holding = [load.load for load in tried if load.leans == PASS and load.load < limit]
    return max(holding, default=None)


def bracket(tried: Sequence[_Load]) -> tuple[_Load | None, _Load | None]:
    """Return the largest load that holds below the smallest that fails, and that one, by what arrived."""
    fails = [load for load in tried if load.outcome == FAIL]
    high = min(fails, key=lambda load: load.arrived, default=None)
    limit = math.inf if high is None else high.arrived
    lower = [load for load in tried if load.outcome == PASS and load.arrived < limit]
    return max(lower, key=lambda load: load.arrived, default=None), high


@dataclass(frozen=True, slots=True, kw_only=True)
class Search:
    """How loads are chosen: `least` and `most` bound them, `growth` is the ratio of two steps upwards.

    The gap is halved until it is `narrow`, a ratio; or loads are run `on_both_sides` of it, ever closer. Both ends, and loads that stay
    inconclusive between them, are run `confirm` times. `period_s`: from the start of one run to the next.
    """

    start: float
    least: float
    most: float
    growth: float
    narrow: float
    on_both_sides: bool = False
    confirm: int = 1
    period_s: float = 0.0
    whole: bool = False

    def next_loads(
        self,
        tried: Sequence[TriedLoad],
        known_rate: Interval | None = None,
        ceiling: float | None = None,
    ) -> list[NextLoad]:
        """Return what to run now, nothing when the search is over.

        `tried`: the judged loads until now. `known_rate`: the load that a known limit sustains. `ceiling`: above it a
        limit in the headers refuses for certain. Up until a load fails, down until one holds; then a load just below a
        known limit, or between the ends.
        """
        if not tried:
            return [NextLoad(self.start)]
        loads = [load.load for load in tried]
        high = smallest_failing(tried)
        if high is None:
            return self._upwards(tried, max(loads), ceiling)
        low = largest_holding(tried, high)
        load_below = math.inf
        if known_rate is not None:
            load_below = min(known_rate.value / self.narrow, known_rate.low)
        if low is None:
            return self._downwards(tried, min(loads), load_below)
        if known_rate is not None:
            return self._repeated(tried, load_below)
        return self._halved(tried, low, high) or self._confirmed(tried)

    def _upwards(
        self, tried: Sequence[TriedLoad], highest: float, ceiling: float | None
    ) -> list[NextLoad]:
        if highest >= self.most * (1 - SAME):
            is_shown = any(load.load == highest and load.outcome == PASS for load in tried)
            if is_shown:
                return []
            return self._repeated(tried, highest)
        load = highest * self.growth
        if ceiling is not None and load < ceiling:
            fastest = highest * PER_MINUTE ** (self.period_s / 60)
            load = max(load, min(ceiling * self.narrow, fastest))
        return [NextLoad(self._rounded(min(load, self.most)))]

    def _downwards(
        self, tried: Sequence[TriedLoad], lowest: float, load_below: float
    ) -> list[NextLoad]:
        """Run a load below all others, that below the known limit if it is lower."""
        if self.least <= load_below < lowest * (1 - SAME):
            return self._repeated(tried, load_below)
        lower = lowest / min(self.growth**2, PER_MINUTE)
        if lower < self.least:
            return []
        return [NextLoad(self._rounded(lower))]

    def _halved(self, tried: Sequence[TriedLoad], low: float, high: float) -> list[NextLoad]:
        """Return the next loads between the one that rather holds, `low`, and the one that rather fails, `high`.

        The geometric middle while the gap is wider than `narrow`; or the middle and one load on each side of it. A load
        that was run is moved up by BESIDE, unless loads are whole numbers. Empty when the gap is narrow, or every load
        was run.
        """
        middle = math.sqrt(low * high)
        if self.on_both_sides:
            holds, fails = bracket(tried)
            loads = [load.load for load in tried]
            lowest = min(loads)
            if holds is not None:
                lowest = min(low, holds.load)
            highest = max(loads)
            if fails is not None:
                highest = max(high, fails.load)
            wanted = [math.sqrt(lowest * middle), middle, math.sqrt(middle * highest)]
        elif high / low > self.narrow:
            wanted = [middle]
        else:
            wanted = []
        ran = {load.load for load in tried}
        fresh = []
        for middle in wanted:
            load = self._rounded(middle)
            while load in ran and not self.whole:
                load = self._rounded(load * BESIDE)
            if load not in ran:
                ran.add(load)
                fresh.append(NextLoad(load))
        return fresh

    def _confirmed(self, tried: Sequence[TriedLoad]) -> list[NextLoad]:
        """Return repeats of both ends, and of what is inconclusive between them, until each has `confirm` runs."""
        low, high = bracket(tried)
        unsure = set()
        lowest = 0.0
        highest = math.inf
        if low is not None:
            lowest = low.load
            unsure.add(lowest)
        if high is not None:
            highest = high.load
            unsure.add(highest)
        for load in tried:
            if load.outcome == INCONCLUSIVE and lowest < load.load < highest:
                unsure.add(load.load)
        repeats = []
        for wanted in sorted(unsure):
            repeats += self._repeated(tried, wanted)
        return repeats

    def _repeated(self, tried: Sequence[TriedLoad], load: float) -> list[NextLoad]:
        """Run a load, or the one that was run close to it, until it has `confirm` runs."""
        near = math.sqrt(self.narrow)
        alike = [neighbour for neighbour in tried if 1 / near < neighbour.load / load < near]
        nearest = min(alike, key=lambda neighbour: abs(neighbour.load - load), default=None)
        if nearest is None:
            return [NextLoad(self._rounded(load), self.confirm)]
        times = self.confirm - len(nearest.runs)
        if times > 0:
            return [NextLoad(nearest.load, times)]
        return []

    def _rounded(self, load: float) -> float:
        if self.whole:
            return float(max(1, round(load)))
        return float(f"{load:.4g}")
