"""The probe of load in steps: a quarter of today's rate, a burst, and today's rate again.

A request belongs to the part in which it was scheduled. Times to the first content are since sent. Retries are compared
with the `retry-after` of the 429 before them.
"""

from __future__ import annotations

import numpy as np
import pandas as pd

from tailgauge.experiments.checkup import judge
from tailgauge.experiments.checkup.judge import (
    BURST_FROM,
    BURST_TO,
    REFUSED,
    Gain,
    Measured,
    ProbeCheck,
    ProbeResult,
)
from tailgauge.experiments.reading import RunReading
from tailgauge.rows import schema
from tailgauge_analysis.sections.rate_limits.retries import early_s
from tailgauge_analysis.stats.proportions import counted
from tailgauge_analysis.stats.quantiles import Floats
from tailgauge_analysis.text.formatting import share

SETTLING = 0.1  # of the run, after the burst
SLOWER = 2.0  # times, for longer than that


def loaded(reading: RunReading) -> ProbeResult:
    """Result of a run under load."""
    steady = reading.steady
    duration_s = float(reading.frames.run["scenario"]["stages"]["duration_s"])
    at = steady.requests["scheduled_at_ns"].to_numpy(np.float64) / 1e9 / duration_s
    first = (steady.requests["first_at_ns"] - steady.requests["sent_at_ns"]).to_numpy(np.float64) / 1e6
    low_load, after = first[at < BURST_FROM], first[at >= BURST_TO + SETTLING]
    low_load, after = low_load[~np.isnan(low_load)], after[~np.isnan(after)]
    attempts = steady.sent
    when = attempts["scheduled_at_ns"].to_numpy(np.float64) / 1e9 / duration_s
    burst = attempts[(when >= BURST_FROM) & (when < BURST_TO) & (attempts["cause"] == schema.PRIMARY)]
    refused = burst["ended"].isin(REFUSED).to_numpy(np.bool_)
    checks = (
        judge.of_share("burst", refused, 0.05, f"{int(refused.sum())} of {len(refused)} calls of the burst were refused"),
        _unrecovered(after, low_load),
        _no_retry_after(attempts),
        _early_retries(attempts),
    )  # fmt: skip
    return ProbeResult(
        checks, tuple(_attempts_per_call(attempts)), {"low_load": low_load}, judge.failed(reading)
    )


def queueing(today: Floats, low_load: Floats, threshold: float) -> tuple[ProbeCheck, list[Measured]]:
    """The first content at today's rate (light probe) compared with a quarter of it."""
    found = judge.medians(today, low_load, 1 + threshold)
    if found is None:
        return judge.inconclusive("queueing", "too few answers at a quarter of today's rate"), []
    text = (
        f"time to first content at today's rate is {found.value:.2f}x that at a quarter of it "
        f"({found.low:.2f} to {found.high:.2f})"
    )
    shown = judge.times("first content at today's rate / at a quarter (medians)", found, len(today))
    return judge.of_medians("queueing", len(today), found, text), shown


def _unrecovered(after: Floats, low_load: Floats) -> ProbeCheck:
    found = judge.medians(after, low_load, SLOWER)
    if found is None:
        return judge.inconclusive("unrecovered", "too few answers before or after the burst")
    text = f"time to first content after the burst is {found.value:.2f}x that before ({found.low:.2f} to {found.high:.2f})"
    return judge.of_medians("unrecovered", len(after), found, text)


def _no_retry_after(attempts: pd.DataFrame) -> ProbeCheck:
    limited = attempts[attempts["ended"] == schema.RATE_LIMITED]
    if not len(limited):
        return judge.inconclusive("no_retry_after", "no 429")
    silent = limited["retry_after_s"].isna().to_numpy(np.bool_)
    text = f"{int(silent.sum())} of {len(silent)} 429s have no retry-after"
    return judge.of_share("no_retry_after", silent, 0.1, text, _of_all(int(silent.sum()), len(attempts)))


def _early_retries(attempts: pd.DataFrame) -> ProbeCheck:
    early = early_s(attempts)
    if not len(early):
        return judge.inconclusive("early_retries", "no retry after a 429 with retry-after")
    text = f"{int((early > 0).sum())} of {len(early)} retries before retry-after had elapsed, {share(float((early > 0).mean()))}"
    gain = _of_all(int((early > 0).sum()), len(attempts))
    return judge.of_share("early_retries", early > 0, 0.1, text, gain)


def _of_all(k: int, n: int) -> Gain:
    return judge.of_proportion(counted(k, n))


def _attempts_per_call(attempts: pd.DataFrame) -> list[Measured]:
    tries = attempts[attempts["cause"].isin((schema.PRIMARY, schema.RETRY))]
    calls = int((tries["cause"] == schema.PRIMARY).sum())
    if not calls:
        return []
    return [Measured("attempts per call, with the burst", f"{len(tries) / calls:.2f}", "–", calls)]
