"""Streams under TLS whose records lie anywhere in what is sent, and how their ends are noticed."""

from __future__ import annotations

import itertools
import socket
import ssl
import subprocess
import sys
from collections.abc import Callable, Iterator
from statistics import median
from typing import Any

import gevent
import pytest
import trustme
from transport.resources import memory
from transport.scripted_server import (
    REST_S,
    SSE,
    Server,
    Size,
    block_process,
    call,
    chunk,
    stopwatch,
    until_read,
)

from tailgauge.clock import monotonic_ns
from tailgauge.transport.exchange import Exchange

pytestmark = [pytest.mark.gevent, pytest.mark.usefixtures("reader")]

GAP_S = 0.02
EVENTS = 4
ANSWERS = 5
FLOOD = 24_000
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
Answer = Callable[["Peer"], Iterator[bytes]]


@pytest.fixture(scope="module")
def ca_file(tmp_path_factory) -> str:
    path = tmp_path_factory.mktemp("authority") / "ca.pem"
    AUTHORITY.cert_pem.write_to_path(path)
    return str(path)


class Peer:
    """The server's side of a connection, which makes records and leaves it to its user how they are sent."""

    def __init__(self, sock: Any, context: ssl.SSLContext) -> None:
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._sock = sock
        self._incoming = ssl.MemoryBIO()
        self._outgoing = ssl.MemoryBIO()
        self._tls = context.wrap_bio(self._incoming, self._outgoing, server_side=True)
        self._until(lambda: self._tls.do_handshake() or b"done")

    def _until(self, step: Callable[[], bytes]) -> bytes:
        while True:
            try:
                return step()
            except ssl.SSLWantReadError:
                self._sock.sendall(self._outgoing.read())
                data = self._sock.recv(65536)
                if not data:
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
        with pytest.raises(ssl.SSLWantReadError):
            self._tls.unwrap()
        return self._outgoing.read()


class SealedServer(Server):
    """Sends what `answer` gives for each request, and notes when: just before and just after."""

    def __init__(
        self,
        answer: Answer,
        version: ssl.TLSVersion = ssl.TLSVersion.TLSv1_3,
        pause: Callable[[Any], None] = lambda _: gevent.sleep(GAP_S),
    ) -> None:
        super().__init__(self._answer_all)
        self.url = self.url.replace("http:", "https:")
        self.sent: list[list[tuple[int, int]]] = []
        self._answer = answer
        self._pause = pause
        self._context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self._context.minimum_version = self._context.maximum_version = version
        AUTHORITY.issue_cert("127.0.0.1").configure_cert(self._context)

    def _answer_all(self, sock: Any, _: int) -> None:
        peer = Peer(sock, self._context)
        while True:
            peer.request()
            self.sent.append([])
            for piece in self._answer(peer):
                before_ns = monotonic_ns()
                sock.sendall(piece)
                self.sent[-1].append((before_ns, monotonic_ns()))
                self._pause(sock)


def records_anywhere(peer: Peer) -> Iterator[bytes]:
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


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
def test_what_a_record_brings_has_the_stamp_of_the_read_that_completed_it(version, ca_file):
    """And a lower bound before it, at least of the read that brought something before. Pieces are numbered as they were sent."""
    server = SealedServer(records_anywhere, version, until_read)
    exchange = call(stopwatch(ca_file=ca_file), server.url)
    fed = exchange.decoder.fed
    sent = server.sent[0]

    def last_begun(at_ns: int) -> int:
        """Number of the last piece that may have been sent by then; -1 is before the first."""
        return sum(at_ns >= before_ns for before_ns, _ in sent) - 1

    def last_sent(at_ns: int) -> int:
        return sum(at_ns >= after_ns for _, after_ns in sent) - 1

    stamps = [
        (payload[:20], last_begun(arrived), at_rest) for payload, _, arrived, _, _, at_rest in fed
    ]
    assert stamps == [
        (b"first", 0, True),
        (b"alone", 1, True),
        (b"one of twotwo of two", 2, True),
        (b"over threeover three", 5, True),
        (b"tw", 6, False),
        (b"o halves", 7, True),
        (b"xxxxxxxxxxxxxxxxxxxx", 9, True),
    ]
    numbers = [-1, *[number for _, number, _ in stamps]]
    for (before, number), (_, low, *_) in zip(itertools.pairwise(numbers), fed, strict=True):
        assert before <= last_begun(low)
        assert last_sent(low) < number
    assert (exchange.user_stamps, exchange.cut) == (False, None)


LAST = {
    "end alone": (lambda peer: peer.records(END), None),
    "end with an event": (lambda peer: peer.records(chunk(b"data: [DONE]\n\n") + END), None),
    # In one record of the size of all others.
    "end like an event": (
        lambda peer: peer.records(chunk(EVENT[4 : -len(END) - 2]) + END),
        None,
    ),
    "farewell alone": (lambda peer: peer.farewell(), "connection_closed"),
    "farewell behind an event": (
        lambda peer: peer.records(EVENT) + peer.farewell(),
        "connection_closed",
    ),
    "no record": (lambda peer: bytes(len(peer.records(EVENT))), "connection_reset"),
}


@pytest.mark.patient
@pytest.mark.parametrize(("last", "cut"), LAST.values(), ids=LAST)
def test_the_end_of_an_answer_is_noticed_before_its_next_event_would_have_come(last, cut, ca_file):
    """An end in a record of the size of all others is noticed late, once: this size is then looked at."""

    def answer(peer: Peer) -> Iterator[bytes]:
        yield peer.records(SSE + EVENT)
        for _ in range(EVENTS):
            yield peer.records(EVENT)
        yield last(peer)

    server = SealedServer(answer)
    watch = stopwatch(ca_file=ca_file)
    late_ns = []
    for _ in range(ANSWERS):
        exchange = call(watch, server.url)
        late_ns.append(monotonic_ns() - server.sent[-1][-1][0])
        assert exchange.cut == cut
        gevent.sleep(REST_S + GAP_S)

    assert median(late_ns) / 1e9 < GAP_S / 2


@pytest.mark.slow
@pytest.mark.usefixtures("reading_thread")
def test_a_flood_of_records_beside_a_client_that_does_nothing_is_kept_within_bounds(ca_file):
    """What is sealed waits in the kernel: 24 MB come in records of 1 kB, while Python sleeps."""
    both = AUTHORITY.issue_cert("127.0.0.1").private_key_and_cert_chain_pem
    with (
        both.tempfile() as certificate,
        subprocess.Popen(
            [sys.executable, "-c", FLOODING, certificate, str(FLOOD)],
            stdout=subprocess.PIPE,
            text=True,
        ) as server,
    ):
        url = f"https://127.0.0.1:{int(server.stdout.readline())}/v1"
        decoder = Size()
        exchange = Exchange(decoder)
        caller = gevent.spawn(call, stopwatch(ca_file=ca_file), url, exchange=exchange)
        while not decoder.has_content:
            gevent.sleep(0.001)
        before = most = memory()
        while not exchange.done:
            block_process(0.05)
            most = max(most, memory())
            gevent.sleep(0.001)
        caller.join()
        server.terminate()

    assert (decoder.size, exchange.cut) == (FLOOD * 1000, None)
    assert most - before < 6 << 20
