"""Faults: which one a call meets, and its effects on the answer. Refusals by limits are in limits.py.

A call meets one fault at most, drawn from the seed and its key. A fault is a row of `FAULTS`: its settings in, its effects
out. The core applies them, except for the way a connection ends, which its drivers do. `at_chunk` is the number of chunks
that leave unharmed; a shorter answer meets its fault after its last chunk, before the end mark. An answer that stops early
has that many chunks, and its end mark.

Sources: docs of the provider on errors within a stream (2026-08). Measured: both SDKs take a body that ends without its end
mark for a success.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace

from tailgauge.scenario.simulated import FaultTable
from tailgauge.simulator.behaviours.draws import draws, pick

END_MARK = "end_mark"
ERROR_EVENT = "error_event"
CUT = "cut"
RESET = "reset"
ENDINGS = (END_MARK, ERROR_EVENT, CUT, RESET)

# Why an answer ends, in neutral terms; each protocol has names of its own.
BY_ITSELF = "end_turn"
BY_LIMIT = "max_tokens"
REFUSAL = "refusal"
FILTER = "content_filter"
ABORT = "abort"
NO_REASON = "no_reason"  # it ends without naming any


@dataclass(frozen=True, slots=True)
class Fault:
    """What happens to one answer. By default: nothing."""

    kind: str | None = None
    status: int = 529  # of a refusal, and of an error event
    retry_after_s: int | None = None
    refuses: bool = False  # an error in place of an answer
    headers_at_once: bool = False
    headers_delay_ns: int = 0
    delay_ns: int = 0  # of each chunk from number `delay_from` on, and of an answer in one piece
    delay_from: int = 0
    breaks_after: int | None = None  # chunks that leave; then the stream ends with `ending`
    ending: str = END_MARK
    stop: str | None = None  # why the answer ends after `stops_after` chunks, with its end mark
    stops_after: int = 0
    shape: str = "provider"  # of an error within the stream
    category: str = "general_harms"  # of a refusal

    def chunk_delay_ns(self, index: int) -> int:
        """Return how much later a chunk leaves."""
        return self.delay_ns if index >= self.delay_from else 0

    def end_delay_ns(self, chunks: int) -> int:
        """Return how much later than its last chunk the end mark comes, for a stall behind all `chunks` chunks."""
        if self.delay_from < chunks:
            return 0
        return self.delay_ns - self.headers_delay_ns

    def breaks_at(self, chunks: int) -> bool:
        """Return whether the stream breaks off after so many chunks."""
        return self.breaks_after is not None and chunks >= self.breaks_after


NO_FAULT = Fault()


FAULTS: Mapping[str, Callable[[FaultTable], Fault]] = {
    # An error in place of a stream.
    "status": lambda table: Fault(refuses=True),  # noqa: ARG005 - a row's argument
    # HTTP 200, then an `error` event and no end mark.
    "error_event": lambda table: Fault(breaks_after=table.at_chunk, ending=ERROR_EVENT),
    # The body ends cleanly without the end mark.
    "cut": lambda table: Fault(breaks_after=table.at_chunk, ending=CUT),
    # The connection is reset.
    "reset": lambda table: Fault(breaks_after=table.at_chunk, ending=RESET),
    # Nothing for a while, then the rest, each chunk as much later.
    "stall": lambda table: Fault(delay_ns=_seconds_ns(table), delay_from=table.at_chunk),
    # The headers, and all after them, later.
    "slow_headers": lambda table: Fault(
        headers_delay_ns=_seconds_ns(table), delay_ns=_seconds_ns(table)
    ),
    # The headers at once, however long the first chunk takes.
    "early_headers": lambda table: Fault(headers_at_once=True),  # noqa: ARG005
    # The model refuses, a filter takes the rest, the engine gives up: complete streams, and no answers.
    "refused": lambda table: Fault(stop=REFUSAL, stops_after=table.at_chunk),
    "filtered": lambda table: Fault(stop=FILTER, stops_after=table.at_chunk),
    "aborted": lambda table: Fault(stop=ABORT, stops_after=table.at_chunk),
    # The end mark, and no reason before it.
    "no_finish_reason": lambda table: Fault(stop=NO_REASON, stops_after=table.at_chunk),
    # The limit is named as the reason, long before it is reached.
    "short": lambda table: Fault(stop=BY_LIMIT, stops_after=table.at_chunk),
}


def _seconds_ns(table: FaultTable) -> int:
    return round(table.seconds * 1e9)


class Faults:
    """The faults of an endpoint, drawn for each call by its key."""

    def __init__(self, tables: Iterable[FaultTable], seed: int) -> None:
        self._seed = seed
        self._faults = [(table.share, _fault(table)) for table in tables]

    def fault_of(self, call_key: str) -> Fault:
        """Return the fault that a call meets, by its key alone: whatever was drawn before."""
        if not self._faults:
            return NO_FAULT
        return pick(draws(self._seed, "fault", call_key), self._faults, NO_FAULT)


def _fault(table: FaultTable) -> Fault:
    """Return the fault of a table, with the settings that all kinds share."""
    fault = FAULTS[table.kind](table)
    return replace(
        fault,
        kind=table.kind,
        status=table.status,
        retry_after_s=table.retry_after_s,
        shape=table.shape,
        category=table.category,
    )
