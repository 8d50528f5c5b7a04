"""Script: TLS, trusted and not, with throw-away certificates."""

from __future__ import annotations

import ssl
import sys
import warnings
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import gevent
import gevent.ssl
import trustme
from starting.script import case, print_facts
from transport.scripts.scripted_server import (
    OK,
    REST_S,
    SSE,
    Payload,
    Server,
    call,
    chunk,
    facts,
    stopwatch,
)

from tailgauge.clock import monotonic_ns
from tailgauge.transport.exchange import Exchange
from tailgauge.transport.http1 import request_bytes
from tailgauge.transport.reader import READER, Departure

FOLDER = Path(sys.argv[1])


def authority(name: str) -> tuple[Any, str]:
    made = trustme.CA()
    made.cert_pem.write_to_path(FOLDER / name)
    return made, str(FOLDER / name)


def context(made: Any, host: str = "127.0.0.1", **more: Any) -> ssl.SSLContext:
    server = gevent.ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)  # the plain one would block the hub
    made.issue_cert(host, **more).configure_cert(server)
    return server


def old_tls() -> ssl.SSLContext:
    """A server that speaks nothing newer than TLS 1.1, with ciphers of that time."""
    server = context(TRUSTED)
    server.set_ciphers("ALL:@SECLEVEL=0")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        server.minimum_version, server.maximum_version = (
            ssl.TLSVersion.TLSv1,
            ssl.TLSVersion.TLSv1_1,
        )
    return server


def signed_by_itself() -> ssl.SSLContext:
    server = gevent.ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    with OTHER.cert_pem.tempfile() as certificate, OTHER.private_key_pem.tempfile() as key:
        server.load_cert_chain(certificate, key)
    return server


TRUSTED, TRUSTED_FILE = authority("trusted.pem")
OTHER, _ = authority("other.pem")


def serving(answer: bytes, **tls: Any) -> Server:
    server: Server

    def handler(sock: Any, _: int) -> None:
        while server.request(sock):
            sock.sendall(answer)

    server = Server(handler, **tls)
    server.url = server.url.replace("http:", "https:")
    return server


def calls(server: Server, ca_file: str | None, count: int = 1) -> list[dict[str, Any]]:
    watch, seen = stopwatch(ca_file=ca_file), []
    for _ in range(count):
        exchange = call(watch, server.url, b"x" * 300_000)
        seen.append({**facts(exchange), "tls_ns": exchange.connection.tls_ns if exchange.connection else None,
                     "kernel": not exchange.user_stamps, "reads": exchange.reads})  # fmt: skip
        gevent.sleep(REST_S)
    watch.close()
    return seen


@case
def trusted() -> Any:
    return calls(serving(OK, ssl_context=context(TRUSTED)), TRUSTED_FILE, 2)


@case
def streamed() -> Any:
    events = b"".join(chunk(b"data: %d\n\n" % i) for i in range(2000))
    return calls(serving(SSE + events + b"0\r\n\r\n", ssl_context=context(TRUSTED)), TRUSTED_FILE)


@case
def untrusted() -> Any:
    return calls(serving(OK, ssl_context=context(OTHER)), TRUSTED_FILE)


@case
def untrusted_by_default() -> Any:
    return calls(serving(OK, ssl_context=context(TRUSTED)), None)


@case
def another_host() -> Any:
    return calls(serving(OK, ssl_context=context(TRUSTED, "other.example")), TRUSTED_FILE)


@case
def expired() -> Any:
    long_ago = datetime(2020, 1, 1, tzinfo=UTC)
    times = {"not_before": long_ago, "not_after": long_ago + timedelta(days=1)}
    return calls(serving(OK, ssl_context=context(TRUSTED, **times)), TRUSTED_FILE)


@case
def self_signed() -> Any:
    return calls(serving(OK, ssl_context=signed_by_itself()), TRUSTED_FILE)


@case
def old_protocol() -> Any:
    return calls(serving(OK, ssl_context=old_tls()), TRUSTED_FILE)


