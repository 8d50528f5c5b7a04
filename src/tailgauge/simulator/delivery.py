"""One stream's content chunks, each written at its due time.

Rule: the due times are absolute, so lateness never adds up: a late chunk leaves at once and the next one is due when it
always was. Callbacks of the loop's own timers, and of the engine's, write straight to the outlet: no task, no future
and no coroutine per chunk.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from time import monotonic_ns
from typing import Protocol

_FULL_BYTES = 256 * 1024  # a client that does not read: wait instead of filling our memory
_FULL_WAIT_S = 0.002
_EARLY_NS = 1000  # the loop's timers are floats of seconds and may fire that early
_BURST = 64  # chunks written in one go at most, then other streams get their turn


class Pieces(Protocol):
    """The bytes of a stream's chunks, by their index."""

    def frame(self, index: int, now_ns: int, /) -> bytes:
        """What is written for chunk `index` at `now_ns`."""


class Outlet(Protocol):
    """Where bytes leave: a transport, or a proxy in front of it."""

    def write(self, data: bytes, /) -> None:
        """Take bytes to send."""

    def get_write_buffer_size(self) -> int:
        """Bytes taken and not yet sent."""

    def is_closing(self) -> bool:
        """Whether the client is gone."""


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
    """Writes chunks to an outlet; `sent_at_ns` takes the clock just before each write.

    `due_ns` may grow while `growing`: call `wake` when it has, and `complete` when it will not any more. `on_sent` hears
    of each chunk, by its index.
    """

    def __init__(
        self,
        outlet: Outlet,
        frames: Pieces,
        due_ns: list[int],
        sent_at_ns: list[int],
        *,
        growing: bool = False,
        on_sent: Callable[[int, int], None] | None = None,
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._outlet = outlet
        self._frames = frames
        self._due_ns = due_ns
        self._sent_at_ns = sent_at_ns
        self._growing = growing
        self._on_sent = on_sent
        self._done: asyncio.Future[None] = self._loop.create_future()
        self._timer: asyncio.TimerHandle | None = None
        self._running = False

    async def run(self) -> None:
        """Write every chunk; what is due at once now. Cancelled, it writes no more."""
        self._running = True
        self._write_due()
        try:
            await self._done
        finally:
            self._running = False
            if self._timer is not None:
                self._timer.cancel()

    def wake(self) -> None:
        """There are more due times."""
        if self._running and self._timer is None:
            self._write_due()

    def complete(self) -> None:
        """There will be no more due times."""
        self._growing = False
        self.wake()

    def _write_due(self) -> None:
        self._timer = None
        outlet, due_ns, sent_at_ns = self._outlet, self._due_ns, self._sent_at_ns
        for _ in range(_BURST):
            index = len(sent_at_ns)
            if index == len(due_ns):
                if not self._growing and not self._done.done():
                    self._done.set_result(None)
                return
            if outlet.is_closing():
                return  # the client left; the server cancels `run` when the loop gets there
            now_ns = monotonic_ns()
            if due_ns[index] > now_ns + _EARLY_NS and index:
                break
            if outlet.get_write_buffer_size() > _FULL_BYTES:
                self._timer = self._loop.call_later(_FULL_WAIT_S, self._write_due)
                return
            outlet.write(self._frames.frame(index, now_ns))
            sent_at_ns.append(now_ns)
            if self._on_sent is not None:
                self._on_sent(index, now_ns)
        if len(sent_at_ns) < len(due_ns):
            self._timer = self._loop.call_at(due_ns[len(sent_at_ns)] / 1e9, self._write_due)
        else:
            self._write_due()
