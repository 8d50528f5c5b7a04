"""Reads of a socket in the hub: one `recvmsg` per readiness in a callback of its libev watcher, no greenlet switch."""

from __future__ import annotations

import _socket
import os
from typing import Any, Protocol

from gevent import get_hub

from tailgauge.clock import ANCILLARY, kernel_stamp_ns, monotonic_ns
from tailgauge.transport.reader import POLLS, READER, SETTLED
from tailgauge.transport.tls import Read
from tailgauge.transport.waits import READABLE

READ_SIZE = 65_536


class Receiver(Protocol):
    """The connection whose socket is read."""

    def pass_on(self, reads: list[Read]) -> None:
        """Take reads."""

    def end_with_tls(self) -> None:
        """End where TLS has ended."""

    def end(self, error: str | None) -> None:
        """End: the peer has closed (None), or the socket has failed."""


class HubReads:
    """What reads one socket in the hub. A slow reader pauses between its reads, so that the kernel's buffer fills."""

    def __init__(self, raw: _socket.socket, receiver: Receiver) -> None:
        self.emptied = True  # the last read emptied the socket
        self.paused_ns = 0  # time in which `pause` kept it from reading
        self._raw = raw
        self._recvmsg = raw.recvmsg
        self._receiver = receiver
        self._watcher: Any = None
        self._read_size = READ_SIZE
        self._is_slow = False
        self._seen_from = 0  # the number of the first poll that counts for this socket
        self._paused_at_ns = 0
        self._resume: Any = None  # the timer that ends a pause

    def start(self) -> None:
        """Begin to read, or go on."""
        self._end_pause()
        if self._watcher is None:
            self._watcher = get_hub().loop.io(self._raw.fileno(), READABLE)
        self._seen_from = POLLS.number + SETTLED
        self._watcher.start(self._on_readable)

    def pause(self, seconds: float, read_size: int) -> None:
        """Do not read for a while, and then at most `read_size` bytes at once."""
        if self._watcher is None or self._paused_at_ns:
            return
        self._watcher.stop()
        self._is_slow = True
        self._read_size = min(READ_SIZE, read_size)
        self._paused_at_ns = monotonic_ns()
        self._resume = get_hub().loop.timer(seconds)
        self._resume.start(self.start)

    def _end_pause(self) -> None:
        if self._paused_at_ns:
            self.paused_ns += monotonic_ns() - self._paused_at_ns
            self._paused_at_ns = 0
            self._resume.stop()
            self._resume.close()

    def catch_up(self) -> None:
        """Read what has come by now."""
        if self._watcher is not None and self._watcher.active:
            self._on_readable()

    def close(self) -> None:
        """Read no more; called before the socket is closed, because libev aborts on a watcher without one."""
        self._end_pause()
        if self._watcher is not None:
            self._watcher.stop()
            self._watcher.close()
            self._watcher = None

    def _on_readable(self) -> None:
        read = self._read()
        if read is not None:
            self._receiver.pass_on([read])
            self._receiver.end_with_tls()

    def _read(self) -> Read | None:
        """Return the bytes of one read, their arrival, the read time, and when the socket was empty before; times in ns.

        The arrival is the kernel's timestamp of the last byte, without one the read time. The last is the
        latest such time that is known, 0 for none. None: nothing came, or the connection has ended, which
        is reported here.
        """
        try:
            data, ancillary, _, _ = self._recvmsg(self._read_size, ANCILLARY)
        except BlockingIOError:
            return None
        except OSError as error:
            self._receiver.end(os.strerror(error.errno or 0))
            return None
        now_ns = monotonic_ns()
        # The last poll of the hub found the socket empty, if it could see this socket.
        empty_ns = POLLS.at_ns if POLLS.number >= self._seen_from and not self._is_slow else 0
        self.emptied = len(data) < self._read_size
        if not self.emptied:
            # Bytes were left in the socket: only later polls can find it empty.
            self._seen_from = POLLS.number + SETTLED
        if not data:
            self._receiver.end(None)
            return None
        arrived_ns = kernel_stamp_ns(ancillary) if ancillary else now_ns
        if not self._is_slow:  # a pause is not receive lag
            READER.note_lag(now_ns - arrived_ns)
        return data, arrived_ns, now_ns, empty_ns
