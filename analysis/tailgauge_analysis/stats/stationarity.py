"""Stationarity: does a series keep its distribution, and does a backlog grow?

Three checks; together they find something in 1% of the runs whose values are independent and steady.

- Trend: Kendall's S of the mean ranks of ten tenths. |S| >= 31 has p = 0.46% among independent tenths.
- Growth: what began minus what ended. A queue at 90% of what its servers can do is a Brownian motion that drifts down and is
  reflected at zero (Kingman's heavy traffic); its variance per arrival is measured in twenty windows. What began grows if
  such a queue would reach the same size in this time in at most 1.5% of runs (Harrison, Brownian Motion and Stochastic Flow
  Systems, 1985). Queues in several stretches of time are judged together, each with the length that it began with.
- Change: the stretch whose mean rank differs most from that of the rest (Kuiper's statistic, weighted by length). Its p is of
  permuted blocks of five correlation times, so that waves of load are not taken for changes; the median over five parts of
  the series, so that a change is not taken for a wave. Fewer than twelve blocks allow no answer. 0.3%.

Ranks, because a request without an answer is slower than any other, and because a single slow answer is no trend. What is
significant is reported only if it matters: the median or the p95 differs by more than 20%.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from statistics import NormalDist

import numpy as np
import pandas as pd

from tailgauge_analysis.stats.quantiles import Floats, Ints, correlation_time

TENTHS = 10
# Kendall's S of ten values: of a trend in either direction, and of a rise.
TREND = 31
RISE = 19
WINDOWS = 20
LOADED = 0.9  # a target with this load sustains it
BY_CHANCE = 0.015
# Squared coefficients of variation of arrivals and services, together: so little varies a queue at least.
LEAST_VARIANCE = 1.0
NORMAL_90 = 1.2816
MOST_Z = 2.5  # of a stretch among others: a single wave of load is no growth
SMALLEST_CHANCE = 1e-9
BISECTIONS = 40
MOST_ARRIVALS = 1e12
NEVER = 1e15  # seconds: infinity, of which pandas takes no median
SMOOTHED = 21  # neighbours, of which a third may be slow
BLOCKS = 100
FEWEST_BLOCKS = 12
OF_BLOCK = 5
PARTS = 5  # in each of which the correlation time is measured
SHORTEST = 3  # blocks of a stretch: two of them lie side by side by chance too often
PERMUTATIONS = (199, 1999)  # the first rule out most series
LIKELY = 0.05
CHANGE = 0.003
MATTERS = 1.2
QUANTILES = (0.5, 0.95)


@dataclass(frozen=True, slots=True)
class Growth:
    """Of a queue, per second. `detectable_per_s`: what is found in nine of ten runs."""

    per_s: float
    detectable_per_s: float
    rises: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Stretches:
    """A queue in several stretches of time: its length at their begins and ends, and the arrivals within; `variance`: per arrival."""

    starts: Floats
    sizes: Floats
    arrivals: Ints
    variance: float


@dataclass(frozen=True, slots=True)
class Stretch:
    """Values `begin` to `end` differ from the rest. `fit`: share of the variance between blocks that it explains."""

    begin: int
    end: int
    fit: float


def mean_ranks(values: Floats) -> Floats:
    """Ranks from 0 on, means for ties."""
    _, place, counts = np.unique(values, return_inverse=True, return_counts=True)
    middle: Floats = np.cumsum(counts) - (counts + 1) / 2
    return middle[place]


def ranks(values: Floats) -> Floats:
    """Ranks from 0 to 1, means for ties."""
    return mean_ranks(values) / max(1, len(values) - 1)


def kendall(series: Floats) -> int:
    """S of the means of ten tenths: how many pairs rise, less how many fall."""
    means = _means(series, TENTHS)
    pairs = np.sign(means[None, :] - means[:, None])[np.triu_indices(TENTHS, 1)]
    return int(pairs.sum())


def rises(values: Floats) -> bool:
    """Return whether the ranks of the values rise over the tenths of the series."""
    return len(values) >= TENTHS and kendall(ranks(values)) >= RISE


def trend(values: Floats) -> int:
    """1 if the values rise over the series, -1 if they fall, else 0, as of fewer than ten values."""
    if len(values) < TENTHS:
        return 0
    s = kendall(ranks(values))
    third = len(values) // 3
    if abs(s) >= TREND and differs_at(values[:third], values[-third:]):
        return int(np.sign(s))
    return 0


def differs_at(sample: Floats, baseline: Floats) -> float | None:
    """Return the quantile that differs by more than 20%: the median, else the p95; None if neither does."""
    if not len(sample) or not len(baseline):
        return None
    for p in QUANTILES:
        low, high = sorted((quantile(sample, p), quantile(baseline, p)))
        if low != high and high > MATTERS * low:
            return p
    return None


def quantile(values: Floats, p: float) -> float:
    """Return a value of the sample: the inverse of its empirical distribution at p."""
    return float(np.quantile(values, p, method="inverted_cdf"))


def growth(begun_s: Floats, ended_s: Floats, from_s: float, to_s: float) -> Growth:
    """Return how what began and has not ended grows in this time."""
    edges = np.linspace(from_s, to_s, WINDOWS + 1)
    begun = np.searchsorted(np.sort(begun_s), edges, "right")
    ended = np.searchsorted(np.sort(ended_s), edges, "right")
    waiting = begun - ended
    arrivals = max(1, int(begun[-1] - begun[0]))
    size = float(waiting[-1] - waiting[0])
    variance = variance_in_windows(begun, ended)
    detectable = _least_size(arrivals, variance) + NORMAL_90 * math.sqrt(variance * arrivals)
    chance = _chance_of_size(size, arrivals, variance)
    seconds = to_s - from_s
    return Growth(
        per_s=size / seconds, detectable_per_s=detectable / seconds, rises=chance < BY_CHANCE
    )


def per_arrival(variance: float, arrivals: int) -> float:
    """Return the variance of a queue per arrival; few arrivals show only roughly how much they vary."""
    arrivals = max(1, arrivals)
    return max(LEAST_VARIANCE, variance / arrivals) * (1 + WINDOWS / arrivals)


def variance_in_windows(begun: Ints, ended: Ints) -> float:
    """Return the variance of a queue per arrival, from how many had begun and ended by the edges of equal windows.

    The edges are the last axis. Waits that grow and fall together with the load vary less than arrivals and ends by
    themselves, and the reverse.
    """
    arrived = np.diff(begun)
    variance = arrived.var(ddof=1) + np.diff(ended).var(ddof=1)
    noise = max(float(variance), float(np.diff(begun - ended).var(ddof=1)))
    return per_arrival(noise * arrived.size, int(arrived.sum()))


def chance_of_growth(queues: Stretches) -> float:
    """Return how likely queues at 90% load grow as much in these stretches together (Stouffer's sum of normal scores)."""
    scores = []
    for start, size, arrivals in zip(queues.starts, queues.sizes, queues.arrivals, strict=True):
        chance = _chance_of_size(float(size), max(1, int(arrivals)), queues.variance, float(start))
        chance = min(max(chance, SMALLEST_CHANCE), 1 - SMALLEST_CHANCE)
        scores.append(-NormalDist().inv_cdf(chance))
    if not scores:
        return 1.0
    total = float(np.clip(scores, -MOST_Z, MOST_Z).sum())
    return _normal(-total / math.sqrt(len(scores)))


def _chance_of_size(size: float, arrivals: int, variance: float, start: float = 0.0) -> float:
    """Return how likely a queue at 90% load is at least this long after so many arrivals."""
    if size <= 0:
        return 1.0
    drift = (1 / LOADED - 1) * arrivals
    spread = math.sqrt(variance * arrivals)
    never_empty = _normal((start - size - drift) / spread)
    reflected = _normal((drift - size - start) / spread)
    return never_empty + math.exp(-2 * (1 / LOADED - 1) * size / variance) * reflected


def _least_size(arrivals: int, variance: float) -> float:
    """Return the size that is that unlikely."""
    low = 0.0
    high = float(arrivals)
    while _chance_of_size(high, arrivals, variance) > BY_CHANCE and high < MOST_ARRIVALS:
        high *= 2
    for _ in range(BISECTIONS):
        middle = (low + high) / 2
        if _chance_of_size(middle, arrivals, variance) > BY_CHANCE:
            low = middle
        else:
            high = middle
    return high


def _normal(z: float) -> float:
    """Return the standard normal distribution function."""
    return math.erfc(-z / math.sqrt(2)) / 2


def smoothed(waits: Floats) -> Floats:
    """Return the median of each value and its neighbours; +inf where half of them are."""
    neighbours = min(SMOOTHED, max(3, len(waits) // 8) | 1)
    finite = np.where(np.isfinite(waits), waits, NEVER)
    medians = pd.Series(finite).rolling(neighbours, center=True, min_periods=1).median().to_numpy()
    return np.where(medians < NEVER / 4, medians, np.inf)


def change(values: Floats) -> Stretch | None:
    """Return the stretch whose ranks differ most from the rest; None if chance explains it, if it does not matter, or if the series
    is too short.

    Chance: permuted blocks of several correlation times differ as much in CHANGE of the cases or more. It matters if the median
    or the p95 differs by more than 20%.
    """
    if len(values) < OF_BLOCK * FEWEST_BLOCKS:
        return None
    ranked = ranks(values)
    # The median over parts of the series, so that a change is not taken for a wave.
    waves = float(np.median([correlation_time(part) for part in np.array_split(ranked, PARTS)]))
    blocks = min(BLOCKS, int(len(values) / (OF_BLOCK * waves)))
    if blocks < FEWEST_BLOCKS:
        return None
    means = _means(ranked, blocks)
    differences, where = _stretches(means[None])
    rng = np.random.default_rng(blocks)  # the same answer for the same run
    for times, p in zip(PERMUTATIONS, (LIKELY, CHANGE), strict=True):
        by_chance = _stretches(rng.permuted(np.tile(means, (times, 1)), axis=1))[0]
        if 1 + int((by_chance >= differences[0] - 1e-12).sum()) > p * (times + 1):
            return None
    # From cuts between blocks to places of values.
    begin, end = _edges(ranked, where[0], blocks)
    if begin == 0 and end > len(values) / 2:  # the shorter side of a step is the one that differs
        begin = end
        end = len(values)
    elif end == len(values) and begin < len(values) / 2:
        end = begin
        begin = 0
    inside = np.zeros(len(values), np.bool_)
    inside[begin:end] = True
    if differs_at(values[inside], values[~inside]) is None:
        return None
    return Stretch(begin, end, float(differences[0] ** 2 / np.square(means - means.mean()).sum()))


def linear_fit(values: Floats) -> float:
    """Share of the variance between blocks that a straight line explains; 0 of fewer than two blocks."""
    if len(values) < 2 * OF_BLOCK:
        return 0.0
    means = _means(ranks(values), min(BLOCKS, len(values) // OF_BLOCK))
    if not means.std():
        return 0.0
    return float(np.corrcoef(np.arange(len(means)), means)[0, 1] ** 2)


def _means(series: Floats, parts: int) -> Floats:
    return np.array([part.mean() for part in np.array_split(series, parts)])


def _stretches(means: Floats) -> tuple[Floats, Ints]:
    """Of each row of block means: the largest weighted difference of a stretch from the rest, and its first and last cut."""
    rows, blocks = means.shape
    sums = np.zeros((rows, blocks + 1))
    np.cumsum(means - means.mean(axis=1, keepdims=True), axis=1, out=sums[:, 1:])
    best = np.full(rows, -1.0)
    where = np.zeros((rows, 2), np.int64)
    for length in range(SHORTEST, blocks - SHORTEST + 1):
        size = np.abs(sums[:, length:] - sums[:, :-length]) / math.sqrt(
            length * (blocks - length) / blocks
        )
        begins = size.argmax(axis=1)
        largest = size[np.arange(rows), begins]
        is_larger = largest > best
        best[is_larger] = largest[is_larger]
        where[is_larger, 0] = begins[is_larger]
        where[is_larger, 1] = begins[is_larger] + length
    return best, where


def _edges(ranked: Floats, where: Ints, blocks: int) -> tuple[int, int]:
    """Return the stretch to the value: within a block of each cut, where values begin to be nearer to it than to the rest."""
    cuts = np.cumsum([0, *map(len, np.array_split(ranked, blocks))])
    within = np.split(ranked, cuts[where])[1]
    rest = np.delete(ranked, slice(*cuts[where]))
    sums = np.concatenate(([0.0], np.cumsum(ranked - (within.mean() + rest.mean()) / 2)))
    sign = 1 if within.mean() > rest.mean() else -1

    def edge(cut: int, turn: int) -> int:
        if cut in {0, blocks}:
            return int(cuts[cut])
        low = cuts[cut - 1]
        high = cuts[cut + 1]
        return int(low + np.argmin(turn * sums[low : high + 1]))

    return edge(int(where[0]), sign), edge(int(where[1]), -sign)
