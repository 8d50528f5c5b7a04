"""The estimator of alternating blocks: what variant B changes against variant A.

Input: the values of each block, by pair of blocks. Output: one `Contrast`, below 0 where B is smaller.
The blocks of a variant are pooled, because a block alone is too short for a p99. The interval is a bootstrap over pairs,
because drift affects both blocks of a pair alike; `of_pairs` widens it by what few pairs vary less about their own mean than
about the expectation.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from tailgauge.thresholds import FEWEST_PAIRS
from tailgauge_analysis.stats.bootstrap import (
    PAIRED_REPS,
    PAIRED_WORK,
    SEED,
    of_pairs,
    weighted_quantiles,
)
from tailgauge_analysis.stats.quantiles import NORMAL_975, Floats, Ints

LARGEST_LOG = 5.0  # 148x: a larger change is clipped, as that to a failure
POWER = 2.8  # standard errors that are found in 80% of repetitions at 5%


@dataclass(frozen=True, slots=True, kw_only=True)
class Contrast:
    """`a`, `b`: the figure of each variant, over all its blocks. `value`: log(b / a) of relative quantiles, else b - a, with
    its 95% interval.
    """

    a: float
    b: float
    value: float
    low: float
    high: float

    @property
    def smallest(self) -> float:
        """The smallest change that would have been found."""
        return POWER * (self.high - self.low) / (2 * NORMAL_975)


def quantile_contrast(
    a: Sequence[Floats], b: Sequence[Floats], p: float, *, relative: bool = True
) -> Contrast | None:
    """Return how quantile p of variant B differs from that of A, both over all their blocks: log(b / a), or b - a if not `relative`.

    `a`, `b`: the values of each block, in pairs of blocks; failures are +inf. The interval resamples pairs. None for fewer than
    `FEWEST_PAIRS`, or where the quantile is a failure in both variants; if not `relative`, also where it is one in any resample.
    """
    if len(a) < FEWEST_PAIRS:
        return None
    weights = _resamples(len(a), sum(map(len, [*a, *b])))
    # The quantile of each resample; the first one is that of all pairs.
    a_values = _quantiles(a, p, weights)
    b_values = _quantiles(b, p, weights)
    if math.isinf(a_values[0]) and math.isinf(b_values[0]):
        return None
    if not relative:
        is_failure = np.isinf(a_values) | np.isinf(b_values)
        if is_failure.any():
            return None
        return _contrast(a_values, b_values, b_values - a_values, pairs=len(a))
    both_failed = np.isinf(a_values) & np.isinf(b_values)
    with np.errstate(divide="ignore", invalid="ignore"):
        # A change to or from a failure counts as the largest one.
        changes = np.clip(np.log(b_values) - np.log(a_values), -LARGEST_LOG, LARGEST_LOG)
    return _contrast(a_values, b_values, np.where(both_failed, 0.0, changes), pairs=len(a))


def mean_contrast(a: Sequence[Floats], b: Sequence[Floats]) -> Contrast | None:
    """Compare the mean of all values, as a share of ones. None for fewer than `FEWEST_PAIRS`."""
    if len(a) < FEWEST_PAIRS:
        return None
    weights = _resamples(len(a), len(a))
    a_values = _means(a, weights)
    b_values = _means(b, weights)
    return _contrast(a_values, b_values, b_values - a_values, pairs=len(a))


def _resamples(pairs: int, values: int) -> Ints:
    """Return how often each pair is drawn, a row per resample; the first row has every pair once."""
    reps = int(np.clip(PAIRED_WORK // max(1, values), *PAIRED_REPS))
    drawn = np.random.default_rng(SEED).multinomial(pairs, [1 / pairs] * pairs, reps)
    return np.vstack([np.ones((1, pairs), np.int64), drawn])


def _quantiles(blocks: Sequence[Floats], p: float, weights: Ints) -> Floats:
    pair = np.repeat(np.arange(len(blocks)), [len(block) for block in blocks])
    return weighted_quantiles(pair, np.concatenate(blocks), p, weights)


def _means(blocks: Sequence[Floats], weights: Ints) -> Floats:
    totals = np.array([block.sum() for block in blocks])
    sizes = np.array([float(len(block)) for block in blocks])
    means: Floats = (weights @ totals) / np.maximum(weights @ sizes, 1)
    return means


def _contrast(a_values: Floats, b_values: Floats, changes: Floats, *, pairs: int) -> Contrast:
    """Build the contrast from the figures of every resample; the first one is that of all pairs."""
    value = float(changes[0])
    low, high = of_pairs(changes[1:], value, pairs)
    return Contrast(
        a=float(a_values[0]),
        b=float(b_values[0]),
        value=value,
        low=min(low, value),
        high=max(high, value),
    )
