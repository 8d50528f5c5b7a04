"""Estimates of a difference, with interval and p-value by Student's t: the mean of pairs, the ratio of two estimates.

Also Holm's adjustment of many p-values. Intervals by resampling are in bootstrap.py and contrast.py.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from tailgauge_analysis.stats.binomial import student, student_beyond
from tailgauge_analysis.stats.quantiles import Floats

POWER = 0.6  # Student's t exceeds the bound of this confidence on one side in 20%


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimate:
    """A difference with its 95% interval and p-value; `value` is None where only ends of the interval are known."""

    value: float | None
    low: float
    high: float
    p_value: float

    def smallest(self, pairs: int, at_least: int) -> float:
        """Return the distance beyond 0 that so many pairs, or those needed at least, show in 80% of repetitions."""
        error = (self.high - self.low) / 2 / student(pairs - 1)
        planned = max(pairs, at_least)
        bounds = student(planned - 1) + student(planned - 1, POWER)
        return error * math.sqrt(pairs / planned) * bounds


class Bounds(Protocol):
    """A value with its 95% interval; None where it is not known."""

    @property
    def value(self) -> float | None:
        """The estimate."""

    @property
    def low(self) -> float | None:
        """Its lower end."""

    @property
    def high(self) -> float | None:
        """Its upper end."""


def by_student(value: float, low: float, high: float, freedom: int) -> Estimate:
    """Return the estimate with the chance that it lies so far from 0 if it is 0."""
    half = high - value
    if value > 0:
        half = value - low
    p_value = float(value == 0)
    if half:
        p_value = _chance(abs(value) / half, freedom)
    return Estimate(value=value, low=low, high=high, p_value=p_value)


def _chance(halves: float, freedom: int) -> float:
    """Of an estimate so many halves of its interval from 0."""
    return 2 * student_beyond(student(freedom) * halves, freedom)


def paired(differences: Floats) -> Estimate | None:
    """Return the mean of the differences of pairs; None for a single pair."""
    n = len(differences)
    if n < 2:
        return None
    mean = float(differences.mean())
    half = student(n - 1) * float(differences.std(ddof=1)) / math.sqrt(n)
    return by_student(mean, mean - half, mean + half, n - 1)


def log_ratio(numerator: Bounds, denominator: Bounds, freedom: int) -> Estimate | None:
    """Return log(numerator / denominator) of independent estimates with its 95% interval; None where no end is known.

    `freedom`: degrees of freedom of Student's t, for the p-value. The distances to the ends of their intervals add up as squares (MOVER). Where one has no value, as a quantile among
    failures, the ends that are known bound the ratio.
    """
    b, b_low, b_high = _logs(numerator)
    a, a_low, a_high = _logs(denominator)
    if a is not None and b is not None:
        value = b - a
        low = value - math.hypot(b - b_low, a_high - a)
        high = value + math.hypot(b_high - b, a - a_low)
        if math.isinf(low) and math.isinf(high):
            return None
        return by_student(value, low, high, freedom)
    low = b_low - a_high
    high = b_high - a_low
    if math.isinf(low) and math.isinf(high):
        return None
    # How far the interval lies from 0; negative where it includes 0, so that nothing is shown.
    gap = max(low, -high)
    # Of the interval that is known, the narrower one of two.
    half_width = max(1e-9, min(a_high - a_low, b_high - b_low) / 2)
    p_value = 1.0
    if gap > 0:
        # Two values in the middle of equally wide intervals that just touch are sqrt(2) half widths of their difference
        # apart (MOVER). The gap is added in half widths of the interval that is known.
        p_value = _chance(math.sqrt(2) + gap / half_width, freedom)
    return Estimate(value=None, low=low, high=high, p_value=p_value)


def _logs(bounds: Bounds) -> tuple[float | None, float, float]:
    """Return the logarithms of a value and of the ends of its interval; what is 0 counts as unknown."""
    value = None
    if bounds.value:
        value = math.log(bounds.value)
    low = -math.inf
    if bounds.low:
        low = math.log(bounds.low)
    high = math.inf
    if bounds.high:
        high = math.log(bounds.high)
    return value, low, high


def holm(p_values: Sequence[float]) -> list[float]:
    """Return adjusted p-values: the k-th smallest of m times m - k + 1, never below those before it, at most 1."""
    m = len(p_values)
    largest = 0.0
    adjusted = [0.0] * m
    for k, place in enumerate(sorted(range(m), key=p_values.__getitem__)):
        largest = max(largest, min(1.0, (m - k) * p_values[place]))
        adjusted[place] = largest
    return adjusted
