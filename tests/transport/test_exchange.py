"""Responses in any pieces, of any kind, whole and cut."""

from __future__ import annotations

import gzip
import zlib
from typing import Any

import gevent
import gevent.event
import httpx2
import pytest
from transport.scripted_server import (
    OK,
    SSE,
    SSE_UNTIL_CLOSE,
    Payload,
    Server,
    block_process,
    call,
    chunk,
    facts,
    in_pieces,
    stopwatch,
)

from tailgauge.transport.answer import News
from tailgauge.transport.exchange import Exchange, HeldBytes
from tailgauge.transport.http_transport import watched_by

pytestmark = [pytest.mark.gevent, pytest.mark.usefixtures("reader", "silent")]

BOMB = gzip.compress(bytes(10 << 20))  # ten megabytes in ten kilobytes
TEXT = "data: a\n\ndata: b\n\n"
EVENTS = chunk(b"data: a\n\n") + chunk(b"data: b\n\n")
END = b"0\r\n\r\n"


def answered(*pieces: bytes, ending: str = "stay", pause_s: float = 0.005) -> Exchange:
    """Call a server that sends `pieces` one after the other and ends the connection in some way."""
    watch = stopwatch()
    exchange: Any = Exchange(Payload())
    contents: list[int] = []
    exchange.on_content = lambda: contents.append(exchange.reads)
    gevent.spawn_later(3, exchange.abort, "timeout")
    call(watch, in_pieces(*pieces, ending=ending, pause_s=pause_s).url, exchange=exchange)
    watch.close()

    assert len(contents) == bool(exchange.decoder.fed), "content is reported once"
    return exchange


def outcome(exchange: Exchange) -> dict[str, Any]:
    known = facts(exchange)
    return {key: known[key] for key in ("status", "payload", "cut", "failure", "aborted", "done")}


def whole(status: int | None, payload: str, **changes: Any) -> dict[str, Any]:
    expected = {"cut": None, "failure": None, "aborted": None, "done": True, **changes}
    return {"status": status, "payload": payload, **expected}


def no_answer(failure: str) -> dict[str, Any]:
    return whole(None, "", failure=failure)


def test_a_response_may_come_byte_by_byte():
    wire = SSE + EVENTS + END
    exchange = answered(*[wire[i : i + 1] for i in range(len(wire))], pause_s=0.001)

    assert outcome(exchange) == whole(200, TEXT)
    assert exchange.reads > 50


@pytest.mark.parametrize(
    ("wire", "expected"),
    [
        (SSE + EVENTS + END, whole(200, TEXT)),
        (b"HTTP/1.1 400 Bad Request\r\ncontent-length: 5\r\n\r\nhello", whole(400, "hello")),
        (
            b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early Hints\r\nlink: x\r\n\r\n" + OK,
            whole(200, "ok"),
        ),
    ],
    ids=["stream", "counted", "interim"],
)
def test_a_response_may_be_split_at_every_byte(wire, expected):
    splits = range(1, len(wire))
    jobs = [gevent.spawn(answered, wire[:at], wire[at:], pause_s=0.02) for at in splits]
    gevent.joinall(jobs, raise_error=True)

    for at, job in zip(splits, jobs, strict=True):
        assert outcome(job.value) == expected, at


def test_the_end_is_noticed_where_nobody_waits_for_reads():
    """After the first content, reads are only kept."""
    wire = EVENTS + END
    for at in range(1, len(wire)):
        exchange = answered(SSE + chunk(b"data: first\n\n"), wire[:at], wire[at:])

        assert outcome(exchange) == whole(200, "data: first\n\n" + TEXT), at


