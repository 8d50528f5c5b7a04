"""The steps of headroom: up from today's rate until something refuses, then both sides of the sustained rate; or, with
no_429, one run at today's rate.

A step has today's traffic at another rate. A step that is to confirm a failure begins with twice its rate, long enough to
empty the bucket, so that a full bucket does not hide the failure; that burst is its warm-up, which does not count.

Where no header named a limit and no 429 came, there is nothing to wait for: steps follow each other without rests,
the rate doubles, a step lasts long enough for a backlog to show, and what is left in flight at its end is closed soon.
The steps of either search fit into `minutes`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from random import Random
from typing import Any

from tailgauge.experiments.answer import Answer
from tailgauge.experiments.course import RUN_S, Base, Planner, RunReading, Step, Steps, warm_up
from tailgauge.experiments.headroom import measure, report, search
from tailgauge.experiments.headroom.judge import JudgedRate, RateResult, is_limited, judged
from tailgauge.experiments.headroom.limits import Bound, bounds, by_capacity, ceiling, lowest
from tailgauge.experiments.headroom.search import NextRate, SearchPlan
from tailgauge.protocols.protocol import SIMULATED
from tailgauge.scenario.figures import LATENCY
from tailgauge.scenario.model import Limits
from tailgauge.schedule.schedule import arrival_times, plan
from tailgauge.schedule.settings import TRACE, Arrival
from tailgauge_analysis import (
    CHECKS,
    FAIL,
)

STEPS, STEPS_FREE = 14, 7  # that `minutes` should have time for, and without limits
BUSY_S = 6.0  # that a run may take beside its load more than planned
SHORTEST_S, LONGEST_S = 10.0, 120.0  # of a step
ROUNDS = 24
BURST = 2.0  # times the rate, at the beginning of a step that is to confirm a failure
MARGIN = 1.1  # times what the bucket holds
QUEUE_S = 5.0  # of the burst if no bucket is known
MOST_WARMUP_S = 90.0
SAME_TRACE = (
    "a trace has fixed arrivals: every rate was run once, without a burst that empties the bucket first"
)
DOUBLE = 2.0  # growth where nothing refuses
FILLS = 4.0  # times the length of an answer: a step in which a backlog is seen to grow
FEWEST, SHORTEST_FREE_S = 60, 12.0  # requests and seconds of such a step
DRAIN_S = 5.0
NARROW_FREE = 1.4  # gap between a pass and a fail that is not halved: few requests tell no more
MOST_IN_FLIGHT = 8_000  # of a worker, where the scenario does not say
UNUSABLE = "the search ended at {}, where no run was valid: their reports name the causes"
SPENT = "experiment.minutes: {:g} minutes left no time for more runs"
GAPS = 40_000  # arrivals for the long-run estimate


class HeadroomPlanner(Planner):
    """The course, and its results. `overrides` go over those of every step."""

    checks = CHECKS  # a rate at which nothing is answered has its result

    def __init__(self, base: Base, overrides: tuple[tuple[str, Any], ...] = ()) -> None:
        super().__init__(base)
        self._overrides = overrides
        self._today, self._settings = base.today(), base.table.headroom
        if self._settings.good and not any(one.figure.unit == LATENCY for one in base.scenario.slo.values()):
            raise base.refused("experiment.headroom.good", "expected an objective on a latency in [slo]")
        self._trace = base.scenario.arrival.process == TRACE
        # The simulated endpoint resets with every run, and needs no rest.
        self._rest_s = 0.0 if base.scenario.target.url == SIMULATED else self._settings.rest_s
        minutes, steps = base.table.minutes, 1 if self._settings.no_429 else STEPS
        self._left_s, self._spent, self._unusable = minutes * 60, False, ""
        self._step_s = self._settings.step_s or _step_s(minutes, steps, self._rest_s)
        self._free_s = self._settings.step_s or _step_s(minutes, STEPS_FREE, 0.0)
        narrow = (1 + self._settings.precision) ** (2 * search.SLACK)
        self._plan = SearchPlan(
            self._today, self._settings.most * self._today, self._settings.growth, self._settings.precision,
            1 if self._trace else self._settings.confirm, self._step_s + RUN_S + self._rest_s, narrow,
        )  # fmt: skip
        self._gaps = planned_gaps(base)

    def steps(self) -> Steps:
        """One run without a 429, or the search."""
        if self._settings.no_429:
            yield from self.run([self._step(NextRate(self._today, 1, above=False), [])])
            return
        for _ in range(ROUNDS):
            tried, found = self._judged()
            plan, free = self._plan, bool(tried) and not is_limited(self.results)
            if free:
                confirm = 1 if tried[0].objectives else plan.confirm  # rates beside it say as much
                plan = replace(plan, growth=DOUBLE, narrow=max(plan.narrow, NARROW_FREE), confirm=confirm)
            known, top = lowest(found), ceiling(found)
            attempts = search.attempts(tried, plan, known, top, by_capacity=by_capacity(found))
            left = [one for one in attempts for _ in range(1 if free else one.times)]
            Random(self._scenario.seed + self._number).shuffle(left)
            make = partial(self._free_step, tried=tried) if free else partial(self._step, found=found)
            fitting, before = self._fitting([make(one) for one in left]), len(self._kept)
            if fitting:
                yield from self.run(fitting)
            if len(self._kept) == before:  # nothing is left to try, or no run of it is valid
                self._unusable = ", ".join(step.name for step in fitting)
                return

    def _fitting(self, steps: Sequence[Step]) -> list[Step]:
        """Those that the minutes have time for."""
        out = []
        for step in steps:
            self._spent |= step.takes_s > self._left_s
            if step.takes_s <= self._left_s:
                self._left_s -= step.takes_s
                out.append(step)
        return out

    def measure(self, step: Step, reading: RunReading) -> RateResult:
        """The result of a run."""
        one: NextRate = step.given
        emptied, good = one.above and not self._trace, self._settings.good
        return measure.rate_result(one.rate_per_s, reading, emptied=emptied, today=not self._kept, good=good)

    def _step(self, attempt: NextRate, found: Sequence[Bound]) -> Step:
        rate, length_s, warmup_s = attempt.rate_per_s, self._step_s, self._step_s / 10
        overrides = self._at(rate)
        above = attempt.above and not self._trace
        if above:
            warmup_s = _emptying_s(found)
            at = warmup_s / (warmup_s + length_s)
            points = [[0.0, BURST], [at, BURST], [at, 1.0], [1.0, 1.0]]
            overrides += [("arrival.rate_per_s", rate * (1 + (BURST - 1) * at)),
                          ("arrival.shape", {"kind": "piecewise", "points": points})]  # fmt: skip
        overrides += warm_up(warmup_s)
        name = f"{rate:.4g} requests/s" + (", after a burst that empties the bucket" if above else "")
        rest_s = self._rest_s if self._kept else 0.0
        return Step(name, tuple(overrides), warmup_s + length_s, self.seed(), rest_s, attempt)

    def _free_step(self, attempt: NextRate, tried: Sequence[JudgedRate]) -> Step:
        """A step at a target that does not refuse: half as long until the first failure, because twice the rate is far off."""
        rate = attempt.rate_per_s
        steady = [run.answer_s for one in tried for run in one.runs if run.answer_s and not run.growing]
        answer_s, length_s = min(steady, default=0.0), self._free_s
        if self._settings.step_s is None:
            doubles = all(one.leans != FAIL for one in tried) and rate < self._plan.most
            shortest_s = max(SHORTEST_FREE_S, length_s / DOUBLE) if doubles else length_s
            enough_s = min(FEWEST / rate, length_s) if doubles else FEWEST / rate
            length_s = max(shortest_s, enough_s, FILLS * answer_s)
        warmup_s = max(length_s / 10, min(length_s / 2, 2 * answer_s))
        length_s = min(length_s, max(SHORTEST_FREE_S, self._left_s - RUN_S - warmup_s))
        overrides = self._at(rate) + of_queue(self._scenario.limits, rate * (warmup_s + length_s), warmup_s)
        name, given = f"{rate:.4g} requests/s", replace(attempt, above=False)
        return Step(name, tuple(overrides), warmup_s + length_s, self.seed(), given=given)

    def _at(self, rate: float) -> list[tuple[str, Any]]:
        """Today's traffic at another rate, without its shape."""
        if rate == self._today:
            return list(self._overrides)
        flat = [] if self._trace else [("arrival.shape", None)]
        return [*self._overrides, ("arrival.rate_per_s", rate), *flat]

    def _judged(self) -> tuple[list[JudgedRate], list[Bound]]:
        runs = self.results
        found = bounds(runs, self._gaps, self._settings.refused)
        return judged(runs, self._settings, lowest(found), by_capacity=by_capacity(found)), found

    def answer(self) -> Answer:
        """What was found."""
        remarks = [SAME_TRACE] if self._trace else []
        remarks += [SPENT.format(self._base.table.minutes)] if self._spent else []
        remarks += [UNUSABLE.format(self._unusable)] if self._unusable else []
        return report.answer(self._settings, self._today, self.results, *self._judged(), remarks)


