"""Waits of a greenlet for a socket."""

from __future__ import annotations

import _socket
from typing import Any

from gevent import get_hub
from gevent.event import Event

# Events of libev.
READABLE = 1
WRITABLE = 2


def wait_for(raw: _socket.socket, events: int, timeout_s: float) -> bool:
    """Let other greenlets run until the socket is ready; False after `timeout_s`."""
    ready = Event()
    watcher = get_hub().loop.io(raw.fileno(), events)
    watcher.start(ready.set)
    try:
        return bool(ready.wait(timeout_s))
    finally:
        watcher.stop()
        watcher.close()


class SendBuffer:
    """The send buffer of a socket, which may be full."""

    def __init__(self, raw: _socket.socket) -> None:
        self._raw = raw
        self._watcher: Any = None
        self._ready = Event()  # the buffer takes more, or the socket is closed

    def wait(self, timeout_s: float) -> bool:
        """Wait until the buffer takes more, or `close`; False after `timeout_s`."""
        self._ready.clear()
        if self._watcher is None:
            self._watcher = get_hub().loop.io(self._raw.fileno(), WRITABLE)
        self._watcher.start(self._ready.set)
        try:
            return bool(self._ready.wait(timeout_s))
        finally:
            if self._watcher is not None:
                self._watcher.stop()

    def close(self) -> None:
        """End every wait; called before the socket is closed, because libev aborts on a watcher without one."""
        if self._watcher is not None:
            self._watcher.stop()
            self._watcher.close()
            self._watcher = None
        self._ready.set()
