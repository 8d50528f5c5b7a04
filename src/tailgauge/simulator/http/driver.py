"""The event loop as the driver of the core: one timer for the engine, and waits for single calls.

The timer is at the engine's next due time: no task, future or timer per call. All emissions of a step are handed out
together, and the streams that they wake write at once. A dry run has its own driver, in dry_run/driver.py.
"""

from __future__ import annotations

import asyncio
import time
from time import monotonic_ns

from tailgauge.scenario.simulated import Simulated
from tailgauge.simulator.core.answer import Answer
from tailgauge.simulator.core.endpoint import Endpoint


class LoopDriver:
    """The clock of an endpoint in one event loop."""

    now_ns = staticmethod(monotonic_ns)  # the clock of the loop
    wall_ns = staticmethod(time.time_ns)

    def __init__(self, table: Simulated, seed: int) -> None:
        self._timer: asyncio.TimerHandle | None = None
        self._timer_ns: int | None = None
        self._advancing = False
        self._must_advance_again = False
        self.core = Endpoint(table, seed, self)

    def engine_changed(self) -> None:
        """Advance the engine once: when it is late, sockets get their turn between its steps."""
        # An answer that submits or cancels a call within a round makes another one necessary.
        if self._advancing:
            self._must_advance_again = True
            return
        self._advancing = True
        try:
            self.core.advance(monotonic_ns())
        finally:
            self._advancing = False
            self._set_timer()

    def _set_timer(self) -> None:
        """Set the timer to the engine's next due time."""
        loop = asyncio.get_running_loop()
        if self._must_advance_again:
            self._must_advance_again = False
            loop.call_soon(self.engine_changed)
        assert self.core.engine is not None
        due_ns = self.core.engine.next_due_ns()
        if due_ns == self._timer_ns:
            return
        if self._timer is not None:
            self._timer.cancel()
        self._timer_ns = due_ns
        self._timer = None
        if due_ns is not None:
            self._timer = loop.call_at(due_ns / 1e9, self._wake)

    def _wake(self) -> None:
        self._timer = None
        self._timer_ns = None
        self.engine_changed()


async def sleep_until(due_ns: int) -> None:
    """Return at `due_ns` of CLOCK_MONOTONIC, which is the loop's own clock."""
    await asyncio.sleep(due_ns / 1e9 - asyncio.get_running_loop().time())


async def wait_open(answer: Answer) -> None:
    """Return when the headers of an answer, or an answer in one piece, are due; report it as opened."""
    changed = asyncio.Event()
    answer.on_change = changed.set
    while answer.opens_ns is None:
        changed.clear()
        await changed.wait()
    if answer.opens_ns > monotonic_ns():
        await sleep_until(answer.opens_ns)
    answer.opened(monotonic_ns())
