"""A run as one block of a comparison: its quantiles, its verdict, when it ran.

One run is loaded at a time, and only its figures are kept: those of the report (steady stage, offered view if the metric
has one, without slow readers).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from pathlib import Path
from typing import Any

import numpy as np

from tailgauge.errors import RunDataError
from tailgauge.rows import schema
from tailgauge_analysis.metrics import latency
from tailgauge_analysis.metrics.answers import prompt_tokens
from tailgauge_analysis.metrics.metrics import BY_NAME, Metric
from tailgauge_analysis.metrics.slo import criteria
from tailgauge_analysis.metrics.stability import BACKLOG
from tailgauge_analysis.metrics.steady import Steady
from tailgauge_analysis.run import Run
from tailgauge_analysis.stats.proportions import proportion
from tailgauge_analysis.stats.quantiles import Floats, Quantile
from tailgauge_analysis.text.json_values import Json
from tailgauge_analysis.text.quantile import UNPUBLISHED
from tailgauge_analysis.verdict.checks import COMPARABLE
from tailgauge_analysis.verdict.verdict import reasons, worst

PS = (0.5, 0.95, 0.99)
METRICS = ("ttft_sched", "tpot", "e2e_sched", "join_sched", "turnaround")


@dataclass(frozen=True, slots=True)
class Block:
    """One run, or one block of it. `began` and `ended` are seconds of the epoch."""

    run_id: str
    seconds: float
    offered: int
    answered: float
    quantiles: dict[tuple[str, float], Quantile] = field(metadata=UNPUBLISHED)
    dry_run: bool = False
    seed: int | None = None
    verdict: str = ""
    reason: str = ""
    began: float | None = None
    ended: float | None = None
    e2e_p99_s: float | None = None
    growth_per_s: float | None = None
    """By how much its requests in flight grow, if the target did not sustain the rate."""
    work: dict[str, float] = field(default_factory=dict)
    """Output and prompt tokens of a completed call, in the mean, as the target counts them; absent where it does not."""
    answered_ends: tuple[float, float] = field(default=(0.0, 1.0), metadata=UNPUBLISHED)
    """The 95% interval of `answered`."""
    model: str = field(default="", metadata=UNPUBLISHED)
    """Which most answers name."""
    ordered: dict[str, Floats] = field(default_factory=dict, metadata=UNPUBLISHED)
    """Each metric's values in ms, ascending, +inf without an answer; not where waits were cut short."""


def block(folder: Path, metrics: Sequence[str]) -> Block:
    """Read one run; RunDataError where it has no request in its steady stage."""
    run = Run([folder])
    record, evidence, stage = run.record, run.evidence, run.of_target
    offered = len(stage.requests)
    if not offered:
        raise RunDataError(f"{folder}: no request in the steady stage, nothing to compare")
    against = reasons(COMPARABLE, evidence)
    began, ended = _when(record)
    steady = evidence.stability
    share = proportion(stage.requests["ended"].isin(schema.COMPLETE).to_numpy(np.bool_))
    return Block(
        run_id=record["run_id"], dry_run=record["dry_run"], seed=record["seed"], verdict=worst(against),
        reason=against[0].text if against else "", began=began, ended=ended, seconds=stage.seconds, offered=offered,
        answered=answered(stage), e2e_p99_s=e2e_p99_s(stage), work=work(stage),
        growth_per_s=steady.growth_per_s if steady.of(BACKLOG) else None,
        answered_ends=(share.low or 0.0, 1.0 if share.high is None else share.high),
        model=str(next(iter(stage.attempts["model"].mode()), "")), **figures(stage, metrics),
    )  # fmt: skip


def pair_of(a: Block, b: Block) -> tuple[Block, Block]:
    """Two blocks, with their values where they have not the same number of them."""
    sizes = [{name: len(values) for name, values in one.ordered.items()} for one in (a, b)]
    return (a, b) if sizes[0] != sizes[1] else (replace(a, ordered={}), replace(b, ordered={}))


def primary(scenario: Json, metrics: Sequence[str]) -> tuple[str, float]:
    """What decides: the metric and percentile of the scenario's first objective on a compared latency, else p95 of the first."""
    for one in criteria(scenario):
        p = one.objective.quantile
        if one.metric is not None and one.metric.name in metrics and p in PS:
            return one.metric.name, p
    return metrics[0], 0.95


def figures(stage: Steady, metrics: Sequence[str]) -> dict[str, Any]:
    """Of every metric in its view: the quantiles at PS, and the values that equal sizes are drawn from."""
    rows = {name: latency.row(BY_NAME[name], stage, view(BY_NAME[name]), PS) for name in metrics}
    waits = {name: row.waits for name, row in rows.items() if row.waits is not None}
    return {
        "quantiles": {(name, q.p): q for name, row in rows.items() for q in row.quantiles},
        "ordered": {name: np.sort(one.values) for name, one in waits.items() if not one.cut.any()},
    }


def work(stage: Steady) -> dict[str, float]:
    """What the calls asked of the target and got: of each the attempt that answered it."""
    calls = stage.attempts[stage.attempts["ended"].isin(schema.COMPLETE)].drop_duplicates(
        ["request_id", "leg"]
    )
    computed, read = prompt_tokens(calls)
    means = {"output tokens": calls["output_tokens"].mean(), "prompt tokens": (computed + read).mean()}
    return {name: float(mean) for name, mean in means.items() if mean > 0}


def answered(stage: Steady) -> float:
    """Return the share of the offered requests with a complete answer; who left and what was still open have none."""
    return float(stage.requests["ended"].isin(schema.COMPLETE).mean())


def view(metric: Metric) -> str:
    """The offered view if the metric has one, so that fast failures do not look fast."""
    return latency.OFFERED if metric.offered else latency.SUCCESSES


def e2e_p99_s(stage: Steady) -> float | None:
    """99 of 100 requests that ended took at most so long."""
    spent = (stage.requests["ended_at_ns"] - stage.requests["scheduled_at_ns"]).dropna().to_numpy(np.float64)
    return float(np.quantile(spent, 0.99, method="inverted_cdf") / 1e9) if len(spent) else None


def _when(run: Json) -> tuple[float | None, float | None]:
    try:
        began = datetime.fromisoformat(run["started_at"]).timestamp()
    except ValueError:
        return None, None
    start, end = run["start_at_ns"], run["ended_at_ns"]
    return began, began + (end - start) / 1e9 if start is not None and end is not None else None
