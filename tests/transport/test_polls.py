"""Lower bounds of reads, against the clock of a server that shares it, beside a client that blocks at random."""

from __future__ import annotations

import random
import subprocess
import sys
import time
from statistics import median
from typing import Any, NamedTuple

import gevent
import pytest
from transport.scripted_server import REST_S, Payload, call, stopwatch

from tailgauge.transport.exchange import Exchange
from tailgauge.transport.reader import POLLS
from tailgauge.worker.timers import hub_ticks

pytestmark = [
    pytest.mark.gevent,
    pytest.mark.skipif(sys.platform != "linux", reason="only Linux stamps packets for us"),
]

CALLS = 60
SERVER = """
import random, socket, time
rng = random.Random(7)
with socket.create_server(("127.0.0.1", 0)) as listener:
    print(listener.getsockname()[1], flush=True)
    for _ in range(3):
        sock, _ = listener.accept()
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        while sock.recv(65536):
            time.sleep(rng.uniform(0.002, 0.008))
            sock.sendall(b"HTTP/1.1 200 OK\\r\\ncontent-type: text/event-stream\\r\\ntransfer-encoding: chunked\\r\\n\\r\\n")
            sock.sendall(b"8\\r\\ndata: a\\n\\r\\n")
            sent = time.monotonic_ns()  # after it: on one machine it has arrived by then
            if rng.random() < 0.5:
                time.sleep(rng.uniform(0, 0.004))
            data = b"%d" % sent
            sock.sendall(b"%x\\r\\n%b\\r\\n0\\r\\n\\r\\n" % (len(data), data))
"""


class FirstPiece(NamedTuple):
    """Its lower bound, when it had arrived at the latest, and when its request was sent."""

    low: int
    arrived: int
    sent: int


def block(block_s: float, running: list[bool]) -> None:
    """Keep the whole client busy now and then, until the list is empty."""
    rng = random.Random(7)
    while running:
        gevent.sleep(rng.uniform(0, 0.004))
        until = time.monotonic() + rng.uniform(0, block_s)
        while time.monotonic() < until:
            pass


def first_pieces(block_s: float, *, polling: bool) -> list[FirstPiece]:
    pieces = []
    running = [True]
    with subprocess.Popen(
        [sys.executable, "-c", SERVER], stdout=subprocess.PIPE, text=True
    ) as server:
        url = f"http://127.0.0.1:{int(server.stdout.readline())}"
        watch = stopwatch()
        blocker = gevent.spawn(block, block_s, running if block_s else [])
        if polling:
            POLLS.start(hub_ticks)
        for _ in range(CALLS):
            exchange: Any = call(watch, url, exchange=Exchange(Payload()))
            arrived = int(exchange.decoder.payload.partition(b"\n")[2])
            pieces.append(FirstPiece(exchange.decoder.fed[0][1], arrived, exchange.sent_at_ns))
            gevent.sleep(REST_S)
        running.clear()
        POLLS.stop()
        blocker.join()
        watch.close()
        server.terminate()
    return pieces


@pytest.mark.slow("python")
def test_a_read_never_came_before_its_lower_bound_and_a_prompt_reader_proves_that_it_was(reader):
    """The first piece, read together with more or not, came within about 2 ms after its lower bound. In Python that holds
    while nothing else runs, and without polls no more is known than that it came after the request."""
    clients = {
        "prompt": first_pieces(0.0, polling=True),
        "blocked": first_pieces(0.008, polling=True),
        "unbounded": first_pieces(0.0, polling=False),
    }

    for name, pieces in clients.items():
        for piece in pieces:
            assert piece.sent <= piece.low <= piece.arrived, name
    width_ms = {
        name: median([(piece.arrived - piece.low) / 1e6 for piece in pieces])
        for name, pieces in clients.items()
    }
    assert width_ms["prompt"] < 4
    if reader == "compiled":
        assert max(width_ms.values()) < 4
    else:
        assert width_ms["prompt"] < width_ms["blocked"]
        assert width_ms["unbounded"] > 4
