"""When a bound on a quantile can be called met: MLPerf's early stopping.

Rule: exact binomial arithmetic. A bound on quantile p is met with confidence c when so few of n requests are beyond it
that this would happen with chance 1 - c at most if their true share were 1 - p:

    smallest n with  P(Binomial(n, 1 - p) <= beyond) <= 1 - c

With none beyond, p99 needs 459 requests at c = 0.99, and every slow one costs more of them. Requests under load come in
bursts: compare with n_eff, not with n.
"""

from __future__ import annotations

from tailgauge_analysis.binomial import binomial_cdf

CONFIDENCE = 0.99


def needed(beyond: int, p: float, confidence: float = CONFIDENCE) -> int:
    """Fewest requests with which a bound on quantile p is met although `beyond` of them are beyond it."""
    low, high = beyond, max(2, beyond + 1)
    while not _enough(high, beyond, p, confidence):
        low, high = high, high * 2
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if _enough(middle, beyond, p, confidence) else (middle, high)
    return high


def _enough(n: int, beyond: int, p: float, confidence: float) -> bool:
    return binomial_cdf(beyond, n, 1 - p) <= 1 - confidence
