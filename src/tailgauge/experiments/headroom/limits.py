"""What all levels together say of each limit, and of the endpoint's own capacity.

Rule: the limits are the same at every level, so that intervals are intersected. A rate that headers name is believed as
long as the 429s follow from it. Where levels contradict each other, the interval holds what each says. Capacity is what
is answered a second while more and more wait, or while calls are refused as too many (529, 503).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from tailgauge.experiments.headroom.rate_result import Level, Rate
from tailgauge_analysis.sections.rate_limits.estimates import DECISIONS, Estimate

CAPACITY, OBJECTIVES = "capacity", "objectives"
FEWEST = 5  # 429s by which a limit is taken to bind
WHOLE_S = 60  # a bucket holds no more than comes back in a minute


@dataclass(frozen=True, slots=True)
class Limit:
    """A limit: tokens a second, and at once. `counted`: when its cost is (costs); `refused`: 429s by it in all levels; `seen`: its bucket was seen empty."""

    kind: str
    counted: str
    refused: int
    rate: Rate
    burst: Rate
    how: str
    seen: bool


def limits(levels: Sequence[Level]) -> tuple[Limit, ...]:
    """Every limit whose rate is known."""
    found = []
    for kind in dict.fromkeys(one.kind for level in levels for one in level.buckets):
        told = [one for level in levels for one in level.buckets if one.kind == kind]
        rates = [one.rate for one in told if one.rate.value is not None]
        headed = [rate for rate in rates if rate.how != DECISIONS]
        doubted = [rate for rate in rates if rate.how == DECISIONS and rate.why is not None]
        rate = _common(doubted or headed or rates)
        if rate is None:
            continue
        bursts = [one.burst for one in told if one.burst.low is not None or one.burst.value is not None]
        exact = [one for one in bursts if one.value is not None]
        at_once = _common(exact) or _bounded(bursts, rate)
        refused, counted = sum(one.refused for one in told), max(told, key=lambda one: one.refused).counted
        how = str((doubted or headed or rates)[0].how)
        found.append(Limit(kind, counted, refused, rate, at_once, how, bool(exact) and refused > 0))
    return tuple(found)


def _common(several: Sequence[Estimate]) -> Rate | None:
    """The interval on which all agree, or the one that holds all where they do not."""
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
    """A bucket that was never seen empty: as much as was admitted at least, a minute's worth at most."""
    low = max((one.low for one in several if one.low is not None), default=1.0)
    high = min((one.high for one in several if one.high is not None), default=math.inf)
    high = max(low, min(high, rate.high * WHOLE_S))
    return Rate(low, low, high)


def capacity(levels: Sequence[Level], bound: float) -> Rate | None:
    """Requests answered a second where that was all that could be; None where no level shows it."""
    full = [one for one in levels if one.growing or _overloaded(one, bound)]
    if not full:
        return None
    weights = [one.seconds for one in full]
    middle = sum(w * one.served.value for w, one in zip(weights, full, strict=True)) / sum(weights)
    halves = [w * (one.served.high - one.served.low) / 2 for w, one in zip(weights, full, strict=True)]
    half = math.sqrt(sum(h * h for h in halves)) / sum(weights)
    return Rate(middle, middle - half, middle + half)


def _overloaded(one: Level, bound: float) -> bool:
    return one.requests > 0 and one.overloaded > 2 * bound * one.requests and one.overloaded > FEWEST


def binding(failed: Sequence[Level], good: float) -> str | None:
    """What failed the levels: the limit that most calls were refused by, the capacity, or the objectives."""
    counts: dict[str, int] = {}
    for one in failed:
        for kind, n in one.kinds.items():
            counts[kind] = counts.get(kind, 0) + n
    over = sum(one.overloaded for one in failed)
    most = max(counts, key=lambda kind: counts[kind], default=None)
    if most is not None and counts[most] >= over and counts[most] >= FEWEST:
        return most
    if over or any(one.growing for one in failed):
        return CAPACITY
    missed = good > 0 and any(one.good is not None and (one.good.value or 0.0) < good for one in failed)
    return OBJECTIVES if missed else most
