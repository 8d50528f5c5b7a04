"""The load that a known limit sustains: a bucket seen in headers and 429s, or the capacity of the target.

A limit is the same in every run, so its intervals are intersected; where runs contradict each other, the interval covers
all of them. Only a limit whose bucket was seen empty is known, or the capacity: the rate of answers while the backlog
grows, or while calls are refused as overload.

The rate that a bucket sustains is that at which it refuses, in the long run, exactly the allowed share of the requests.
A bucket that holds many requests is a reflected Brownian motion on [0, burst]: with the drift m = demand - refill and the
variance v of the demand, both per second, it loses m / (1 - exp(-2 m burst / v)) per second, within 0.3% of the exact rate
from 20 requests on (M/D/1/K, Poisson arrivals). A smaller bucket is replayed request by request.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from tailgauge.experiments.loads.judge import BACKLOG, REFUSALS, JudgedLoad, Runs
from tailgauge.experiments.loads.run import Interval, LoadRun
from tailgauge_analysis import DECISIONS, NORMAL_975, SEED, Bucket, Estimate, Floats, Ints

CAPACITY = "capacity"
OBJECTIVES = "objectives"
FEWEST = 5  # 429s or overloads by which a limit is taken to bind
MINUTE_S = 60  # a bucket holds no more than comes back in a minute
MANY = 30  # requests that a bucket holds; below it is replayed
RANGE = (0.01, 2.0)  # rates tried, relative to the one that uses all of the refill
STEPS = 40
STEPS_REPLAYED = 12
NEAR_ALLOWED = 5  # times the allowed share
REFUSED_AGAIN = 0.5  # of the retries, where no run shows it
REPLAYED = 60_000  # requests of conversations
MOST_ARRIVALS = 1 << 40  # of a run
SHORTEST_S = 1e-9  # between two requests
LEAST = 20  # requests of a window, and windows
MODEL = 0.02  # relative error of the computed rate


@dataclass(frozen=True, slots=True)
class Limit:
    """A limit: units per second, and in its bucket. `seen`: its bucket was seen empty; `refused`: its 429s in all runs."""

    kind: str
    refused: int
    rate: Interval
    burst: Interval
    seen: bool


@dataclass(frozen=True, slots=True)
class Bound:
    """The arrivals/s that one limit sustains; `uncached`: without reads from the cache; `limit`: None of the capacity."""

    kind: str
    per_s: Interval
    uncached: Interval | None
    limit: Limit | None

    @property
    def is_known(self) -> bool:
        """Return whether it was met."""
        return self.limit is None or self.limit.seen


@dataclass(frozen=True, slots=True)
class Planned:
    """The planned traffic: gaps between many arrivals, in any unit; the requests of an arrival; attempts of a call where the
    allowed share is refused. `name`: of the arrivals; `prompts`: of a request, as of a fan-out or a batch.
    """

    gaps: Floats
    requests_per_arrival: float = 1.0
    attempts: float = 1.0
    name: str = "requests"
    prompts: float = 1.0


def bounds(runs: Runs, planned: Planned, refused: float, precision: float) -> list[Bound]:
    """Return a bound per limit that is named or known, the tightest first; `refused`: allowed share.

    `precision`: relative width by which a capacity is widened, because it varies with the calls that wait.
    """
    again = retried(runs, refused)
    planned = replace(planned, attempts=1 / (1 - refused * again.share))
    first_refused = refused * (1 - again.refused)
    sustained_bounds: list[Bound] = []
    for limit in _limits(runs):
        sustained_bounds += _bound(limit, runs, planned, first_refused)
    served = capacity(runs, refused)
    if served is not None:
        wide = precision * served.value
        low = served.value - math.hypot(served.value - served.low, wide)
        high = served.value + math.hypot(served.high - served.value, wide)
        sustained_bounds.append(
            Bound(CAPACITY, Interval(served.value, max(0.0, low), high), None, None)
        )
    return sorted(sustained_bounds, key=lambda bound: bound.per_s.high)


def _bound(limit: Limit, runs: Runs, planned: Planned, refused: float) -> Iterator[Bound]:
    cached = np.concatenate([run.charges.cached[limit.kind] for run in runs])
    if not len(cached) or cached.sum() <= 0:
        return
    per_s = _sustained(limit, planned, _demand(limit, runs, planned, cached), refused)
    uncached = per_s
    if limit.kind in runs[0].charges.uncached:
        whole = np.concatenate([run.charges.uncached[limit.kind] for run in runs])
        uncached = _sustained(limit, planned, _demand(limit, runs, planned, whole), refused)
    yield Bound(limit.kind, per_s, uncached, limit)


def hides(run: LoadRun, known_bounds: Sequence[Bound], requests_per_arrival: float) -> bool:
    """Return whether a bucket that was full at first may carry more in this run than it does in the long run.

    The planned load is beyond what the bucket sustains, and what arrived did not empty it. `known_bounds`: of the
    capacity too, which hides nothing. A request costs the mean of those in the run.
    """
    for bound in known_bounds:
        limit = bound.limit
        if limit is None:
            continue
        charges = run.charges.cached.get(limit.kind)
        if charges is None or not len(charges):
            continue
        demand_per_s = requests_per_arrival * float(charges.mean())
        sustained_per_s = bound.per_s.low
        if not limit.seen:
            sustained_per_s = limit.rate.value / demand_per_s
        excess_per_s = run.arrived * demand_per_s - limit.rate.value
        if run.load > sustained_per_s and excess_per_s * run.seconds < limit.burst.high:
            return True
    return False


def tightest_known(known_bounds: Sequence[Bound]) -> Bound | None:
    """Return the bound that was met and is met first."""
    return min(
        (bound for bound in known_bounds if bound.is_known),
        key=lambda bound: bound.per_s.value,
        default=None,
    )


def fails_below(bound: Bound, high: JudgedLoad | None) -> bool:
    """Return whether a load below the limit was refused too often, or its backlog grew."""
    return high is not None and high.most < bound.per_s.low and high.cause in {REFUSALS, BACKLOG}


def binding(failed: Sequence[JudgedLoad]) -> str | None:
    """Name what failed the lowest of these loads: the limit that refused most calls, the capacity, or the objectives."""
    if not failed:
        return None
    cause = min(failed, key=lambda load: load.arrived).cause
    if cause != REFUSALS:
        return CAPACITY if cause == BACKLOG else OBJECTIVES
    runs: list[LoadRun] = []
    for load in failed:
        runs += load.runs
    counts = by_kind(runs)
    kind = max(counts, key=counts.__getitem__, default=None)
    overloads = sum(run.overloaded for run in runs)
    if kind is None or overloads > counts[kind]:
        return CAPACITY
    return kind


def by_kind(runs: Runs) -> Counter[str]:
    """Count the 429s of each limit."""
    counts: Counter[str] = Counter()
    for run in runs:
        counts.update(run.kinds)
    return counts


# --- limits and capacity as the runs show them ----------------------------------------------------------------------


def _limits(runs: Runs) -> Iterator[Limit]:
    buckets_of_kind: dict[str, list[Bucket]] = {}
    for run in runs:
        for bucket in run.buckets:
            buckets_of_kind.setdefault(bucket.kind, []).append(bucket)
    for kind, buckets in buckets_of_kind.items():
        rate = _common(_trusted_rates(buckets))
        if rate is None:
            continue
        bursts = [bucket.burst for bucket in buckets]
        exact = [burst for burst in bursts if burst.value is not None]
        burst = _common(exact) or _unseen_burst(bursts, rate)
        refused = sum(bucket.refused for bucket in buckets)
        yield Limit(kind, refused, rate, burst, bool(exact) and refused > 0)


def _trusted_rates(buckets: Sequence[Bucket]) -> list[Estimate]:
    """Return the rates by the target's decisions where these contradict the headers, else those of headers, else all."""
    rates = []
    of_headers = []
    contradicting = []
    for bucket in buckets:
        rate = bucket.rate
        if rate.value is None:
            continue
        rates.append(rate)
        if rate.how != DECISIONS:
            of_headers.append(rate)
        elif rate.why is not None:
            contradicting.append(rate)
    return contradicting or of_headers or rates


