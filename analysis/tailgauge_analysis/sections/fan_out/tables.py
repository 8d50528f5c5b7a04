"""What is said of the fan-outs of each traffic table.

Rule: steady stage, requests that were read slowly on purpose excepted. `join` is what a user waits, since scheduled,
failures counted as slowest; everything about legs is of the complete requests (ok, with an answer of every leg) and of
the legs' own times. Predictions need legs that were let run to their end: only where the join waits for all of them.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from tailgauge.rows import schema
from tailgauge_analysis.metrics import latency
from tailgauge_analysis.metrics.metrics import BY_NAME
from tailgauge_analysis.metrics.steady import Steady
from tailgauge_analysis.sections.fan_out import predictions
from tailgauge_analysis.sections.fan_out.legs import ALL, Legs, legs
from tailgauge_analysis.sections.fan_out.siblings import Mask, Siblings, siblings, stretches
from tailgauge_analysis.stats.bootstrap import ratio
from tailgauge_analysis.stats.quantiles import Floats, Quantile, effective_n, quantiles, rank
from tailgauge_analysis.stats.shares import Portion, Ratio, counted, quantile_ratio
from tailgauge_analysis.text.json_values import Json, table

PS = (0.5, 0.95, 0.99)
SLOWEST_SHARES = ((20_000, 0.01), (1000, 0.05), (0, 0.1))  # legs, and which share of them is called slow
MOST_POSITIONS = 50


@dataclass(frozen=True, slots=True)
class Gain:
    """Mean sum of a request's legs over the mean of its slowest: what running them side by side saves at most."""

    value: float
    low: float
    high: float


@dataclass(frozen=True, slots=True)
class Critical:
    """Which legs requests waited for last, by leg number and by kind; `even` is what each share would be if all were alike."""

    n: int
    even: float
    positions: tuple[Portion, ...]
    kinds: tuple[Portion, ...]
    kinds_even: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class Partial:
    """Legs that brought nothing, and what became of their requests."""

    legs: int
    failed: int
    closed: int
    never_sent: int
    failed_share: Portion
    requests_with_failed: int
    ok_with_failed: int
    failed_with_answers: int
    retries: int
    copies: int


@dataclass(frozen=True, slots=True)
class Serial:
    """The same legs one after the other, in another traffic table of the run: its join over this one's."""

    traffic: str
    ratios: tuple[Ratio, ...]


@dataclass(frozen=True, slots=True)
class FanOut:
    """One traffic table."""

    traffic: str
    join: str
    order: str
    bounded: bool
    legs: int
    requests: int
    complete: int
    joined: latency.Row
    slowest: tuple[Quantile, ...]
    one_less: tuple[Quantile, ...]
    naive: tuple[Quantile, ...]
    conditional: tuple[Quantile, ...]
    curves: predictions.Curves | None
    not_predicted: str
    siblings: Siblings | None
    slower_than_ms: tuple[float, ...]
    critical: Critical | None
    spread: tuple[Quantile, ...]
    sums: tuple[Quantile, ...]
    gain: Gain | None
    last_began: tuple[Quantile, ...]
    partial: Partial
    serial: Serial | None


def fan_outs(scenario: Json, of_target: Steady) -> list[FanOut]:
    """Every traffic table with fan-outs; none without."""
    found = legs(scenario, of_target)
    tables = table(scenario, "traffic")
    joined = {one.traffic: _joined(of_target, one.traffic) for one in found}
    return [_fan_out(one, joined[one.traffic], _serial(one, found, tables, joined)) for one in found]


def _joined(steady: Steady, traffic: str) -> latency.Row:
    part = steady.only((steady.requests["traffic"] == traffic).to_numpy(np.bool_))
    return latency.row(BY_NAME["join_sched"], part, latency.OFFERED, PS)


def _fan_out(one: Legs, joined: latency.Row, serial: Serial | None) -> FanOut:
    whole = one.complete
    times = one.times_ms[whole]
    ordered = np.sort(times, axis=1)
    several = len(one.kinds) > 1 and len(times) > 0
    predicted = several and one.join == ALL
    stretch = stretches(len(times))
    slow, limits = _slow(one, times)
    last = np.full(len(whole), np.nan)
    began = ~np.isnan(one.began_ms).all(axis=1)
    last[began] = np.nanmax(one.began_ms[began], axis=1)
    return FanOut(
        traffic=one.traffic,
        join=one.join,
        order="sequential" if one.is_sequential else "parallel",
        bounded=one.is_bounded,
        legs=len(one.kinds),
        requests=len(one.requests),
        complete=len(times),
        joined=joined,
        slowest=_quantiles(ordered[:, -1] if several else np.empty(0)),
        one_less=_quantiles(ordered[:, -2] if several else np.empty(0)),
        naive=tuple(predictions.naive(times, one.kinds, PS)) if predicted else (),
        conditional=tuple(predictions.conditional(times, stretch, PS)) if predicted else (),
        curves=predictions.curves(times, one.kinds, stretch) if predicted else None,
        not_predicted=_why_not(one, several=several),
        siblings=siblings(slow) if predicted else None,
        slower_than_ms=limits if predicted else (),
        critical=_critical(one),
        spread=_quantiles(ordered[:, -1] - ordered[:, 0] if several else np.empty(0)),
        sums=_quantiles(times.sum(axis=1) if several else np.empty(0)),
        gain=_gain(times) if several else None,
        last_began=_quantiles(last[began]),
        partial=_partial(one),
        serial=serial,
    )


