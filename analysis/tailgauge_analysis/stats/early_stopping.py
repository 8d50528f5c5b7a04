"""When a bound on a quantile can be called met: MLPerf's early stopping.

Rule: exact binomial arithmetic. A bound on quantile p is met with confidence c when so few of n requests are beyond it
that this would happen with chance 1 - c at most if their true share were 1 - p:

    smallest n with  P(Binomial(n, 1 - p) <= beyond) <= 1 - c

With none beyond, p99 needs 459 requests at c = 0.99, and every slow one costs more of them. Requests under load come in
bursts: compare with n_eff, not with n.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from tailgauge_analysis.stats.binomial import binomial_cdf

CONFIDENCE = 0.99


@dataclass(frozen=True, slots=True)
class Stopping:
    """The rule on one bound. `beyond` and `n_eff` are effective requests, `needed` those with which it would be met."""

    beyond: int
    n_eff: int
    needed: int

    @property
    def met(self) -> bool:
        """Whether the run could have stopped here with a pass."""
        return self.n_eff >= self.needed


def stopping(beyond: int, n: int, n_eff: int, p: float) -> Stopping | None:
    """The rule on `beyond` of n requests that say as much as n_eff; None without a request."""
    if not n:
        return None
    worth = math.ceil(beyond * n_eff / n)  # requests that are slow together count as few
    return Stopping(worth, n_eff, needed(worth, p))


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
