"""What is read while the client does something else: bounded, whole, in time."""

from __future__ import annotations

import hashlib
import json
import select
import socket
import time
from pathlib import Path
from typing import Any

import gevent
import pytest
from gevent.monkey import get_original
from starting.core_waits import waited_for_a_core_ns
from transport.resources import memory
from transport.scripted_server import (
    REST_S,
    SSE,
    Digest,
    Payload,
    Server,
    Size,
    block_process,
    call,
    chunk,
    stopwatch,
)
from transport.seeded_server import running_server

from tailgauge.transport.exchange import Exchange
from tailgauge.transport.http_transport import HttpTransport
from tailgauge.transport.reader import POLLS, READER, _core
from tailgauge.worker.timers import hub_ticks

pytestmark = [pytest.mark.gevent, pytest.mark.usefixtures("reader")]

FLOOD = 96 << 20
MOST_KEPT = 16 << 20  # bytes that wait for Python
FLOODING = 32  # streams


class Slow(Size):
    """Waits for content for ever, and takes 2 ms for each read."""

    largest_memory = 0

    def feed(self, payload: bytes, *times: int, at_rest: bool) -> None:
        super().feed(payload, *times, at_rest=at_rest)
        self.has_content, self.watching = False, True
        READER.catch_up()
        block_process(0.002)
        Slow.largest_memory = max(Slow.largest_memory, memory())


def test_what_waits_for_a_busy_client_is_bounded_and_for_how_long_it_waited_is_known_once(
    reader: str,
) -> None:
    """96 MB come while it does nothing for a second: the kernel keeps what there is no room for."""
    decoder = Digest()
    exchange = Exchange(decoder)
    before = memory()
    with running_server() as url:
        caller = gevent.spawn(call, stopwatch(), f"{url}/flood-{FLOOD}", exchange=exchange)
        while not decoder.has_content:
            gevent.sleep(0.001)
        READER.longest_wait_ns()
        began = time.monotonic()
        block_process(1.0)
        still_s = time.monotonic() - began
        grown = memory() - before
        while not caller.ready():
            gevent.sleep(0.01)
            grown = max(grown, memory() - before)
    waited_s = READER.longest_wait_ns() / 1e9

    assert (decoder.size, exchange.cut) == (FLOOD, None)
    assert decoder.sha.digest() == hashlib.sha256(b"x" * FLOOD).digest()
    assert grown < 3 * MOST_KEPT
    if reader == "compiled":
        assert 0.9 * still_s < waited_s < still_s + 60
    else:
        assert waited_s == 0
    assert READER.longest_wait_ns() == 0


def flooded(watch: HttpTransport, url: str) -> tuple[list[Exchange], list[gevent.Greenlet]]:
    """More streams than the client can decode, and their calls."""
    exchanges = [Exchange(Slow()) for _ in range(FLOODING)]
    calls = [
        gevent.spawn(call, watch, f"{url}/flood-{FLOOD}", exchange=exchange)
        for exchange in exchanges
    ]
    return exchanges, calls


def test_what_waits_is_bounded_also_where_all_of_it_is_asked_for() -> None:
    """As when calls are closed while others flood: each close collects what was read by now."""
    Slow.largest_memory = 0
    before = memory()
    with running_server() as url:
        exchanges, calls = flooded(stopwatch(), url)
        gevent.sleep(2.0)
        for exchange in exchanges:
            exchange.abort("cancelled")
        gevent.joinall(calls, raise_error=True)

    assert 0 < Slow.largest_memory - before < 3 * MOST_KEPT


def test_an_answer_that_came_before_the_deadline_is_no_timeout_of_a_busy_client() -> None:
    """32 streams flood it: it is seconds behind when the deadline comes."""
    watch = stopwatch()
    exchange = Exchange(Payload())
    with running_server() as url, running_server() as prompt_url:
        floods, calls = flooded(watch, url)
        gevent.sleep(1.0)
        calls.append(gevent.spawn(call, watch, f"{prompt_url}/flood-0", exchange=exchange))
        while exchange.left_at_ns is None:
            gevent.sleep(0)
        block_process(0.5)  # the answer comes
        exchange.abort("timeout")
        for flood in floods:
            flood.abort("cancelled")
        gevent.joinall(calls, raise_error=True)

    assert (exchange.done, exchange.aborted, exchange.cut) == (True, None, None)


