"""Quantiles of what was seen, each with how sure it is.

From arrays of one metric in arrival order.

- Estimator: `inverted_cdf`, the ceil(n p)-th smallest value: a value that was really observed.
- Interval: order statistics at ranks from Binomial(m, p), rescaled to n. It assumes no distribution.
- n_eff: latencies under load come in bursts, so n of them say less than n independent ones. With the indicator
  e = 1{x > q_p} in arrival order, n_eff = n / (1 + 2 sum of its autocorrelations), summed over Geyer's initial
  positive pairs (Geyer 1992). Values that come in groups (the chunk gaps of one request) are taken a group at a time:
  d_i = sum of e over the group - p_hat * its size, Var(p_hat) = groups * longrun_var(d) / n^2,
  n_eff = p_hat (1 - p_hat) / Var(p_hat). With groups of one the two are the same. Slow periods may show only further up:
  n_eff is the smaller one of the quantile and of the deeper one with half as much beyond it.
- Episodes: exceedances no further apart than their correlation time are one (runs declustering). n_eff is an estimate
  itself, from episodes of sizes s_i: its variance is that of chi-squared with 2 (sum s_i^2)^2 / sum s_i^4 degrees of
  freedom, at least 4. Hence m = n_eff (z / t)^2, with the normal z (1.96 at 95%) and Student's t of as many.
- Episodes that look separate may hang together, as busy periods do in a queue: no more of them are counted than the
  exceedances are worth at the correlation time of the whole run, which is the
  longer one of the median's and of the upper quartile's.
- +inf is a value: a request that never got an answer is slower than any that did.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from functools import cache
from itertools import pairwise
from statistics import NormalDist

import numpy as np
import numpy.typing as npt

from tailgauge_analysis.stats.binomial import binomial_quantile, student

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]

CONFIDENCE = 0.95
MISSED = 1 - CONFIDENCE
ENDS = (MISSED / 2, 1 - MISSED / 2)  # the quantiles of resamples between which an interval lies
NORMAL_975 = 1.959964  # quantile of the standard normal distribution that belongs to CONFIDENCE
STRETCH = 1_000_000  # values
LAGS = 1024  # of the autocorrelation that are looked at first
BEYOND = 10  # effective samples wanted beyond what a slope or a product of several quantiles is about

EPISODES = 5  # slow episodes wanted; with fewer, no interval is sure to hold how rare they are
LEAST = 4.0  # degrees of freedom, as of two episodes: one alone has no size to compare with
FEWEST = 50  # effective samples wanted of any quantile
TOO_FEW = "n/a"
UNRELIABLE = "unreliable"
FEW_EPISODES = "few slow episodes"
CLIENT = "client error"


@dataclass(frozen=True, slots=True)
class Quantile:
    """One quantile with its interval, of 95% unless asked for otherwise; a bound is None where too few samples allow one."""

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


@dataclass(frozen=True, slots=True)
class Worth:
    """What dependent values say of a share: as much as `n_eff` independent ones, `sure` of which an interval may use."""

    n_eff: int
    sure: int
    episodes: int
    """In how many the rarer of the two outcomes came."""
    units: int
    """In how many values, or groups, it came."""
    time: float
    """Correlation time, in values or groups."""


def n_min(p: float) -> int:
    """Fewest independent samples for which a one-sided 95% upper bound of quantile p exists."""
    return math.ceil(math.log(1 - CONFIDENCE) / math.log(p))


_confidence = ContextVar("confidence", default=CONFIDENCE)


def confidence() -> float:
    """Of the intervals of quantiles and shares: 95%, or what `at_level` says."""
    return _confidence.get()


@contextmanager
def at_level(level: float) -> Iterator[None]:
    """Within, intervals are at this level, one for every number of a report."""
    token = _confidence.set(level)
    try:
        yield
    finally:
        _confidence.reset(token)


def quantiles(values: Floats, ps: Sequence[float], sizes: Ints | None = None) -> list[Quantile]:
    """Quantiles `ps` of values in arrival order; `sizes`: how many values each group has, one group after the other."""
    if not len(values):
        return [Quantile(p, 0, 0, None, None, None, TOO_FEW) for p in ps]
    n = len(values)
    ordered = np.sort(values)
    at = cache(lambda place: _worth_at(values, ordered, place, sizes))
    time = max(at(rank(n, 0.5)).time, at(rank(n, 0.75)).time)
    return [_quantile(ordered, p, at(rank(n, p)), at(rank(n, (1 + p) / 2)), time) for p in ps]


def _quantile(ordered: Floats, p: float, here: Worth, deeper: Worth, time: float) -> Quantile:
    n = len(ordered)
    n_eff = min(here.n_eff, deeper.n_eff)
    ends = ranks(n, min(here.sure, deeper.sure), p, confidence())
    low, high = (None if end is None else float(ordered[end - 1]) for end in ends)
    episodes = min(here.episodes, max(1, math.floor(here.units / time + 1e-6)))
    value = float(ordered[rank(n, p) - 1])
    why = mark(n, n_eff, p, episodes)
    return Quantile(p, n, n_eff, value, low, high, why, episodes)


def _worth_at(values: Floats, ordered: Floats, place: int, sizes: Ints | None) -> Worth:
    """At a quantile; with ties, such as failures, above their step or from it on: where half to twice as many are beyond."""
    value = ordered[place - 1]
    above = values > value
    if (ordered[max(0, place - 2) : place + 1] == value).sum() < 2:
        return worth(above, sizes)
    tied = values >= value
    beyond = len(values) - place
    if 2 * np.count_nonzero(above) < beyond:
        return worth(tied, sizes)
    if np.count_nonzero(tied) > 2 * beyond:
        return worth(above, sizes)
    a = worth(above, sizes)
    b = worth(tied, sizes)
    return Worth(
        min(a.n_eff, b.n_eff), min(a.sure, b.sure), max(a.episodes, b.episodes), max(a.units, b.units), max(a.time, b.time)
    )  # fmt: skip


def mark(n: int, n_eff: int, p: float, episodes: int) -> str:
    """Why a quantile may not be believed beyond which the values came in so many episodes."""
    if n < n_min(p):
        return TOO_FEW
    return FEW_EPISODES if 0 < episodes < EPISODES else UNRELIABLE if n_eff < FEWEST else ""


def rank(n: int, p: float) -> int:
    """1-based rank of the inverted_cdf estimator; the slack keeps 0.95 * 20 from becoming rank 20."""
    return min(n, max(1, math.ceil(n * p - 1e-9)))


@cache
def normal(level: float) -> float:
    """The bound that a standard normal variable exceeds on neither side with this confidence."""
    return NormalDist().inv_cdf((1 + level) / 2)


@cache
def ranks(n: int, n_eff: int, p: float, level: float = CONFIDENCE) -> tuple[int | None, int | None]:
    """1-based ranks of the interval's ends; None where the sample has no such bound."""
    alpha = (1 - level) / 2
    low = binomial_quantile(alpha, n_eff, p)
    high = binomial_quantile(1 - alpha, n_eff, p) + 1
    first = max(1, math.floor(low * n / n_eff)) if low >= 1 else None
    return first, min(n, math.ceil(high * n / n_eff)) if high <= n_eff else None


