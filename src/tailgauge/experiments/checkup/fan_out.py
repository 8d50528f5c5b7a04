"""The probe of a fan-out: the join, compared with the slowest of as many single calls.

Requests with all their legs. The prediction is the slowest of K single calls drawn from the light probe, which assumes
that legs do not affect each other; both medians are resampled, the single calls too.
"""

from __future__ import annotations

import numpy as np
import pandas as pd

from tailgauge.experiments.checkup import judge
from tailgauge.experiments.checkup.cached import counted_calls, of_cause
from tailgauge.experiments.checkup.judge import (
    FEWEST,
    REFUSED,
    REPS,
    Measured,
    Medians,
    ProbeCheck,
    ProbeResult,
)
from tailgauge.experiments.reading import RunReading
from tailgauge_analysis.sections.cache import misses
from tailgauge_analysis.sections.cache.calls import settings
from tailgauge_analysis.sections.fan_out.legs import legs
from tailgauge_analysis.stats.bootstrap import SEED
from tailgauge_analysis.stats.quantiles import Floats
from tailgauge_analysis.text.formatting import ms

DRAWS = 2000
WORSE = 1.25  # times the prediction


def fan_out(reading: RunReading) -> ProbeResult:
    """Result of a run: the joins, and whether legs share their prefix."""
    found = legs(reading.frames.run["scenario"], reading.steady)
    joins = found[0].times_ms[found[0].complete].max(axis=1) if found else np.empty(0)
    calls = counted_calls(reading, settings(reading.frames.run))
    refused = reading.steady.sent["ended"].isin(REFUSED).to_numpy(np.bool_)
    text = f"{int(refused.sum())} of {len(refused)} calls were refused"
    checks = (judge.of_share("legs_refused", refused, 0.05, text), *_shared(calls))
    return ProbeResult(
        checks, tuple(judge.latencies("join of a fan-out", joins)), {"joins": joins}, judge.failed(reading)
    )


def _shared(calls: pd.DataFrame) -> list[ProbeCheck]:
    """Whether legs read the prefix that they share."""
    if not len(calls):
        return [
            judge.inconclusive(name, "this traffic has no shared prefix") for name in ("race", "per_slot")
        ]
    return [of_cause(calls, misses.RACE), of_cause(calls, misses.UNEXPLAINED, "per_slot")]


def amplified(joins: Floats, single: Floats, width: int) -> tuple[ProbeCheck, list[Measured]]:
    """The joins compared with the slowest of `width` single calls."""
    if min(len(joins), len(single)) < FEWEST:
        return judge.inconclusive("fan_out", "too few requests with all their legs, or single calls"), []
    found = _against(joins, single, width)
    expected = float(np.median(joins)) / found.value
    text = (
        f"median join of {width} calls {ms(float(np.median(joins)))} ms, slowest of as many single calls {ms(expected)} ms: "
        f"{found.value:.2f}x ({found.low:.2f} to {found.high:.2f})"
    )
    shown = judge.times("join / slowest of as many single calls (medians)", found, len(joins))
    growth = Measured(
        "slowest of as many single calls / a single call (medians)",
        f"{expected / float(np.median(single)):.2f}x",
        "–",
        len(single),
    )
    return judge.of_medians("fan_out", len(joins), found, text), [growth, *shown]


def _against(joins: Floats, single: Floats, width: int) -> Medians:
    rng = np.random.default_rng(SEED)

    def log_ratio(a: Floats, b: Floats) -> float:
        slowest = b[rng.integers(0, len(b), (DRAWS, width))].max(axis=1)
        return float(np.log(np.median(a) / np.median(slowest)))

    drawn = [log_ratio(rng.choice(joins, len(joins)), rng.choice(single, len(single))) for _ in range(REPS)]
    return judge.medians_of(log_ratio(joins, single), np.array(drawn), WORSE)
