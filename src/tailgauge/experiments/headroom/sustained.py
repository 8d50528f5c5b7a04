"""The rate at which a token bucket refuses, in the long run, just the share of the requests that is borne.

Rule: gaps of the arrivals as they are planned, at any length, and charges of the requests as they were seen. A bucket
that holds many requests is a reflected Brownian motion on [0, burst]: with the drift m = asked - refilled a second and
the variance v of what is asked a second, it loses

    m / (1 - exp(-2 m burst / v))   a second, v / (2 burst) where m = 0,

within 0.3% of the exact rate from 20 requests on (M/D/1/K, Poisson arrivals). A smaller bucket is replayed request by
request. The variance is that of what is asked in windows as long as the bucket takes to fill, so that bursts count.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from tailgauge_analysis.stats.bootstrap import SEED
from tailgauge_analysis.stats.quantiles import Floats

MANY = 30  # requests that a bucket holds; below it is replayed
SPAN = (0.01, 2.0)  # rates tried, relative to the one that uses all of the refill
STEPS, STEPS_REPLAYED = 40, 12
LEAST = 20  # requests of a window at least
NORMAL = 1.96


@dataclass(frozen=True, slots=True)
class Asked:
    """Requests as a bucket sees them: gaps in mean gaps, and what each asks for. `unsure`: half the 95% interval of the
    mean of what was seen, relatively.
    """

    gaps: Floats
    charge: Floats
    mean: float
    unsure: float


def asked(gaps: Floats, seen: Floats) -> Asked:
    """Charges drawn from those that were `seen`, one for each of the gaps."""
    mean = float(seen.mean())
    half = NORMAL * float(seen.std()) / mean / math.sqrt(len(seen)) if mean > 0 else 0.0
    drawn = np.random.default_rng(SEED).choice(seen, len(gaps))
    return Asked(gaps / gaps.mean(), drawn * (mean / drawn.mean()) if mean > 0 else drawn, mean, half)


def sustained(asked: Asked, rate: float, burst: float, share: float) -> float:
    """Requests a second at which this share of them is refused in the long run; 0 where a single one is too much."""
    if burst < asked.mean or asked.mean <= 0:
        return 0.0
    whole = rate / asked.mean
    if burst / asked.mean >= MANY:
        spread = _spread(asked, burst / asked.mean)
        return _root(lambda per_s: lost(asked.mean * per_s, rate, burst, spread) > share, whole, STEPS)
    gaps, charge = asked.gaps.tolist(), asked.charge.tolist()
    return _root(
        lambda per_s: replayed(gaps, charge, rate / per_s, burst) > share, whole, STEPS_REPLAYED
    )  # fmt: skip


def _root(too_much: Callable[[float], bool], whole: float, steps: int) -> float:
    low, high = SPAN[0] * whole, SPAN[1] * whole
    for _ in range(steps):
        middle = math.sqrt(low * high)
        low, high = (low, middle) if too_much(middle) else (middle, high)
    return math.sqrt(low * high)


def lost(asked: float, rate: float, burst: float, spread: float) -> float:
    """Share of what is asked for, a second, that is refused. `spread`: variance / mean of what is asked for."""
    drift, variance = asked - rate, asked * spread
    if variance <= 0:
        return max(0.0, drift / asked)
    x = 2 * drift * burst / variance
    if x < -500:
        return 0.0
    gone = variance / (2 * burst) if abs(x) < 1e-6 else drift / -math.expm1(-x)
    return gone / asked


def _spread(asked: Asked, window: float) -> float:
    """Variance / mean of what is asked for in windows of so many mean gaps."""
    at = np.cumsum(asked.gaps)
    width = max(min(window, len(at) / LEAST), LEAST)
    count = int(at[-1] // width)
    if count < LEAST // 2:
        return float((asked.charge**2).sum() / asked.charge.sum())
    sums = np.bincount((at // width).astype(np.int64), asked.charge, count + 1)[:count]
    return float(sums.var(ddof=1) / sums.mean())


def replayed(gaps: list[float], charges: list[float], refill: float, burst: float) -> float:
    """Share refused by a bucket that was full at first; `refill`: of a mean gap."""
    level, refused = burst, 0
    for gap, charge in zip(gaps, charges, strict=True):
        level = min(burst, level + refill * gap)
        if level >= charge:
            level -= charge
        else:
            refused += 1
    return refused / len(gaps)
