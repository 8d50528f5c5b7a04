"""Whether something grew while nothing should have: a straight line through medians, with the interval of its slope.

The test is that growth stayed below a limit, not that none was found: the upper end of the interval decides, so that a
noisy measurement fails instead of passing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

BLOCKS = 12  # neighbouring samples resemble each other; medians of blocks hardly do
_T = 2.228  # 97.5% quantile of Student's t with BLOCKS - 2 degrees of freedom


@dataclass(frozen=True, slots=True)
class Growth:
    """A fitted change over the whole window, in the quantity's own unit, with its 95% interval; and the level."""

    change: float
    low: float
    high: float
    level: float

    def within(self, bound: float) -> bool:
        """Whether the quantity can not have grown by more than `bound` over the window."""
        return self.high <= bound


def growth(at_s: Sequence[float], values: Sequence[float]) -> Growth:
    """Least squares through the medians of BLOCKS blocks. Raises ValueError for fewer than two samples per block."""
    at, of = _medians(at_s, values)
    window = at_s[-1] - at_s[0]
    spread = at - at.mean()
    slope = float(spread @ of / (spread @ spread))
    left = of - of.mean() - slope * spread
    error = float(np.sqrt(left @ left / (BLOCKS - 2) / (spread @ spread)))
    change, width = slope * window, _T * error * window
    return Growth(float(change), float(change - width), float(change + width), float(np.median(of)))


def growth_behind_bursts(at_s: Sequence[float], values: Sequence[float]) -> Growth:
    """The same by the median of the slopes between any two blocks, with Kendall's interval.

    A lag jumps for some seconds when something else runs on the machine: up to three blocks of BLOCKS may be so. For the
    same reason this does not see what begins in the last blocks: least squares do, and suit what has no such noise.
    """
    at, of = _medians(at_s, values)
    earlier, later = np.triu_indices(BLOCKS, 1)
    slopes = np.sort((of[later] - of[earlier]) / (at[later] - at[earlier])) * (at_s[-1] - at_s[0])
    spread = 1.96 * np.sqrt(BLOCKS * (BLOCKS - 1) * (2 * BLOCKS + 5) / 18)
    outside = int((len(slopes) - spread) // 2) - 1
    low, high = float(slopes[outside]), float(slopes[-1 - outside])
    return Growth(float(np.median(slopes)), low, high, float(np.median(of)))


def _medians(at_s: Sequence[float], values: Sequence[float]) -> tuple[np.ndarray, np.ndarray]:
    if len(values) < 2 * BLOCKS or len(at_s) != len(values):
        raise ValueError(
            f"expected at least {2 * BLOCKS} samples with their times, got {len(values)}"
        )
    at = [np.mean(block) for block in np.array_split(np.asarray(at_s, float), BLOCKS)]
    of = [np.median(block) for block in np.array_split(np.asarray(values, float), BLOCKS)]
    return np.array(at), np.array(of)
