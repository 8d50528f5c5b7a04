"""The sign-flip test of paired differences, and the interval that comes of inverting it.

The order within a pair was drawn by a coin; without
an effect each difference could as well have had the other sign, whatever its size and whatever drifts slowly. So the
mean is held against the means under all 2^n patterns of signs (up to 4,096 patterns, else 9,999 drawn ones and the
pattern that was seen).

A value v belongs to the interval if the differences less v pass the test at 5%. Flipping the signs of a subset S of the
pairs brings the mean up to the one seen or above exactly where the mean of S is v or less. So the ends of the interval
are order statistics of the means of all subsets (Hartigan 1969), without a search.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from tailgauge_analysis.stats.bootstrap import SEED
from tailgauge_analysis.stats.quantiles import MISSED, Floats, Ints

ALL_UP_TO = 12  # pairs; beyond, patterns are drawn
DRAWN = 9_999


@dataclass(frozen=True, slots=True)
class Flips:
    """What the differences say; an end of the interval is None where there are too few pairs for one."""

    n: int
    mean: float
    low: float | None
    high: float | None
    p_value: float


def flips(differences: Floats) -> Flips:
    """Test the differences of n >= 1 pairs; all of them must be finite."""
    n = len(differences)
    if n == 0 or not np.isfinite(differences).all():
        raise ValueError("the sign-flip test wants finite differences, one at least")
    chosen = _chosen(n)
    means = np.sort(chosen @ differences / chosen.sum(axis=1))  # of the subsets
    patterns = len(chosen) + 1  # the empty subset is one that has no mean
    k = _outside(patterns)
    p_value = min(1.0, 2 * (1 + int(min((means <= 0).sum(), (means >= 0).sum()))) / patterns)
    low, high = (float(means[k - 1]), float(means[-k])) if k else (None, None)
    return Flips(n, float(differences.mean()), low, high, p_value)


def _outside(patterns: int) -> int:
    """How many of the patterns lie beyond each end of the interval."""
    return math.floor(patterns * MISSED / 2)


@lru_cache(maxsize=4)
def _chosen(n: int) -> Ints:
    """The subsets without the empty one: all of them, or some drawn ones."""
    if n <= ALL_UP_TO:
        return (np.arange(1, 2**n)[:, None] >> np.arange(n)) & 1
    chosen = np.random.default_rng(SEED).integers(0, 2, (DRAWN, n))
    return chosen[chosen.any(axis=1)]


def holm(p_values: Sequence[float]) -> list[float]:
    """Adjusted p-values: the k-th smallest of m times m - k + 1, never below those before it, at most 1."""
    m, worst = len(p_values), 0.0
    adjusted = [0.0] * m
    for k, at in enumerate(sorted(range(m), key=p_values.__getitem__)):
        worst = max(worst, min(1.0, (m - k) * p_values[at]))
        adjusted[at] = worst
    return adjusted
