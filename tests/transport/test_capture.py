"""The raw bytes of an answer are all there, in whatever pieces they came."""

from __future__ import annotations

from typing import Any

import gevent
import gevent.ssl
import pytest
import trustme
from transport.scripted_server import (
    OK,
    SSE,
    SSE_UNTIL_CLOSE,
    Payload,
    call,
    chunk,
    in_pieces,
    stopwatch,
)

from tailgauge.protocols import shapes
from tailgauge.protocols.decoder import AnswerSettings, StreamDecoder
from tailgauge.protocols.openai import OpenAI
from tailgauge.transport import capture as captures
from tailgauge.transport.capture import Capture, OpenBytes
from tailgauge.transport.exchange import Exchange

pytestmark = [pytest.mark.gevent, pytest.mark.usefixtures("reader")]

EVENTS = chunk(b"data: a\n\n") + chunk(b"data: b\n\n")
END = b"0\r\n\r\n"
INTERIM = b"HTTP/1.1 103 Early Hints\r\nlink: x\r\n\r\n"
COMPRESSED = SSE.replace(b"\r\n\r\n", b"\r\ncontent-encoding: gzip\r\n\r\n")
ERROR = b"HTTP/1.1 500 Oops\r\ncontent-length: 5\r\n\r\nhello"
# name -> what is sent, how the server ends the connection, how the peer is seen to end it
WIRES = {
    "stream": (SSE + EVENTS + END, "stay", None),
    "interim": (INTERIM + SSE + EVENTS + END, "stay", None),
    "counted": (OK, "stay", None),
    "until_close": (SSE_UNTIL_CLOSE + b"data: a\n\n", "close", "closed"),
    "closed_early": (SSE + EVENTS, "close", "closed"),
    "reset": (SSE + EVENTS, "reset", "reset"),
    "closed_in_the_head": (SSE[:30], "close", "closed"),
    "error": (ERROR, "stay", None),
}  # fmt: skip
# The exchange ends before the last byte: what comes in a later read belongs to no answer.
ENDS_BEFORE_ITS_LAST_BYTE = {
    "bad_chunk": (SSE + EVENTS + b"zzz\r\n", "stay", None),
    "banner": (b"SSH-2.0-OpenSSH_9.2\r\n\r\n", "stay", None),
    "compressed": (COMPRESSED + EVENTS, "stay", None),
    "excess": (SSE + EVENTS + END + b"more", "stay", None),
}


def captured(
    *pieces: bytes,
    ending: str = "stay",
    pause_s: float = 0.005,
    decoder: Any = None,
    open_bytes: OpenBytes | None = None,
    ca_file: str | None = None,
    **tls: Any,
) -> Exchange:
    """Call a server that sends these pieces; the exchange has a capture whose memory is given back."""
    watch = stopwatch(ca_file=ca_file)
    exchange = Exchange(decoder or Payload())
    exchange.may_wait = True  # as most calls of a run
    capture = exchange.capture = Capture(open_bytes or OpenBytes())
    gevent.spawn_later(3, exchange.abort, "timeout")
    server = in_pieces(*pieces, ending=ending, pause_s=pause_s, **tls)
    call(watch, server.url, exchange=exchange)
    watch.close()

    assert capture.open_bytes.held > 0
    capture.release()
    assert capture.open_bytes.held == 0
    return exchange


def data_of(exchange: Exchange) -> bytes:
    times = [at_ns for at_ns, _ in exchange.capture.reads]
    assert times == sorted(times)
    return b"".join(data for _, data in exchange.capture.reads)


@pytest.mark.parametrize("name", WIRES | ENDS_BEFORE_ITS_LAST_BYTE)
def test_every_byte_is_kept_wherever_an_answer_was_split(name):
    wire, ending, peer_end = (WIRES | ENDS_BEFORE_ITS_LAST_BYTE)[name]
    splits = range(1, len(wire), 3)
    jobs = [
        gevent.spawn(captured, wire[:at], wire[at:], ending=ending, pause_s=0.02) for at in splits
    ]
    gevent.joinall(jobs, raise_error=True)

    assert {job.value.capture.peer_end for job in jobs} == {peer_end}
    short = [at for at, job in zip(splits, jobs, strict=True) if data_of(job.value) != wire]
    if name in WIRES:
        assert short == []
    assert len(short) < len(wire) / 3


def text_pieces(count: int) -> list[bytes]:
    deltas = [
        b'data: {"id":"c","model":"m","choices":[{"index":0,"delta":{"content":"w%d "}}]}\n\n' % n
        for n in range(count)
    ]
    return [chunk(delta) for delta in deltas]


def test_a_stream_that_no_one_waits_for_is_kept_read_by_read():
    """Its reads are stored without a call for each, and else decoded by the reader itself."""
    pieces = [SSE, *text_pieces(200), chunk(b"data: [DONE]\n\n") + END]
    settings = AnswerSettings(
        shapes=shapes.compiled(OpenAI.shapes, ("error",)), protocol=OpenAI.name
    )
    decoder = StreamDecoder(OpenAI.on_event, settings)
    exchange = captured(*pieces, pause_s=0.0005, decoder=decoder)
    reads = exchange.capture.reads

    assert data_of(exchange) == b"".join(pieces)
    assert exchange.reads == len(reads) > 50
    assert reads[-1][0] - reads[0][0] > 50_000_000
    assert (exchange.capture.method, exchange.capture.left_out_bytes) == ("POST", 0)


def test_a_stream_under_tls_is_kept_decrypted(tmp_path):
    """Records of one read come one by one."""
    authority = trustme.CA()
    authority.cert_pem.write_to_path(tmp_path / "ca.pem")
    context = gevent.ssl.SSLContext(gevent.ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("127.0.0.1").configure_cert(context)
    pieces = [SSE, *text_pieces(50), END]
    exchange = captured(
        *pieces, pause_s=0.001, ca_file=str(tmp_path / "ca.pem"), ssl_context=context
    )

    assert data_of(exchange) == b"".join(pieces)


def test_an_answer_beyond_its_bound_keeps_its_beginning_and_counts_the_rest(monkeypatch):
    monkeypatch.setattr(captures, "MAX_ANSWER", 1000)
    pieces = [SSE, chunk(b"x" * 700), chunk(b"y" * 700), chunk(b"z" * 700), END]
    exchange = captured(*pieces)

    assert data_of(exchange) == b"".join(pieces)[:1000]
    assert exchange.capture.left_out_bytes == len(b"".join(pieces)) - 1000
    assert exchange.aborted is None


def test_answers_beyond_the_bound_of_all_keep_their_beginning():
    pieces = [SSE, chunk(b"x" * 700), chunk(b"y" * 700), END]
    exchange = captured(*pieces, open_bytes=OpenBytes(1200))

    assert 0 < len(data_of(exchange)) < 1200
    assert exchange.capture.left_out_bytes > 0
