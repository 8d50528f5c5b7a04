"""Requests in flight, counted twice: live by each worker, and again from the rows.

Rule: at the end of every second a worker says how many attempts were open. Of its attempt rows, as many must have begun
and not ended at that moment. By Little's law, the mean of both is arrivals a second times the mean time in flight: where
they differ, rows are missing or times are wrong. A worker counts an end when it has taken it from the kernel, so what
began or ended within a tenth of a second of the moment may be counted either way. Both counts are one worker's by its
own clock, so that no offset is between them. When a call that was still open at the end (censored) was closed, no row says:
it may be counted either way too.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from tailgauge_analysis.load.frames import Frames

SLACK_NS = 100_000_000


@dataclass(frozen=True, slots=True)
class Presence:
    """Mean number of open attempts over the seconds in which a worker told it; `outside`: mean distance from the rows."""

    seconds: int
    live: float
    from_rows: float
    outside: float


def presence(frames: Frames) -> Presence | None:
    """Count both ways; None where no worker told."""
    live = rows = outside = 0.0
    for worker, health in frames.health.groupby("worker"):
        at = health["at_ns"].to_numpy(np.float64)
        told = health["in_flight"].to_numpy(np.float64)
        mine = frames.attempts[frames.attempts["worker"] == worker]
        begun = np.sort(mine["dispatched_at_ns"].to_numpy(np.float64))
        ended = np.sort(mine["ended_at_ns"].dropna().to_numpy(np.float64))
        slack = SLACK_NS + (health["handover_max_ns"] + health["loop_lag_max_ns"]).to_numpy(np.float64)
        closed = np.sort(mine.loc[mine["ended_at_ns"].notna(), "dispatched_at_ns"].to_numpy(np.float64))
        begins = [
            np.searchsorted(b, at + s, "right") for b, s in ((closed, -slack), (begun, 0), (begun, slack))
        ]
        ends = [np.searchsorted(ended, at + shift, "right") for shift in (slack, 0, -slack)]
        low, same, high = (b - e for b, e in zip(begins, ends, strict=True))
        live += float(told.sum())
        rows += float(same.sum())
        outside += float(np.maximum(0, np.maximum(told - high, low - told)).sum())
    n = len(frames.health)
    return Presence(n, live / n, rows / n, outside / n) if n else None
