"""Script: what a capture keeps of responses in any pieces, plain and under TLS, by both readers."""

from __future__ import annotations

import socket
import struct
import sys
from pathlib import Path
from typing import Any

import gevent
import gevent.ssl
import trustme
from starting.script import case, print_facts
from transport.scripts.scripted_server import (
    OK,
    SSE,
    SSE_UNTIL_CLOSE,
    Payload,
    Server,
    call,
    chunk,
    stopwatch,
)

from tailgauge.protocols import shapes
from tailgauge.protocols.decoder import AnswerSettings, StreamDecoder
from tailgauge.protocols.openai import OpenAI
from tailgauge.transport import capture as captures
from tailgauge.transport.capture import Capture, OpenBytes
from tailgauge.transport.exchange import Exchange

FOLDER = Path(sys.argv[1])
EVENTS = chunk(b"data: a\n\n") + chunk(b"data: b\n\n")
END = b"0\r\n\r\n"
INTERIM = b"HTTP/1.1 103 Early Hints\r\nlink: x\r\n\r\n"
COMPRESSED = SSE.replace(b"\r\n\r\n", b"\r\ncontent-encoding: gzip\r\n\r\n")
WIRES = {
    "stream": (SSE + EVENTS + END, "stay"),
    "interim": (INTERIM + SSE + EVENTS + END, "stay"),
    "counted": (OK, "stay"),
    "until_close": (SSE_UNTIL_CLOSE + b"data: a\n\n", "close"),
    "closed_early": (SSE + EVENTS, "close"),
    "reset": (SSE + EVENTS, "reset"),
    "closed_in_the_head": (SSE[:30], "close"),
    "bad_chunk": (SSE + EVENTS + b"zzz\r\n", "stay"),
    "banner": (b"SSH-2.0-OpenSSH_9.2\r\n\r\n", "stay"),
    "compressed": (COMPRESSED + EVENTS, "stay"),
    "excess": (SSE + EVENTS + END + b"more", "stay"),
    "error": (b"HTTP/1.1 500 Oops\r\ncontent-length: 5\r\n\r\nhello", "stay"),
}


def captured(
    pieces: list[bytes], ending: str, *, pause_s: float = 0.005, decoder: Any = None, open_bytes: Any = None,
    tls: Any = None,
) -> dict[str, Any]:  # fmt: skip
    """Send pieces one after the other; what the capture of the exchange has then."""
    server: Server

    def handler(sock: Any, _: int) -> None:
        server.request(sock)
        for piece in pieces:
            sock.sendall(piece)
            gevent.sleep(pause_s)
        if ending == "stay":
            server.wait_end(sock)
        elif ending == "reset":
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))

    authority = None
    if tls is not None:
        tls_context, authority = tls
        server = Server(handler, ssl_context=tls_context)
        server.url = server.url.replace("http:", "https:")
    else:
        server = Server(handler)
    watch = stopwatch(ca_file=authority)
    exchange = Exchange(decoder or Payload())
    exchange.may_wait = True  # as most calls of a run
    capture = exchange.capture = Capture(open_bytes or OpenBytes())
    gevent.spawn_later(3, exchange.abort, "timeout")
    call(watch, server.url, exchange=exchange)
    watch.close()
    held = capture.open_bytes.held
    capture.release()
    times = [at_ns for at_ns, _ in capture.reads]
    return {
        "data": b"".join(data for _, data in capture.reads).decode("latin-1"),
        "reads": len(capture.reads),
        "is_in_order": times == sorted(times),
        "gap_ns": times[-1] - times[0] if times else 0,
        "peer_end": capture.peer_end,
        "left_out": capture.left_out_bytes,
        "method": capture.method,
        "held": [held > 0, capture.open_bytes.held],
        "exchange_reads": exchange.reads,
        "body_bytes": exchange.body_bytes,
        "aborted": exchange.aborted,
    }


@case
def every_split() -> Any:
    """By the name of the wire: those splits after which not all its bytes are there, and the ends that were seen."""
    seen: dict[str, Any] = {}
    for name, (wire, ending) in WIRES.items():
        splits = range(1, len(wire), 3)
        jobs = [
            gevent.spawn(captured, [wire[:at], wire[at:]], ending, pause_s=0.02) for at in splits
        ]
        gevent.joinall(jobs, raise_error=True)
        # What comes behind the end of an answer in a later read belongs to no answer.
        short = [
            at
            for at, job in zip(splits, jobs, strict=True)
            if job.value["data"] != wire.decode("latin-1")
        ]
        ends = sorted({str(job.value["peer_end"]) for job in jobs})
        seen[name] = {
            "short": short,
            "size": len(wire),
            "ends": ends,
            "held": jobs[0].value["held"],
        }
    return seen


def openai_decoder() -> StreamDecoder:
    return StreamDecoder(
        OpenAI.on_event,
        AnswerSettings(shapes=shapes.compiled(OpenAI.shapes, ("error",)), protocol=OpenAI.name),
    )


def text_pieces(count: int) -> list[bytes]:
    deltas = [
        b'data: {"id":"c","model":"m","choices":[{"index":0,"delta":{"content":"w%d "}}]}\n\n' % n
        for n in range(count)
    ]
    return [chunk(delta) for delta in deltas]


@case
def many_plain_reads() -> Any:
    """A stream whose reads are stored without a call for each, and else decoded by the reader itself."""
    pieces = [SSE, *text_pieces(200), chunk(b"data: [DONE]\n\n") + END]
    facts = captured(pieces, "stay", pause_s=0.0005, decoder=openai_decoder())
    return {**facts, "data": facts["data"] == b"".join(pieces).decode()}


@case
def tls() -> Any:
    """Records of one read come one by one."""
    authority = trustme.CA()
    authority.cert_pem.write_to_path(FOLDER / "ca.pem")
    context = gevent.ssl.SSLContext(gevent.ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("127.0.0.1").configure_cert(context)
    pieces = [SSE, *text_pieces(50), END]
    facts = captured(pieces, "stay", pause_s=0.001, tls=(context, str(FOLDER / "ca.pem")))
    return {**facts, "data": facts["data"] == b"".join(pieces).decode()}


@case
def beyond_the_bound_of_one() -> Any:
    most, captures.MAX_ANSWER = captures.MAX_ANSWER, 1000
    facts = captured([SSE, chunk(b"x" * 700), chunk(b"y" * 700), chunk(b"z" * 700), END], "stay")
    captures.MAX_ANSWER = most
    return {**facts, "data": len(facts["data"])}


@case
def beyond_the_bound_of_all() -> Any:
    facts = captured(
        [SSE, chunk(b"x" * 700), chunk(b"y" * 700), END], "stay", open_bytes=OpenBytes(1200)
    )
    return {**facts, "data": len(facts["data"])}


print_facts(limit_s=60)
