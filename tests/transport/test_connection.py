"""Connections: kept, closed, refused, aborted, and sent to."""

from __future__ import annotations

import socket
from typing import Any

import gevent
import gevent.socket
import pytest
from transport.scripted_server import (
    OK,
    REST_S,
    SSE,
    Payload,
    Server,
    answering,
    block_process,
    call,
    chunk,
    facts,
    stopwatch,
)

from tailgauge.clock import monotonic_ns
from tailgauge.transport.capture import Capture, OpenBytes
from tailgauge.transport.connection import connect, resolve
from tailgauge.transport.exchange import Exchange
from tailgauge.transport.http1 import request_bytes
from tailgauge.transport.reader import READER, Departure

pytestmark = [pytest.mark.gevent, pytest.mark.usefixtures("reader", "silent")]

TOO_LARGE = OK.replace(b"200 OK", b"413 Too Large")
BIG = b"x" * (8 * 1024 * 1024)
CONNECT_S = 2.0
# Far more than any of these takes, far less than the time-outs that would end a hang.
PATIENCE_S = 8


def calls(
    server: Server, count: int = 2, pause_s: float = REST_S, **settings: Any
) -> list[Exchange]:
    watch = stopwatch(**settings)
    exchanges = []
    for _ in range(count):
        exchanges.append(call(watch, server.url))
        gevent.sleep(pause_s)
    watch.close()
    return exchanges


def statuses(exchanges: list[Exchange]) -> list[tuple[int | None, bool]]:
    """Status, and whether the connection was new."""
    return [(exchange.status, exchange.connection_is_new) for exchange in exchanges]


def answering_once(pause_s: float) -> Server:
    """Each connection serves one request and is closed after a pause."""

    def handler(sock: Any, _: int) -> None:
        if server.request(sock):
            sock.sendall(OK)
            gevent.sleep(pause_s)

    server = Server(handler)
    return server


def test_a_connection_is_kept_for_the_next_request():
    server = answering(OK)
    exchanges = calls(server, 3)
    gevent.sleep(0.02)

    assert statuses(exchanges) == [(200, True), (200, False), (200, False)]
    assert [facts(exchange)["payload"] for exchange in exchanges] == ["ok"] * 3
    assert len({exchange.connection.number for exchange in exchanges}) == 1
    assert (server.connections, server.ends) == (1, ["EOF"])  # and closed with the stopwatch
    assert exchanges[0].connection.dns_ns == 0, "a literal address costs no look-up"
    assert exchanges[0].connection.connect_ns > 0


def test_connections_opened_beforehand_are_used_before_new_ones_are_opened():
    """Six of them, one of which the preflight left; then eight calls at the same time."""
    server = answering(OK)
    watch = stopwatch()
    call(watch, server.url)

    assert watch.preopen(server.url, 6) == (6, None)
    gevent.sleep(REST_S)
    assert server.connections == 6
    exchanges = [Exchange(Payload()) for _ in range(8)]
    gevent.joinall(
        [gevent.spawn(call, watch, server.url, exchange=one) for one in exchanges], raise_error=True
    )
    assert sorted(statuses(exchanges)) == [(200, False)] * 6 + [(200, True)] * 2
    gevent.sleep(REST_S)
    assert not call(watch, server.url).connection_is_new
    watch.close()


def test_connections_opened_beforehand_that_the_server_closed_are_not_used_and_not_held_against_it():
    """The next call opens its own; the one after it finds that one rested, as after any response."""

    def handler(sock: Any, number: int) -> None:
        if number < 4:
            gevent.sleep(0.05)
        while number >= 4 and server.request(sock):
            sock.sendall(OK)

    server = Server(handler)
    watch = stopwatch()

    assert watch.preopen(server.url, 4) == (4, None)
    gevent.sleep(0.15)
    first = call(watch, server.url)
    gevent.sleep(REST_S)
    second = call(watch, server.url)
    watch.close()
    assert statuses([first, second]) == [(200, True), (200, False)]
    assert len(server.requests) == 2


