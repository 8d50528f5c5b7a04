"""When the bytes of a request arrived: the kernel's stamp of what its connection read last.

The event loop gets to a request later, much later where a thousand come at once. Without Linux the time of the read serves.
"""

from __future__ import annotations

import socket
import struct
import sys
from time import monotonic_ns
from typing import Any

from tailgauge.clock import WALL

_SO_TIMESTAMPNS = 35
_ANCILLARY = socket.CMSG_SPACE(16)
_TIMESPEC = struct.Struct("qq").unpack
_arrived_at_ns: dict[int, int] = {}  # by descriptor: the event loop's transports do not show their sockets


def listen(host: str, port: int, backlog: int) -> list[socket.socket]:
    """Sockets that listen on every address of a host, and whose connections note arrivals."""
    found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    listeners: list[socket.socket] = []
    for family, address in dict.fromkeys((one[0], one[4]) for one in found):
        plain = socket.create_server(address, family=family, backlog=backlog)  # type: ignore[arg-type]
        listeners.append(_Listener(plain.family, plain.type, plain.proto, plain.detach()))
        if sys.platform == "linux":
            listeners[-1].setsockopt(socket.SOL_SOCKET, _SO_TIMESTAMPNS, 1)  # its connections inherit it
    return listeners


def arrived_at_ns(transport: Any) -> int:
    """When the bytes that a transport read last had arrived; now, where that is unknown."""
    connection = None if transport is None else transport.get_extra_info("socket")
    return monotonic_ns() if connection is None else _arrived_at_ns.get(connection.fileno(), monotonic_ns())


class _Listener(socket.socket):
    def accept(self) -> tuple[socket.socket, Any]:
        plain, address = super().accept()
        return _Connection(plain.family, plain.type, plain.proto, plain.detach()), address


class _Connection(socket.socket):
    def recv(self, size: int, flags: int = 0) -> bytes:
        data, ancillary, _, _ = self.recvmsg(size, _ANCILLARY, flags)
        self._note(ancillary)
        return data

    def recv_into(self, buffer: Any, nbytes: int = 0, flags: int = 0) -> int:
        view = memoryview(buffer)
        size, ancillary, _, _ = self.recvmsg_into([view[:nbytes] if nbytes else view], _ANCILLARY, flags)
        self._note(ancillary)
        return size

    def _note(self, ancillary: list[tuple[int, int, bytes]]) -> None:
        if ancillary:
            seconds, nanoseconds = _TIMESPEC(ancillary[0][2])
            _arrived_at_ns[self.fileno()] = seconds * 1_000_000_000 + nanoseconds - WALL.offset_ns
        else:
            _arrived_at_ns[self.fileno()] = monotonic_ns()
