"""How much of an answer is taken: bounds of one response, and of all open ones together.

Rule: an honest answer meets none of them. Memory is bounded by the worker's share for all of its open answers, whatever
their number; time by the attempt's deadline.
"""

from __future__ import annotations

MAX_KEPT = 65_536  # bytes that wait to be decoded: decoding them at once holds up nobody for long
MAX_BODY = 256 << 20  # bytes of a stream, which is decoded as it comes
MAX_WHOLE = 32 << 20  # bytes of an answer that was asked for at once
MAX_ERROR_BODY = 1 << 20  # bytes of any other body: more is not read
ERROR_KEPT = 65_536  # of which these are kept
MAX_HELD = 256 << 20  # bytes of all open answers of a worker
FEW = 65_536  # an answer that holds no more is not the one to be given up


class HeldBytes:
    """Bytes that the open answers of one worker hold."""

    __slots__ = ("bytes", "most")

    def __init__(self, most: int = MAX_HELD) -> None:
        self.bytes, self.most = 0, most

    def change(self, before: int, now: int) -> bool:
        """One of them holds `now` bytes instead of `before`; whether that is too much of all."""
        self.bytes += now - before
        return self.bytes > self.most and now > FEW
