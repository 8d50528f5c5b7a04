"""Quality of the timestamps: exact or a range, by the kernel or in user space.

Several events in one socket read share the timestamp of its last byte; the earlier ones have a time range, and every
table uses its end.
"""

from __future__ import annotations

from dataclasses import dataclass

from tailgauge_analysis.metrics.steady import Steady
from tailgauge_analysis.reading.frames import Frames


@dataclass(frozen=True, slots=True, kw_only=True)
class Stamps:
    """Counts of timestamps: first chunks of the steady stage's answers, all else of the whole run. `connected` are attempts of
    the steady stage that had a connection, `new_connections` those that opened it: their times since scheduled contain it.
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
    answers = steady.requests[steady.requests["first_at_ns"].notna()]
    by_source = frames.attempts["stamps"].value_counts()
    is_new = steady.attempts["connection_is_new"]
    return Stamps(
        first_chunks=len(answers),
        first_intervals=int(answers["first_low_at_ns"].notna().sum()),
        chunks=len(frames.chunks),
        chunk_intervals=frames.chunks.intervals,
        connected=int(is_new.notna().sum()),
        new_connections=int(is_new.eq(True).sum()),
        kernel_attempts=int(by_source.get("kernel", 0)),
        user_attempts=int(by_source.get("user", 0)),
    )
