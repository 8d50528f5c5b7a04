"""Silence within calls: whether something on the way cuts what is silent for too long, and what silence is survived.

Rule: an idle time-out cuts after the same silence each time, and nothing that was silent for longer lives. Silence of a
call that broke off runs from the last that came of it, or from its sending, to its end. Pings between are not in the rows,
so that a silence is one of content; what we ended ourselves, by a time-out of ours, is no cut.
"""

from __future__ import annotations

import numpy as np
import pandas as pd

from tailgauge.experiments.checkup.check import Check, of_share
from tailgauge.experiments.checkup.probe_result import Measured
from tailgauge.rows import schema
from tailgauge_analysis.metrics.steady import Steady
from tailgauge_analysis.stats.quantiles import Floats

LEAST_S = 1.0  # a shorter silence is no idle time-out
ALIKE = 0.1  # how far cuts by one clock lie from their median at most, relatively
BY_OTHERS = (schema.SERVER_ERROR, schema.CONNECT_ERROR, schema.STREAM_ERROR, schema.TRUNCATED)
SIGNS = ["sent_at_ns", "headers_at_ns", "last_content_at_ns"]


def idle_cut(steady: Steady) -> Check:
    """Whether more calls than are borne end after one and the same silence, which no other call survives."""
    sent = steady.sent
    silent_s = _before_the_end_s(sent)
    cut = sent["ended"].isin(BY_OTHERS).to_numpy(np.bool_) & (silent_s >= LEAST_S)
    survived = _survived_s(steady)
    typical = float(np.median(silent_s[cut])) if cut.any() else 0.0
    cut &= np.abs(silent_s - typical) <= ALIKE * typical
    if survived > typical * (1 + ALIKE):
        cut[:] = False
    said = f"{int(cut.sum())} of {len(cut)} calls break off"
    said += f" after {typical:.3g} s without content" if cut.any() else " after a silence of one length"
    return of_share("idle_cut", cut, 0.01, f"{said}; the longest that one survives is {survived:.3g} s")


def longest(steady: Steady) -> list[Measured]:
    """The longest silence that a call survived."""
    known = int(steady.requests["first_at_ns"].notna().sum())
    return (
        [Measured("longest silence that a call survives", f"{_survived_s(steady):.3g} s", "–", known)]
        if known
        else []
    )


def _before_the_end_s(attempts: pd.DataFrame) -> Floats:
    last = attempts[SIGNS].max(axis=1)
    silent: Floats = ((attempts["ended_at_ns"] - last) / 1e9).to_numpy(np.float64, na_value=np.nan)
    return silent


def _survived_s(steady: Steady) -> float:
    requests = steady.requests
    waits = ((requests["first_at_ns"] - requests["sent_at_ns"]) / 1e9).to_numpy(np.float64, na_value=np.nan)
    every = np.concatenate([waits, requests["worst_gap_ns"].to_numpy(np.float64) / 1e9])
    return float(np.nanmax(every)) if (~np.isnan(every)).any() else 0.0
