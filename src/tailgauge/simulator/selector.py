"""An event loop whose timers are late by tens of microseconds, not by up to a millisecond.

Rule: this file knows how the loop sleeps and nothing of what it runs.
epoll_wait counts in milliseconds and Python rounds up. select(2) counts in microseconds and may watch the epoll
descriptor itself: it becomes readable when any descriptor in it is ready.
"""

from __future__ import annotations

import asyncio
import select
import selectors


class FineSelector(selectors.DefaultSelector):
    """The platform's selector, woken in time."""

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        """Wait at most `timeout` seconds for a descriptor to be ready."""
        if timeout is not None and timeout > 0:
            select.select((self.fileno(),), (), (), timeout)
            timeout = 0
        return super().select(timeout)


def new_event_loop() -> asyncio.AbstractEventLoop:
    """A loop on the fine selector."""
    return asyncio.SelectorEventLoop(FineSelector())
