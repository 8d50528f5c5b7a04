"""Exact binomial arithmetic: how sure a share or a rank can be, and how many samples that needs; Student's t and ratios of variances.

No approximation by the normal distribution. Everything rests on one function, the regularised incomplete beta function: the
binomial distribution, the Clopper-Pearson bounds, Student's t and ratios of variances are values of it. Shares of dependent
values are in proportions.py.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from functools import cache, lru_cache

_TINY = 1e-300
_CLOSE = 1e-14
_TERMS = 50_000  # the fraction needs about sqrt(n) terms: enough for n of some 10^8


def beta_cdf(x: float, a: float, b: float) -> float:
    """I_x(a, b): the chance that a Beta(a, b) variable is at most x."""
    if x <= 0:
        return 0.0
    if x >= 1:
        return 1.0
    if x > (a + 1) / (a + b + 2):  # the continued fraction converges fast on this side only
        return 1.0 - beta_cdf(1 - x, b, a)
    log_front = (
        math.lgamma(a + b) - math.lgamma(a) - math.lgamma(b) + a * math.log(x) + b * math.log1p(-x)
    )
    return math.exp(log_front) / a * _fraction(x, a, b)


def _fraction(x: float, a: float, b: float) -> float:
    """Return the continued fraction of the incomplete beta function I_x(a, b) (DLMF 8.17.22), by Lentz's method.

    It converges fast where x is at most (a + 1) / (a + b + 2). After _TERMS terms it is returned as it is.
    """
    c = 1.0
    d = 1.0 / ((1.0 - (a + b) * x / (a + 1)) or _TINY)
    value = d
    for m in range(1, _TERMS):
        even = m * (b - m) * x / ((a + 2 * m - 1) * (a + 2 * m))
        odd = -(a + m) * (a + b + m) * x / ((a + 2 * m) * (a + 2 * m + 1))
        change = 1.0
        for step in (even, odd):
            d = 1.0 / ((1.0 + step * d) or _TINY)
            c = (1.0 + step / c) or _TINY
            change *= c * d
        value *= change
        if abs(change - 1.0) < _CLOSE:
            break
    return value


def binomial_cdf(k: int, n: int, p: float) -> float:
    """P(X <= k) for X ~ Binomial(n, p)."""
    if k < 0:
        return 0.0
    if k >= n:
        return 1.0
    return beta_cdf(1 - p, n - k, k + 1)


def binomial_quantile(q: float, n: int, p: float) -> int:
    """Smallest k with P(X <= k) >= q for X ~ Binomial(n, p)."""
    return bisect_left(range(n), q, key=lambda k: binomial_cdf(k, n, p))


@lru_cache(10_000)
def clopper_pearson(k: float, n: float, confidence: float = 0.95) -> tuple[float, float]:
    """Exact interval of a share k/n; (0, 1) where nothing was seen. An effective n need not be whole."""
    if n == 0:
        return 0.0, 1.0
    alpha = (1 - confidence) / 2
    low = 0.0
    if k > 0:
        low = _beta_quantile(alpha, k, n - k + 1)
    high = 1.0
    if k != n:
        high = _beta_quantile(1 - alpha, k + 1, n - k)
    return low, high


def _beta_quantile(q: float, a: float, b: float) -> float:
    low = 0.0
    high = 1.0
    for _ in range(60):
        middle = (low + high) / 2
        if beta_cdf(middle, a, b) < q:
            low = middle
        else:
            high = middle
    return (low + high) / 2


@cache
def student(freedom: float, confidence: float = 0.95) -> float:
    """Return the bound that Student's t exceeds on neither side with this confidence; its square is a ratio of beta variables."""
    x = _beta_quantile(1 - confidence, freedom / 2, 0.5)
    return math.sqrt(freedom * (1 - x) / x)


@cache
def variance_ratio(freedom: float, confidence: float = 0.95) -> float:
    """Return the factor that an estimate of a variance exceeds the variance by with the chance 1 - `confidence`."""
    many = 1e4  # degrees of freedom of a variance that is known
    x = _beta_quantile(confidence, freedom / 2, many / 2)
    return many * x / (freedom * (1 - x))


def student_beyond(t: float, freedom: float) -> float:
    """Return the chance that Student's t is above this value."""
    outside = beta_cdf(freedom / (freedom + t * t), freedom / 2, 0.5) / 2
    if t > 0:
        return outside
    return 1 - outside


def needed(violations: int, p: float, confidence: float) -> int:
    """Fewest requests with which a bound on quantile p is met although `beyond` of them are beyond it."""

    def is_enough(n: int) -> bool:
        return binomial_cdf(violations, n, 1 - p) <= 1 - confidence

    limit = max(2, violations + 1)
    while not is_enough(limit):
        limit *= 2
    return bisect_left(range(limit), True, key=is_enough)


def detectable(
    allowed: float, n: int, confidence: float = 0.95, power: float = 0.8
) -> float | None:
    """Return the smallest share of n values whose interval lies above `allowed` with this power; None where none does."""

    def is_above(k: int) -> bool:
        return clopper_pearson(k, n, confidence)[0] > allowed

    fewest = bisect_left(range(n + 1), True, key=is_above)
    if fewest > n:
        return None
    return _beta_quantile(power, fewest, n - fewest + 1)
