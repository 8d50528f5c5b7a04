"""What an experiment is: a course of steps, a result of each, and one answer.

A course is a generator without I/O, like a traffic pattern. It yields the steps to run, several at a time if they are
independent; it is sent their results in that order; it returns the answer. It cannot see whether the steps were dry runs
or real runs, so a dry run is the experiment itself.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from tailgauge.errors import TailgaugeError, UsageError
from tailgauge.experiments.answer import Answer
from tailgauge.plan.resolve import Settings, resolve
from tailgauge.scenario import model as scenarios
from tailgauge.scenario.experiment import Experiment as Table
from tailgauge.scenario.model import Scenario
from tailgauge.schedule.text_file import locate
from tailgauge.thresholds import INVALID

if TYPE_CHECKING:
    from tailgauge.experiments.reading import RunReading

RUN_S = 9.0  # of a real run beside its load: processes, connections, drain, report
SEED_STEP = 7919  # between the seeds of two steps
_TARGETS = ("target", "second_target")


@dataclass(frozen=True, slots=True)
class Step:
    """One run. `name` is for readers, as "12.5 requests/s". `overrides` go over the experiment's scenario, by dotted key;
    None removes a key. `rest_s`: idle seconds before it, if the target keeps state between runs.
    """

    name: str
    overrides: tuple[tuple[str, Any], ...]
    duration_s: float
    seed: int
    rest_s: float = 0.0


@dataclass(frozen=True, slots=True)
class StepResult:
    """A step that ran. `measured` is what the experiment's `measure` returned."""

    step: Step
    run_id: str
    verdict: str
    reason: str
    measured: Any

    @property
    def valid(self) -> bool:
        """Whether its numbers may be used."""
        return self.verdict != INVALID


class SpentError(TailgaugeError):
    """The experiment's time, calls, tokens or money are used up. Thrown into the course, which then concludes."""


Steps = Generator[Sequence[Step], Sequence[StepResult], None]
Course = Generator[Sequence[Step], Sequence[StepResult], Answer]


class Planner(Protocol):
    """One kind of experiment, constructed from its scenario."""

    def course(self) -> Course:
        """Plan, and choose the next steps; pure.

        `SpentError` may be thrown in at a yield: the course then returns the answer that the results allow.
        """

    def measure(self, step: Step, reading: RunReading) -> Any:
        """What the course needs of a run: a few numbers, no frames."""


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
    certificate: Path | None = None

    @property
    def table(self) -> Table:
        """The table [experiment]."""
        if self.scenario.experiment is None:
            raise UsageError(f"{self.path}: expected a table [experiment]")
        return self.scenario.experiment

    def tree(self) -> dict[str, Any]:
        """The scenario as plain values, files by their full path, without [experiment]."""
        tree: dict[str, Any] = self.scenario.model_dump(mode="json", exclude_unset=True, exclude_none=True)
        tree.pop("experiment", None)
        named = [
            tree.get("arrival", {}).get("trace", {}),
            *tree.get("traffic", {}).values(),
            tree.get("guard", {}),
        ]
        for table in named:
            for key in ("file", "prompt_file", "prices"):
                if isinstance(table.get(key), str):
                    table[key] = str(locate(table[key], self.path.parent).resolve())
        return tree

    def prepare(
        self, step: Step, number: int, folder: Path, *, sends: bool, guard: Mapping[str, Any] | None = None
    ) -> Prepared:
        """Write the step's file into `folder`, and check it; `guard` replaces the scenario's guard.

        The file is complete. Only the target that the user typed is passed as an option too, because load leaves this
        machine only for a target that somebody named.
        """
        tree = self.tree()
        tree["name"] = f"{self.scenario.name[:40]}-{number:03d}"
        tree["description"] = step.name
        tree["seed"] = step.seed
        tree.setdefault("stages", {})["duration_s"] = float(step.duration_s)
        if guard is not None:
            tree["guard"] = dict(guard)
        for key, value in step.overrides:
            _set(tree, key, value)
        scenarios.parse(tree, f"{self.path}, step {number} ({step.name})")
        file = folder / f"{tree['name']}.toml"
        file.write_text(scenarios.toml_file(tree), encoding="utf-8")
        typed = [(key, value) for key, value in self.pairs if key.partition(".")[0] in _TARGETS]
        settings = resolve(
            str(file), typed, self.out, workers=self.workers, sends=sends, certificate=self.certificate if sends else None
        )  # fmt: skip
        options = tuple(f"--set={scenarios.spelled(key, value)}" for key, value in typed)
        return Prepared(step, file, settings, options)


def _set(tree: dict[str, Any], key: str, value: Any) -> None:
    if value is not None:
        scenarios.put(tree, key, value)
        return
    *tables, last = key.split(".")
    node: Any = tree
    for name in tables:
        node = node.get(name, {})
    node.pop(last, None)
