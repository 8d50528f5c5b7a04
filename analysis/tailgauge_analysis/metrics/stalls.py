"""Stalls: chunk gaps so long that a reader notices.

Rule: gaps in ms and the answer of each in, which gaps are stalls out. A stall is longer than a second and longer than ten
times the median gap of its own answer, so that a slow but even answer has none.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from tailgauge_analysis.stats.quantiles import Floats, Ints

LEAST_MS = 1000.0
TIMES = 10.0


def stalls(gaps_ms: Floats, of: Ints) -> npt.NDArray[np.bool_]:
    """Which gaps are stalls."""
    late = gaps_ms > LEAST_MS
    if late.any():  # only their answers' medians matter
        suspect = np.zeros(int(of[-1]) + 1, np.bool_)
        suspect[of[late]] = True
        some = suspect[of]
        late[some] &= gaps_ms[some] > TIMES * medians(gaps_ms[some], of[some])[of[some]]
    return late


def medians(gaps_ms: Floats, of: Ints) -> Floats:
    """Lower median gap of each answer; 0 where it has none."""
    sizes = np.bincount(of)
    begin = np.cumsum(sizes) - sizes
    ordered = gaps_ms[np.lexsort((gaps_ms, of))]
    out = np.zeros(len(sizes))
    some = sizes > 0
    out[some] = ordered[begin[some] + (sizes[some] - 1) // 2]
    return out
