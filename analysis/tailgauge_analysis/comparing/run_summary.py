"""A run as a comparison sees it, and as a baseline keeps it: its figures, its verdict, when it ran, what must be equal.

One run is loaded at a time, and only its figures stay: those of the report (steady stage, offered view if the metric has one,
without slow readers).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from pathlib import Path
from typing import Annotated, Literal

import numpy as np
from pydantic import ConfigDict, Field, with_config

from tailgauge.errors import RunDataError
from tailgauge.rows import schema
from tailgauge_analysis.comparing.comparability import facts_of
from tailgauge_analysis.metrics import latency
from tailgauge_analysis.metrics.answers import prompt_tokens
from tailgauge_analysis.metrics.metrics import BY_NAME
from tailgauge_analysis.metrics.stability import BACKLOG
from tailgauge_analysis.metrics.steady import Steady
from tailgauge_analysis.objectives.objective import criteria
from tailgauge_analysis.reading import run_record
from tailgauge_analysis.run import Run
from tailgauge_analysis.stats.proportions import Proportion
from tailgauge_analysis.stats.quantiles import NORMAL_975, TOO_FEW, Quantile
from tailgauge_analysis.text.formatting import plain
from tailgauge_analysis.text.json_values import Json, number
from tailgauge_analysis.text.quantile import UNPUBLISHED
from tailgauge_analysis.verdict.checks import COMPARABLE
from tailgauge_analysis.verdict.verdict import reasons, worst

SCHEMA_VERSION: Literal[1] = 1
QUANTILES = (0.5, 0.95, 0.99)
METRICS = ("ttft_sched", "tpot", "e2e_sched", "join_sched", "turnaround")
ANSWERED_SHARE = "answered"

_STRICT = ConfigDict(extra="forbid", allow_inf_nan=False, use_attribute_docstrings=True)
NotNegative = Annotated[float, Field(ge=0)]
Primary = tuple[str, float]  # metric and percentile that decide


@with_config(_STRICT)
@dataclass(frozen=True, slots=True, kw_only=True)
class RunFigure:
    """A percentile of a latency of all offered requests, in ms, or the share of them that was answered."""

    metric: str
    """a name of docs/reference/metrics.md, or answered"""
    p: Annotated[float, Field(gt=0, lt=1)] | None
    """0.95 for the p95; null of the share"""
    value: NotNegative | None
    """null where it falls among requests without an answer"""
    low: NotNegative | None
    """of the 95% interval within the run; null where it has no such bound"""
    high: NotNegative | None
    """the same"""
    n: Annotated[int, Field(ge=1)]
    """values"""

    @property
    def size(self) -> float:
        """On the scale of a difference: a logarithm, or a share."""
        if self.value is None:
            return math.inf
        if self.p is None:
            return self.value
        return math.log(self.value)

    @property
    def error(self) -> float:
        """Standard error of `size` within the run; NaN where it has no interval."""
        distances = []
        for end in (self.low, self.high):
            if end:
                distances.append(abs(replace(self, value=end).size - self.size))
        if not distances:
            return math.nan
        return sum(distances) / len(distances) / NORMAL_975


@with_config(_STRICT)
@dataclass(frozen=True, slots=True, kw_only=True)
class RunSummary:
    """A file of a baseline; docs/reference/baseline.schema.json is generated from it."""

    schema_version: Literal[1] = SCHEMA_VERSION
    """version of these keys"""
    run_id: str
    """of the run"""
    started_at: str
    """UTC, ISO 8601"""
    began: float | None = None
    """seconds of the epoch"""
    ended: float | None = None
    """the same"""
    seconds: float
    """of the steady stage"""
    offered: int
    """requests in it"""
    dry_run: bool
    """whether nothing was sent"""
    seed: int | None
    """of arrivals, sizes and prompts"""
    verdict: str
    """of the measurement: VALID or DEGRADED"""
    reason: str
    """the first one; may be empty"""
    e2e_p99_s: float | None = None
    """time that 99 of 100 requests that ended took at most"""
    growth_per_s: float | None = None
    """by how much the backlog grew; null: the target sustained the rate"""
    work: dict[str, Annotated[float, Field(gt=0)]]
    """tokens of a completed call, as the target counts them"""
    primary: Primary = field(metadata=UNPUBLISHED)
    """metric and percentile that decide"""
    figures: tuple[RunFigure, ...] = field(metadata=UNPUBLISHED)
    """what is compared"""
    facts: dict[str, dict[str, str]] = field(metadata=UNPUBLISHED)
    """scenario, target, versions and machine: what must be equal, and other versions"""

    def figure(self, metric: str, p: float | None) -> RunFigure | None:
        """Return the figure with this name, if the run has it."""
        for figure in self.figures:
            if (figure.metric, figure.p) == (metric, p):
                return figure
        return None


def summarize(folder: Path, metrics: Sequence[str] = METRICS) -> RunSummary:
    """Return what a comparison needs of the run in a folder; RunDataError without a run, or without a request in its steady stage.

    `metrics`: whose percentiles are kept. The verdict is that of the checks for comparisons, the reason the first of theirs.
    """
    run_record.check(folder)
    run = Run([folder])
    frames = run.frames
    evidence = run.evidence
    stage = evidence.without_slow_readers
    offered = len(stage.requests)
    if not offered:
        raise RunDataError(f"{folder}: no request in the steady stage, nothing to compare")
    against = reasons(COMPARABLE, evidence)
    steady = evidence.stability
    reason = ""
    if against:
        reason = plain(against[0].text, 200)
    began, ended = _times(frames.run)
    return RunSummary(
        run_id=frames.run["run_id"],
        started_at=frames.run["started_at"],
        began=began,
        ended=ended,
        seconds=stage.seconds,
        offered=offered,
        dry_run=frames.run["dry_run"],
        seed=frames.run["seed"],
        verdict=worst(against),
        reason=reason,
        e2e_p99_s=e2e_p99_s(stage),
        growth_per_s=steady.growth_per_s if steady.of(BACKLOG) else None,
        work=work(stage),
        primary=primary(frames.run["scenario"], metrics),
        figures=tuple(_figures(stage, metrics)),
        facts=facts_of(frames.run, str(next(iter(stage.attempts["model"].mode()), ""))),
    )


def primary(scenario: Json, metrics: Sequence[str]) -> Primary:
    """Return what decides: the scenario's first objective on a compared latency, else p95 of the first metric."""
    for criterion in criteria(scenario):
        p = criterion.objective.quantile
        if criterion.metric is not None and criterion.metric.name in metrics and p in QUANTILES:
            return criterion.metric.name, p
    return metrics[0], 0.95


