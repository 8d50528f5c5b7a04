"""How full a bucket was over time, and how hard it was used.

Rule: the level after each call is burst - what the costs say is missing; where a response's headers tell the level as an
interval, the level is the nearest point of it, and a point that had to move is counted: others use the same limit, or the
costs are not what we think. What was charged while the clocks of two workers may differ is allowed for. The minimum of a bin is over its calls and its edges.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from tailgauge_analysis.sections.rate_limits.buckets import lacking
from tailgauge_analysis.sections.rate_limits.costs import Costs
from tailgauge_analysis.sections.rate_limits.estimates import Readings
from tailgauge_analysis.stats.quantiles import Floats

WINDOWS_S = (1, 10, 60)
_CLOSE = 1e-3


@dataclass(frozen=True, slots=True)
class Levels:
    """Lowest level by bin; `agreeing` of `compared` header readings hold the level that the costs say."""

    width_s: int
    at_s: Floats
    lowest: Floats
    least: float
    least_at_s: float
    compared: int
    agreeing: int


@dataclass(frozen=True, slots=True)
class Use:
    """Mean and peak use, a second; the peaks are over windows of WINDOWS_S."""

    mean_per_s: float
    peak_per_s: tuple[float, ...]


def levels(
    costs: Costs,
    rate: float,
    burst: float,
    told: Readings | None,
    width_s: int,
    end_s: float,
    between_s: float = 0.0,
) -> Levels:
    """Over the run, in bins of `width_s` seconds from 0 to `end_s`."""
    count = max(1, int(end_s // width_s) + 1)
    edges: Floats = np.arange(count + 1, dtype=np.float64) * width_s
    at = np.concatenate((costs.at_s, edges))
    order = np.argsort(at, kind="stable")
    charge = np.concatenate((costs.charge, np.zeros(len(edges))))[order]
    at = at[order]
    level = burst - lacking(at, charge, rate) - charge
    compared = agreeing = 0
    if told is not None:
        owner = np.concatenate((np.where(costs.decided, costs.owner, -1), np.full(len(edges), -1)))[order]
        level, compared, agreeing = _held(level, owner, burst, told, _peak(costs, between_s))
    number = np.clip(at // width_s, 0, count - 1).astype(np.int64)
    lowest = np.full(count, np.inf)
    np.minimum.at(lowest, number, level)
    in_run = at >= 0
    least = int(np.argmin(np.where(in_run, level, np.inf)))
    return Levels(
        width_s, edges[:-1] + width_s / 2, lowest, float(level[least]), float(at[least]), compared, agreeing
    )  # fmt: skip


def _held(level: Floats, owner: Floats, burst: float, told: Readings, blur: float) -> tuple[Floats, int, int]:
    """Levels moved into what the headers say, give or take `blur`; how many were compared, and how many stayed."""
    by_owner = np.full(int(max(owner.max(), told.owner.max())) + 1, -1)
    by_owner[told.owner] = np.arange(len(told.owner))
    reading = np.where(owner >= 0, by_owner[owner], -1)
    rows = np.flatnonzero(reading >= 0)
    said = burst - told.missing[reading[rows]]
    slack = told.slack + blur + _CLOSE
    low, high = said - slack, said + slack + 1  # `remaining` is rounded down
    stays = (level[rows] >= low) & (level[rows] <= high)
    level = level.copy()
    level[rows] = np.clip(level[rows], low, high)
    return level, len(rows), int(stays.sum())


def use(costs: Costs) -> Use | None:
    """How hard the limit was used; None with no more than a moment to look at."""
    span = float(costs.at_s[-1] - costs.at_s[0]) if len(costs.at_s) else 0.0
    if span <= 0:
        return None
    peaks = tuple(_peak(costs, window) / window for window in WINDOWS_S)
    return Use(float(costs.charge.sum()) / span, peaks)


def _peak(costs: Costs, window_s: float) -> float:
    """The most that was charged within any stretch of that length."""
    if not window_s or not len(costs.at_s):
        return 0.0
    total = np.concatenate(([0.0], np.cumsum(costs.charge)))
    until = np.searchsorted(costs.at_s, costs.at_s + window_s, side="left")
    return float((total[until] - total[:-1]).max())
