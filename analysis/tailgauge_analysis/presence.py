"""Requests in flight, counted twice: live by each worker, and again from the rows.

Rule: at the end of every second a worker says how many attempts were open. Of its attempt rows, as many must have begun
and not ended at that moment. By Little's law, the mean of both is arrivals a second times the mean time in flight: where
they differ, rows are missing or times are wrong.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from tailgauge_analysis.frames import Frames


@dataclass(frozen=True, slots=True)
class Presence:
    """Mean number of open attempts over the seconds in which a worker told it."""

    seconds: int
    live: float
    from_rows: float


def presence(frames: Frames) -> Presence | None:
    """Count both ways; None where no worker told."""
    live = rows = 0.0
    for worker, health in frames.health.groupby("worker"):
        at = health["at_ns"].to_numpy(np.float64)
        mine = frames.attempts[frames.attempts["worker"] == worker]
        begun = np.sort(mine["dispatched_at_ns"].to_numpy(np.float64))
        ended = np.sort(mine["ended_at_ns"].dropna().to_numpy(np.float64))
        live += float(health["in_flight"].sum())
        rows += float((np.searchsorted(begun, at, "right") - np.searchsorted(ended, at, "right")).sum())
    seconds = len(frames.health)
    return Presence(seconds, live / seconds, rows / seconds) if seconds else None
