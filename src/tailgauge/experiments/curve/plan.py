"""The steps of the curve: up from today's load until the target is full, then around the knee; or the loads that are given.

Loads are doubled from today's until the target is full, in short runs. What time is left goes to loads around the knee, a
few at a time and in random order, placed where the runs before say most about it. All prompts are cold, so the order leaves
no trace in a cache; after a limit was met, every run begins with a rest. The runs fit into `minutes`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from random import Random
from typing import Any

import numpy as np

from tailgauge.experiments.answer import Answer
from tailgauge.experiments.course import RUN_S, Base, Planner, RunReading, Step, Steps
from tailgauge.experiments.curve import measure, report
from tailgauge.experiments.curve.judge import Judge
from tailgauge.experiments.curve.measure import LoadResult
from tailgauge.experiments.headroom.judge import is_limited
from tailgauge.experiments.headroom.plan import of_queue, planned_gaps
from tailgauge.protocols.protocol import SIMULATED
from tailgauge.schedule.settings import CLOSED, TASKS
from tailgauge_analysis import (
    CHECKS,
    FAIL,
    RATE,
)

SHORTEST_S = 12.0  # of a run
# Runs that the minutes would have time for, if all were as long as those of a search, or at the knee.
SEARCHES, REFINES = 28, 12
LONGEST_SEARCH_S, LONGEST_S = 60.0, 120.0
LONGER = 3.0  # times as long, where requests are few or answers slow
FEWEST, FILLS = 60, 4.0  # requests of a run; times the length of an answer
WARMUP = 0.15  # of a run
FILLED = 3.0  # times what an empty queue takes to fill: a run that shows the long run
WARMUP_MOST = 0.3  # of a run
LEAST = 1 / 16  # of today's load
ROUNDS = (3, 3, 1)  # around the knee: one in so many of the runs for which there is time
SPOTS = (-0.4, 0.9)  # of a round, in logits from what is allowed


class CurvePlanner(Planner):
    """The course, and its results. What a step is given: its load."""

    checks = CHECKS  # a load at which nothing is answered has its result

    def __init__(self, base: Base) -> None:
        super().__init__(base)
        self._settings, arrival = base.table.curve, base.scenario.arrival
        self._open = self._settings.by == RATE
        if self._open and arrival.process == CLOSED:
            text = "a closed loop has no rate: expected by = 'concurrency', or an open process"
            raise base.refused("experiment.curve.by", text)
        if arrival.process == TASKS:
            text = "curve sets the load, which 'tasks' does not take: expected an open process or 'closed'"
            raise base.refused("arrival.process", text)
        users = arrival.closed.users if arrival.process == CLOSED else None
        self._today = base.today() if self._open else users
        if not self._open and any(load != round(load) for load in self._settings.loads):
            raise base.refused("experiment.curve.loads", "expected whole numbers of requests in flight")
        self._rest_s = 0.0 if base.scenario.target.url == SIMULATED else self._settings.rest_s
        self._all_s = base.table.minutes * 60
        count = len(set(self._settings.loads))
        if count * (SHORTEST_S + RUN_S) > self._all_s:
            least = math.ceil(count * (SHORTEST_S + RUN_S) / 60)
            text = f"{count} loads take {least} minutes or more: raise it, or give fewer loads"
            raise base.refused("experiment.minutes", text)
        gaps = planned_gaps(base) if self._open else np.empty(0)
        self._judge = Judge(self._settings, self._scenario.model_dump(mode="json"), self._today, gaps)

    def steps(self) -> Steps:
        """The given loads, or the search and the loads around the knee."""
        if self._settings.loads:
            yield from self._given()
            return
        yield from self._search()
        for part in ROUNDS:
            lengths = self._lengths()
            count = min(len(lengths), max(2, len(lengths) // part))
            loads = self._fresh(self._judge.spots(self.results, count, SPOTS))
            Random(self._scenario.seed + self._number).shuffle(loads)
            steps = [self._step(load, length) for load, length in zip(loads, lengths, strict=False)]
            if not steps or not self.results:
                return
            yield from self.run(steps)

    def _given(self) -> Steps:
        loads = sorted(set(self._settings.loads))
        Random(self._scenario.seed).shuffle(loads)
        for number, load in enumerate(loads):
            length_s = self._left_s() / (len(loads) - number) - RUN_S - self._rest()
            yield from self.run([self._step(load, max(SHORTEST_S, self._settings.step_s or length_s))])

    def _search(self) -> Steps:
        """Up until the target is full; down while today's load is too much."""
        length_s = min(LONGEST_SEARCH_S, max(SHORTEST_S, self._all_s / SEARCHES))
        start = load = self._today or 1.0
        down = False
        while LEAST * start <= load <= self._settings.most * start:
            of = self._settings.step_s or self._long_enough(load, length_s * (1.5 if load == start else 1.0))
            step, before = self._step(load, of), len(self._kept)
            if step.takes_s > self._left_s() or (not self._open and load < 1):
                return
            yield from self.run([step])
            if len(self._kept) == before:
                return
            runs = sorted(self.results, key=lambda one: one.load)
            down = down or self._judge.is_full(runs)
            if down and any(one.point.meets != FAIL for one in runs):
                return
            load = runs[0].load / 2 if down else runs[-1].load * 2
            load = load if self._open else math.floor(load)

    def _long_enough(self, load: float, length_s: float) -> float:
        """Longer where requests are few or slow."""
        needed_s = max(FILLS * self._answer_s(), FEWEST / load if self._open else 0.0)
        return min(max(length_s, needed_s), LONGER * length_s)

    def _answer_s(self) -> float:
        return min((one.rate.answer_s for one in self.results if not one.rate.growing), default=0.0)

    def _lengths(self) -> list[float]:
        """Seconds of the runs for which there is time."""
        beside_s, left_s, wanted = RUN_S + self._rest(), self._left_s(), self._settings.step_s
        if wanted is None:
            fills_s = self._judge.knee(self.results).fills_s
            usual = min(LONGEST_S, max(SHORTEST_S, self._all_s / REFINES))
            wanted = max(usual, min(FILLED * fills_s, left_s / 2 - beside_s))
        count = max(int(left_s // (wanted + beside_s)), min(3, self._settings.points - len(self.results)))
        count = min(count, int(left_s // (SHORTEST_S + beside_s)))
        return [self._settings.step_s or left_s / count - beside_s] * count if count > 0 else []

    def _fresh(self, loads: Sequence[float]) -> list[float]:
        """The same with four figures, or whole; each one that was not run."""
        taken = {one.load for one in self.results}
        for load in loads:
            if self._open:
                near = [float(f"{load * 1.01**i:.4g}") for i in range(20)]
            else:
                near = [max(1.0, round(load) + (i + 1) // 2 * (-1.0) ** i) for i in range(20)]
            if free := [one for one in near if one not in taken]:
                taken.add(free[0])
        return sorted(taken - {one.load for one in self.results})

    def _rest(self) -> float:
        """Seconds before a run."""
        return self._rest_s if is_limited([one.rate for one in self.results]) else 0.0

    def _left_s(self) -> float:
        return self._all_s - self.spent_s

    def _step(self, load: float, length_s: float) -> Step:
        answer_s, fills_s = self._answer_s(), self._judge.knee(self.results).fills_s
        fill_s = min(fills_s, WARMUP_MOST * length_s)
        warmup_s = max(WARMUP * length_s, min(length_s / 2, 2 * answer_s), fill_s)
        waiting = load * length_s if self._open else load
        overrides = self._at(load) + of_queue(self._scenario.limits, waiting, warmup_s)
        name = f"{load:.4g} requests/s" if self._open else f"{load:.0f} in flight"
        return Step(name, tuple(overrides), length_s, self.seed(), self._rest(), load)

    def _at(self, load: float) -> list[tuple[str, Any]]:
        if self._open:
            flat = [] if self._scenario.arrival.process == "trace" else [("arrival.shape", None)]
            return [("arrival.rate_per_s", load), *flat]
        return [("arrival", {"process": CLOSED, "closed": {"users": int(load), "think_s": 0.0}})]

    def measure(self, step: Step, reading: RunReading) -> LoadResult:
        """The point of a run."""
        return measure.load_result(step.given, reading, today=not self._kept, refused=self._settings.refused)

    def answer(self) -> Answer:
        """What was found."""
        return report.answer(self._judge, self.results, self._base)
