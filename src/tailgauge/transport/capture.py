"""The raw bytes of one answer, each read with its arrival time: for `--keep-answers`, and for a task that sent its own body.

An exchange with a capture sees each of its reads; without one nothing here is called. Memory is bounded for each answer
and for all open ones of a worker. What is beyond a bound is counted and left out.
"""

from __future__ import annotations

MAX_ANSWER = 1 << 20  # bytes of one answer
MAX_OPEN = 32 << 20  # bytes of all open answers of a worker
READ_BYTES = 200  # that a read takes beside its bytes
CLOSED = "closed"  # the target closed the connection
RESET = "reset"  # the connection failed


class OpenBytes:
    """Bytes that the captures of one worker's open calls hold."""

    __slots__ = ("held", "limit")

    def __init__(self, limit: int = MAX_OPEN) -> None:
        self.held = 0
        self.limit = limit


class Capture:
    """The answer of one exchange: `reads` with their arrival times, and how the peer ended the connection."""

    __slots__ = ("_held", "left_out_bytes", "method", "open_bytes", "peer_end", "reads", "size")

    def __init__(self, open_bytes: OpenBytes) -> None:
        self.open_bytes = open_bytes
        self._held = 0
        # Arrival in ns of the monotonic clock, and the bytes.
        self.reads: list[tuple[int, bytes]] = []
        self.size = 0
        self.left_out_bytes = 0
        self.peer_end: str | None = None  # CLOSED or RESET, where the peer ended the connection
        # Of the request; a request that leaves at its due time is always a POST.
        self.method = "POST"

    def add(self, data: bytes, arrived_at_ns: int) -> None:
        """Keep a read, or its beginning where a bound is reached; after that nothing more."""
        left_bytes = 0
        if not self.left_out_bytes:
            totals = self.open_bytes
            left_bytes = min(MAX_ANSWER - self.size, totals.limit - totals.held - READ_BYTES)
        piece = data[: max(0, left_bytes)]
        self.left_out_bytes += len(data) - len(piece)
        if not piece:
            return
        self.reads.append((arrived_at_ns, piece))
        self.size += len(piece)
        self._held += len(piece) + READ_BYTES
        self.open_bytes.held += len(piece) + READ_BYTES

    def peer_closed(self, error: str | None) -> None:
        """Note that the peer closed the connection, or that it failed with an error."""
        self.peer_end = CLOSED if error is None else RESET

    def release(self) -> None:
        """Count its bytes no longer: the call has ended."""
        self.open_bytes.held -= self._held
        self._held = 0
