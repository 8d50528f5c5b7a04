"""What an experiment is: a course of steps, a result of each, and one answer.

A course is a generator without I/O, like a traffic pattern. It yields the steps to run, several at a time if they are
independent; it is sent their results in that order; it returns the answer. It cannot see whether the steps were dry runs
or real runs, so a dry run is the experiment itself. A run is read once, and its figures are those of any run's report.

Here are also what all experiments share: the reading of a step's run, the base class of planners, and the scenario that they
vary. Runs are made in conduct.py.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Generator, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import reduce
from pathlib import Path
from typing import Any

from tailgauge.command_line import OPTION_OF, run_line
from tailgauge.errors import TailgaugeError, UsageError
from tailgauge.experiments.answer import Answer, RunRow, measured
from tailgauge.plan.resolve import Settings, resolve
from tailgauge.plugins import plugin
from tailgauge.rows.text_file import locate
from tailgauge.scenario import model as scenarios
from tailgauge.scenario.experiment import RUN_S
from tailgauge.scenario.experiment import Experiment as Table
from tailgauge.scenario.figures import LATENCY
from tailgauge.scenario.model import Scenario
from tailgauge.scenario.objective import Objective, name_of
from tailgauge.scenario.packaged import packaged
from tailgauge.schedule.settings import CLOSED, TASKS
from tailgauge.thresholds import DEGRADED, INVALID
from tailgauge_analysis import (
    CLIENT_ERROR,
    COMPARABLE,
    Check,
    Measurement,
    Run,
    Steady,
    figures_moved_beside,
    reasons,
    worst_verdict,
)

SEED_STEP = 7919  # between the seeds of two steps
OF_LOAD = frozenset({"experiment", "experiment.kind", "experiment.curve.by"})
_TARGETS = ("target", "second_target")
_TOKENS = (
    "input_tokens",
    "cache_creation_input_tokens",
    "cache_read_input_tokens",
    "output_tokens",
)


class RunReading:
    """A run folder, judged by these checks; RunDataError where there is no run.

    `reason` is the first against it, empty of a VALID one; `tokens` are those of the usage. `spoils`: figures that alone cannot
    be used, where the outcome rests on none of them.
    """

    def __init__(self, folder: Path, checks: Sequence[Check]) -> None:
        """Read the run in `folder`, compute its evidence, and judge it by `checks`. RunDataError where there is no run."""
        self.run = Run([folder])
        self.evidence = self.run.evidence
        self.frames = self.run.frames
        self.run_id: str = self.run.record["run_id"]
        attempts = self.frames.attempts
        against = reasons(checks, self.evidence)
        self.verdict = worst_verdict(against)
        self.reason = ""
        if against:
            self.reason = against[0].text
        self.spoils: tuple[str, ...] = ()
        # Only the client's own error is against the run: then figures beside those of objectives may be all that it moved.
        if self.verdict == DEGRADED and {reason.check for reason in against} == {CLIENT_ERROR}:
            self.spoils = figures_moved_beside(self.evidence)
        self.calls = int(attempts["sent_at_ns"].notna().sum())
        self.tokens = int(attempts[list(_TOKENS)].sum().sum())

    @property
    def steady(self) -> Steady:
        """Return the steady stage, without requests of slow readers."""
        return self.evidence.without_slow_readers


@dataclass(frozen=True, slots=True)
class Step:
    """One run. `name` is for readers, as "12.5 requests/s". `overrides` go over the experiment's scenario, by dotted key;
    None removes a key. `rest_s`: idle seconds before it, if the target keeps state between runs, and `rests_until`: what has
    happened then. `given`: what its
    experiment needs to know of it again, as the rate. `is_repeat`: the first run of it was INVALID.
    """

    name: str
    overrides: tuple[tuple[str, Any], ...]
    duration_s: float
    seed: int
    rest_s: float = 0.0
    given: Any = None
    is_repeat: bool = False
    rests_until: str = "the target is idle again"

    @property
    def takes_s(self) -> float:
        """In real time, with its rest and what a run takes beside its load."""
        return self.duration_s + self.rest_s + RUN_S


@dataclass(frozen=True, slots=True)
class StepResult:
    """A step that ran. `measured` is what the experiment's `measure` returned."""

    step: Step
    run_id: str
    verdict: str
    reason: str
    measured: Any
    spoils: tuple[str, ...] = ()

    @property
    def valid(self) -> bool:
        """Return whether its numbers may be used."""
        return self.verdict != INVALID


def warm_up(warmup_s: float) -> list[tuple[str, Any]]:
    """Overrides of a step that counts from its warm-up to its end."""
    return [("stages.warmup_s", warmup_s), ("stages.cooldown_s", 0.0)]


class SpentError(TailgaugeError):
    """The experiment's time, calls, tokens or money are used up. Thrown into the course, which then concludes."""


