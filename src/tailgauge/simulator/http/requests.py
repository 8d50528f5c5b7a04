"""What every route shares: the options of the server, when a request arrived, the check of its key, its body, an error in its
provider's shape.
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

    api_key: str | None = None  # None: every caller is welcome
    certfile: Path | None = None  # with keyfile: serve HTTPS
    keyfile: Path | None = None
    body_timeout_s: float = 60.0  # from a request's headers to the end of its body
    # Of an idle connection, longer than any client's, so that the client decides. aiohttp counts it from the connection's
    # start, so it limits the arrival of the headers too.
    keepalive_s: float = 300.0


def admit(api_key: str | None, request: web.Request) -> None:
    """Refuse a caller without the key, if there is one; either provider's header will do."""
    if api_key is None:
        return
    bearer = request.headers.get("authorization", "").removeprefix("Bearer ")
    for given in (request.headers.get("x-api-key", ""), bearer):
        if hmac.compare_digest(given.encode("utf-8", "surrogateescape"), api_key.encode()):
            return
    raise Refused(401, "invalid API key")


async def read_body(request: web.Request, timeout_s: float) -> bytes:
    """The body, or `Refused`: too large, too slow, or not in the transfer coding that its headers promise."""
    try:
        if request.content.is_eof():  # as almost always, it came with its headers
            return await request.read()
        async with asyncio.timeout(timeout_s):
            return await request.read()
    except TimeoutError:
        # 400, not 408, which clients send again: the provider's own SDK files this error under 400.
        slow = "The request body did not finish arriving in time"
        raise Refused(400, slow, error_code="request_body_timeout") from None
    except web.HTTPRequestEntityTooLarge:
        raise Refused(413, f"Request exceeds the maximum size of {MAX_BODY_BYTES} bytes") from None
    except web.RequestPayloadError as error:
        if request.transport is None or request.transport.is_closing():
            raise ConnectionResetError("the client left inside its body") from None
        raise Refused(400, f"The request body cannot be read: {error}") from None


def error_response(
    wire: Wire, refused: Refused, number: int, more_headers: Mapping[str, str] | None = None
) -> web.Response:
    """The response to a call that cannot be answered."""
    headers = id_header(wire, number)
    content = wire.error_body(refused, headers[wire.REQUEST_ID_HEADER])
    headers |= more_headers or {}
    return web.Response(
        status=refused.status, body=content, content_type="application/json", headers=headers
    )


def id_header(wire: Wire, number: int) -> dict[str, str]:
    """The server's own id of a call."""
    return {wire.REQUEST_ID_HEADER: f"req_{number:024d}"}


# --- when a request arrived: the kernel's stamp of what its connection read last ---------------------------------
# The event loop gets to it later, much later where a thousand come at once. Without Linux the time of the read serves.


_arrived_at_ns: dict[
    int, int
] = {}  # by descriptor: the event loop's transports do not show their sockets


def listen(host: str, port: int, backlog: int) -> list[socket.socket]:
    """Sockets that listen on every address of a host, and whose connections note arrivals."""
    found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    listeners: list[socket.socket] = []
    for family, address in dict.fromkeys((one[0], one[4]) for one in found):
        plain = socket.create_server(address, family=family, backlog=backlog)
        listeners.append(_Listener(plain.family, plain.type, plain.proto, plain.detach()))
        if sys.platform == "linux":
            listeners[-1].setsockopt(
                socket.SOL_SOCKET, SO_TIMESTAMPNS, 1
            )  # its connections inherit it
    return listeners


def arrived_at_ns(transport: Any) -> int:
    """When the bytes that a transport read last had arrived; now, where that is unknown."""
    connection = None if transport is None else transport.get_extra_info("socket")
    return (
        monotonic_ns()
        if connection is None
        else _arrived_at_ns.get(connection.fileno(), monotonic_ns())
    )


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
        _arrived_at_ns[self.fileno()] = kernel_stamp_ns(ancillary) if ancillary else monotonic_ns()
