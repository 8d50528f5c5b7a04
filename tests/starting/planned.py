"""A command as far as its plan: read by the command line, resolved and checked as before a run, without the run."""

from __future__ import annotations

import shlex
import tempfile
from pathlib import Path
from typing import Any
from unittest import mock

from tailgauge.cli import main
from tailgauge.cli import run as run_command
from tailgauge.command_line import STEP_FOLDER
from tailgauge.experiments.course import Base
from tailgauge.experiments.table import planner_of
from tailgauge.plan.resolve import Settings
from tailgauge.scenario.model import override
from tailgauge.scenario.packaged import find


class PlannedError(Exception):
    """Raised in the place of the run."""

    def __init__(self, settings: Settings) -> None:
        super().__init__("planned")
        self.settings = settings


def planned(line: str) -> Settings:
    """The settings of the run or the experiment that a shell would start; the errors of the command line where it is refused."""
    program, *arguments = shlex.split(line)
    assert program == "tailgauge"
    with (
        mock.patch.object(run_command, "check_reachable", _run),
        mock.patch.object(run_command, "dry_run", _dry_run),
        mock.patch.object(main, "_answer", _experiment),
    ):
        try:
            main.cli.main(arguments, prog_name=program, standalone_mode=False)
        except PlannedError as end:
            return end.settings
    raise AssertionError(f"nothing is run: {line}")


def _run(settings: list[Settings], _bind: Any) -> None:
    raise PlannedError(settings[0])


def _dry_run(settings: Settings, *_: Any, **__: Any) -> None:
    raise PlannedError(settings)


def _experiment(
    argument: str, settings: Settings, *, workers: int, dry_run: bool, **_: Any
) -> None:
    """Check the first steps of the experiment too."""
    base = base_of(argument, settings, workers=workers)
    steps = next(planner_of(base.table.kind)(base).course())
    with tempfile.TemporaryDirectory(prefix=STEP_FOLDER) as folder:
        for number, step in enumerate(steps, 1):
            base.prepare(step, number, Path(folder), sends=not dry_run)
    raise PlannedError(settings)


def base_of(argument: str, settings: Settings, *, workers: int = 1) -> Base:
    """What the steps of an experiment have in common."""
    pairs = tuple(override(text) for text in settings.overrides)
    return Base(find(argument), settings.scenario, pairs, settings.out, workers)
