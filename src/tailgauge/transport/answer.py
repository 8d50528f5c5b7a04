"""The body of one answer: from reads and their times to chunks as columns, and to pieces for the decoder in Python.

There are two ways. The compiled one (`core/answer.h`) is fed by the thread that reads, and decodes plain events itself. The
plain one passes every byte to the decoder: it serves slow readers and machines without a compiler, and is what the compiled
one is tested against.
"""

from __future__ import annotations

from typing import Any, NamedTuple, Protocol

from tailgauge.transport.http1 import MAX_HEAD, MAX_LINES, Body, Framing, WireError

try:
    from tailgauge.transport import _core
except ImportError:
    _core = None  # type: ignore[assignment]

COMPILED = _core is not None
# `FramingKind` of core/framing.h.
_CHUNKED = 0
_COUNTED = 1
_UNTIL_CLOSE = 2
_NO_MEMORY = 1  # `FramingError` of core/framing.h, whose others these are
_ERRORS = {
    2: f"a line of over {MAX_HEAD:,} bytes in chunked framing",
    3: "not a chunk size",
    4: "bytes behind a chunk",
    5: f"over {MAX_LINES} trailers",
}
_WITH_LINE = frozenset({3, 4})


class Columns(NamedTuple):
    """Chunks that were decoded, as the bytes of arrays; see `rows.schema.Chunks`."""

    kind: bytes
    arrived: bytes
    low: bytes
    read_at: bytes
    read_index: bytes
    chars: bytes


class Piece(NamedTuple):
    """Payload of one read for the decoder, with its times in ns.

    `chunks_before` and `kept_before`: what comes before it of the chunks, and of the bytes of the kept texts by kind.
    `rests`: the read ends with it.
    """

    chunks_before: int
    kept_before: tuple[int, ...]
    payload: bytes
    low: int
    arrived: int
    read_at: int
    read_index: int
    rests: bool


class Facts(NamedTuple):
    """What is known of all reads of a body; times in ns."""

    reads: int
    body_bytes: int
    lag_max_ns: int  # largest read_at - arrived since the facts were taken last
    last_arrived: int
    last_read_at: int
    last_low: int
    read_index: int  # of the next read
    is_done: bool
    has_excess: bool  # more came than the body
    has_user_stamps: bool  # a read was stamped by this process
    error: WireError | None  # in the framing
    held: int  # bytes, without what was taken


class News(NamedTuple):
    """What has come since it was taken last. `kept`: texts by kind, as they stand in JSON."""

    columns: Columns | None
    pieces: list[Piece]
    kept: tuple[bytes, ...] | None
    events: int  # plain ones, which are in no piece
    facts: Facts


class Answer(Protocol):
    """The body of one answer."""

    def begin(self, framing: Framing, sent_at: int, previous_arrival: int) -> None:
        """Expect the body next. `previous_arrival`: of the read before it; 0: there was none."""

    def read(self, data: bytes, arrived: int, read_at: int, empty_at: int) -> None:
        """Take one read of the body; `empty_at`: when nothing of it had come yet, 0 if unknown."""

    def allow(self, kinds: int) -> bool:
        """Decode plain events with content of these kinds, a bit each, from now on. False: take what is new first."""

    def take(self) -> News:
        """Return what is new."""


class CompiledAnswer:
    """An answer whose plain events are decoded by compiled code. `kept_kinds`: whose text is kept, a bit each."""

    def __init__(self, shapes: Any, kept_kinds: int, *, is_user_clock: bool) -> None:
        assert _core is not None
        self.core = _core.Answer(shapes, kept_kinds, is_user_clock)
        self.read = self.core.read
        self.allow = self.core.allow

    def begin(self, framing: Framing, sent_at: int, previous_arrival: int) -> None:
        """See `Answer`."""
        kind = _UNTIL_CLOSE if framing.length is None else _COUNTED
        if framing.is_chunked:
            kind = _CHUNKED
        self.core.begin(kind, framing.length or 0, sent_at, previous_arrival)

    def take(self) -> News:
        """See `Answer`."""
        columns, pieces, kept, events, facts = self.core.take()
        error, error_line, held = facts[10:]
        if error == _NO_MEMORY:
            raise MemoryError
        wire_error = None
        if error:
            received = (error_line.strip(),) if error in _WITH_LINE else ()
            wire_error = WireError(_ERRORS[error], *received)
        return News(
            None if columns is None else Columns(*columns),
            [Piece(*piece) for piece in pieces],
            kept,
            events,
            Facts._make((*facts[:10], wire_error, held)),
        )


class PlainAnswer:
    """An answer whose payload all goes to the decoder."""

    def __init__(self, *, is_user_clock: bool) -> None:
        self.emptied = True  # the last read has emptied the socket
        self._is_user_clock = is_user_clock
        self._body = Body()
        self._pieces: list[Piece] = []
        self._sent_at = 0
        self._previous_arrival = 0  # of the last read that emptied the socket
        self._reads = 0
        self._body_bytes = 0
        self._lag_max = 0
        self._last_arrived = 0
        self._last_read_at = 0
        self._last_low = 0
        self._has_user_stamps = False
        self._error: WireError | None = None

    def begin(self, framing: Framing, sent_at: int, previous_arrival: int) -> None:
        """See `Answer`."""
        self._body = framing.body()
        self._sent_at = sent_at
        self._previous_arrival = previous_arrival

    def read(self, data: bytes, arrived: int, read_at: int, empty_at: int) -> None:
        """Take one read of the body: keep its payload for the decoder, and count it. Times in ns.

        `read_at`: when this process read it; `empty_at`: when nothing of it had come yet, 0 if unknown.
        `emptied` is set before, where the read has left bytes in the socket.
        """
        # Nothing of this read came before the read before it, nor before a poll that found the socket empty.
        earliest = self._previous_arrival or self._sent_at or arrived
        low = min(max(earliest, empty_at), arrived)
        payload = self._payload(data)
        if payload:
            # Then an event at the end of the read arrived exactly at `arrived`.
            rests = self._body.at_rest and self.emptied and not self._is_user_clock
            piece = Piece(
                chunks_before=0,
                kept_before=(),
                payload=payload,
                low=low,
                arrived=arrived,
                read_at=read_at,
                read_index=self._reads,
                rests=rests,
            )
            self._pieces.append(piece)
        self._body_bytes += len(data)
        self._lag_max = max(self._lag_max, read_at - arrived)
        self._has_user_stamps |= read_at == arrived
        self._last_low = low
        self._last_arrived = arrived
        self._last_read_at = read_at
        self._reads += 1
        if self.emptied:
            self._previous_arrival = arrived

    def _payload(self, data: bytes) -> bytes:
        if self._error is not None:
            return b""
        try:
            return self._body.feed(data)
        except WireError as error:
            self._error = error
            return b""

    def allow(self, kinds: int) -> bool:  # noqa: ARG002 - nothing is decoded here
        """See `Answer`."""
        return not self._pieces

    def take(self) -> News:
        """See `Answer`."""
        facts = Facts(
            reads=self._reads,
            body_bytes=self._body_bytes,
            lag_max_ns=self._lag_max,
            last_arrived=self._last_arrived,
            last_read_at=self._last_read_at,
            last_low=self._last_low,
            read_index=self._reads,
            is_done=self._body.done,
            has_excess=self._body.has_excess,
            has_user_stamps=self._has_user_stamps,
            error=self._error,
            held=self._body.held,
        )
        pieces = self._pieces
        self._pieces = []
        self._lag_max = 0
        return News(None, pieces, None, 0, facts)
