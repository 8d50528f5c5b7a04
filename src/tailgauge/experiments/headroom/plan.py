"""Headroom: up from today's rate until something refuses, then both sides of what is sustained; or one quiet run.

Rule: what to try next and what it means is decided in tailgauge_analysis.headroom; here are the steps. A level has the
traffic as it is at another rate. One that is to confirm a failure begins with twice its rate, for as long as a limit
takes to run out, so that a full bucket does not hide it; that start is its warm-up, which does not count.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from dataclasses import replace
from random import Random
from typing import Any

from tailgauge.errors import UsageError
from tailgauge.experiments.answer import PASS, Answer
from tailgauge.experiments.course import Course, Ran, SpentError, Step
from tailgauge.experiments.headroom import report, search
from tailgauge.experiments.headroom.estimate import Bound, bounds, by_capacity, ceiling, lowest
from tailgauge.experiments.headroom.facts import About
from tailgauge.experiments.headroom.judge import Asked, Judged, judged
from tailgauge.experiments.headroom.rate_result import Level, level
from tailgauge.experiments.headroom.search import Plan, Wanted
from tailgauge.experiments.ledger import RUN_S
from tailgauge.experiments.reading import Reading
from tailgauge.experiments.steps import Base
from tailgauge.protocols.settings import SIMULATED
from tailgauge.scenario.experiment import Headroom as Table
from tailgauge.schedule.plan import arrival_times, plan
from tailgauge.schedule.settings import CLOSED, TRACE, Arrival

LEVELS = 14  # that `minutes` should have room for
BUSY_S = 6.0  # that a run may take beside its load more than planned
SHORTEST_S, LONGEST_S = 10.0, 120.0  # of a level
ROUNDS = 24
HARD = 2.0  # times the rate, at the beginning of a level that is to confirm a failure
RUN_OUT = 1.1  # times what the bucket holds
QUEUE_S = 5.0  # of it where no bucket is known
MOST_WARMUP_S = 90.0
SAME_TRACE = "A trace has the same arrivals each time, so every rate was run once; and a full bucket is not used up first."
GAPS = 40_000  # arrivals by which the long run is told


def make(base: Base) -> Headroom:
    """The experiment of a scenario. Raises UsageError where it has no rate that could grow."""
    arrival = base.scenario.arrival
    if arrival.process == CLOSED:
        raise UsageError(
            f"{base.path}: arrival.process: headroom is told in requests a second, which a closed loop does not set: "
            "expected an open process, as poisson"
        )
    if arrival.rate is None:
        raise UsageError(
            f"{base.path}: arrival.rate_per_s: expected today's rate in requests a second; with process = 'trace' "
            "it scales the trace's time"
        )
    return Headroom(base)


class Headroom:
    """The course, and what was seen on it."""

    def __init__(self, base: Base) -> None:
        self._base, self._scenario = base, base.scenario
        self._table: Table = base.asked.headroom
        self._today = float(base.scenario.arrival.rate or 0.0)
        # The simulated endpoint begins anew with every run, and needs no rest.
        self._rest_s = 0.0 if base.scenario.target.url == SIMULATED else self._table.rest_s
        levels = 1 if self._table.quiet else LEVELS
        self._level_s = self._table.level_s or _level_s(base.asked.minutes, levels, self._rest_s)
        self._asked = Asked(self._table.refused, self._table.good)
        self._plan = Plan(
            self._today, self._table.most * self._today, self._table.growth, self._table.precision,
            1 if base.scenario.arrival.process == TRACE else self._table.confirm, self._level_s + RUN_S + self._rest_s,
        )  # fmt: skip
        self._gaps = _gaps(base)
        self._levels: list[Level] = []
        self._number = 0

    def course(self) -> Course:
        """Search, and answer."""
        remarks = [SAME_TRACE] if self._scenario.arrival.process == TRACE else []
        try:
            yield from self._quiet() if self._table.quiet else self._search()
        except SpentError as spent:
            remarks.append(f"{spent}: the interval is what was known by then.")
        return self._answer(remarks)

    def look(self, step: Step, reading: Reading) -> Level:
        """The level of a run."""
        told = dict(step.overrides)
        emptied = isinstance(told.get("arrival.shape"), dict)
        rate = self._today if emptied or "arrival.rate_per_s" not in told else told["arrival.rate_per_s"]
        return level(step.name, float(rate), reading, emptied=emptied, today=not self._levels)

    def _search(self) -> Generator[Sequence[Step], Sequence[Ran], None]:
        for _ in range(ROUNDS):
            tried, found = self._judged()
            asked = search.wanted(tried, self._plan, lowest(found), ceiling(found))
            before = len(self._levels)
            if asked:
                yield from self._run(asked, found)
            if len(self._levels) == before:  # nothing is left to try, or no run of it counts
                return

    def _quiet(self) -> Generator[Sequence[Step], Sequence[Ran], None]:
        yield from self._run([Wanted(self._today, 1, above=False)], [])

    def _run(
        self, asked: Sequence[Wanted], found: Sequence[Bound]
    ) -> Generator[Sequence[Step], Sequence[Ran], None]:
        """Run the levels, in random order; one that is INVALID is run once more."""
        rates = [one for one in asked for _ in range(one.times)]
        Random(self._scenario.seed + self._number).shuffle(rates)
        again: list[Wanted] = []
        steps = [self._step(one, found) for one in rates]
        of = {step.seed: one for step, one in zip(steps, rates, strict=True)}
        for ran in (yield steps):
            again += [] if self._keep(ran, of[ran.step.seed]) else [of[ran.step.seed]]
        if again:
            steps = [self._step(one, found) for one in again]
            of = {step.seed: one for step, one in zip(steps, again, strict=True)}
            for ran in (yield steps):
                self._keep(ran, of[ran.step.seed])

    def _keep(self, ran: Ran, asked: Wanted) -> bool:
        if ran.counts:
            self._levels.append(replace(ran.seen, rate_per_s=asked.rate_per_s, name=ran.step.name))
        return ran.counts

    def _step(self, asked: Wanted, found: Sequence[Bound]) -> Step:
        self._number += 1
        rate, warmup_s = asked.rate_per_s, self._level_s / 10
        told: list[tuple[str, Any]] = []
        if rate != self._today:
            told += [("arrival.rate_per_s", rate)]
        above = asked.above and self._scenario.arrival.process != TRACE
        if above:
            warmup_s = _emptying_s(found)
            whole = warmup_s + self._level_s
            at = warmup_s / whole
            points = [[0.0, HARD], [at, HARD], [at, 1.0], [1.0, 1.0]]
            told = [("arrival.rate_per_s", rate * (1 + (HARD - 1) * at)),
                    ("arrival.shape", {"kind": "piecewise", "points": points})]  # fmt: skip
        elif told and self._scenario.arrival.process != TRACE:
            told += [("arrival.shape", None)]
        told += [("stages.warmup_s", warmup_s), ("stages.cooldown_s", 0.0)]
        name = f"{rate:.4g} requests/s" + (", its limit used up first" if above else "")
        seed = self._scenario.seed + 7919 * self._number
        rest_s = self._rest_s if self._number > 1 else 0.0
        return Step(name, tuple(told), warmup_s + self._level_s, seed, rest_s)

    def _judged(self) -> tuple[list[Judged], list[Bound]]:
        found = bounds(self._levels, self._gaps, self._table.refused)
        return judged(self._levels, self._asked, lowest(found), by_capacity=by_capacity(found)), found

    def _answer(self, remarks: list[str]) -> Answer:
        tried, found = self._judged()
        highest = max((one.rate_per_s for one in tried), default=self._today)
        table = self._table
        about = About(self._today, table.need, table.refused, table.good, highest, tuple(remarks))
        if self._table.quiet:
            return report.quiet(about, self._levels, found, passes=all(one.alone == PASS for one in tried))
        return report.answer(about, self._levels, tried, found)


def _level_s(minutes: float, levels: int, rest_s: float) -> float:
    fits = minutes * 60 / levels - RUN_S - BUSY_S - rest_s
    return min(LONGEST_S, max(SHORTEST_S, fits))


def _emptying_s(found: Sequence[Bound]) -> float:
    """Seconds in which twice the rate uses up the bucket that decides."""
    of = [one.limit for one in found if one.decides and one.limit is not None]
    if not of:
        return QUEUE_S
    return min(MOST_WARMUP_S, max(RUN_OUT * one.burst.high / one.rate.value for one in of) + 1.0)


def _gaps(base: Base) -> Any:
    """Gaps between many arrivals as they are planned, sessions' later turns left out."""
    scenario = base.scenario
    arrival: Arrival = scenario.arrival
    rate = float(arrival.rate or 0.0)
    if arrival.process == TRACE:
        at_s = plan(arrival, scenario.traffic, 86_400.0, scenario.seed, folder=base.path.parent).at_ns / 1e9
    else:
        flat = arrival.model_copy(update={"shape": type(arrival.shape)()})
        at_s = arrival_times(flat, GAPS / rate, scenario.seed)
    return at_s[1:] - at_s[:-1]
