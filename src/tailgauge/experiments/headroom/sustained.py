"""The rate at which a token bucket refuses, in the long run, exactly the allowed share of the requests.

Input: gaps of the planned arrivals, and measured charges of the requests. A bucket that holds many requests is a
reflected Brownian motion on [0, burst]: with the drift m = demand - refill and the variance v of the demand, both per
second, it loses

    m / (1 - exp(-2 m burst / v))   per second, v / (2 burst) if m = 0,

within 0.3% of the exact rate from 20 requests on (M/D/1/K, Poisson arrivals). A smaller bucket is replayed request by
request. The variance is that of the demand in windows as long as the bucket takes to fill, so that bursts count.
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
class Offered:
    """Requests at a bucket: gaps in mean gaps, and charges. `unsure`: half the relative 95% interval of the mean charge."""

    gaps: Floats
    charge: Floats
    mean: float
    unsure: float


def offered(gaps: Floats, measured: Floats) -> Offered:
    """Charges drawn from the measured ones, one per gap."""
    mean = float(measured.mean())
    half = NORMAL * float(measured.std()) / mean / math.sqrt(len(measured)) if mean > 0 else 0.0
    drawn = np.random.default_rng(SEED).choice(measured, len(gaps))
    return Offered(gaps / gaps.mean(), drawn * (mean / drawn.mean()) if mean > 0 else drawn, mean, half)


def sustained(of: Offered, rate: float, burst: float, share: float) -> float:
    """Requests/s at which this share of them is refused in the long run; 0 if the bucket is smaller than a request."""
    if burst < of.mean or of.mean <= 0:
        return 0.0
    whole = rate / of.mean
    if burst / of.mean >= MANY:
        spread = _spread(of, burst / of.mean)
        return _root(lambda per_s: lost(of.mean * per_s, rate, burst, spread) > share, whole, STEPS)
    gaps, charge = of.gaps.tolist(), of.charge.tolist()
    return _root(
        lambda per_s: replayed(gaps, charge, rate / per_s, burst) > share, whole, STEPS_REPLAYED
    )  # fmt: skip


def _root(too_much: Callable[[float], bool], whole: float, steps: int) -> float:
    low, high = SPAN[0] * whole, SPAN[1] * whole
    for _ in range(steps):
        middle = math.sqrt(low * high)
        low, high = (low, middle) if too_much(middle) else (middle, high)
    return math.sqrt(low * high)


def lost(demand: float, rate: float, burst: float, spread: float) -> float:
    """Refused share of the demand per second. `spread`: variance / mean of the demand."""
    drift, variance = demand - rate, demand * spread
    if variance <= 0:
        return max(0.0, drift / demand)
    x = 2 * drift * burst / variance
    if x < -500:
        return 0.0
    gone = variance / (2 * burst) if abs(x) < 1e-6 else drift / -math.expm1(-x)
    return gone / demand


def _spread(of: Offered, window: float) -> float:
    """Variance / mean of the demand in windows of so many mean gaps."""
    at = np.cumsum(of.gaps)
    width = max(min(window, len(at) / LEAST), LEAST)
    count = int(at[-1] // width)
    if count < LEAST // 2:
        return float((of.charge**2).sum() / of.charge.sum())
    sums = np.bincount((at // width).astype(np.int64), of.charge, count + 1)[:count]
    return float(sums.var(ddof=1) / sums.mean())


def replayed(gaps: list[float], charges: list[float], refill: float, burst: float) -> float:
    """Share refused by a bucket that is full at first; `refill`: per mean gap."""
    level, refused = burst, 0
    for gap, charge in zip(gaps, charges, strict=True):
        level = min(burst, level + refill * gap)
        if level >= charge:
            level -= charge
        else:
            refused += 1
    return refused / len(gaps)
