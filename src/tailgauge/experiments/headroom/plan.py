"""The steps of headroom: up from today's rate until something refuses, then both sides of the sustained rate; or, with
no_429, one run at today's rate.

A step has today's traffic at another rate. A step that is to confirm a failure begins with twice its rate, long enough to
empty the bucket, so that a full bucket does not hide the failure; that burst is its warm-up, which does not count.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from random import Random
from typing import TYPE_CHECKING, Any

from tailgauge.errors import UsageError
from tailgauge.experiments.answer import Answer
from tailgauge.experiments.course import RUN_S, SEED_STEP, Base, Course, SpentError, Step, StepResult, Steps
from tailgauge.experiments.headroom import search
from tailgauge.experiments.headroom.judge import JudgedRate, RateResult, judged
from tailgauge.experiments.headroom.limits import Bound, bounds, by_capacity, ceiling, lowest
from tailgauge.experiments.headroom.search import NextRate, SearchPlan
from tailgauge.protocols.protocol import SIMULATED
from tailgauge.schedule.schedule import arrival_times, plan
from tailgauge.schedule.settings import CLOSED, TRACE, Arrival

if TYPE_CHECKING:
    from tailgauge.experiments.reading import RunReading

STEPS = 14  # that `minutes` should have time for
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
GAPS = 40_000  # arrivals for the long-run estimate


class HeadroomPlanner:
    """The course, and its results."""

    def __init__(self, base: Base) -> None:
        _check(base)
        self._scenario, self._settings = base.scenario, base.table.headroom
        self._trace = base.scenario.arrival.process == TRACE
        self._today = float(base.scenario.arrival.rate or 0.0)
        # The simulated endpoint resets with every run, and needs no rest.
        self._rest_s = 0.0 if base.scenario.target.url == SIMULATED else self._settings.rest_s
        steps = 1 if self._settings.no_429 else STEPS
        self._step_s = self._settings.step_s or _step_s(base.table.minutes, steps, self._rest_s)
        self._plan = SearchPlan(
            self._today, self._settings.most * self._today, self._settings.growth, self._settings.precision,
            1 if self._trace else self._settings.confirm, self._step_s + RUN_S + self._rest_s,
        )  # fmt: skip
        self._gaps = _gaps(base)
        self._runs: list[RateResult] = []
        self._number = 0

    def course(self) -> Course:
        """Search, and answer."""
        remarks = [SAME_TRACE] if self._trace else []
        try:
            if self._settings.no_429:
                yield from self._run([NextRate(self._today, 1, above=False)], [])
            else:
                yield from self._search()
        except SpentError as spent:
            remarks.append(f"{spent}: the interval is based on the runs until then")
        return self._answer(remarks)

    def measure(self, step: Step, reading: RunReading) -> RateResult:
        """The result of a run."""
        from tailgauge.experiments.headroom.measure import rate_result

        overrides = dict(step.overrides)
        emptied = isinstance(overrides.get("arrival.shape"), dict)
        rate = self._today if emptied else overrides.get("arrival.rate_per_s", self._today)
        return rate_result(float(rate), reading, emptied=emptied, today=not self._runs)

    def _search(self) -> Steps:
        for _ in range(ROUNDS):
            tried, found = self._judged()
            attempts = search.attempts(tried, self._plan, lowest(found), ceiling(found))
            before = len(self._runs)
            if attempts:
                yield from self._run(attempts, found)
            if len(self._runs) == before:  # nothing is left to try, or no run of it is valid
                return

    def _run(self, attempts: Sequence[NextRate], found: Sequence[Bound]) -> Steps:
        """Run them in random order; an INVALID run is repeated once."""
        left = [one for one in attempts for _ in range(one.times)]
        Random(self._scenario.seed + self._number).shuffle(left)
        for _ in range(2):
            if left:
                steps = [self._step(one, found) for one in left]
                by_seed = {step.seed: one for step, one in zip(steps, left, strict=True)}
                results = yield steps
                left = [
                    by_seed[one.step.seed] for one in results if not self._keep(one, by_seed[one.step.seed])
                ]

    def _keep(self, result: StepResult, attempt: NextRate) -> bool:
        if result.valid:
            self._runs.append(replace(result.measured, rate_per_s=attempt.rate_per_s))
        return result.valid

    def _step(self, attempt: NextRate, found: Sequence[Bound]) -> Step:
        self._number += 1
        rate, warmup_s = attempt.rate_per_s, self._step_s / 10
        overrides: list[tuple[str, Any]] = []
        if rate != self._today:
            overrides += [("arrival.rate_per_s", rate)]
        above = attempt.above and not self._trace
        if above:
            warmup_s = _emptying_s(found)
            at = warmup_s / (warmup_s + self._step_s)
            points = [[0.0, BURST], [at, BURST], [at, 1.0], [1.0, 1.0]]
            overrides = [("arrival.rate_per_s", rate * (1 + (BURST - 1) * at)),
                         ("arrival.shape", {"kind": "piecewise", "points": points})]  # fmt: skip
        elif overrides and not self._trace:
            overrides += [("arrival.shape", None)]
        overrides += [("stages.warmup_s", warmup_s), ("stages.cooldown_s", 0.0)]
        name = f"{rate:.4g} requests/s" + (", after a burst that empties the bucket" if above else "")
        seed = self._scenario.seed + SEED_STEP * self._number
        rest_s = self._rest_s if self._number > 1 else 0.0
        return Step(name, tuple(overrides), warmup_s + self._step_s, seed, rest_s)

    def _judged(self) -> tuple[list[JudgedRate], list[Bound]]:
        found = bounds(self._runs, self._gaps, self._settings.refused)
        return judged(self._runs, self._settings, lowest(found), by_capacity=by_capacity(found)), found

    def _answer(self, remarks: list[str]) -> Answer:
        from tailgauge.experiments.headroom import report

        return report.answer(self._settings, self._today, self._runs, *self._judged(), remarks)


def _check(base: Base) -> None:
    """Raises UsageError if the scenario has no rate that could grow."""
    arrival = base.scenario.arrival
    if arrival.process == CLOSED:
        raise UsageError(
            f"{base.path}: arrival.process: headroom is in requests/s, which a closed loop does not set: "
            "expected an open process, as poisson"
        )
    if arrival.rate is None:
        raise UsageError(
            f"{base.path}: arrival.rate_per_s: expected today's rate in requests/s; with process = 'trace' "
            "it scales the trace's time"
        )


def _step_s(minutes: float, steps: int, rest_s: float) -> float:
    fits = minutes * 60 / steps - RUN_S - BUSY_S - rest_s
    return min(LONGEST_S, max(SHORTEST_S, fits))


def _emptying_s(found: Sequence[Bound]) -> float:
    """Seconds in which twice the rate empties the bucket that decides."""
    of = [one.limit for one in found if one.decides and one.limit is not None]
    if not of:
        return QUEUE_S
    return min(MOST_WARMUP_S, max(MARGIN * one.burst.high / one.rate.value for one in of) + 1.0)


def _gaps(base: Base) -> Any:
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
