"""What reads the sockets: a compiled thread, whatever Python does, or the hub, with the times of its polls.

`core/sockets.h` says how the thread reads, and what it decodes by itself. What it leaves to Python is passed on here, in the
hub. Without it (no compiler at the installation, not Linux, or `reader = "python"`) connections read in callbacks of the
hub, and a busy worker reads late; `Polls` bounds by how much.
"""

from __future__ import annotations

import os
import select
import sys
from array import array
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from gevent import get_hub
from gevent.monkey import get_original

from tailgauge.clock import WALL, monotonic_ns
from tailgauge.transport import tls

try:
    from tailgauge.transport import _core
except ImportError:
    _core = None  # type: ignore[assignment]

COMPILED = _core is not None
AT_ONCE_NS = 5_000_000
POLL_EVERY_NS = 2_000_000  # four times as often slows an engine that needs the same cores
JUST_NOW_NS = 100_000  # since the poll before: then its time serves, without another system call
SETTLED = 2  # polls until a socket that was just added, or not emptied, can have been seen empty
MOST_PREPARED = 32 << 20  # bytes
_ON_NEW = 1  # `NoticeKind` of core/sends.h
SOON_S = 1e-6  # a timer: the hub looks at its other watchers before it is due


class Watched(Protocol):
    """A connection that is read by the thread."""

    def look(self) -> None:
        """Take what has come."""


class Departure(NamedTuple):
    """A prepared request whose time came: it left, or came back because there was no connection for it."""

    connection: Any  # that was lent for it; None: none was
    opened: int | None  # number of a connection that was opened for it
    at_ns: int

    @property
    def is_back(self) -> bool:
        """Whether it did not leave."""
        return self.connection is None and self.opened is None


class Found(NamedTuple):
    """What the thread has of a connection; times in ns, 0: not yet, or it was not opened here."""

    reads: list[tls.Read]
    end: int | None  # errno, 0 where the peer has closed
    sent_at: int  # of the first byte of a prepared request
    is_sending: bool  # some of it is not sent yet
    opened_at: int
    connected_at: int


