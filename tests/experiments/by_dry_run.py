"""Experiments conducted by dry runs, and single dry runs beside them."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pandas as pd
from run_folders.dry_runs import dry_run_of

from tailgauge.experiments.conduct import Conducted, conduct
from tailgauge.experiments.course import Base
from tailgauge.experiments.runners import DryRunner
from tailgauge.experiments.table import planner_of
from tailgauge.scenario import model as scenarios
from tailgauge_analysis.reading.frames import load


def conducted(tree: Mapping[str, Any], folder: Path) -> Conducted:
    """The experiment of a scenario."""
    base = Base(folder / "planted.toml", scenarios.parse(dict(tree), "planted"), (), folder)
    return conducted_on(base)


def conducted_on(base: Base) -> Conducted:
    """The same on a base that the test made."""
    base.out.mkdir(parents=True, exist_ok=True)
    return conduct(
        planner_of(base.table.kind)(base), base, DryRunner(base.out), base.out, lambda _: None
    )


def requests_of(tree: Mapping[str, Any], folder: Path) -> pd.DataFrame:
    """Request rows of a single dry run of a scenario."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "single.toml"
    lines = [f"{key} = {scenarios.as_toml(value)}\n" for key, value in tree.items()]
    path.write_text("".join(lines), encoding="utf-8")
    return load([dry_run_of(str(path), [], folder)]).requests