def _common(estimates: Sequence[Estimate]) -> Interval | None:
    """Return the interval that all estimates of one thing share; where they have nothing in common, one that covers all.

    Its value is their median, moved into the interval. An estimate without an end has its value there; one without a
    value does not count. None without any.
    """
    values = []
    lows = []
    highs = []
    for estimate in estimates:
        value = estimate.value
        if value is not None:
            values.append(value)
            lows.append(value if estimate.low is None else estimate.low)
            highs.append(value if estimate.high is None else estimate.high)
    if not values:
        return None
    low = max(lows)
    high = min(highs)
    if low > high:
        low = min(lows)
        high = max(highs)
    middle = sorted(values)[len(values) // 2]
    return Interval(min(max(middle, low), high), low, high)


def _unseen_burst(bursts: Sequence[Estimate], rate: Interval) -> Interval:
    """Bound a bucket that was never seen empty: at least what was admitted, at most a minute of refill."""
    low = max((burst.low for burst in bursts if burst.low is not None), default=1.0)
    high = min((burst.high for burst in bursts if burst.high is not None), default=math.inf)
    return Interval(low, low, max(low, min(high, rate.high * MINUTE_S)))


def capacity(runs: Runs, refused: float) -> Interval | None:
    """Return the arrivals answered per second at capacity: the value of the lowest load that reached it, the interval of all.

    None if no run reached it. A target that refuses what it cannot hold refuses too many long before its capacity: that is
    a bound from above alone.
    """
    full = []
    lows = []
    highs = []
    for run in runs:
        if _is_full(run, refused) and math.isfinite(run.served.high):
            full.append(run)
            lows.append(run.served.low if run.saturated else 0.0)
            highs.append(run.served.high)
    if not full:
        return None
    lowest = min(run.load for run in full)
    served = [run.served.value for run in full if run.load == lowest]
    return Interval(sum(served) / len(served), min(lows), max(highs))


def _is_full(run: LoadRun, refused: float) -> bool:
    overloaded = run.requests > 0 and run.overloaded > max(2 * refused * run.requests, FEWEST)
    return run.saturated or overloaded


# --- the rate that a bucket sustains --------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Demand:
    """Requests at a bucket: gaps in mean gaps, and charges. `error`: half the relative 95% interval of the mean charge.

    `sessions`: of which conversation a request is, where a refused one ends it.
    """

    gaps: Floats
    charges: Floats
    mean: float
    error: float
    sessions: Ints | None = None


def _demand(limit: Limit, runs: Runs, planned: Planned, charges: Floats) -> Demand:
    """Return the demand of the planned arrivals; the turns of a conversation follow each other as they did in the runs."""
    if planned.requests_per_arrival == 1:
        return demand_of(planned.gaps, charges)
    arrivals = []
    offsets_s = []
    for number, run in enumerate(runs):
        arrivals.append(run.charges.arrivals + number * MOST_ARRIVALS)
        offsets_s.append(run.charges.offsets_s)
    arrivals_per_s = limit.rate.value / float(charges.mean()) / planned.requests_per_arrival
    turns = Turns(
        charges=charges,
        arrivals=np.concatenate(arrivals),
        offsets_s=np.concatenate(offsets_s),
    )
    gaps = planned.gaps[: int(REPLAYED / planned.requests_per_arrival)]
    demand = demand_of_sessions(gaps / gaps.mean() / arrivals_per_s, turns)
    if planned.attempts == 1:
        return demand
    return replace(demand, sessions=None)


def _sustained(limit: Limit, planned: Planned, demand: Demand, refused: float) -> Interval:
    value = sustained(demand, limit.rate.value, limit.burst.value, refused)
    low = high = value
    if limit.rate.low < limit.rate.high or limit.burst.low < limit.burst.high:
        low = sustained(demand, limit.rate.low, limit.burst.low, refused)
        high = sustained(demand, limit.rate.high, limit.burst.high, refused)
    error = demand.error + MODEL
    low = min(low, value) * (1 - error)
    high = max(high, value) * (1 + error)
    requests = Interval(value, low, high)
    return requests.divided(planned.requests_per_arrival).divided(planned.attempts)


@dataclass(frozen=True, slots=True)
class Retried:
    """The share of the refused attempts that come again, and of those that are refused again."""

    share: float
    refused: float


def retried(runs: Runs, refused: float) -> Retried:
    """Return which share of the refused attempts came again, and which share of these was refused again.

    By the runs that refuse not much more than the allowed share `refused`: an empty bucket refuses almost every retry.
    REFUSED_AGAIN where no run shows it; both 0 without retries.
    """
    refusals = 0
    retries = 0
    near_retries = 0
    near_refused_again = 0
    for run in runs:
        refusals += run.refused.k
        retries += run.retries
        if run.retries and (run.refused.value or 0.0) <= NEAR_ALLOWED * refused:
            near_retries += run.retries
            near_refused_again += run.refused_again
    if not refusals or not retries:
        return Retried(0.0, 0.0)
    refused_again = REFUSED_AGAIN
    if near_retries:
        refused_again = near_refused_again / near_retries
    return Retried(min(1.0, retries / refusals), refused_again)


def demand_of(gaps: Floats, measured: Floats) -> Demand:
    """Draw a charge for each gap from the measured ones."""
    mean = float(measured.mean())
    if mean <= 0:
        return Demand(gaps / gaps.mean(), np.zeros(len(gaps)), 0.0, 0.0)
    error = NORMAL_975 * float(measured.std()) / mean / math.sqrt(len(measured))
    drawn = np.random.default_rng(SEED).choice(measured, len(gaps))
    return Demand(gaps / gaps.mean(), drawn * (mean / drawn.mean()), mean, error)


@dataclass(frozen=True, slots=True, kw_only=True)
class Turns:
    """The requests of measured conversations: what each costs, of which conversation it is, and how long after its first one."""

    charges: Floats
    arrivals: Ints
    offsets_s: Floats


def demand_of_sessions(gaps_s: Floats, turns: Turns) -> Demand:
    """Draw a measured conversation for each gap: its requests come together, which a bucket feels as bursts.

    `gaps_s`: between the begins of conversations. The demand has a row for each request in order of time, with the number
    of its drawn conversation in `sessions`; the charges are scaled to the measured mean.
    """
    # The requests by conversation, and where each conversation begins among them.
    order = np.argsort(turns.arrivals, kind="stable")
    _, begins, sizes = np.unique(turns.arrivals[order], return_index=True, return_counts=True)
    drawn = np.random.default_rng(SEED).integers(0, len(sizes), len(gaps_s))
    counts = sizes[drawn]
    # The request at each place of a drawn conversation, and when it comes.
    firsts = np.repeat(np.cumsum(counts) - counts, counts)
    places = order[np.repeat(begins[drawn], counts) + np.arange(counts.sum()) - firsts]
    at_s = np.repeat(np.cumsum(gaps_s), counts) + turns.offsets_s[places]
    in_time = np.argsort(at_s, kind="stable")
    gaps = np.diff(at_s[in_time], prepend=at_s[in_time[0]])
    plain = demand_of(np.maximum(gaps, SHORTEST_S), turns.charges)
    charges = turns.charges[places][in_time]
    mean = float(charges.mean())
    if mean <= 0:
        return plain
    numbers = np.repeat(np.arange(len(counts)), counts)[in_time]
    return replace(plain, charges=charges * (plain.mean / mean), sessions=numbers)


def sustained(demand: Demand, rate: float, burst: float, refused: float) -> float:
    """Return the requests/s of which the share `refused` is refused in the long run; 0 if the bucket is smaller than a
    request.

    `rate`: refill in units per second; `burst`: units in the bucket. By the formula of the module for a bucket of many
    requests; a smaller one, and conversations, which a refusal ends, are replayed request by request.
    """
    if burst < demand.mean or demand.mean <= 0:
        return 0.0
    all_of_refill = rate / demand.mean
    sessions = demand.sessions
    if sessions is None:
        requests = burst / demand.mean
        if requests >= MANY:
            spread = _spread(demand, requests)

            def loses_too_many(per_s: float) -> bool:
                return lost(demand.mean * per_s, rate, burst, spread) > refused

            return _root(loses_too_many, all_of_refill, STEPS)
        sessions = np.arange(len(demand.gaps))
    calls = list(zip(demand.gaps.tolist(), demand.charges.tolist(), sessions.tolist(), strict=True))

    def refuses_too_many(per_s: float) -> bool:
        return replayed(calls, rate / per_s, burst) > refused

    return _root(refuses_too_many, all_of_refill, STEPS_REPLAYED)


def _root(is_too_much: Callable[[float], bool], whole: float, steps: int) -> float:
    low = RANGE[0] * whole
    high = RANGE[1] * whole
    for _ in range(steps):
        middle = math.sqrt(low * high)
        if is_too_much(middle):
            high = middle
        else:
            low = middle
    return math.sqrt(low * high)


def lost(demand: float, rate: float, burst: float, spread: float) -> float:
    """Return the refused share of the demand per second; `spread`: variance / mean of the demand."""
    drift = demand - rate
    variance = demand * spread
    if variance <= 0:
        return max(0.0, drift / demand)
    exponent = 2 * drift * burst / variance
    if exponent < -500:
        return 0.0
    if abs(exponent) < 1e-6:
        return variance / (2 * burst) / demand
    return drift / -math.expm1(-exponent) / demand


def _spread(demand: Demand, window: float) -> float:
    """Return variance / mean of the demand in windows of so many mean gaps, so that bursts of arrivals count."""
    times = np.cumsum(demand.gaps)
    width = max(min(window, len(times) / LEAST), LEAST)
    count = int(times[-1] // width)
    if count < LEAST // 2:
        return float((demand.charges**2).sum() / demand.charges.sum())
    windows = (times // width).astype(np.int64)
    sums = np.bincount(windows, demand.charges, count + 1)[:count]
    return float(sums.var(ddof=1) / sums.mean())


def replayed(calls: Sequence[tuple[float, float, int]], refill: float, burst: float) -> float:
    """Return the share of the calls that a bucket refuses that is full at first; a refused call ends its conversation.

    A call is its gap, its charge and its conversation; `refill`: per mean gap.
    """
    level = burst
    sent = 0
    ended: set[int] = set()
    for gap, charge, session in calls:
        level = min(burst, level + refill * gap)
        if session in ended:
            continue
        sent += 1
        if level >= charge:
            level -= charge
        else:
            ended.add(session)
    return len(ended) / sent


def raised(bound: Bound, per_s: float) -> Bound:
    """Return a bound that was never met, which sustains at least a load that held, as far as its headers allow it."""
    if bound.is_known:
        return bound
    low = max(bound.per_s.low, min(per_s, bound.per_s.high))
    interval = Interval(max(bound.per_s.value, low), low, bound.per_s.high)
    uncached = interval if bound.uncached == bound.per_s else bound.uncached
    return replace(bound, per_s=interval, uncached=uncached)