def worth(exceeds: Mask, sizes: Ints | None = None) -> Worth:
    """What dependent values say of the share of `exceeds`; of values that are all the same, as if they were independent."""
    n = len(exceeds)
    k = int(np.count_nonzero(exceeds))
    if k in {0, n}:
        return Worth(max(1, n), max(1, n), k, k, 1.0)
    if sizes is None:
        deviations = exceeds.astype(np.float64) - k / n
        at = np.flatnonzero(exceeds if 2 * k <= n else ~exceeds)
        weights = None
    else:
        seen = sizes[sizes > 0]
        counts = _counts(exceeds, seen)
        deviations = counts - k / n * seen
        rarer = counts if 2 * k <= n else seen - counts
        at = np.flatnonzero(rarer)
        weights = rarer[at]
    time = correlation_time(deviations)
    variance = float(np.square(deviations).sum()) * time / n**2
    n_eff = min(float(n), k / n * (1 - k / n) / variance) if variance > 0 else float(n)
    episode = np.concatenate(([0], np.cumsum(np.diff(at) > time)))
    came = np.square(np.bincount(episode, weights).astype(np.float64))
    freedom = max(LEAST, 2 * float(came.sum()) ** 2 / float(np.square(came).sum()))
    level = confidence()
    sure = n_eff * (normal(level) / student(round(freedom, 1), level)) ** 2
    return Worth(max(1, math.floor(n_eff + 1e-6)), max(1, math.floor(sure + 1e-6)), len(came), len(at), time)


def _counts(exceeds: Mask, sizes: Ints) -> Ints:
    """How many of each group exceed, a stretch of groups at a time: the sums are made of 4 bytes a value."""
    ends = np.cumsum(sizes)
    cuts = np.unique(np.append(np.searchsorted(ends, np.arange(0, len(exceeds), STRETCH)), len(ends)))
    begin = ends - sizes
    seen = exceeds.view(np.uint8)  # faster than truth values
    stretches = ((seen[begin[a] : ends[b - 1]], begin[a:b] - begin[a]) for a, b in pairwise(cuts))
    return np.concatenate([np.add.reduceat(*of, dtype=np.uint32) for of in stretches]).astype(np.int64)


def correlation_time(series: Floats) -> float:
    """1 + 2 sum of autocorrelations over Geyer's initial positive pairs; never below 1."""
    n = len(series)
    if series.min() == series.max():  # its mean may be off by a rounding, which would pass for a wave
        return 1.0
    centred = series - series.mean()
    lags = min(n, LAGS)
    while True:
        covariance = _covariances(centred, lags)
        pairs = (covariance[: lags // 2 * 2] / covariance[0]).reshape(-1, 2).sum(axis=1)
        ends = np.flatnonzero(pairs <= 0)
        if len(ends) or lags == n:
            return max(1.0, 2 * float(pairs[: ends[0] if len(ends) else None].sum()) - 1)
        lags = min(n, 8 * lags)


def _covariances(centred: Floats, lags: int) -> Floats:
    """Autocovariances at 0 to lags - 1, by FFT, a block of the series after the other."""
    n = len(centred)
    size = 1 << max(14, (4 * lags - 1).bit_length())
    size = min(size, 1 << (n + lags - 2).bit_length())
    block = size - lags + 1
    total = np.zeros(size // 2 + 1, np.complex128)
    for begin in range(0, n, block):
        part = np.fft.rfft(centred[begin : begin + block], size)
        longer = np.fft.rfft(centred[begin : begin + size], size)
        total += part.conj() * longer
    return np.fft.irfft(total, size)[:lags]
