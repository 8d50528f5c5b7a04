"""What is known of each bucket, from its headers and from the decisions: rate, burst, level over time, use.

A number that is not known is None, with the reason.

- Rate: a header's limit per minute / 60. For requests, whose cost is known exactly, it is checked against the decisions:
  if another rate explains them significantly better, that one is the estimate. Without
  headers the decisions alone (bucket_fit.fit).
- Burst: a bucket admits a call if what it lacks + the call's cost <= burst. So burst >= what is missing after an admitted
  call (limit - remaining, to rounding) and < what is missing at a refusal + its cost; and likewise with what the costs say is
  missing. The estimate is the middle of the interval, as a whole number if there is one.
- Level: burst - what the costs say is missing after each call. Where a response's headers give it as an interval, the
  level is the nearest point of it, and a point that had to move is counted: others use the same limit, or the costs are
  counted differently. What was charged while the clocks of two workers may differ is allowed for. The minimum of a bin is
  over its calls and its edges.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import pandas as pd

from tailgauge_analysis.reading.rate_limit_headers import LIMIT, REMAINING, REQUESTS, column, rounding
from tailgauge_analysis.sections.rate_limits.costs import PRODUCED, Costs
from tailgauge_analysis.sections.rate_limits.token_bucket import Fit, bursts, envelope, lacking, stretch
from tailgauge_analysis.stats.quantiles import Floats, Ints, Mask

WINDOWS_S = (1, 10, 60)
_CLOSE = 1e-3
HEADERS, DECISIONS, BOTH = "headers", "429s", "headers and 429s"


@dataclass(frozen=True, slots=True)
class Estimate:
    """A number that may be known, and from what."""

    value: float | None = None
    low: float | None = None
    high: float | None = None
    how: str | None = None
    why: str | None = None


@dataclass(frozen=True, slots=True)
class HeaderReadings:
    """The headers of one bucket, one entry per response that has them. `attempt`: row of the attempt."""

    limit: float
    limits: int  # different ones
    remaining: Floats
    missing: Floats
    slack: float
    attempt: Ints
    refused: Mask


@dataclass(frozen=True, slots=True)
class LevelSeries:
    """Lowest level by bin; `agreeing` of `compared` header readings contain the level that the costs give."""

    width_s: int
    at_s: Floats
    lowest: Floats
    least: float
    least_at_s: float
    compared: int
    agreeing: int


@dataclass(frozen=True, slots=True)
class Consumption:
    """Mean and peak consumption per second; the peaks are over windows of WINDOWS_S."""

    mean_per_s: float
    peak_per_s: tuple[float, ...]


def read_headers(attempts: pd.DataFrame, kind: str, refused: Mask) -> HeaderReadings | None:
    """Headers of a bucket."""
    names = [column(kind, LIMIT), column(kind, REMAINING)]
    if any(name not in attempts.columns for name in names):
        return None
    limit, remaining = (attempts[name].to_numpy(np.float64) for name in names)
    known = np.flatnonzero(~np.isnan(limit) & ~np.isnan(remaining) & (limit > 0))
    if not len(known):
        return None
    limits, counts = np.unique(limit[known], return_counts=True)
    limit, left, of = limit[known], remaining[known], float(limits[int(np.argmax(counts))])
    return HeaderReadings(of, len(limits), left, limit - left, rounding(kind, left), known, refused[known])


def rate(headers: HeaderReadings | None, fit: Fit | None, costs: Costs | None, kind: str) -> Estimate:
    """Tokens per second."""
    credible = fit is not None and fit.is_credible
    if headers is not None:
        per_s = headers.limit / 60
        if headers.limits > 1:
            why = f"headers name {headers.limits} limits; this is the most frequent"
            return Estimate(per_s, per_s, per_s, HEADERS, why)
        exact = costs if kind == REQUESTS else None
        if fit and credible and exact and not fit.tolerates(bursts(stretch(exact), per_s)[0]):
            why = f"headers name {headers.limit:g} per minute, but the 429s do not match that limit"
            return Estimate(fit.rate, fit.rate_low, fit.rate_high, DECISIONS, why)
        return Estimate(per_s, per_s, per_s, HEADERS)
    if fit is None:
        return Estimate(why="no header names this limit, and it refused no call")
    if not credible:
        return Estimate(why="no token bucket explains these 429s")
    return Estimate(fit.rate, fit.rate_low, fit.rate_high, DECISIONS)


def burst(
    per_s: Estimate, headers: HeaderReadings | None, fit: Fit | None, costs: Costs | None, counted: str,
    decision_lag_s: float,
) -> Estimate:  # fmt: skip
    """Tokens in the full bucket. `decision_lag_s`: how long after its sending a call may have been decided."""
    if per_s.value is None:
        return Estimate(why=per_s.why)
    low, high, how = 0.0, math.inf, []
    if headers is not None:
        low, high = _burst_by_headers(headers, costs, counted)
        how.append(HEADERS)
    if costs is not None and fit is not None and fit.is_credible:
        if per_s.how == HEADERS:
            wrong, at_least, below = bursts(stretch(costs), per_s.value)
            unsure = per_s.value * decision_lag_s
            at_least, below, fits = max(0.0, at_least - unsure), below + unsure, fit.tolerates(wrong)
        else:
            at_least, below, fits = fit.burst_low, fit.burst_high, True
        if fits and max(low, at_least) <= min(high, below):
            low, high = max(low, at_least), min(high, below)
            how.append(DECISIONS)
    elif costs is not None and headers is not None and counted != PRODUCED:
        low = max(low, min(envelope(costs, per_s.value), headers.limit))
    if not math.isfinite(high):
        why = "no 429 by this limit: its bucket was never seen empty"
        return Estimate(None, low or None, headers.limit if headers is not None else None, HEADERS, why)
    if high < low:
        return Estimate(why="headers and 429s contradict each other")
    value = (low + high) / 2
    if low - _CLOSE <= round(value) <= high + _CLOSE:
        value = float(round(value))
    return Estimate(value, low, high, BOTH if len(how) == 2 else how[0] if how else None)


def _burst_by_headers(headers: HeaderReadings, costs: Costs | None, counted: str) -> tuple[float, float]:
    """Bounds of the burst. `remaining` is rounded down, so what is missing is up to one less than it seems."""
    is_429 = headers.refused
    free = 1.0 if counted == PRODUCED else 0.0  # a decision on output takes nothing, but needs one
    low = float((headers.missing[~is_429] - 1 - headers.slack).max(initial=0.0)) + free
    if not is_429.any():
        return max(0.0, low), math.inf
    need = pd.Series(1.0, headers.attempt)
    if costs is not None:
        by_attempt = pd.Series(costs.need[costs.decided], costs.attempt[costs.decided])
        need = by_attempt[~by_attempt.index.duplicated()].reindex(headers.attempt).fillna(1.0)
    high = float((headers.missing + headers.slack + need.to_numpy(np.float64))[is_429].min())
    return min(max(0.0, low), high), high


def level_series(
    costs: Costs, rate: float, burst: float, headers: HeaderReadings | None, width_s: int, end_s: float,
    between_s: float = 0.0,
) -> LevelSeries:  # fmt: skip
    """Over the run, in bins of `width_s` seconds from 0 to `end_s`; `between_s`: the error between two workers' clocks."""
    count = max(1, int(end_s // width_s) + 1)
    edges: Floats = np.arange(count + 1, dtype=np.float64) * width_s
    at = np.concatenate((costs.at_s, edges))
    order = np.argsort(at, kind="stable")
    charge = np.concatenate((costs.charge, np.zeros(len(edges))))[order]
    at = at[order]
    level = burst - lacking(at, charge, rate) - charge
    compared = agreeing = 0
    if headers is not None:
        of = np.concatenate((np.where(costs.decided, costs.attempt, -1), np.full(len(edges), -1)))[order]
        level, compared, agreeing = _clipped(level, of, burst, headers, _peak(costs, between_s))
    number = np.clip(at // width_s, 0, count - 1).astype(np.int64)
    lowest = np.full(count, np.inf)
    np.minimum.at(lowest, number, level)
    least = int(np.argmin(np.where(at >= 0, level, np.inf)))
    return LevelSeries(
        width_s, edges[:-1] + width_s / 2, lowest, float(level[least]), float(at[least]), compared, agreeing
    )  # fmt: skip


def _clipped(
    level: Floats, attempt: Ints, burst: float, headers: HeaderReadings, blur: float
) -> tuple[Floats, int, int]:
    """Levels moved into what the headers show, give or take `blur`; how many were compared, and how many agreed."""
    by_attempt = np.full(int(max(attempt.max(), headers.attempt.max())) + 1, -1)
    by_attempt[headers.attempt] = np.arange(len(headers.attempt))
    reading = np.where(attempt >= 0, by_attempt[attempt], -1)
    rows = np.flatnonzero(reading >= 0)
    shown = burst - headers.missing[reading[rows]]
    slack = headers.slack + blur + _CLOSE
    low, high = shown - slack, shown + slack + 1  # `remaining` is rounded down
    agrees = (level[rows] >= low) & (level[rows] <= high)
    level = level.copy()
    level[rows] = np.clip(level[rows], low, high)
    return level, len(rows), int(agrees.sum())


def consumption(costs: Costs) -> Consumption | None:
    """How much of the limit was used; None where all calls were sent at one moment."""
    span = float(costs.at_s[-1] - costs.at_s[0]) if len(costs.at_s) else 0.0
    if span <= 0:
        return None
    peaks = tuple(_peak(costs, window) / window for window in WINDOWS_S)
    return Consumption(float(costs.charge.sum()) / span, peaks)


def _peak(costs: Costs, window_s: float) -> float:
    """The most that was charged within any window of that length."""
    if not window_s or not len(costs.at_s):
        return 0.0
    total = np.concatenate(([0.0], np.cumsum(costs.charge)))
    until = np.searchsorted(costs.at_s, costs.at_s + window_s, side="left")
    return float((total[until] - total[:-1]).max())
