"""Server-sent events out of payload bytes, incremental, split anywhere (WHATWG HTML, section 9.2).

Rule: bytes in, (event name, data) out; what the data means is the protocol's business.
"""

from __future__ import annotations

MAX_EVENT = 16 * 1024 * 1024


class EventSizeError(Exception):
    """An event without an end: the stream is not to be followed further."""


class Splitter:
    """Cuts a stream into events; `pending` is what has no end yet."""

    __slots__ = ("pending",)

    def __init__(self) -> None:
        self.pending = b""

    def feed(self, payload: bytes) -> list[tuple[bytes, bytes]]:
        """Events completed by `payload`, in order. Comments and events without data are left out."""
        text = self.pending + payload if self.pending else payload
        if b"\r" in text:
            text, held = (text[:-1], b"\r") if text.endswith(b"\r") else (text, b"")
            text = text.replace(b"\r\n", b"\n").replace(b"\r", b"\n") + held
        *blocks, self.pending = text.split(b"\n\n")
        if len(self.pending) > MAX_EVENT:
            raise EventSizeError
        return [event for block in blocks if (event := _event(block)) is not None]

    @property
    def idle(self) -> bool:
        """True between events."""
        return not self.pending.strip(b"\n")


def _event(block: bytes) -> tuple[bytes, bytes] | None:
    if block.startswith(b"data: ") and b"\n" not in block:
        return b"", block[6:]
    name, data = b"", []
    for line in block.split(b"\n"):
        field, _, value = line.partition(b":")
        value = value.removeprefix(b" ")
        if field == b"data":
            data.append(value)
        elif field == b"event":
            name = value
    return (name, b"\n".join(data)) if data else None
