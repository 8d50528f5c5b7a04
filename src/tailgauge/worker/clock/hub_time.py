"""Real time: the monotonic clock, and timers of the hub in whose callbacks everything happens."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from gevent import get_hub

from tailgauge.clock import monotonic_ns


class HubTimer:
    """A timer of the hub."""

    __slots__ = ("_timer",)

    def __init__(self, seconds: float, call: Callable[[], None]) -> None:
        self._timer: Any = get_hub().loop.timer(seconds)
        self._timer.start(call)

    def cancel(self) -> None:
        """Stop it and give its memory back."""
        self._timer.stop()
        self._timer.close()


class HubTime:
    """See `timing.Timing`."""

    def now_ns(self) -> int:
        """The monotonic clock."""
        return monotonic_ns()

    def call_at(self, at_ns: int, call: Callable[[], None]) -> HubTimer:
        """A timer of the hub; its clock is coarse."""
        return HubTimer(max(0, at_ns - monotonic_ns()) / 1e9, call)
