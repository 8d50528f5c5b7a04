"""All loads together: p99 and goodput at each, and the crossover load, where hedging turns from a gain to a harm.

The quantile is the same at every load: p99 if each variant has enough requests for it at the lowest load, else p95, else
there is no answer. Whether hedging helps, and whether it hurts, by either measure, is one family of tests (Holm), and a
claim needs p <= 0.04, because a false claim costs more than a missed one.

The effect of hedging can only get worse as the load rises, so neighbouring loads are pooled. That it helps at a load is
tested on that load and those above, that it hurts on it and those below: the largest of all sums over the load and some that
follow is compared with the same after exchanging the variants of blocks, so that trying many loads makes no finding. What is
added is each load's normal score: its rank among the exchanges as a normal quantile. In standard errors a harm that comes in
few bursts, which no exchange exceeds, would count less than chance at loads without bursts. Such
tests are nested, so the last load at which it helps and the first at which it hurts, each at 2.5%, are a 95% interval of the
crossover. Only the former is one load further down, because harm comes in bursts, which a few blocks may lack: without that
the interval missed up to 25% of planted crossovers. The crossover itself is the zero of a non-decreasing fit through the
contrasts, weighted by 1 / variance (pool adjacent violators). What helps and what hurts is by that fit at least the smallest size worth a change, 5% or 1 point.

Above what the target sustains there is no size, because it grows with the length of the run: loads from where the requests
in flight grow are not fitted. If they grow with hedging only, and its tail is slower there, it hurts. Where the variants are
mixed up, because the backlog outlasts a block or grows through the whole run, both wait as long: nothing is compared there,
and the growth alone decides.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import takewhile
from statistics import NormalDist

import numpy as np

from tailgauge.experiments.hedging import contrast
from tailgauge.experiments.hedging.contrast import Contrast
from tailgauge.scenario.experiment import Delay
from tailgauge_analysis import (
    CONFIDENCE,
    FOR_FIGURES,
    INCONCLUSIVE,
    SEED,
    STABLE,
    Floats,
    Growing,
    holm,
    n_min,
    rank,
)

OFF, ON = "hedging_off", "hedging_on"  # traffic tables of the variants
HELPS, HURTS = "helps", "hurts"
PS = (0.99, 0.95)
SURE = 0.04
LEAST_EFFECT = (math.log1p(0.05), 0.01)  # of the quantile, of the share of requests that miss an objective
DRAWN = 4_095  # exchanges of all loads together
LEAST, TINY = 1e-4, 1e-12  # variance: a smaller one would get too much weight


@dataclass(frozen=True, slots=True)
class CopyStats:
    """The hedges at one load; None if unknown. `cost`: of the losers, per request with hedging, least and most; `why`:
    the reason if unknown. `cancelled`: the share of the remaining generation that closing saved.
    `refused`: share of the calls, off and on.
    """

    hedged: float | None = None
    won: float | None = None
    cost: tuple[float, float] | None = None
    unit: str = ""
    why: str = ""
    cancelled: float | None = None
    refused: tuple[float | None, float | None] = (None, None)


@dataclass(frozen=True, slots=True)
class LoadResult:
    """A run at one load. `off`, `on`: ms by pair of blocks, +inf of failures; `bad_off`, `bad_on`: 1.0 of requests that
    missed an objective, empty without one. `short`: blocks are shorter than five `p99_s`, which is that without hedging.
    `growth_per_s`: of the requests in flight, where a variant is not sustained; `mixed`: both wait for one backlog; `unequal`: why they are not equal work.
    """

    rate_per_s: float
    off: tuple[Floats, ...] = field(metadata=FOR_FIGURES)
    on: tuple[Floats, ...] = field(metadata=FOR_FIGURES)
    bad_off: tuple[Floats, ...] = field(metadata=FOR_FIGURES)
    bad_on: tuple[Floats, ...] = field(metadata=FOR_FIGURES)
    copies: CopyStats
    washout_s: float
    short: bool
    p99_s: float = 0.0
    growth_per_s: Growing = STABLE
    mixed: bool = False
    unequal: tuple[str, ...] = ()

    @property
    def requests(self) -> tuple[int, int]:
        """Requests without hedging and with it."""
        return sum(map(len, self.off)), sum(map(len, self.on))


@dataclass(frozen=True, slots=True)
class CrossoverLoad:
    """The crossover in requests/s; None if beyond the tested loads, or not shown. `helps`, `hurts`: whether that is shown.
    `fit`: of each load.
    """

    crossover_per_s: float | None
    helps_below_per_s: float | None
    hurts_above_per_s: float | None
    helps: bool
    hurts: bool
    fit: tuple[float, ...]

    def verdict(self, rate_per_s: float) -> str:
        """Verdict on a load: its place relative to the crossover interval."""
        if self.helps_below_per_s is not None and rate_per_s <= self.helps_below_per_s:
            return HELPS
        above = self.hurts_above_per_s
        return HURTS if above is not None and rate_per_s >= above else INCONCLUSIVE


@dataclass(frozen=True, slots=True)
class ComparedLoad:
    """A load with its contrasts; None if there is nothing to compare, as where it is unstable. `off_ms`, `on_ms`: the quantile, inf if it is a
    failure; `cost_per_ms`: least and most that each millisecond gained costs per 1,000 requests.
    """

    load: LoadResult
    change: Contrast | None
    missed: Contrast | None
    requests: tuple[int, int]
    off_ms: float | None
    on_ms: float | None
    cost_per_ms: tuple[float, float] | None

    @property
    def rate_per_s(self) -> float:
        """Of the load."""
        return self.load.rate_per_s


@dataclass(frozen=True, slots=True)
class HedgingResult:
    """`quantile` is None if there are too few requests for any; `goodput` is None without objectives. `p_values`: adjusted,
    for helping and hurting by `tail`, then by `goodput`. `unstable_per_s`: from this load on with hedging only.
    """

    quantile: float | None
    loads: tuple[ComparedLoad, ...]
    tail: CrossoverLoad
    goodput: CrossoverLoad | None
    p_values: tuple[float, ...]
    unstable_per_s: float | None = None


@dataclass(frozen=True, slots=True)
class TriedDelay:
    """One delay, at the lowest load."""

    delay_ms: Delay
    load: LoadResult
    change: Contrast | None


def quantile_for(loads: Sequence[LoadResult], quantile: float | None = None) -> float | None:
    """`quantile`, or the highest of PS, if the variants of all loads have enough requests for it."""
    fewest = min((min(one.requests) for one in loads), default=0)
    return next((p for p in ((quantile,) if quantile else PS) if fewest >= n_min(p)), None)


def result(loads: Sequence[LoadResult], quantile: float | None = None) -> HedgingResult:
    """Judge every valid load; `quantile`: as set in the scenario."""
    ordered = sorted(loads, key=lambda one: one.rate_per_s)
    p = quantile_for(ordered, quantile)
    without, either = (_unstable(ordered, sides) for sides in ((0,), (0, 1)))
    above = [one for one in ordered if p is not None and either is not None and one.rate_per_s >= either]
    slower = [contrast.quantiles(one.off, one.on, p or 0.0) for one in above]
    hardly = not (p_values([one for one in slower if one is not None])[1] <= 1 - CONFIDENCE).any()
    if hardly and not any(one.mixed for one in above):  # a wave of load by chance
        either = without
    unstable = None if either == without else either
    stable = [not one.mixed and (either is None or one.rate_per_s < either) for one in ordered]

    def each(made: Callable[[LoadResult], Contrast | None]) -> list[Contrast | None]:
        return [made(one) if yes else None for one, yes in zip(ordered, stable, strict=True)]

    slow = each(lambda one: None if p is None else contrast.quantiles(one.off, one.on, p))
    bad = each(lambda one: contrast.shares(one.bad_off, one.bad_on) if one.bad_off else None)
    measures = [slow, bad] if any(one is not None for one in bad) else [slow]
    rates = [one.rate_per_s for one in ordered]
    known = [[(rate, one) for rate, one in zip(rates, of, strict=True) if one] for of in measures]
    # Where it is unstable that hedging hurts needs no test.
    tests = 1 if unstable is not None else 2
    each_load = [p_values([one for _, one in of]) for of in known]
    adjusted = holm([float(min(p, default=1.0)) for of in each_load for p in of[:tests]])
    crossovers = [
        crossover(
            [rate for rate, _ in of], [one for _, one in of], helps=adjusted[tests * i] <= SURE,
            hurts=adjusted[tests * i + tests - 1] <= SURE, least=LEAST_EFFECT[i], unstable_per_s=unstable,
        )
        for i, of in enumerate(known)
    ]  # fmt: skip
    quantiles = [p if yes else None for yes in stable]
    compared = tuple(map(_compared, ordered, slow, bad, quantiles))
    tail, *goodput = crossovers
    return HedgingResult(p, compared, tail, next(iter(goodput), None), tuple(adjusted), unstable)


def _unstable(ordered: Sequence[LoadResult], sides: Sequence[int]) -> float | None:
    """The load from which on every one is unstable in one of these variants; None if the highest is stable."""
    growing = takewhile(
        lambda one: any(one.growth_per_s[side] is not None for side in sides), reversed(ordered)
    )
    return min((one.rate_per_s for one in growing), default=None)


def _compared(
    load: LoadResult, change: Contrast | None, missed: Contrast | None, p: float | None
) -> ComparedLoad:
    off, on = (None if p is None or not blocks else _pooled(blocks, p) for blocks in (load.off, load.on))
    each, cost = None, load.copies.cost
    if change is not None and cost is not None and off is not None and on is not None and on < off < math.inf:
        each = 1000 * cost[0] / (off - on), 1000 * cost[1] / (off - on)
    return ComparedLoad(load, change, missed, load.requests, off, on, each)


def _pooled(blocks: Sequence[Floats], p: float) -> float:
    """Quantile of all blocks of a variant."""
    values = np.sort(np.concatenate(blocks))
    return float(values[rank(len(values), p) - 1])


def closer(loads: Sequence[float], fit: Sequence[float], n: int) -> list[float]:
    """Evenly spaced loads between the last gain and the first harm; none if the fit has no such place."""
    low, high = around(loads, np.array(fit))
    if not math.isfinite(high - low):
        return []
    return [low + (high - low) * (i + 1) / (n + 1) for i in range(n)]


def crossover(
    loads: Sequence[float], of: Sequence[Contrast], *, helps: bool, hurts: bool, least: float,
    unstable_per_s: float | None = None,
) -> CrossoverLoad:  # fmt: skip
    """The crossover of `loads` in ascending order; `helps`, `hurts`: whether help and harm are shown; `least`: that is one."""
    unstable = unstable_per_s is not None
    if not of:
        return CrossoverLoad(None, None, unstable_per_s, helps=False, hurts=unstable, fit=())
    weights = np.array([1 / max(LEAST, float(one.draws.var())) for one in of])
    fit = isotonic(np.array([one.value for one in of]), weights)
    gain, harm = around(loads, fit, least)
    gains, harms = (np.flatnonzero(one <= (1 - CONFIDENCE) / 2) for one in p_values(of))
    low = min(gain, loads[max(0, int(gains[-1]) - 1)]) if len(gains) else -math.inf
    high = max(harm, loads[int(harms[0])]) if len(harms) else math.inf
    high = high if unstable_per_s is None else min(high, unstable_per_s)
    helps, hurts = helps and math.isfinite(low), unstable or (hurts and math.isfinite(high))
    return CrossoverLoad(
        _zero(loads, fit) if helps and hurts else None, low if helps else None, high if hurts else None,
        helps, hurts, tuple(map(float, fit)),
    )  # fmt: skip


def p_values(of: Sequence[Contrast]) -> tuple[Floats, Floats]:
    """Of each load, p of "helps there" by it and the loads above, and of "hurts there" by it and those below, because what
    hedging changes can only grow with the load.
    """
    if not of:
        return np.ones(0), np.ones(0)
    rng = np.random.default_rng(SEED)
    drawn = [one.exchanged[[0, *rng.integers(0, len(one.exchanged), DRAWN)]] for one in of]
    return _from_each(drawn), _from_each([-one for one in reversed(drawn)])[::-1]


def _from_each(drawn: Sequence[Floats]) -> Floats:
    """p of the least sum over a load and some of those that follow, in normal scores; the first draw is as observed. No lower
    than at the load before, so that no number of loads makes a finding.
    """
    normal = np.array([NormalDist().inv_cdf((i + 0.5) / (DRAWN + 1)) for i in range(DRAWN + 1)])
    ranks = [np.searchsorted(np.sort(one), one + TINY, side="right") for one in drawn]
    rows, n = np.stack([normal[one - 1] for one in ranks], axis=1), len(drawn)
    least = [
        (np.cumsum(rows[:, i:], axis=1) / np.sqrt(np.arange(1, n - i + 1))).min(axis=1) for i in range(n)
    ]
    return np.maximum.accumulate([float((one <= one[0] + TINY).mean()) for one in least])


def isotonic(values: Floats, weights: Floats) -> Floats:
    """The non-decreasing values that are nearest in weighted squares."""
    means, sums, sizes = list[float](), list[float](), list[int]()
    for value, weight in zip(values.tolist(), weights.tolist(), strict=True):
        means.append(value)
        sums.append(weight)
        sizes.append(1)
        while len(means) > 1 and means[-2] >= means[-1]:
            mean, total, size = means.pop(), sums.pop(), sizes.pop()
            means[-1] = (means[-1] * sums[-1] + mean * total) / (sums[-1] + total)
            sums[-1] += total
            sizes[-1] += size
    return np.repeat(np.array(means), sizes)


def around(loads: Sequence[float], fit: Floats, least: float = 0.0) -> tuple[float, float]:
    """The last load with a gain and the first with a harm of more than `least`; infinite if there is none."""
    gains, harms = np.flatnonzero(fit < -least), np.flatnonzero(fit > least)
    low = loads[int(gains[-1])] if len(gains) else -math.inf
    return low, loads[int(harms[0])] if len(harms) else math.inf


def _zero(loads: Sequence[float], fit: Floats) -> float | None:
    low, high = around(loads, fit)
    if not math.isfinite(high - low):
        return None
    a, b = fit[loads.index(low)], fit[loads.index(high)]
    return float(low + (high - low) * a / (a - b))
