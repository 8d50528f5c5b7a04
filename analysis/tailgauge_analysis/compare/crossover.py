"""Randomised block crossover: two arms take turns, and what drifts hits both alike.

Rule: plain arrays in, differences out, one a pair of blocks. Blocks are equal stretches of time; blocks 2i and 2i + 1
are pair i, and a coin says which of the two is arm B's. The first `washout_s` of a block still feel the arm before and
do not count. A block's figure is the logarithm of a quantile: a difference of 0.05 is 5% (exactly, e^0.05 - 1).

A block should be five times as long as an end-to-end p99 and, at a provider, as the time in which its rate limits fill
up again; the wash-out max(10 s, end-to-end p99); twenty pairs. Both blocks of a pair should have the same arrivals and
prompts. Two arms at the same time are no experiment where they share what is scarce: the one loads the other.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from tailgauge_analysis.stats.quantiles import Floats, rank

Bools = npt.NDArray[np.bool_]


def coin(pairs: int, seed: int) -> Bools:
    """For each pair whether arm B comes first."""
    return np.random.default_rng(seed).random(pairs) < 0.5


def arms(b_first: Bools) -> Bools:
    """For each block in order of time whether it is arm B's."""
    return np.stack([b_first, ~b_first], axis=1).ravel()


def log_quantiles(
    at_s: Floats, values: Floats, block_s: float, blocks: int, washout_s: float, p: float
) -> Floats:
    """Logarithm of quantile p in each block; NaN where a block holds nothing.

    `at_s` are scheduled times, ascending, from the start of the first block; `values` above 0, +inf for what failed.
    """
    starts = np.arange(blocks) * block_s
    first = np.searchsorted(at_s, starts + washout_s)
    last = np.searchsorted(at_s, starts + block_s)
    return np.array([log_quantile(values[a:b], p) for a, b in zip(first, last, strict=True)])


def log_quantile(values: Floats, p: float) -> float:
    """Logarithm of the inverted_cdf quantile; +inf among failures, -inf for 0, NaN of nothing."""
    n = len(values)
    if not n:
        return float("nan")
    at = rank(n, p) - 1
    with np.errstate(divide="ignore"):
        return float(np.log(np.partition(values, at)[at]))


def differences(by_block: Floats, b_first: Bools) -> Floats:
    """B less A in each pair."""
    first, second = by_block.reshape(-1, 2).T
    return np.where(b_first, first - second, second - first)
