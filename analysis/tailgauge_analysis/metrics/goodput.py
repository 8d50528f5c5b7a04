"""Goodput: requests that met every objective, of all that were offered.

Rule: one truth value an offered request in order of arrival in, a share and a rate out. A request is good when it ended ok
and is within every bound that applies to it; errors, drops and timeouts stand in the denominator. The interval is
Clopper-Pearson on the effective n, because bad requests come together.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from tailgauge_analysis.stats.binomial import clopper_pearson
from tailgauge_analysis.stats.quantiles import effective_n


@dataclass(frozen=True, slots=True)
class Goodput:
    """Good requests of those offered, with the 95% interval of the share."""

    offered: int
    good: int
    n_eff: int
    share: float
    low: float
    high: float
    per_s: float | None


def goodput(good: npt.NDArray[np.bool_], seconds: float) -> Goodput | None:
    """The goodput of a stage of so many seconds; None where nothing was offered."""
    n = len(good)
    if not n:
        return None
    share, n_eff = float(good.mean()), effective_n(good)
    low, high = clopper_pearson(share * n_eff, n_eff)
    k = int(good.sum())
    return Goodput(n, k, n_eff, share, low, high, k / seconds if seconds > 0 else None)
