"""Stationarity: does a series keep its distribution, and does a backlog grow?

Three checks; together they find something in 1% of the runs whose values are independent and steady.

- Trend: Kendall's S of the mean ranks of ten tenths. |S| >= 31 has p = 0.46% among independent tenths.
- Growth: what began minus what ended, in twenty equal windows. Their increments average above 0 (one-sided t-test at 10%) and
  the tenths of the series rise (S >= 23, p = 2.3%). A stable queue returns to where it was, so it passes the first by much.
- Change: the stretch whose mean rank differs most from that of the rest (Kuiper's statistic, weighted by length). Its p is of
  permuted blocks of five correlation times, so that waves of load are not taken for changes; the median over five parts of
  the series, so that a change is not taken for a wave. Fewer than twelve blocks allow no answer. 0.3%.

Ranks, because a request without an answer is slower than any other, and because a single slow answer is no trend. What is
significant is reported only if it matters: the median or the p95 differs by more than 20%.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from tailgauge_analysis.stats.quantiles import Floats, Ints, correlation_time

TENTHS = 10
# Kendall's S of ten values: of a trend in either direction, and of a rise.
TREND = 31
RISE = 23
WINDOWS = 20
T_90 = 1.328  # one-sided quantile of t with 19 degrees of freedom
BLOCKS = 100
FEWEST_BLOCKS = 12
OF_BLOCK = 5
PARTS = 5  # in each of which the correlation time is measured
SHORTEST = 3  # blocks of a stretch: two of them lie side by side by chance too often
PERMUTATIONS = (199, 1999)  # the first rule out most series
LIKELY = 0.05
CHANGE = 0.003
MATTERS = 1.2
PS = (0.5, 0.95)


@dataclass(frozen=True, slots=True)
class Growth:
    """Of a backlog, per second. `detectable_per_s`: what the check sees in nine of ten runs."""

    per_s: float
    detectable_per_s: float
    rises: bool


@dataclass(frozen=True, slots=True)
class Stretch:
    """Values `begin` to `end` differ from the rest. `fit`: share of the variance between blocks that it explains."""

    begin: int
    end: int
    fit: float


def ranks(values: Floats) -> Floats:
    """Ranks from 0 to 1, means for ties."""
    _, place, counts = np.unique(values, return_inverse=True, return_counts=True)
    middle: Floats = np.cumsum(counts) - (counts + 1) / 2
    return middle[place] / max(1, len(values) - 1)


def kendall(series: Floats) -> int:
    """S of the means of ten tenths: how many pairs rise, less how many fall."""
    return int(_pairs(series).sum())


def rising(values: Floats) -> float:
    """Of the pairs of tenths that differ in rank, the share that rise less the share that fall; 0 where most pairs do not differ."""
    pairs = _pairs(ranks(values))
    differ = np.count_nonzero(pairs)
    return float(pairs.sum() / differ) if 2 * differ >= len(pairs) else 0.0


def _pairs(series: Floats) -> Floats:
    """1 of each pair of tenths of which the later one is higher, -1 where it is lower."""
    means = _means(series, TENTHS)
    return np.sign(means[None, :] - means[:, None])[np.triu_indices(TENTHS, 1)]


def trend(values: Floats) -> int:
    """1 if the values rise over the series, -1 if they fall, else 0."""
    s = kendall(ranks(values))
    third = len(values) // 3
    return int(np.sign(s)) if abs(s) >= TREND and differs_at(values[:third], values[-third:]) else 0


def differs_at(some: Floats, others: Floats) -> float | None:
    """The quantile that differs by more than 20%: the median, else the p95; None if neither does."""
    for p in PS:
        low, high = sorted(float(np.quantile(v, p, method="inverted_cdf")) for v in (some, others))
        if low != high and high > MATTERS * low:
            return p
    return None


def growth(begun_s: Floats, ended_s: Floats, from_s: float, to_s: float) -> Growth:
    """Of what began and has not ended, within this time."""
    fine = np.linspace(from_s, to_s, WINDOWS * TENTHS + 1)
    began, ended = (np.searchsorted(np.sort(at), fine, "right") for at in (begun_s, ended_s))
    waiting = (began - ended).astype(np.float64)
    added = np.diff(waiting[::TENTHS])
    noise = sum(float(np.diff(events[::TENTHS]).var(ddof=1)) for events in (began, ended))
    error = float(added.std(ddof=1)) / math.sqrt(WINDOWS)
    seconds = to_s - from_s
    rises = float(added.mean()) > T_90 * error and kendall(waiting[1:]) >= RISE
    detectable = 2 * T_90 * math.sqrt(noise * WINDOWS) / seconds
    return Growth(float(waiting[-1] - waiting[0]) / seconds, detectable, rises)


def joined(at_s: Floats, spans: Sequence[tuple[float, float]]) -> Floats:
    """Times within these spans, in ascending order, as if each span followed the one before at once."""
    begins, ends = np.array(spans).T
    place = np.searchsorted(begins, at_s, "right") - 1
    inside = (place >= 0) & (at_s < ends[place])
    before = np.cumsum(ends - begins) - (ends - begins)
    out: Floats = (before - begins)[place[inside]] + at_s[inside]
    return out


def change(values: Floats) -> Stretch | None:
    """The stretch that differs from all the rest; None if there is none, or if the series is too short to show one."""
    ranked = ranks(values)
    waves = float(np.median([correlation_time(part) for part in np.array_split(ranked, PARTS)]))
    blocks = min(BLOCKS, int(len(values) / (OF_BLOCK * waves)))
    if blocks < FEWEST_BLOCKS:
        return None
    means = _means(ranked, blocks)
    found, where = _stretches(means[None])
    rng = np.random.default_rng(blocks)  # the same answer for the same run
    for times, p in zip(PERMUTATIONS, (LIKELY, CHANGE), strict=True):
        by_chance = _stretches(rng.permuted(np.tile(means, (times, 1)), axis=1))[0]
        if 1 + int((by_chance >= found[0] - 1e-12).sum()) > p * (times + 1):
            return None
    begin, end = _edges(ranked, where[0], blocks)
    if begin == 0 and end > len(values) / 2:  # the shorter side of a step is the one that differs
        begin = end
        end = len(values)
    elif end == len(values) and begin < len(values) / 2:
        begin, end = 0, begin
    inside = np.zeros(len(values), np.bool_)
    inside[begin:end] = True
    if differs_at(values[inside], values[~inside]) is None:
        return None
    return Stretch(begin, end, float(found[0] ** 2 / np.square(means - means.mean()).sum()))


def linear_fit(values: Floats) -> float:
    """Share of the variance between blocks that a straight line explains."""
    means = _means(ranks(values), min(BLOCKS, len(values) // OF_BLOCK))
    return float(np.corrcoef(np.arange(len(means)), means)[0, 1] ** 2) if means.std() else 0.0


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
        size = np.abs(sums[:, length:] - sums[:, :-length]) / math.sqrt(length * (blocks - length) / blocks)
        at = size.argmax(axis=1)
        largest = size[np.arange(rows), at]
        more = largest > best
        best[more] = largest[more]
        where[more, 0], where[more, 1] = at[more], at[more] + length
    return best, where


def _edges(ranked: Floats, where: Ints, blocks: int) -> tuple[int, int]:
    """The stretch to the value: within a block of each cut, where values begin to be nearer to it than to the rest."""
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
