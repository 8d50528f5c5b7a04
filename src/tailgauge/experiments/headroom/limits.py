"""The limits that all runs together show, the endpoint's capacity, and the rate that each sustains.

Limits are the same in every run, so their intervals are intersected; if runs contradict each other, the interval covers
all of them. The rate in a header is used if the 429s are consistent with it. Capacity is the rate of answers while the
backlog grows, or while calls are refused as overload (529, 503). A limit becomes a rate of requests by
`sustained`, its interval by the ends of its rate and of its bucket and by the mean charge of a request. Only a limit whose
bucket was seen empty decides, or the capacity.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from tailgauge.experiments.headroom.judge import Rate, RateResult
from tailgauge.experiments.headroom.sustained import offered, sustained
from tailgauge_analysis.sections.rate_limits.estimates import DECISIONS, Estimate
from tailgauge_analysis.stats.quantiles import Floats

CAPACITY, OBJECTIVES = "capacity", "objectives"
FEWEST = 5  # 429s by which a limit is taken to bind
WHOLE_S = 60  # a bucket holds no more than comes back in a minute


@dataclass(frozen=True, slots=True)
class Limit:
    """A limit: units per second, and in its bucket. `counted`: when its cost is counted; `refused`: its 429s in all runs;
    `seen`: its bucket was seen empty.
    """

    kind: str
    counted: str
    refused: int
    rate: Rate
    burst: Rate
    seen: bool


@dataclass(frozen=True, slots=True)
class Bound:
    """The rate in requests/s that one limit sustains; `uncached`: without reads from the cache."""

    kind: str
    per_s: Rate
    uncached: Rate | None
    limit: Limit | None  # None of the capacity
    decides: bool


def limits(runs: Sequence[RateResult]) -> Iterator[Limit]:
    """Every limit whose rate is known."""
    for kind in dict.fromkeys(one.kind for run in runs for one in run.buckets):
        buckets = [one for run in runs for one in run.buckets if one.kind == kind]
        rates = [one.rate for one in buckets if one.rate.value is not None]
        headed = [rate for rate in rates if rate.how != DECISIONS]
        doubted = [rate for rate in rates if rate.how == DECISIONS and rate.why is not None]
        rate = _common(doubted or headed or rates)
        if rate is None:
            continue
        bursts = [one.burst for one in buckets if one.burst.low is not None or one.burst.value is not None]
        exact = [one for one in bursts if one.value is not None]
        at_once = _common(exact) or _bounded(bursts, rate)
        refused, counted = (
            sum(one.refused for one in buckets),
            max(buckets, key=lambda one: one.refused).counted,
        )
        yield Limit(kind, counted, refused, rate, at_once, bool(exact) and refused > 0)


def _common(several: Sequence[Estimate]) -> Rate | None:
    """The intersection of the intervals, or their hull if that is empty."""
    known = [(one.value, one.low, one.high) for one in several if one.value is not None]
    if not known:
        return None
    lows = [value if low is None else low for value, low, _ in known]
    highs = [value if high is None else high for value, _, high in known]
    low, high = max(lows), min(highs)
    if low > high:
        low, high = min(lows), max(highs)
    middle = sorted(value for value, _, _ in known)[len(known) // 2]
    return Rate(min(max(middle, low), high), low, high)


def _bounded(several: Sequence[Estimate], rate: Rate) -> Rate:
    """A bucket that was never seen empty: at least what was admitted, at most a minute of refill."""
    low = max((one.low for one in several if one.low is not None), default=1.0)
    high = min((one.high for one in several if one.high is not None), default=math.inf)
    high = max(low, min(high, rate.high * WHOLE_S))
    return Rate(low, low, high)


def capacity(runs: Sequence[RateResult], share: float) -> Rate | None:
    """Requests answered per second at capacity; None if no run reached it. `share`: allowed as refused.

    That of the lowest rate that reached it. What a target answers may depend on how many calls wait, so the interval is that
    of all rates.
    """
    full: dict[float, list[RateResult]] = {}
    for one in runs:
        if (one.saturated or _overloaded(one, share)) and math.isfinite(one.served.high):
            full.setdefault(one.rate_per_s, []).append(one)
    if not full:
        return None
    each = [_served(full[rate]) for rate in sorted(full)]
    return Rate(each[0].value, min(one.low for one in each), max(one.high for one in each))


def _served(runs: Sequence[RateResult]) -> Rate:
    share = np.array([one.seconds for one in runs]) / sum(one.seconds for one in runs)
    low, value, high = np.array([(one.served.low, one.served.value, one.served.high) for one in runs]).T
    middle = float(share @ value)
    below, above = (float(np.linalg.norm(share * (end - value))) for end in (low, high))
    return Rate(middle, middle - below, middle + above)


def _overloaded(one: RateResult, share: float) -> bool:
    return one.requests > 0 and one.overloaded > 2 * share * one.requests and one.overloaded > FEWEST


def binding(failed: Sequence[RateResult]) -> str | None:
    """What failed the runs: the limit that refused most calls, the capacity, or the objectives."""
    counts = by_kind(failed)
    over = sum(one.overloaded for one in failed)
    most = max(counts, key=counts.__getitem__, default=None)
    if most is not None and counts[most] >= over and counts[most] >= FEWEST:
        return most
    if over or any(one.growing for one in failed):
        return CAPACITY
    missed = any(one.missed for run in failed for one in run.objectives)
    return OBJECTIVES if missed else most


def by_kind(runs: Sequence[RateResult]) -> Counter[str]:
    """429s of each limit."""
    counts: Counter[str] = Counter()
    for one in runs:
        counts.update(one.kinds)
    return counts


def bounds(runs: Sequence[RateResult], gaps: Floats, share: float) -> list[Bound]:
    """A bound per known limit, the tightest first. `gaps`: of the planned arrivals, in any unit."""
    if not runs:
        return []
    found = []
    for limit in limits(runs):
        cached = np.concatenate([one.charges.cached[limit.kind] for one in runs])
        if not len(cached) or cached.sum() <= 0:
            continue
        per_s = uncached = _sustained(limit, gaps, cached, share)
        if limit.kind in runs[0].charges.uncached:
            whole = np.concatenate([one.charges.uncached[limit.kind] for one in runs])
            uncached = _sustained(limit, gaps, whole, share)
        found.append(Bound(limit.kind, per_s, uncached, limit, limit.seen))
    served = capacity(runs, share)
    if served is not None:
        found.append(Bound(CAPACITY, served, None, None, decides=True))
    return sorted(found, key=lambda one: one.per_s.high)


def _sustained(limit: Limit, gaps: Floats, charges: Floats, share: float) -> Rate:
    of = offered(gaps, charges)
    rate, burst = limit.rate, limit.burst
    ends = {(rate.value, burst.value), (rate.low, burst.low), (rate.high, burst.high)}
    known = {end: sustained(of, *end, share) for end in ends}
    value = known[rate.value, burst.value]
    low = known[rate.low, burst.low] * (1 - of.unsure)
    high = known[rate.high, burst.high] * (1 + of.unsure)
    return Rate(value, low, high)


def at_least(found: Sequence[Bound], per_s: float | None) -> list[Bound]:
    """The same; limits that were never met sustain at least a rate that was sustained, as far as their headers allow it."""
    if per_s is None:
        return list(found)
    return [one if one.decides or one.limit is None else _raised(one, per_s) for one in found]


def _raised(one: Bound, per_s: float) -> Bound:
    low = max(one.per_s.low, min(per_s, one.per_s.high))
    rate = Rate(max(one.per_s.value, low), low, one.per_s.high)
    return replace(one, per_s=rate, uncached=rate if one.uncached == one.per_s else one.uncached)


def lowest(found: Sequence[Bound]) -> Rate | None:
    """The sustainable rate by the limits that decide."""
    rates = [one.per_s for one in found if one.decides]
    if not rates:
        return None
    return Rate(min(r.value for r in rates), min(r.low for r in rates), min(r.high for r in rates))


def by_capacity(found: Sequence[Bound]) -> bool:
    """Whether the capacity is met first."""
    return next((one.limit is None for one in found if one.decides), False)


def ceiling(found: Sequence[Bound]) -> float | None:
    """The rate above which a limit in the headers refuses for certain."""
    return min((one.per_s.high for one in found if one.limit is not None), default=None)
