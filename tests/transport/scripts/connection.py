"""Script: connections that are kept, closed, refused and aborted."""

from __future__ import annotations

import socket
import time
from typing import Any

import gevent
import gevent.socket
from starting.script import case, print_facts
from transport.scripts.scripted_server import (
    OK,
    REST_S,
    SSE,
    Payload,
    Server,
    answering,
    call,
    chunk,
    facts,
    stopwatch,
)

from tailgauge.clock import monotonic_ns
from tailgauge.transport.connection import resolve
from tailgauge.transport.exchange import Exchange
from tailgauge.transport.http1 import request_bytes
from tailgauge.transport.reader import READER, Departure

HINT = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\nkeep-alive: %b\r\n\r\nok"
BIG = b"x" * (8 * 1024 * 1024)
CONNECT_S = 2.0


def calls(
    server: Server, count: int, pause_s: float = REST_S, **settings: Any
) -> list[dict[str, Any]]:
    watch, seen = stopwatch(**settings), []
    for _ in range(count):
        exchange = call(watch, server.url)
        seen.append(
            {
                **facts(exchange),
                "dns_ns": exchange.connection.dns_ns,
                "connect_ns": exchange.connection.connect_ns,
            }
        )
        gevent.sleep(pause_s)
    watch.close()
    return seen


@case
def kept() -> Any:
    server = answering(OK)
    seen = calls(server, 3)
    gevent.sleep(0.02)
    return {"seen": seen, "connections": server.connections, "ends": server.ends}


@case
def opened_beforehand() -> Any:
    """Six of them, one of which the preflight left; then eight calls at the same time."""
    server, watch = answering(OK), stopwatch()
    call(watch, server.url)
    opened, why = watch.preopen(server.url, 6)
    gevent.sleep(REST_S)
    connections = server.connections
    exchanges = [Exchange(Payload()) for _ in range(8)]
    gevent.joinall(
        [gevent.spawn(call, watch, server.url, exchange=one) for one in exchanges], raise_error=True
    )
    gevent.sleep(REST_S)
    again = call(watch, server.url)
    watch.close()
    return {
        "opened": opened, "why": why, "connections": connections, "again_is_new": again.connection_is_new,
        "is_new": sorted(one.connection_is_new for one in exchanges), "status": [one.status for one in exchanges],
    }  # fmt: skip


@case
def opened_and_closed_by_the_server() -> Any:
    """The server does not like connections on which nobody asks anything for 50 ms."""

    def handler(sock: Any, number: int) -> None:
        if number < 4:
            gevent.sleep(0.05)
        while number >= 4 and server.request(sock):
            sock.sendall(OK)

    server = Server(handler)
    watch = stopwatch()
    opened, why = watch.preopen(server.url, 4)
    gevent.sleep(0.15)
    first = call(watch, server.url)
    gevent.sleep(REST_S)  # as ever: they were closed for another reason than a response
    second = call(watch, server.url)
    watch.close()
    return {
        "opened": opened,
        "why": why,
        "seen": [facts(first), facts(second)],
        "requests": len(server.requests),
    }


@case
def not_opened() -> Any:
    return stopwatch().preopen("http://127.0.0.1:1/v1", 50)


@case
def connection_close_is_obeyed() -> Any:
    server = answering(OK.replace(b"\r\n\r\n", b"\r\nConnection: close\r\n\r\n"))
    return {"seen": calls(server, 2), "connections": server.connections}


@case
def idle_limit() -> Any:
    server, watch = answering(OK), stopwatch(idle_connections=1)
    for _ in range(2):
        gevent.joinall([gevent.spawn(call, watch, server.url) for _ in range(3)], raise_error=True)
        gevent.sleep(REST_S)
    return {"connections": server.connections, "closed": len(server.ends)}


@case
def closed_while_idle() -> Any:
    server: Server

    def handler(sock: Any, _: int) -> None:
        if server.request(sock):
            sock.sendall(OK)
            gevent.sleep(0.02)

    server = Server(handler)
    return {"seen": calls(server, 2, 0.1), "connections": server.connections}


@case
def stale() -> Any:
    """The server takes the second request of a connection and closes without a word."""
    server: Server

    def handler(sock: Any, number: int) -> None:
        if server.request(sock):
            sock.sendall(OK)
            if number == 0:
                server.request(sock)

    server = Server(handler)
    return {
        "seen": calls(server, 2),
        "requests": len(server.requests),
        "connections": server.connections,
    }


