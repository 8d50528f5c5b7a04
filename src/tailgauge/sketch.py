"""A quantile sketch for live figures: DDSketch's logarithmic bins, 1% relative error, merged exactly by adding.

Rule: for progress display and the adaptive hedge delay only. Reported percentiles are exact and come from the rows.
Source: Masson, Rim, Lee, "DDSketch", VLDB 2019.
"""

from __future__ import annotations

import math

_GAMMA = 1.01 / 0.99
_LOG_GAMMA = math.log(_GAMMA)

Bins = dict[int, int]


def add(bins: Bins, value: float) -> None:
    """Count a positive value; values at or below zero fall into the lowest bin used for 1 ns."""
    key = math.ceil(math.log(max(value, 1e-9)) / _LOG_GAMMA)
    bins[key] = bins.get(key, 0) + 1


def merge(into: Bins, other: Bins) -> None:
    """Add the counts of `other`."""
    for key, count in other.items():
        into[key] = into.get(key, 0) + count


def quantile(bins: Bins, p: float) -> float | None:
    """Value at rank ceil(p n), within 1%; None without values."""
    total = sum(bins.values())
    if not total:
        return None
    rank, seen = max(1, math.ceil(p * total)), 0
    for key in sorted(bins):
        seen += bins[key]
        if seen >= rank:
            return 2 * _GAMMA**key / (_GAMMA + 1)
    return None