def test_why_a_connection_could_not_be_opened_beforehand_is_reported():
    assert stopwatch().preopen("http://127.0.0.1:1/v1", 50) == (0, "tcp: Connection refused")


@pytest.mark.parametrize(
    ("header", "is_kept"),
    [
        (b"Connection: close", False),
        (b"Keep-Alive: timeout=1", False),  # less one second of margin: not worth a try
        (b"Keep-Alive: timeout=60, max=100", True),
        (b"Keep-Alive: max=5, timeout=soon", True),
        (b"Keep-Alive: timeout=" + b"9" * 5000, True),
    ],
)
def test_what_the_server_says_of_a_connection_is_honoured(header, is_kept):
    server = answering(OK.replace(b"\r\n\r\n", b"\r\n" + header + b"\r\n\r\n"))

    assert statuses(calls(server)) == [(200, True), (200, not is_kept)]


def test_no_more_connections_are_kept_than_the_scenario_allows():
    """Two rounds of three: the second finds one."""
    server = answering(OK)
    watch = stopwatch(idle_connections=1)
    for _ in range(2):
        gevent.joinall([gevent.spawn(call, watch, server.url) for _ in range(3)], raise_error=True)
        gevent.sleep(REST_S)

    assert (server.connections, len(server.ends)) == (5, 4)


def test_a_connection_that_the_server_closed_while_idle_is_not_used_again():
    assert statuses(calls(answering_once(0.02), 2, 0.1)) == [(200, True), (200, True)]


def test_a_connection_on_which_nobody_asked_for_bytes_is_closed():
    def handler(sock: Any, _: int) -> None:
        while server.request(sock):
            sock.sendall(OK)
            gevent.sleep(0.01)
            sock.sendall(b"HTTP/1.1 200 OK\r\n")

    server = Server(handler)
    exchanges = calls(server, 2, 0.1)

    assert statuses(exchanges) == [(200, True), (200, True)]
    assert facts(exchanges[1])["payload"] == "ok"


def test_a_request_on_a_connection_that_was_going_away_is_reported_as_stale_and_never_sent_again():
    """The server takes the second request of a connection and closes without a word."""

    def handler(sock: Any, number: int) -> None:
        if server.request(sock):
            sock.sendall(OK)
            server.request(sock)

    server = Server(handler)
    second = facts(calls(server)[1])

    assert (second["failure"], second["is_new"]) == ("stale_connection", False)
    assert (second["status"], second["reported"]) == (None, "ReadError")
    assert (len(server.requests), server.connections) == (2, 1)


def test_a_new_connection_that_is_closed_without_an_answer_is_not_stale():
    server: Server
    server = Server(lambda sock, _: server.request(sock))
    known = facts(call(stopwatch(), server.url))

    assert (known["failure"], known["reported"]) == ("closed", "ReadError")
    assert len(server.requests) == 1


def test_a_refused_connection_is_reported_as_such():
    with socket.socket() as holder:
        holder.bind(("127.0.0.1", 0))
        known = facts(call(stopwatch(), f"http://127.0.0.1:{holder.getsockname()[1]}"))

    assert (known["failure"], known["message"]) == ("tcp", "Connection refused")
    assert known["reported"] == "ConnectError"


@pytest.mark.parametrize("name", ["no-such-host", "x" * 70])
def test_a_name_without_an_address_is_reported_as_such(name):
    known = facts(call(stopwatch(), f"http://{name}.invalid:80"))

    assert (known["failure"], known["reported"]) == ("dns", "ConnectError")


