"""Warm-up: where a series settles, by MSER-5.

MSER-5 (White 1997) takes batches of five
values and cuts where the standard error of the mean of the rest is smallest:

    d* = argmin over d <= n/2 of  sum over i > d of (z_i - mean of z after d)^2 / (n - d)^2

Where the smallest value stands at half of the series, it has not settled. MSER is made for means, and on a settled
series it may cut a little by chance: `material` says whether a cut matters.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from tailgauge_analysis.stats.quantiles import Floats, correlation_time

BATCH = 5
FEWEST = 10  # batches; fewer give no answer
BIAS = 0.05  # of the settled mean
SURE = 4.0  # standard errors
DRIFT = 0.2  # of the mean


@dataclass(frozen=True, slots=True)
class Settling:
    """`cut` values of the beginning look like warm-up; `bias` is what they do to the mean, as a share of the settled one."""

    cut: int
    settles: bool
    bias: float
    errors: float  # the same in standard errors of the settled mean
    drift: float  # from the first quarter of the series to the last, as a share of the mean; 0 if not one way all along

    @property
    def material(self) -> bool:
        """Whether it matters: a beginning that moves the mean by more than chance and 5%, or a drift above 20%."""
        if not self.settles:
            return abs(self.drift) > DRIFT
        return self.cut > 0 and abs(self.bias) > BIAS and self.errors > SURE


def settling(series: Floats) -> Settling | None:
    """Where a series settles; None where it is too short to tell."""
    batches = len(series) // BATCH
    if batches < FEWEST:
        return None
    z = series[: batches * BATCH].reshape(-1, BATCH).mean(axis=1)
    left = batches - np.arange(batches // 2 + 1)  # batches that stay when d are cut
    centred = z - z.mean()  # else squares of large numbers lose the differences
    sums = centred[::-1].cumsum()[::-1][: len(left)]
    squares = np.square(centred)[::-1].cumsum()[::-1][: len(left)]
    spread = np.maximum(0.0, squares - sums**2 / left) / left.astype(np.float64) ** 2
    d = int(
        np.flatnonzero(spread <= spread.min() + 1e-9 * spread.max())[0]
    )  # the first, whatever rounding says
    rest = series[d * BATCH :]
    mean, bias = float(rest.mean()), float(series.mean() - rest.mean())
    error = float(rest.std() * np.sqrt(correlation_time(rest) / len(rest)))
    return Settling(
        cut=d * BATCH,
        settles=d < batches // 2,
        bias=bias / abs(mean) if mean else 0.0,
        drift=_drift(series),
        errors=abs(bias) / error if error else (0.0 if bias == 0 else np.inf),
    )


def _drift(series: Floats) -> float:
    means = [float(quarter.mean()) for quarter in np.array_split(series, 4)]
    monotonic = means in (sorted(means), sorted(means, reverse=True))
    whole = float(series.mean())
    return (means[-1] - means[0]) / abs(whole) if monotonic and whole else 0.0
