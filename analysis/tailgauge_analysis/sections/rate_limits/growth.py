"""How much more of the same traffic a limit allows: the growth factor to the first 429.

The trace is what was offered, first attempts only: retries are the limit's doing. A factor g repeats each call
floor(g) times and once more with probability g - floor(g), by random numbers drawn once, so that a larger g only adds calls. Each
further copy of the trace is moved round by up to a twentieth of it: other users at about the same time. g* is the largest g at which
the bucket, full at the start, refuses nobody. Value: median over draws. Interval: the same on resampled
blocks of a tenth of the trace, at least two seconds: it covers chance, not a change in the shape of the traffic. g* depends on
the worst moment, so it falls as runs get longer.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pandas as pd

from tailgauge.rows import schema
from tailgauge_analysis.sections.rate_limits.bucket_fit import lacking
from tailgauge_analysis.sections.rate_limits.costs import Costs
from tailgauge_analysis.stats.bootstrap import SEED
from tailgauge_analysis.stats.quantiles import CONFIDENCE, Floats, Ints

MOST_CALLS = 5_000  # of the trace; of more those around its worst moment
MOST_FACTOR = 10
DRAWS = 11
REPS = (40, 100)
WORK = 2_000_000  # events examined for one interval, times the steps of a search
STEPS = 12
BLOCKS = 20
FEWEST = 20  # calls


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
    return Costs(costs.at_s, charge, costs.need, costs.refused, costs.attempt).only(first)


def growth(trace: Costs, rate: float, burst: tuple[float, float, float]) -> Growth:
    """g* for a burst that is known to lie within `burst` (low, value, high)."""
    calls = int(trace.decided.sum())
    if calls < FEWEST:
        return Growth(calls=calls, why=f"fewer than {FEWEST} calls")
    trace = _worst(trace, rate)
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
    alpha = (1 - CONFIDENCE) / 2
    low = float(np.quantile([_factor(one, rate, burst[0], copies, block, rng) for one in drawn], alpha))
    high = float(np.quantile([_factor(one, rate, burst[2], copies, block, rng) for one in drawn], 1 - alpha))
    value = float(np.median(values))
    if value >= MOST_FACTOR:
        return Growth(None, min(low, MOST_FACTOR), None, calls, f"more than {MOST_FACTOR}x")
    return Growth(value, min(low, value), None if high >= MOST_FACTOR else max(high, value), calls, None)


def _worst(trace: Costs, rate: float) -> Costs:
    n = len(trace.at_s)
    if n <= MOST_CALLS:
        return trace
    peak = int(np.argmax(lacking(trace.at_s, trace.charge, rate)))
    begin = max(0, min(peak - MOST_CALLS // 2, n - MOST_CALLS))
    kept = np.zeros(n, np.bool_)
    kept[begin : begin + MOST_CALLS] = True
    return trace.only(kept)


def _resampled(trace: Costs, block: float, rng: np.random.Generator) -> Costs:
    """Blocks of the trace, each beginning anywhere, one after the other; round the end it goes on at the beginning."""
    begin, span = trace.at_s[0], trace.at_s[-1] - trace.at_s[0]
    pieces: list[Ints] = []
    times: list[Floats] = []
    attempts_drawn: list[Ints] = []
    count = max(1, round(span / block))
    for number, start in enumerate(rng.random(count) * span):
        since = (trace.at_s - begin - start) % span
        rows = np.flatnonzero(since < block)
        pieces.append(rows)
        times.append(since[rows] + number * block)
        attempts_drawn.append(trace.attempt[rows] * count + number)  # drawn twice, it is two calls
    rows, at = np.concatenate(pieces), np.concatenate(times)
    order = np.argsort(at, kind="stable")
    rows = rows[order]
    attempt = np.concatenate(attempts_drawn)[order]
    return Costs(at[order], trace.charge[rows], trace.need[rows], trace.refused[rows], attempt)


def _factor(
    trace: Costs, rate: float, burst: float, copies: int, block: float, rng: np.random.Generator
) -> float:
    """g* by bisection. 0 where a single call is too much."""
    n = len(trace.at_s)
    if not n:
        return float(MOST_FACTOR)
    begin, span = trace.at_s[0], max(float(trace.at_s[-1] - trace.at_s[0]), 1e-9)
    _, attempt = np.unique(trace.attempt, return_inverse=True)
    uniform = rng.random((copies, int(attempt.max()) + 1))
    moves = np.concatenate(([0.0], (2 * rng.random(copies - 1) - 1) * block))
    at = np.concatenate(
        [(trace.at_s - begin + move) % span if move else trace.at_s - begin for move in moves]
    )
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
    for _ in range(STEPS):
        middle = (low + high) / 2
        low, high = (middle, high) if passes(middle) else (low, middle)
    return low
