"""Ratios of two quantiles of series that have nothing to do with each other, with an interval.

Rule: quantiles with their intervals in; the interval of the ratio by the method of variance estimates recovery on
logarithms (Zou and Donner 2008), which needs nothing but the two intervals. Where a quantile has no value, falls among
failures or is marked as of too few samples there is no ratio; where it has no bound the ratio has none.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from tailgauge_analysis.stats.quantiles import TOO_FEW, Quantile


@dataclass(frozen=True, slots=True)
class Ratio:
    """Quantile p of one series over that of another."""

    p: float
    value: float | None
    low: float | None
    high: float | None


def quantile_ratio(over: Quantile, under: Quantile) -> Ratio:
    """`over` / `under`."""
    a, b = _log(over.value), _log(under.value)
    if a is None or b is None or TOO_FEW in {over.mark, under.mark}:
        return Ratio(over.p, None, None, None)
    return Ratio(
        over.p,
        math.exp(a - b),
        _end(a - b, -1, (a, _log(over.low)), (b, _log(under.high))),
        _end(a - b, 1, (a, _log(over.high)), (b, _log(under.low))),
    )


def _end(
    centre: float, sign: int, over: tuple[float, float | None], under: tuple[float, float | None]
) -> float | None:
    if over[1] is None or under[1] is None:
        return None
    return math.exp(centre + sign * math.hypot(over[0] - over[1], under[0] - under[1]))


def _log(value: float | None) -> float | None:
    return math.log(value) if value is not None and math.isfinite(value) and value > 0 else None
