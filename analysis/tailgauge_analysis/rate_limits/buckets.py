"""Which token bucket explains what was admitted and what was not: its rate and its burst.

Rule: a bucket that was full when the run began lacks, just before an event at t,

    m(t) = max over s <= t of [admitted cost in [s, t) - rate * (t - s)]

whatever its burst is. It admits a call that needs c if m + c <= burst. So a rate is possible if

    b_hat(rate) = max of m + c over admitted calls  <=  burst  <  min of m + c over refused calls

and the pairs that fit are these. Clocks of client and target differ by a journey, so no pair may explain every decision:
then the pair that leaves fewest unexplained is the estimate, and its 95% interval holds every rate whose likelihood, with
that share of errors, is not significantly smaller (a fall of 1.92 in its logarithm).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from tailgauge_analysis.quantiles import Floats
from tailgauge_analysis.rate_limits.costs import Costs

MOST = 20_000  # decisions to fit; of more those around the first 429
FALL = 1.92  # of the log-likelihood: half the 95% quantile of chi-square with one degree of freedom
GRID = 120
SPAN = (0.2, 20.0)  # rates tried, relative to the mean admitted rate
UNEXPLAINED = 0.2  # of the refusals; with more than these the model is not believed
_CLOSE = 1e-6


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

    @property
    def believed(self) -> bool:
        """Whether the bucket explains the refusals."""
        return self.unexplained <= UNEXPLAINED * self.refused


def lacking(at_s: Floats, charge: Floats, rate: float) -> Floats:
    """What the bucket lacks just before each event."""
    level = np.cumsum(charge) - charge - rate * (at_s - at_s[0]) if len(at_s) else np.empty(0)
    missing: Floats = level - np.minimum.accumulate(level)
    return missing


def stretch(costs: Costs) -> Costs:
    """Few enough events: those around the first refusal."""
    if len(costs.at_s) <= MOST:
        return costs
    first = int(np.argmax(costs.refused))
    begin = max(0, min(first - MOST // 2, len(costs.at_s) - MOST))
    kept = np.zeros(len(costs.at_s), np.bool_)
    kept[begin : begin + MOST] = True
    return costs.only(kept)


def sides(costs: Costs, rate: float) -> tuple[Floats, Floats]:
    """m + c of the admitted and of the refused calls."""
    wanted = lacking(costs.at_s, costs.charge, rate) + costs.need
    said, decided = costs.refused, costs.decided
    return wanted[decided & ~said], wanted[decided & said]


def envelope(costs: Costs, rate: float) -> float:
    """b_hat: the least burst that admits what was admitted."""
    admitted, _ = sides(costs, rate)
    return float(admitted.max(initial=0.0))


def bursts(costs: Costs, rate: float) -> tuple[int, float, float]:
    """Fewest decisions that no burst explains at this rate, and the bursts that leave as few: from, below."""
    admitted, refused = sides(costs, rate)
    low, high = float(admitted.max(initial=0.0)), float(refused.min(initial=math.inf))
    if low <= high + _CLOSE:
        return 0, low, max(low, high)
    values = np.sort(np.concatenate((admitted, refused)))
    above = len(admitted) - np.searchsorted(np.sort(admitted), values + _CLOSE, side="right")
    below = np.searchsorted(np.sort(refused), values + _CLOSE, side="right")
    wrong = above + below
    best = int(np.argmin(wrong))
    beyond = values[values > values[best] + _CLOSE]
    return int(wrong[best]), float(values[best]), float(beyond[0]) if len(beyond) else float(values[best])


def fit(costs: Costs) -> Fit | None:
    """The bucket behind the decisions; None without a refusal, or with no more than one moment to look at."""
    costs = stretch(costs)
    n, refused = int(costs.decided.sum()), int(costs.refused.sum())
    span = float(costs.at_s[-1] - costs.at_s[0]) if n else 0.0
    mean = float(costs.charge.sum()) / span if span > 0 else 0.0
    if not refused or mean <= 0:
        return None
    seen: dict[float, int] = {}

    def wrong(rate: float) -> int:
        if rate not in seen:
            seen[rate] = bursts(costs, rate)[0]
        return seen[rate]

    low, high = SPAN[0] * mean, SPAN[1] * mean
    best = low
    for grid in (GRID, GRID // 3, GRID // 3, GRID // 3):
        rates = np.geomspace(low, high, grid)
        best = float(rates[int(np.argmin([wrong(float(rate)) for rate in rates]))])
        step = float(rates[1] / rates[0])
        low, high = best / step, best * step
    allowed = _allowed(wrong(best), n)
    ends = [_edge(wrong, best, SPAN[side] * mean, allowed) for side in (0, 1)]
    if wrong(best) == 0:  # anywhere between the ends will do: take the middle
        inner = [ends[0] or best, ends[1] or best]
        middle = (inner[0] + inner[1]) / 2
        best = middle if wrong(middle) == 0 else best
    missed, burst_low, burst_high = bursts(costs, best)
    outer = [bursts(costs, end)[1:] for end in ends if end is not None]
    lows, highs = [burst_low, *(b[0] for b in outer)], [burst_high, *(b[1] for b in outer)]
    return Fit(
        best, ends[0], ends[1], (burst_low + burst_high) / 2, min(lows), max(highs), n, refused, missed,
        allowed,
    )  # fmt: skip


def _allowed(fewest: int, n: int) -> int:
    """Most unexplained decisions of a rate that is still possible."""
    share = (fewest + 0.5) / (n + 1)
    return fewest + math.floor(FALL / math.log((1 - share) / share)) if share < 0.5 else n


def _edge(wrong: Callable[[float], int], best: float, end: float, allowed: int) -> float | None:
    """How far towards `end` a rate is possible; None if as far as that."""
    if wrong(end) <= allowed:
        return None
    good, bad = best, end
    for _ in range(40):
        middle = (good + bad) / 2
        good, bad = (middle, bad) if wrong(middle) <= allowed else (good, middle)
    return good
