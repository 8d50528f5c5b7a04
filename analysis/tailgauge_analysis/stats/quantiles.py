"""Quantiles of what was seen, each with how sure it is.

From arrays of one metric in arrival order.

- Estimator: `inverted_cdf`, the ceil(n p)-th smallest value: a value that was really observed.
- Interval: order statistics at ranks from Binomial(n_eff, p), rescaled to n. It assumes no distribution.
- n_eff: latencies under load come in bursts, so n of them say less than n independent ones. With the indicator
  e = 1{x > q_p} in arrival order, n_eff = n / (1 + 2 sum of its autocorrelations), summed over Geyer's initial
  positive pairs (Geyer 1992). Values that come in groups (the chunk gaps of one request) are taken a group at a time:
  d_i = sum of e over the group - p_hat * its size, Var(p_hat) = groups * longrun_var(d) / n^2,
  n_eff = p_hat (1 - p_hat) / Var(p_hat). With groups of one the two are the same.
- +inf is a value: a request that never got an answer is slower than any that did.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from tailgauge_analysis.stats.binomial import binomial_quantile

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]

CONFIDENCE = 0.95
NORMAL_975 = 1.959964  # quantile of the standard normal distribution that belongs to CONFIDENCE
STRETCH = 1_000_000  # values
BEYOND = 10  # effective samples wanted beyond the quantile; below it a value is marked unreliable

EPISODES = 5  # slow episodes wanted; with fewer, no interval is sure to hold how rare they are
TOO_FEW = "n/a"
UNRELIABLE = "unreliable"
FEW_EPISODES = "few slow episodes"
CLIENT = "client error"


@dataclass(frozen=True, slots=True)
class Quantile:
    """One quantile with its 95% interval; a bound is None where too few samples allow one."""

    p: float
    n: int
    n_eff: int
    value: float | None
    low: float | None
    high: float | None
    mark: str  # "", UNRELIABLE, FEW_EPISODES, TOO_FEW, or CLIENT: the client may have moved it too far
    episodes: int = 0
    """In how many episodes the values beyond it came."""
    seen_to: float | None = None
    """Where it, or an end of its interval, lies beyond the longest wait and so cannot be observed: that wait."""


def n_min(p: float) -> int:
    """Fewest independent samples for which a one-sided 95% upper bound of quantile p exists."""
    return math.ceil(math.log(1 - CONFIDENCE) / math.log(p))


def quantiles(values: Floats, ps: Sequence[float], sizes: Ints | None = None) -> list[Quantile]:
    """Quantiles `ps` of values in arrival order; `sizes`: how many values each group has, one group after the other."""
    ordered = np.sort(values)
    return [_quantile(values, ordered, p, sizes) for p in ps]


def _quantile(values: Floats, ordered: Floats, p: float, sizes: Ints | None) -> Quantile:
    n = len(ordered)
    if n == 0:
        return Quantile(p, 0, 0, None, None, None, TOO_FEW)
    at = rank(n, p)
    value = float(ordered[at - 1])
    n_eff = effective_n(values > value, sizes)
    if (ordered[at - 2 : at + 1] == value).sum() > 1 if at > 1 else (ordered[:2] == value).sum() > 1:
        # ties, such as failures: which values share the step matters as well
        n_eff = min(n_eff, effective_n(values >= value, sizes))
    low, high = ranks(n, n_eff, p)
    came = episodes(values > value, n / n_eff, sizes)
    return Quantile(
        p, n, n_eff, value,
        float(ordered[low - 1]) if low is not None else None,
        float(ordered[high - 1]) if high is not None else None,
        mark(n, n_eff, p, came),
        came,
    )  # fmt: skip


def mark(n: int, n_eff: int, p: float, came: int) -> str:
    """How far a quantile may be believed beyond which values `came` in so many episodes."""
    if n < n_min(p):
        return TOO_FEW
    return FEW_EPISODES if 0 < came < EPISODES else UNRELIABLE if n_eff * (1 - p) < BEYOND else ""


def rank(n: int, p: float) -> int:
    """1-based rank of the inverted_cdf estimator; the slack keeps 0.95 * 20 from becoming rank 20."""
    return min(n, max(1, math.ceil(n * p - 1e-9)))


@cache
def ranks(n: int, n_eff: int, p: float) -> tuple[int | None, int | None]:
    """1-based ranks of the interval's ends; None where the sample has no such bound."""
    alpha = (1 - CONFIDENCE) / 2
    low = binomial_quantile(alpha, n_eff, p)
    high = binomial_quantile(1 - alpha, n_eff, p) + 1
    return (
        max(1, math.floor(low * n / n_eff)) if low >= 1 else None,
        min(n, math.ceil(high * n / n_eff)) if high <= n_eff else None,
    )


def effective_n(exceeds: Mask, sizes: Ints | None = None) -> int:
    """How many independent samples say as much about the share of `exceeds` as these do; at least 1."""
    n = len(exceeds)
    share = float(exceeds.mean()) if n else 0.0
    if share in {0.0, 1.0}:
        return max(1, n)
    if sizes is None:
        deviations: Floats = exceeds.astype(np.float64) - share
    else:
        seen = sizes[sizes > 0]
        deviations = _counts(exceeds, seen) - share * seen
    variance = float(np.square(deviations).sum()) * correlation_time(deviations) / n**2
    if variance <= 0:
        return n
    return max(1, min(n, math.floor(share * (1 - share) / variance + 1e-6)))


def episodes(exceeds: Mask, apart: float, sizes: Ints | None = None) -> int:
    """In how many clusters the exceedances came: those `apart` or fewer values from the last belong to its cluster."""
    at = np.flatnonzero(exceeds)
    if sizes is not None:
        at = np.unique(np.searchsorted(np.cumsum(sizes), at, side="right"))
        apart *= len(sizes) / len(exceeds)
    return int((np.diff(at) > max(1.0, apart)).sum()) + 1 if len(at) else 0


def _counts(exceeds: Mask, sizes: Ints) -> Ints:
    """How many of each group exceed, a stretch of groups at a time: the sums are made of 8 bytes a value."""
    ends = np.cumsum(sizes)
    cuts = np.unique(np.append(np.searchsorted(ends, np.arange(0, len(exceeds), STRETCH)), len(ends)))
    begin = ends - sizes
    found = [
        np.add.reduceat(exceeds[begin[a] : ends[b - 1]], begin[a:b] - begin[a], dtype=np.int64)
        for a, b in pairwise(cuts)
    ]
    return np.concatenate(found)


def correlation_time(series: Floats) -> float:
    """1 + 2 sum of autocorrelations over Geyer's initial positive pairs, by FFT; never below 1."""
    n = len(series)
    if series.min() == series.max():  # its mean may be off by a rounding, which would pass for a wave
        return 1.0
    centred = series - series.mean()
    size = 1 << (2 * n - 1).bit_length()
    spectrum = np.fft.rfft(centred, size)
    covariance = np.fft.irfft(spectrum * spectrum.conj(), size)[:n]
    pairs = (covariance[: n // 2 * 2] / covariance[0]).reshape(-1, 2).sum(axis=1)
    ends = np.flatnonzero(pairs <= 0)
    stop = int(ends[0]) if len(ends) else len(pairs)
    return max(1.0, 2 * float(pairs[:stop].sum()) - 1)
