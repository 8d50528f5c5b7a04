"""One run as a point of the curve: its figures, and what decides whether the objectives hold at its load."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import cast

import numpy as np

from tailgauge.experiments.course import RunReading
from tailgauge.experiments.headroom import measure
from tailgauge.experiments.headroom.judge import RateResult
from tailgauge_analysis import (
    FAIL,
    INCONCLUSIVE,
    OFFERED,
    PASS,
    UNKNOWN,
    Criterion,
    CurvePoint,
    Ends,
    Proportion,
    decided_latency,
    good_requests,
    on_latency,
    percentile,
    unknown_pace,
)
from tailgauge_analysis import (
    CurveObjective as Objective,
)
from tailgauge_analysis import (
    CurveOutcome as Outcome,
)
from tailgauge_analysis import (
    CurveQuantile as Quantile,
)
from tailgauge_analysis import (
    block_answered as answered,
)
from tailgauge_analysis import (
    block_work as work,
)
from tailgauge_analysis import (
    latency_row as row,
)
from tailgauge_analysis import (
    quantile_values as quantile,
)
from tailgauge_analysis import (
    worst_outcome as worst,
)
from tailgauge_analysis.stats import quantiles

SHOWN = ("ttft", "e2e", "tpot")
PS = (0.5, 0.9, 0.95, 0.99)


@dataclass(frozen=True, slots=True)
class LoadResult:
    """A run at one load. `late`: requests beyond the bound of each objective, in the order of [slo]."""

    rate: RateResult
    point: CurvePoint
    late: tuple[Proportion, ...]

    @property
    def load(self) -> float:
        """As it was planned."""
        return self.point.load


def described(one: Criterion) -> Objective:
    """An objective as the curve names it."""
    of = one.objective
    return Objective(_name(one), percentile(of.quantile), of.bound, f"{of.label} < {of.bound:,.6g} ms")


def _name(one: Criterion) -> str:
    return one.objective.metric if one.is_of_all else f"{one.objective.metric}_{one.name}"


def load_result(load: float, reading: RunReading, *, today: bool, refused: float) -> LoadResult:
    """The point of a run; `refused`: allowed share of its calls."""
    evidence, stage = reading.evidence, reading.steady
    rate = measure.rate_result(load, reading, emptied=False, today=today, good=0.0)
    wanted = on_latency(reading.frames.run["scenario"])
    decided = [decided_latency(one, stage).outcome.upper() for one in wanted]
    done, tokens = evidence.throughput, work(stage)
    latency = {name: _latency(reading, name) for name in SHOWN}
    over = rate.refused.low is not None and rate.refused.low > refused
    point = CurvePoint(
        load=load, runs=(reading.run_id,), seconds=stage.seconds, requests=rate.requests,
        complete=answered(stage) if rate.requests else 0.0, refused=Ends.of(rate.refused),
        growth_per_s=rate.growth_per_s if rate.growing else None,
        stable=False if rate.growing else evidence.stability.stable,
        meets=cast("Outcome", worst([FAIL if rate.growing or over else PASS, *decided]) if rate.requests else INCONCLUSIVE),
        requests_per_s=Ends.of(done.requests and done.requests.rate()),
        output_tokens_per_s=Ends.of(done.tokens and done.tokens.rate()), good_per_s=_good(reading, wanted),
        latency=latency | {_name(one): _of(reading, one) for one in wanted},
        user_tokens_per_s=latency["tpot"].get("p50", UNKNOWN).under(1000),
        prompt_tokens=tokens.get("prompt tokens"), output_tokens=tokens.get("output tokens"),
    )  # fmt: skip
    late = tuple(one.beyond(one.part(stage)) for one in wanted)
    return LoadResult(rate, point, late)


def _latency(reading: RunReading, name: str) -> dict[Quantile, Ends]:
    """Of all requests; ttft and e2e since scheduled, in a closed loop since sent."""
    since = "_sent" if reading.frames.run["arrival"] == "closed" else "_sched"
    of = {one.metric.name: one for one in reading.evidence.latency if one.view == OFFERED}
    return _quantiles((of.get(name) or of[name + since]).quantiles)


def _of(reading: RunReading, one: Criterion) -> dict[Quantile, Ends]:
    """Of the requests of an objective, at its quantile too."""
    ps = tuple(sorted({*PS, one.objective.quantile}))
    assert one.metric is not None
    return _quantiles(row(one.metric, one.part(reading.steady), one.view, ps).quantiles)


def _quantiles(every: Sequence[quantiles.Quantile]) -> dict[Quantile, Ends]:
    shown = [(one, quantile(one)) for one in every]
    return {percentile(one.p): Ends(of["value"], of["low"], of["high"]) for one, of in shown}


def _good(reading: RunReading, wanted: Sequence[Criterion]) -> Ends:
    """Good requests that ended per second."""
    work, warmup = reading.evidence.throughput.requests, reading.evidence.warmup
    if work is None or warmup is None or unknown_pace(wanted, reading.steady):
        return UNKNOWN
    stages = reading.steady, warmup
    ids = [of.requests["request_id"].to_numpy(np.int64)[good_requests(wanted, of)] for of in stages]
    return Ends.of(work.rate(np.concatenate(ids)))
