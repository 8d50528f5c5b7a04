"""How much today's traffic may grow before a limit refuses its first call, with the cache and without.

Rule: the trace of today's level, repeated, against the bucket that all levels together tell (rate_limits.growth). A
bucket that is full at first carries a short trace beyond what is sustained, so how long the trace is must be said with
it. Of the capacity, which has no first refusal, it is the sustainable rate over today's.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tailgauge_analysis.headroom.estimate import Bound
from tailgauge_analysis.headroom.level import Level
from tailgauge_analysis.rate_limits.growth import Growth, growth


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
        ends = (limit.burst.low, limit.burst.value, limit.burst.high)
        told = [
            None if trace is None else growth(trace, limit.rate.value, ends)
            for trace in (today.offered.get((one.kind, True)), today.offered.get((one.kind, False)))
        ]
        out.append(Grown(one.kind, told[0], told[1] or told[0]))
    return out


def least(several: Sequence[Growth | None]) -> Growth | None:
    """That of the limit that refuses first."""
    known = [one for one in several if one is not None and (one.value is not None or one.low is not None)]
    return min(known, key=_value, default=None)


def _value(one: Growth) -> float:
    return one.value if one.value is not None else one.low or 0.0
