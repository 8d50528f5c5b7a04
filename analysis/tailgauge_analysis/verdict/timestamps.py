"""Quality of the timestamps: exact or a range, by the kernel or in user space.

Several events in one socket read share the timestamp of its last byte; the earlier ones have a time range, and every
table uses its end.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from tailgauge_analysis.metrics.steady import Steady
from tailgauge_analysis.reading.frames import CALL, Frames


@dataclass(frozen=True, slots=True, kw_only=True)
class Stamps:
    """Counts of timestamps: chunks of all attempts of the steady stage, legs and copies among them; by kernel or user, attempts
    of the whole run. `connected` are attempts of the steady stage that had a connection, `new_connections` those that opened
    it: their times since scheduled contain it.
    """

    first_chunks: int
    first_intervals: int
    chunks: int
    chunk_intervals: int
    connected: int
    new_connections: int
    kernel_attempts: int
    user_attempts: int


def stamps(frames: Frames, steady: Steady) -> Stamps:
    """Count them."""
    chunks = frames.chunks
    calls = [steady.attempts[name].to_numpy(np.int64) for name in CALL]
    places = chunks.places(*calls)
    places = places[places >= 0]
    by_source = frames.attempts["stamps"].value_counts()
    is_new = steady.attempts["connection_is_new"]
    return Stamps(
        first_chunks=int(steady.attempts["first_content_at_ns"].notna().sum()),
        first_intervals=int(steady.attempts["first_content_low_at_ns"].notna().sum()),
        chunks=int(chunks.sizes[places].sum()),
        chunk_intervals=int(np.isin(chunks.entries_of_ranges(), places).sum()),
        connected=int(is_new.notna().sum()),
        new_connections=int(is_new.eq(True).sum()),
        kernel_attempts=int(by_source.get("kernel", 0)),
        user_attempts=int(by_source.get("user", 0)),
    )
