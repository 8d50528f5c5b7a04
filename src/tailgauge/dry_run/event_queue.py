"""The clock of a dry run: what happens next, in the order of time, and of planning where the times are equal.

Time jumps to the next event. Two runs that plan the same events see the same.
"""

from __future__ import annotations

from collections.abc import Callable
from heapq import heappop, heappush
from typing import Protocol


class SelfMoving(Protocol):
    """What moves by itself beside the queue: a model server."""

    def next_due_ns(self) -> int | None:
        """When it moves next; None: not before it gets work."""

    def settle(self, now_ns: int) -> None:
        """Let everything happen that is due by now."""


class Timer:
    """A planned event."""

    __slots__ = ("call",)

    def __init__(self, call: Callable[[], object] | None) -> None:
        self.call = call

    def cancel(self) -> None:
        """Cancel the timer."""
        self.call = None


class EventQueue:
    """The time, and what is planned; a driver's `Timing`."""

    def __init__(self, now_ns: int) -> None:
        self._now_ns = now_ns
        self._planned = 0
        self._heap: list[tuple[int, int, Timer]] = []

    def now_ns(self) -> int:
        """The time, in ns."""
        return self._now_ns

    def call_at(self, at_ns: int, call: Callable[[], object]) -> Timer:
        """Call at a time; one that has passed is now, after everything that is planned for now."""
        timer = Timer(call)
        self._planned += 1
        heappush(self._heap, (max(at_ns, self._now_ns), self._planned, timer))
        return timer

    def pass_to(self, at_ns: int) -> None:
        """Let time pass in which nothing happens."""
        self._now_ns = at_ns

    def run(self, beside: SelfMoving) -> None:
        """Until nothing is planned and nothing moves beside it."""
        heap = self._heap
        while True:
            while heap and heap[0][2].call is None:
                heappop(heap)
            due_ns = beside.next_due_ns()
            if heap and (due_ns is None or heap[0][0] < due_ns):
                self._now_ns, _, timer = heappop(heap)
                call, timer.call = timer.call, None
                assert call is not None
                call()
            elif due_ns is not None:
                self._now_ns = due_ns
            else:
                return
            beside.settle(self._now_ns)
