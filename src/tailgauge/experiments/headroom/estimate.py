"""The sustainable rate by what is known: of each limit, of the capacity, and of the one that is met first.

Rule: a limit is brought to a rate of requests by `sustained`; low and high come from the ends of its rate and of its
bucket, and of the mean of what requests ask for. Only a limit whose bucket was seen empty decides, or the capacity;
the others are told as what they may be.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from tailgauge.experiments.headroom.calls import together
from tailgauge.experiments.headroom.limits import CAPACITY, Limit, capacity, limits
from tailgauge.experiments.headroom.rate_result import Level, Rate
from tailgauge.experiments.headroom.sustained import asked, sustained
from tailgauge_analysis.stats.quantiles import Floats


@dataclass(frozen=True, slots=True)
class Bound:
    """The rate in requests a second that one limit sustains; `uncached` if nothing were read from the cache."""

    kind: str
    per_s: Rate
    uncached: Rate | None
    limit: Limit | None  # None of the capacity
    decides: bool


def bounds(levels: Sequence[Level], gaps: Floats, share: float) -> list[Bound]:
    """Of every limit that is known, the tightest first. `gaps`: of the planned arrivals, at any unit."""
    if not levels:
        return []
    found = []
    calls = together([one.calls for one in levels])
    for limit in limits(levels):
        with_cache = calls.of(limit.kind, cached=True)
        without = calls.of(limit.kind, cached=False)
        if not len(with_cache) or with_cache.sum() <= 0:
            continue
        per_s = _sustained(limit, gaps, with_cache, share)
        uncached = per_s if without is with_cache else _sustained(limit, gaps, without, share)
        found.append(Bound(limit.kind, per_s, uncached, limit, limit.seen))
    served = capacity(levels, share)
    if served is not None:
        found.append(Bound(CAPACITY, served, None, None, decides=True))
    return sorted(found, key=lambda one: one.per_s.high)


def _sustained(limit: Limit, gaps: Floats, charge: Floats, share: float) -> Rate:
    of = asked(gaps, charge)
    rate, burst = limit.rate, limit.burst
    ends = {(rate.value, burst.value), (rate.low, burst.low), (rate.high, burst.high)}
    known = {end: sustained(of, *end, share) for end in ends}
    value = known[rate.value, burst.value]
    low = known[rate.low, burst.low] * (1 - of.unsure)
    high = known[rate.high, burst.high] * (1 + of.unsure)
    return Rate(value, low, high)


def borne(found: Sequence[Bound], per_s: float | None) -> list[Bound]:
    """The same, limits that were never met bearing at least a rate that passed."""
    if per_s is None:
        return list(found)
    out = []
    for one in found:
        if one.decides or one.limit is None:
            out.append(one)
            continue
        rate = Rate(max(one.per_s.value, per_s), max(one.per_s.low, per_s), max(one.per_s.high, per_s))
        out.append(replace(one, per_s=rate, uncached=rate if one.uncached == one.per_s else one.uncached))
    return out


def lowest(found: Sequence[Bound]) -> Rate | None:
    """The sustainable rate by the limits that decide."""
    rates = [one.per_s for one in found if one.decides]
    if not rates:
        return None
    return Rate(min(r.value for r in rates), min(r.low for r in rates), min(r.high for r in rates))


def by_capacity(found: Sequence[Bound]) -> bool:
    """Whether the capacity is what is met first."""
    return next((one.limit is None for one in found if one.decides), False)


def ceiling(found: Sequence[Bound]) -> float | None:
    """What no limit that headers name will let pass for long."""
    return min((one.per_s.high for one in found if one.limit is not None), default=None)
