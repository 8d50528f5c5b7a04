"""A proxy that holds a response's bytes back, between the endpoint and the connection.

`behaviours.proxy` decides what leaves when; this file keeps the bytes and the timer. The headers leave with the first bytes,
as those of a proxy that waits for its buffer do.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from time import monotonic_ns

from tailgauge.scenario.simulated import ProxyTable
from tailgauge.simulator.behaviours.proxy import Buffer, Flush


class ProxyWriter:
    """A `stream.Writer` in front of a transport."""

    def __init__(
        self, transport: asyncio.Transport, table: ProxyTable, before_first: Callable[[], None]
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._transport = transport
        self._buffer = Buffer(table)
        self._before_first: Callable[[], None] | None = before_first
        self._held: list[bytes] = []
        self._gone = 0  # writes that have left
        self._timer: asyncio.TimerHandle | None = None

    def write(self, data: bytes) -> None:
        """Take bytes; they leave with others."""
        self._held.append(data)
        self._let_go(self._buffer.write(monotonic_ns(), len(data)))

    def get_write_buffer_size(self) -> int:
        """Of the connection: the proxy itself has room for everything."""
        return self._transport.get_write_buffer_size()

    def is_closing(self) -> bool:
        """Whether the connection is gone."""
        return self._transport.is_closing()

    def end(self) -> None:
        """The response is over: nothing stays."""
        self._let_go(self._buffer.end(monotonic_ns()))

    def drop(self) -> None:
        """The response will not end: what is held is lost."""
        if self._timer is not None:
            self._timer.cancel()

    def _due(self) -> None:
        self._timer = None
        # A timer may fire a microsecond early; what it came for is due.
        self._let_go(self._buffer.due(max(monotonic_ns(), self._buffer.due_at_ns or 0)))

    def _let_go(self, flushes: Iterable[Flush]) -> None:
        for flush in flushes:
            count = flush.behind - self._gone
            data, self._gone = b"".join(self._held[:count]), flush.behind
            del self._held[:count]
            if self._transport.is_closing():
                continue
            if self._before_first is not None:
                self._before_first()
                self._before_first = None
            self._transport.write(data)
        due_ns = self._buffer.due_at_ns
        if self._timer is not None:
            self._timer.cancel()
        self._timer = None if due_ns is None else self._loop.call_at(due_ns / 1e9, self._due)