def _quantiles(values: Floats) -> tuple[Quantile, ...]:
    return tuple(quantiles(values, PS)) if len(values) else ()


def _why_not(one: Legs, *, several: bool) -> str:
    if len(one.kinds) < 2:
        return "a request has one leg"
    if one.join != ALL:
        return "legs that were late were closed at the join: how slow they would have been is not known"
    if not several:
        return "no request was complete"
    return ""


def _slow(one: Legs, times: Floats) -> tuple[Mask, tuple[float, ...]]:
    """Which legs are among the slowest of their kind, and slower than what each kind's are."""
    slow = np.zeros(times.shape, np.bool_)
    limits = []
    share = next(share for least, share in SLOWEST_SHARES if times.size >= least)
    for kind in np.unique(one.kinds) if times.size else ():
        of_kind = one.kinds == kind
        ordered = np.sort(times[:, of_kind], axis=None)
        limits.append(float(ordered[rank(len(ordered), 1 - share) - 1]))
        slow[:, of_kind] = times[:, of_kind] > limits[-1]
    return slow, tuple(limits)


def _critical(one: Legs) -> Critical | None:
    """Parallel: the leg that was over last before the join; one after the other: the longest."""
    ok = (one.requests["ended"] == schema.OK).to_numpy(np.bool_)
    times = (one.times_ms if one.is_sequential else one.ended_ms)[ok]
    times = times[~np.isnan(times).all(axis=1)] if times.size else times
    if not times.size or len(one.kinds) < 2:
        return None
    known = np.where(np.isnan(times), -np.inf, times)
    known = known[(known == known.max(axis=1)[:, None]).sum(axis=1) == 1]  # none is last where two are
    if not len(known):
        return None
    last = known.argmax(axis=1)
    kind = one.kinds[last]
    count = np.bincount(one.kinds)
    return Critical(
        len(last),
        1 / len(one.kinds),
        tuple(
            counted(int(k), len(last)) for k in np.bincount(last, minlength=len(one.kinds))[:MOST_POSITIONS]
        ),
        tuple(counted(int(k), len(last)) for k in np.bincount(kind, minlength=len(count))),
        tuple(float(k / len(one.kinds)) for k in count),
    )


def _gain(times: Floats) -> Gain | None:
    whole, longest = times.sum(axis=1), times.max(axis=1)
    if longest.sum() <= 0:
        return None
    return Gain(float(whole.sum() / longest.sum()), *ratio(whole, longest, reps=500))


def _partial(one: Legs) -> Partial:
    ok = (one.requests["ended"] == schema.OK).to_numpy(np.bool_)
    failed, answered = one.failed.any(axis=1), ~np.isnan(one.times_ms)
    return Partial(
        legs=one.times_ms.size,
        failed=int(one.failed.sum()),
        closed=int(one.closed.sum()),
        never_sent=int((~answered & ~one.failed & ~one.closed).sum()),
        failed_share=_of_requests(one.failed, answered | one.failed),
        requests_with_failed=int(failed.sum()),
        ok_with_failed=int((failed & ok).sum()),
        failed_with_answers=int((~ok & answered.any(axis=1)).sum()),
        retries=one.retries,
        copies=one.copies,
    )


def _of_requests(failed: Mask, known: Mask) -> Portion:
    """The share of failed legs; legs of one request fail together, so they stand on effective n."""
    k, n = int(failed.sum()), int(known.sum())
    return counted(k, n, effective_n(failed[known], known.sum(axis=1)) if n else 0)


def _serial(one: Legs, found: list[Legs], tables: Json, joined: dict[str, latency.Row]) -> Serial | None:
    """The sequential table with the same legs as this parallel one."""
    if one.is_sequential:
        return None
    shape = _shape(table(tables, one.traffic))
    for other in found:
        if other.is_sequential and shape and _shape(table(tables, other.traffic)) == shape:
            pairs = zip(joined[other.traffic].quantiles, joined[one.traffic].quantiles, strict=True)
            return Serial(other.traffic, tuple(quantile_ratio(a, b) for a, b in pairs))
    return None


def _shape(traffic: Json) -> Json:
    """What two tables must have alike to differ by the order of their legs alone."""
    legs_of = {
        k: v
        for k, v in table(traffic, "fan_out").items()
        if k not in {"order", "at_once", "at_once_per_worker"}
    }
    kept = {k: v for k, v in traffic.items() if k not in {"fan_out", "weight", "tags"}}
    return {**kept, "fan_out": legs_of} if legs_of else {}