class Reader:
    """The thread of this process, from its first connection on."""

    def __init__(self) -> None:
        self._sockets: Any = None
        self._waiting: deque[Callable[[], object]] = deque()
        self._prepared: dict[int, tuple[Callable[[Departure], object], int]] = {}
        self._prepared_bytes = 0
        self._tokens = count(1)
        self._left = 0  # prepared requests that have left
        self._timer: Any = None  # what is left goes on then
        self._wait_max_ns = 0
        self._is_passing = False
        self._python_lags = array("q")

    def add(self, fd: int, connection: Watched, *, is_sealed: bool) -> int:
        """Read a socket from now on; returns its number. Only where the reader is COMPILED."""
        self._begin()
        return int(self._sockets.add(fd, connection, is_sealed))

    def _begin(self) -> None:
        if self._sockets is None:
            self._sockets = _core.Sockets()
            self._sockets.ready(WALL.offset_ns)
            self._watcher = get_hub().loop.io(self._sockets.fileno(), 1)
            self._watcher.start(self._on_news)

    @property
    def priority(self) -> str:
        """Whether the thread goes before others on its core: real-time or normal; empty without the thread."""
        if self._sockets is None:
            return ""
        for thread in Path("/proc/self/task").iterdir():
            with suppress(ProcessLookupError):  # others come and go
                if os.sched_getscheduler(int(thread.name)) == os.SCHED_FIFO:
                    return "real-time"
        return "normal"

    def remove(self, number: int) -> None:
        """Read it no more. What was read and not taken is dropped."""
        self._sockets.remove(number)

    def listen(self, number: int, answer: Any, *, is_urgent: bool) -> None:
        """Set whose body comes next; urgent: somebody waits for what comes, else it comes some milliseconds later, with others."""
        self._sockets.listen(number, answer, is_urgent)

    def feed(self, number: int) -> None:
        """Let the thread decode what comes for the answer that listens."""
        self._sockets.feed(number)

    def reads(self, number: int) -> Found:
        """Take what the thread has read and not decoded."""
        return Found(*self._sockets.reads(number))

    def waits(self, number: int) -> bool:
        """Return whether something was read that the connection has not taken."""
        return bool(self._sockets.waits(number))

    def pool(self, host: str | None, port: int) -> int:
        """Return a pool of connections to an IP address, for prepared requests; without an address none is opened for them."""
        self._begin()
        return int(self._sockets.add_pool(host, port))

    def lend(self, number: int, pool: int, usable_from_ns: int, usable_until_ns: int) -> None:
        """Let prepared requests take an idle connection."""
        self._sockets.lend(number, pool, usable_from_ns, usable_until_ns)

    def is_lent(self, number: int) -> bool:
        """Return whether no request has taken it."""
        return bool(self._sockets.is_lent(number))

    def take_back(self, number: int) -> bool:
        """Lend it no more. False: a request has taken it."""
        return bool(self._sockets.unlend(number))

    def prepare(
        self, pool: int, due_ns: int, data: bytes, on_due: Callable[[Departure], object]
    ) -> int:
        """Let a request leave at its due time; returns what `withdraw` takes."""
        token = next(self._tokens)
        self._prepared[token] = (on_due, len(data))
        self._prepared_bytes += len(data)
        self._sockets.prepare(pool, due_ns, token, data)
        return token

    def let_leave(self, extra: int) -> None:
        """Let so many more prepared requests leave than have left by the notices; others come back when they are due."""
        if self._sockets is not None:
            self._sockets.set_most_sent(self._left + extra)

    def withdraw(self, token: int) -> bool:
        """Do not send a prepared request. False: it has left, or come back; `on_due` says so."""
        has_not_left = bool(self._sockets.withdraw(token))
        if has_not_left:
            self._pop(token)
        return has_not_left

    def _pop(self, token: int) -> Callable[[Departure], object]:
        on_due, size = self._prepared.pop(token)
        self._prepared_bytes -= size
        return on_due

    @property
    def may_prepare(self) -> bool:
        """Whether more requests may be prepared."""
        return self._prepared_bytes < MOST_PREPARED

    def adopt(self, number: int, connection: Watched) -> int:
        """Take over a connection that was opened for a request; returns its descriptor."""
        return int(self._sockets.adopt(number, connection))

    def catch_up(self) -> None:
        """Pass on what has come by now; within a call that passes on, behind what comes before."""
        self._collect()
        if not self._is_passing:
            try:
                self._pass_on()
            except Exception:  # noqa: BLE001 - of one stream, not of who asks: the hub reports it, as it does otherwise
                get_hub().handle_error(self._pass_on, *sys.exc_info())

    def longest_wait_ns(self) -> int:
        """Return for how long a read waited for the event loop at most, since the last call."""
        longest = self._wait_max_ns
        self._wait_max_ns = 0
        return longest

    def note_lag(self, lag_ns: int) -> None:
        """Count a read in the hub."""
        self._python_lags.append(lag_ns)

    def lags(self) -> array[int]:
        """Return how long after its arrival each read was read, in ns, since the last call."""
        lags = self._python_lags
        self._python_lags = array("q")
        if self._sockets is not None:
            lags.frombytes(self._sockets.lags())
        return lags

    def _collect(self) -> None:
        """Take from the thread which connections have news, and which prepared requests have left."""
        if self._sockets is None:
            return
        connections, since_ns, notices = self._sockets.ready(WALL.offset_ns)
        if since_ns:
            self._wait_max_ns = max(self._wait_max_ns, monotonic_ns() - since_ns)
        for token, kind, number, connection, at_ns in notices:
            opened = number if kind == _ON_NEW else None
            departure = Departure(connection, opened, at_ns)
            self._waiting.append(partial(self._tell, self._pop(token), departure))
        self._waiting.extend(connection.look for connection in connections)

    def _tell(self, on_due: Callable[[Departure], object], departure: Departure) -> None:
        self._left += not departure.is_back
        on_due(departure)

    def _on_news(self) -> None:
        self._collect()
        self._pass_on()

    def _pass_on(self) -> None:
        """Pass on what waits, for a few milliseconds: then other callbacks of the hub have their turn."""
        waiting = self._waiting
        until_ns = monotonic_ns() + AT_ONCE_NS
        self._is_passing = True
        try:
            while waiting:
                waiting.popleft()()
                if monotonic_ns() > until_ns:
                    break
        finally:  # the hub reports what one of them raised
            self._is_passing = False
            if waiting:
                self._go_on_soon()

    def _go_on_soon(self) -> None:
        if self._timer is None:
            self._timer = get_hub().loop.timer(SOON_S)
        if not self._timer.active:
            self._timer.start(self._pass_on)


READER = Reader()


class Polls:
    """When the event loop last saw its sockets empty: the lower bound of what a read brings.

    Before each poll the loop takes the time. A socket that the poll before did not report was empty then, so what is read
    from it now came later. A check just before the poll, which finds nothing, says so of that moment. While a run
    lasts the loop polls every 2 ms at least, so that a prompt reader can prove that it was prompt.
    """

    __slots__ = ("_last_ns", "_prepare", "_ready", "_ticks", "at_ns", "number")

    def __init__(self) -> None:
        # The last time at which sockets that are readable now were empty; 0 if unknown.
        self.at_ns = 0
        self.number = 0
        self._last_ns = 0
        self._prepare: Any = None
        self._ticks: Any = None
        self._ready: Callable[[int], list[Any]]

    def start(self, ticks: Callable[[int], Any]) -> None:
        """Look before each poll from now on; `ticks` wakes the loop every so many ns until it is closed."""
        if self._prepare is not None:
            return
        loop = get_hub().loop
        backend = get_original("select", "poll")()  # that of gevent waits for the loop
        backend.register(loop.fileno(), select.POLLIN)
        self._ready = backend.poll
        self._ticks = ticks(POLL_EVERY_NS)
        self._last_ns = 0
        self._prepare = loop.prepare(ref=False)
        self._prepare.priority = loop.MINPRI  # after the greenlets' turn
        self._prepare.start(self.begins)

    def begins(self) -> None:
        """Take the time: the loop is about to poll."""
        now_ns = monotonic_ns()
        is_empty = now_ns - self._last_ns > JUST_NOW_NS and not self._ready(0)
        self.at_ns = now_ns if is_empty else self._last_ns
        self._last_ns = now_ns
        self.number += 1

    def stop(self) -> None:
        """Stop; bounds are again those of earlier reads."""
        if self._prepare is not None:
            self._prepare.stop()
            self._prepare.close()
            self._ticks.close()
            self._prepare = None
        self.at_ns = 0


POLLS = Polls()
