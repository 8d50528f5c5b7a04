"""What all loads say together: p99 and goodput at each, and where each turns.

Rule: the quantile is the same at every load: p99 if each arm has enough requests for one at the lowest, else p95, else
nothing is said. That it helps and that it hurts, by either measure, are one family of tests (Holm), and a claim needs
p <= 0.02: a false one costs more than one that is missed. A load at which the quantile falls among failures in both
arms says nothing of it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tailgauge.experiments.hedging import contrast
from tailgauge.experiments.hedging.contrast import Contrast
from tailgauge.experiments.hedging.crossover_load import Turning, p_values, turning
from tailgauge.experiments.hedging.load import Load
from tailgauge_analysis.stats.quantiles import n_min
from tailgauge_analysis.stats.sign_flips import holm

PS = (0.99, 0.95)
SURE = 0.02


@dataclass(frozen=True, slots=True)
class Compared:
    """A load with its contrasts; None where there is nothing to compare."""

    load: Load
    slow: Contrast | None
    bad: Contrast | None


@dataclass(frozen=True, slots=True)
class Result:
    """`p` is None where no quantile can be told; `bad` is None without objectives. `p_values`: corrected, that it
    helps and hurts by `slow`, then by `bad`.
    """

    p: float | None
    compared: tuple[Compared, ...]
    slow: Turning
    bad: Turning | None
    p_values: tuple[float, ...]


def quantile_for(loads: Sequence[Load], asked: float | None = None) -> float | None:
    """The one asked for, or the higher of the usual ones, that the arms of all loads have enough requests for."""
    fewest = min((one.fewest for one in loads), default=0)
    return next((p for p in ((asked,) if asked else PS) if fewest >= n_min(p)), None)


def result(loads: Sequence[Load], asked: float | None = None) -> Result:
    """Of every load that counts; `asked` is a quantile, if one was."""
    ordered = sorted(loads, key=lambda one: one.rate_per_s)
    p = quantile_for(ordered, asked)
    slow = [contrast.quantiles(one.off, one.on, p) if p is not None else None for one in ordered]
    bad = [contrast.shares(one.bad_off, one.bad_on) if one.bad_off else None for one in ordered]
    measures = [slow, bad] if any(one is not None for one in bad) else [slow]
    known = [
        [(load.rate_per_s, one) for load, one in zip(ordered, of, strict=True) if one] for of in measures
    ]
    adjusted = holm([p for of in known for p in p_values([one for _, one in of])])
    turnings = [
        turning(
            [rate for rate, _ in of], [one for _, one in of],
            helps=adjusted[2 * i] <= SURE, hurts=adjusted[2 * i + 1] <= SURE,
        )
        for i, of in enumerate(known)
    ]  # fmt: skip
    return Result(
        p, tuple(map(Compared, ordered, slow, bad)), turnings[0],
        turnings[1] if len(turnings) > 1 else None, tuple(adjusted),
    )  # fmt: skip


def closer(loads: Sequence[float], fit: Sequence[float], n: int) -> list[float]:
    """Loads between the last with a gain and the first with a harm, evenly; none where the fit has no such place."""
    gains = [load for load, value in zip(loads, fit, strict=True) if value < 0]
    harms = [load for load, value in zip(loads, fit, strict=True) if value > 0]
    if not gains or not harms:
        return []
    low, high = gains[-1], harms[0]
    return [low + (high - low) * (i + 1) / (n + 1) for i in range(n)]
