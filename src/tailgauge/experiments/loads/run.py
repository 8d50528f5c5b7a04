"""Measure a run of one load: a few numbers from its steady stage, and its rate limits from the whole run.

A rate counts arrivals: requests, or conversations whose later turns follow by themselves. What is counted in requests is
divided by the requests of an arrival. Refused are attempts with a 429 or an overload (529, 503); polls of jobs are none.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

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
    Ints,
    Proportion,
    ended_as,
    growth_between,
    known_buckets,
    on_latency,
    refusal_kinds,
    refused_attempts,
    uncharged,
)

LEAST_GROWTH = 0.02  # of the conversations under way, as a share of those that arrive
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

    def divided(self, divisor: float) -> Interval:
        """Return the value and its ends, divided by a positive number."""
        return Interval(self.value / divisor, self.low / divisor, self.high / divisor)


@dataclass(frozen=True, slots=True)
class Exceedance:
    """The share of the requests that missed an objective, and the share that may."""

    name: str
    missed: Proportion
    allowed: float


@dataclass(frozen=True, slots=True)
class Charges:
    """What each request costs, by kind of limit, and the input without reads from the cache.

    `arrivals`: of which arrival a request is; `offsets_s`: how long after its first one.
    """

    cached: Mapping[str, Floats]
    uncached: Mapping[str, Floats]
    arrivals: Ints = field(default_factory=lambda: np.empty(0, np.int64))
    offsets_s: Floats = field(default_factory=lambda: np.empty(0))


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadRun:
    """A run at one load: arrivals per second, or requests in flight.

    `load` is the planned one, `arrived` what came of it. `refused_again`: of the `retries`, those that were refused too.
    `kinds`: 429s by kind of limit. `served`, `growth_per_s` (of the backlog; None if not judged) and `detectable_per_s`
    (growth that would have been seen) in arrivals. `saturated`: the backlog grew by much, so what was served is all that
    the target can do. `stay_s`: nine in ten arrivals stay no longer.
    """

    load: float
    arrived: float
    seconds: float
    requests: int
    refused: Proportion
    overloaded: int = 0
    retries: int = 0
    refused_again: int = 0
    kinds: Mapping[str, int]
    first_429_s: float | None = None
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
    """Return what a run at the planned load `load` shows; rates are in arrivals, as is `load`.

    `requests_per_arrival`: of a conversation. `is_open` False: a closed loop, whose load is users and whose backlog
    cannot grow. Refusals and growth are of the steady stage, the buckets of the whole run.
    """
    stage = reading.steady
    # Polls would dilute the share of refused submissions.
    calls = stage.sent[~uncharged(stage.sent)]
    retries = (calls["cause"] == schema.RETRY).to_numpy(np.bool_)
    overloads = ended_as(calls, schema.OVERLOADED)
    is_refused = refused_attempts(calls) | overloads
    # Limits of the first target and model alone.
    buckets = []
    all_buckets = known_buckets(reading.frames)
    for bucket in all_buckets:
        if (bucket.target, bucket.model) == (all_buckets[0].target, all_buckets[0].model):
            buckets.append(bucket)
    served = _served(reading).divided(requests_per_arrival)
    offered_per_s = (reading.evidence.throughput.offered_per_s or 0.0) / requests_per_arrival
    has_sessions = is_open and requests_per_arrival > 1
    if not is_open:
        growth = STEADY
    elif has_sessions:
        growth = _growth_of_sessions(reading, load)
        offered_per_s = load
    else:
        growth = _growth_of_requests(reading)
    # A growth that is not judged shows where less than half of the arrivals is answered.
    if growth.per_s is None:
        overflows = served.value < offered_per_s / 2 and len(stage.requests) >= FEWEST_FOR_GROWTH
        growing = overflows
    else:
        overflows = growth.per_s > OVERFLOW * offered_per_s
        growing = overflows and growth.per_s > growth.detectable_per_s
    growing = growing or growth.is_shown
    arrived = load
    if is_open:
        arrived = len(stage.requests) / stage.seconds / requests_per_arrival
    kind_counts = refusal_kinds(calls)["kind"].value_counts()
    return LoadRun(
        load=load,
        arrived=arrived,
        seconds=stage.seconds,
        requests=len(stage.requests),
        refused=stage.share_of(calls, is_refused),
        overloaded=int(overloads.sum()),
        retries=int(retries.sum()),
        refused_again=int((is_refused & retries).sum()),
        kinds={str(kind): int(count) for kind, count in kind_counts.items()},
        first_429_s=_first_429_s(reading),
        objectives=exceedances(reading),
        served=served,
        growth_per_s=growth.per_s,
        detectable_per_s=growth.detectable_per_s,
        growing=growing,
        saturated=growing and overflows,
        stay_s=_stay_s(stage.requests),
        buckets=tuple(buckets),
        charges=charges(stage.sent),
    )


def _first_429_s(reading: RunReading) -> float | None:
    """Return when the first call that got a 429 was sent, since the start of the run; None without one."""
    attempts = reading.frames.attempts
    refused = attempts[refused_attempts(attempts) & (attempts["stage"] != schema.PREFLIGHT)]
    first_ns = refused["sent_at_ns"].min()
    if pd.isna(first_ns):
        return None
    return float(first_ns) / 1e9


@dataclass(frozen=True, slots=True, kw_only=True)
class Backlog:
    """How fast arrivals pile up, per second: None where it is not judged."""

    per_s: float | None
    detectable_per_s: float
    is_shown: bool


# Users who wait for their answers have no backlog.
STEADY = Backlog(per_s=0.0, detectable_per_s=0.0, is_shown=False)


def _growth_of_requests(reading: RunReading) -> Backlog:
    """Return the growth that the report shows."""
    stability = reading.evidence.stability
    return Backlog(
        per_s=stability.growth_per_s,
        detectable_per_s=stability.detectable_growth_per_s or 0.0,
        is_shown=stability.of(BACKLOG) is not None,
    )


def _growth_of_sessions(reading: RunReading, load: float) -> Backlog:
    """Return the growth of the conversations under way: a later turn waits for the answer before it, so requests do not pile up."""
    stage = reading.steady
    rows = reading.frames.requests
    rows = rows[(rows["request_id"] >= 0) & (rows["ended"] != schema.CLIENT_DROP)]
    arrivals = rows["request_id"] // TURNS
    by_arrival = rows.groupby(arrivals)
    begun_s = by_arrival["scheduled_at_ns"].min().to_numpy(np.float64) / 1e9
    ended_s = by_arrival["ended_at_ns"].max().to_numpy(np.float64) / 1e9
    is_open = (rows["ended"] == schema.CENSORED).groupby(arrivals).any().to_numpy(np.bool_)
    ended_s = np.where(is_open | np.isnan(ended_s), np.inf, ended_s)
    if len(begun_s) < FEWEST_FOR_GROWTH:
        return Backlog(per_s=None, detectable_per_s=0.0, is_shown=False)
    growth = growth_between(begun_s, ended_s, stage.from_s, stage.to_s)
    return Backlog(
        per_s=growth.per_s,
        detectable_per_s=growth.detectable_per_s,
        is_shown=growth.rises and growth.per_s > LEAST_GROWTH * load,
    )


def objective_text(row: Criterion) -> str:
    """Name an objective with its bound: `ttft p95 < 800 ms`."""
    return f"{row.objective.label} < {row.objective.bound:,.6g} ms"


def exceedances(reading: RunReading) -> tuple[Exceedance, ...]:
    """Count the requests beyond the bound of each objective."""
    shares = []
    for criterion in on_latency(reading.frames.run["scenario"]):
        row = criterion.on(reading.steady)
        misses = row.beyond(row.part(reading.steady))
        shares.append(Exceedance(objective_text(row), misses, 1 - row.objective.quantile))
    return tuple(shares)


def _served(reading: RunReading) -> Interval:
    """Return the requests answered per second."""
    work = reading.evidence.throughput.requests
    rate = None
    if work is not None:
        rate = work.rate()
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
    """Sum what the first attempts of each request use of each limit.

    A call without usage gets that of another one of its request, as of the fetch of a job, else the median of its traffic.
    """
    sent = attempts[(attempts["cause"] != schema.RETRY) & attempts["sent_at_ns"].notna()]
    is_charged = ~uncharged(sent)
    charged = sent[is_charged]
    requests = charged["request_id"]
    fresh = _filled(sent, sent[WRITTEN].sum(axis=1))[is_charged]
    read = _filled(sent, sent[READ].fillna(0))[is_charged]
    output = _filled(sent, sent["output_tokens"])[is_charged]
    calls = pd.Series(1.0, charged.index)
    by_kind = {REQUESTS: calls, INPUT: fresh, OUTPUT: output, TOKENS: fresh + read + output}
    cached = {kind: _summed(values, requests) for kind, values in by_kind.items()}
    begun_s = _begun_s(charged)
    arrivals = begun_s.index // TURNS
    offsets_s = begun_s - begun_s.groupby(arrivals).transform("min")
    return Charges(
        cached,
        {INPUT: _summed(fresh + read, requests)},
        arrivals=arrivals.to_numpy(np.int64),
        offsets_s=offsets_s.to_numpy(np.float64),
    )


def _begun_s(attempts: pd.DataFrame) -> pd.Series[float]:
    """Return when the first call of each request was sent, in the order of `_summed`."""
    return attempts.groupby("request_id")["sent_at_ns"].min() / 1e9


def _summed(values: pd.Series[float], requests: pd.Series[int]) -> Floats:
    return np.asarray(values.groupby(requests).sum(), dtype=np.float64)


def _filled(rows: pd.DataFrame, values: pd.Series[float]) -> pd.Series[float]:
    reported = values.where(rows["input_tokens"].notna())
    of_request = reported.groupby([rows["request_id"], rows["leg"]]).transform("max")
    medians = reported.groupby(rows["traffic"], observed=True).transform("median")
    return (
        reported.fillna(of_request)
        .fillna(medians)
        .fillna(reported.median())
        .fillna(0.0)
        .astype(np.float64)
    )
