"""Quantiles of waits of which some were cut short: Kaplan-Meier.

A wait that was cut short (its user left, the drain
ended) says "longer than this" and is used as that: neither dropped nor taken for an end. It must have been cut short for
a reason that has nothing to do with how long it would have taken.

    S(t) = product over ends t_i <= t of (1 - ends at t_i / waits still open just before t_i)

A quantile p is the first t with S(t) <= 1 - p. Its interval holds every t whose S is not significantly different from
1 - p, by Greenwood's variance on the scale of log(-log S) (Brookmeyer and Crowley 1982).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from tailgauge_analysis.stats.quantiles import Floats, Ints

Z = 1.959963984540054  # NORMAL_975 to all digits: results depend on them


@dataclass(frozen=True, slots=True)
class Curve:
    """Share of the waits that last longer than `at`, and Greenwood's sum up to there."""

    at: Floats
    share: Floats
    greenwood: Floats


@dataclass(frozen=True, slots=True)
class Wait:
    """A quantile; None where the waits were cut short before it could be seen."""

    p: float
    value: float | None
    low: float | None
    high: float | None


def curve(times: Floats, seen: np.ndarray[tuple[int, ...], np.dtype[np.bool_]]) -> Curve:
    """The Kaplan-Meier estimate; at a tie, ends come before cuts."""
    at, place = np.unique(times, return_inverse=True)
    ends: Ints = np.bincount(place, weights=seen, minlength=len(at)).astype(np.int64)
    gone = np.bincount(place, minlength=len(at))
    open_before = len(times) - np.concatenate(([0], gone.cumsum()[:-1])) if len(at) else np.empty(0)
    kept = ends > 0
    at, ends, open_before = at[kept], ends[kept], open_before[kept]
    with np.errstate(divide="ignore"):
        parts = ends / (open_before * (open_before - ends))  # the last may be infinite: nothing is left
    return Curve(at, np.cumprod(1.0 - ends / open_before).astype(np.float64), np.cumsum(parts))


def waits(
    times: Floats, seen: np.ndarray[tuple[int, ...], np.dtype[np.bool_]], ps: tuple[float, ...]
) -> list[Wait]:
    """Quantiles `ps` with 95% intervals."""
    c = curve(times, seen)
    return [_wait(c, p) for p in ps]


def _wait(c: Curve, p: float) -> Wait:
    left = 1 - p
    reached = np.flatnonzero(c.share <= left + 1e-12)
    inner = (c.share > 0) & (c.share < 1)
    share, error = c.share[inner], np.sqrt(c.greenwood[inner])
    log = np.log(share)
    z = (np.log(-log) - np.log(-np.log(left))) * np.abs(log) / error  # > 0: the curve is below 1 - p already
    at = c.at[inner]
    not_above = at[z >= -Z]  # from here on the curve may have come down to 1 - p
    below = at[z > Z]  # from here on it surely has
    return Wait(
        p,
        float(c.at[reached[0]]) if len(reached) else None,
        float(not_above[0]) if len(not_above) else None,
        float(below[0]) if len(below) else None,
    )