@case
def closed_at_first() -> Any:
    server: Server
    server = Server(lambda sock, _: server.request(sock))
    return {"seen": calls(server, 1), "requests": len(server.requests)}


@case
def hints() -> Any:
    values = {
        "short": b"timeout=1",
        "long": b"timeout=60, max=100",
        "odd": b"max=5, timeout=soon",
        "huge": b"timeout=" + b"9" * 5000,
    }
    return {
        name: [s["is_new"] for s in calls(answering(HINT % value), 2)]
        for name, value in values.items()
    }


@case
def garbage_while_idle() -> Any:
    server: Server

    def handler(sock: Any, _: int) -> None:
        while server.request(sock):
            sock.sendall(OK)
            gevent.sleep(0.01)
            sock.sendall(b"HTTP/1.1 200 OK\r\n")

    server = Server(handler)
    return {"seen": calls(server, 2, 0.1), "ends": server.ends}


@case
def refused() -> Any:
    with socket.socket() as holder:
        holder.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{holder.getsockname()[1]}"
        return facts(call(stopwatch(), url))


@case
def no_such_name() -> Any:
    return [
        facts(call(stopwatch(), url))
        for url in ("http://no-such-host.invalid:80", f"http://{'x' * 70}.invalid:80")
    ]


def aborted(at: str) -> Any:
    """Abort a call at a moment; returns its facts, and how the server saw the end."""
    server: Server

    def handler(sock: Any, _: int) -> None:
        server.request(sock)
        if at == "mid-stream":
            sock.sendall(SSE + chunk(b"data: a\n\n"))
        server.wait_end(sock)

    server, watch, exchange = Server(handler), stopwatch(), Exchange(Payload())
    if at == "before":
        exchange.abort("cancelled")
    else:
        gevent.spawn_later(0.1, exchange.abort, "timeout" if at == "waiting" else "cancelled")
    call(watch, server.url, exchange=exchange)
    gevent.sleep(0.05)
    exchange.abort("censored")  # too late: the first reason stands
    again = call(watch, answering(OK).url)
    return {
        **facts(exchange),
        "ends": server.ends,
        "connections": server.connections,
        "again": facts(again)["status"],
    }


@case
def aborted_before() -> Any:
    return aborted("before")


@case
def aborted_waiting() -> Any:
    return aborted("waiting")


@case
def aborted_mid_stream() -> Any:
    return aborted("mid-stream")


def sending(handler: Any, abort_after_s: float | None = None) -> Any:
    """Send 8 MB at a server that takes its time."""
    server, watch, exchange = Server(handler), stopwatch(), Exchange(Payload())
    if abort_after_s is not None:
        gevent.spawn_later(abort_after_s, exchange.abort, "timeout")
    started = monotonic_ns()
    call(watch, server.url, BIG, exchange)
    took_s = (monotonic_ns() - started) / 1e9
    return {
        **facts(exchange),
        "took_s": took_s,
        "sent": exchange.sent_at_ns is not None,
        "watch": watch,
        "server": server,
    }


def plain(seen: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in seen.items() if key not in {"watch", "server"}}


@case
def slow_reader() -> Any:
    taken = []

    def handler(sock: Any, _: int) -> None:
        data = b""
        while len(data) < len(BIG):
            piece = sock.recv(1 << 20)
            data += piece
            if len(taken) < 20:
                gevent.sleep(0.01)
            taken.append(len(piece))
        sock.sendall(OK)

    return {**plain(sending(handler)), "taken": sum(taken)}


@case
def aborted_while_sending() -> Any:
    return plain(sending(lambda *_: gevent.sleep(10), 0.2))


@case
def peer_closes_while_sending() -> Any:
    def handler(sock: Any, _: int) -> None:
        sock.recv(1000)
        gevent.sleep(0.1)

    return plain(sending(handler))


@case
def peer_half_closes_while_sending() -> Any:
    def handler(sock: Any, _: int) -> None:
        gevent.sleep(0.1)
        sock.shutdown(socket.SHUT_WR)
        gevent.sleep(10)

    return plain(sending(handler))


@case
def answered_while_sending() -> Any:
    """A proxy refuses a request by its head, says that the connection stays, and never reads the body."""

    def handler(sock: Any, number: int) -> None:
        sock.recv(1000)
        sock.sendall(OK.replace(b"200 OK", b"413 Too Large"))
        gevent.sleep(10)

    seen = sending(handler)
    gevent.sleep(REST_S)
    again = Exchange(Payload())
    gevent.spawn_later(0.1, again.abort, "timeout")
    call(seen["watch"], seen["server"].url, exchange=again)
    return {**plain(seen), "again_is_new": again.connection_is_new}


