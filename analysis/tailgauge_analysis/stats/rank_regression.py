"""Rank regression: by how much a latency shifts with each column of a design.

The coefficients minimise the sum of score(rank of residual) x residual with Wilcoxon's scores (Jaeckel 1972): where the noise
has one distribution, whatever it is, they are the effect on every quantile. The estimate, its interval and its p-value are
one function of the slope b:

    T(b) = sum of x~ score(rank of (residual + (estimate - b) x~)),    x~ = the column less what the others say of it

T falls in b and is 0 at the estimate. The interval holds each b whose T lies within what chance gives, and p is that of
T(0). Chance is the variance of the sums of x~ score in groups whose members resemble each other: each row alone, pieces of
time, and groups that the caller knows. The widest interval and the largest p count. Student's t has as many degrees of
freedom as groups of equal weight would have the same spread (Satterthwaite 1946).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from tailgauge_analysis.stats.binomial import student, student_beyond
from tailgauge_analysis.stats.dependence import effective_count
from tailgauge_analysis.stats.quantiles import Floats, Ints
from tailgauge_analysis.stats.stationarity import mean_ranks

PIECES = 20  # of time
STEPS = 60
NEAR_ENOUGH = 0.01  # standard errors: the estimate lies so near to where T is 0
HALVINGS = 24  # of the way to an end of an interval
HALVINGS_OF_STEP = 12


@dataclass(frozen=True, slots=True, kw_only=True)
class Shift:
    """By how much y shifts for one more of a column, with its 95% interval."""

    value: float
    low: float
    high: float
    p_value: float

    def __post_init__(self) -> None:
        assert self.low <= self.value <= self.high, "an estimate lies in its own interval"


def shifts(
    columns: Sequence[Floats], controls: Sequence[Floats], y: Floats, groups: Sequence[Ints]
) -> list[Shift | None]:
    """Return by how much y shifts for one more of each column, with the `controls` in the fit; None of a column that too few groups tell of.

    Rows are in order of time, and all columns and controls together are linearly independent of each other and of a constant.
    `groups`: numbers of the groups of rows that may be alike, one array per grouping.
    """
    rows = len(y)
    design = np.stack([*columns, *controls], axis=1)
    scale = np.abs(design).max(axis=0)
    centred = design / scale
    centred -= centred.mean(axis=0)
    residuals = _residuals(np.linalg.qr(centred)[0], y)
    # Of each column a row: times y it is the coefficient, and scaled it is the column less what the others say of it.
    weights = np.linalg.pinv(centred) / scale[:, None]
    # Each row alone, and equal pieces of time, beside the groups that the caller knows.
    row_numbers = np.arange(rows)
    groupings = [row_numbers, row_numbers * min(PIECES, rows) // rows, *groups]
    # Fitted coefficients make residuals too small.
    few = rows / max(1, rows - design.shape[1] - 1)
    estimated = []
    for weight in weights[: len(columns)]:
        test = _Test(residuals, weight / float(weight @ weight), float(weight @ (y - residuals)))
        estimated.append(test.shift(groupings, few))
    return estimated


@dataclass(frozen=True, slots=True)
class _Test:
    """T of one column. `remainder`: the column less what the others say of it."""

    residuals: Floats
    remainder: Floats
    value: float

    def statistic(self, slope: float) -> float:
        """Return T at a slope."""
        return float(
            self.remainder @ scores(self.residuals + (self.value - slope) * self.remainder)
        )

    def shift(self, groupings: Sequence[Ints], few: float) -> Shift | None:
        """Return the estimate of the slope with its 95% interval and p-value; None where an end of the interval does not exist.

        `groupings`: group numbers of the rows; the widest interval and the largest p-value of them count. `few`: the factor by which
        the variance of the residuals is too small because coefficients were fitted.
        """
        influence = self.remainder * scores(self.residuals)
        at_zero = abs(self.statistic(0.0))
        bound = 0.0
        p_value = 0.0
        for group in groupings:
            # The chance variation of T, from its parts by group; as many degrees of freedom as groups of equal weight.
            sums = np.bincount(group, influence)
            sizes = np.bincount(group, self.remainder**2)
            freedom = max(1.0, effective_count(sizes) - 1)
            error = math.sqrt(few * float(sums @ sums) * (freedom + 1) / freedom)
            bound = max(bound, student(freedom) * error)
            p_value = max(p_value, 2 * student_beyond(at_zero / max(error, 1e-300), freedom))
        low = self._end(bound, -1.0)
        high = self._end(bound, 1.0)
        if low is None or high is None:
            return None
        return Shift(value=self.value, low=low, high=high, p_value=min(1.0, p_value))

    def _end(self, bound: float, sign: float) -> float | None:
        """Return the slope at which T is the bound, below the estimate (sign -1) or above it."""
        reach = max(float(np.ptp(self.residuals)), 1e-9) / max(
            float(np.ptp(self.remainder)), 1e-300
        )
        if -sign * self.statistic(self.value + sign * 2 * reach) <= bound:
            return None
        inside = 0.0
        outside = 2 * reach
        for _ in range(HALVINGS):
            middle = (inside + outside) / 2
            if -sign * self.statistic(self.value + sign * middle) <= bound:
                inside = middle
            else:
                outside = middle
        return self.value + sign * inside


def scores(values: Floats) -> Floats:
    """Return Wilcoxon's scores, with mean 0 and variance 1; ties share theirs."""
    return math.sqrt(12) * ((1 + mean_ranks(values)) / (len(values) + 1) - 0.5)


def _residuals(basis: Floats, y: Floats) -> Floats:
    """Descend along the gradient, which points to the minimum in an orthonormal basis."""
    residuals = y - np.median(y)
    for _ in range(STEPS):
        gradient = basis.T @ scores(residuals)
        if float(np.abs(gradient).max(initial=0.0)) < NEAR_ENOUGH:
            break
        direction = basis @ gradient
        residuals = residuals - _step(residuals, direction) * direction
    return residuals


def _step(residuals: Floats, direction: Floats) -> float:
    """Return how far the sum falls along a direction."""
    inside = 0.0
    outside = float(np.ptp(residuals)) / max(float(np.ptp(direction)), 1e-300)
    while direction @ scores(residuals - outside * direction) > 0:
        inside = outside
        outside *= 2
    for _ in range(HALVINGS_OF_STEP):
        middle = (inside + outside) / 2
        if direction @ scores(residuals - middle * direction) > 0:
            inside = middle
        else:
            outside = middle
    return (inside + outside) / 2