@dataclass(slots=True)
class Effort:
    """What a course takes: runs, arrivals, and seconds with its rests."""

    runs: int = 0
    arrivals: float = 0.0
    seconds: float = 0.0


Steps = Generator[Sequence[Step], Sequence[StepResult], None]
Course = Generator[Sequence[Step], Sequence[StepResult], Answer]


class Planner(ABC):
    """One kind of experiment, constructed from its scenario. UsageError if that lacks what the experiment needs.

    `checks` decide whether a run is used; `has_dry_run`: whether a dry run tells anything of its answer.
    """

    checks: Sequence[Check] = COMPARABLE
    has_dry_run = True

    def __init__(self, base: Base) -> None:
        self._base = base
        self._scenario = base.scenario
        self._number = 0  # of the last step
        self.spent_s = 0.0  # on the steps until now
        self._kept: list[StepResult] = []
        self._discarded: list[StepResult] = []

    def course(self) -> Course:
        """Run the steps, and answer with those that ran where `SpentError` is thrown in."""
        try:
            yield from self.steps()
        except SpentError as spent:
            answer = self.answer()
            details = (
                f"{spent}: the answer is based on the runs until then",
                *answer.result.details,
            )
            return replace(answer, result=replace(answer.result, details=details))
        return self.answer()

    @abstractmethod
    def steps(self) -> Steps:
        """Plan, and choose the next steps by what was kept of those before; pure."""

    @abstractmethod
    def measure(self, step: Step, reading: RunReading) -> Any:
        """Return what is needed of a run: a few numbers, no frames."""

    @abstractmethod
    def answer(self) -> Answer:
        """Return the answer from what was kept."""

    def run(self, steps: Sequence[Step], *, again: bool = True) -> Steps:
        """Run them and keep their results; with `again`, those that cannot be used are run once more."""
        results = yield steps
        self.spent_s += sum(step.takes_s for step in steps)
        repeats = []
        for result in results:
            if self.usable(result):
                self._kept.append(result)
                continue
            self._discarded.append(result)
            if again:
                repeats.append(replace(result.step, seed=self.seed(), is_repeat=True))
        if repeats:
            yield from self.run(repeats, again=False)

    @property
    def results(self) -> list[Any]:
        """Return what was measured of the runs that were kept."""
        return [result.measured for result in self._kept]

    @property
    def is_search(self) -> bool:
        """Return whether the target decides which loads are run, so that a dry run tells little of their calls."""
        return False

    def efforts(self) -> Sequence[Effort]:
        """Return what the course takes at each of several targets that are assumed; empty where a dry run tells."""
        return ()

    @property
    def order(self) -> str:
        """Return why the runs come in their order, where a reader may wonder; may be empty."""
        return ""

    @property
    def needs(self) -> Sequence[str]:
        """Lines that compare what the objectives need with what the runs had, as in a dry run."""
        return ()

    @property
    def shorter(self) -> Sequence[str]:
        """Lines that say what makes the experiment shorter."""
        return ["shorter: --set experiment.minutes=N"]

    def usable(self, result: StepResult) -> bool:
        """Return whether to keep a result."""
        return result.valid

    def measurement(self, runs: Sequence[RunRow]) -> Measurement:
        """Judge whether the answer can be used, by the verdicts of its runs."""
        return measured(runs)

    def seed(self) -> int:
        """Return the seed of the next step."""
        self._number += 1
        return self._scenario.seed + SEED_STEP * self._number


