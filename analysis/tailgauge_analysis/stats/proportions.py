"""A proportion of what was counted, with its exact interval on effective n; ratios of quantiles.

Indicators come in order of time; dependent ones count less (quantiles.worth). A share of nothing has no value. Ratios
of two quantiles have an interval from the two intervals by the method of variance estimates recovery on logarithms (Zou
and Donner 2008); there is no ratio where a quantile has no value, falls among failures or has too few samples.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from tailgauge_analysis.stats import quantiles
from tailgauge_analysis.stats.binomial import clopper_pearson
from tailgauge_analysis.stats.quantiles import EPISODES, FEW_EPISODES, TOO_FEW, Ints, Quantile, worth


@dataclass(frozen=True, slots=True)
class Proportion:
    """`k` of `n`, with the 95% interval."""

    k: int
    n: int
    n_eff: int
    value: float | None
    low: float | None
    high: float | None
    episodes: int = 0
    """In how many episodes the rarer of the two came."""
    mark: str = ""  # or FEW_EPISODES


@dataclass(frozen=True, slots=True)
class Difference:
    """One share minus another, with its 95% interval."""

    value: float | None
    low: float | None
    high: float | None


def difference(a: Proportion, b: Proportion) -> Difference:
    """a - b of shares that have nothing to do with each other: their intervals recover the variances (Newcombe 1998)."""
    if (
        a.value is None
        or a.low is None
        or a.high is None
        or b.value is None
        or b.low is None
        or b.high is None
    ):
        return Difference(None, None, None)
    value = a.value - b.value
    below, above = (
        math.hypot(a.value - a.low, b.high - b.value),
        math.hypot(a.high - a.value, b.value - b.low),
    )
    return Difference(value, max(-1.0, value - below), min(1.0, value + above))


def proportion(seen: npt.NDArray[np.bool_], sizes: Ints | None = None) -> Proportion:
    """The share of True; `sizes`: how many values each group has, one group after the other.

    Marked where the rarer of the two came in bursts, and those were few. Single ones are taken as they are.
    """
    n, k = len(seen), int(seen.sum())
    found = worth(seen, sizes)
    mark = FEW_EPISODES if 0 < found.episodes < min(EPISODES, k, n - k) else ""
    return replace(_of(k, n, found.sure), n_eff=found.n_eff if n else 0, episodes=found.episodes, mark=mark)


def counted(k: int, n: int, n_eff: int | None = None) -> Proportion:
    """The share k / n of what is independent, or of what says as much as `n_eff` that are."""
    return _of(k, n, n if n_eff is None else n_eff)


def _of(k: int, n: int, n_eff: int) -> Proportion:
    if not n:
        return Proportion(0, 0, 0, None, None, None)
    low, high = clopper_pearson(k * n_eff / n, n_eff, quantiles.confidence())
    return Proportion(k, n, n_eff, k / n, low, high)


@dataclass(frozen=True, slots=True)
class Ratio:
    """Quantile p of one series over that of another."""

    p: float
    value: float | None
    low: float | None
    high: float | None


def quantile_ratio(over: Quantile, under: Quantile) -> Ratio:
    """`over` / `under`."""
    a, b = _log(over.value), _log(under.value)
    if a is None or b is None or TOO_FEW in {over.mark, under.mark}:
        return Ratio(over.p, None, None, None)
    return Ratio(
        over.p,
        math.exp(a - b),
        _end(a - b, -1, (a, _log(over.low)), (b, _log(under.high))),
        _end(a - b, 1, (a, _log(over.high)), (b, _log(under.low))),
    )


def _end(
    centre: float, sign: int, over: tuple[float, float | None], under: tuple[float, float | None]
) -> float | None:
    if over[1] is None or under[1] is None:
        return None
    return math.exp(centre + sign * math.hypot(over[0] - over[1], under[0] - under[1]))


def _log(value: float | None) -> float | None:
    return math.log(value) if value is not None and math.isfinite(value) and value > 0 else None
