"""Dry runs for the scripts that judge experiments: an experiment of a scenario, and one long run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tailgauge.dry_run.command import dry_run
from tailgauge.experiments.conduct import Conducted, conduct
from tailgauge.experiments.course import Base
from tailgauge.experiments.runners import DryRunner
from tailgauge.experiments.table import planner_of
from tailgauge.plan.resolve import resolve
from tailgauge.scenario import model as scenarios
from tailgauge_analysis import Frames, load_frames

Tree = dict[str, Any]
LIMITS = {"in_flight_per_worker": 60_000, "attempt_deadline_s": 600}


def conducted(tree: Tree, folder: Path) -> Conducted:
    """Conduct the experiment of a scenario."""
    base = Base(folder / "planted.toml", scenarios.parse(tree, "planted"), (), folder)
    return conduct(
        planner_of(base.table.kind)(base), base, DryRunner(folder), folder, lambda _: None
    )


def long_run(tree: Tree, folder: Path, seconds: float) -> Frames:
    """Run a scenario for so long, with room for all that waits."""
    path = folder / "single.toml"
    stages = {"duration_s": seconds, "warmup_s": 0.0}
    text = scenarios.toml_file({**tree, "stages": stages, "limits": LIMITS})
    path.write_text(text, encoding="utf-8")
    settings = resolve(str(path), [], folder, workers=1, sends=False)
    run = dry_run(
        settings.scenario, settings.schedule, settings.scenario_file, settings.overrides, folder
    )
    return load_frames([run.path])
