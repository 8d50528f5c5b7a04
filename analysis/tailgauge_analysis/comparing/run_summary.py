"""A run as a comparison sees it: its quantiles, its verdict, when it ran.

One run is loaded at a time, and only its figures stay: those of the report (steady stage, offered view if the metric has one,
without slow readers).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path

import numpy as np

from tailgauge.errors import RunDataError
from tailgauge.rows import schema
from tailgauge_analysis.metrics import latency
from tailgauge_analysis.metrics.answers import prompt_tokens
from tailgauge_analysis.metrics.metrics import BY_NAME
from tailgauge_analysis.metrics.slo import criteria
from tailgauge_analysis.metrics.stability import BACKLOG
from tailgauge_analysis.metrics.steady import Steady
from tailgauge_analysis.reading.frames import load
from tailgauge_analysis.sections.findings import evidence_of
from tailgauge_analysis.stats.proportions import Proportion, proportion
from tailgauge_analysis.stats.quantiles import Mask, Quantile
from tailgauge_analysis.text.json_values import Json
from tailgauge_analysis.text.quantile import FOR_FIGURES
from tailgauge_analysis.verdict.checks import COMPARABLE
from tailgauge_analysis.verdict.verdict import reasons, worst

PS = (0.5, 0.95, 0.99)
METRICS = ("ttft_sched", "tpot", "e2e_sched", "join_sched", "turnaround")


@dataclass(frozen=True, slots=True, kw_only=True)
class RunSummary:
    """One run. `began` and `ended` are seconds of the epoch. `growth_per_s`: by how much its requests in flight grow, if the
    target did not sustain the rate. `work`: mean output and prompt tokens of a completed call, as the target counts them.
    """

    run_id: str
    seconds: float
    offered: int
    answered: float
    dry_run: bool
    seed: int | None
    verdict: str
    reason: str
    began: float | None
    ended: float | None
    e2e_p99_s: float | None = None
    growth_per_s: float | None = None
    work: Mapping[str, float] = field(default_factory=dict)
    share: Proportion = field(metadata=FOR_FIGURES)
    quantiles: Mapping[tuple[str, float], Quantile] = field(metadata=FOR_FIGURES)
    model: str = field(default="", metadata=FOR_FIGURES)


def summarize(folder: Path, metrics: Sequence[str]) -> RunSummary:
    """Read one run; RunDataError where it has no request in its steady stage."""
    frames = load([folder])
    evidence = evidence_of(frames)
    stage = evidence.of_target
    offered = len(stage.requests)
    if not offered:
        raise RunDataError(f"{folder}: no request in the steady stage, nothing to compare")
    against = reasons(COMPARABLE, evidence)
    began, ended = _times(frames.run)
    steady = evidence.stability
    rows = {name: latency.row(BY_NAME[name], stage, latency.views(BY_NAME[name])[-1], PS) for name in metrics}
    models = stage.attempts["model"].mode()
    return RunSummary(
        run_id=frames.run["run_id"],
        seconds=stage.seconds,
        offered=offered,
        answered=answered(stage),
        dry_run=frames.run["dry_run"],
        seed=frames.run["seed"],
        verdict=worst(against),
        reason=against[0].text if against else "",
        began=began,
        ended=ended,
        e2e_p99_s=e2e_p99_s(stage),
        growth_per_s=steady.growth_per_s if steady.of(BACKLOG) else None,
        work=work(stage),
        share=proportion(_is_answered(stage)),
        quantiles={(name, found.p): found for name, row in rows.items() for found in row.quantiles},
        model=str(models[0]) if len(models) else "",
    )


def primary(scenario: Json, metrics: Sequence[str]) -> tuple[str, float]:
    """Return what decides: the scenario's first objective on a compared latency, else p95 of the first metric."""
    for criterion in criteria(scenario):
        p = criterion.objective.quantile
        if criterion.metric is not None and criterion.metric.name in metrics and p in PS:
            return criterion.metric.name, p
    return metrics[0], 0.95


def work(stage: Steady) -> dict[str, float]:
    """Return what a call asked of the target and got; of each call the attempt that answered it."""
    calls = stage.attempts[stage.attempts["ended"].isin(schema.COMPLETE)]
    calls = calls.drop_duplicates(["request_id", "leg"])
    computed, read = prompt_tokens(calls)
    means = {"output tokens": calls["output_tokens"].mean(), "prompt tokens": (computed + read).mean()}
    return {name: float(mean) for name, mean in means.items() if mean > 0}


def answered(stage: Steady) -> float:
    """Return the share of the offered requests with a complete answer; who left and what was still open have none."""
    return float(_is_answered(stage).mean())


def _is_answered(stage: Steady) -> Mask:
    return stage.requests["ended"].isin(schema.COMPLETE).to_numpy(np.bool_)


def e2e_p99_s(stage: Steady) -> float | None:
    """Return the time that 99 of 100 requests that ended took at most."""
    spent = (stage.requests["ended_at_ns"] - stage.requests["scheduled_at_ns"]).dropna().to_numpy(np.float64)
    return float(np.quantile(spent, 0.99, method="inverted_cdf") / 1e9) if len(spent) else None


def _times(run: Json) -> tuple[float | None, float | None]:
    try:
        began = datetime.fromisoformat(run["started_at"]).timestamp()
    except ValueError:
        return None, None
    start_ns = run["start_at_ns"]
    ended_ns = run["ended_at_ns"]
    if start_ns is None or ended_ns is None:
        return began, None
    return began, began + (ended_ns - start_ns) / 1e9
