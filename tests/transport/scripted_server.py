"""A server that follows a script, and calls timed by the stopwatch."""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import socket
import stat
import struct
import termios
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gevent
import httpx2
from gevent.monkey import get_original
from gevent.server import StreamServer
from transport.stamps import stamping_sockets

from tailgauge.transport.answer import News
from tailgauge.transport.exchange import Exchange
from tailgauge.transport.http_transport import HttpTransport, watched_by

SSE = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
SSE_UNTIL_CLOSE = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n\r\n"
OK = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok"
READER = "compiled"  # or "python": the fixture `reader` sets it
REST_S = 0.02  # longer than a connection rests after a response
block_process = get_original("time", "sleep")  # all greenlets do
plain_socket = get_original("socket", "socket")


HELD = stamping_sockets()


class Server:
    """Listens on a free port; `handler(socket, number of the connection)` plays its part."""

    def __init__(self, handler: Callable[[Any, int], None], **tls: Any) -> None:
        self.connections = 0
        self.requests: list[bytes] = []
        self.ends: list[str] = []  # how a connection ended, as seen here

        self._open: list[Any] = []

        def serve(sock: Any, _: Any) -> None:
            self.connections += 1
            self._open.append(sock)
            try:
                handler(sock, self.connections - 1)
            except OSError as error:
                self.ends.append(type(error).__name__)
            finally:
                sock.close()

        self._server = StreamServer(("127.0.0.1", 0), serve, **tls)
        self._server.start()
        self.port = self._server.server_port
        scheme = "https" if tls else "http"
        self.url = f"{scheme}://127.0.0.1:{self.port}/v1"

    def hang_up(self) -> None:
        """Close all connections."""
        for sock in self._open:
            with contextlib.suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)

    def request(self, sock: Any) -> bytes:
        """Read one request whole; empty if the peer closed instead."""
        data = b""
        while b"\r\n\r\n" not in data:
            piece = sock.recv(65536)
            if not piece:
                self.ends.append("EOF")
                return b""
            data += piece
        head, _, body = data.partition(b"\r\n\r\n")
        lines = [line.lower() for line in head.split(b"\r\n")]
        length = sum(
            int(line.split(b":")[1]) for line in lines if line.startswith(b"content-length")
        )
        while len(body) < length:
            body += sock.recv(65536)
        self.requests.append(head + b"\r\n\r\n" + body)
        return self.requests[-1]

    def wait_end(self, sock: Any) -> None:
        """Note how the peer ends the connection."""
        try:
            self.ends.append("EOF" if not sock.recv(1) else "data")
        except OSError as error:
            self.ends.append(type(error).__name__)


def answering(*answers: bytes) -> Server:
    """A server that answers the n-th request of all with the n-th of `answers`, the last one for ever."""
    server: Server

    def handler(sock: Any, _: int) -> None:
        while server.request(sock):
            sock.sendall(answers[min(len(server.requests), len(answers)) - 1])

    server = Server(handler)
    return server


def in_pieces(*pieces: bytes, ending: str = "stay", pause_s: float = 0.005, **tls: Any) -> Server:
    """A server that answers a request with pieces, one after the other.

    Behind them it waits for the client's end (`stay`), closes the connection (`close`), or resets it (`reset`).
    """
    server: Server

    def handler(sock: Any, _: int) -> None:
        server.request(sock)
        for piece in pieces:
            sock.sendall(piece)
            gevent.sleep(pause_s)
        if ending == "stay":
            server.wait_end(sock)
        elif ending == "reset":
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))

    server = Server(handler, **tls)
    return server


def chunk(data: bytes) -> bytes:
    """One chunk of a chunked body."""
    return b"%x\r\n%b\r\n" % (len(data), data)


def unread(fd: int, what: int = termios.FIONREAD) -> int:
    """Bytes that lie unread in a socket; with `TIOCOUTQ`, that its peer has not yet."""
    (size,) = struct.unpack("i", fcntl.ioctl(fd, what, bytes(4)))
    return int(size)


