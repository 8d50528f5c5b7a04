"""Conduct an experiment: steps to files, files to runs, runs to results, until there is an answer.

It knows no particular experiment. Time, calls, tokens and cost are bounded here: when one is used up, or at
Ctrl-C, the course answers with the results that it has.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tailgauge.experiments.answer import Answer
from tailgauge.experiments.course import (
    Base,
    Planner,
    Prepared,
    RunReading,
    SpentError,
    Step,
    StepResult,
)
from tailgauge.experiments.runners import Progress, RunCounter, Runner
from tailgauge.scenario.experiment import RUN_S
from tailgauge.scenario.model import Guard
from tailgauge_analysis import plural

INTERRUPTED = "interrupted"
LATE = 1.1  # times its minutes: an experiment ends by then, its dry run included


@dataclass(slots=True)
class StepLedger:
    """What the steps took. Calls and tokens are those of the rows; a call that was closed before its usage arrived counts
    without tokens. The cost is the plan's, an upper bound; None if a model has no price.
    """

    runs: int = 0
    load_s: float = 0.0
    rest_s: float = 0.0
    calls: int = 0
    tokens: int = 0
    cost: float | None = 0.0
    currency: str = ""

    def add(self, prepared: Prepared, reading: RunReading) -> None:
        """Add a step; one that ends with its last request took as long as it did."""
        is_counted = prepared.settings.scenario.arrival.is_counted
        load_s = reading.steady.seconds if is_counted else prepared.step.duration_s
        estimate = prepared.settings.estimate
        if self.runs:
            self.rest_s += prepared.step.rest_s
        self.runs += 1
        self.load_s += load_s
        self.calls += reading.calls
        self.tokens += reading.tokens
        self.currency = estimate.currency
        if estimate.cost is None:
            self.cost = None
        elif self.cost is not None:
            self.cost += estimate.cost

    def real_s(self, *, rests: bool) -> float:
        """Return the duration in real time; `rests`: whether the target keeps state, so that rests are needed."""
        rest_s = self.rest_s if rests else 0.0
        return self.load_s + self.runs * RUN_S + rest_s

    @property
    def used(self) -> dict[str, float | None]:
        """By key of [guard]."""
        return {"max_requests": self.calls, "max_tokens": self.tokens, "max_cost": self.cost}

    def remaining(self, guard: Guard) -> dict[str, Any]:
        """Return the guard of the next step: what is left of the experiment's. Raises SpentError if nothing is."""
        remaining: dict[str, Any] = guard.model_dump(exclude_none=True)
        for key, used in self.used.items():
            if key in remaining:
                remaining[key] -= used or 0
                if remaining[key] <= 0:
                    raise SpentError(f"guard.{key}: used up after {plural(self.runs, 'run')}")
        return remaining


@dataclass(slots=True)
class Conducted:
    """An experiment, its steps until now, and at its end the answer. `interrupted`: by the user, before its end."""

    experiment: Planner
    base: Base
    runner: Runner
    folder: Path
    progress: Progress
    began: float
    counter: RunCounter  # of dry runs; a real runner counts its own
    answer: Answer = field(init=False)
    ledger: StepLedger = field(default_factory=StepLedger)
    steps: tuple[StepResult, ...] = ()
    interrupted: bool = False

    def run(self, steps: Sequence[Step]) -> list[StepResult]:
        """Return the results of the steps; after Ctrl-C of those that had ended."""
        prepared = self._prepare(steps)
        folders: list[Path] = []
        try:
            with closing(self.runner.run(prepared)) as ended:
                folders.extend(ended)
        except KeyboardInterrupt:
            if not (self.runner.sends and (folders or self.steps)):
                raise
            self.interrupted = True
            self.progress(f"{INTERRUPTED}: answering with the finished runs")
        # Not before all have run: reading a run would take the cores from the next one.
        ran = zip(prepared, folders, strict=not self.interrupted)
        results = [self._measure(prepared_step, folder) for prepared_step, folder in ran]
        self.steps += tuple(results)
        return results

    def _prepare(self, steps: Sequence[Step]) -> list[Prepared]:
        """Write the files of the steps; SpentError where nothing is left for them."""
        if self.interrupted:
            raise SpentError(INTERRUPTED)
        guard = None
        sends = self.runner.sends
        if sends:
            guard = self.ledger.remaining(self.base.scenario.guard)
            minutes = self.base.table.minutes
            needed_s = time.monotonic() - self.began + sum(step.takes_s for step in steps)
            if self.steps and needed_s > minutes * 60 * LATE:
                raise SpentError(
                    f"experiment.minutes = {minutes:g}: no time is left for {steps[0].name}"
                )
        prepared = []
        for number, step in enumerate(steps, len(self.steps) + 1):
            prepared.append(self.base.prepare(step, number, self.folder, sends=sends, guard=guard))
        return prepared

    def _measure(self, prepared: Prepared, folder: Path) -> StepResult:
        reading = RunReading(folder, self.experiment.checks)
        self.ledger.add(prepared, reading)
        measured = self.experiment.measure(prepared.step, reading)
        if not self.runner.sends:
            self.counter.ended(prepared.step.name, "", reading.verdict)
        return StepResult(
            prepared.step,
            reading.run_id,
            reading.verdict,
            reading.reason,
            measured,
            spoils=reading.spoils,
        )


def conduct(
    experiment: Planner,
    base: Base,
    runner: Runner,
    folder: Path,
    progress: Progress,
    *,
    began: float | None = None,
) -> Conducted:
    """Conduct it; step files are written into `folder`. `began`: since when its minutes count, by time.monotonic.

    KeyboardInterrupt ends it with the answer that the finished runs allow; it is raised if there are none, or in a dry run.
    """
    conducted = Conducted(
        experiment=experiment,
        base=base,
        runner=runner,
        folder=folder,
        progress=progress,
        began=began or time.monotonic(),
        counter=RunCounter(progress),
    )
    course = experiment.course()
    try:
        steps = next(course)
        while True:
            try:
                results = conducted.run(steps)
            except SpentError as spent:
                progress(str(spent))
                steps = course.throw(spent)
            else:
                steps = course.send(results)
    except StopIteration as end:  # at once where there is no time for a single run
        conducted.answer = end.value
        return conducted
