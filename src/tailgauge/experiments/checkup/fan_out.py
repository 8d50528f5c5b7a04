"""A fan-out of the user's own width: how late the join is, against what as many single calls would make it.

Rule: requests with all their legs. The prediction is the slowest of K single calls drawn from the light probe, which
supposes that legs do not disturb each other; both medians are resampled, the single calls too.
"""

from __future__ import annotations

import numpy as np
import pandas as pd

from tailgauge.experiments.checkup.cache import of_cause, told_calls
from tailgauge.experiments.checkup.check import (
    FEWEST,
    REPS,
    Check,
    Medians,
    of_medians,
    of_share,
    told,
    untold,
)
from tailgauge.experiments.checkup.light import REFUSED
from tailgauge.experiments.checkup.probe_result import Measured, Seen, failed, latencies, times
from tailgauge.experiments.reading import Reading
from tailgauge_analysis.sections.cache import misses
from tailgauge_analysis.sections.cache.calls import settings
from tailgauge_analysis.sections.fan_out.legs import legs
from tailgauge_analysis.stats.quantiles import Floats
from tailgauge_analysis.text.formatting import ms

SEED = 20_240_229
DRAWS = 2000
WORSE = 1.25  # times the prediction


def fan_out(reading: Reading) -> Seen:
    """The joins, and the race of the legs for their prefix."""
    found = legs(reading.frames.run["scenario"], reading.steady)
    joins = found[0].times_ms[found[0].complete].max(axis=1) if found else np.empty(0)
    calls = told_calls(reading, settings(reading.frames.run))
    refused = reading.steady.sent["ended"].isin(REFUSED).to_numpy(np.bool_)
    said = f"{int(refused.sum())} of {len(refused)} calls were refused"
    checks = (of_share("legs_refused", refused, 0.05, said), *_shared(calls))
    return Seen(checks, tuple(latencies("join of a fan-out", joins)), {"joins": joins}, failed(reading))


def _shared(calls: pd.DataFrame) -> list[Check]:
    """Whether legs read what all of them share."""
    if not len(calls):
        return [untold(name, "this traffic has no shared prefix") for name in ("race", "per_slot")]
    return [of_cause(calls, misses.RACE), of_cause(calls, misses.UNEXPLAINED, "per_slot")]


def amplified(joins: Floats, single: Floats, width: int) -> tuple[Check, list[Measured]]:
    """The joins against the slowest of `width` single calls."""
    if min(len(joins), len(single)) < FEWEST:
        return untold("fan_out", "too few requests with all their legs, or single calls"), []
    found = _against(joins, single, width)
    expected = float(np.median(joins)) / found.value
    said = (
        f"{width} calls of one request are joined after {ms(float(np.median(joins)))} ms in the median; the slowest of as many single "
        f"calls takes {ms(expected)} ms: {found.value:.2f} times ({found.low:.2f} to {found.high:.2f})"
    )
    shown = times("join / slowest of as many single calls (medians)", found, len(joins))
    growth = Measured(
        "slowest of as many single calls / a single call (medians)",
        f"{expected / float(np.median(single)):.2f} times",
        "–",
        len(single),
    )
    return of_medians("fan_out", len(joins), found, said), [growth, *shown]


def _against(joins: Floats, single: Floats, width: int) -> Medians:
    rng = np.random.default_rng(SEED)

    def log_ratio(a: Floats, b: Floats) -> float:
        slowest = b[rng.integers(0, len(b), (DRAWS, width))].max(axis=1)
        return float(np.log(np.median(a) / np.median(slowest)))

    drawn = [log_ratio(rng.choice(joins, len(joins)), rng.choice(single, len(single))) for _ in range(REPS)]
    return told(log_ratio(joins, single), np.array(drawn), WORSE)
