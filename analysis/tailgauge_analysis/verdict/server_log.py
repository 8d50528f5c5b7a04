"""The simulated endpoint's own log beside what the client measured.

Rule: joined call by call through (request, leg, attempt). The difference between the arrival of the first content here
and its sending there is what the network and the client added; it is the harness's own error, seen from outside. Two
clocks are in it, so that it is known only within the error of the worker's offset.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from tailgauge.rows import schema
from tailgauge_analysis.load.dedup import CALL
from tailgauge_analysis.load.frames import Frames
from tailgauge_analysis.stats.quantiles import rank
from tailgauge_analysis.verdict.clocks import clocks

PS = (0.5, 0.99, 1.0)


@dataclass(frozen=True, slots=True)
class Truth:
    """Calls of the steady stage that both sides know; `added_ms` at PS, within `within_ms`."""

    joined: int
    unknown_to_target: int
    added_ms: tuple[float, ...]
    within_ms: float


def truth(frames: Frames) -> Truth | None:
    """Compare both sides, if the endpoint left a log."""
    keys = list(CALL)
    log = frames.truth.dropna(subset=keys).drop_duplicates(keys)
    ours = frames.attempts[
        (frames.attempts["stage"] == schema.STEADY) & frames.attempts["first_content_at_ns"].notna()
    ]
    if not len(log) or not len(ours):
        return None
    both = ours[[*keys, "first_content_at_ns"]].merge(log[[*keys, "first_chunk_sent_at_ns"]], on=keys)
    added = (both["first_content_at_ns"] - both["first_chunk_sent_at_ns"]).dropna().to_numpy(np.float64) / 1e6
    if not len(added):
        return None
    added.sort()
    at_ps = tuple(float(added[rank(len(added), p) - 1]) for p in PS)
    return Truth(len(added), len(ours) - len(both), at_ps, clocks(frames).to_target_ns / 1e6)