GZIP, BROTLI = (
    SSE.replace(b"\r\n\r\n", b"\r\ncontent-encoding: %b\r\n\r\n" % coding)
    for coding in (b"gzip", b"br")
)
EMPTY = b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n"
PAGE = b"HTTP/1.1 200 OK\r\ncontent-type: text/html\r\ncontent-length: 3\r\n\r\n<p>"
# name -> what is sent, how the connection ends, what is known then
CASES = {
    "whole": (SSE + EVENTS + END, "stay", whole(200, TEXT)),
    "trailers": (SSE + EVENTS + b"0\r\nx-sum: 1\r\n\r\n", "stay", whole(200, TEXT)),
    "until_close": (SSE_UNTIL_CLOSE + b"data: a\n\n", "close", whole(200, "data: a\n\n")),
    "until_close_reset": (SSE_UNTIL_CLOSE + b"data: a\n\n", "reset", whole(200, "data: a\n\n", cut="connection_reset")),
    "closed_early": (SSE + EVENTS, "close", whole(200, TEXT, cut="connection_closed")),
    "closed_in_a_chunk": (SSE + EVENTS[:-6], "close", whole(200, TEXT[:-4], cut="connection_closed")),
    "closed_behind_the_last_size": (SSE + EVENTS + b"0\r\n", "close", whole(200, TEXT, cut="connection_closed")),
    "counted_closed_early": (OK[:-1], "close", whole(200, "o", cut="connection_closed")),
    "reset_in_the_stream": (SSE + EVENTS, "reset", whole(200, TEXT, cut="connection_reset")),
    "reset_in_the_head": (SSE[:30], "reset", no_answer("closed")),
    "closed_in_the_head": (SSE[:30], "close", no_answer("closed")),
    "no_content": (b"HTTP/1.1 204 No Content\r\n\r\n", "stay", whole(204, "")),
    "not_modified": (b"HTTP/1.1 304 Not Modified\r\ncontent-length: 9\r\n\r\n", "stay", whole(304, "")),
    "empty": (EMPTY, "stay", whole(200, "")),
    "page": (PAGE, "stay", whole(200, "<p>")),
    "bad_chunk": (SSE + EVENTS + b"zzz\r\n", "stay", whole(200, "", cut="framing")),
    "bad_length": (EMPTY.replace(b"0\r\n", b"9" * 5000 + b"\r\n"), "stay", no_answer("not_http")),
    "banner": (b"SSH-2.0-OpenSSH_9.2\r\n\r\n", "stay", no_answer("not_http")),
    "tls_alert": (b"\x15\x03\x01\x00\x02\x02\x46\r\n\r\n", "close", no_answer("not_http")),
    "long_head": (b"HTTP/1.1 200 OK\r\n" + b"x-y: z\r\n" * 10_000, "stay", no_answer("head_too_large")),
    "many_headers": (b"HTTP/1.1 200 OK\r\n" + b"a:b\r\n" * 300 + b"\r\n", "stay", no_answer("head_too_large")),
    "endless_interim": (b"HTTP/1.1 100 Continue\r\n\r\n" * 200, "stay", no_answer("head_too_large")),
    "endless_trailers": (SSE + EVENTS + b"0\r\n" + b"x: y\r\n" * 300, "stay", whole(200, "", cut="framing")),
    "huge_chunk": (SSE + b"FFFFFFFFFFFFFFFF\r\n" + TEXT.encode(), "stay", whole(200, TEXT, aborted="timeout")),
    "compressed": (GZIP + EVENTS + END, "stay", whole(200, "", cut="compressed")),  # never unpacked
    "a_bomb": (BROTLI + chunk(BOMB) + END, "stay", whole(200, "", cut="compressed")),
}  # fmt: skip


@pytest.mark.parametrize(("wire", "ending", "expected"), CASES.values(), ids=CASES)
def test_a_response_that_is(wire, ending, expected):
    assert outcome(answered(wire, ending=ending)) == expected


class Whole(Payload):
    """A decoder of an answer that was asked for at once."""

    def __init__(self) -> None:
        super().__init__()
        self.streams = False
        self.body = ""

    def whole(self, body: bytes, *_: Any) -> None:
        """Keep it."""
        self.body = body.decode()


@pytest.mark.parametrize("decoder", [Payload, Whole])
def test_what_nobody_has_seen_when_a_call_is_cancelled_is_no_part_of_it(decoder):
    """A hedge's loser: its answer may lie there to its end."""
    sockets: list[Any] = []
    done = gevent.event.Event()
    server: Server

    def handler(sock: Any, _: int) -> None:
        server.request(sock)
        sock.sendall(EMPTY.replace(b"0\r\n", b"9\r\ncontent-type: text/event-stream\r\n"))
        sockets.append(sock)
        done.wait()

    server = Server(handler)
    exchange = Exchange(decoder())
    caller = gevent.spawn(call, stopwatch(), server.url, exchange=exchange)
    while exchange.headers_at_ns is None:
        gevent.sleep(0.001)
    sockets[0].sendall(b"data: a\n\n")
    block_process(0.05)  # a thread reads it
    exchange.abort("cancelled")
    done.set()
    caller.join()

    assert outcome(exchange) == whole(200, "", aborted="cancelled")


