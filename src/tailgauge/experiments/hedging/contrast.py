"""What switching hedging on changes at one load: a quantile of all its blocks, or a share of their requests.

Input: values by pair of blocks. Output: one number with its interval; below 0 is a gain. The blocks of a variant are
pooled, because a block alone is too short for a p99. The order within a pair is random, so without an effect the blocks
could be exchanged: `exchanged` has the numbers of drawn exchanges. Any block may change places with any other, because the
2^n exchanges within few pairs are too few; drift makes that test more careful, as blocks then differ more than pairs do. Of a
quantile these are of the share of requests beyond the geometric mean of the quantiles of both variants: it is equal where these
are. The quantile itself jumps where few requests are much slower than the others, so that chance would look as large as any
effect; the quantile of both together lies among those few, and leaves some of them out. The interval is a bootstrap over pairs:
drift affects both blocks of a pair. A dozen pairs vary less about their mean than about the expectation, so the draws are
stretched by what n - 1 degrees of freedom cost and by Student's t.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np

from tailgauge_analysis import (
    CONFIDENCE,
    FOR_FIGURES,
    NORMAL_975,
    SEED,
    Floats,
    Ints,
    weighted_quantiles,
)

REPS = 1000
FEWEST = 2  # pairs that vary at all
DRAWN = 2_047  # exchanges
MOST = 5.0  # of a logarithm: 148x; larger differences are clipped
Statistic = Callable[
    [Ints, Ints], Floats
]  # weights of the cells on and off, a row per draw; a number per draw


@dataclass(frozen=True, slots=True)
class Contrast:
    """On against off. `value`: difference of the logarithms, or of the shares; `draws`: the same of each resample;
    `exchanged`: of the shares, as they are and then with the variants of blocks exchanged.
    """

    value: float
    low: float
    high: float
    draws: Floats = field(metadata=FOR_FIGURES)
    exchanged: Floats = field(metadata=FOR_FIGURES)


def quantiles(off: Sequence[Floats], on: Sequence[Floats], p: float) -> Contrast | None:
    """Logarithm of quantile p with hedging over that without. None if it is a failure (+inf) in both variants."""
    cells = [values for pair in zip(off, on, strict=True) for values in pair]
    values = np.concatenate(cells)
    cell = np.repeat(np.arange(len(cells)), [len(one) for one in cells])

    def logs(weights: Ints) -> Floats:
        with np.errstate(divide="ignore"):
            return np.log(weighted_quantiles(cell, values, p, weights))

    def difference(on: Floats, off: Floats) -> Floats:
        both = np.isinf(on) & np.isinf(off)
        with np.errstate(invalid="ignore"):
            return np.where(both, 0.0, np.clip(on - off, -MOST, MOST))

    def beyond(on: Ints, off: Ints) -> Floats:
        between = np.exp((logs(on) + logs(off)) / 2)
        counts = np.stack([len(one) - np.searchsorted(np.sort(one), between) for one in cells], axis=1)
        return _share(on, counts, sizes) - _share(off, counts, sizes)

    sizes = np.array([float(len(one)) for one in cells])
    whole = [logs(_of(hedged, len(off))[None, :])[0] for hedged in (True, False)]
    if np.isinf(whole).all():
        return None
    return _contrast(lambda on, off: difference(logs(on), logs(off)), len(off), beyond)


def shares(off: Sequence[Floats], on: Sequence[Floats]) -> Contrast:
    """Share of ones with hedging less that without."""
    cells = [values for pair in zip(off, on, strict=True) for values in pair]
    ones, sizes = np.array([one.sum() for one in cells]), np.array([float(len(one)) for one in cells])
    return _contrast(lambda on, off: _share(on, ones, sizes) - _share(off, ones, sizes), len(off))


def _share(weights: Ints, counts: Floats | Ints, sizes: Floats) -> Floats:
    """Counted requests of the cells relative to all; `counts` by cell, or by draw and cell."""
    share: Floats = (weights * counts).sum(axis=1) / np.maximum(weights @ sizes, 1)
    return share


def _contrast(between: Statistic, pairs: int, tested: Statistic | None = None) -> Contrast:
    """`between`: the number of which an interval is wanted; `tested`: that is exchanged, if not the same."""
    on, off = _of(True, pairs), _of(False, pairs)
    value = float(between(on[None, :], off[None, :])[0])
    order = np.tile(on, (DRAWN, 1))
    order = np.vstack([on, np.random.default_rng(SEED).permuted(order, axis=1)])
    exchanged = (tested or between)(order, 1 - order)
    drawn = np.random.default_rng(SEED).integers(0, pairs, (REPS, pairs))
    times = np.repeat(np.stack([np.bincount(row, minlength=pairs) for row in drawn]), 2, axis=1)
    draws = between(times * on, times * off)
    draws = value + _stretch(pairs) * (draws - value)
    alpha = (1 - CONFIDENCE) / 2
    low, high = np.quantile(draws, [alpha, 1 - alpha])
    return Contrast(value, min(float(low), value), max(float(high), value), draws, exchanged)


def _stretch(pairs: int) -> float:
    """The 97.5% quantile of Student's t, expanded about the normal one."""
    if pairs < FEWEST:
        return 1.0
    more = (NORMAL_975**3 + NORMAL_975) / (4 * (pairs - 1))
    return math.sqrt(pairs / (pairs - 1)) * (NORMAL_975 + more) / NORMAL_975


def _of(on: bool, pairs: int) -> Ints:
    """Weights of the cells of one variant: cells are off, on of the first pair, off, on of the second."""
    return np.tile(np.array([0, 1] if on else [1, 0], np.int64), pairs)


def per_cent(value: float) -> float:
    """A difference of logarithms as a relative change: 0.05 is 5%."""
    return math.expm1(value)
