"""One run as the result at one rate: a few numbers.

From the steady stage, except buckets, which depend on the whole run. Refused: 429 or overload (529, 503). The backlog
grows if, over the stage, more than a tenth of the arrivals was left waiting and the requests in flight rose throughout.
A request asks each limit for 1 per call, for input tokens without those read from the cache, for output tokens, or for
all tokens; first attempts only, summed over the calls of a request. A refused call gets the median of its traffic.
"""

from __future__ import annotations

import math

import numpy as np
import pandas as pd

from tailgauge.experiments.headroom.judge import Charges, Rate, RateResult, Trace
from tailgauge.experiments.reading import RunReading
from tailgauge.rows import schema
from tailgauge_analysis.metrics import slo
from tailgauge_analysis.reading.frames import Frames
from tailgauge_analysis.reading.rate_limit_headers import INPUT, KINDS, OUTPUT, REQUESTS, TOKENS
from tailgauge_analysis.sections.rate_limits.buckets import known_buckets, offered_load
from tailgauge_analysis.sections.rate_limits.costs import Costs, countings
from tailgauge_analysis.sections.rate_limits.refusals import kinds, refused
from tailgauge_analysis.stats.proportions import proportion
from tailgauge_analysis.stats.quantiles import Floats

TENTHS = 10
STUDENT = 2.262  # 97.5% of t with 9 degrees of freedom
LEFT = 0.1  # of the arrivals: more left waiting is growth
RISING = 0.8  # correlation of requests in flight with time
WRITTEN, READ = ["input_tokens", "cache_creation_input_tokens"], "cache_read_input_tokens"


def rate_result(rate_per_s: float, reading: RunReading, *, emptied: bool, today: bool) -> RateResult:
    """Result of a run; `today`: at today's rate, whose trace is kept."""
    frames, stage = reading.frames, reading.steady
    sent = stage.sent
    over = (sent["ended"] == schema.OVERLOADED).to_numpy(np.bool_)
    found = known_buckets(frames)
    first = [one for one in found if (one.target, one.model) == (found[0].target, found[0].model)]
    good = slo.goodput_of(frames.run["scenario"], stage, reading.evidence.warmup)
    edges = np.linspace(stage.from_s, stage.to_s, TENTHS + 1) * 1e9
    waiting = _waiting(reading, edges)
    arrived = len(stage.requests)
    return RateResult(
        rate_per_s=rate_per_s, emptied=emptied, seconds=stage.seconds, requests=arrived,
        refused=proportion(refused(sent) | over), overloaded=int(over.sum()),
        kinds={str(kind): int(n) for kind, n in kinds(sent)["kind"].value_counts().items()},
        good=good.good if good else None,
        served=_served(reading, edges), waiting=(float(waiting[0]), float(waiting[-1])),
        growing=waiting[-1] - waiting[0] > LEFT * arrived > 0 and _rises(waiting),
        buckets=tuple(first), charges=charges(sent), offered=_traces(frames) if today else {},
    )  # fmt: skip


def _waiting(reading: RunReading, at_ns: Floats) -> Floats:
    """Requests that have arrived and not ended, at each time."""
    requests = reading.frames.requests
    requests = requests[requests["ended"] != schema.CLIENT_DROP]
    begun = np.sort(requests["scheduled_at_ns"].to_numpy(np.float64))
    ended = np.sort(requests["ended_at_ns"].dropna().to_numpy(np.float64))
    waiting: Floats = (np.searchsorted(begun, at_ns) - np.searchsorted(ended, at_ns, "right")).astype(
        np.float64
    )
    return waiting


def _rises(series: Floats) -> bool:
    return bool(series.std() > 0 and np.corrcoef(np.arange(len(series)), series)[0, 1] >= RISING)


def _served(reading: RunReading, edges_ns: Floats) -> Rate:
    """Requests answered per second, over tenths of the stage."""
    rows = reading.frames.requests
    ended = rows.loc[rows["ended"] == schema.OK, "ended_at_ns"].dropna().to_numpy(np.float64)
    counts, _ = np.histogram(ended, edges_ns)
    per_s = counts / (np.diff(edges_ns) / 1e9)
    mean = float(per_s.mean())
    half = STUDENT * float(per_s.std(ddof=1)) / math.sqrt(len(per_s))
    return Rate(mean, mean - half, mean + half)


def _traces(frames: Frames) -> dict[Trace, Costs]:
    out = {}
    for kind in KINDS:
        for counted in countings(kind):
            for cached in (True, False) if kind == INPUT else (True,):
                events = offered_load(frames, kind, counted, cached=cached)
                if events is not None:
                    out[kind, counted, cached] = events
    return out


def charges(attempts: pd.DataFrame) -> Charges:
    """What the attempts of a stage use of each limit."""
    first = attempts[(attempts["cause"] != schema.RETRY) & attempts["sent_at_ns"].notna()]
    fresh = _filled(first, first[WRITTEN].sum(axis=1))
    read = _filled(first, first[READ].fillna(0))
    output = _filled(first, first["output_tokens"])
    each = {
        REQUESTS: pd.Series(1.0, first.index), INPUT: fresh, OUTPUT: output, TOKENS: fresh + read + output,
    }  # fmt: skip
    of = first["request_id"]
    return Charges({kind: _summed(one, of) for kind, one in each.items()}, {INPUT: _summed(fresh + read, of)})


def _summed(each: pd.Series[float], of: pd.Series[int]) -> Floats:
    return np.asarray(each.groupby(of).sum(), dtype=np.float64)


def _filled(rows: pd.DataFrame, values: pd.Series[float]) -> pd.Series[float]:
    known = values.where(rows["input_tokens"].notna())
    of_traffic = known.groupby(rows["traffic"], observed=True).transform("median")
    return known.fillna(of_traffic).fillna(known.median()).fillna(0.0).astype(np.float64)
