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
floor(g) times and once more with probability g - floor(g), by random numbers drawn once, so that a larger g only adds calls.
Each further copy of the trace is moved round by up to a twentieth of it: other users at about the same time. g* is the
largest g at which the bucket, full at the start, refuses nobody. Value: median over draws. Interval: the same on resampled
blocks of a tenth of the trace, at least two seconds: it covers chance, not a change in the shape of the traffic. g* depends
on the worst moment, so it falls as runs get longer.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
from numpy.random import Generator

from tailgauge_analysis.sections.rate_limits.costs import Costs
from tailgauge_analysis.stats.bootstrap import SEED
from tailgauge_analysis.stats.quantiles import ENDS, NORMAL_975, Floats

MOST = 20_000  # decisions to fit; of more those around the first 429
GRID = 120
ROUNDS = 4
STEPS = 17
HALVINGS = 40
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Fit:
    """A bucket; `rate_low` and `rate_high` are None where the run does not bound the rate."""

    rate: float
    rate_low: float | None
    rate_high: float | None
    burst_low: float
    burst_high: float
    refused: int
    unexplained: int
    allowed: int  # most unexplained decisions of a bucket that is still possible

    def tolerates(self, unexplained: int) -> bool:
        """Return whether a bucket named by headers agrees with the decisions, with so many of them unexplained."""
        return unexplained <= max(self.allowed, self.unexplained + TOLERATED * self.refused)

    @property
    def is_credible(self) -> bool:
        """Return whether the bucket explains the refusals."""
        return self.unexplained <= UNEXPLAINED * self.refused


def lacking(at_s: Floats, charge: Floats, rate: float) -> Floats:
    """Return what the bucket lacks just before each event."""
    level = np.cumsum(charge) - charge - rate * (at_s - at_s[:1])
    return level - np.minimum.accumulate(level)


def bursts(costs: Costs, rate: float) -> tuple[int, float, float]:
    """Return the fewest decisions that no burst explains at this rate, and the bursts that leave as few: from the first value, below the second.

    A bucket explains an admitted call if its burst holds what is lacking and the call's need, and a refused one if it does not.
    `need` is NaN at events where nothing was decided.
    """
    # What the bucket lacks just before each event, and what the call needs.
    burst_to_admit = lacking(costs.at_s, costs.charge, rate) + costs.need
    admitted = np.sort(burst_to_admit[costs.decided & ~costs.refused])
    refused = np.sort(burst_to_admit[costs.decided & costs.refused])
    low = float(admitted.max(initial=0.0))
    high = float(refused.min(initial=math.inf))
    # Every admitted call takes a smaller burst than any refused one: any burst in between explains all.
    if low + _LESS < high:
        return 0, low, high
    # Both are sorted: a stable sort only merges them.
    candidates = np.sort(np.concatenate((admitted, refused)), kind="stable")
    # Of a burst at each candidate: the admitted calls that it does not hold, and the refused ones that it does.
    admitted_above = len(admitted) - np.searchsorted(admitted, candidates + _CLOSE, side="right")
    refused_below = np.searchsorted(refused, candidates + _CLOSE, side="right")
    unexplained = admitted_above + refused_below
    best = int(np.argmin(unexplained))
    burst = float(candidates[best])
    larger = candidates[candidates > burst + _CLOSE]
    upper = burst
    if len(larger):
        upper = float(larger[0])
    return int(unexplained[best]), burst, upper