def of_queue(limits: Limits, requests: float, warmup_s: float) -> list[tuple[str, Any]]:
    """Overrides of a step whose `requests` may all come to wait: what is left of them at its end is closed soon."""
    overrides = [*warm_up(warmup_s), ("limits.drain_s", min(DRAIN_S, limits.drain_s))]
    if "in_flight_per_worker" not in limits.model_fields_set:
        most = min(MOST_IN_FLIGHT, max(limits.in_flight_per_worker, math.ceil(requests)))
        overrides.append(("limits.in_flight_per_worker", most))
    return overrides


def _step_s(minutes: float, steps: int, rest_s: float) -> float:
    fits = minutes * 60 / steps - RUN_S - BUSY_S - rest_s
    return min(LONGEST_S, max(SHORTEST_S, fits))


def _emptying_s(found: Sequence[Bound]) -> float:
    """Seconds in which twice the rate empties the bucket that decides."""
    of = [one.limit for one in found if one.decides and one.limit is not None]
    if not of:
        return QUEUE_S
    return min(MOST_WARMUP_S, max(MARGIN * one.burst.high / one.rate.value for one in of) + 1.0)


def planned_gaps(base: Base) -> Any:
    """Gaps between many planned arrivals, without later turns of sessions."""
    scenario = base.scenario
    arrival: Arrival = scenario.arrival
    rate = float(arrival.rate or 0.0)
    if arrival.process == TRACE:
        at_s = plan(arrival, scenario.traffic, 86_400.0, scenario.seed, folder=base.path.parent).at_ns / 1e9
    else:
        flat = arrival.model_copy(update={"shape": type(arrival.shape)()})
        at_s = arrival_times(flat, GAPS / rate, scenario.seed)
    return at_s[1:] - at_s[:-1]
