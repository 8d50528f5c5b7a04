"""Limits of one response, and of all open ones together.

A regular answer reaches none of them. They bound a worker's memory for any number of open answers; the attempt's deadline
bounds time.
"""

from __future__ import annotations

MAX_KEPT = 65_536  # undecoded bytes: decoding them at once is short
MAX_BODY = 256 << 20  # bytes of a stream, which is decoded as it arrives
MAX_WHOLE = 32 << 20  # bytes of a non-streamed answer
MAX_ERROR_BODY = 1 << 20  # bytes of any other body
ERROR_KEPT = 65_536  # of which these are kept
MAX_HELD = 256 << 20  # bytes of all open answers of a worker
FEW = 65_536  # an answer that holds no more is never dropped


class HeldBytes:
    """Bytes that the open answers of one worker hold."""

    __slots__ = ("bytes", "most")

    def __init__(self, most: int = MAX_HELD) -> None:
        self.bytes, self.most = 0, most

    def change(self, before: int, now: int) -> bool:
        """One of them holds `now` bytes instead of `before`; returns whether it must be dropped."""
        self.bytes += now - before
        return self.bytes > self.most and now > FEW