def fit(costs: Costs, decision_lag_s: float = 0.0) -> Fit | None:
    """Return the bucket that explains the decisions best; None without a refusal, or with all calls at one moment.

    `costs`: events of one limit, of which those around the first refusal are fitted where they are many. A call may have been
    decided up to `decision_lag_s` after it was sent: intervals are wider by what a bucket regains in it.
    """
    costs = costs.around(costs.refused, MOST)
    refused_at_s = costs.at_s[costs.refused]
    mean_per_s = costs.mean_per_s
    if not len(refused_at_s) or not mean_per_s:
        return None
    unexplained_by_rate: dict[float, int] = {}

    def unexplained(rate: float) -> int:
        if rate not in unexplained_by_rate:
            unexplained_by_rate[rate] = bursts(costs, rate)[0]
        return unexplained_by_rate[rate]

    candidate_rates = np.concatenate(
        (
            np.geomspace(SPAN[0] * mean_per_s, SPAN[1] * mean_per_s, GRID),
            _rates_between_refusals(costs),
        )
    )
    # Each round tries rates between the best and its neighbours, ever closer.
    for _ in range(ROUNDS):
        for rate in candidate_rates.tolist():
            unexplained(rate)
        # Of equally good rates the one nearest to the mean use.
        best = min(
            unexplained_by_rate,
            key=lambda rate: (unexplained_by_rate[rate], abs(rate - mean_per_s)),
        )
        tried_rates = sorted(unexplained_by_rate)
        best_place = tried_rates.index(best)
        candidate_rates = np.linspace(
            tried_rates[max(0, best_place - 1)],
            tried_rates[min(len(tried_rates) - 1, best_place + 1)],
            GRID // 4,
        )
    allowed = _most_unexplained(unexplained(best))
    # The lowest and the highest rate that is still possible; None: as far as rates were tried.
    low = _edge_of_possible_rates(unexplained, best, SPAN[0] * mean_per_s, allowed)
    high = _edge_of_possible_rates(unexplained, best, SPAN[1] * mean_per_s, allowed)
    middle = ((low or best) + (high or best)) / 2
    # Where all is explained, any rate between the ends is as good as another.
    if unexplained(best) == unexplained(middle) == 0:
        best = middle
    rates_to_judge = [rate for rate in (best, low, high) if rate is not None]
    possible_bursts = [bursts(costs, rate) for rate in rates_to_judge]
    regained = best * decision_lag_s
    # The same as a rate, over the time between the first refusal and the last.
    drift = regained / max(1.0, float(refused_at_s[-1] - refused_at_s[0]))
    rate_low = None
    if low is not None:
        rate_low = low - drift
    rate_high = None
    if high is not None:
        rate_high = high + drift
    return Fit(
        rate=best,
        rate_low=rate_low,
        rate_high=rate_high,
        burst_low=max(0.0, min(burst_low for _, burst_low, _ in possible_bursts) - regained),
        burst_high=max(burst_high for *_, burst_high in possible_bursts) + regained,
        refused=len(refused_at_s),
        unexplained=unexplained(best),
        allowed=allowed,
    )


def _rates_between_refusals(costs: Costs) -> Floats:
    """Return candidate rates: the most that was admitted per second from one refusal to a later one, by distance.

    At a refusal less than c is left, so not more than c + rate * dt is admitted from there on, and if the bucket is not
    full in between, not less than rate * dt - c up to the next: the steepest slopes lie close to the rate.
    """
    refusals = costs.only(costs.refused)
    admitted = np.cumsum(costs.charge)[costs.refused]
    candidates = [np.empty(0)]
    for ahead in 2 ** np.arange(math.ceil(math.log2(len(admitted)))):
        seconds = refusals.at_s[ahead:] - refusals.at_s[:-ahead]
        charge = admitted[ahead:] - admitted[:-ahead]
        slopes = np.divide(charge, seconds, out=np.zeros(len(charge)), where=seconds > 0)
        steepest = int(np.argmax(slopes))
        slope = slopes[steepest]
        if slope > 0:
            width = refusals.need.max() / seconds[steepest]
            candidates.append(np.linspace(max(slope - width, slope / 2), slope + width, STEPS))
    return np.concatenate(candidates)


def _most_unexplained(fewest: int) -> int:
    """Return the most unexplained decisions of a rate that is still possible: the largest w of the inequality above."""
    if not fewest:
        return 0
    return fewest + math.floor(
        (NORMAL_975**2 + math.sqrt(NORMAL_975**4 + 8 * NORMAL_975**2 * fewest)) / 2
    )


def _edge_of_possible_rates(
    wrong: Callable[[float], int], best: float, end: float, allowed: int
) -> float | None:
    """Return how far towards `end` a rate is possible; None if as far as that."""
    if wrong(end) <= allowed:
        return None
    possible = best
    impossible = end
    for _ in range(HALVINGS):
        middle = (possible + impossible) / 2
        if wrong(middle) <= allowed:
            possible = middle
        else:
            impossible = middle
    return possible


@dataclass(frozen=True, slots=True, kw_only=True)
class Growth:
    """The factor; None with a reason, `high` None where it is more than MOST_FACTOR."""

    value: float | None = None
    low: float | None = None
    high: float | None = None
    calls: int = 0
    why: str | None = None


