"""Script: responses in any pieces, of any kind, whole and cut."""

from __future__ import annotations

import gzip
import socket
import struct
import time
import zlib
from functools import partial
from typing import Any

import gevent
import gevent.event
import httpx2
from starting.script import CASES, case, print_facts
from transport.scripts.scripted_server import (
    OK,
    SSE,
    SSE_UNTIL_CLOSE,
    Payload,
    Server,
    call,
    chunk,
    facts,
    stopwatch,
)

from tailgauge.transport.answer import News
from tailgauge.transport.exchange import Exchange, HeldBytes
from tailgauge.transport.http_transport import watched_by

BOMB = gzip.compress(bytes(10 << 20))  # ten megabytes in ten kilobytes
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
    summary: list[str] = []
    exchange = Exchange(Payload())
    exchange.on_content = lambda: summary.append("content")
    gevent.spawn_later(3, exchange.abort, "timeout")
    call(watch, server.url, exchange=exchange)
    watch.close()
    return {
        **facts(exchange),
        "received": summary,
        "headers": len(exchange.headers),
        "reads": exchange.reads,
        "bytes": exchange.body_bytes,
    }


def everywhere(wire: bytes) -> list[Any]:
    """The different outcomes over all two-way splits."""
    jobs = [
        gevent.spawn(answered, wire[:at], wire[at:], pause_s=0.02) for at in range(1, len(wire))
    ]
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
    return everywhere(
        b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early Hints\r\nlink: x\r\n\r\n" + OK
    )


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
    (
        "compressed",
        SSE.replace(b"\r\n\r\n", b"\r\ncontent-encoding: gzip\r\n\r\n") + EVENTS + END,
        "stay",
    ),
    (
        "a_bomb",
        SSE.replace(b"\r\n\r\n", b"\r\ncontent-encoding: br\r\n\r\n") + chunk(BOMB) + END,
        "stay",
    ),
    ("many_headers", b"HTTP/1.1 200 OK\r\n" + b"a:b\r\n" * 300 + b"\r\n", "stay"),
    ("endless_interim", b"HTTP/1.1 100 Continue\r\n\r\n" * 200, "stay"),
    ("endless_trailers", SSE + EVENTS + b"0\r\n" + b"x: y\r\n" * 300, "stay"),
    ("huge_chunk", SSE + b"FFFFFFFFFFFFFFFF\r\ndata: a\n\ndata: b\n\n", "stay"),
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


class Whole(Payload):
    """A decoder of an answer that was asked for at once."""

    def __init__(self) -> None:
        super().__init__()
        self.streams = False
        self.body = ""

    def whole(self, body: bytes, *_: Any) -> None:
        """Keep it."""
        self.body = body.decode()


def cancelled(decoder: Payload) -> Any:
    """A call that is cancelled when the rest of its answer has come and nobody has looked at it."""
    socks: list[Any] = []
    done = gevent.event.Event()

    def handler(sock: Any, _: int) -> None:
        server.request(sock)
        sock.sendall(
            b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ncontent-length: 9\r\n\r\n"
        )
        socks.append(sock)
        done.wait()

    server, exchange = Server(handler), Exchange(decoder)
    caller = gevent.spawn(call, stopwatch(), server.url, exchange=exchange)
    while exchange.headers_at_ns is None:
        gevent.sleep(0.001)
    socks[0].sendall(b"data: a\n\n")
    time.sleep(0.05)  # a thread reads it
    exchange.abort("cancelled")
    done.set()
    caller.join()
    return facts(exchange)


@case
def cancelled_stream() -> Any:
    return cancelled(Payload())


@case
def cancelled_whole() -> Any:
    return cancelled(Whole())


@case
def together() -> Any:
    """Several large answers at the same time, which wait for their ends, and a small one."""
    wait, most = gevent.event.Event(), 0

    def handler(sock: Any, _: int) -> None:
        size = 6 if b"small" in server.request(sock) else 3 << 20
        sock.sendall(b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n" % size)
        body = b"answer" if size == 6 else b"x" * size
        for at in range(0, size - 1, 1 << 16):
            sock.sendall(body[at : min(at + (1 << 16), size - 1)])
            gevent.sleep(0.001)
        wait.wait(2)
        sock.sendall(body[-1:])

    server, watch, held = Server(handler), stopwatch(), HeldBytes(8 << 20)
    exchanges = [Exchange(Whole(), held=held) for _ in range(5)]
    bodies = [b"large"] * 4 + [b"small"]
    jobs = [
        gevent.spawn(call, watch, server.url, body, one)
        for body, one in zip(bodies, exchanges, strict=True)
    ]
    while not wait.is_set():
        gevent.sleep(0.01)
        most = max(most, held.bytes)
        if all(
            one.done or one.body_bytes >= size
            for one, size in zip(exchanges, [(3 << 20) - 1] * 4 + [5], strict=True)
        ):
            wait.set()
    gevent.joinall(jobs, raise_error=True)
    decoder: Any = exchanges[-1].decoder
    return {
        "cut": [one.cut for one in exchanges],
        "small": [exchanges[-1].cut, decoder.body],
        "held": held.bytes,
        "most": most,
    }


@case
def shares() -> Any:
    """What one answer may hold beside others."""
    held = HeldBytes(1000)
    dropped = [held.change(0, 900), held.change(0, 90), held.change(0, 20), held.change(90, 400)]
    held.change(900, 0)
    return {"dropped": dropped, "left": held.bytes}


@case
def flood() -> Any:
    """More than anybody looks at in time; the bytes that come with each look."""
    events, most = chunk(b"data: some words\n\n") * 350_000, 0
    server: Server

    def handler(sock: Any, _: int) -> None:
        server.request(sock)
        sock.sendall(SSE + chunk(b"data: first\n\n"))
        gevent.sleep(0.05)
        sock.sendall(events + END)

    class Looked(Payload):
        def receive(self, news: News) -> None:
            nonlocal most
            super().receive(news)
            most = max(most, sum(len(piece.payload) for piece in news.pieces))

    server, watch = Server(handler), stopwatch()
    exchange = call(watch, server.url, exchange=Exchange(Looked()))
    return {
        "payload": len(facts(exchange)["payload"]),
        "sent": len(b"data: first\n\n") + 350_000 * 18,
        "most_at_once": most,
    }


def passed_to_the_sdk(headers: bytes, body: bytes) -> Any:
    server: Server

    def handler(sock: Any, _: int) -> None:
        server.request(sock)
        sock.sendall(
            b"HTTP/1.1 400 No\r\n%bcontent-length: %d\r\n\r\n%b" % (headers, len(body), body)
        )

    server, exchange = Server(handler), Exchange(Payload())
    with watched_by(exchange):
        response = stopwatch().handle_request(httpx2.Request("POST", server.url, content=b"{}"))
    return {
        "status": response.status_code, "headers": list(response.headers), "content": response.read().decode(),
        "kept": exchange.plain_body == body,
    }  # fmt: skip


@case
def sdk_packed() -> Any:
    return passed_to_the_sdk(b"content-encoding: gzip\r\n", BOMB)


@case
def sdk_packed_by_charset() -> Any:
    return passed_to_the_sdk(
        b"content-type: application/json; charset=zlib\r\n", zlib.compress(bytes(10 << 20))
    )


print_facts()
