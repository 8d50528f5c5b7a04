"""The limits that all runs together show, the endpoint's capacity, and the rate that each sustains.

Limits are the same in every run, so their intervals are intersected; if runs contradict each other, the interval covers
all of them. The rate in a header is used if the 429s are consistent with it. Capacity is the rate of answers while the
backlog grows, or while calls are refused as overload (529, 503). A limit becomes a rate of requests by
`sustained`, its interval by the ends of its rate and of its bucket and by the mean charge of a request. Only a limit whose
bucket was seen empty decides, or the capacity.

The rate that a bucket sustains is that at which it refuses, in the long run, exactly the allowed share of the requests.
Input: gaps of the planned arrivals, and measured charges of the requests. A bucket that holds many requests is a
reflected Brownian motion on [0, burst]: with the drift m = demand - refill and the variance v of the demand, both per
second, it loses

    m / (1 - exp(-2 m burst / v))   per second, v / (2 burst) if m = 0,

within 0.3% of the exact rate from 20 requests on (M/D/1/K, Poisson arrivals). A smaller bucket is replayed request by
request. The variance is that of the demand in windows as long as the bucket takes to fill, so that bursts count.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from tailgauge.experiments.headroom.judge import Rate, RateResult, Runs
from tailgauge_analysis import (
    DECISIONS,
    SEED,
    Estimate,
    Floats,
)

CAPACITY, OBJECTIVES = "capacity", "objectives"
FEWEST = 5  # 429s by which a limit is taken to bind
WHOLE_S = 60  # a bucket holds no more than comes back in a minute
MANY = 30  # requests that a bucket holds; below it is replayed
SPAN = (0.01, 2.0)  # rates tried, relative to the one that uses all of the refill
STEPS, STEPS_REPLAYED = 40, 12
LEAST = 20  # requests of a window at least
NORMAL = 1.96


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


Bounds = Sequence[Bound]


def limits(runs: Runs) -> Iterator[Limit]:
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
        refused, most = sum(one.refused for one in buckets), max(buckets, key=lambda one: one.refused)
        yield Limit(kind, most.counted, refused, rate, at_once, bool(exact) and refused > 0)


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


def capacity(runs: Runs, share: float) -> Rate | None:
    """Requests answered per second at capacity; None if no run reached it. `share`: allowed as refused.

    That of the lowest rate that reached it. What a target answers may depend on how many calls wait, so the interval is that
    of all rates.
    """
    full: dict[float, list[RateResult]] = {}
    for one in runs:
        many = one.requests > 0 and one.overloaded > max(2 * share * one.requests, FEWEST)
        if (one.saturated or many) and math.isfinite(one.served.high):
            full.setdefault(one.rate_per_s, []).append(one)
    if not full:
        return None
    each = [_served(full[rate]) for rate in sorted(full)]
    return Rate(each[0].value, min(one.low for one in each), max(one.high for one in each))


def _served(runs: Runs) -> Rate:
    share = np.array([one.seconds for one in runs]) / sum(one.seconds for one in runs)
    low, value, high = np.array([(one.served.low, one.served.value, one.served.high) for one in runs]).T
    middle = float(share @ value)
    below, above = (float(np.linalg.norm(share * (end - value))) for end in (low, high))
    return Rate(middle, middle - below, middle + above)


def binding(failed: Runs) -> str | None:
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


def by_kind(runs: Runs) -> Counter[str]:
    """429s of each limit."""
    return sum((Counter(one.kinds) for one in runs), Counter())


def bounds(runs: Runs, gaps: Floats, share: float) -> list[Bound]:
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


def at_least(found: Bounds, per_s: float | None) -> list[Bound]:
    """The same; limits that were never met sustain at least a rate that was sustained, as far as their headers allow it."""
    if per_s is None:
        return list(found)
    return [one if one.decides or one.limit is None else _raised(one, per_s) for one in found]


def _raised(one: Bound, per_s: float) -> Bound:
    low = max(one.per_s.low, min(per_s, one.per_s.high))
    rate = Rate(max(one.per_s.value, low), low, one.per_s.high)
    return replace(one, per_s=rate, uncached=rate if one.uncached == one.per_s else one.uncached)


def lowest(found: Bounds) -> Rate | None:
    """The sustainable rate by the limits that decide."""
    rates = [one.per_s for one in found if one.decides]
    if not rates:
        return None
    return Rate(min(r.value for r in rates), min(r.low for r in rates), min(r.high for r in rates))


def by_capacity(found: Bounds) -> bool:
    """Whether the capacity is met first."""
    return next((one.limit is None for one in found if one.decides), False)


def ceiling(found: Bounds) -> float | None:
    """The rate above which a limit in the headers refuses for certain."""
    return min((one.per_s.high for one in found if one.limit is not None), default=None)


# --- the rate that a bucket sustains -----------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Offered:
    """Requests at a bucket: gaps in mean gaps, and charges. `unsure`: half the relative 95% interval of the mean charge."""

    gaps: Floats
    charge: Floats
    mean: float
    unsure: float


def offered(gaps: Floats, measured: Floats) -> Offered:
    """Charges drawn from the measured ones, one per gap."""
    mean = float(measured.mean())
    half = NORMAL * float(measured.std()) / mean / math.sqrt(len(measured)) if mean > 0 else 0.0
    drawn = np.random.default_rng(SEED).choice(measured, len(gaps))
    return Offered(gaps / gaps.mean(), drawn * (mean / drawn.mean()) if mean > 0 else drawn, mean, half)


def sustained(of: Offered, rate: float, burst: float, share: float) -> float:
    """Requests/s at which this share of them is refused in the long run; 0 if the bucket is smaller than a request."""
    if burst < of.mean or of.mean <= 0:
        return 0.0
    whole = rate / of.mean
    if burst / of.mean >= MANY:
        spread = _spread(of, burst / of.mean)
        return _root(lambda per_s: lost(of.mean * per_s, rate, burst, spread) > share, whole, STEPS)
    gaps, charge = of.gaps.tolist(), of.charge.tolist()
    return _root(lambda per_s: replayed(gaps, charge, rate / per_s, burst) > share, whole, STEPS_REPLAYED)


def _root(too_much: Callable[[float], bool], whole: float, steps: int) -> float:
    low, high = SPAN[0] * whole, SPAN[1] * whole
    for _ in range(steps):
        middle = math.sqrt(low * high)
        low, high = (low, middle) if too_much(middle) else (middle, high)
    return math.sqrt(low * high)


def lost(demand: float, rate: float, burst: float, spread: float) -> float:
    """Refused share of the demand per second. `spread`: variance / mean of the demand."""
    drift, variance = demand - rate, demand * spread
    if variance <= 0:
        return max(0.0, drift / demand)
    x = 2 * drift * burst / variance
    if x < -500:
        return 0.0
    gone = variance / (2 * burst) if abs(x) < 1e-6 else drift / -math.expm1(-x)
    return gone / demand


def _spread(of: Offered, window: float) -> float:
    """Variance / mean of the demand in windows of so many mean gaps."""
    at = np.cumsum(of.gaps)
    width = max(min(window, len(at) / LEAST), LEAST)
    count = int(at[-1] // width)
    if count < LEAST // 2:
        return float((of.charge**2).sum() / of.charge.sum())
    sums = np.bincount((at // width).astype(np.int64), of.charge, count + 1)[:count]
    return float(sums.var(ddof=1) / sums.mean())


def replayed(gaps: list[float], charges: list[float], refill: float, burst: float) -> float:
    """Share refused by a bucket that is full at first; `refill`: per mean gap."""
    level, refused = burst, 0
    for gap, charge in zip(gaps, charges, strict=True):
        level = min(burst, level + refill * gap)
        if level >= charge:
            level -= charge
        else:
            refused += 1
    return refused / len(gaps)
