"""Clients that misbehave, on raw sockets: each does one wrong thing and says how it ended.

Rule: every socket has a timeout and is closed; a client never waits for an answer that need not come.
"""

from __future__ import annotations

import json
import socket
import struct
from collections.abc import Callable
from contextlib import suppress
from itertools import count

BODY = json.dumps(
    {
        "model": "tiny",
        "max_tokens": 5,
        "stream": True,
        "messages": [{"role": "user", "content": "abcd"}],
    }
).encode()
LONG = BODY.replace(b'"max_tokens": 5', b'"max_tokens": 100000')
PATHS = (
    b"/v1/messages",
    b"/v1/chat/completions",
    b"/v1/messages/count_tokens",
    b"/v1/messages/batches",
)
GONE = b""  # the server closed the connection without a word

_TIMEOUT_S = 10.0


def head(
    length: int | None, extra: bytes = b"", path: bytes = PATHS[0], version: bytes = b"1.1"
) -> bytes:
    text_read = b"" if length is None else b"content-length: %d\r\n" % length
    return b"POST %b HTTP/%b\r\nhost: t\r\n%b%b\r\n" % (path, version, text_read, extra)


def whole(
    body: bytes = BODY, extra: bytes = b"connection: close\r\n", path: bytes = PATHS[0]
) -> bytes:
    return head(len(body), extra, path) + body


def connected(port: int) -> socket.socket:
    return socket.create_connection(("127.0.0.1", port), timeout=_TIMEOUT_S)


def answer(port: int, raw: bytes) -> bytes:
    """Send, and read to the end of the connection."""
    with connected(port) as wire:
        with suppress(ConnectionError):
            wire.sendall(raw)
        return to_the_end(wire)


def to_the_end(wire: socket.socket) -> bytes:
    got = b""
    with suppress(ConnectionError):
        while piece := wire.recv(65536):
            got += piece
    return got


def status(got: bytes) -> int:
    """Status of an answer; 0 where the server just closed."""
    return int(got.split(b" ", 2)[1]) if got else 0


def leave(port: int, raw: bytes, read: int, *, reset: bool) -> None:
    """Send, read that many bytes at least, and go: with a FIN, or with a reset."""
    with connected(port) as wire:
        if reset:
            wire.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        wire.sendall(raw)
        got = 0
        while got < read:
            piece = wire.recv(65536)
            if not piece:
                return
            got += len(piece)


def chunked(body: bytes, size: int) -> bytes:
    pieces = [body[i : i + size] for i in range(0, len(body), size)]
    framed = b"".join(b"%x\r\n%b\r\n" % (len(piece), piece) for piece in pieces)
    return (
        head(None, b"transfer-encoding: chunked\r\nconnection: close\r\n") + framed + b"0\r\n\r\n"
    )


WRONG_BODIES = (
    b"", b"{", b"[]", b"null", b"\xff\xfe", b'"x"', b"[" * 5000, b'{"model": 1}', b'{"model":"a","max_tokens":1e999}',
    BODY.replace(b'"abcd"', b"[]"), BODY.replace(b'"user"', b'"\\ud800"'), BODY.replace(b'"tiny"', b'"\\ud800"'),
    BODY.replace(b"5", b'"5"'), BODY.replace(b"true", b"1"), b'{"requests": [1]}', b'{"requests": {}}',
)  # fmt: skip
GARBAGE = (
    b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(64), b"GET\r\n\r\n", b"\r\n" * 50, b"NOT HTTP AT ALL\r\n\r\n",
    b"GET / HTTP/9.9\r\n\r\n", b"POST /v1/messages HTTP/1.1\r\ncontent-length: -1\r\n\r\n",
    b"POST /v1/messages HTTP/1.1\r\ncontent-length: 5\r\ntransfer-encoding: chunked\r\n\r\n",
    b"GET /%ff%00 HTTP/1.1\r\nhost: t\r\nconnection: close\r\n\r\n", b"GET /" + b"a" * 9000 + b" HTTP/1.1\r\n\r\n",
    b"GET /healthz HTTP/1.1\r\nx-\xff\x00: \xfe\r\n\r\n",
)  # fmt: skip


def _wrong_body(port: int, turn: int) -> None:
    path = PATHS[turn % len(PATHS)]
    got = status(answer(port, whole(WRONG_BODIES[turn % len(WRONG_BODIES)], path=path)))
    assert 400 <= got < 500, (got, path, WRONG_BODIES[turn % len(WRONG_BODIES)])


def _garbage(port: int, turn: int) -> None:
    with connected(port) as wire:
        wire.sendall(GARBAGE[turn % len(GARBAGE)])
        wire.shutdown(socket.SHUT_WR)
        assert not 200 <= status(to_the_end(wire)) < 300


def _pipelined_garbage(port: int, turn: int) -> None:
    with connected(port) as wire:
        wire.sendall(whole(extra=b"") + GARBAGE[turn % len(GARBAGE)])
        wire.shutdown(socket.SHUT_WR)
        # 0: the side it closed makes it look gone. 400: the garbage came in one piece with the call.
        assert status(to_the_end(wire)) in {0, 200, 400}


def _broken_chunks(port: int, turn: int) -> None:
    start = head(None, b"transfer-encoding: chunked\r\n")
    with connected(port) as wire:
        wire.sendall(
            start + (b"zz\r\n", b"5\r\nabcdeXX", b"-1\r\n\r\n", b"fffffffffffffffff\r\n")[turn % 4]
        )
        wire.shutdown(socket.SHUT_WR)
        assert not 200 <= status(to_the_end(wire)) < 300


def _flood_of_headers(port: int, turn: int) -> None:
    lines = b"".join(b"x-%d: %b\r\n" % (i, b"a" * 8000) for i in range(100))
    got = status(answer(port, whole(extra=lines + b"connection: close\r\n")))
    assert got == 0 or 400 <= got < 500, got


def _strange_header_bytes(port: int, turn: int) -> None:
    got = status(
        answer(
            port, whole(extra=b"x-client-request-id: \xff\xfe/%d\r\nconnection: close\r\n" % turn)
        )
    )
    assert got in {200, 400}


def _old_protocol(port: int, turn: int) -> None:
    assert status(answer(port, head(len(BODY), version=b"1.0") + BODY)) == 200


def _chunked_body(port: int, turn: int) -> None:
    assert status(answer(port, chunked(BODY, 1 + turn % 50))) == 200


def _leaving(raw: bytes, read: int) -> Callable[[int, int], None]:
    return lambda port, turn: leave(port, raw, read, reset=bool(turn % 2))


ABUSES: dict[str, Callable[[int, int], None]] = {
    "a wrong body": _wrong_body,
    "garbage": _garbage,
    "garbage behind a call": _pipelined_garbage,
    "broken chunks of a body": _broken_chunks,
    "a flood of headers": _flood_of_headers,
    "strange header bytes": _strange_header_bytes,
    "HTTP/1.0": _old_protocol,
    "a body in chunks": _chunked_body,
    "leaves before saying anything": _leaving(b"", 0),
    "leaves within the headers": _leaving(head(None)[:-9], 0),
    "leaves within the body": _leaving(whole(extra=b"")[:-9], 0),
    "leaves while waiting": _leaving(whole(LONG, extra=b""), 0),
    "leaves at the headers": _leaving(whole(LONG, extra=b""), 1),
    "leaves in mid-stream": _leaving(whole(LONG, extra=b""), 5000),
    "leaves right at the end": _leaving(whole(extra=b""), 1400),
}
TURNS = count()
