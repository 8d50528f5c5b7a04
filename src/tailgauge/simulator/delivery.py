"""One stream's content chunks, each written at its due time.

Rule: the due times are absolute and fixed before the first write, so lateness never adds up: a late chunk leaves at
once and the next one is due when it always was. Callbacks of the loop's own timers write straight to the transport:
no task, no future and no coroutine per chunk.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from time import monotonic_ns

from tailgauge.simulator.frames import Frames

_FULL_BYTES = 256 * 1024  # a client that does not read: wait instead of filling our memory
_FULL_WAIT_S = 0.002
_BURST = 64  # chunks written in one go at most, then other streams get their turn


async def sleep_until(due_ns: int) -> None:
    """Return at `due_ns` of CLOCK_MONOTONIC, which is the loop's own clock."""
    loop = asyncio.get_running_loop()
    woken = loop.create_future()
    timer = loop.call_at(due_ns / 1e9, woken.set_result, None)
    try:
        await woken
    finally:
        timer.cancel()


class Delivery:
    """Writes frames to a transport; `sent_at_ns` takes the clock just before each write."""

    def __init__(
        self, transport: asyncio.Transport, frames: Frames, due_ns: Sequence[int], sent_at_ns: list[int]
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._transport = transport
        self._frames = frames
        self._due_ns = due_ns
        self._sent_at_ns = sent_at_ns
        self._done: asyncio.Future[None] = self._loop.create_future()
        self._timer: asyncio.TimerHandle | None = None

    async def run(self) -> None:
        """Write every chunk; the first one now. Cancelled, it writes no more."""
        self._write_due()
        try:
            await self._done
        finally:
            if self._timer is not None:
                self._timer.cancel()

    def _write_due(self) -> None:
        transport, due_ns, sent_at_ns = self._transport, self._due_ns, self._sent_at_ns
        for _ in range(_BURST):
            if transport.is_closing():
                return  # the client left; the server cancels `run` when the loop gets there
            if transport.get_write_buffer_size() > _FULL_BYTES:
                self._timer = self._loop.call_later(_FULL_WAIT_S, self._write_due)
                return
            index = len(sent_at_ns)
            now_ns = monotonic_ns()
            transport.write(self._frames.frame(index, now_ns))
            sent_at_ns.append(now_ns)
            if index + 1 == len(due_ns):
                self._done.set_result(None)
                return
            if due_ns[index + 1] > now_ns:
                break
        self._timer = self._loop.call_at(due_ns[len(sent_at_ns)] / 1e9, self._write_due)
