"""A target whose answers end in every way, on raw sockets: each request of a path gets the next of `answers`, after two fair ones.

It takes nothing from the code under test. The bytes of each answer have another length, by which its row is known.
"""

from __future__ import annotations

import contextlib
import re
import socket
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

from hostile.answers import CLOSE, END, RESET, WAIT, Request, Sent, chunk, error, head, whole
from hostile.server import perform
from wire.answering import read_request

FAIR = 2  # requests of each path
GAP_S = 0.02
COOKIE = b"set-cookie: user=Qx7visitor4711; path=/"
PROTOCOLS = ("openai", "anthropic")


def stream(*events: bytes, header: bytes = b"x: 1") -> list[bytes]:
    return [head(COOKIE, header), *events]


def answers(protocol: str, key: str) -> list[list[bytes | float]]:
    """The answers in their order; `key` is that of the request."""
    request = Request(protocol, key)
    opening = request.opening()
    texts = [request.word(f"word{number} ") for number in range(6)]
    begun = [opening, *texts]
    closing = [request.summary(usage=request.count("6")), request.end(), END]
    euro = request.word("###").replace(b"###", "€".encode())
    split = euro.index("€".encode()) + 1
    fault = chunk(b"event: error\ndata: " + error("no", "overloaded_error") + b"\n\n")
    return [
        stream(*begun, *closing),
        stream(*begun, request.closing("content_filter"), header=b"x-a: 1"),
        stream(*begun, request.closing("length"), header=b"x-ab: 1"),
        stream(fault, END),
        stream(*begun, fault, END),
        [*stream(*begun[:4]), CLOSE],
        [*stream(*begun[:5]), RESET],
        [*stream(*begun[:6]), WAIT],
        [whole(429, error("slow", "rate_limit_error"), b"retry-after: 7")],
        [whole(500, error(f"sent {key}", "api_error"), f"x-echo: {key}".encode())],
        [b"".join(stream(*begun, *closing, header=b"x-many: 1"))],
        stream(*begun, euro[:split], euro[split:], *closing),
        stream(opening, request.word(key[:9]), request.word(key[9:19]), request.word(key[19:]), *closing),
        stream(*begun, chunk(b"data: {broken\n\n"), END),
        [*stream(*begun), b"zzz\r\n", WAIT],
        [b"SSH-2.0-OpenSSH_9.9\r\n\r\n", CLOSE],
        stream(*begun, *closing, header=b"x-abc: 1"),
    ]  # fmt: skip


KINDS = len(answers("openai", "k" * 20))


class Server:
    """Listens on loopback; a path begins with the name of its protocol."""

    def __init__(self) -> None:
        self._counts: Counter[str] = Counter()
        self._lock = threading.Lock()
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=64)
        self.url = f"http://127.0.0.1:{self._listener.getsockname()[1]}"
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):  # closed
            while True:
                client, _ = self._listener.accept()
                threading.Thread(target=self._serve, args=(client,), daemon=True).start()

    def close(self) -> None:
        self._listener.close()

    def _serve(self, client: socket.socket) -> None:
        with client, contextlib.suppress(OSError):
            client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            while request := read_request(client):
                for piece in self._choose(request[0]):
                    time.sleep(GAP_S)
                    perform(client, piece)
                    if not isinstance(piece, bytes):
                        return

    def _choose(self, lines: str) -> Sent | list[bytes | float]:
        name = lines.split()[1].split("/")[1]
        found = re.search(r"(?im)^(?:x-api-key: |authorization: Bearer )(\S+)", lines)
        if lines.startswith("GET") or name not in PROTOCOLS:
            return [whole(404, b"{}")]
        with self._lock:
            number = self._counts[name] - FAIR
            self._counts[name] += 1
        every = answers(name, found[1] if found else "")
        return every[0] if number < 0 else every[number % len(every)]


@contextmanager
def serving() -> Iterator[str]:
    """The address of a server, until the end of the context."""
    server = Server()
    try:
        yield server.url
    finally:
        server.close()
