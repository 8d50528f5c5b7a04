"""The server of queueing theory: calls progress side by side, without steps.

All n calls in service have the same rate 1 / (1 + slowdown*(n-1)), so one clock serves them all: it advances at
that rate, a call leaves when the clock reaches its entry plus its work. Events are rounded up to whole nanoseconds.

Source: the attained-service form of processor sharing (Kleinrock, Queueing Systems II, 4.4); slots 1, c and no limit
with slowdown 0 are M/G/1, M/G/c and M/G/inf.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from functools import partial
from heapq import heappop, heappush
from math import ceil
from typing import Any

import numpy as np

from tailgauge.simulator.engine import job as events
from tailgauge.simulator.engine.batch import Memory
from tailgauge.simulator.engine.config import EngineConfig, StepTime
from tailgauge.simulator.engine.job import Call, Emission, Hooks, Job


def fluid(work_ms: Callable[[Job], float], slowdown: float = 0.0, **config: Any) -> EngineConfig:
    """An engine of such servers. A call brings `work_ms`; its answer is one chunk at its end.

    Slowdown 0 makes each slot a server (one slot M/G/1, c slots M/G/c, no limit M/G/inf); 1 shares a single server
    (processor sharing); between, each neighbour costs a share.
    """
    return EngineConfig(
        StepTime(1.0), replica=partial(Fluid, work_ms=work_ms, slowdown=slowdown), **config
    )


class Fluid:
    """One replica, as `Batch` is one. `due_ns` is when the next call ends, None while there is none."""

    kv_used_share = 0.0  # memory is not modelled

    def __init__(
        self,
        index: int,
        config: EngineConfig,
        hooks: Hooks,
        left: Callable[[Call], None],
        *,
        work_ms: Callable[[Job], float],
        slowdown: float,
    ) -> None:
        self.index, self._hooks, self._left = index, hooks, left
        self._work_ms, self._slowdown = work_ms, slowdown
        self.due_ns: int | None = None
        self.waiting: deque[Call] = deque()
        self.running: dict[int, Call] = {}
        self.memory = Memory(config)
        self._slots = config.slots if config.slots is not None else 1 << 62
        self._clock_ns = 0.0  # work done for a call that was there all the time
        self._at_ns = 0
        self._ends: list[tuple[float, int]] = []  # heap: clock at which a call leaves, its number

    def enter(self, call: Call, now_ns: int, out: list[Emission]) -> None:
        """A call arrives; it starts at once where a slot is free."""
        self.waiting.append(call)
        if len(self.running) < self._slots:
            self._advance(now_ns)
            self._admit(now_ns, out)

    def complete_plan(self, out: list[Emission]) -> None:
        """The next call ends."""
        assert self.due_ns is not None
        now_ns = self.due_ns
        self._advance(now_ns)
        end, number = heappop(self._ends)
        self._clock_ns = max(self._clock_ns, end)
        call = self.running[number]
        tokens = call.job.output_tokens
        call.first_ns = now_ns
        call.times, call.sizes = [np.array([now_ns])], [np.array([tokens])]
        out.append(Emission(events.FIRST_TOKEN, call, now_ns, tokens))
        self._hooks.first_token(call.job, self.index, now_ns)
        self._end(call, now_ns, events.FINISHED, out)

    def stop(self, call: Call, now_ns: int, out: list[Emission], *, at_once: bool) -> None:  # noqa: ARG002
        """Cancel a call; there are no steps, so it always leaves now."""
        if call.running:
            self._advance(now_ns)
            self._end(call, now_ns, events.CANCELLED, out)
        else:
            self.waiting.remove(call)
            call.ended_ns = now_ns
            out.append(Emission(events.CANCELLED, call, now_ns))
            self._left(call)

    def next_token_ns(self) -> int | None:
        """When a token is due."""
        return self.due_ns

    def emit_tokens(self, until_ns: int, out: list[Emission]) -> None:
        """An answer is one chunk, emitted when it ends."""

    def _admit(self, now_ns: int, out: list[Emission]) -> None:
        while self.waiting and len(self.running) < self._slots:
            call = self.waiting.popleft()
            job = call.job
            call.slowdown = self._hooks.slowdown(job, self.index, now_ns)
            call.cached_tokens = self._hooks.cached_tokens(job, self.index, now_ns)
            call.admitted_ns = call.prefill_started_ns = now_ns
            call.running = True
            self.running[call.number] = call
            heappush(
                self._ends, (self._clock_ns + self._work_ms(job) * 1e6 * call.slowdown, call.number)
            )
            out.append(Emission(events.ADMITTED, call, now_ns))
            out.append(Emission(events.PREFILL_STARTED, call, now_ns))
        self._plan()

    def _advance(self, now_ns: int) -> None:
        """Advance the clock to now."""
        self._clock_ns += (now_ns - self._at_ns) / self._pace()
        self._at_ns = now_ns

    def _pace(self) -> float:
        """Time that a unit of work takes."""
        return 1.0 + self._slowdown * max(0, len(self.running) - 1)

    def _plan(self) -> None:
        while self._ends and self._ends[0][1] not in self.running:
            heappop(self._ends)  # cancelled
        if not self._ends:
            self.due_ns = None
            return
        self.due_ns = self._at_ns + max(0, ceil((self._ends[0][0] - self._clock_ns) * self._pace()))

    def _end(self, call: Call, now_ns: int, kind: str, out: list[Emission]) -> None:
        del self.running[call.number]
        call.running, call.ended_ns = False, now_ns
        out.append(Emission(kind, call, now_ns, call.tokens))
        self._left(call)
        self._admit(now_ns, out)