def _figures(stage: Steady, metrics: Sequence[str]) -> Iterator[RunFigure]:
    """Yield the share answered, then the percentiles that enough requests have."""
    share = stage.share(stage.requests["ended"].isin(schema.COMPLETE).to_numpy(np.bool_))
    yield _figure(ANSWERED_SHARE, None, share)
    for name in metrics:
        metric = BY_NAME[name]
        for quantile in latency.row(metric, stage, latency.views(metric)[-1], QUANTILES).quantiles:
            if quantile.mark != TOO_FEW:
                yield _figure(name, quantile.p, quantile)


def _figure(metric: str, p: float | None, estimate: Proportion | Quantile) -> RunFigure:
    value, low, high = map(_rounded, (estimate.value, estimate.low, estimate.high))
    return RunFigure(metric=metric, p=p, value=value, low=low, high=high, n=estimate.n)


def _rounded(value: float | None) -> float | None:
    if number(value) is None:
        return None
    return float(f"{value:.6g}")


def work(stage: Steady) -> dict[str, float]:
    """Return what a call asked of the target and got; of each call the attempt that answered it."""
    calls = stage.attempts[stage.attempts["ended"].isin(schema.COMPLETE)]
    calls = calls.drop_duplicates(["request_id", "leg"])
    computed, read = prompt_tokens(calls)
    means = {
        "output tokens": calls["output_tokens"].mean(),
        "prompt tokens": (computed + read).mean(),
    }
    work = {}
    for name, mean in means.items():
        if mean > 0:
            work[name] = float(f"{mean:.6g}")
    return work


def answered(stage: Steady) -> float:
    """Return the share of the offered requests with a complete answer; who left and what was still open have none."""
    return float(stage.requests["ended"].isin(schema.COMPLETE).mean())


def e2e_p99_s(stage: Steady) -> float | None:
    """Return the time that 99 of 100 requests that ended took at most."""
    spent = (
        (stage.requests["ended_at_ns"] - stage.requests["scheduled_at_ns"])
        .dropna()
        .to_numpy(np.float64)
    )
    if not len(spent):
        return None
    return float(np.quantile(spent, 0.99, method="inverted_cdf") / 1e9)


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
