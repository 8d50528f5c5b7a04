"""Times in order: what cannot have happened.

Rule: counts only. Every attempt passes its stations in one order; a later one that lies before an earlier one by more
than `SLACK_NS` is a wrong time, and every latency made of it is wrong too. A station that was not reached is no time.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from tailgauge_analysis.load.frames import Frames

STATIONS = (
    "scheduled_at_ns", "dispatched_at_ns", "sent_at_ns", "first_content_at_ns", "last_content_at_ns", "ended_at_ns",
)  # fmt: skip
SLACK_NS = 1_000_000  # kernel stamps and the process's own clock are read a little apart


@dataclass(frozen=True, slots=True)
class Disorder:
    """Attempts with a time before an earlier station's, and the longest way back in ms."""

    attempts: int
    of: int
    worst_ms: float


def disorder(frames: Frames) -> Disorder:
    """Count the attempts whose times contradict each other."""
    latest = np.full(len(frames.attempts), -np.inf)
    back = np.zeros(len(frames.attempts))
    for name in STATIONS:
        at = frames.attempts[name].to_numpy(np.float64)
        back = np.fmax(back, latest - at)
        latest = np.fmax(latest, at)
    wrong = back > SLACK_NS
    return Disorder(int(wrong.sum()), len(back), float(back[wrong].max(initial=0.0)) / 1e6)
