"""Script: streams under TLS whose records lie anywhere in what is sent, and how their ends are noticed."""

from __future__ import annotations

import resource
import socket
import ssl
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import gevent
import trustme
from starting.script import CASES, case, print_facts
from transport.scripts import scripted_server
from transport.scripts.scripted_server import (
    REST_S,
    SSE,
    Payload,
    Server,
    call,
    chunk,
    facts,
    stopwatch,
    until_read,
)

from tailgauge.clock import monotonic_ns
from tailgauge.transport.exchange import Exchange

FOLDER = Path(sys.argv[1])
GAP_S, EVENTS, ANSWERS, FLOOD = 0.02, 4, 5, 24_000
FLOODING = """
import socket, ssl, sys
context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
context.load_cert_chain(sys.argv[1])
with socket.create_server(("127.0.0.1", 0)) as listener:
    print(listener.getsockname()[1], flush=True)
    with context.wrap_socket(listener.accept()[0], server_side=True) as sock:
        sock.recv(65536)
        sock.sendall(b"HTTP/1.1 200 OK\\r\\ncontent-type: text/event-stream\\r\\ntransfer-encoding: chunked\\r\\n\\r\\n")
        for _ in range(int(sys.argv[2])):
            sock.sendall(b"3e8\\r\\n" + b"x" * 1000 + b"\\r\\n")
        sock.sendall(b"0\\r\\n\\r\\n")
        sock.recv(1)
"""
END = b"0\r\n\r\n"
EVENT = chunk(b"data: %b\n\n" % (b"x" * 150))
AUTHORITY = trustme.CA()
AUTHORITY.cert_pem.write_to_path(FOLDER / "authority")
Answer = Callable[["Peer", int], Iterator[bytes]]


def context(version: ssl.TLSVersion) -> ssl.SSLContext:
    made = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    AUTHORITY.issue_cert("127.0.0.1").configure_cert(made)
    made.minimum_version = made.maximum_version = version
    return made


class Peer:
    """The server's side of a connection, which makes records and leaves it to its user how they are sent."""

    def __init__(self, sock: Any, context: ssl.SSLContext) -> None:
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._sock, self._incoming, self._outgoing = sock, ssl.MemoryBIO(), ssl.MemoryBIO()
        self._tls = context.wrap_bio(self._incoming, self._outgoing, server_side=True)
        self._until(lambda: self._tls.do_handshake() or b"done")

    def _until(self, step: Callable[[], bytes]) -> bytes:
        while True:
            try:
                return step()
            except ssl.SSLWantReadError:
                self._sock.sendall(self._outgoing.read())
                if not (data := self._sock.recv(65536)):
                    raise ConnectionError("closed") from None
                self._incoming.write(data)
            finally:
                self._sock.sendall(self._outgoing.read())

    def request(self) -> None:
        """Wait for a request."""
        data = b""
        while not data.endswith(b"\r\n\r\n{}"):
            data += self._until(lambda: self._tls.read(65536))

    def records(self, *texts: bytes) -> bytes:
        """Each text in a record of its own."""
        for text in texts:
            self._tls.write(text)
        return self._outgoing.read()

    def farewell(self) -> bytes:
        """The record that ends the stream."""
        try:
            self._tls.unwrap()
        except ssl.SSLWantReadError:
            return self._outgoing.read()
        raise AssertionError("the client has ended it before")


def serving(
    answer: Answer,
    sent: list[list[tuple[int, int]]],
    how: ssl.SSLContext | None = None,
    pause: Callable[[Any], None] = lambda _: gevent.sleep(GAP_S),
) -> Server:
    """Sends what `answer` gives for each request, and notes when: just before and just after."""

    tls = how or context(ssl.TLSVersion.TLSv1_3)

    def handler(sock: Any, _: int) -> None:
        peer = Peer(sock, tls)
        while True:
            peer.request()
            pieces = answer(peer, len(sent))
            sent.append([])
            for piece in pieces:
                before_ns = monotonic_ns()
                sock.sendall(piece)
                sent[-1].append((before_ns, monotonic_ns()))
                pause(sock)

    server = Server(handler)
    server.url = server.url.replace("http:", "https:")
    return server


