"""One run as the result at one rate: a few numbers.

From the steady stage, except buckets, which depend on the whole run. Refused: 429 or overload (529, 503). The backlog
grows if the run is found unstable by it; where that is not judged, if it leaves more than a tenth of the arrivals waiting,
or most of them where answers are too slow for their backlog to be measured.
A request asks each limit for 1 per call, for input tokens without those read from the cache, for output tokens, or for
all tokens; first attempts only, summed over the calls of a request. A refused call gets the median of its traffic.
"""

from __future__ import annotations

import math

import numpy as np
import pandas as pd

from tailgauge.experiments.course import RunReading
from tailgauge.experiments.headroom.judge import Charges, Met, Rate, RateResult, Trace
from tailgauge.rows import schema
from tailgauge_analysis import (
    BACKLOG,
    FEWEST_FOR_GROWTH,
    INPUT,
    KINDS,
    OUTPUT,
    REQUESTS,
    TOKENS,
    Costs,
    Criterion,
    Floats,
    Frames,
    Steady,
    Work,
    counted,
    countings,
    ended_as,
    goodput,
    known_buckets,
    offered_load,
    on_latency,
    proportion,
)
from tailgauge_analysis import (
    refusal_kinds as kinds,
)
from tailgauge_analysis import (
    refused_attempts as refused,
)

LEFT = 0.1  # of the arrivals: more left waiting is more than the target can do
WRITTEN, READ = ["input_tokens", "cache_creation_input_tokens"], "cache_read_input_tokens"


def rate_result(
    rate_per_s: float, reading: RunReading, *, emptied: bool, today: bool, good: float
) -> RateResult:
    """Result of a run; `today`: at today's rate, whose trace is kept; `good`: required share of good requests, or 0."""
    frames, stage = reading.frames, reading.steady
    sent = stage.sent
    over = ended_as(sent, schema.OVERLOADED)
    found = known_buckets(frames)
    first = [one for one in found if (one.target, one.model) == (found[0].target, found[0].model)]
    evidence = reading.evidence
    steady, offered = evidence.stability, evidence.throughput.offered_per_s or 0.0
    grows, detectable = steady.growth_per_s, steady.detectable_growth_per_s or 0.0
    served = _served(evidence.throughput.requests)
    if grows is None:
        much = served.value < offered / 2 and len(stage.requests) >= FEWEST_FOR_GROWTH
    else:
        much = grows > LEFT * offered
    growing = steady.of(BACKLOG) is not None or (much and (grows is None or grows > detectable))
    return RateResult(
        rate_per_s=rate_per_s, emptied=emptied, seconds=stage.seconds, requests=len(stage.requests),
        refused=proportion(refused(sent) | over), overloaded=int(over.sum()), objectives=_objectives(reading, good),
        kinds={str(kind): int(n) for kind, n in kinds(sent)["kind"].value_counts().items()},
        served=served, growth_per_s=grows, detectable_per_s=detectable, growing=growing, saturated=growing and much,
        answer_s=_answer_s(stage.requests), buckets=tuple(first), charges=charges(sent), offered=_traces(frames) if today else {},
    )  # fmt: skip


def _objectives(reading: RunReading, good: float) -> tuple[Met, ...]:
    """The share of good requests, if one is required; else each objective on a latency."""
    scenario, stage = reading.frames.run["scenario"], reading.steady
    if good:
        found = goodput(scenario, stage, reading.evidence.warmup)
        return (Met(found.good if found else counted(0, 0), good),)
    return tuple(_met(one, stage) for one in on_latency(scenario))


def _met(one: Criterion, stage: Steady) -> Met:
    """The share within the bound of one; requests that are slow together count as few."""
    beyond = one.beyond(one.part(stage))
    late = math.ceil(beyond.k * beyond.n_eff / beyond.n) if beyond.n else 0
    return Met(counted(beyond.n_eff - late, beyond.n_eff), one.objective.quantile)


def _served(completed: Work | None) -> Rate:
    """Requests answered per second."""
    rate = completed.rate() if completed is not None else None
    if rate is None or rate.low is None or rate.high is None:
        return Rate(rate.value if rate else 0.0, 0.0, math.inf)
    return Rate(rate.value, rate.low, rate.high)


def _answer_s(requests: pd.DataFrame) -> float:
    """How long nine of ten answers took at most."""
    answers = requests[requests["ended"].isin(schema.COMPLETE)]
    took = answers["ended_at_ns"] - answers["scheduled_at_ns"]
    return float(took.quantile(0.9)) / 1e9 if len(took) else 0.0


def _traces(frames: Frames) -> dict[Trace, Costs]:
    out = {}
    for kind in KINDS:
        for when in countings(kind):
            for cached in (True, False) if kind == INPUT else (True,):
                events = offered_load(frames, kind, when, cached=cached)
                if events is not None:
                    out[kind, when, cached] = events
    return out


def charges(attempts: pd.DataFrame) -> Charges:
    """What the attempts of a stage use of each limit."""
    first = attempts[(attempts["cause"] != schema.RETRY) & attempts["sent_at_ns"].notna()]
    fresh = _filled(first, first[WRITTEN].sum(axis=1))
    read = _filled(first, first[READ].fillna(0))
    out = _filled(first, first["output_tokens"])
    each = {REQUESTS: pd.Series(1.0, first.index), INPUT: fresh, OUTPUT: out, TOKENS: fresh + read + out}
    of = first["request_id"]
    return Charges({kind: _summed(one, of) for kind, one in each.items()}, {INPUT: _summed(fresh + read, of)})


def _summed(each: pd.Series[float], of: pd.Series[int]) -> Floats:
    return np.asarray(each.groupby(of).sum(), dtype=np.float64)


def _filled(rows: pd.DataFrame, values: pd.Series[float]) -> pd.Series[float]:
    known = values.where(rows["input_tokens"].notna())
    of_traffic = known.groupby(rows["traffic"], observed=True).transform("median")
    return known.fillna(of_traffic).fillna(known.median()).fillna(0.0).astype(np.float64)
