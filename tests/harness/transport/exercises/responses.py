"""Exercise: responses in any pieces, of any kind, whole and cut."""

from __future__ import annotations

import socket
import struct
from functools import partial
from typing import Any

import gevent
from scripted import (
    CASES,
    OK,
    SSE,
    SSE_UNTIL_CLOSE,
    Payload,
    Server,
    call,
    case,
    chunk,
    facts,
    run_all,
    stopwatch,
)

from tailgauge.transport.exchange import Exchange

EVENTS = chunk(b"data: a\n\n") + chunk(b"data: b\n\n")
END = b"0\r\n\r\n"


def reset(sock: Any) -> None:
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))


def answered(*pieces: bytes, ending: str = "stay", pause_s: float = 0.005) -> dict[str, Any]:
    """Send `pieces` one after the other and end the connection in some way."""
    server: Server

    def handler(sock: Any, _: int) -> None:
        server.request(sock)
        for piece in pieces:
            sock.sendall(piece)
            gevent.sleep(pause_s)
        if ending == "stay":
            server.wait_end(sock)
        elif ending == "reset":
            reset(sock)

    server, watch = Server(handler), stopwatch()
    told: list[str] = []
    exchange = Exchange(Payload())
    exchange.on_headers = lambda: told.append("headers")
    exchange.on_content = lambda: told.append("content")
    gevent.spawn_later(3, exchange.abort, "timeout")
    call(watch, server.url, exchange=exchange)
    watch.close()
    return {
        **facts(exchange),
        "heard": told,
        "headers": len(exchange.headers),
        "reads": exchange.reads,
        "bytes": exchange.body_bytes,
    }


def everywhere(wire: bytes) -> list[Any]:
    """The different outcomes over all two-way splits."""
    jobs = [gevent.spawn(answered, wire[:at], wire[at:], pause_s=0.02) for at in range(1, len(wire))]
    gevent.joinall(jobs, raise_error=True)
    seen = [
        (j.value["status"], j.value["payload"], j.value["cut"], j.value["done"], j.value["aborted"])
        for j in jobs
    ]
    return [len(jobs), *sorted(set(seen))]


@case
def stream_split() -> Any:
    return everywhere(SSE + EVENTS + END)


@case
def counted_split() -> Any:
    return everywhere(b"HTTP/1.1 400 Bad Request\r\ncontent-length: 5\r\n\r\nhello")


@case
def interim_split() -> Any:
    return everywhere(b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early Hints\r\nlink: x\r\n\r\n" + OK)


@case
def byte_by_byte() -> Any:
    wire = SSE + EVENTS + END
    return answered(*[wire[i : i + 1] for i in range(len(wire))], pause_s=0.001)


for _name, _wire, _ending in (
    ("whole", SSE + EVENTS + END, "stay"),
    ("trailers", SSE + EVENTS + b"0\r\nx-sum: 1\r\n\r\n", "stay"),
    ("until_close", SSE_UNTIL_CLOSE + b"data: a\n\n", "close"),
    ("until_close_reset", SSE_UNTIL_CLOSE + b"data: a\n\n", "reset"),
    ("closed_early", SSE + EVENTS, "close"),
    ("closed_in_a_chunk", SSE + EVENTS[:-6], "close"),
    ("closed_behind_the_last_size", SSE + EVENTS + b"0\r\n", "close"),
    ("counted_closed_early", OK[:-1], "close"),
    ("reset_in_the_stream", SSE + EVENTS, "reset"),
    ("reset_in_the_head", SSE[:30], "reset"),
    ("closed_in_the_head", SSE[:30], "close"),
    ("no_content", b"HTTP/1.1 204 No Content\r\n\r\n", "stay"),
    ("not_modified", b"HTTP/1.1 304 Not Modified\r\ncontent-length: 9\r\n\r\n", "stay"),
    ("empty", b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n", "stay"),
    ("bad_chunk", SSE + EVENTS + b"zzz\r\n", "stay"),
    ("bad_length", b"HTTP/1.1 200 OK\r\ncontent-length: " + b"9" * 5000 + b"\r\n\r\n", "stay"),
    ("banner", b"SSH-2.0-OpenSSH_9.2\r\n\r\n", "stay"),
    ("tls_alert", b"\x15\x03\x01\x00\x02\x02\x46\r\n\r\n", "close"),
    ("long_head", b"HTTP/1.1 200 OK\r\n" + b"x-y: z\r\n" * 10_000, "stay"),
    ("compressed", SSE.replace(b"\r\n\r\n", b"\r\ncontent-encoding: gzip\r\n\r\n") + EVENTS + END, "stay"),
    ("page", b"HTTP/1.1 200 OK\r\ncontent-type: text/html\r\ncontent-length: 3\r\n\r\n<p>", "stay"),
    ("endless_error", b"HTTP/1.1 500 Oops\r\n\r\n" + b"x" * (2 << 20), "stay"),
):
    CASES[_name] = partial(answered, _wire, ending=_ending)


@case
def content_and_end_much_later() -> Any:
    """After the first content, reads are only kept: the end must be noticed all the same, in whatever pieces."""
    wire = EVENTS + END
    return [
        answered(SSE + chunk(b"data: first\n\n"), wire[:at], wire[at:])["payload"]
        for at in range(1, len(wire))
    ]


run_all()
