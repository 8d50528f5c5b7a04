"""The crossover load: where what hedging changes goes from a gain to a harm.

Rule: contrasts by load in, loads ascending, weights 1 / variance. What hedging changes can only get worse as the load
rises, so a non-decreasing fit goes through them (pool adjacent violators). The value is the zero of the fit. Between two
loads that were tried nothing more is known than the order; so each draw of the bootstrap gives the last load with a
gain and the first with a harm, and the interval reaches from the 2.5% quantile of the former to the 97.5% of the latter, and at each
end one tried load further out: the bootstrap of a monotone fit is too sure of itself (Sen, Banerjee, Woodroofe 2010).
Whether it helps at all is asked of the lower loads together, and whether it hurts of the upper ones: the most
telling of all sums over the lowest (highest) loads, each load weighed by 1 / variance, is held against the same with
the arms of pairs exchanged, so that trying many loads makes no finding.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from tailgauge.experiments.hedging.contrast import Contrast
from tailgauge_analysis.stats.bootstrap import SEED
from tailgauge_analysis.stats.quantiles import CONFIDENCE, Floats

DRAWN = 4_095  # exchanges of all loads together
LEAST = 1e-4  # variance: of what hardly varies nobody is that sure


@dataclass(frozen=True, slots=True)
class Turning:
    """Requests a second. `low`: helps below; `high`: hurts above; None beyond the loads tried, or not shown. `helps`,
    `hurts`: whether that is shown. `fit`: of each load.
    """

    value: float | None
    low: float | None
    high: float | None
    helps: bool
    hurts: bool
    fit: tuple[float, ...]


def turning(loads: Sequence[float], of: Sequence[Contrast], *, helps: bool, hurts: bool) -> Turning:
    """Of loads in ascending order, and what is shown of them."""
    if not of:
        return Turning(None, None, None, helps=False, hurts=False, fit=())
    weights = np.array([1 / max(LEAST, float(one.draws.var())) for one in of])
    fit = isotonic(np.array([one.value for one in of]), weights)
    rows = np.stack([one.draws for one in of], axis=1)
    ends = np.array([around(loads, isotonic(row, weights)) for row in rows])
    alpha = (1 - CONFIDENCE) / 2
    low = _further(loads, float(np.quantile(ends[:, 0], alpha, method="inverted_cdf")), -1)
    high = _further(loads, float(np.quantile(ends[:, 1], 1 - alpha, method="inverted_cdf")), 1)
    return Turning(
        _zero(loads, fit) if helps and hurts else None,
        low if helps else None,
        high if hurts else None,
        helps, hurts, tuple(map(float, fit)),
    )  # fmt: skip


def p_values(of: Sequence[Contrast]) -> tuple[float, float]:
    """That it helps at the lowest loads, that it hurts at the highest; 1 where nothing varies."""
    varies = [one for one in of if one.exchanged.std() > 0]
    if not varies:
        return 1.0, 1.0
    rng = np.random.default_rng(SEED)
    weights = np.array([1 / float((one.exchanged**2).mean()) for one in varies])
    drawn = np.stack([one.exchanged[rng.integers(0, len(one.exchanged), DRAWN)] for one in varies], axis=1)
    seen = np.array([[one.value for one in varies]])
    lows = [_sums(rows, weights).min(axis=1) for rows in (seen, drawn)]
    highs = [_sums(rows[:, ::-1], weights[::-1]).max(axis=1) for rows in (seen, drawn)]
    helps, hurts = (lows[1] <= lows[0][0]).sum(), (highs[1] >= highs[0][0]).sum()
    return (1 + int(helps)) / (1 + DRAWN), (1 + int(hurts)) / (1 + DRAWN)


def _sums(rows: Floats, weights: Floats) -> Floats:
    """Over the first loads, the first two and so on, in standard errors."""
    return np.cumsum(rows * weights, axis=1) / np.sqrt(np.cumsum(weights))


def isotonic(values: Floats, weights: Floats) -> Floats:
    """The non-decreasing values that are nearest in weighted squares."""
    means, sums, sizes = list[float](), list[float](), list[int]()
    for value, weight in zip(values.tolist(), weights.tolist(), strict=True):
        means.append(value)
        sums.append(weight)
        sizes.append(1)
        while len(means) > 1 and means[-2] >= means[-1]:
            mean, total, size = means.pop(), sums.pop(), sizes.pop()
            means[-1] = (means[-1] * sums[-1] + mean * total) / (sums[-1] + total)
            sums[-1] += total
            sizes[-1] += size
    return np.repeat(np.array(means), sizes)


def around(loads: Sequence[float], fit: Floats) -> tuple[float, float]:
    """The last load with a gain and the first with a harm; infinite where there is none."""
    gains, harms = np.flatnonzero(fit < 0), np.flatnonzero(fit > 0)
    low = loads[int(gains[-1])] if len(gains) else -math.inf
    return low, loads[int(harms[0])] if len(harms) else math.inf


def _further(loads: Sequence[float], end: float, by: int) -> float | None:
    """The next tried load, or the outermost; None where the end is beyond all of them."""
    if not math.isfinite(end):
        return None
    return loads[min(len(loads) - 1, max(0, loads.index(end) + by))]


def _zero(loads: Sequence[float], fit: Floats) -> float | None:
    low, high = around(loads, fit)
    if not (math.isfinite(low) and math.isfinite(high)):
        return None
    a, b = fit[loads.index(low)], fit[loads.index(high)]
    return float(low + (high - low) * a / (a - b))
