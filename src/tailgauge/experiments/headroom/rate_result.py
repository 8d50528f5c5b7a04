"""One level: a run at one rate, as few numbers as the search needs.

Rule: from the steady stage, but for the buckets, which remember the whole run. Refused is what got a 429 or an overload
(529, 503). A level grows if, over its stage, more than a tenth of what arrived was left waiting, and the requests in
flight rose all along: it cannot go on like that. `served` are requests answered a second, over tenths of the stage.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from tailgauge.experiments.headroom.calls import Calls, calls
from tailgauge.experiments.reading import Reading
from tailgauge.rows import schema
from tailgauge_analysis.load.frames import Frames
from tailgauge_analysis.load.rate_limit_headers import INPUT, KINDS
from tailgauge_analysis.metrics import slo
from tailgauge_analysis.sections.rate_limits.buckets import Bucket, known_buckets, offered_load
from tailgauge_analysis.sections.rate_limits.costs import Costs, countings
from tailgauge_analysis.sections.rate_limits.limit_kinds import kinds, refused
from tailgauge_analysis.stats.proportions import Proportion, proportion
from tailgauge_analysis.stats.quantiles import Floats

TENTHS = 10
STUDENT = 2.262  # 97.5% of t with 9 degrees of freedom
LEFT = 0.1  # of what arrived: more left waiting is growth
Trace = tuple[str, str, bool]  # kind of limit, how it counts, with the cache or without
RISING = 0.8  # correlation of requests in flight with time


@dataclass(frozen=True, slots=True)
class Rate:
    """A second, with its 95% interval."""

    value: float
    low: float
    high: float


@dataclass(frozen=True, slots=True)
class Level:
    """A run at one rate. `emptied`: it began with more, so that its limit was used up, or calls waited."""

    name: str
    rate_per_s: float
    emptied: bool
    verdict: str
    seconds: float
    requests: int
    refused: Proportion
    overloaded: int
    kinds: Mapping[str, int]  # 429s
    good: Proportion | None  # within every objective; None where there is none
    served: Rate
    waiting: tuple[float, float]  # requests in flight at the beginning and at the end
    growing: bool
    buckets: tuple[Bucket, ...]
    calls: Calls
    offered: Mapping[Trace, Costs]  # of today's level


def level(name: str, rate_per_s: float, reading: Reading, *, emptied: bool, today: bool) -> Level:
    """What a run says; `today`: of the traffic as it is, whose trace is kept."""
    frames, stage = reading.frames, reading.steady
    sent = stage.sent
    over = (sent["ended"] == schema.OVERLOADED).to_numpy(np.bool_)
    found = known_buckets(frames)
    first = [one for one in found if (one.target, one.model) == (found[0].target, found[0].model)]
    good = slo.goodput_of(slo.outcomes(frames.run["scenario"], stage), stage)
    edges = np.linspace(stage.from_s, stage.to_s, TENTHS + 1) * 1e9
    waiting = _waiting(reading, edges)
    arrived = len(stage.requests)
    return Level(
        name=name, rate_per_s=rate_per_s, emptied=emptied, verdict=reading.verdict, seconds=stage.seconds, requests=arrived,
        refused=proportion(refused(sent) | over), overloaded=int(over.sum()),
        kinds={str(kind): int(n) for kind, n in kinds(sent)["kind"].value_counts().items()},
        good=None if good is None else Proportion(good.good, good.offered, good.n_eff, good.share, good.low, good.high),
        served=_served(reading, edges), waiting=(float(waiting[0]), float(waiting[-1])),
        growing=waiting[-1] - waiting[0] > LEFT * arrived > 0 and _rises(waiting),
        buckets=tuple(first), calls=calls(sent), offered=_traces(frames) if today else {},
    )  # fmt: skip


def _waiting(reading: Reading, at_ns: Floats) -> Floats:
    """Requests that have arrived and not ended, at each time."""
    wanted = reading.frames.requests
    wanted = wanted[wanted["ended"] != schema.CLIENT_DROP]
    begun = np.sort(wanted["scheduled_at_ns"].to_numpy(np.float64))
    ended = np.sort(wanted["ended_at_ns"].dropna().to_numpy(np.float64))
    counted: Floats = (np.searchsorted(begun, at_ns) - np.searchsorted(ended, at_ns, "right")).astype(
        np.float64
    )
    return counted


def _rises(series: Floats) -> bool:
    return bool(series.std() > 0 and np.corrcoef(np.arange(len(series)), series)[0, 1] >= RISING)


def _served(reading: Reading, edges_ns: Floats) -> Rate:
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
