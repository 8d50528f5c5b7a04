"""Where another value may lie, if it comes of the same distribution as earlier ones; and where a series has a step."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from tailgauge_analysis.stats.binomial import student, student_beyond
from tailgauge_analysis.stats.quantiles import Floats

RANKED = 20  # earlier values from which their ranks count too
SHUFFLES = 1999


@dataclass(frozen=True, slots=True)
class Prediction:
    """Of one more value beside the earlier ones, which are at least two. `error`: its own beyond theirs."""

    earlier: Floats
    error: float = 0.0

    @property
    def mean(self) -> float:
        """Of the earlier values."""
        return float(self.earlier.mean())

    @property
    def _freedom(self) -> int:
        return len(self.earlier) - 1

    @property
    def _scale(self) -> float:
        """Standard deviation of another value's difference from the mean of the earlier ones."""
        spread = float(self.earlier.std(ddof=1)) * math.sqrt(1 + 1 / len(self.earlier))
        return max(1e-9, math.hypot(spread, self.error))

    def margin(self, level: float) -> float:
        """Return how far beyond the mean another value lies with this chance at most, by Student's t."""
        return student(self._freedom, 2 * level - 1) * self._scale

    def reach(self, level: float, side: int = 1) -> float:
        """Return the same above the mean (`side` 1) or below it (-1), from 20 values on also by their ranks."""
        n = len(self.earlier)
        if n < RANKED:
            return self.margin(level)
        outside = max(1, math.floor((1 - level) * (n + 1) + 1e-9))
        apart = np.sort(side * (self.earlier - self.mean))
        return max(self.margin(level), float(apart[-outside]))

    def chance(self, beyond: float) -> float:
        """Return the chance of a value so far above the mean."""
        return student_beyond(beyond / self._scale, self._freedom)


def step(series: Floats, level: float) -> tuple[int, float] | None:
    """Return where the later values differ most from the earlier ones, and by how much.

    None where shuffled series differ as much more often than `level`.
    """
    n = len(series)
    sizes = np.arange(2, n - 1)
    orders = np.random.default_rng(n).permuted(np.tile(series, (SHUFFLES, 1)), axis=1)
    sums = np.cumsum(np.vstack([series, orders]) - series.mean(), axis=1)[:, 1:-2]
    apart = np.abs(sums) / np.sqrt(sizes * (n - sizes))
    largest = apart.max(axis=1)
    if (largest >= largest[0] - 1e-12).mean() > level:
        return None
    place = int(sizes[apart[0].argmax()])
    return place, float(series[place:].mean() - series[:place].mean())
