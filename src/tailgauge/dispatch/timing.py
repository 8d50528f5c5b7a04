"""The clock that drives requests: what time it is, and a call at a later one.

Rule: a driver knows this interface only, so that requests are driven in real time and in virtual time by the same code.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

from gevent import get_hub

from tailgauge.clock import monotonic_ns


class Timer(Protocol):
    """A call that is still to come."""

    def cancel(self) -> None:
        """It does not come. Only once."""


class Timing(Protocol):
    """Time, as a driver sees it."""

    def now_ns(self) -> int:
        """The clock."""

    def call_at(self, at_ns: int, call: Callable[[], None]) -> Timer:
        """Call at a time; it may come a little early."""


class _HubTimer:
    __slots__ = ("_timer",)

    def __init__(self, seconds: float, call: Callable[[], None]) -> None:
        self._timer: Any = get_hub().loop.timer(seconds)
        self._timer.start(call)

    def cancel(self) -> None:
        """Stop it and give its memory back."""
        self._timer.stop()
        self._timer.close()


class HubTime:
    """Real time: the monotonic clock, and timers of the hub in whose callbacks everything happens."""

    def now_ns(self) -> int:
        """The monotonic clock."""
        return monotonic_ns()

    def call_at(self, at_ns: int, call: Callable[[], None]) -> Timer:
        """A timer of the hub; its clock is coarse."""
        return _HubTimer(max(0, at_ns - monotonic_ns()) / 1e9, call)


HUB_TIME = HubTime()