# --- aborted ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("moment", "reason", "status", "payload", "reported"),
    [
        ("before", "cancelled", None, "", "ReadError"),
        ("waiting", "timeout", None, "", "ReadTimeout"),
        ("mid-stream", "cancelled", 200, "data: a\n\n", None),
    ],
)
def test_an_aborted_call_closes_its_connection_and_keeps_what_came(
    moment, reason, status, payload, reported
):
    def handler(sock: Any, _: int) -> None:
        server.request(sock)
        if moment == "mid-stream":
            sock.sendall(SSE + chunk(b"data: a\n\n"))
        server.wait_end(sock)

    server = Server(handler)
    watch = stopwatch()
    exchange = Exchange(Payload())
    if moment == "before":
        exchange.abort(reason)
    else:
        gevent.spawn_later(0.1, exchange.abort, reason)
    call(watch, server.url, exchange=exchange)
    gevent.sleep(0.05)
    exchange.abort("censored")  # too late: the first reason stands

    known = facts(exchange)
    assert (known["aborted"], known["done"]) == (reason, True)
    assert (known["status"], known["payload"]) == (status, payload)
    assert known["reported"] == reported
    if moment == "before":
        assert (server.connections, exchange.connection) == (0, None)
    else:
        assert server.ends == ["ConnectionResetError"]
    assert call(watch, answering(OK).url).status == 200, "it leaves nothing behind for the next"


# --- sending ----------------------------------------------------------------------------------------------------


def sent_big(server: Server, watch: Any = None, abort_after_s: float | None = None) -> Exchange:
    """Send 8 MB at a server that takes its time."""
    exchange = Exchange(Payload())
    if abort_after_s is not None:
        gevent.spawn_later(abort_after_s, exchange.abort, "timeout")
    with gevent.Timeout(PATIENCE_S):
        call(watch or stopwatch(), server.url, BIG, exchange)
    return exchange


def test_a_large_request_reaches_a_slow_reader_whole():
    sizes = []

    def handler(sock: Any, _: int) -> None:
        while sum(sizes) < len(BIG):
            sizes.append(len(sock.recv(1 << 20)))
            if len(sizes) < 20:
                gevent.sleep(0.01)
        sock.sendall(OK)

    known = facts(sent_big(Server(handler)))

    assert (known["status"], known["payload"], known["failure"]) == (200, "ok", None)
    assert sum(sizes) > len(BIG)


def never_reads(*_: Any) -> None:
    gevent.sleep(10)


def closes(sock: Any, _: int) -> None:
    sock.recv(1000)
    gevent.sleep(0.1)


def half_closes(sock: Any, _: int) -> None:
    gevent.sleep(0.1)
    sock.shutdown(socket.SHUT_WR)
    gevent.sleep(10)


def refuses(sock: Any, _: int) -> None:
    """As a proxy: by the head, as if the connection stayed; the body is never read."""
    sock.recv(1000)
    sock.sendall(TOO_LARGE)
    gevent.sleep(10)


@pytest.mark.parametrize(
    ("handler", "abort_after_s", "aborted", "failure"),
    [
        (never_reads, 0.2, "timeout", None),
        (closes, None, None, "closed"),
        (half_closes, None, None, "closed"),
    ],
)
def test_a_call_whose_connection_ends_while_it_is_sent_ends_with_it(
    handler, abort_after_s, aborted, failure
):
    exchange = sent_big(Server(handler), abort_after_s=abort_after_s)
    known = facts(exchange)

    assert (known["aborted"], known["failure"], known["status"]) == (aborted, failure, None)
    assert exchange.sent_at_ns is not None, "the first byte went out, and when is known"


def test_a_connection_whose_request_was_answered_before_it_was_sent_whole_is_not_kept():
    server = Server(refuses)
    watch = stopwatch()
    known = facts(sent_big(server, watch))

    assert (known["status"], known["payload"], known["failure"]) == (413, "ok", None)
    gevent.sleep(REST_S)
    again = Exchange(Payload())
    gevent.spawn_later(0.1, again.abort, "timeout")
    call(watch, server.url, exchange=again)
    assert again.connection_is_new


def test_an_address_of_a_family_that_this_machine_lacks_is_passed_over():
    unknown = (39_999, socket.SOCK_STREAM, 0, "", ("::1", 1))
    with gevent.socket.create_server(("127.0.0.1", 0)) as listener:
        addresses = resolve("127.0.0.1", listener.getsockname()[1], 1)[0]
        connect(1, [unknown, *addresses], 2.0).close()


