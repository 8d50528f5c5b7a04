"""TLS: trusted by its authority's file, refused with a reason, and decrypted."""

from __future__ import annotations

import ssl
import warnings
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import gevent
import gevent.ssl
import pytest
import trustme
from transport.scripted_server import (
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

pytestmark = [pytest.mark.gevent, pytest.mark.usefixtures("reader")]

TRUSTED = trustme.CA()
OTHER = trustme.CA()


@pytest.fixture(scope="module")
def ca_file(tmp_path_factory) -> str:
    path = tmp_path_factory.mktemp("authority") / "trusted.pem"
    TRUSTED.cert_pem.write_to_path(path)
    return str(path)


def certified(
    authority: trustme.CA = TRUSTED, host: str = "127.0.0.1", **validity: datetime
) -> ssl.SSLContext:
    context = gevent.ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert(host, **validity).configure_cert(context)
    return context


def expired() -> ssl.SSLContext:
    long_ago = datetime(2020, 1, 1, tzinfo=UTC)
    return certified(not_before=long_ago, not_after=long_ago + timedelta(days=1))


def old_protocol() -> ssl.SSLContext:
    """Of a server that speaks nothing newer than TLS 1.1, with ciphers of that time."""
    context = certified()
    context.set_ciphers("ALL:@SECLEVEL=0")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        context.minimum_version = ssl.TLSVersion.TLSv1
        context.maximum_version = ssl.TLSVersion.TLSv1_1
    return context


def self_signed() -> ssl.SSLContext:
    context = gevent.ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    with OTHER.cert_pem.tempfile() as certificate, OTHER.private_key_pem.tempfile() as key:
        context.load_cert_chain(certificate, key)
    return context


def answering(answer: bytes, context: ssl.SSLContext | None = None) -> Server:
    def handler(sock: Any, _: int) -> None:
        while server.request(sock):
            sock.sendall(answer)

    server = Server(handler, ssl_context=context or certified())
    return server


def called(server: Server, ca_file: str | None) -> Exchange:
    watch = stopwatch(ca_file=ca_file)
    exchange = call(watch, server.url, b"x" * 300_000)
    watch.close()
    return exchange


def test_an_authority_of_ones_own_is_trusted_through_its_file(ca_file):
    server = answering(OK)
    watch = stopwatch(ca_file=ca_file)
    for is_new in (True, False):
        exchange = call(watch, server.url, b"x" * 300_000)
        known = facts(exchange)
        assert (known["status"], known["payload"], known["is_new"]) == (200, "ok", is_new)
        assert exchange.connection.tls_ns > 0
        gevent.sleep(REST_S)
    watch.close()


def test_a_stream_under_tls_is_whole_and_has_kernel_stamps(ca_file):
    events = b"".join(chunk(b"data: %d\n\n" % i) for i in range(2000))
    exchange = called(answering(SSE + events + b"0\r\n\r\n"), ca_file)

    assert exchange.decoder.payload == b"".join(b"data: %d\n\n" % i for i in range(2000))
    assert (exchange.cut, exchange.done, exchange.user_stamps) == (None, True, False)


@pytest.mark.parametrize(
    ("context", "message"),
    [
        (lambda: certified(OTHER), "issuer"),
        (lambda: certified(TRUSTED, "other.example"), "mismatch"),
        (expired, "expired"),
        (self_signed, "self-signed"),
    ],
)
def test_a_certificate_that_is_not_trusted_is_reported_as_such(context, message, ca_file):
    known = facts(called(answering(OK, context()), ca_file))

    assert (known["failure"], known["reported"]) == ("tls_certificate", "ConnectError")
    assert known["status"] is None
    assert known["message"].startswith("certificate not trusted: ")
    assert message in known["message"].replace("IP address", "mismatch: IP address")


def test_an_authority_of_ones_own_is_not_trusted_without_its_file():
    known = facts(called(answering(OK), None))

    assert known["failure"] == "tls_certificate"
    assert "issuer" in known["message"]


def test_a_protocol_of_the_past_is_reported_as_such(ca_file):
    known = facts(called(answering(OK, old_protocol()), ca_file))

    assert (known["failure"], known["reported"]) == ("tls", "ConnectError")
    assert "PROTOCOL_VERSION" in known["message"]


def test_a_server_without_tls_is_reported_as_such(ca_file):
    def handler(sock: Any, _: int) -> None:
        sock.recv(65536)
        sock.sendall(b"HTTP/1.1 400 Bad Request\r\ncontent-length: 0\r\n\r\n")
        gevent.sleep(1)

    server = Server(handler)
    server.url = server.url.replace("http:", "https:")
    known = facts(called(server, ca_file))

    assert (known["failure"], known["reported"]) == ("tls", "ConnectError")
    assert "WRONG_VERSION_NUMBER" in known["message"]


@pytest.mark.parametrize(
    ("text", "message"), [(None, "ca.pem: No such file"), ("nothing", "ca.pem: no PEM file")]
)
def test_a_file_that_is_no_authority_is_reported_as_such(text, message, tmp_path):
    if text is not None:
        (tmp_path / "ca.pem").write_text(text)
    known = facts(called(answering(OK), str(tmp_path / "ca.pem")))

    assert (known["failure"], known["reported"]) == ("ca_file", "ConnectError")
    assert message in known["message"]


def test_a_server_that_never_answers_a_handshake_is_a_time_out():
    url = Server(lambda *_: gevent.sleep(10)).url.replace("http:", "https:")
    known = facts(call(stopwatch(connect_timeout_s=0.3), url))

    assert (known["failure"], known["reported"]) == ("timeout", "ConnectError")


class Ahead:
    """Prepares requests over TLS, after a call that leaves an idle connection."""

    def __init__(self, ca_file: str) -> None:
        self.server = answering(OK)
        self.watch = stopwatch(ca_file=ca_file)
        self.origin = ("https", "127.0.0.1", self.server.port)
        self.due: list[Departure] = []
        READER.let_leave(10)
        call(self.watch, self.server.url)
        gevent.sleep(REST_S)

    def prepare(self, after_s: float) -> Callable[[], bool]:
        """Prepare one for later; what withdraws it."""
        assert self.watch.may_prepare(self.origin)
        data = request_bytes("POST", b"/v1", [(b"content-length", b"2")], b"{}")
        due_ns = monotonic_ns() + int(1e9 * after_s)
        withdraw = self.watch.prepare(self.origin, due_ns, data, self.due.append)
        assert withdraw is not None
        return withdraw

    def departure(self) -> Departure:
        with gevent.Timeout(10):
            while not self.due:
                gevent.sleep(0.001)
        return self.due.pop()

    def assert_that_its_connection_is_closed(self) -> None:
        """And that the server saw the first call only."""
        assert not self.watch.rests(self.origin)
        self.watch.close()
        gevent.sleep(REST_S)
        assert len(self.server.requests) == 1


@pytest.fixture
def ahead(reading_thread, ca_file) -> Ahead:
    return Ahead(ca_file)


def test_a_request_that_was_prepared_leaves_on_an_idle_connection(ahead):
    """Twice on that of the first call, which others cannot use meanwhile."""
    for _ in range(2):
        ahead.prepare(0.02)
        assert not ahead.watch.rests(ahead.origin)
        exchange = Exchange(Payload())
        ahead.watch.attach(exchange, ahead.origin, ahead.departure())
        exchange.wait_end()
        gevent.sleep(REST_S)
        known = facts(exchange)
        assert (known["status"], known["payload"], known["is_new"]) == (200, "ok", False)
        assert exchange.sent_at_ns is not None

    assert ahead.watch.rests(ahead.origin)
    assert (len(ahead.server.requests), ahead.server.connections) == (3, 1)
    ahead.watch.close()


def test_a_connection_for_which_a_request_was_encrypted_and_withdrawn_is_used_for_no_other(ahead):
    withdraw = ahead.prepare(60.0)

    assert withdraw()
    assert not withdraw()
    assert ahead.due == []
    ahead.assert_that_its_connection_is_closed()


def test_nor_is_that_of_a_request_above_the_cap_which_comes_back(ahead):
    READER.let_leave(0)
    ahead.prepare(0.01)

    assert ahead.departure().is_back
    ahead.assert_that_its_connection_is_closed()


def test_nor_is_one_that_the_server_closes_before_the_request_is_due(ahead):
    ahead.prepare(0.2)
    ahead.server.hang_up()

    assert ahead.departure().is_back
    ahead.assert_that_its_connection_is_closed()
