"""What became of the calls of a virtual run, as arrays.

Rule: a call's index is its job's key. Only endings are looked at; the call then knows all its times and is forgotten.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from tailgauge.rows.schema import CANCELLED, CENSORED, OK, OVERLOADED
from tailgauge.simulator.engine import emission as events
from tailgauge.simulator.engine.emission import Emission
from tailgauge.simulator.engine.job import NO_INTS, Ints

CLASSES = (CENSORED, OK, OVERLOADED, CANCELLED)
_CODES = {events.FINISHED: 1, events.REFUSED: 2, events.CANCELLED: 3}
NEVER = -1


class Fates:
    """One entry a call; times in ns, NEVER where it did not happen."""

    def __init__(self, calls: int, *, keep_chunks: bool) -> None:
        self.keep_chunks = keep_chunks
        self.codes = [0] * calls  # into CLASSES
        self.sent_ns, self.first_ns, self.last_ns, self.ended_ns = ([NEVER] * calls for _ in range(4))
        self.tokens, self.chunks, self.cached = ([0] * calls for _ in range(3))
        self.times: list[Ints] = [NO_INTS] * calls if keep_chunks else []
        self.sizes: list[Ints] = [NO_INTS] * calls if keep_chunks else []

    def sent(self, index: int, now_ns: int) -> None:
        """A call was sent."""
        self.sent_ns[index] = now_ns

    def fold(self, emissions: Iterable[Emission]) -> list[int]:
        """Take in what happened; returns the times at which calls ended."""
        ends = []
        for kind, call, at_ns, _ in emissions:
            code = _CODES.get(kind)
            if code is None:
                continue
            index = int(call.job.key)
            self.codes[index], self.ended_ns[index] = code, at_ns
            self.cached[index] = call.cached_tokens
            ends.append(at_ns)
            if not call.times:
                continue
            times = call.chunk_times_ns
            self.first_ns[index], self.last_ns[index] = int(times[0]), int(times[-1])
            self.tokens[index], self.chunks[index] = call.tokens, len(times)
            if self.keep_chunks:
                self.times[index], self.sizes[index] = times, call.chunk_tokens
        return ends

    def cut(self, calls: int) -> None:
        """Forget the calls from number `calls` on: they were never sent."""
        for values in (self.codes, self.sent_ns, self.first_ns, self.last_ns, self.ended_ns, self.tokens):
            del values[calls:]
        for more in (self.chunks, self.cached, self.times, self.sizes):
            del more[calls:]

    def array(self, name: str) -> Ints:
        """A column as an array."""
        return np.array(getattr(self, name), np.int64)
