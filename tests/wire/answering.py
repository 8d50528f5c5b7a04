"""A target on loopback that answers each model with a case of its own; it takes nothing from the code under test."""

from __future__ import annotations

import contextlib
import json
import re
import select
import socket
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from wire.pieces import good

HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n"
END = b"0\r\n\r\n"
GAP_S = 0.002


@dataclass(frozen=True)
class Received:
    """A request as it came. `number`: of the calls of its model, without the preflight; `key`: the same for all attempts."""

    model: str
    number: int
    attempt: int
    key: str
    is_preflight: bool
    at_s: float
    body: dict[str, Any]


@dataclass(frozen=True, kw_only=True)
class Answer:
    """Pieces of a response, the pause before each, and after which idle time the connection is closed behind it."""

    pieces: Sequence[bytes]
    gap_s: float = GAP_S
    first_s: float = 0.04  # so long that a busy client moves no figure by much
    closes_after_s: float | None = None


Answering = Callable[[Received], Answer]


def stream(*events: bytes, headers: Mapping[str, str] | None = None, **more: Any) -> Answer:
    """Return an answer whose events come one by one, each a chunk of HTTP."""
    lines = "".join(f"{name}: {value}\r\n" for name, value in (headers or {}).items())
    head = HEAD + lines.encode() + b"\r\n"
    chunks = [framed(event) for event in events]
    return Answer(pieces=[head + chunks[0], *chunks[1:], END], **more)


def framed(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data)


def whole(
    status: int, body: Any, headers: Mapping[str, str] | None = None, kind: str = "application/json"
) -> Answer:
    """Return an answer in one piece."""
    text = body if isinstance(body, bytes) else json.dumps(body).encode()
    fields = {"content-type": kind, "content-length": str(len(text)), **(headers or {})}
    lines = "".join(f"{name}: {value}\r\n" for name, value in fields.items())
    return Answer(pieces=[f"HTTP/1.1 {status} X\r\n{lines}\r\n".encode() + text])


class Target:
    """Listens on loopback; `answers` by model, `like_all`: models whose preflight is answered like every call."""

    def __init__(
        self, protocol: str, answers: Mapping[str, Answering], like_all: frozenset[str]
    ) -> None:
        self.seen: list[Received] = []
        self._protocol = protocol
        self._answers = answers
        self._like_all = like_all
        self._counts: Counter[str] = Counter()
        self._lock = threading.Lock()
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=64)
        self.url = f"http://127.0.0.1:{self._listener.getsockname()[1]}"
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self) -> None:
        self._listener.close()

    def of(self, model: str) -> list[Received]:
        """Return the requests of a model, without the preflight."""
        return [seen for seen in self.seen if seen.model == model and not seen.is_preflight]

    def _accept(self) -> None:
        with contextlib.suppress(OSError):  # closed
            while True:
                client, _ = self._listener.accept()
                threading.Thread(target=self._serve, args=(client,), daemon=True).start()

    def _serve(self, client: socket.socket) -> None:
        with client, contextlib.suppress(OSError):
            client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            while request := read_request(client):
                answer = self._answer(*request)
                for number, piece in enumerate(answer.pieces):
                    time.sleep(answer.gap_s if number else answer.first_s)
                    client.sendall(piece)
                waits_s = answer.closes_after_s
                if waits_s is not None and not select.select([client], [], [], waits_s)[0]:
                    return

    def _answer(self, head: str, body: bytes) -> Answer:
        if not body.startswith(b"{"):
            return whole(404, {"error": {"message": "no such page", "type": "not_found"}})
        seen = self._note(head, json.loads(body))
        if seen.is_preflight and seen.model not in self._like_all:
            return stream(*good(self._protocol))
        return self._answers[seen.model](seen)

    def _note(self, head: str, tree: dict[str, Any]) -> Received:
        call_id = re.search(r"(?im)^x-client-request-id: (\S+)", head)
        assert call_id is not None
        *key, attempt = call_id[1].split("/")
        is_preflight = key[1].startswith("-")
        with self._lock:
            number = self._counts[tree["model"]]
            self._counts[tree["model"]] += not is_preflight
        seen = Received(
            tree["model"], number, int(attempt), "/".join(key), is_preflight, time.monotonic(), tree
        )
        self.seen.append(seen)
        return seen


def read_request(client: socket.socket) -> tuple[str, bytes] | None:
    """Return the head and the body of the next request; None where the client hung up."""
    data = b""
    while b"\r\n\r\n" not in data:
        piece = client.recv(65_536)
        if not piece:
            return None
        data += piece
        if not data[:1].isalpha():  # a TLS handshake, which a server of plain HTTP rejects at once
            client.sendall(
                b"HTTP/1.1 400 Bad Request\r\ncontent-length: 0\r\nconnection: close\r\n\r\n"
            )
            return None
    head, _, body = data.partition(b"\r\n\r\n")
    length = re.search(rb"(?i)content-length: (\d+)", head)
    while length is not None and len(body) < int(length[1]):
        piece = client.recv(65_536)
        if not piece:
            return None
        body += piece
    return head.decode("latin-1"), body


@contextmanager
def target(
    protocol: str, answers: Mapping[str, Answering], like_all: frozenset[str]
) -> Iterator[Target]:
    """Serve until the end of the context."""
    serving = Target(protocol, answers, like_all)
    try:
        yield serving
    finally:
        serving.close()
