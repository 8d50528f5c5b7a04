"""Code that all routes share: options, arrival times, the check of the key, bodies, errors in a provider's shape.

What a body says is parsed and checked in the folder protocols.
"""

from __future__ import annotations

import asyncio
import hmac
import socket
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from aiohttp import web

from tailgauge.clock import ANCILLARY, SO_TIMESTAMPNS, kernel_stamp_ns, monotonic_ns
from tailgauge.simulator.protocols.request import MAX_BODY_BYTES, Refused
from tailgauge.simulator.protocols.wire import Wire


@dataclass(frozen=True, slots=True)
class ServerOptions:
    """Options of one server."""

    api_key: str | None = None  # None: no key is needed
    certfile: Path | None = None  # with keyfile: serve HTTPS
    keyfile: Path | None = None
    body_timeout_s: float = 60.0  # from a request's headers to the end of its body
    # Life of an idle connection, longer than any client's, so that the client closes it. aiohttp counts it from the
    # connection's start, so it limits the arrival of the headers too.
    keepalive_s: float = 300.0


def admit(api_key: str | None, request: web.Request) -> None:
    """Refuse a caller without the key, in the header of either provider; None: no key is needed."""
    if api_key is None:
        return
    bearer = request.headers.get("authorization", "").removeprefix("Bearer ")
    for key in (request.headers.get("x-api-key", ""), bearer):
        if hmac.compare_digest(key.encode("utf-8", "surrogateescape"), api_key.encode()):
            return
    raise Refused(401, "invalid API key")


async def read_body(request: web.Request, timeout_s: float) -> bytes:
    """Return the body; raise `Refused` if it is too large, too slow, or not in the transfer coding of its headers."""
    try:
        # Almost every body has come with its headers.
        if request.content.is_eof():
            return await request.read()
        async with asyncio.timeout(timeout_s):
            return await request.read()
    except TimeoutError:
        # 400, not 408, which clients send again: the provider's own SDK files this error under 400.
        message = "The request body did not finish arriving in time"
        raise Refused(400, message, error_code="request_body_timeout") from None
    except web.HTTPRequestEntityTooLarge:
        raise Refused(413, f"Request exceeds the maximum size of {MAX_BODY_BYTES} bytes") from None
    except web.RequestPayloadError as error:
        if request.transport is None or request.transport.is_closing():
            raise ConnectionResetError("the client left inside its body") from None
        raise Refused(400, f"The request body cannot be read: {error}") from None


def error_response(
    wire: Wire, refused: Refused, number: int, more_headers: Mapping[str, str] | None = None
) -> web.Response:
    """Return the response to a call that cannot be answered."""
    headers = id_header(wire, number)
    content = wire.error_body(refused, headers[wire.REQUEST_ID_HEADER])
    headers |= more_headers or {}
    return web.Response(
        status=refused.status, body=content, content_type="application/json", headers=headers
    )


def id_header(wire: Wire, number: int) -> dict[str, str]:
    """Return the header with the server's own id of a call."""
    return {wire.REQUEST_ID_HEADER: f"req_{number:024d}"}


# --- arrival of a request: the kernel's stamp of its connection's last read --------------------------------------
# The event loop handles a request later, much later where a thousand come at once. Other systems than Linux use the time of
# the read.


# By descriptor, because the event loop's transports do not show their sockets.
_arrived_at_ns: dict[int, int] = {}


def listen(host: str, port: int, backlog: int) -> list[socket.socket]:
    """Return sockets that listen on every address of a host, and whose connections note arrivals."""
    infos = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    listeners: list[socket.socket] = []
    for family, address in dict.fromkeys((info[0], info[4]) for info in infos):
        server = socket.create_server(address, family=family, backlog=backlog)
        listener = _Listener(server.family, server.type, server.proto, server.detach())
        # The connections of a listener inherit its options.
        if sys.platform == "linux":
            listener.setsockopt(socket.SOL_SOCKET, SO_TIMESTAMPNS, 1)
        listeners.append(listener)
    return listeners


def arrived_at_ns(transport: Any) -> int:
    """Return when the bytes of a transport's last read arrived; now, where that is unknown."""
    now_ns = monotonic_ns()
    if transport is None:
        return now_ns
    connection = transport.get_extra_info("socket")
    if connection is None:
        return now_ns
    return _arrived_at_ns.get(connection.fileno(), now_ns)


class _Listener(socket.socket):
    def accept(self) -> tuple[socket.socket, Any]:
        plain, address = super().accept()
        return _Connection(plain.family, plain.type, plain.proto, plain.detach()), address


class _Connection(socket.socket):
    def recv(self, size: int, flags: int = 0) -> bytes:
        data, ancillary, _, _ = self.recvmsg(size, ANCILLARY, flags)
        self._note(ancillary)
        return data

    def recv_into(self, buffer: Any, nbytes: int = 0, flags: int = 0) -> int:
        view = memoryview(buffer)
        size, ancillary, _, _ = self.recvmsg_into(
            [view[:nbytes] if nbytes else view], ANCILLARY, flags
        )
        self._note(ancillary)
        return size

    def _note(self, ancillary: list[tuple[int, int, bytes]]) -> None:
        if ancillary:
            _arrived_at_ns[self.fileno()] = kernel_stamp_ns(ancillary)
        else:
            _arrived_at_ns[self.fileno()] = monotonic_ns()
