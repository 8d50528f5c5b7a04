"""Load in steps: a quarter of today's rate, a burst, and today's rate again; what is refused, and who comes back when.

Rule: a request belongs to the part in which it was scheduled. Times to the first content are since sent. Retries are
held against the `retry-after` of the 429 before them.
"""

from __future__ import annotations

import numpy as np
import pandas as pd

from tailgauge.experiments.checkup.check import (
    Check,
    Gain,
    medians,
    of_medians,
    of_proportion,
    of_share,
    untold,
)
from tailgauge.experiments.checkup.light import REFUSED
from tailgauge.experiments.checkup.probe_result import Measured, Seen, failed, times
from tailgauge.experiments.reading import Reading
from tailgauge.rows import schema
from tailgauge_analysis.sections.rate_limits.retries import early_s
from tailgauge_analysis.stats.proportions import counted
from tailgauge_analysis.stats.quantiles import Floats
from tailgauge_analysis.text.formatting import share

BURST_FROM, BURST_TO = 0.4, 0.7  # of the run
QUIET = 0.25  # times today's rate, before the burst
SETTLING = 0.1  # of the run, after the burst
SLOWER = 2.0  # times, for longer than that


def loaded(reading: Reading) -> Seen:
    """The checks of one run."""
    steady = reading.steady
    duration_s = float(reading.frames.run["scenario"]["stages"]["duration_s"])
    at = steady.requests["scheduled_at_ns"].to_numpy(np.float64) / 1e9 / duration_s
    first = (steady.requests["first_at_ns"] - steady.requests["sent_at_ns"]).to_numpy(np.float64) / 1e6
    quiet, after = first[at < BURST_FROM], first[at >= BURST_TO + SETTLING]
    quiet, after = quiet[~np.isnan(quiet)], after[~np.isnan(after)]
    attempts = steady.sent
    when = attempts["scheduled_at_ns"].to_numpy(np.float64) / 1e9 / duration_s
    burst = attempts[(when >= BURST_FROM) & (when < BURST_TO) & (attempts["cause"] == schema.PRIMARY)]
    refused = burst["ended"].isin(REFUSED).to_numpy(np.bool_)
    checks = (
        of_share("burst", refused, 0.05, f"{int(refused.sum())} of {len(refused)} calls of the burst were refused"),
        _unrecovered(after, quiet),
        _no_retry_after(attempts),
        _early_retries(attempts),
    )  # fmt: skip
    return Seen(checks, tuple(_tries(attempts)), {"quiet": quiet}, failed(reading))


def queueing(today: Floats, quiet: Floats, threshold: float) -> tuple[Check, list[Measured]]:
    """The first content at today's rate (light probe) against a quarter of it."""
    found = medians(today, quiet, 1 + threshold)
    if found is None:
        return untold("queueing", "too few answers at a quarter of today's rate"), []
    said = (
        f"at today's rate the first content comes {found.value:.2f} times as late as at a quarter of it "
        f"({found.low:.2f} to {found.high:.2f})"
    )
    shown = times("first content at today's rate / at a quarter (medians)", found, len(today))
    return of_medians("queueing", len(today), found, said), shown


def _unrecovered(after: Floats, quiet: Floats) -> Check:
    found = medians(after, quiet, SLOWER)
    if found is None:
        return untold("unrecovered", "too few answers before or after the burst")
    said = f"after the burst the first content comes {found.value:.2f} times as late as before ({found.low:.2f} to {found.high:.2f})"
    return of_medians("unrecovered", len(after), found, said)


def _no_retry_after(attempts: pd.DataFrame) -> Check:
    limited = attempts[attempts["ended"] == schema.RATE_LIMITED]
    if not len(limited):
        return untold("no_retry_after", "no 429 was met")
    silent = limited["retry_after_s"].isna().to_numpy(np.bool_)
    said = f"{int(silent.sum())} of {len(silent)} 429s have no retry-after"
    return of_share("no_retry_after", silent, 0.1, said, _of_all(int(silent.sum()), len(attempts)))


def _early_retries(attempts: pd.DataFrame) -> Check:
    early = early_s(attempts)
    if not len(early):
        return untold("early_retries", "no call was tried again after a 429 that named a time")
    said = f"{int((early > 0).sum())} of {len(early)} retries come before the time that was named, {share(float((early > 0).mean()))}"
    gain = _of_all(int((early > 0).sum()), len(attempts))
    return of_share("early_retries", early > 0, 0.1, said, gain)


def _of_all(k: int, n: int) -> Gain:
    return of_proportion(counted(k, n))


def _tries(attempts: pd.DataFrame) -> list[Measured]:
    tries = attempts[attempts["cause"].isin((schema.PRIMARY, schema.RETRY))]
    calls = int((tries["cause"] == schema.PRIMARY).sum())
    if not calls:
        return []
    return [Measured("tries a call, with the burst", f"{len(tries) / calls:.2f}", "–", calls)]
