"""How good the time stamps are: exact or interval, kernel or user, and how late we took the bytes.

Rule: counts only. Several events in one socket read share the stamp of its last byte; the earlier ones are known as
an interval, and every table counts them at its high end.
"""

from __future__ import annotations

from dataclasses import dataclass

from tailgauge_analysis.load.frames import Frames
from tailgauge_analysis.metrics.steady import Steady


@dataclass(frozen=True, slots=True)
class Stamps:
    """Stamp quality; first chunks are those of the steady stage's answers, the rest is the whole run."""

    first_chunks: int
    first_intervals: int
    chunks: int
    chunk_intervals: int
    connected: int  # attempts of the steady stage that had a connection
    kernel_attempts: int
    user_attempts: int
    new_connections: int  # attempts that opened one: their times since scheduled contain it
    handover_ms: tuple[float, ...] | None  # at chunks.LAG_PS

    @property
    def first_interval_share(self) -> float:
        """Share of first chunks that are known as an interval only."""
        return self.first_intervals / self.first_chunks if self.first_chunks else 0.0


def stamps(frames: Frames, steady: Steady) -> Stamps:
    """Count the stamps of a run."""
    answers = steady.requests[steady.requests["first_at_ns"].notna()]
    by = frames.attempts["stamps"].value_counts()
    lags = frames.chunks.lags_ns
    return Stamps(
        first_chunks=len(answers),
        first_intervals=int(answers["first_is_interval"].sum()),
        chunks=len(frames.chunks),
        chunk_intervals=frames.chunks.intervals,
        connected=int(steady.attempts["connection_is_new"].notna().sum()),
        kernel_attempts=int(by.get("kernel", 0)),
        user_attempts=int(by.get("user", 0)),
        new_connections=int(steady.attempts["connection_is_new"].eq(True).sum()),
        handover_ms=tuple(lag / 1e6 for lag in lags) if lags else None,
    )