# --- requests that the thread sends -----------------------------------------------------------------------------


class Prepared:
    """Requests that leave by themselves, and what becomes of them."""

    def __init__(self, port: int, **settings: Any) -> None:
        self.watch = stopwatch(**settings)
        self.origin = ("http", "127.0.0.1", port)
        self.watch._addresses[self.origin[1:]] = (0, resolve("127.0.0.1", port, 1)[0])
        self.due: list[Departure] = []

    def leave(self, body: bytes = b"{}") -> None:
        assert self.watch.may_prepare(self.origin)
        READER.let_leave(1)
        data = request_bytes("POST", b"/v1", [(b"content-length", b"%d" % len(body))], body)
        self.watch.prepare(self.origin, monotonic_ns() + 1_000_000, data, self.due.append)

    def answer(self) -> Exchange:
        """Take the notice at once, before the connection is there, and wait for the end."""
        exchange = Exchange(Payload())
        exchange.capture = Capture(OpenBytes())
        with gevent.Timeout(10):
            while not self.due:
                READER.catch_up()
            self.watch.attach(exchange, self.origin, self.due.pop())
            exchange.wait_end()
        return exchange


@pytest.mark.usefixtures("reading_thread")
def test_a_prepared_request_may_be_answered_later_than_a_connection_may_take():
    """The connection takes a second, because the listener's queue is full, and the answer comes later than one may take."""
    listener = gevent.socket.socket()
    listener.bind(("127.0.0.1", 0))
    listener.listen(0)
    others = [gevent.socket.socket() for _ in range(3)]
    for other in others:
        other.setblocking(False)
        other.connect_ex(listener.getsockname())

    def accept() -> None:
        gevent.sleep(0.2)
        while True:
            gevent.spawn(serve, listener.accept()[0])

    def serve(sock: Any) -> None:
        with sock:
            if sock.recv(65536):
                gevent.sleep(CONNECT_S)
                sock.sendall(OK)

    accepting = gevent.spawn(accept)
    prepared = Prepared(listener.getsockname()[1], connect_timeout_s=CONNECT_S)
    prepared.leave()
    exchange = prepared.answer()
    accepting.kill()
    for one in (*others, listener):
        one.close()

    known = facts(exchange)
    assert (known["failure"], known["status"], known["payload"]) == (None, 200, "ok")
    assert exchange.connection_is_new
    assert exchange.sent_at_ns is not None
    assert exchange.capture.method == "POST"


@pytest.mark.usefixtures("reading_thread")
def test_nor_is_the_connection_of_a_prepared_request_kept_that_was_answered_before_it_was_sent():
    prepared = Prepared(Server(refuses).port)
    prepared.leave(BIG)
    exchange = prepared.answer()

    known = facts(exchange)
    assert (known["failure"], known["status"], known["payload"]) == (None, 413, "ok")
    assert exchange.sent_at_ns is not None
    assert prepared.watch._pool.resting(prepared.origin) == 0


@pytest.mark.usefixtures("reading_thread")
def test_a_prepared_request_that_finds_nobody_fails_as_others_do():
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    prepared = Prepared(port)
    prepared.leave()
    exchange = prepared.answer()

    assert exchange.failure == ("tcp", "Connection refused")
    assert exchange.sent_at_ns is None


@pytest.mark.usefixtures("reading_thread")
def test_a_connection_on_which_a_request_has_left_stays_open_when_idle_ones_are_closed():
    """Its notice waits meanwhile."""

    def handler(sock: Any, _: int) -> None:
        while sock.recv(1000):
            gevent.sleep(0.05)
            sock.sendall(OK)

    prepared = Prepared(Server(handler).port)
    prepared.leave()
    prepared.answer()
    gevent.sleep(REST_S)
    prepared.leave()
    block_process(0.02)
    prepared.watch.close()
    exchange = prepared.answer()

    assert (exchange.status, exchange.failure) == (200, None)
    assert not exchange.connection_is_new
