"""The clock that drives requests: what time it is, and a call at a later one.

Rule: a driver knows this interface only, so that requests are driven in real time and in virtual time by the same code.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Protocol


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


@cache
def hub_time() -> Timing:
    """Real time; its greenlets are loaded where it is asked for, virtual time does without them."""
    from tailgauge.worker.clock.hub_time import HubTime

    return HubTime()
