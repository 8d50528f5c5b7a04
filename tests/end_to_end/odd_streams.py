"""A target whose answers end in every way, on raw sockets: each request of a path gets the next of `answers`, after two fair ones.

It takes nothing from the code under test. The bytes of each answer have another length, by which its row is known.
"""

from __future__ import annotations

import contextlib
import json
import re
import socket
import struct
import threading
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

FAIR = 2  # requests of each path
GAP_S = 0.02
RESET, HOLD = "reset", "hold"  # instead of bytes: how a connection ends
HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\nset-cookie: user=4711; path=/\r\ntransfer-encoding: chunked\r\n"
END = b"0\r\n\r\n"
Piece = bytes | str  # what is sent after a gap; empty: nothing more, the connection is closed


def chunk(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data)


def event(tree: Any, name: str = "") -> bytes:
    head = f"event: {name}\n" if name else ""
    return f"{head}data: {json.dumps(tree, ensure_ascii=False)}\n\n".encode()


def whole(status: int, tree: Any, *headers: bytes) -> bytes:
    body = json.dumps(tree).encode()
    lines = b"".join([b"%b\r\n" % header for header in headers])
    head = b"HTTP/1.1 %d X\r\ncontent-type: application/json\r\ncontent-length: %d\r\n" % (
        status,
        len(body),
    )
    return head + lines + b"\r\n" + body


class OpenAI:
    """Chat completions."""

    ok_reason, refusal, filtered = "stop", "stop", "content_filter"

    @staticmethod
    def opening() -> bytes:
        return event(
            {"id": "c", "model": "m", "choices": [{"index": 0, "delta": {"role": "assistant"}}]}
        )

    @staticmethod
    def word(text: str) -> bytes:
        return event(
            {"id": "c", "model": "m", "choices": [{"index": 0, "delta": {"content": text}}]}
        )

    @staticmethod
    def closing(reason: str) -> list[bytes]:
        usage = {"prompt_tokens": 20, "completion_tokens": 6, "total_tokens": 26}
        last = {
            "id": "c",
            "model": "m",
            "choices": [{"index": 0, "delta": {}, "finish_reason": reason}],
        }
        return [event(last), event({"id": "c", "choices": [], "usage": usage}), b"data: [DONE]\n\n"]

    @staticmethod
    def error(kind: str) -> bytes:
        return event({"error": {"type": kind, "message": "no", "code": kind}})


class Anthropic:
    """Messages."""

    ok_reason, refusal, filtered = "end_turn", "refusal", "refusal"

    @staticmethod
    def opening() -> bytes:
        usage = {"input_tokens": 20, "output_tokens": 1}
        message = {"id": "m", "model": "m", "role": "assistant", "content": [], "usage": usage}
        return event({"type": "message_start", "message": message}, "message_start")

    @staticmethod
    def word(text: str) -> bytes:
        delta = {"type": "text_delta", "text": text}
        return event(
            {"type": "content_block_delta", "index": 0, "delta": delta}, "content_block_delta"
        )

    @staticmethod
    def closing(reason: str) -> list[bytes]:
        delta = {
            "type": "message_delta",
            "delta": {"stop_reason": reason},
            "usage": {"output_tokens": 6},
        }
        return [event(delta, "message_delta"), event({"type": "message_stop"}, "message_stop")]

    @staticmethod
    def error(kind: str) -> bytes:
        return event({"type": "error", "error": {"type": kind, "message": "no"}}, "error")


Protocol = type[OpenAI] | type[Anthropic]


def stream(*events: bytes, header: bytes = b"") -> list[Piece]:
    return [HEAD + header + b"\r\n", *map(chunk, events)]


def answers(protocol: Protocol, key: str) -> list[list[Piece]]:
    """The answers in their order; `key` is that of the request."""
    opening, word, closing = protocol.opening(), protocol.word, protocol.closing
    text_pieces = [word(f"word{number} ") for number in range(6)]
    fair = [opening, *text_pieces, *closing(protocol.ok_reason)]
    euro = chunk(word("€"))
    split = euro.index("€".encode()) + 1
    at_once = HEAD + b"x-many: 1\r\n\r\n" + b"".join(map(chunk, fair)) + END
    return [
        [*stream(*fair), END],
        [*stream(opening, *text_pieces, *closing(protocol.filtered), header=b"x-a: 1\r\n"), END],
        [*stream(opening, *text_pieces, *closing("length"), header=b"x-ab: 1\r\n"), END],
        [*stream(protocol.error("overloaded_error")), END],
        [*stream(opening, *text_pieces, protocol.error("api_error")), END],
        [*stream(opening, *text_pieces[:3]), b""],
        [*stream(opening, *text_pieces[:4]), RESET],
        [*stream(opening, *text_pieces[:5]), HOLD],
        [whole(429, {"error": {"type": "rate_limit_error", "message": "slow"}}, b"retry-after: 7")],
        [whole(500, {"error": {"type": "api_error", "message": f"sent {key}"}}, f"x-echo: {key}".encode())],
        [at_once],
        [*stream(opening, *text_pieces)[:-1], euro[:split], euro[split:], *map(chunk, closing(protocol.ok_reason)), END],
        [*stream(opening, word(key[:9]), word(key[9:19]), word(key[19:]), *closing(protocol.ok_reason)), END],
        [*stream(opening, *text_pieces), chunk(b"data: {broken\n\n"), END],
        [*stream(opening, *text_pieces), b"zzz\r\n", HOLD],
        [b"SSH-2.0-OpenSSH_9.9\r\n\r\n", b""],
        [*stream(*fair, header=b"x-abc: 1\r\n"), END],
    ]  # fmt: skip


PROTOCOLS: dict[str, Protocol] = {"openai": OpenAI, "anthropic": Anthropic}
KINDS = len(answers(OpenAI, "k" * 20))


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
            while head := _request(client):
                if not _send(client, self._choose(head)):
                    return

    def _choose(self, head: str) -> Sequence[Piece]:
        name = head.split()[1].split("/")[1]
        found = re.search(r"(?im)^(?:x-api-key: |authorization: Bearer )(\S+)", head)
        if head.startswith("GET") or name not in PROTOCOLS:
            return [whole(404, {"error": "no"})]
        with self._lock:
            number = self._counts[name] - FAIR
            self._counts[name] += 1
        every = answers(PROTOCOLS[name], found[1] if found else "")
        return every[0] if number < 0 else every[number % len(every)]


def _request(client: socket.socket) -> str:
    """The head of a request, once its body has come; empty at the end."""
    data = b""
    while b"\r\n\r\n" not in data:
        piece = client.recv(65_536)
        if not piece:
            return ""
        data += piece
    head, _, body = data.partition(b"\r\n\r\n")
    length = re.search(rb"(?i)content-length: (\d+)", head)
    while length and len(body) < int(length[1]):
        body += client.recv(65_536)
    return head.decode("latin-1")


def _send(client: socket.socket, pieces: Sequence[Piece]) -> bool:
    """Send the pieces; returns whether the connection goes on."""
    for piece in pieces:
        time.sleep(GAP_S)
        if piece == HOLD:
            client.recv(1)
        elif piece == RESET:
            client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        elif piece:
            assert isinstance(piece, bytes)
            client.sendall(piece)
            continue
        return False
    return True


@contextmanager
def serving() -> Iterator[str]:
    """The address of a server, until the end of the context."""
    server = Server()
    try:
        yield server.url
    finally:
        server.close()
