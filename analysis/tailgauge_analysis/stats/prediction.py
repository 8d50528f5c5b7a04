"""Where another value lies, if it comes of the same distribution as earlier ones, and whether these vary beyond their errors.

The limit for another value is that of a normal distribution. A limit that is also above all earlier values is exceeded by one in
n + 1 at most, whatever the distribution: among 20 earlier values Student's t alone takes up to 8% for worse where one in ten
comes from a slower machine, and 2% with it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from tailgauge_analysis.stats.binomial import student, student_beyond, variance_ratio
from tailgauge_analysis.stats.quantiles import Floats


@dataclass(frozen=True, slots=True)
class Prediction:
    """Of one value more than the earlier ones. `scale`: standard deviation of its difference from their mean; `largest`:
    distance of the largest of them from their mean.
    """

    mean: float
    scale: float
    freedom: int
    largest: float = 0.0

    @classmethod
    def of(cls, earlier: Floats, variance: float = 0.0) -> Prediction:
        """That of at least two earlier values; `variance`: of the value's own error, beyond theirs."""
        n = len(earlier)
        variance_between = float(earlier.var(ddof=1)) * (1 + 1 / n)
        mean = float(earlier.mean())
        scale = max(1e-9, math.sqrt(variance_between + max(0.0, variance)))
        return cls(mean, scale, n - 1, float(earlier.max()) - mean)

    def reach(self, level: float) -> float:
        """Return how far above the mean another value lies with this chance at most, by Student's t."""
        return student(self.freedom, 2 * level - 1) * self.scale

    def limit(self, level: float) -> float:
        """Return how far above the mean a value is beyond chance: by Student's t, and beyond each earlier one."""
        return max(self.reach(level), self.largest)

    def chance(self, distance: float) -> float:
        """Return the chance of a value so far above the mean."""
        return student_beyond(distance / self.scale, self.freedom)


def varies_between(values: Floats, errors: Floats) -> bool:
    """Return whether values differ by more than their standard errors explain, at 5%."""
    within = float(np.square(errors).mean())
    return float(values.var(ddof=1)) > within * variance_ratio(len(values) - 1)