@dataclass(frozen=True, slots=True)
class Prepared:
    """A step with its file, its plan, and the options that `tailgauge run` needs beside the file."""

    step: Step
    file: Path
    settings: Settings
    options: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Base:
    """What all steps have in common. `pairs`: overrides of the command line, by dotted key."""

    path: Path
    scenario: Scenario
    pairs: tuple[tuple[str, Any], ...]
    out: Path
    workers: int = 1

    @property
    def table(self) -> Table:
        """Return the table [experiment]."""
        if self.scenario.experiment is None:
            raise UsageError(f"{self.path}: expected a table [experiment]")
        return self.scenario.experiment

    @property
    def changes_load(self) -> bool:
        """Return whether an option chose another load or experiment, of which the scenario's description does not know."""
        keys = self.keys
        return bool(keys & OF_LOAD) or any(key.partition(".")[0] == "arrival" for key in keys)

    @property
    def keys(self) -> set[str]:
        """Return the keys of the scenario that the command line set."""
        return {key for key, _ in self.pairs}

    @property
    def latency_objectives(self) -> list[Objective]:
        """Return the objectives that bound a latency."""
        objectives = []
        for objective in self.scenario.slo.values():
            if objective.figure.unit == LATENCY:
                objectives.append(objective)
        return objectives

    def command(
        self, overrides: Sequence[str], *, dry_run: bool = False, options: Sequence[str] = ()
    ) -> str:
        """Return the command that runs this scenario with these overrides; `options` are words behind them."""
        named = self.path.stem
        if self.path.parent != packaged("scenarios"):
            named = str(self.path)
        return run_line(
            named,
            overrides,
            plugins=plugin.sources(),
            workers=self.workers,
            dry_run=dry_run,
            options=options,
        )

    def line_of(self, kind: str, *changes: str) -> str:
        """Return the command of another experiment on the same traffic and target."""
        overrides = []
        for key, value in self.pairs:
            if not _is_of_experiment(key):
                overrides.append(scenarios.spelled(key, value))
        overrides.append(scenarios.spelled("experiment", {"kind": kind}))
        return self.command([*overrides, *changes])

    def refused(self, key: str, reason: str) -> UsageError:
        """Return the error that the scenario cannot be tried as it is."""
        return UsageError(f"{self.path}: {key}: {reason}")

    def today(self, *refused: str) -> float:
        """Today's rate in requests/s. UsageError if there is none, or the process is a closed loop or `refused`."""
        process = self.scenario.arrival.process
        rate = self.scenario.arrival.rate
        if process in {CLOSED, TASKS, *refused}:
            text = f"{self.table.kind} sets a rate, which {process!r} does not take: expected an open process, such as poisson"
            raise self.refused("arrival.process", text)
        if rate is None:
            text = "expected today's rate in requests/s; with process = 'trace' it scales the trace's time"
            raise self.refused("arrival.rate_per_s", text)
        return float(rate)

    def tree(self) -> dict[str, Any]:
        """Return the scenario as plain values, files by their full path, without [experiment]."""
        tree: dict[str, Any] = self.scenario.model_dump(
            mode="json", exclude_unset=True, exclude_none=True
        )
        tree.pop("experiment", None)
        tables = [tree.get("arrival", {}).get("trace", {})]
        for traffic in tree.get("traffic", {}).values():
            tables.append(traffic.get("prompts", {}))
        tables.append(tree.get("guard", {}))
        for table in tables:
            for key in ("file", "prices"):
                if isinstance(table.get(key), str):
                    file = locate(table[key], self.path.parent, f"{self.path}: {key}")
                    table[key] = str(file.resolve())
        return tree

    def prepare(
        self,
        step: Step,
        number: int,
        folder: Path,
        *,
        sends: bool,
        guard: Mapping[str, Any] | None = None,
    ) -> Prepared:
        """Write the step's scenario file into `folder`, and return it with the checked plan of its run.

        `number`: of the step, from 1; it is in the run's name. `guard` replaces the scenario's guard. `sends`: whether a
        real run follows, which the checks of the plan depend on. The file is complete. Only the target that the user
        typed is passed as an option too, because load leaves this machine only for a target that somebody named. Raises
        TailgaugeError where the step is no valid scenario.
        """
        tree = self.tree()
        name = f"{self.scenario.name[:40]}-{number:03d}"
        tree |= {"name": name, "description": step.name, "seed": step.seed}
        tree.setdefault("stages", {})["duration_s"] = float(step.duration_s)
        for objective in tree.get("slo", {}).values():
            objective.pop("precision", None)  # a step has the length that its experiment gives it
        if guard is not None:
            tree["guard"] = dict(guard)
        # Steps look for the load that is too much, so no share of failed requests ends them.
        tree.setdefault("stop", {}).setdefault("min_completed", 0)
        for key, value in step.overrides:
            _set(tree, key, value)
        # An error names the step, not the file that is written from it.
        scenarios.parse(tree, f"{self.path}, step {number} ({step.name})")
        file = folder / f"{name}.toml"
        file.write_text(scenarios.toml_file(tree), encoding="utf-8")
        typed_targets = []
        options = []
        for key, value in self.pairs:
            if key.partition(".")[0] in _TARGETS:
                typed_targets.append((key, value))
                options.append(f"--set={scenarios.spelled(key, value)}")
        settings = resolve(str(file), typed_targets, self.out, workers=self.workers, sends=sends)
        return Prepared(step, file, settings, tuple(options))


def as_options(pairs: Iterable[tuple[str, Any]]) -> tuple[list[str], list[str]]:
    """Return overrides of the pairs that no option of `tailgauge run` sets, and the options of the others."""
    overrides = []
    options = []
    for key, value in pairs:
        if isinstance(value, str) and key == f"slo.{name_of(value)}":
            options += ["--slo", value]
        elif key in OPTION_OF:
            options += [OPTION_OF[key], str(value)]
        else:
            overrides.append(scenarios.spelled(key, value))
    return overrides, options


def _is_of_experiment(key: str) -> bool:
    return key.partition(".")[0] == "experiment"


def _set(tree: dict[str, Any], key: str, value: Any) -> None:
    if value is not None:
        scenarios.put(tree, key, value)
        return
    *tables, leaf = key.split(".")
    reduce(lambda node, name: node.get(name, {}), tables, tree).pop(leaf, None)
