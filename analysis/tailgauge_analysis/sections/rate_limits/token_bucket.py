"""The token bucket behind a limit: which one explains what was admitted and refused, and how much growth it allows.

A bucket that was full when the run began lacks, just before an event at t,

    m(t) = max over s <= t of [admitted cost in [s, t) - rate * (t - s)]

whatever its burst is. It admits a call that needs c if m + c <= burst. So a rate is possible if

    b_hat(rate) = max of m + c over admitted calls  <=  burst  <  min of m + c over refused calls

and the pairs that fit are these: where some explain every decision, they are the interval, and nothing else is possible.
A call is decided some time after it was sent, so it may be that none does: then the pair that leaves fewest unexplained
is the estimate, and its 95% interval holds every rate that leaves w where the best leaves f, unless a sign test on the
decisions on which they differ separates them: w - f <= 1.96 sqrt(w + f).

Growth: the trace is what was offered, first attempts only: retries are the limit's doing. A factor g repeats each call
floor(g) times and once more with probability g - floor(g), by random numbers drawn once, so that a larger g only adds calls. Each
further copy of the trace is moved round by up to a twentieth of it: other users at about the same time. g* is the largest g at which
the bucket, full at the start, refuses nobody. Value: median over draws. Interval: the same on resampled
blocks of a tenth of the trace, at least two seconds: it covers chance, not a change in the shape of the traffic. g* depends on
the worst moment, so it falls as runs get longer.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
import pandas as pd
from numpy.random import Generator

from tailgauge.rows import schema
from tailgauge_analysis.sections.rate_limits.costs import Costs, ordered
from tailgauge_analysis.stats.bootstrap import SEED
from tailgauge_analysis.stats.quantiles import ENDS, NORMAL_975, Floats

MOST = 20_000  # decisions to fit; of more those around the first 429
GRID = 120
ROUNDS = 4
STEPS = 16
SPAN = (0.2, 20.0)  # rates tried, relative to the mean admitted rate
TOLERATED = 0.05  # of the refusals: how many more a bucket named by headers may leave unexplained
UNEXPLAINED = 0.2  # of the refusals: above this the model is rejected
_CLOSE = 1e-6
_LESS = 1e-9  # a refusal needs more than was there

MOST_CALLS = 5_000  # of the trace; of more those around its worst moment
MOST_FACTOR = 10
DRAWS = 11
REPS = (40, 100)
WORK = 2_000_000  # events examined for one interval, times the steps of a search
BISECTIONS = 12
BLOCKS = 20
FEWEST = 20  # calls


@dataclass(frozen=True, slots=True)
class Fit:
    """A bucket; `low` and `high` of the rate are None where the run does not bound it."""

    rate: float
    rate_low: float | None
    rate_high: float | None
    burst: float
    burst_low: float
    burst_high: float
    decisions: int
    refused: int
    unexplained: int
    allowed: int  # most unexplained decisions of a bucket that is still possible

    def tolerates(self, unexplained: int) -> bool:
        """Whether a bucket named by headers agrees with the decisions, with so many of them unexplained."""
        return unexplained <= max(self.allowed, self.unexplained + TOLERATED * self.refused)

    @property
    def is_credible(self) -> bool:
        """Whether the bucket explains the refusals."""
        return self.unexplained <= UNEXPLAINED * self.refused


def lacking(at_s: Floats, charge: Floats, rate: float) -> Floats:
    """What the bucket lacks just before each event."""
    level = np.cumsum(charge) - charge - rate * (at_s - at_s[0]) if len(at_s) else np.empty(0)
    return level - np.minimum.accumulate(level)


def stretch(costs: Costs) -> Costs:
    """At most MOST events: those around the first refusal."""
    return costs.around(costs.refused, MOST)


def sides(costs: Costs, rate: float) -> tuple[Floats, Floats]:
    """m + c of the admitted and of the refused calls."""
    wanted = lacking(costs.at_s, costs.charge, rate) + costs.need
    return wanted[costs.decided & ~costs.refused], wanted[costs.decided & costs.refused]


def envelope(costs: Costs, rate: float) -> float:
    """b_hat: the least burst that admits what was admitted."""
    admitted, _ = sides(costs, rate)
    return float(admitted.max(initial=0.0))


def bursts(costs: Costs, rate: float) -> tuple[int, float, float]:
    """Fewest decisions that no burst explains at this rate, and the bursts that leave as few: from, below."""
    admitted, refused = sides(costs, rate)
    low, high = float(admitted.max(initial=0.0)), float(refused.min(initial=math.inf))
    if low + _LESS < high:
        return 0, low, high
    values = np.sort(np.concatenate((admitted, refused)))
    above = len(admitted) - np.searchsorted(np.sort(admitted), values + _CLOSE, side="right")
    below = np.searchsorted(np.sort(refused), values + _CLOSE, side="right")
    wrong = above + below
    best = int(np.argmin(wrong))
    beyond = values[values > values[best] + _CLOSE]
    return int(wrong[best]), float(values[best]), float(beyond[0]) if len(beyond) else float(values[best])


def fit(costs: Costs, decision_lag_s: float = 0.0) -> Fit | None:
    """The bucket behind the decisions; None without a refusal, or with no more than one moment to look at.

    A call may have been decided up to `decision_lag_s` after it was sent: intervals are wider by what a bucket regains in it.
    """
    costs = stretch(costs)
    n, refused = int(costs.decided.sum()), int(costs.refused.sum())
    span = float(costs.at_s[-1] - costs.at_s[0]) if n else 0.0
    mean = float(costs.charge.sum()) / span if span > 0 else 0.0
    if not refused or mean <= 0:
        return None
    unexplained: dict[float, int] = {}

    def wrong(rate: float) -> int:
        if rate not in unexplained:
            unexplained[rate] = bursts(costs, rate)[0]
        return unexplained[rate]

    rates = np.concatenate((np.geomspace(SPAN[0] * mean, SPAN[1] * mean, GRID), _slopes(costs)))
    for _ in range(ROUNDS):  # between the best and its neighbours, ever closer
        for rate in rates:
            wrong(float(rate))
        best = min(unexplained, key=lambda rate: (unexplained[rate], abs(rate - mean)))
        tried = np.array(sorted(unexplained))
        at = int(np.searchsorted(tried, best))
        rates = np.linspace(tried[max(0, at - 1)], tried[min(len(tried) - 1, at + 1)], GRID // 4)
    allowed = _allowed(wrong(best))
    from_rate, to_rate = (_edge(wrong, best, of_mean * mean, allowed) for of_mean in SPAN)
    if wrong(best) == 0:  # anywhere between the ends will do: take the middle
        middle = ((from_rate or best) + (to_rate or best)) / 2
        best = middle if wrong(middle) == 0 else best
    missed, burst_low, burst_high = bursts(costs, best)
    outer = [bursts(costs, end)[1:] for end in (from_rate, to_rate) if end is not None]
    lows, highs = zip((burst_low, burst_high), *outer, strict=True)
    refused_at, unsure = costs.at_s[costs.refused], best * decision_lag_s
    drift = unsure / max(1.0, float(refused_at[-1] - refused_at[0]))
    return Fit(
        best, None if from_rate is None else from_rate - drift, None if to_rate is None else to_rate + drift,
        (burst_low + burst_high) / 2, max(0.0, min(lows) - unsure), max(highs) + unsure, n, refused, missed, allowed,
    )  # fmt: skip


def _slopes(costs: Costs) -> Floats:
    """Candidate rates: admitted cost per second from one refusal to a later one.

    At a refusal less than c is left, so not more than c + rate * dt is admitted from there on, and if the bucket is not
    full in between, not less than rate * dt - c up to the next: the steepest slopes lie close to the rate.
    """
    at = np.flatnonzero(costs.refused)
    t, admitted, need = costs.at_s[at], np.cumsum(costs.charge)[at], costs.need[at]
    tried = []
    ahead = 1
    while ahead < len(at):
        dt, cost = t[ahead:] - t[:-ahead], admitted[ahead:] - admitted[:-ahead]
        slope = np.where(dt > 0, cost / np.where(dt > 0, dt, 1.0), 0.0)
        top = int(np.argmax(slope))
        if slope[top] > 0:
            width = float(need.max()) / dt[top]
            tried.append(np.linspace(max(slope[top] - width, slope[top] / 2), slope[top] + width, STEPS + 1))
        ahead *= 2
    return np.concatenate([np.empty(0), *tried])


def _allowed(fewest: int) -> int:
    """Most unexplained decisions of a rate that is still possible: the largest w of the inequality above."""
    if not fewest:
        return 0
    return fewest + math.floor((NORMAL_975**2 + math.sqrt(NORMAL_975**4 + 8 * NORMAL_975**2 * fewest)) / 2)


def _edge(wrong: Callable[[float], int], best: float, end: float, allowed: int) -> float | None:
    """How far towards `end` a rate is possible; None if as far as that."""
    if wrong(end) <= allowed:
        return None
    good, bad = best, end
    for _ in range(40):
        middle = (good + bad) / 2
        good, bad = (middle, bad) if wrong(middle) <= allowed else (good, middle)
    return good


@dataclass(frozen=True, slots=True)
class Growth:
    """The factor; None with a reason, `high` None where it is more than MOST_FACTOR."""

    value: float | None = None
    low: float | None = None
    high: float | None = None
    calls: int = 0
    why: str | None = None


def offered_load(costs: Costs, attempts: pd.DataFrame) -> Costs:
    """The trace without retries, each first attempt charged as if it had been admitted."""
    first = (attempts["cause"] != schema.RETRY).to_numpy(np.bool_)[costs.attempt]
    charge = np.where(costs.refused, np.nan_to_num(costs.need), costs.charge)
    return replace(costs, charge=charge).only(first)


def growth(trace: Costs, rate: float, burst: tuple[float, float, float]) -> Growth:
    """g* for a burst that is known to lie within `burst` (low, value, high)."""
    calls = int(trace.decided.sum())
    if calls < FEWEST:
        return Growth(calls=calls, why=f"fewer than {FEWEST} calls")
    trace = trace.around(lacking(trace.at_s, trace.charge, rate), MOST_CALLS)
    rng = np.random.default_rng(SEED)
    span = float(trace.at_s[-1] - trace.at_s[0])
    mean = float(trace.charge.sum()) / span if span > 0 else 0.0
    if mean <= 0:
        return Growth(calls=calls, why="all calls were sent at one moment")
    copies = int(min(MOST_FACTOR, max(1, np.ceil((rate * span + burst[2]) / (mean * span)))))
    block = max(1.0, span / BLOCKS)  # half a block of the resampling
    values = [_factor(trace, rate, burst[1], copies, block, rng) for _ in range(DRAWS)]
    reps = int(np.clip(WORK // (len(trace.at_s) * copies), *REPS))
    drawn = [_resampled(trace, 2 * block, rng) for _ in range(reps)]
    sizes = ([_factor(one, rate, size, copies, block, rng) for one in drawn] for size in (burst[0], burst[2]))
    low, high = (float(np.quantile(factors, end)) for factors, end in zip(sizes, ENDS, strict=True))
    value = float(np.median(values))
    if value >= MOST_FACTOR:
        return Growth(None, min(low, MOST_FACTOR), None, calls, f"more than {MOST_FACTOR}x")
    return Growth(value, min(low, value), None if high >= MOST_FACTOR else max(high, value), calls, None)


def _resampled(trace: Costs, block: float, rng: Generator) -> Costs:
    """Blocks of the trace, each beginning anywhere, one after the other; round the end it goes on at the beginning."""
    begin, span = trace.at_s[0], trace.at_s[-1] - trace.at_s[0]
    count, parts = max(1, round(span / block)), []
    for number, start in enumerate(rng.random(count) * span):
        since = (trace.at_s - begin - start) % span
        part, at_s = trace.only(since < block), since[since < block] + number * block
        # Drawn twice, it is two calls.
        parts.append(replace(part, at_s=at_s, attempt=part.attempt * count + number))
    return ordered(parts)


def _factor(trace: Costs, rate: float, burst: float, copies: int, block: float, rng: Generator) -> float:
    """g* by bisection. 0 where a single call is too much."""
    n = len(trace.at_s)
    if not n:
        return float(MOST_FACTOR)
    begin, span = trace.at_s[0], max(float(trace.at_s[-1] - trace.at_s[0]), 1e-9)
    _, attempt = np.unique(trace.attempt, return_inverse=True)
    uniform = rng.random((copies, int(attempt.max()) + 1))
    moves = np.concatenate(([0.0], (2 * rng.random(copies - 1) - 1) * block))
    since = trace.at_s - begin
    at = np.concatenate([(since + move) % span if move else since for move in moves])
    from_g = np.concatenate([number + uniform[number][attempt] for number in range(copies)])
    order = np.argsort(at, kind="stable")
    at, from_g = at[order], from_g[order]
    charge, need = np.tile(trace.charge, copies)[order], np.tile(np.nan_to_num(trace.need), copies)[order]

    def passes(g: float) -> bool:
        there = from_g < g
        wanted = lacking(at, charge * there, rate) + need
        return bool((wanted[there] <= burst + 1e-6).all())

    low, high = 0.0, float(copies)
    if passes(high):
        return high if copies < MOST_FACTOR else float(MOST_FACTOR)
    for _ in range(BISECTIONS):
        middle = (low + high) / 2
        low, high = (middle, high) if passes(middle) else (low, middle)
    return low
