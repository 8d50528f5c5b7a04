"""What is known of each bucket: from its headers, from the decisions, from both.

Rule: a number, an interval, and how it is known; a number that cannot be told is None with the reason.

- Rate: a header's limit a minute / 60. It is checked against the headers' resets, and for requests, whose cost is known
  exactly, against the decisions: if another rate explains them significantly better, that one is the estimate. Without
  headers the decisions alone (buckets.fit).
- Burst: a bucket admits a call if what it lacks + the call's cost <= burst. So burst >= what is missing after an admitted
  call (limit - remaining, to rounding) and < what is missing at a refusal + its cost; and likewise with what the costs say is
  missing. The estimate is the middle of the interval, as a whole number if there is one.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import pandas as pd

from tailgauge_analysis.load.rate_limit_headers import (  # fmt: skip
    LIMIT,
    REMAINING,
    REQUESTS,
    RESET_AT,
    RESET_IN,
    column,
    rounding,
)
from tailgauge_analysis.sections.rate_limits import buckets
from tailgauge_analysis.sections.rate_limits.costs import PRODUCED, Costs, Mask
from tailgauge_analysis.stats.quantiles import Floats, Ints

_CLOSE = 1e-3
HEADERS, DECISIONS, BOTH = "headers", "429s", "headers and 429s"


@dataclass(frozen=True, slots=True)
class Told:
    """A number that may be known."""

    value: float | None
    low: float | None
    high: float | None
    how: str | None
    why: str | None


@dataclass(frozen=True, slots=True)
class Readings:
    """The headers of one bucket, one entry a response that has them. `owner`: row of the attempt."""

    limit: float
    limits: int  # different ones
    remaining: Floats
    missing: Floats
    slack: float
    at_s: Floats
    owner: Ints
    refused: Mask
    refill_low: float | None
    refill_high: float | None


def readings(attempts: pd.DataFrame, kind: str, refused: Mask, zero_s: float | None) -> Readings | None:
    """Headers of a bucket; `zero_s`: seconds since 1970 at the zero of the run clock."""
    names = [column(kind, LIMIT), column(kind, REMAINING)]
    if any(name not in attempts.columns for name in names):
        return None
    limit, remaining = (attempts[name].to_numpy(np.float64) for name in names)
    known = np.flatnonzero(~np.isnan(limit) & ~np.isnan(remaining) & (limit > 0))
    if not len(known):
        return None
    limits, counts = np.unique(limit[known], return_counts=True)
    slack = rounding(kind, remaining[known])
    at_s = attempts["headers_at_ns"].fillna(attempts["ended_at_ns"]).to_numpy(np.float64)[known] / 1e9
    missing = (limit - remaining)[known]
    low, high = _refill(_waits(attempts, kind, at_s, known, zero_s), missing, slack)
    return Readings(
        float(limits[int(np.argmax(counts))]), len(limits), remaining[known], missing, slack, at_s, known,
        refused[known], low, high,
    )  # fmt: skip


def _waits(
    attempts: pd.DataFrame, kind: str, at_s: Floats, known: Ints, zero_s: float | None
) -> tuple[Floats, float]:
    """Seconds until all is back, and how far they are rounded up; NaN where it is not told."""
    if column(kind, RESET_IN) in attempts.columns:
        return attempts[column(kind, RESET_IN)].to_numpy(np.float64)[known], 0.001
    if column(kind, RESET_AT) in attempts.columns and zero_s is not None:
        return attempts[column(kind, RESET_AT)].to_numpy(np.float64)[known] - zero_s - at_s, 1.0
    return np.full(len(known), np.nan), 1.0


def _refill(waits: tuple[Floats, float], missing: Floats, slack: float) -> tuple[float | None, float | None]:
    """Rates that nearly every reset agrees with: what is missing / the time until all is back."""
    wait, rounded = waits
    fine = (wait > 2 * rounded) & (missing > 2 * slack)
    if not fine.any():
        return None, None
    wait, missing = wait[fine], missing[fine]
    lows = (missing - np.maximum(slack, 1)) / (wait + rounded)
    highs = (missing + slack) / (wait - rounded)
    low, high = float(np.quantile(lows, 0.95)), float(np.quantile(highs, 0.05))
    return (low, high) if low <= high else (None, None)


def rate(told: Readings | None, fit: buckets.Fit | None, costs: Costs | None, kind: str) -> Told:
    """Tokens a second."""
    believed = fit is not None and fit.believed
    if told is not None:
        per_s = told.limit / 60
        if told.limits > 1:
            why = f"the headers name {told.limits} limits; this is the most frequent"
            return Told(per_s, per_s, per_s, HEADERS, why)
        if fit is not None and believed and costs is not None and kind == REQUESTS:
            short = buckets.stretch(costs)
            if not fit.bears(buckets.bursts(short, per_s)[0]):
                why = f"the headers say {told.limit:g} a minute, but the 429s do not follow from it"
                return Told(fit.rate, fit.rate_low, fit.rate_high, DECISIONS, why)
        return Told(per_s, per_s, per_s, HEADERS, None)
    if fit is None:
        return Told(None, None, None, None, "no header names this limit and no 429 was by it")
    if not believed:
        return Told(None, None, None, None, "no token bucket explains these 429s")
    return Told(fit.rate, fit.rate_low, fit.rate_high, DECISIONS, None)


def burst(
    per_s: Told, told: Readings | None, fit: buckets.Fit | None, costs: Costs | None, way: str, journey_s: float
) -> Told:  # fmt: skip
    """Tokens in the full bucket. `journey_s`: how long after its sending a call may have been decided."""
    if per_s.value is None:
        return Told(None, None, None, None, per_s.why)
    low, high, how = 0.0, math.inf, []
    if told is not None:
        low, high = _by_headers(told, costs, way)
        how.append(HEADERS)
    if costs is not None and fit is not None and fit.believed:
        if per_s.how == HEADERS:
            wrong, at_least, below = buckets.bursts(buckets.stretch(costs), per_s.value)
            unsure = per_s.value * journey_s
            at_least, below, fits = max(0.0, at_least - unsure), below + unsure, fit.bears(wrong)
        else:
            at_least, below, fits = fit.burst_low, fit.burst_high, True
        if fits and max(low, at_least) <= min(high, below):
            low, high = max(low, at_least), min(high, below)
            how.append(DECISIONS)
    elif costs is not None and told is not None and way != PRODUCED:
        low = max(low, min(buckets.envelope(costs, per_s.value), told.limit))
    if not math.isfinite(high):
        ceiling = told.limit if told is not None else None
        return Told(
            None, low or None, ceiling, HEADERS, "no 429 by this limit: its bucket was never seen empty"
        )
    word = BOTH if len(how) == 2 else how[0] if how else None
    if high < low:
        return Told(None, None, None, None, "headers and 429s contradict each other")
    value = (low + high) / 2
    if low - _CLOSE <= round(value) <= high + _CLOSE:
        value = float(round(value))
    return Told(value, low, high, word, None)


def _by_headers(told: Readings, costs: Costs | None, way: str) -> tuple[float, float]:
    """Bounds of the burst. `remaining` is rounded down, so what is missing is up to one less than it seems."""
    said = told.refused
    free = 1.0 if way == PRODUCED else 0.0  # a decision on output takes nothing, but wants one
    low = float((told.missing[~said] - 1 - told.slack).max(initial=0.0)) + free
    if not said.any():
        return max(0.0, low), math.inf
    need = pd.Series(1.0, told.owner)
    if costs is not None:
        by_owner = pd.Series(costs.need[costs.decided], costs.owner[costs.decided])
        need = by_owner[~by_owner.index.duplicated()].reindex(told.owner).fillna(1.0)
    high = float((told.missing + told.slack + need.to_numpy(np.float64))[said].min())
    return min(max(0.0, low), high), high