def until_read(sock: Any) -> None:
    """Wait until the client, which is in this process, has read all that was sent, or has closed."""
    client = sock.getpeername()
    while True:
        waits = unread(sock.fileno(), termios.TIOCOUTQ)
        for fd in [int(entry.name) for entry in Path("/proc/self/fd").iterdir()]:
            try:
                if not stat.S_ISSOCK(os.fstat(fd).st_mode):
                    continue
                # gevent's socket would leave the copy open until the hub's next turn.
                with plain_socket(fileno=os.dup(fd)) as copy:
                    waits += unread(fd) if copy.getsockname() == client else 0
            except OSError:  # closed meanwhile
                continue
        if not waits:
            return
        gevent.sleep(0.001)


class Payload:
    """A decoder that only keeps what it gets; content is whatever comes."""

    shapes = None  # no event is plain
    kept_kinds = plain_kinds = 0

    def __init__(self) -> None:
        self.has_content = False
        self.watching = self.streams = True
        self.statuses = frozenset({200})
        self.broken = False
        self.events = 0
        self.fed: list[tuple[bytes, int, int, int, int, bool]] = []

    def feed(
        self,
        payload: bytes,
        low: int,
        arrived: int,
        read_at: int,
        read_index: int,
        *,
        at_rest: bool,
    ) -> None:
        """Keep it."""
        self.fed.append((payload, low, arrived, read_at, read_index, at_rest))
        self.has_content, self.watching = True, False
        self.events += 1

    def receive(self, news: News) -> None:
        """Take every piece."""
        for piece in news.pieces:
            self.feed(
                piece.payload,
                piece.low,
                piece.arrived,
                piece.read_at,
                piece.read_index,
                at_rest=piece.rests,
            )

    @property
    def held(self) -> int:
        """Nothing that counts."""
        return 0

    @property
    def payload(self) -> bytes:
        """All of it."""
        return b"".join(item[0] for item in self.fed)


class Size(Payload):
    """Counts its payload and keeps none."""

    def __init__(self) -> None:
        super().__init__()
        self.size = 0

    def feed(self, payload: bytes, *_: int, at_rest: bool) -> None:  # noqa: ARG002
        """Count it."""
        self.size += len(payload)
        self.has_content, self.watching = True, False


class Digest(Size):
    """Keeps no payload but its digest."""

    def __init__(self) -> None:
        super().__init__()
        self.sha = hashlib.sha256()

    def feed(self, payload: bytes, *times: int, at_rest: bool) -> None:
        """Take it in."""
        super().feed(payload, *times, at_rest=at_rest)
        self.sha.update(payload)


def stopwatch(**other: Any) -> HttpTransport:
    """A stopwatch with short patience."""
    settings = {
        "idle_connections": 10,
        "connect_timeout_s": 5,
        "send_timeout_s": 60,
        "ca_file": None,
        "reader": READER,
    }
    return HttpTransport(**{**settings, **other})


def call(
    watch: HttpTransport, url: str, body: bytes = b"{}", exchange: Exchange | None = None
) -> Exchange:
    """One call to its end; what the SDK would have been told is in `exchange.told`."""
    exchange = exchange or Exchange(Payload())
    exchange_facts[id(exchange)] = None
    try:
        with watched_by(exchange):
            response = watch.handle_request(httpx2.Request("POST", url, content=body))
            exchange.wait_end()
            response.close()
    except httpx2.TransportError as error:
        exchange_facts[id(exchange)] = type(error).__name__
    return exchange


exchange_facts: dict[int, str | None] = {}


def facts(exchange: Exchange) -> dict[str, Any]:
    """What a test may want to know."""
    decoder: Any = exchange.decoder
    return {
        "status": exchange.status,
        "failure": exchange.failure and exchange.failure[0],
        "message": exchange.failure and exchange.failure[1],
        "cut": exchange.cut,
        "cut_text": exchange.cut_text,
        "aborted": exchange.aborted,
        "done": exchange.done,
        "is_new": exchange.connection_is_new,
        "number": exchange.connection.number if exchange.connection else None,
        "payload": (decoder.payload or exchange.plain_body).decode("latin-1"),
        "reported": exchange_facts.get(id(exchange)),
    }
