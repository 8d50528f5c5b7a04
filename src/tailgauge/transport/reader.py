"""What reads the sockets: a compiled thread, whatever Python does, or the hub, with the times of its polls.

`_reader.c` says how. What the thread has read is passed on here, in the hub: to the list of a connection whose reads are
only stored, else to the connection itself. Without it (no compiler at the installation, not Linux, or `reader = "python"`)
connections read in callbacks of the hub, and a busy worker reads late; `Polls` bounds by how much.
"""

from __future__ import annotations

import select
import sys
from collections import deque
from collections.abc import Callable
from typing import Any, Protocol

from gevent import get_hub
from gevent.monkey import get_original

from tailgauge.clock import WALL, monotonic_ns

try:
    from tailgauge.transport import _reader
except ImportError:
    _reader = None  # type: ignore[assignment]

COMPILED = _reader is not None
AT_ONCE_NS = 5_000_000
POLL_EVERY_NS = 2_000_000  # four times as often slows an engine that needs the same cores
JUST_NOW_NS = 100_000  # since the poll before: then its time serves, without another system call
SETTLED = 2  # polls until a socket that was just added, or not emptied, can have been seen empty
# Reads, of 64 KiB at most: no more is taken from the thread, which pauses when it has no room.
MOST_WAITING = 256
SOON_S = 1e-6  # a timer: the hub looks at its other watchers before it is due
# What plain reads have in common: kinds of values, the bytes around each, and whether they carry running counts.
Plain = tuple[bytes, tuple[bytes, ...], bool]
NOT_PLAIN: Plain = (b"", (), False)


def take_texts(reads: list[Any], texts: bytearray, plain: Plain, *times: bytes) -> int:
    """Move the plain reads that a list begins with to the texts; see `_reader.c`. Without it they are read one by one."""
    return 0 if _reader is None else _reader.take_texts(reads, texts, *plain, *times)


class Recipient(Protocol):
    """A connection that is read."""

    def take(self, data: bytes | None, arrived_at_ns: int, read_at_ns: int, empty_at_ns: int) -> None:
        """One read; b"" is the end, with an errno as its arrival; None: the list of its reads is to be looked at."""


class Reader:
    """The thread of this process, from its first connection on, and what it has read for connections that want each read."""

    def __init__(self) -> None:
        self._thread: Any = None
        self._waiting: deque[tuple[Recipient, bytes | None, int, int, int]] = deque()
        self._to_keep: dict[int, tuple[Any, ...]] = {}
        self._timer: Any = None  # what is left goes on then
        self._wait_max_ns = 0
        self._is_passing = self._is_ahead = False  # `_pass_on` or `catch_up_one` goes on

    def add(self, fd: int, connection: Recipient) -> int:
        """Read a socket from now on; returns its number. Only where the reader is COMPILED."""
        if self._thread is None:
            self._thread = _reader.Reader()
            self._watcher = get_hub().loop.io(self._thread.fileno(), 1)
            self._watcher.start(self._on_reads)
        return int(self._thread.add(fd, connection))

    def remove(self, number: int) -> None:
        """Read it no more. What was read and not passed on is dropped."""
        self._to_keep.pop(number, None)
        self._thread.remove(number)

    def keep(self, number: int, *into: Any) -> None:
        """Append the reads of a connection to a list, without a call for each, or their bytes and times; None: call for each."""
        self._to_keep.pop(number, None)
        if into[0] is not None and (self._waiting or self._is_ahead):
            self._to_keep[number] = into  # those that wait come first
        else:
            self._thread.keep(number, *into)

    def keep_texts(self, number: int, texts: bytearray, plain: Plain) -> None:
        """Append what is to be known of plain reads, until another read comes."""
        self._thread.keep_texts(number, texts, *plain)

    def may_wait(self, number: int, yes: bool) -> None:
        """Whether its reads are passed on a few milliseconds later, with others, because nobody acts on them."""
        self._thread.may_wait(number, yes)

    def catch_up(self) -> None:
        """Pass on what was read by now, also what may wait; within a call that passes on, behind what comes before."""
        self.collect()
        if not self._is_passing:
            try:
                self._pass_on()
            except Exception:  # noqa: BLE001 - of one stream, not of who asks: the hub reports it, as it does otherwise
                get_hub().handle_error(self._pass_on, *sys.exc_info())

    def catch_up_one(self, number: int, connection: Recipient) -> None:
        """Pass on what was read of one connection by now, however much of others comes before it."""
        reads = [item for item in self._waiting if item[0] is connection]
        if reads:
            others = [item for item in self._waiting if item[0] is not connection]
            self._waiting.clear()
            self._waiting.extend(others)
        reads += self._thread.drain_one(number, WALL.offset_ns)
        before = self._is_ahead
        self._is_ahead = True
        try:
            for item in reads:
                connection.take(*item[1:])
        except Exception:  # noqa: BLE001 - as in `catch_up`
            get_hub().handle_error(self.catch_up_one, *sys.exc_info())
        self._is_ahead = before
        self._keep_now()

    def waits(self, number: int, connection: Recipient) -> bool:
        """Whether something was read that the connection has not been given."""
        return bool(self._thread.waits(number)) or any(item[0] is connection for item in self._waiting)

    def collect(self) -> None:
        """Put what was read by now into the lists, unless too much waits already; the rest waits for its turn in the hub."""
        if self._thread is None or len(self._waiting) > MOST_WAITING:
            return
        if more := self._thread.drain(WALL.offset_ns):
            self._waiting.extend(more)
            self._go_on_soon()

    def longest_wait_ns(self) -> int:
        """For how long a read waited for the event loop at most, since the last call."""
        longest = self._wait_max_ns
        self._wait_max_ns = 0
        return longest

    def _on_reads(self) -> None:
        if not self._waiting:  # else the thread keeps more of a connection for a while, and then the kernel
            self._waiting.extend(self._thread.drain(WALL.offset_ns))
        self._pass_on()

    def _pass_on(self) -> None:
        """For a few milliseconds: then others of the hub have their turn."""
        waiting = self._waiting
        now_ns = monotonic_ns()
        until_ns = now_ns + AT_ONCE_NS
        if waiting:  # the first is the oldest
            self._wait_max_ns = max(self._wait_max_ns, now_ns - waiting[0][3])
        self._is_passing = True
        try:
            while waiting:
                item = waiting.popleft()
                item[0].take(*item[1:])
                if monotonic_ns() > until_ns:
                    break
        finally:  # the hub reports what one of them raised
            self._is_passing = False
            if waiting:
                self._go_on_soon()
        self._keep_now()

    def _keep_now(self) -> None:
        if not (self._waiting or self._is_ahead):
            for number, kept in self._to_keep.items():
                self._thread.keep(number, *kept)
            self._to_keep.clear()

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
        self.at_ns = 0  # the last time at which sockets that are readable now were empty; 0 if unknown
        self.number = self._last_ns = 0
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
        """The loop is about to poll."""
        now = monotonic_ns()
        empty = now - self._last_ns > JUST_NOW_NS and not self._ready(0)
        self.at_ns = now if empty else self._last_ns
        self._last_ns = now
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
