"""Streams that can be resumed: which event follows the last one that a client names.

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
    """One answer, whichever connections it comes over: what its times are drawn from, and its tokens."""

    name: str
    key: str
    received_ns: int
    tokens: int
    stop: str | None = None  # why it ends early


class Resumption:
    """The streams of an endpoint by their names; the id of an event is NAME-NUMBER."""

    def __init__(self, table: ResumptionTable, seed: int) -> None:
        self.table = table
        self._seed = seed
        self._streams: dict[str, Stream] = {}

    def open(self, stream: Stream) -> Stream:
        """A new answer."""
        if len(self._streams) >= KEPT:
            del self._streams[next(iter(self._streams))]
        self._streams[stream.name] = stream
        return stream

    def fault(self, call_key: str) -> str | None:
        """What is wrong with a reconnection, drawn."""
        shares = [(getattr(self.table, kind), kind) for kind in (IGNORED, REPEATED, SKIPPED)]
        return pick(draws(self._seed, "resumption", call_key), shares, None)

    def after(self, last_id: str, fault: str | None) -> tuple[Stream, int] | None:
        """The stream of an event, and the number of the event to go on with; None: it is not known."""
        name, _, number = last_id.rpartition("-")
        stream = self._streams.get(name)
        if stream is None or not (number.isascii() and number.isdigit() and len(number) < 10):
            return None
        moved = {REPEATED: -self.table.events, SKIPPED: self.table.events}.get(fault or "", 0)
        return stream, max(0, int(number) + 1 + moved)
