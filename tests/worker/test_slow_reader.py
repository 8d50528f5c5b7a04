"""A slow reader: felt by the target, not blamed on the client, and its stamps no more exact than they are."""

from __future__ import annotations

import socket
from dataclasses import replace
from typing import Any

import gevent
import gevent.ssl
import pytest
import trustme
from transport.scripted_server import REST_S, SSE, Server, chunk
from worker.one_call import END, GAP_S, PLAIN, choice, endpoint, event, made

from tailgauge.call import Call
from tailgauge.clock import monotonic_ns

pytestmark = pytest.mark.gevent

COUNT = 150
FINISHED = event({"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]})
LAST = chunk(FINISHED + event("[DONE]")) + END


class Pressed:
    """A call to a server with small buffers that writes as fast as it may, and notes when; and one more, not slow."""

    def __init__(self, bytes_per_s: float | None, ca_file: str | None = None, **tls: Any) -> None:
        self.wrote: list[int] = []
        self.server = Server(self._serve, **tls)
        target = endpoint(self.server.url.removesuffix("/v1"), "openai", ca_file=ca_file)
        call = Call(PLAIN, 7, bytes_per_s=bytes_per_s)
        self.facts = made(target, call)
        self.row = self.facts["row"]
        self.held_ns = self.wrote[COUNT] - self.wrote[2]
        gevent.sleep(REST_S)
        made(target, replace(call, bytes_per_s=None))

    def _serve(self, sock: Any, _: int) -> None:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        while self.server.request(sock):
            sock.sendall(SSE)
            for number in range(COUNT):
                gevent.sleep(GAP_S if number < 2 else 0)
                self.wrote.append(monotonic_ns())
                sock.sendall(chunk(choice(content=f"{number:0400d}")))
            self.wrote.append(monotonic_ns())
            sock.sendall(LAST)


@pytest.mark.parametrize("has_tls", [False, True], ids=["plain", "tls"])
def test_a_slow_reader_presses_back_on_the_target_and_is_no_slow_client(has_tls, tmp_path):
    tls = {}
    if has_tls:
        authority = trustme.CA()
        authority.cert_pem.write_to_path(tmp_path / "ca.pem")
        context = gevent.ssl.SSLContext(gevent.ssl.PROTOCOL_TLS_SERVER)
        authority.issue_cert("127.0.0.1").configure_cert(context)
        tls = {"ssl_context": context, "ca_file": str(tmp_path / "ca.pem")}
    quick = Pressed(None)
    slow = Pressed(100_000, **tls)

    assert slow.row["ended"] == quick.row["ended"] == "ok"
    assert slow.row["chunks"] == quick.row["chunks"] == COUNT
    # 60 kB at 100 kB/s, less what fits into two small buffers.
    assert slow.held_ns > 0.3e9 > 3 * quick.held_ns
    assert slow.row["reader_paused_ns"] > 0.4e9
    assert quick.row["reader_paused_ns"] is None
    assert slow.row["ended_at_ns"] > slow.row["last_content_at_ns"], "it reads what arrived first"
    assert (slow.row["receive_lag_max_ns"], slow.facts["receive_lag"]) == (None, 0)
    assert quick.facts["receive_lag"] > 0
    assert (slow.server.connections, quick.server.connections) == (2, 1), "its own is used no more"
    # Its stamps are the kernel's.
    arrived = slow.facts["arrived"]
    low = slow.facts["low"]
    assert slow.row["stamps"] == "kernel"
    assert low[0] == 0
    assert slow.wrote[0] <= arrived[0] < slow.wrote[1]
    assert all(at >= written for at, written in zip(arrived, slow.wrote, strict=False))
    assert all(bound <= at for bound, at in zip(low, arrived, strict=True))
    assert sum(bound > 0 for bound in low) > 75, "most came together with others"


def test_what_a_slow_reader_reads_late_came_within_its_bounds():
    """The stream never fills the buffers, so that each piece arrives as it is written, read in fewer and later reads."""
    before = []
    after = []
    server: Server

    def handler(sock: Any, _: int) -> None:
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        server.request(sock)
        sock.sendall(SSE)
        for number in range(40):
            gevent.sleep(0.004)
            before.append(monotonic_ns())
            sock.sendall(chunk(choice(content=str(number))))
            after.append(monotonic_ns())
        sock.sendall(LAST)

    server = Server(handler)
    target = endpoint(server.url.removesuffix("/v1"), "openai")
    facts = made(target, Call(PLAIN, 7, bytes_per_s=6000))

    assert facts["row"]["reads"] < 30, "pieces were read together, long after they came"
    assert sum(bound > 0 for bound in facts["low"]) > 10
    rows = zip(before, after, facts["low"], facts["arrived"], strict=True)
    for written, there, low, arrived in rows:
        assert written <= arrived
        assert low <= there if low else arrived <= there
