"""The course of a series: run loads until the search is over or the minutes are spent.

All prompts are cold, so the order of the loads leaves no trace in a cache. Once a limit was met every run begins with a
rest, until the limit has refilled where that is known. Runs are short while the load doubles; between the ends they share
the time that is left.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from random import Random
from typing import Any

import numpy as np

from tailgauge.experiments.course import Base, Planner, Step, Steps, warm_up
from tailgauge.experiments.loads import limits
from tailgauge.experiments.loads.judge import JudgedLoad, is_limited, judge
from tailgauge.experiments.loads.limits import Bound, Planned
from tailgauge.experiments.loads.run import LoadRun
from tailgauge.experiments.loads.search import (
    NextLoad,
    bracket,
    largest_holding,
    smallest_failing,
)
from tailgauge.patterns.settings import TrafficSettings
from tailgauge.patterns.table import pattern_of
from tailgauge.protocols.protocol import SIMULATED
from tailgauge.scenario.experiment import RUN_S, Curve, Headroom
from tailgauge.scenario.model import Limits
from tailgauge.schedule.schedule import Schedule, plan
from tailgauge.schedule.settings import TRACE
from tailgauge_analysis import CHECKS, FAIL, PASS, figures

SHORTEST_S = 12.0  # of a run
# Runs that the minutes would have time for, if all were as long as those of a search, or as those between the ends.
SEARCHES = 28
REFINES = 12
LONGEST_SEARCH_S = 60.0
LONGEST_S = 120.0
LONGER = 3.0  # times as long, where requests are few or answers slow
# A run has so many arrivals at least, and lasts so many answers. Between the ends it has more conversations: a queue
# depends on itself from conversation to conversation, so few of them show too seldom how long it may become.
FEWEST = 60
FEWEST_CONVERSATIONS = 200
ENOUGH = 5_000  # arrivals of a run: more of them cost calls and change no answer
SHOWS = 5.0  # calls that would be refused in the confirming runs at the allowed share: none then shows that it holds
FILLS = 4.0
# The warm-up as a share of a run, and the most that it may be.
WARMUP = 0.15
MOST_WARMUP = 0.3
FILLED = 15.0  # times the bound of an objective: a queue that began empty waits as in the long run
DRAIN_S = 5.0
MOST_IN_FLIGHT = 8_000  # of a worker, where the scenario does not say
GAPS = 40_000  # arrivals for the long-run estimate
ROUNDS = 60
IN_FLIGHT = "requests in flight"
ARRIVALS = {"job": "jobs", "batch": "batches"}  # by pattern
UNUSABLE = "the search ended at {}, where no run was valid: their reports name the causes"
SPENT = "experiment.minutes = {:g}: no time was left for more runs"


@dataclass(frozen=True, slots=True)
class Unit:
    """What a load counts; `requests`: of an arrival; `prompts`: of a request."""

    name: str
    requests: float = 1.0
    prompts: float = 1.0

    def text(self, load: float) -> str:
        """Name a load, in requests and prompts too where an arrival has several: `0.8 conversations/s = 4 requests/s`."""
        name = "request in flight" if load == 1 and self.name == IN_FLIGHT else self.name
        text = f"{figures(load)} {name}"
        if self.requests != 1:
            text += f" = {figures(load * self.requests)} requests/s"
        if self.prompts != 1:
            text += f" = {figures(load * self.requests * self.prompts)} prompts/s"
        return text


@dataclass(frozen=True, slots=True, kw_only=True)
class Series:
    """The judged loads, ascending, the bounds of the known limits, and the largest load that holds.

    `low`, `high`: the largest load that holds and the smallest that fails, narrowed by a known limit that agrees with the rows;
    None without one. `binding`: that limit; `contradicted`: one that does not agree.
    """

    loads: Sequence[JudgedLoad]
    bounds: Sequence[Bound]
    low: float | None
    high: float | None
    binding: Bound | None = None
    contradicted: Bound | None = None

    @property
    def value(self) -> float | None:
        """Return the load that the known limit sustains, else the middle of the loads that rather hold and rather fail."""
        if self.low is None or self.high is None:
            return None
        if self.binding is not None:
            value = self.binding.per_s.value
        else:
            fails = smallest_failing(self.loads)
            if fails is None:
                fails = self.high
            holds = largest_holding(self.loads, fails)
            if holds is None:
                holds = self.low
            value = math.sqrt(holds * fails)
        return min(max(value, self.low), self.high)

    @property
    def limit_bounds(self) -> list[Bound]:
        """Return the bounds of limits, without that of the capacity."""
        return [bound for bound in self.bounds if bound.limit is not None]

    def with_outcome(self, outcome: str) -> list[JudgedLoad]:
        """Return the loads that were judged so, ascending."""
        return [load for load in self.loads if load.outcome == outcome]


def holds(needed: float, low: float | None, high: float | None) -> str | None:
    """Return whether a load holds by the largest that does and the smallest that fails; None between them."""
    if low is not None and low >= needed:
        return PASS
    return FAIL if high is not None and high <= needed else None


class SeriesPlanner(Planner):
    """A search over loads. A step is given its `NextLoad`."""

    checks = CHECKS  # a load at which nothing is answered has its result
    borrows = True  # neighbours that are inconclusive themselves decide a load

    def __init__(self, base: Base, settings: Headroom | Curve, precision: float) -> None:
        """Take the settings that both series have. `precision`: relative width at which the search ends.

        A load counts requests in flight until `plan_arrivals` is called.
        """
        super().__init__(base)
        self._refused = settings.refused
        self._precision = precision
        # The simulated endpoint resets with every run, and needs no rest.
        self._rest_s = 0.0 if base.scenario.target.url == SIMULATED else settings.rest_s
        self._all_s = base.table.minutes * 60
        self._wanted_s = settings.step_s  # measured, of a run
        self._points = 0  # fewest runs
        self._binding: Bound | None = None  # the known limit that agrees with the runs until now
        self._planned = Planned(np.empty(0))
        self._unit = Unit(IN_FLIGHT)
        self._is_trace = base.scenario.arrival.process == TRACE
        bounds_ms = [objective.bound for objective in base.latency_objectives]
        # Seconds after which a queue that began empty is as long as in the long run.
        self._fills_s = FILLED * max(bounds_ms, default=0.0) / 1000
        self.is_spent = False  # no time is left for the wanted runs
        self.unusable = ""  # names of the runs after which the search ended without a valid one

    @property
    @abstractmethod
    def runs(self) -> list[LoadRun]:
        """Return the runs until now."""

    @abstractmethod
    def search(self, series: Series) -> list[NextLoad]:
        """Choose the next loads."""

    def plan_arrivals(self) -> None:
        """Count loads in arrivals per second."""
        self._planned = planned_traffic(self._base)
        self._unit = rate_unit(self._planned)

    def overrides_at(self, load: float) -> list[tuple[str, Any]]:
        """Return the overrides of a step that set the load: another rate, without its shape."""
        overrides: list[tuple[str, Any]] = [("arrival.rate_per_s", load)]
        if not self._is_trace:
            overrides.append(("arrival.shape", None))
        return overrides

    def name_of(self, load: float) -> str:
        """Name the load, for readers."""
        return f"{load:.4g} {self._unit.name}"

    def steps(self) -> Steps:
        """Run what the search chooses, in random order, while there is time; at most ROUNDS rounds.

        A round whose runs do not all fit is cut. The search ends with a round that leaves no usable run.
        """
        for _ in range(ROUNDS):
            series = self.series()
            self._binding = series.binding
            wanted: list[NextLoad] = []
            for load in self.search(series):
                wanted += [load] * load.times
            Random(self._scenario.seed + self._number).shuffle(wanted)
            lengths = self._lengths(series, wanted)
            fitting = list(map(self._step, wanted, lengths))
            if self._binding is not None:
                fitting = _numbered(fitting, series)
            self.is_spent = len(fitting) < len(wanted)
            count = len(self._kept)
            if fitting:
                yield from self.run(fitting)
            if len(self._kept) == count:  # nothing is left to try, or no run of it is valid
                self.unusable = ", ".join(step.name for step in fitting)
                return

    def loads_without_run(self) -> list[float]:
        """Return the loads that were tried and have no usable run, ascending."""
        measured = {result.step.given.load for result in self._kept}
        return sorted({result.step.given.load for result in self._discarded} - measured)

    @property
    def remarks(self) -> list[str]:
        """Say why the search ended early."""
        texts = []
        if self.is_spent:
            texts.append(SPENT.format(self._base.table.minutes))
        if self.unusable:
            texts.append(UNUSABLE.format(self.unusable))
        return texts

    def series(self) -> Series:
        """Judge the loads until now. A known limit narrows the interval of the rows where it agrees with them."""
        runs = self.runs
        bounds: list[Bound] = []
        if len(self._planned.gaps):
            bounds = limits.bounds(runs, self._planned, self._refused, self._precision)
        hides = partial(
            limits.hides,
            known_bounds=bounds,
            requests_per_arrival=self._planned.requests_per_arrival,
        )
        loads = judge(runs, self._refused, hides, borrows=self.borrows)
        lowest, highest = bracket(loads)
        rows = Series(
            loads=loads,
            bounds=bounds,
            low=None if lowest is None else lowest.least,
            high=None if highest is None else highest.most,
        )
        bound = limits.tightest_known(bounds)
        if bound is None:
            return rows
        return _narrowed(rows, bound, lowest, highest)

    @property
    def is_search(self) -> bool:
        """Return whether the target decides which loads are run."""
        return True

    @property
    def shorter(self) -> Sequence[str]:
        """Return the minutes, and the rest where there may be one."""
        if not self._rest_s:
            return super().shorter
        key = f"experiment.{self._base.table.kind}.rest_s"
        rest = (
            f"once a limit was met, each run waits up to {figures(self._rest_s)} s: --set {key}=N"
        )
        return [*super().shorter, rest]

    def left_s(self) -> float:
        """Return the seconds that are left."""
        return self._all_s - self.spent_s

    def rest(self) -> float:
        """Return the seconds of rest before a run: until a known limit is full again, as far as the settings allow."""
        if not is_limited(self.runs):
            return 0.0
        limit = None if self._binding is None else self._binding.limit
        if limit is None or not limit.rate.low:
            return self._rest_s
        return min(self._rest_s, limit.burst.high / limit.rate.low)

    def _stay_s(self) -> float:
        return min((run.stay_s for run in self.runs if not run.growing and run.stay_s), default=0.0)

    def _lengths(self, series: Series, wanted: Sequence[NextLoad]) -> list[float]:
        """Return the seconds of the runs of a round, in the order of `wanted`; fewer than wanted where the time is short.

        Short while the load goes up or down, longer where a known limit is confirmed, and between the ends as long as the
        time that is left allows. A last run takes what is left, unless the user set the length.
        """
        if not wanted:
            return []
        beside_s = RUN_S + self.rest()  # of each run, beside its load
        left_s = self.left_s()
        slowest = min(load.load for load in wanted)
        tried = [load.load for load in series.loads]
        is_outside = not tried or slowest > max(tried) or slowest < min(tried)
        is_confirming = bool(tried) and self._binding is not None
        length_s = None
        if self._wanted_s is not None:
            length_s = self.with_warm_up(self._wanted_s)
        if length_s is None and is_confirming:
            # So many calls that refusals at the allowed share would show in the runs together.
            fewest = max(FEWEST, math.ceil(SHOWS / self._refused / len(wanted)))
            usual_s = min(LONGEST_S, max(SHORTEST_S, self._all_s / REFINES))
            length_s = self._long_enough(slowest, fewest, usual_s)
        elif length_s is None and is_outside:
            usual_s = min(LONGEST_SEARCH_S, max(SHORTEST_S, self._all_s / SEARCHES))
            length_s = self._long_enough(slowest, FEWEST, usual_s)
        elif length_s is None:
            has_sessions = self._planned.requests_per_arrival > 1
            fewest = FEWEST_CONVERSATIONS if has_sessions else FEWEST
            usual_s = min(LONGEST_S, max(SHORTEST_S, self._all_s / REFINES))
            length_s = self._long_enough(slowest, fewest, usual_s)
            fitting = max(1, int(left_s // (length_s + beside_s)), self._points - len(self.runs))
            longest_s = min(LONGER * length_s, max(length_s, self._enough_s(slowest)))
            length_s = max(SHORTEST_S, min(left_s / fitting - beside_s, longest_s))
        count = int((left_s + 0.01) // (length_s + beside_s))
        if not count and left_s >= SHORTEST_S + beside_s and self._wanted_s is None:
            return [left_s - beside_s]
        return [length_s] * min(count, len(wanted))

    def _long_enough(self, load: float, arrivals: int, length_s: float) -> float:
        """Lengthen a run where arrivals are few or slow, shorten it where they are many."""
        needed_s = max(FILLS * self._stay_s(), self.seconds_of(arrivals, load))
        usual_s = max(SHORTEST_S, min(length_s, self._enough_s(load)))
        return min(max(usual_s, needed_s), LONGER * length_s)

    def _enough_s(self, load: float) -> float:
        """Return the seconds after which more arrivals change no answer."""
        return self.seconds_of(ENOUGH, load) or math.inf

    def seconds_of(self, arrivals: int, load: float) -> float:
        """Return the seconds in which so many arrive."""
        return arrivals / load

    def with_warm_up(self, measured_s: float) -> float:
        """Return the seconds of a run that measures so many."""
        return measured_s + self._warm_up_s(measured_s)

    def series_s(self, measured_s: float, loads: int) -> float:
        """Return the seconds of a later series of as many loads, with what each run takes beside it."""
        first_s = measured_s + self._first_warm_up_s(measured_s)
        return first_s + (loads - 1) * self.with_warm_up(measured_s) + loads * RUN_S

    def _warm_up_s(self, length_s: float) -> float:
        """Return a warm-up of half of `length_s` at most: answers and queues are as in the long run after it."""
        return max(self._first_warm_up_s(length_s), min(length_s / 2, 2 * self._stay_s()))

    def _first_warm_up_s(self, length_s: float) -> float:
        """Return the warm-up where nothing is known of the answers."""
        return max(WARMUP * length_s, min(self._fills_s, MOST_WARMUP * length_s))

    def _step(self, attempt: NextLoad, length_s: float) -> Step:
        load = attempt.load
        warmup_s = self._warm_up_s(length_s)
        if self._wanted_s is not None:
            warmup_s = length_s - self._wanted_s
        overrides = self.overrides_at(load)
        overrides += of_queue(self._scenario.limits, self.waiting(load, length_s), warmup_s)
        rest_s = 0.0
        if self._kept:
            rest_s = self.rest()
        return Step(
            name=self.name_of(load),
            overrides=tuple(overrides),
            duration_s=length_s,
            seed=self.seed(),
            rest_s=rest_s,
            given=attempt,
            rests_until="the limit has refilled",
        )

    def waiting(self, load: float, length_s: float) -> float:
        """Return the requests that may all come to wait in a run."""
        return load * length_s * self._planned.requests_per_arrival


def _numbered(steps: Sequence[Step], series: Series) -> list[Step]:
    """Name the steps that confirm a load by their number: `confirms 4.58 requests/s (2 of 3)`."""
    numbers = Counter[float]()  # runs until now, by load
    for judged in series.loads:
        numbers[judged.load] = len(judged.runs)
    totals = numbers + Counter(step.given.load for step in steps)
    numbered = []
    for step in steps:
        load = step.given.load
        numbers[load] += 1
        name = step.name
        if totals[load] > 1:
            name = f"confirms {step.name} ({numbers[load]} of {totals[load]})"
        numbered.append(replace(step, name=name))
    return numbered


def _narrowed(
    rows: Series, bound: Bound, lowest: JudgedLoad | None, highest: JudgedLoad | None
) -> Series:
    """Narrow the interval of the rows by a known limit, unless they contradict it.

    The limit says nothing of the objectives: it raises the low end only where they were met at that load.
    """
    low = rows.low
    # An objective would show a backlog.
    if lowest is not None and bound.limit is None and not lowest.objectives:
        low = max(0.0, lowest.least - lowest.unseen_per_s)
    if (low or 0.0) > bound.per_s.high or limits.fails_below(bound, highest):
        return replace(rows, contradicted=bound)
    high = min(math.inf if rows.high is None else rows.high, bound.per_s.high)
    is_met = any(load.met == PASS and load.arrived >= bound.per_s.low for load in rows.loads)
    if is_met:
        low = max(low or 0.0, bound.per_s.low)
    if low is not None:
        low = min(low, high)
    is_binding = is_met and low is not None and low <= bound.per_s.value <= high
    return replace(rows, low=low, high=high, binding=bound if is_binding else None)


def of_queue(settings: Limits, requests: float, warmup_s: float) -> list[tuple[str, Any]]:
    """Return the overrides of a step whose `requests` may all come to wait: what is left of them at its end is closed soon."""
    overrides = [*warm_up(warmup_s), ("limits.drain_s", min(DRAIN_S, settings.drain_s))]
    if "in_flight_per_worker" not in settings.model_fields_set:
        needed = min(MOST_IN_FLIGHT, math.ceil(requests))
        if needed > settings.in_flight_per_worker:
            overrides.append(("limits.in_flight_per_worker", needed))
    return overrides


def planned_traffic(base: Base) -> Planned:
    """Return what today's traffic plans: gaps between many arrivals, requests per arrival and prompts per request.

    Its rate is today's, without changes over time. Prompts are the mean over the tables, by weight.
    """
    schedule = _schedule(base)
    gaps_s = (schedule.at_ns[1:] - schedule.at_ns[:-1]) / 1e9
    tables = base.scenario.traffic.values()
    weights = []
    weighted_prompts = []
    for table in tables:
        weights.append(table.weight)
        weighted_prompts.append(table.weight * pattern_of(table).demand(1, 1, 1).prompts)
    weight = sum(weights)
    requests_per_arrival = 1.0
    if len(schedule):
        requests_per_arrival = schedule.requests / len(schedule)
    prompts = 1.0
    if weight:
        prompts = sum(weighted_prompts) / weight
    return Planned(
        gaps_s,
        requests_per_arrival,
        name=_arrivals(tables),
        prompts=prompts,
    )


def _arrivals(tables: Iterable[TrafficSettings]) -> str:
    """Name what arrives."""
    names = set()
    for table in tables:
        if table.session.turns_mean > 1:
            names.add("conversations")
        else:
            names.add(ARRIVALS.get(table.pattern, "requests"))
    if len(names) != 1:
        return "arrivals"
    return names.pop()


def _schedule(base: Base) -> Schedule:
    scenario = base.scenario
    arrival = scenario.arrival
    if arrival.process == TRACE:
        return plan(arrival, scenario.traffic, 86_400.0, scenario.seed, folder=base.path.parent)
    flat = arrival.model_copy(update={"shape": type(arrival.shape)()})
    return plan(
        flat,
        scenario.traffic,
        GAPS / float(arrival.rate or 1.0),
        scenario.seed,
        folder=base.path.parent,
    )


def rate_unit(planned: Planned) -> Unit:
    """Name the arrivals of a rate."""
    return Unit(f"{planned.name}/s", planned.requests_per_arrival, planned.prompts)
