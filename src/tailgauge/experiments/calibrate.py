"""Calibrate: the largest load at the built-in endpoint at which the measurement is VALID, and what ends it there.

The verdict of a run judges its load. A run that is not VALID is repeated once, because another process may have
disturbed it; one VALID run is enough. The search is that of headroom without a known limit.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any

from tailgauge.experiments.answer import NONE, Answer, RunRow, answered, measured, tone_of
from tailgauge.experiments.course import Base, Planner, RunReading, Step, Steps
from tailgauge.experiments.loads.planner import DRAIN_S, MOST_IN_FLIGHT, of_queue
from tailgauge.experiments.loads.search import NextLoad, Search, TriedLoad, bracket
from tailgauge.master.run_json import machine
from tailgauge.protocols.protocol import SIMULATED
from tailgauge.rows import schema
from tailgauge.scenario.experiment import RUN_S
from tailgauge.scenario.model import Scenario
from tailgauge.thresholds import INVALID, VALID, WORST_FIRST
from tailgauge_analysis import (
    CHECKS,
    FAIL,
    PASS,
    Card,
    Column,
    Measurement,
    ObjectiveLine,
    Result,
    Table,
    Value,
    figures,
    plural,
)

ATTEMPTS = 2  # runs of a load, if the first is not VALID
GROWTH = 2.0  # of the rate, until a load is not VALID
NARROW = 1.25  # ratio of the lowest load that is not VALID to the highest that is: the search ends
# How far a search goes, in first loads.
LEAST = 1 / 64
MOST = 1000.0
LONGER = 1.25  # times the planned length of an answer: its times vary
FILLS = 3.0  # times the length of an answer: the shortest run
SPARE = 20  # connections beyond those of the requests in flight
MORE = "Use more workers, one core each, or more machines: see `tailgauge docs many-machines`"
NOTE = "One row per run, in the order in which they ran."


@dataclass(frozen=True, slots=True)
class CalibrationRun:
    """A run at one load. `chunks`: mean of the complete answers; `reason`: the first against its verdict."""

    requests_per_s: float
    chunks: float
    requests: int
    verdict: str
    reason: str


@dataclass(frozen=True, slots=True)
class Calibration:
    """What was found; None where no load was VALID, or every load was."""

    largest_valid: CalibrationRun | None
    lowest_not_valid: CalibrationRun | None
    planned_per_s: float | None
    workers: int
    clock: str
    machine: dict[str, Any]
    runs: tuple[CalibrationRun, ...]


class CalibratePlanner(Planner):
    """The course, and its results. What a step is given: its rate."""

    checks = CHECKS  # those of the verdict of a run
    has_dry_run = False

    def __init__(self, base: Base) -> None:
        super().__init__(base)
        self._settings = base.table.calibrate
        if any(target.url != SIMULATED for target in self._scenario.targets.values()):
            text = (
                f"calibrate measures this machine at the built-in endpoint: expected {SIMULATED!r}"
            )
            raise base.refused("target.url", text)
        self._start = self._settings.planned or base.today()
        self._all_s = base.table.minutes * 60
        self._answer_s = LONGER * answer_s(self._scenario)
        self._step_s = max(self._settings.step_s, FILLS * self._answer_s)
        least_s = self._step_s + RUN_S
        if least_s > self._all_s:
            text = f"a run takes {least_s:.0f} s: raise it, or use shorter answers or experiment.calibrate.step_s"
            raise base.refused("experiment.minutes", text)

    def steps(self) -> Steps:
        """Double the rate until a load is not VALID, then halve the gap; down where the first load is not VALID."""
        search = Search(
            start=self._start,
            least=LEAST * self._start,
            most=MOST * self._start,
            growth=GROWTH,
            narrow=NARROW,
        )
        attempts = [NextLoad(self._start)]
        while attempts:
            count = len(self.results)
            for attempt in attempts:
                yield from self._attempt(attempt.load)
            attempts = []
            if len(self.results) > count:
                attempts = search.next_loads(loads(self.results))

    def _attempt(self, rate_per_s: float) -> Steps:
        """Run a load until it is VALID, `ATTEMPTS` times at most, while there is time."""
        for _ in range(ATTEMPTS):
            step = self._step(rate_per_s)
            if self.spent_s + step.takes_s > self._all_s:
                return
            yield from self.run([step])
            for run in self.results:
                if run.requests_per_s == rate_per_s and run.verdict == VALID:
                    return

    def _step(self, rate_per_s: float) -> Step:
        """Plan a run that begins to count when as many requests are in flight as at its end."""
        queue = of_queue(self._scenario.limits, rate_per_s * self._step_s, self._answer_s)
        connections = min(MOST_IN_FLIGHT, math.ceil(rate_per_s * self._answer_s) + SPARE)
        overrides = [
            ("arrival.rate_per_s", rate_per_s),
            *queue,
            ("limits.drain_s", max(DRAIN_S, 2 * self._answer_s)),
            ("target.connections", max(connections, self._scenario.target.connections)),
            ("target.preopened", connections),
        ]
        name = f"{rate_per_s:.4g} requests/s"
        return Step(name, tuple(overrides), self._step_s, self.seed(), given=rate_per_s)

    def measure(self, step: Step, reading: RunReading) -> CalibrationRun:
        """Return the verdict of a run."""
        attempts = reading.steady.sent
        chunks = attempts.loc[attempts["ended"].isin(schema.COMPLETE), "chunks"]
        mean = 0.0
        if len(chunks):
            mean = float(chunks.mean())
        return CalibrationRun(
            step.given, mean, len(reading.steady.requests), reading.verdict, reading.reason
        )

    def usable(self, _: Any) -> bool:
        """Keep every run: one that is not VALID ends the search."""
        return True

    def measurement(self, runs: Sequence[RunRow]) -> Measurement:
        """Judge the answer: INVALID if no load was VALID; a load beyond the machine does not weaken it."""
        if any(run.verdict == VALID for run in runs):
            return Measurement(VALID, plural(len(runs), "run"))
        return Measurement(INVALID, "no load was VALID", measured(runs).reasons)

    def answer(self) -> Answer:
        """Return the largest VALID load, with the reason of the first load above it.

        FAIL if no load was VALID, or the largest is below the planned rate, if experiment.calibrate.planned sets one;
        else PASS. The finding has None for a load that was not found.
        """
        # A load's best run comes first.
        low, high = bracket(loads(self.results))
        largest_valid = None
        lowest_not_valid = None
        if low is not None:
            largest_valid = low.runs[0]
        if high is not None:
            lowest_not_valid = high.runs[0]
        finding = Calibration(
            largest_valid=largest_valid,
            lowest_not_valid=lowest_not_valid,
            planned_per_s=self._settings.planned,
            workers=self._base.workers,
            clock=self._scenario.clock,
            machine=machine(),
            runs=tuple(self.results),
        )
        outcome = PASS
        if low is None or low.load < (self._settings.planned or 0.0):
            outcome = FAIL
        text = sentence(largest_valid, lowest_not_valid)
        advice = MORE if outcome == FAIL else ""
        result = Result(outcome, text, _objective(finding, outcome), advice=advice)
        table = Table.of("Loads", finding.runs, COLUMNS, NOTE, prose=(5,))
        return answered(
            "calibrate",
            "Calibration",
            result,
            finding,
            [table],
            notes=_notes(finding),
            card=_card(finding, outcome),
        )


def _card(finding: Calibration, outcome: str) -> Card | None:
    """Return the largest load at which the measurement is VALID; None where no load was."""
    largest = finding.largest_valid
    if largest is None:
        return None
    higher = finding.lowest_not_valid
    limit = "no higher load was tested"
    if higher is not None:
        limit = f"{higher.verdict} at {figures(higher.requests_per_s)} requests/s"
    lines = (f"{largest.requests_per_s * largest.chunks:,.0f} chunks/s", limit)
    return Card(
        label="calibrate",
        value=Value(f"{figures(largest.requests_per_s)} requests/s"),
        detail=f"measured VALID, with {largest.chunks:,.0f} chunks each",
        lines=lines,
        tone=tone_of(outcome),
    )


def answer_s(scenario: Scenario) -> float:
    """Return the seconds that the longest answer of the traffic takes at the built-in endpoint."""
    simulated = scenario.simulated
    tokens = max(table.output_tokens for table in scenario.traffic.values())
    chunks = math.ceil(tokens / simulated.tokens_per_chunk)
    return (simulated.ttft_ms + chunks * simulated.chunk_gap_ms) / 1e3


def loads(runs: Iterable[CalibrationRun]) -> list[TriedLoad]:
    """Group runs by their load, ascending, the best verdict first; one VALID run is enough."""
    ascending = sorted(runs, key=lambda run: (run.requests_per_s, -WORST_FIRST.index(run.verdict)))
    tried = []
    for load, group in groupby(ascending, lambda run: run.requests_per_s):
        of_load = tuple(group)
        outcome = PASS if of_load[0].verdict == VALID else FAIL
        tried.append(
            TriedLoad(load=load, arrived=load, runs=of_load, outcome=outcome, leans=outcome)
        )
    return tried


def sentence(largest: CalibrationRun | None, higher: CalibrationRun | None) -> str:
    """Say up to which load the measurement is VALID, and why not above."""
    limit = "no higher load was tested"
    if higher is not None:
        limit = f"{higher.verdict} at {figures(higher.requests_per_s)}, because {_clause(higher.reason)}"
    if largest is not None:
        load = (
            f"{figures(largest.requests_per_s)} requests/s with {largest.chunks:,.0f} chunks each"
        )
        return f"This machine measures up to {load}: VALID up to there, {limit}"
    if higher is not None:
        return f"This machine measures no tested load: {limit}"
    return "No load was run"


def _clause(reason: str) -> str:
    """Begin a sentence in lower case, unless it begins with an abbreviation or a number."""
    is_word = reason[1:2].islower()
    text = reason
    if is_word:
        text = reason[:1].lower() + reason[1:]
    return text.removesuffix(".")


def _objective(finding: Calibration, outcome: str) -> tuple[ObjectiveLine, ...]:
    planned = finding.planned_per_s
    if planned is None:
        return ()
    largest = finding.largest_valid
    value = NONE
    if largest is not None:
        value = f"{figures(largest.requests_per_s)} requests/s"
    bound = f"≥ {figures(planned)} requests/s"
    return (ObjectiveLine("largest VALID load", outcome, value, bound),)


def _notes(finding: Calibration) -> list[str]:
    about = finding.machine
    workers = plural(finding.workers, "worker")
    return [
        f"{about['host']}: {about['cpu_model']}, {about['cpu_count']} cores; {workers}, {finding.clock} clock, no TLS",
        "the built-in endpoint takes its share of these cores: at a target elsewhere the machine may measure more",
    ]


COLUMNS: Sequence[Column[CalibrationRun]] = (
    ("requests/s", lambda run: figures(run.requests_per_s)),
    ("chunks each", lambda run: f"{run.chunks:,.0f}"),
    ("chunks/s", lambda run: f"{run.requests_per_s * run.chunks:,.0f}"),
    ("verdict", lambda run: Value(run.verdict, outcome=run.verdict)),
    ("requests", lambda run: f"{run.requests:,}"),
    ("first reason", lambda run: run.reason),
)
