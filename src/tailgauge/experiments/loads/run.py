"""Measure a run of one load: a few numbers from its steady stage, and its rate limits from the whole run.

A rate counts arrivals: requests, or conversations whose later turns follow by themselves. What is counted in requests is
divided by the requests of an arrival. Refused are attempts with a 429 or an overload (529, 503).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import pandas as pd

from tailgauge.experiments.course import RunReading
from tailgauge.rows import schema
from tailgauge.rows.schema import TURNS
from tailgauge_analysis import (
    BACKLOG,
    FEWEST_FOR_GROWTH,
    INPUT,
    OUTPUT,
    REQUESTS,
    TOKENS,
    Bucket,
    Criterion,
    Floats,
    Proportion,
    ended_as,
    known_buckets,
    on_latency,
    proportion,
    refusal_kinds,
    refused_attempts,
)

OVERFLOW = 0.1  # growth of the backlog, as a share of the arrivals, that only a full target shows
WRITTEN = ["input_tokens", "cache_creation_input_tokens"]
READ = "cache_read_input_tokens"


@dataclass(frozen=True, slots=True)
class Interval:
    """A value with the interval that it lies in."""

    value: float
    low: float
    high: float

    def __post_init__(self) -> None:
        assert self.low <= self.value <= self.high, self


@dataclass(frozen=True, slots=True)
class Exceedance:
    """The share of the requests that missed an objective, and the share that may."""

    name: str
    missed: Proportion
    allowed: float


@dataclass(frozen=True, slots=True)
class Charges:
    """What each request costs, by kind of limit, and the input without reads from the cache."""

    cached: Mapping[str, Floats]
    uncached: Mapping[str, Floats]


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadRun:
    """A run at one load: arrivals per second, or requests in flight.

    `load` is the planned one, `arrived` what came of it. `kinds`: 429s by kind of limit. `served`, `growth_per_s` (of the
    backlog; None if not judged) and `detectable_per_s` (growth that would have been seen) in arrivals. `saturated`: the backlog
    grew by much, so what was served is all that the target can do. `stay_s`: nine in ten arrivals stay no longer.
    """

    load: float
    arrived: float
    seconds: float
    requests: int
    refused: Proportion
    overloaded: int = 0
    kinds: Mapping[str, int]
    objectives: tuple[Exceedance, ...] = ()
    served: Interval
    growth_per_s: float | None
    detectable_per_s: float
    growing: bool
    saturated: bool
    stay_s: float
    buckets: tuple[Bucket, ...] = ()
    charges: Charges


def measure(
    load: float,
    reading: RunReading,
    *,
    requests_per_arrival: float,
    is_open: bool = True,
) -> LoadRun:
    """Measure a run."""
    stage = reading.steady
    stability = reading.evidence.stability
    overloads = ended_as(stage.sent, schema.OVERLOADED)
    buckets = known_buckets(reading.frames)
    served = _served(reading)
    offered_per_s = reading.evidence.throughput.offered_per_s or 0.0
    growth_per_s = stability.growth_per_s
    if growth_per_s is None:
        overflows = served.value < offered_per_s / 2 and len(stage.requests) >= FEWEST_FOR_GROWTH
        growing = overflows
    else:
        overflows = growth_per_s > OVERFLOW * offered_per_s
        growing = overflows and growth_per_s > (stability.detectable_growth_per_s or 0.0)
    growing = growing or stability.of(BACKLOG) is not None
    return LoadRun(
        load=load,
        arrived=len(stage.requests) / stage.seconds / requests_per_arrival if is_open else load,
        seconds=stage.seconds,
        requests=len(stage.requests),
        refused=proportion(refused_attempts(stage.sent) | overloads),
        overloaded=int(overloads.sum()),
        kinds={str(kind): int(n) for kind, n in refusal_kinds(stage.sent)["kind"].value_counts().items()},
        objectives=exceedances(reading),
        served=Interval(*(end / requests_per_arrival for end in (served.value, served.low, served.high))),
        growth_per_s=None if growth_per_s is None else growth_per_s / requests_per_arrival,
        detectable_per_s=(stability.detectable_growth_per_s or 0.0) / requests_per_arrival,
        growing=growing,
        saturated=growing and overflows,
        stay_s=_stay_s(stage.requests),
        buckets=tuple(b for b in buckets if (b.target, b.model) == (buckets[0].target, buckets[0].model)),
        charges=charges(stage.sent),
    )


def objective_text(row: Criterion) -> str:
    """Name an objective with its bound: `ttft p95 < 800 ms`."""
    return f"{row.objective.label} < {row.objective.bound:,.6g} ms"


def exceedances(reading: RunReading) -> tuple[Exceedance, ...]:
    """Count the requests beyond the bound of each objective."""
    shares = []
    for row in on_latency(reading.frames.run["scenario"]):
        missed = row.beyond(row.part(reading.steady))
        shares.append(Exceedance(objective_text(row), missed, 1 - row.objective.quantile))
    return tuple(shares)


def _served(reading: RunReading) -> Interval:
    """Return the requests answered per second."""
    work = reading.evidence.throughput.requests
    rate = None if work is None else work.rate()
    if rate is None:
        return Interval(0.0, 0.0, math.inf)
    if rate.low is None or rate.high is None:
        return Interval(rate.value, 0.0, math.inf)
    return Interval(rate.value, rate.low, rate.high)


def _stay_s(requests: pd.DataFrame) -> float:
    """Return how long nine in ten arrivals stayed, from the first turn to the end of the last."""
    answered = requests[requests["ended"].isin(schema.COMPLETE)]
    if not len(answered):
        return 0.0
    by_arrival = answered.groupby(answered["request_id"] // TURNS)
    stays_ns = by_arrival["ended_at_ns"].max() - by_arrival["scheduled_at_ns"].min()
    return float(stays_ns.quantile(0.9)) / 1e9


def charges(attempts: pd.DataFrame) -> Charges:
    """Sum what the first attempts of each request use of each limit; a refused call gets the median of its traffic."""
    first = attempts[(attempts["cause"] != schema.RETRY) & attempts["sent_at_ns"].notna()]
    requests = first["request_id"]
    fresh = _filled(first, first[WRITTEN].sum(axis=1))
    read = _filled(first, first[READ].fillna(0))
    output = _filled(first, first["output_tokens"])
    calls = pd.Series(1.0, first.index)
    by_kind = {REQUESTS: calls, INPUT: fresh, OUTPUT: output, TOKENS: fresh + read + output}
    cached = {kind: _summed(values, requests) for kind, values in by_kind.items()}
    return Charges(cached, {INPUT: _summed(fresh + read, requests)})


def _summed(values: pd.Series[float], requests: pd.Series[int]) -> Floats:
    return np.asarray(values.groupby(requests).sum(), dtype=np.float64)


def _filled(rows: pd.DataFrame, values: pd.Series[float]) -> pd.Series[float]:
    known = values.where(rows["input_tokens"].notna())
    medians = known.groupby(rows["traffic"], observed=True).transform("median")
    return known.fillna(medians).fillna(known.median()).fillna(0.0).astype(np.float64)
