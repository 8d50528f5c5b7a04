"""Timers of the hub: precise waits, callbacks, a short yield, and work that can wait.

gevent's timers are 0.6 to 1.1 ms late; on Linux a timerfd in the hub's poll set is late by about 0.1 ms. Elsewhere: sleep
until 2 ms before the time, then yield until it.
"""

from __future__ import annotations

import ctypes
import os
import sys
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Any

import gevent
from gevent import get_hub
from gevent.hub import Waiter

from tailgauge.clock import monotonic_ns

_CLOCK_MONOTONIC = 1
_ABSOLUTE = 1
_NONBLOCK = 0o4000
_EARLY_NS = 2_000_000
_SOON_S = 1e-6  # a timer: the hub looks at its sockets before it is due
DELAY_S = 0.1
SLICE_NS = 500_000  # of work, before the hub looks at its sockets
TIMER = sys.platform == "linux"  # timerfd, which a poll set can wait for


class _Timespec(ctypes.Structure):
    _fields_ = (("seconds", ctypes.c_long), ("nanoseconds", ctypes.c_long))


class _Itimerspec(ctypes.Structure):
    _fields_ = (("interval", _Timespec), ("value", _Timespec))


class WaitTimer:
    """Waits for an absolute time, one waiter at a time; `wake` ends the wait early."""

    def __init__(self) -> None:
        self._waiter = Waiter()  # an event would need another turn of the hub
        self._is_set = False  # the timer, since it was due
        self._due = _Itimerspec()
        self._libc: Any = None
        if TIMER:
            self._libc = ctypes.CDLL(None, use_errno=True)
            self._fd = self._libc.timerfd_create(_CLOCK_MONOTONIC, _NONBLOCK | os.O_CLOEXEC)
            if self._fd < 0:
                raise OSError(ctypes.get_errno(), "timerfd_create")
            self._watcher = get_hub().loop.io(self._fd, 1)
            self._watcher.start(self._on_due)

    def wait_until(self, at_ns: int) -> None:
        """Return at `at_ns` of the monotonic clock, or when `wake` is called; other greenlets run meanwhile.

        If the time has passed, they run once.
        """
        if at_ns <= monotonic_ns():
            gevent.sleep(0)
            return
        self._waiter.clear()
        # On Linux the hub watches a timerfd, which wakes this waiter.
        if self._libc is not None:
            value = self._due.value
            value.seconds, value.nanoseconds = divmod(at_ns, 1_000_000_000)
            self._libc.timerfd_settime(self._fd, _ABSOLUTE, ctypes.byref(self._due), None)
            self._is_set = True
            self._waiter.get()
            return
        # gevent's timers are late: wake up early, then let the hub run until it is time.
        early_s = max(0.0, (at_ns - monotonic_ns() - _EARLY_NS) / 1e9)
        early = HubTimer(early_s, partial(self._waiter.switch, False))  # `wake` passes True
        was_woken = self._waiter.get()
        early.cancel()
        while not was_woken and monotonic_ns() < at_ns:
            gevent.sleep(0)

    def repeat(self, every_ns: int) -> None:
        """Wake the hub every `every_ns` from now on."""
        interval = _Timespec(*divmod(every_ns, 1_000_000_000))
        timing = _Itimerspec(interval, interval)
        self._libc.timerfd_settime(self._fd, 0, ctypes.byref(timing), None)

    def wake(self) -> None:
        """End the wait in progress."""
        if self._waiter.greenlet is not None:
            get_hub().loop.run_callback(self._waiter.switch, True)

    def close(self) -> None:
        """Release the timer."""
        if self._libc is not None:
            self._is_set = True  # not read any more
            self._watcher.stop()
            self._watcher.close()
            os.close(self._fd)

    def _on_due(self) -> None:
        self._is_set = False
        self._waiter.switch(False)
        if not self._is_set:  # else it is readable no more
            with suppress(BlockingIOError):  # it was set anew since the poll
                os.read(self._fd, 8)


def hub_ticks(every_ns: int) -> Any:
    """Return a timer that wakes the hub every `every_ns` until it is closed; where the system has no such timer, as exactly as the hub can."""
    if TIMER:
        timer: Any = WaitTimer()
        timer.repeat(every_ns)
    else:
        timer = get_hub().loop.timer(every_ns / 1e9, every_ns / 1e9, ref=False)
        timer.start(lambda: None)  # the wake-up is all
    return timer


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
    """Real time for a driver: see `driver.Timing`."""

    def now_ns(self) -> int:
        """Return the time of the monotonic clock."""
        return monotonic_ns()

    def call_at(self, at_ns: int, call: Callable[[], None]) -> HubTimer:
        """Return a timer of the hub, whose clock is coarse."""
        return HubTimer(max(0, at_ns - monotonic_ns()) / 1e9, call)


def yield_to_hub() -> None:
    """Let the hub read its sockets first; returns at most about 1 ms later than it could.

    `gevent.sleep(0)` is not enough: the hub runs up to 50 such calls before it reads a socket.
    """
    gevent.sleep(_SOON_S)


class Later:
    """Work that can wait a moment, such as rows: jobs in their order, `DELAY_S` after the first of them was added.

    Done together because one by one it costs about twice as much: a processor that wakes up for one event has little of the
    code at hand. In slices, so that sockets are read meanwhile.
    """

    def __init__(self) -> None:
        self._jobs: deque[Callable[[], object]] = deque()

    def add(self, job: Callable[[], object]) -> None:
        """Run it soon."""
        self._jobs.append(job)
        if len(self._jobs) == 1:
            gevent.spawn_later(DELAY_S, self._run)

    def finish(self) -> None:
        """Run all now."""
        while self._jobs:
            self._jobs.popleft()()

    def _run(self) -> None:
        begin_ns = monotonic_ns()
        try:
            while self._jobs:
                self._jobs.popleft()()
                if monotonic_ns() - begin_ns > SLICE_NS:
                    yield_to_hub()
                    begin_ns = monotonic_ns()
        finally:
            if self._jobs:  # one of them failed
                gevent.spawn_later(DELAY_S, self._run)