def prepare(port: int, exchange: Exchange, watch: Any, body: bytes = b"{}") -> Any:
    """Let a request leave on a new connection, whose notice is taken at once; what is known at the end."""
    origin = ("http", "127.0.0.1", port)
    watch._addresses[origin[1:]] = (0, resolve("127.0.0.1", port, 1)[0])
    data = request_bytes("POST", b"/v1", [(b"content-length", b"%d" % len(body))], body)
    due: list[Departure] = []
    if not watch.may_prepare(origin):
        return None  # the reader in Python sends nothing by itself
    READER.let_leave(1)
    watch.prepare(origin, monotonic_ns() + 1_000_000, data, due.append)
    with gevent.Timeout(10):
        while not due:  # before the connection is there
            READER.catch_up()
        watch.attach(exchange, origin, due[0])
        exchange.wait_end()
    kept = watch._pool.resting(origin)
    watch.close()
    return {**facts(exchange), "sent": exchange.sent_at_ns is not None, "kept": kept}


@case
def prepared_and_answered_late() -> Any:
    """The connection takes a second, because the listener's queue is full, and the answer comes later than one may take."""
    listener = gevent.socket.socket()
    listener.bind(("127.0.0.1", 0))
    listener.listen(0)
    address = listener.getsockname()
    others = [gevent.socket.socket() for _ in range(3)]
    for one in others:
        one.setblocking(False)
        one.connect_ex(address)

    def answer() -> None:
        gevent.sleep(0.2)
        while True:
            gevent.spawn(serve, listener.accept()[0])

    def serve(sock: Any) -> None:
        with sock:
            if sock.recv(65536):
                gevent.sleep(CONNECT_S)
                sock.sendall(OK)

    answering = gevent.spawn(answer)
    found = prepare(address[1], Exchange(Payload()), stopwatch(connect_timeout_s=CONNECT_S))
    answering.kill()
    for one in (*others, listener):
        one.close()
    gevent.sleep(REST_S)
    return found


@case
def prepared_and_answered_while_sending() -> Any:
    """A proxy refuses a large request by its head, says that the connection stays, and never reads the body."""

    def handler(sock: Any, number: int) -> None:
        sock.recv(1000)
        sock.sendall(OK.replace(b"200 OK", b"413 Too Large"))
        gevent.sleep(10)

    return prepare(Server(handler).port, Exchange(Payload()), stopwatch(), BIG)


@case
def prepared_and_refused() -> Any:
    """Nobody listens."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    return prepare(port, Exchange(Payload()), stopwatch())


@case
def left_before_its_pool_is_closed() -> Any:
    """It has left on an idle connection, its notice waits, and the idle connections are closed."""

    def handler(sock: Any, number: int) -> None:
        while sock.recv(1000):
            gevent.sleep(0.05)
            sock.sendall(OK)

    server = Server(handler)
    watch = stopwatch()
    first = prepare_only(server.port, watch)
    if first is None:
        return None
    exchange = Exchange(Payload())
    watch.attach(exchange, *first)
    exchange.wait_end()
    gevent.sleep(REST_S)
    due = prepare_only(server.port, watch, closes=True)
    again = Exchange(Payload())
    watch.attach(again, *due)
    again.wait_end()
    return {**facts(again), "is_new": again.connection_is_new}


def prepare_only(port: int, watch: Any, *, closes: bool = False) -> Any:
    """Let a request leave; its origin and its notice. `closes`: close the idle connections before the notice is taken."""
    origin = ("http", "127.0.0.1", port)
    watch._addresses[origin[1:]] = (0, resolve("127.0.0.1", port, 1)[0])
    if not watch.may_prepare(origin):
        return None
    due: list[Departure] = []
    READER.let_leave(1)
    data = request_bytes("POST", b"/v1", [(b"content-length", b"2")], b"{}")
    watch.prepare(origin, monotonic_ns() + 1_000_000, data, due.append)
    if closes:
        time.sleep(0.02)  # not of gevent: nothing is noticed meanwhile
        watch.close()
    with gevent.Timeout(10):
        while not due:
            READER.catch_up()
    return origin, due[0]


print_facts()
