"""The interval of a variant's quantile over its control's, from the stretches of time that both were in.

What slows the target slows both at once, so both are resampled together: the stage is cut into as many stretches as give
each about ten requests, at most 200, and the stationary bootstrap draws stretches. The interval is that of the ratio of the
two quantiles over the draws. Fewer than 20 stretches, or than 20 values beyond the quantile, give none.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from tailgauge_analysis.metrics import metrics
from tailgauge_analysis.metrics.metrics import Metric
from tailgauge_analysis.metrics.steady import Steady
from tailgauge_analysis.stats.bootstrap import SEED, blocks, draw
from tailgauge_analysis.stats.quantiles import BEYOND, CONFIDENCE, TOO_FEW, Floats, Ints, Quantile, rank

EACH = 10  # requests of a variant in a stretch, about
STRETCHES = (20, 200)
WANTED = 2 * BEYOND  # values beyond the quantile in either
REPS = (200, 1000)
WORK = 50_000_000  # values examined for one interval


@dataclass(frozen=True, slots=True)
class Waits:
    """One metric of one variant: values in ms, +inf for failures, and when each was scheduled."""

    at_ns: Floats
    ms: Floats


def waits(metric: Metric, steady: Steady) -> Waits:
    """Of the offered requests."""
    at = steady.requests["scheduled_at_ns"].to_numpy(np.float64)
    of = metric.ns(steady)
    failed = metrics.failed(steady, metric)
    values = np.where(np.isnan(of), failed, of / 1e6)
    known = ~np.isnan(values)
    return Waits(at[known], values[known])


def interval(variant: Waits, control: Waits, over: Quantile, under: Quantile) -> tuple[float, float] | None:
    """95% interval of quantile over.p of the variant over that of the control; None where the run is too short."""
    count = min(STRETCHES[1], min(len(variant.ms), len(control.ms)) // EACH)
    beyond = min(over.n, under.n) * (1 - over.p)
    if count < STRETCHES[0] or beyond < WANTED or TOO_FEW in {over.mark, under.mark}:
        return None
    at_ns = np.concatenate((variant.at_ns, control.at_ns))
    edges = np.linspace(at_ns.min(), at_ns.max(), count + 1)[1:-1]
    sides = [(np.searchsorted(edges, one.at_ns), one.ms) for one in (variant, control)]
    slow = [_slow(of, ms, q, count) for (of, ms), q in zip(sides, (over, under), strict=True)]
    rng = np.random.default_rng(SEED)
    length = blocks(slow[0] / len(variant.ms) - slow[1] / len(control.ms))  # without what both share
    reps = int(np.clip(WORK // len(at_ns), *REPS))
    weights = np.stack([np.bincount(draw(count, length, rng), minlength=count) for _ in range(reps)])
    a, b = (_quantiles(of, ms, over.p, weights) for of, ms in sides)
    known = np.isfinite(a) & np.isfinite(b) & (b > 0)
    if not known.all():
        return None
    drawn = np.sort(a / b)
    alpha = (1 - CONFIDENCE) / 2
    return float(drawn[rank(reps, alpha) - 1]), float(drawn[rank(reps, 1 - alpha) - 1])


def _slow(of: Ints, ms: Floats, q: Quantile, count: int) -> Floats:
    """By how many more requests than usual each stretch exceeds the quantile."""
    beyond = (ms > (q.value if q.value is not None else np.inf)).astype(np.float64)
    return np.bincount(of, weights=beyond - beyond.mean(), minlength=count).astype(np.float64)


def _quantiles(of: Ints, ms: Floats, p: float, weights: Ints) -> Floats:
    """The quantile of each draw: the values in order, each counted as often as its stretch was drawn."""
    order = np.argsort(ms, kind="stable")
    stretch, ordered = of[order], ms[order]
    out = np.full(len(weights), np.nan)
    for i, times in enumerate(weights):
        counted = np.cumsum(times[stretch])
        if counted[-1]:
            out[i] = ordered[int(np.searchsorted(counted, rank(int(counted[-1]), p)))]
    return out
