"""How much today's traffic may grow before a limit refuses its first call, with the cache and without.

Rule: the trace of today's level, repeated, against the bucket that all levels together tell (rate_limits.growth). A
bucket that is full at first carries a short trace beyond what is sustained, so how long the trace is must be said with
it. Of the capacity, which has no first refusal, it is the sustainable rate over today's.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from tailgauge.experiments.headroom.estimate import Bound
from tailgauge.experiments.headroom.limits import Limit
from tailgauge.experiments.headroom.rate_result import Level
from tailgauge_analysis.sections.rate_limits.costs import Costs
from tailgauge_analysis.sections.rate_limits.growth import Growth, growth


@dataclass(frozen=True, slots=True)
class Grown:
    """Of one limit: as it is, and if nothing were read from the cache; None where the record does not hold it."""

    kind: str
    cached: Growth | None
    uncached: Growth | None


def grown(today: Level, found: Sequence[Bound]) -> list[Grown]:
    """Of every limit that is known, in that order."""
    out = []
    for one in found:
        limit = one.limit
        if limit is None:
            by, now = one.per_s, today.rate_per_s
            ratio = Growth(by.value / now, by.low / now, by.high / now, today.requests, None)
            out.append(Grown(one.kind, ratio, ratio))
            continue
        borne = not today.kinds.get(one.kind)
        told = [
            None
            if (trace := today.offered.get((one.kind, limit.counted, cached))) is None
            else _grown(trace, limit, borne=borne and cached)
            for cached in (True, False)
        ]
        out.append(Grown(one.kind, told[0], told[1] or told[0]))
    return out


def _grown(trace: Costs, limit: Limit, *, borne: bool) -> Growth:
    """Only bounds where the bucket is only bounded; at least 1 where today's traffic was borne."""
    burst = limit.burst
    one = growth(trace, limit.rate.value, (burst.low, burst.value, burst.high))
    if one.low is None:
        return one
    floor = 1.0 if borne else 0.0
    value = None if one.value is None or not limit.seen else max(floor, one.value)
    high = None if one.high is None else max(floor, one.high)
    return replace(one, value=value, low=max(floor, one.low), high=high)


def least(several: Sequence[Growth | None]) -> Growth | None:
    """That of the limit that refuses first."""
    known = [one for one in several if one is not None and (one.value is not None or one.low is not None)]
    return min(known, key=_value, default=None)


def _value(one: Growth) -> float:
    return one.value if one.value is not None else one.low or 0.0
