"""The planner of an experiment, by `experiment.kind`; the rows are in scenario/experiment.py."""

from __future__ import annotations

from importlib import import_module

from tailgauge.experiments.course import Planner
from tailgauge.scenario.experiment import EXPERIMENTS


def planner_of(kind: str) -> type[Planner]:
    """Load the planner of an experiment."""
    module, _, name = EXPERIMENTS[kind].partition(":")
    planner: type[Planner] = getattr(import_module(module), name)
    return planner
