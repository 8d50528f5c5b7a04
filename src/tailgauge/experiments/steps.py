"""From a step to a scenario file that any `tailgauge run` takes, and its plan.

Rule: a step's file is whole: the experiment's scenario with the overrides of the command line and of the step, files
that it names by their full path, and without the table [experiment]. What was typed for the target is typed again,
because load leaves this machine only for a target that somebody named.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tailgauge.errors import UsageError
from tailgauge.experiments.course import Step
from tailgauge.plan.resolve import Settings, resolve
from tailgauge.scenario import model as scenarios
from tailgauge.scenario.experiment import Experiment as Asked
from tailgauge.scenario.model import Scenario
from tailgauge.schedule.text_file import locate

_TARGETS = ("target", "second_target")


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
    def asked(self) -> Asked:
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
        """Write the step's file into `folder`, and check it; `guard` takes the place of the scenario's own."""
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
        lines = (f"{key} = {scenarios.as_toml(value)}" for key, value in tree.items())
        file.write_text("\n".join(lines) + "\n", encoding="utf-8")
        typed = [(key, value) for key, value in self.pairs if key.partition(".")[0] in _TARGETS]
        settings = resolve(
            str(file), typed, self.out, workers=self.workers, sends=sends, certificate=self.certificate if sends else None
        )  # fmt: skip
        return Prepared(step, file, settings, _options(typed))


def _set(tree: dict[str, Any], key: str, value: Any) -> None:
    if value is not None:
        scenarios.put(tree, key, value)
        return
    *tables, last = key.split(".")
    node: Any = tree
    for name in tables:
        node = node.get(name, {})
    node.pop(last, None)


def _options(typed: Sequence[tuple[str, Any]]) -> tuple[str, ...]:
    return tuple(f"--set={scenarios.spelled(key, value)}" for key, value in typed)
