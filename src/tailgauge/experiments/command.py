"""An experiment from its scenario to the files of its answer: a dry run first, then the real runs.

Nothing is sent before the dry run has shown what it will take: time, calls, tokens, cost, and the minimum detectable
effect. The answer is that of the real runs, or of the dry run with --dry-run.

Runs an experiment's course: steps to files, files to runs, runs to results, until there is an answer.

It knows no particular experiment. Time, calls, tokens and cost are bounded here: when one is used up, or at
Ctrl-C, the course answers with the results that it has.
"""

from __future__ import annotations

import shlex
import signal
import tempfile
import time
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tailgauge.clock import utc_now
from tailgauge.errors import UsageError
from tailgauge.experiments.answer import Answer, AnswerFile, RunRow, exit_code, report
from tailgauge.experiments.course import (
    RUN_S,
    Base,
    Planner,
    Prepared,
    RunReading,
    SpentError,
    Step,
    StepResult,
)
from tailgauge.experiments.runners import DryRunner, Progress, RealRunner, Runner
from tailgauge.experiments.table import planner_of
from tailgauge.live import screen
from tailgauge.protocols.protocol import SIMULATED
from tailgauge.rows.run_folder import new_run_id
from tailgauge.scenario.model import Guard
from tailgauge.scenario.packaged import packaged
from tailgauge_analysis import (
    Result,
    plural,
)

if TYPE_CHECKING:  # its libraries take a second to load
    from tailgauge_analysis import FinishedReport


def command(base: Base, overrides: Sequence[str], progress: Progress, *, dry_run: bool) -> FinishedReport:
    """Conduct it and write its answer; `overrides` as they were typed."""
    kind = base.table.kind
    planner = planner_of(kind)(base)
    if dry_run and not planner.has_dry_run:
        raise UsageError(f"--dry-run: {kind} measures this machine, and a dry run sends nothing: omit it")
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # as Ctrl-C: children are stopped
    started_at, run_id, began = utc_now(), new_run_id(base.scenario.name), time.monotonic()
    with tempfile.TemporaryDirectory(prefix="tailgauge-experiment-") as name:
        folder = Path(name)
        if dry_run:
            done = conduct(planner, base, DryRunner(base.out), folder, progress)
            planned, expected = _plan(done.ledger, base), ""
        else:
            planned, expected = _dry_run(base, folder, progress) if planner.has_dry_run else ([], "")
            runner = RealRunner(base.out, base.workers, folder / "runs.log", progress)
            done = conduct(planner, base, runner, folder, progress, began)
    runs = tuple(RunRow(one.step.name, one.run_id, one.verdict, one.reason) for one in done.steps)
    result, measurement, target = _result(done), planner.measurement(runs), base.scenario.target.url
    if dry_run and target != SIMULATED:
        text = f"of the simulated endpoint, not of {target}: {result.sentence}"
        result = replace(result, sentence=text)
    made = report(AnswerFile(
        kind=done.answer.kind, run_id=run_id, result=result, measurement=measurement, facts=done.answer.facts,
        sections=done.answer.sections, smallest=done.answer.smallest,
        exit_code=exit_code(result, measurement, interrupted=done.interrupted), runs=runs, dry_run=dry_run, expected=expected,
        planned=tuple(planned), took=_took(done.ledger), scenario=base.scenario.name, description=base.scenario.description,
        target=target, started_at=started_at, command=_line(base, overrides, dry_run=dry_run),
    ))  # fmt: skip
    from tailgauge_analysis import write_report

    colours = screen.has_colours()
    return write_report(made, base.out, screen.columns(), colours=colours, more=done.answer.files)


def _result(done: Conducted) -> Result:
    """The answer, or what is left of it after Ctrl-C."""
    if not done.interrupted:
        return done.answer.result
    details = [text for text in done.answer.result.details if not text.startswith(INTERRUPTED)]
    text = f"interrupted after {plural(done.ledger.runs, 'run')}: the answer is based on these"
    return replace(done.answer.result, details=(text, *details))


def _dry_run(base: Base, folder: Path, progress: Progress) -> tuple[list[str], str]:
    """Show what the experiment will take; UsageError if that is more than its guard allows.

    The expected answer is shown only where the target is the simulated endpoint: nothing is known of another one's limits.
    """
    progress("dry run first")
    done = conduct(planner_of(base.table.kind)(base), base, DryRunner(folder), folder, lambda _: None)
    lines = _plan(done.ledger, base)
    for line in lines:
        progress(f"plan: {line}")
    expected = done.answer.result.sentence if base.scenario.target.url == SIMULATED else ""
    if expected:
        progress(f"expected answer: {expected}")
    if done.answer.smallest:
        progress(f"minimum detectable effect: {done.answer.smallest}")
    _guarded(done.ledger, base)
    return lines, expected


def _plan(ledger: StepLedger, base: Base) -> list[str]:
    target = base.scenario.target.url
    minutes = ledger.real_s(rests=target != SIMULATED) / 60
    text = f"about {minutes:.0f} minutes, {plural(ledger.runs, 'run')}, {ledger.calls:,} calls, {ledger.tokens:,} tokens"
    if ledger.cost is None:
        text += "; the model has no known price"
    elif ledger.currency:
        text += f"; up to {ledger.cost:,.2f} {ledger.currency}"
    if target == SIMULATED:
        return [text]
    return [text, "from a dry run on the simulated endpoint, which says nothing of the target"]


