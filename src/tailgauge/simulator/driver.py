"""The engine in real time: one timer of the event loop drives it, and each call hears what became of it.

Rule: the engine is the only one that knows times; this file brings it the clock and its calls. There is one timer, at
the engine's next due time, and no task, future or timer per call: whatever a step emits is handed out in one go, and a
listener writes it there and then.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from time import monotonic_ns

from tailgauge.simulator.engine.config import EngineConfig
from tailgauge.simulator.engine.emission import ENDINGS, Emission
from tailgauge.simulator.engine.engine import Engine
from tailgauge.simulator.engine.hooks import Hooks
from tailgauge.simulator.engine.job import Job

Listener = Callable[[Emission], None]


class Driver:
    """Owns an engine; lives in one event loop."""

    def __init__(self, config: EngineConfig, seed: int, hooks: Hooks) -> None:
        self.engine = Engine(config, seed, hooks)
        self._listeners: dict[int | str, Listener] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._armed_ns: int | None = None
        self._handing_out = self._again = False

    def is_open(self, key: int | str) -> bool:
        """Whether a call of that key is still in the engine."""
        return key in self._listeners

    def submit(self, job: Job, listener: Listener) -> bool:
        """Hand a call over; False: refused, and nothing more is heard of it."""
        taken = self.engine.submit(job, monotonic_ns())
        if taken:
            self._listeners[job.key] = listener
        self._advance()
        return taken

    def cancel(self, job: Job) -> None:
        """The client has left; the listener hears of the call's end when the engine has stopped it."""
        if job.key in self._listeners:
            self.engine.cancel(job, monotonic_ns())
            self._advance()

    def _advance(self) -> None:
        """One round, never two: when the engine is behind, sockets get their turn between its steps."""
        if self._handing_out:
            self._again = (
                True  # a listener took or cancelled a call: what that brought is told in the next round
            )
            return
        self._handing_out = True
        try:
            for emission in self.engine.advance(monotonic_ns()):
                self._tell(emission)
        finally:
            self._handing_out = False
            self._arm()

    def _tell(self, emission: Emission) -> None:
        key = emission.call.job.key
        listener = self._listeners.get(key)
        if listener is None:  # refused at the door
            return
        if emission.kind in ENDINGS:
            del self._listeners[key]
        listener(emission)

    def _arm(self) -> None:
        loop = asyncio.get_running_loop()
        if self._again:
            self._again = False
            loop.call_soon(self._advance)
        due_ns = self.engine.next_due_ns()
        if due_ns == self._armed_ns:
            return
        if self._timer is not None:
            self._timer.cancel()
        self._armed_ns = due_ns
        self._timer = None if due_ns is None else loop.call_at(due_ns / 1e9, self._wake)

    def _wake(self) -> None:
        self._timer = self._armed_ns = None
        self._advance()