@pytest.mark.usefixtures("reading_thread")
def test_what_nobody_acts_on_waits_for_others_and_an_end_does_not() -> None:
    thread = _core.Sockets()
    waits, waits_peer = socket.socketpair()
    counts, counts_peer = socket.socketpair()
    numbers = {
        "waits": thread.add(waits.fileno(), "waits", False),
        "counts": thread.add(counts.fileno(), "counts", False),
    }
    thread.listen(numbers["waits"], None, False)
    thread.listen(numbers["counts"], None, True)
    woken = get_original("select", "poll")()
    woken.register(thread.fileno(), select.POLLIN)

    def take(count: int) -> list[str]:
        news: list[str] = []
        while len(news) < count and woken.poll(5000):
            for name in thread.ready(0)[0]:
                reads, end, *_ = thread.reads(numbers[name])
                news += [f"{name}:{read[0].decode()}" for read in reads]
                if end is not None:
                    news.append(f"{name} ends:{end}")
        return news

    began = time.monotonic()
    waits_peer.send(b"x")
    assert take(1) == ["waits:x"]
    assert time.monotonic() - began > 0.008
    waits_peer.send(b"y")
    counts_peer.send(b"z")
    assert take(2) == ["waits:y", "counts:z"]
    waits_peer.close()
    assert take(1) == ["waits ends:0"]
    for one in (waits, counts, counts_peer):
        one.close()


@pytest.mark.usefixtures("reading_thread")
@pytest.mark.parametrize("user", ["root", "nobody"])
def test_a_core_that_both_want_goes_to_the_thread_that_reads(user: str, command: Any) -> None:
    """What is read late has lost its time. Where the thread may not go first, the event loop is the slower one."""
    done = command(["python", Path(__file__).with_name("priorities.py"), user], 30)
    known = json.loads(done.stdout)
    before = known["before"]

    assert known["thread"] == before
    if known["is_first"]:
        assert (known["loop"], known["recorded"], user) == (before, "real-time", "root")
    else:
        assert (known["loop"], known["recorded"]) == (min(before + 5, 19), "normal")


def answering_once(pause_s: float, *, stays: bool) -> Server:
    def handler(sock: Any, _: int) -> None:
        server.request(sock)
        gevent.sleep(pause_s)
        sock.sendall(SSE + chunk(b"data: a\n\n") + b"0\r\n\r\n")
        if stays:
            server.wait_end(sock)

    server = Server(handler)
    return server


@pytest.mark.usefixtures("reading_thread")
def test_an_answer_that_waits_when_its_call_is_closed_is_whole() -> None:
    """It has been read to its end."""
    exchange = Exchange(Payload())
    exchange.may_wait = True
    gevent.spawn(call, stopwatch(), answering_once(0, stays=True).url, exchange=exchange)

    def waits() -> bool:
        connection = exchange.connection
        return (
            connection is not None
            and connection._reading is not None
            and READER.waits(connection._reading)
        )

    while not waits() and not exchange.done:
        gevent.sleep(0)
    exchange.abort("censored")

    assert (exchange.done, exchange.aborted, exchange.cut) == (True, None, None)
    assert exchange.status == 200


def test_the_first_bytes_of_the_only_connection_have_a_lower_bound() -> None:
    """Before it none was open: it is watched from its opening on, but for the time in which the process gets no core."""
    server = answering_once(0.03, stays=False)
    watch = stopwatch()
    POLLS.start(hub_ticks)
    for _ in range(5):
        waited_before_ns = waited_for_a_core_ns()
        exchange = call(watch, server.url)
        waited_ns = waited_for_a_core_ns() - waited_before_ns
        low_ns = exchange.decoder.fed[0][1]
        assert low_ns - exchange.sent_at_ns + waited_ns > 0.015e9
        gevent.sleep(REST_S)
    POLLS.stop()