def _guarded(ledger: StepLedger, base: Base) -> None:
    for key, expected in ledger.used.items():
        limit = getattr(base.scenario.guard, key)
        if limit is not None and expected is not None and expected > limit:
            text = f"{limit:,} is less than the {expected:,.6g} of the dry run: raise it, or set experiment.minutes lower"
            raise UsageError(f"guard.{key}: {text}")


def _took(ledger: StepLedger) -> str:
    return f"{plural(ledger.runs, 'run')}, {ledger.load_s:,.0f} s of load, {ledger.calls:,} calls, {ledger.tokens:,} tokens."


def _line(base: Base, overrides: Sequence[str], *, dry_run: bool) -> str:
    """The command that repeats the experiment."""
    sets = [part for text in overrides for part in ("--set", text)]
    scenario = base.path.stem if base.path.parent == packaged("scenarios") else str(base.path)
    return shlex.join(["tailgauge", "run", scenario, *(["--dry-run"] if dry_run else []), *sets])


# --- the course of an experiment ----------------------------------------------------------------------------------

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

    def add(self, one: Prepared, calls: int, tokens: int) -> None:
        """Add a step."""
        estimate = one.settings.estimate
        self.rest_s += one.step.rest_s if self.runs else 0.0
        self.runs += 1
        self.load_s += one.step.duration_s
        self.calls += calls
        self.tokens += tokens
        self.currency = estimate.currency
        self.cost = None if self.cost is None or estimate.cost is None else self.cost + estimate.cost

    def real_s(self, *, rests: bool) -> float:
        """Duration in real time; `rests`: whether the target keeps state, so that rests are needed."""
        return self.load_s + self.runs * RUN_S + (self.rest_s if rests else 0.0)

    @property
    def used(self) -> dict[str, float | None]:
        """By key of [guard]."""
        return {"max_requests": self.calls, "max_tokens": self.tokens, "max_cost": self.cost}

    def left(self, guard: Guard) -> dict[str, Any]:
        """The guard of the next step: what is left of the experiment's. Raises SpentError if nothing is."""
        left: dict[str, Any] = guard.model_dump(exclude_none=True)
        for key, used in self.used.items():
            if key in left:
                left[key] -= used or 0
                if left[key] <= 0:
                    raise SpentError(f"guard.{key}: used up after {self.runs} runs")
        return left


@dataclass(slots=True)
class Conducted:
    """An experiment, its steps until now, and at its end the answer. `interrupted`: by the user, before its end."""

    experiment: Planner
    base: Base
    runner: Runner
    folder: Path
    progress: Progress
    began: float
    answer: Answer = field(init=False)
    ledger: StepLedger = field(default_factory=StepLedger)
    steps: tuple[StepResult, ...] = ()
    interrupted: bool = False

    def run(self, steps: Sequence[Step]) -> list[StepResult]:
        """The results of the steps; after Ctrl-C of those that had ended."""
        if self.interrupted:
            raise SpentError(INTERRUPTED)
        prepared, folders = self._prepare(steps), list[Path]()
        try:
            with closing(self.runner.run(prepared)) as ended:
                for folder in ended:
                    folders.append(folder)
        except KeyboardInterrupt:
            if not (self.runner.sends and (folders or self.steps)):
                raise
            self.interrupted = True
            self.progress(f"{INTERRUPTED}: answering with the finished runs")
        # Not before all have run: reading a run would take the cores from the next one.
        ran = zip(prepared, folders, strict=not self.interrupted)
        results = [self._measure(one, folder) for one, folder in ran]
        self.steps += tuple(results)
        return results

    def _measure(self, one: Prepared, folder: Path) -> StepResult:
        reading = RunReading(folder, self.experiment.checks)
        self.ledger.add(one, reading.calls, reading.tokens)
        measured = self.experiment.measure(one.step, reading)
        if not self.runner.sends:
            self.progress(f"{one.step.name}: {reading.verdict}")
        return StepResult(one.step, reading.run_id, reading.verdict, reading.reason, measured)

    def _prepare(self, steps: Sequence[Step]) -> list[Prepared]:
        guard, sends = None, self.runner.sends
        if sends:
            guard = self.ledger.left(self.base.scenario.guard)
            self._check_time(steps)
        numbered = enumerate(steps, len(self.steps) + 1)
        return [self.base.prepare(step, n, self.folder, sends=sends, guard=guard) for n, step in numbered]

    def _check_time(self, steps: Sequence[Step]) -> None:
        passed = time.monotonic() - self.began
        needed = sum(step.takes_s for step in steps)
        minutes = self.base.table.minutes
        if self.steps and passed + needed > minutes * 60 * LATE:
            raise SpentError(f"experiment.minutes: {minutes:g} minutes leave no time for {steps[0].name}")


def conduct(
    experiment: Planner, base: Base, runner: Runner, folder: Path, progress: Progress, began: float | None = None
) -> Conducted:  # fmt: skip
    """Conduct it; step files are written into `folder`. `began`: since when its minutes count, by time.monotonic.

    KeyboardInterrupt ends it with the answer that the finished runs allow; it is raised if there are none, or in a dry run.
    """
    done = Conducted(experiment, base, runner, folder, progress, began or time.monotonic())
    course = experiment.course()
    try:
        steps = next(course)
        while True:
            try:
                results = done.run(steps)
            except SpentError as spent:
                progress(str(spent))
                steps = course.throw(spent)
            else:
                steps = course.send(results)
    except StopIteration as end:  # at once where there is no time for a single run
        done.answer = end.value
        return done