def planted(how: ssl.SSLContext) -> dict[str, Any]:
    """Each payload with the last piece that may have been sent at its stamp and at its lower bound, and the last that had been.

    -1 is before the first.
    """

    def answer(peer: Peer, _: int) -> Iterator[bytes]:
        yield peer.records(SSE + chunk(b"first"))
        yield peer.records(chunk(b"alone"))
        yield peer.records(chunk(b"one of two"), chunk(b"two of two"))
        cut = peer.records(chunk(b"over three" * 9))
        yield cut[:3]
        yield cut[3:40]
        yield cut[40:] + peer.records(chunk(b"behind it"))
        halves = chunk(b"two halves")
        cut = peer.records(halves[:5], halves[5:])
        yield cut[:-9]
        yield cut[-9:]
        large = peer.records(chunk(b"x" * 20_000))
        yield large[:9000]
        yield large[9000:]
        yield peer.records(END)

    sent: list[list[tuple[int, int]]] = []
    server, decoder = serving(answer, sent, how, until_read), Payload()
    exchange = call(
        stopwatch(ca_file=str(FOLDER / "authority")), server.url, exchange=Exchange(decoder)
    )

    def maybe(at_ns: int) -> int:
        return sum(at_ns >= before_ns for before_ns, _ in sent[0]) - 1

    def surely(at_ns: int) -> int:
        return sum(at_ns >= after_ns for _, after_ns in sent[0]) - 1

    fed = [
        [payload[:20].decode(), maybe(arrived), [maybe(low), surely(low)], at_rest]
        for payload, low, arrived, _, _, at_rest in decoder.fed
    ]
    return {**facts(exchange), "payload": None, "fed": fed, "kernel": not exchange.user_stamps}


for _version in (ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3):
    CASES[_version.name] = partial(planted, context(_version))


def noticed(last: Callable[[Peer], bytes]) -> dict[str, Any]:
    """For how long ends of answers were not noticed, in events' gaps; `last` makes what is sent last."""

    def answer(peer: Peer, _: int) -> Iterator[bytes]:
        yield peer.records(SSE + EVENT)
        for _ in range(EVENTS):
            yield peer.records(EVENT)
        yield last(peer)

    sent: list[list[tuple[int, int]]] = []
    server, watch, late, seen = (
        serving(answer, sent),
        stopwatch(ca_file=str(FOLDER / "authority")),
        [],
        [],
    )
    for _ in range(ANSWERS):
        seen.append(call(watch, server.url))
        late.append((monotonic_ns() - sent[-1][-1][0]) / 1e9 / GAP_S)
        gevent.sleep(REST_S + GAP_S)
    return {"late": late, "cut": [one.cut for one in seen], "connections": server.connections}


@case
def end_alone() -> Any:
    return noticed(lambda peer: peer.records(END))


@case
def end_with_an_event() -> Any:
    return noticed(lambda peer: peer.records(chunk(b"data: [DONE]\n\n") + END))


@case
def end_like_an_event() -> Any:
    """In one record of the size of all others."""
    return noticed(lambda peer: peer.records(chunk(EVENT[4 : -len(END) - 2]) + END))


@case
def farewell_alone() -> Any:
    return noticed(lambda peer: peer.farewell())


@case
def farewell_behind_an_event() -> Any:
    return noticed(lambda peer: peer.records(EVENT) + peer.farewell())


@case
def no_record() -> Any:
    return noticed(lambda peer: bytes(len(peer.records(EVENT))))


class Size(Payload):
    """Keeps no payload."""

    size = 0

    def feed(self, payload: bytes, *_: Any, at_rest: bool) -> None:  # noqa: ARG002
        self.size += len(payload)
        self.has_content, self.watching = True, False


def memory() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()


@case
def many_small_records() -> Any:
    """More records of 1 kB than the client takes in time, which sleeps: growth of its memory in bytes."""
    if scripted_server.READER == "python":
        return None
    authority = str(FOLDER / "authority")
    both = AUTHORITY.issue_cert("127.0.0.1").private_key_and_cert_chain_pem
    with (
        both.tempfile() as certificate,
        subprocess.Popen(
            [sys.executable, "-c", FLOODING, certificate, str(FLOOD)],
            stdout=subprocess.PIPE,
            text=True,
        ) as server,
    ):
        assert server.stdout is not None
        url = f"https://127.0.0.1:{int(server.stdout.readline())}/v1"
        decoder = Size()
        exchange = Exchange(decoder)
        caller = gevent.spawn(call, stopwatch(ca_file=authority), url, exchange=exchange)
        while not decoder.has_content:
            gevent.sleep(0.001)
        before = most = memory()
        while not exchange.done:
            time.sleep(0.05)
            most = max(most, memory())
            gevent.sleep(0.001)
        caller.join()
        server.terminate()
    return {"grown": most - before, "size": decoder.size, "sent": FLOOD * 1000, "cut": exchange.cut}


print_facts(limit_s=30)
