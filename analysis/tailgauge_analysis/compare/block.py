"""A run as one block of an experiment: its quantiles, its verdict, when it ran.

Rule: one run is loaded at a time, and of it only figures are kept. The figures are those of the report: steady stage,
offered view where the metric has one, slow readers left out.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

import numpy as np

from tailgauge.errors import RunDataError
from tailgauge.rows import schema
from tailgauge_analysis.load.frames import load
from tailgauge_analysis.metrics import latency
from tailgauge_analysis.metrics.metrics import BY_NAME, Metric
from tailgauge_analysis.metrics.steady import Steady
from tailgauge_analysis.sections.findings import evidence_of
from tailgauge_analysis.stats.quantiles import Quantile
from tailgauge_analysis.text.json_values import Json
from tailgauge_analysis.verdict.checks import GATES
from tailgauge_analysis.verdict.verdict import reasons, worst

PS = (0.5, 0.95, 0.99)


@dataclass(frozen=True, slots=True)
class Block:
    """One run. Times are seconds of the epoch, None where the run does not say; `e2e_p99_s` None where unknown."""

    run_id: str
    dry_run: bool
    seed: int | None
    verdict: str
    reason: str
    began: float | None
    ended: float | None
    seconds: float
    offered: int
    answered: float
    e2e_p99_s: float | None
    quantiles: dict[tuple[str, float], Quantile]


def block(folder: Path, metrics: Sequence[str]) -> Block:
    """Read one run; RunDataError where it has no request in its steady stage."""
    frames = load([folder])
    evidence = evidence_of(frames)
    stage = evidence.of_target
    asked = stage.requests["ended"] != schema.CANCELLED
    if not asked.any():
        raise RunDataError(f"{folder}: no request in the steady stage: there is nothing to compare")
    against = reasons(GATES, evidence)
    began, ended = _when(frames.run)
    found = {
        (name, q.p): q
        for name in metrics
        for q in latency.row(BY_NAME[name], stage, view(BY_NAME[name]), PS).quantiles
    }
    return Block(
        run_id=frames.run["run_id"],
        dry_run=frames.run["dry_run"],
        seed=frames.run["seed"],
        verdict=worst(against),
        reason=against[0].text if against else "",
        began=began,
        ended=ended,
        seconds=stage.seconds,
        offered=int(asked.sum()),
        answered=float((stage.requests["ended"] == schema.OK).sum() / asked.sum()),
        e2e_p99_s=_e2e_p99_s(stage),
        quantiles=found,
    )


def view(metric: Metric) -> str:
    """Offered where the metric has it: failing fast must never look fast."""
    return latency.OFFERED if metric.offered else latency.SUCCESSES


def _e2e_p99_s(stage: Steady) -> float | None:
    spent = (stage.requests["ended_at_ns"] - stage.requests["scheduled_at_ns"]).dropna().to_numpy(np.float64)
    return float(np.quantile(spent, 0.99, method="inverted_cdf") / 1e9) if len(spent) else None


def _when(run: Json) -> tuple[float | None, float | None]:
    try:
        began = datetime.fromisoformat(run["started_at"]).timestamp()
    except ValueError:
        return None, None
    start, end = run["start_at_ns"], run["ended_at_ns"]
    return began, began + (end - start) / 1e9 if start is not None and end is not None else None