@case
def plain_server() -> Any:
    def handler(sock: Any, _: int) -> None:
        sock.recv(65536)
        sock.sendall(b"HTTP/1.1 400 Bad Request\r\ncontent-length: 0\r\n\r\n")
        gevent.sleep(1)

    server = Server(handler)
    server.url = server.url.replace("http:", "https:")
    return calls(server, TRUSTED_FILE)


@case
def no_authority_file() -> Any:
    return calls(serving(OK, ssl_context=context(TRUSTED)), str(FOLDER / "missing.pem"))


@case
def no_certificate_in_it() -> Any:
    (FOLDER / "empty.pem").write_text("nothing")
    return calls(serving(OK, ssl_context=context(TRUSTED)), str(FOLDER / "empty.pem"))


@case
def silent_server() -> Any:
    server = Server(lambda *_: gevent.sleep(10))
    return facts(call(stopwatch(connect_timeout_s=0.3), server.url.replace("http:", "https:")))


class Ahead:
    """Prepares requests over TLS, after a call that leaves an idle connection."""

    def __init__(self) -> None:
        self.server = serving(OK, ssl_context=context(TRUSTED))
        self.watch = stopwatch(ca_file=TRUSTED_FILE)
        self.origin = ("https", "127.0.0.1", self.server.port)
        self.due: list[Departure] = []
        self.withdraw: Any = None
        READER.let_leave(10)
        call(self.watch, self.server.url)
        gevent.sleep(REST_S)

    def prepare(self, after_s: float) -> bool:
        """Prepare one for later; whether it could be."""
        if not self.watch.may_prepare(self.origin):
            return False
        data = request_bytes("POST", b"/v1", [(b"content-length", b"2")], b"{}")
        self.withdraw = self.watch.prepare(
            self.origin, monotonic_ns() + int(1e9 * after_s), data, self.due.append
        )
        return self.withdraw is not None

    def wait(self) -> Departure:
        """How it left."""
        with gevent.Timeout(10):
            while not self.due:
                gevent.sleep(0.001)
        return self.due.pop()

    def end(self) -> dict[str, Any]:
        """What the server has seen."""
        idle = self.watch.rests(self.origin)
        self.watch.close()
        gevent.sleep(REST_S)
        return {
            "requests": len(self.server.requests),
            "connections": self.server.connections,
            "idle": idle,
        }


@case
def prepared() -> Any:
    """Twice on the connection of the first call, which others cannot use meanwhile."""
    ahead = Ahead()
    seen = []
    for _ in range(2):
        if not ahead.prepare(0.02):
            return None  # the reader in Python sends nothing by itself
        kept = not ahead.watch.rests(ahead.origin)
        due = ahead.wait()
        exchange = Exchange(Payload())
        ahead.watch.attach(exchange, ahead.origin, due)
        exchange.wait_end()
        gevent.sleep(REST_S)
        seen.append({**facts(exchange), "kept": kept, "sent": exchange.sent_at_ns is not None})
    return {"calls": seen, **ahead.end()}


@case
def prepared_and_withdrawn() -> Any:
    ahead = Ahead()
    is_prepared = ahead.prepare(60.0)
    withdrawn = [ahead.withdraw(), ahead.withdraw()] if is_prepared else []
    return {"withdrawn": withdrawn, "due": len(ahead.due), **ahead.end()}


@case
def prepared_above_the_cap() -> Any:
    """No more requests may leave."""
    ahead = Ahead()
    READER.let_leave(0)
    is_back = ahead.wait().is_back if ahead.prepare(0.01) else None
    return {"is_back": is_back, **ahead.end()}


@case
def prepared_for_a_connection_that_ends() -> Any:
    """The server closes it before the request is due."""
    ahead = Ahead()
    is_prepared = ahead.prepare(0.2)
    ahead.server.hang_up()
    return {"is_back": ahead.wait().is_back if is_prepared else None, **ahead.end()}


print_facts()
