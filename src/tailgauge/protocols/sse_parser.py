"""Server-sent events out of payload bytes that may be split anywhere (WHATWG HTML, section 9.2).

Bytes in, (event name, data) out; the protocol decodes the data.
"""

from __future__ import annotations

from collections import deque

MAX_EVENT = 4 << 20  # bytes: an image may come in one
MAX_LINES = 10_000  # of an event
# Values of the JSON in one event or answer: each takes up to 120 bytes of memory, forty times its size on the wire.
MAX_VALUES = 500_000
_SMALL = 65_536  # bytes that cannot have too many values
_BYTE_ORDER_MARK = b"\xef\xbb\xbf"  # may open a stream


def check_values(data: bytes) -> None:
    """Raise EventSizeError for JSON with too many values."""
    if len(data) > _SMALL and sum(map(data.count, (b",", b"[", b"{"))) > MAX_VALUES:
        raise EventSizeError


class EventSizeError(Exception):
    """An event without an end, or beyond its bounds: the stream is not followed further."""


class Splitter:
    """Cuts a stream into events; `pending` has the bytes of an event that has no end yet."""

    __slots__ = (
        "_after_cr",
        "_begun",
        "ended_with_event",
        "has_late_byte_order_mark",
        "pending",
        "takes_bare_names",
    )

    def __init__(self, *, takes_bare_names: bool = False) -> None:
        # The standard drops events without data. Clients outside browsers take those that have a name.
        self.takes_bare_names = takes_bare_names
        self.pending: bytes | bytearray = b""
        # The last payload ended with an event, and not with a comment or a part of the next event.
        self.ended_with_event = False
        self._after_cr = False  # a line feed that comes next belongs to the line end before it
        self._begun = False
        # A later line began with a byte order mark: it is no field, so something is missing.
        self.has_late_byte_order_mark = False

    def feed(self, payload: bytes) -> list[tuple[bytes, bytes]]:
        """Return the events completed by `payload`, in order, as name and data.

        Comments and events without data are left out; with `takes_bare_names` an event without data counts if it has a name.
        Raises EventSizeError.
        """
        if payload and (self._after_cr or b"\r" in payload):
            payload = self._with_line_feeds(payload)
        text = self._with_pending(payload) if self.pending else payload
        if text is None:
            # No event ends in the payload: all of it is pending now, and `ended_with_event` is false.
            return []
        *blocks, self.pending = text.split(b"\n\n")
        if len(self.pending) > MAX_EVENT:
            self.pending = b""
            raise EventSizeError
        if not self._begun and blocks:
            self._begun = True
            # A byte order mark may stand before the first event.
            blocks[0] = blocks[0].removeprefix(_BYTE_ORDER_MARK)
        if len(text) > _SMALL:
            for block in blocks:
                # JSON of very many values would take much memory.
                check_values(block)
        events = list(map(self._event, blocks))
        has_last_event = bool(events) and events[-1] is not None
        # Only then did nothing come after the last event.
        self.ended_with_event = has_last_event and not self.pending.strip(b"\n")
        return [event for event in events if event is not None]

    def _with_pending(self, payload: bytes) -> bytes | None:
        """Return the pending bytes with the payload if an event ends in it; else None, and the payload is pending too."""
        pending = self.pending
        # Each byte is searched once. The last one may be the first half of an end.
        search_from = len(pending) - 1
        if isinstance(pending, bytes):
            pending = bytearray(pending)
            self.pending = pending
        pending += payload
        if pending.find(b"\n\n", search_from) >= 0:
            return bytes(pending)
        self.ended_with_event = False
        if len(pending) > MAX_EVENT:
            self.pending = b""
            raise EventSizeError
        return None

    @property
    def resting(self) -> bool:
        """Return whether the next byte begins an event, independent of the bytes before."""
        return not (self.pending or self._after_cr)

    def _with_line_feeds(self, payload: bytes) -> bytes:
        """Return the payload with a line feed as every line end; a line end may be split between payloads."""
        if self._after_cr:
            payload = payload.removeprefix(b"\n")
        self._after_cr = payload.endswith(b"\r")
        return payload.replace(b"\r\n", b"\n").replace(b"\r", b"\n")

    def _event(self, block: bytes) -> tuple[bytes, bytes] | None:
        """Return name and data of an event; None for a comment, and for an event that is left out.

        Notes a byte order mark inside the stream: what came before it is missing.
        """
        # Most events are one line of data.
        if block.startswith(b"data: ") and b"\n" not in block:
            return b"", block[6:]
        if block.count(b"\n") > MAX_LINES:
            raise EventSizeError
        name = b""
        data = []
        error = None
        for line in block.split(b"\n"):
            field, _, value = line.partition(b":")
            value = value.removeprefix(b" ")
            if field == b"data":
                data.append(value)
            elif field == b"event":
                name = value
            elif field == b"error":  # no field of the standard: llama.cpp#16104
                error = value
            elif field.startswith(_BYTE_ORDER_MARK):
                self.has_late_byte_order_mark = True
        if data:
            return name, b"\n".join(data)
        if error is not None:
            return b"error", error
        return (name, b"") if name and self.takes_bare_names else None


class IdSplitter(Splitter):
    """Keeps the ids of the events too; `ids` has an element for each event that was returned, None without an id."""

    __slots__ = ("ids",)

    def __init__(self, *, takes_bare_names: bool = False) -> None:
        super().__init__(takes_bare_names=takes_bare_names)
        self.ids: deque[bytes | None] = deque()

    def _event(self, block: bytes) -> tuple[bytes, bytes] | None:
        event = super()._event(block)
        if event is None:
            return None
        event_id = None
        for line in block.split(b"\n"):
            if line.startswith(b"id:"):
                event_id = line[3:].removeprefix(b" ")
        self.ids.append(event_id)
        return event
