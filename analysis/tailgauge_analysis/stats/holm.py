"""Several tests at once: Holm's step-down correction.

Rule: p-values of one family in, adjusted p-values in the same order out. The chance of one false finding or more in the
family stays below the level that the adjusted values are compared with, whatever the dependence between the tests.
"""

from __future__ import annotations

from collections.abc import Sequence


def holm(p_values: Sequence[float]) -> list[float]:
    """Adjusted p-values: the k-th smallest of m times m - k + 1, never below those before it, at most 1."""
    m, worst = len(p_values), 0.0
    adjusted = [0.0] * m
    for k, at in enumerate(sorted(range(m), key=p_values.__getitem__)):
        worst = max(worst, min(1.0, (m - k) * p_values[at]))
        adjusted[at] = worst
    return adjusted
