"""Script: lower bounds of reads against the clock of a server that shares it, beside a reader that blocks at random."""

from __future__ import annotations

import random
import subprocess
import sys
import time
from typing import Any

import gevent
from starting.script import case, print_facts
from transport.scripts.scripted_server import REST_S, Payload, call, stopwatch

from tailgauge.transport.exchange import Exchange
from tailgauge.transport.reader import POLLS
from tailgauge.worker.timers import hub_ticks

CALLS, SEED = 60, 7
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


def bounds(block_s: float, *, polling: bool = True) -> list[list[int]]:
    """Of the first piece of each answer: lower bound, true arrival at the latest, and when its request was sent."""
    rng, seen = random.Random(SEED), []
    with subprocess.Popen(
        [sys.executable, "-c", SERVER], stdout=subprocess.PIPE, text=True
    ) as server:
        assert server.stdout is not None
        url, watch, ended = f"http://127.0.0.1:{int(server.stdout.readline())}", stopwatch(), []

        def block() -> None:
            while not ended:
                gevent.sleep(rng.uniform(0, 0.004))
                until = time.monotonic() + rng.uniform(0, block_s)
                while time.monotonic() < until:
                    pass

        blocker = gevent.spawn(block) if block_s else None
        if polling:
            POLLS.start(hub_ticks)
        for _ in range(CALLS):
            exchange: Any = call(watch, url, exchange=Exchange(Payload()))
            payload = exchange.decoder.payload.partition(b"\n")[2]
            seen.append([exchange.decoder.fed[0][1], int(payload), exchange.sent_at_ns])
            gevent.sleep(REST_S)
        ended.append(True)
        POLLS.stop()
        if blocker is not None:
            blocker.join()
        watch.close()
        server.terminate()
    return seen


@case
def prompt() -> Any:
    return bounds(0.0)


@case
def blocked() -> Any:
    return bounds(0.008)


@case
def unbounded() -> Any:
    return bounds(0.0, polling=False)


print_facts(limit_s=60)
