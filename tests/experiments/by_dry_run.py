"""Experiments conducted by dry runs, and single dry runs beside them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pandas as pd
from run_folders.dry_runs import dry_run_of

from tailgauge.experiments.conduct import Conducted, conduct
from tailgauge.experiments.runners import DryRun
from tailgauge.experiments.steps import Base
from tailgauge.scenario import model as scenarios
from tailgauge_analysis.load.frames import load


def conducted(make: Callable[[Base], Any], tree: Mapping[str, Any], folder: Path) -> Conducted:
    """The experiment that `make` plans for a scenario."""
    base = Base(folder / "planted.toml", scenarios.parse(dict(tree), "planted"), (), folder)
    return conducted_on(make, base)


def conducted_on(make: Callable[[Base], Any], base: Base) -> Conducted:
    """The same on a base that the test made."""
    base.out.mkdir(parents=True, exist_ok=True)
    return conduct(make(base), base, DryRun(base.out), base.out, lambda _: None)


def requests_of(tree: Mapping[str, Any], folder: Path) -> pd.DataFrame:
    """Request rows of a single dry run of a scenario."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "single.toml"
    lines = [f"{key} = {scenarios.as_toml(value)}\n" for key, value in tree.items()]
    path.write_text("".join(lines), encoding="utf-8")
    return load([dry_run_of(str(path), [], folder)]).requests
