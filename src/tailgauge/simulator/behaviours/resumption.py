"""Streams that can be resumed behind an event that the client names.

With the profile `fixed` an answer goes on while nobody reads it; an engine makes the rest of it anew.
"""

from __future__ import annotations

from dataclasses import dataclass

from tailgauge.scenario.simulated import ResumptionTable
from tailgauge.simulator.behaviours.draws import draws, pick

KEPT = 10_000  # streams; the oldest go first
IGNORED = "ignored"
REPEATED = "repeated"
SKIPPED = "skipped"


@dataclass(frozen=True, slots=True)
class Stream:
    """One answer, over all its connections."""

    name: str
    key: str  # of its draws
    received_ns: int
    tokens: int
    stop: str | None = None  # why it ends early


class Resumption:
    """The streams of an endpoint by their names; the id of an event is NAME-NUMBER."""

    def __init__(self, table: ResumptionTable, seed: int) -> None:
        self.table = table
        self._seed = seed
        self._streams: dict[str, Stream] = {}

    def open(self, stream: Stream) -> None:
        """Remember a new answer."""
        if len(self._streams) >= KEPT:
            del self._streams[next(iter(self._streams))]
        self._streams[stream.name] = stream

    def fault(self, call_key: str) -> str | None:
        """Draw the fault of a reconnection; None: it has none."""
        shares = (
            (self.table.ignored, IGNORED),
            (self.table.repeated, REPEATED),
            (self.table.skipped, SKIPPED),
        )
        return pick(draws(self._seed, "resumption", call_key), shares, None)

    def following(self, last_id: str, fault: str | None) -> tuple[Stream, int] | None:
        """Return the stream of an event, and the number of the next event to send; None for an unknown event."""
        name, _, number = last_id.rpartition("-")
        stream = self._streams.get(name)
        if stream is None or not (number.isascii() and number.isdigit() and len(number) < 10):
            return None
        next_number = int(number) + 1
        if fault == REPEATED:
            next_number -= self.table.events
        elif fault == SKIPPED:
            next_number += self.table.events
        return stream, max(0, next_number)