def test_an_error_body_without_end_is_given_up_before_it_fills_the_memory():
    exchange = answered(b"HTTP/1.1 500 Oops\r\n\r\n" + b"x" * (2 << 20))

    assert (exchange.cut, exchange.cut_text) == ("too_large", "over 1 MiB")
    assert (exchange.done, exchange.aborted) == (True, None)
    assert exchange.body_bytes < 2 << 20
    assert len(exchange.plain_body) < 1 << 18  # most of it is not even kept


def test_answers_that_hold_too_much_together_are_given_up_but_for_those_that_hold_little():
    """Four of 3 MiB where 8 MiB are allowed, and one of 6 bytes; all wait for their last byte."""
    sizes = [3 << 20] * 4 + [6]
    may_end = gevent.event.Event()
    server: Server

    def handler(sock: Any, _: int) -> None:
        size = int(server.request(sock).rpartition(b"\r\n")[2])
        body = b"answer" if size == 6 else b"x" * size
        sock.sendall(b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n" % size)
        for at in range(0, size - 1, 1 << 16):
            sock.sendall(body[at : min(at + (1 << 16), size - 1)])
            gevent.sleep(0.001)
        may_end.wait(2)
        sock.sendall(body[-1:])

    server = Server(handler)
    watch = stopwatch()
    held = HeldBytes(8 << 20)
    exchanges = [Exchange(Whole(), held=held) for _ in sizes]
    jobs = [
        gevent.spawn(call, watch, server.url, b"%d" % size, exchange)
        for size, exchange in zip(sizes, exchanges, strict=True)
    ]
    most = 0
    while not may_end.is_set():
        gevent.sleep(0.01)
        most = max(most, held.bytes)
        if all(
            exchange.done or exchange.body_bytes >= size - 1
            for size, exchange in zip(sizes, exchanges, strict=True)
        ):
            may_end.set()
    gevent.joinall(jobs, raise_error=True)

    cuts = [exchange.cut for exchange in exchanges]
    small: Any = exchanges[-1].decoder
    assert cuts.count("too_large") >= 1
    assert cuts.count(None) >= 3
    assert (cuts[-1], small.body) == (None, "answer")
    assert held.bytes == 0, "all of it was given back"
    assert most <= 9 << 20


def test_what_one_answer_may_hold_is_its_share():
    """Small ones are never dropped for a large one."""
    held = HeldBytes(1000)

    assert not held.change(0, 900)
    assert not held.change(0, 90)
    assert not held.change(0, 20)
    assert held.change(90, 400)
    held.change(900, 0)
    assert held.bytes == 420


def test_a_flood_is_decoded_as_it_comes_and_not_gathered():
    """6 MiB of small events after the first content, which nobody waits for: no look is asked for, none is long."""
    events = chunk(b"data: some words\n\n") * 350_000
    looks: list[int] = []

    class Looked(Payload):
        def receive(self, news: News) -> None:
            super().receive(news)
            looks.append(sum(len(piece.payload) for piece in news.pieces))

    server = in_pieces(SSE + chunk(b"data: first\n\n"), events + END, pause_s=0.05)
    call(stopwatch(), server.url, exchange=Exchange(Looked()))

    assert sum(looks) == len(b"data: first\n\n") + 350_000 * len(b"data: some words\n\n")
    assert max(looks) < 1 << 20


@pytest.mark.parametrize(
    ("header", "body"),
    [
        (b"content-encoding: gzip", BOMB),
        (b"content-type: application/json; charset=zlib", zlib.compress(bytes(10 << 20))),
    ],
)
def test_an_sdk_learns_the_status_alone_and_unpacks_nothing(header, body):
    head = b"HTTP/1.1 400 No\r\n%b\r\ncontent-length: %d\r\n\r\n" % (header, len(body))
    server = in_pieces(head + body)
    exchange = Exchange(Payload())
    with watched_by(exchange):
        response = stopwatch().handle_request(httpx2.Request("POST", server.url, content=b"{}"))

    assert (response.status_code, list(response.headers), response.read()) == (400, [], b"")
    assert exchange.plain_body == body