def growth(trace: Costs, rate: float, burst: tuple[float, float, float]) -> Growth:
    """Return by which factor the traffic can grow before the bucket refuses a call: the g* of the module.

    `trace`: what was offered, first attempts alone. `rate`: what the bucket regains per second. `burst`: low, value and high of its
    size. None with a reason below FEWEST calls or with all at one moment.
    """
    calls = int(trace.decided.sum())
    if calls < FEWEST:
        return Growth(calls=calls, why=f"fewer than {FEWEST} calls")
    # Of a long trace the part around its worst moment, at which the bucket lacks most.
    trace = trace.around(lacking(trace.at_s, trace.charge, rate), MOST_CALLS)
    rng = np.random.default_rng(SEED)
    mean_per_s = trace.mean_per_s
    if not mean_per_s:
        return Growth(calls=calls, why="all calls were sent at one moment")
    # A larger factor cannot pass: on average it offers more than the bucket regains and holds.
    factor_limit = np.ceil((rate * trace.seconds + burst[2]) / (mean_per_s * trace.seconds))
    copies = int(np.clip(factor_limit, 1, MOST_FACTOR))
    # Half a block of the resampling; copies are moved by as much.
    half_block_s = max(1.0, trace.seconds / BLOCKS)

    def factors(traces: list[Costs], burst_size: float) -> list[float]:
        return [
            _factor(part, rate, burst_size, copies=copies, block=half_block_s, rng=rng)
            for part in traces
        ]

    # Each draw has its own random numbers.
    value = float(np.median(factors([trace] * DRAWS, burst[1])))
    reps = int(np.clip(WORK // (len(trace.at_s) * copies), *REPS))
    # The interval: chance, by resampled blocks, and the ends of the burst.
    resampled = [_resampled(trace, 2 * half_block_s, rng) for _ in range(reps)]
    low = float(np.quantile(factors(resampled, burst[0]), ENDS[0]))
    high = float(np.quantile(factors(resampled, burst[2]), ENDS[1]))
    if value >= MOST_FACTOR:
        return Growth(low=min(low, MOST_FACTOR), calls=calls, why=f"more than {MOST_FACTOR}x")
    upper: float | None = max(high, value)
    if high >= MOST_FACTOR:
        upper = None
    return Growth(value=value, low=min(low, value), high=upper, calls=calls)


def _resampled(trace: Costs, block: float, rng: Generator) -> Costs:
    """Return blocks of the trace, each beginning anywhere, one after the other; round the end it goes on at the beginning."""
    count = max(1, round(trace.seconds / block))
    elapsed_s = trace.at_s - trace.at_s[0]
    events = []
    times_s = []
    calls = []
    for number, start in enumerate(rng.random(count) * trace.seconds):
        since_start = (elapsed_s - start) % trace.seconds
        part = np.flatnonzero(since_start < block)
        events.append(part)
        times_s.append(since_start[part] + number * block)
        calls.append(trace.attempt[part] * count + number)  # drawn twice, it is two calls
    at_s = np.concatenate(times_s)
    drawn = trace.only(np.concatenate(events))
    return replace(drawn, at_s=at_s, attempt=np.concatenate(calls)).only(
        np.argsort(at_s, kind="stable")
    )


def _factor(
    trace: Costs, rate: float, burst: float, *, copies: int, block: float, rng: Generator
) -> float:
    """Return the largest factor, found by bisection, at which the bucket refuses no call; 0 where a single call is too much.

    `trace`: events of the traffic; MOST_FACTOR without any. `copies`: the largest factor tried. `block`: seconds by which a
    further copy is moved at most. At a factor those calls are there whose `added_at`, the number of the copy and a random
    part, is below it.
    """
    if not len(trace.at_s):
        return float(MOST_FACTOR)
    span_s = max(trace.seconds, 1e-9)
    _, call_number = np.unique(trace.attempt, return_inverse=True)
    random_parts = rng.random((copies, int(call_number.max()) + 1))
    moves_s = np.concatenate(([0.0], (2 * rng.random(copies - 1) - 1) * block))
    elapsed_s = trace.at_s - trace.at_s[0]
    at_s = np.concatenate([elapsed_s, *((elapsed_s + move) % span_s for move in moves_s[1:])])
    added_at = np.concatenate(
        [number + random_parts[number][call_number] for number in range(copies)]
    )
    order = np.argsort(at_s, kind="stable")
    at_s = at_s[order]
    added_at = added_at[order]
    charge = np.tile(trace.charge, copies)[order]
    need = np.tile(np.nan_to_num(trace.need), copies)[order]

    def passes(factor: float) -> bool:
        """Return whether the full bucket admits all calls at this factor."""
        is_there = added_at < factor
        # What the bucket lacks just before each event, and what the call needs.
        wanted = lacking(at_s, charge * is_there, rate) + need
        return bool((wanted[is_there] <= burst + _CLOSE).all())

    if passes(copies):
        return float(copies)
    low = 0.0
    high = float(copies)
    for _ in range(BISECTIONS):
        middle = (low + high) / 2
        if passes(middle):
            low = middle
        else:
            high = middle
    return low
