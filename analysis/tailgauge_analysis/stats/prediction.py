"""Where another value lies, if it comes of the same normal distribution as earlier ones."""

from __future__ import annotations

import math
from dataclasses import dataclass

from tailgauge_analysis.stats.binomial import student, student_beyond
from tailgauge_analysis.stats.quantiles import Floats


@dataclass(frozen=True, slots=True)
class Prediction:
    """Of one value more than the earlier ones. `scale`: standard deviation of its difference from their mean."""

    mean: float
    scale: float
    freedom: int

    @classmethod
    def of(cls, earlier: Floats, variance: float = 0.0) -> Prediction:
        """That of at least two earlier values; `variance`: of the value's own error, beyond theirs."""
        n = len(earlier)
        between = float(earlier.var(ddof=1)) * (1 + 1 / n)
        return cls(float(earlier.mean()), max(1e-9, math.sqrt(between + max(0.0, variance))), n - 1)

    def reach(self, level: float) -> float:
        """Return how far above the mean another value lies with this chance at most."""
        return student(self.freedom, 2 * level - 1) * self.scale

    def chance(self, beyond: float) -> float:
        """Return the chance of a value so far above the mean."""
        return student_beyond(beyond / self.scale, self.freedom)
