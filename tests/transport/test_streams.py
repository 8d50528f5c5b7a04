"""Many streams at once, cut anywhere, ended and left anywhere, beside a client that is busy at random.

The server is a process of its own; each answer says how it was made, so that the client can make it again and compare.
"""

from __future__ import annotations

import gc
import hashlib
import itertools
import random
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import gevent
import pytest
import trustme
from transport import seeded_server
from transport.resources import descriptors, memory
from transport.scripted_server import (
    REST_S,
    Digest,
    Size,
    call,
    stopwatch,
)
from transport.seeded_server import running_server

from tailgauge.protocols import shapes
from tailgauge.protocols.decoder import AnswerSettings, StreamDecoder
from tailgauge.protocols.openai import OpenAI
from tailgauge.transport.answer import News
from tailgauge.transport.capture import Capture, OpenBytes
from tailgauge.transport.exchange import Exchange
from tailgauge.transport.http_transport import HttpTransport
from tailgauge.transport.reader import READER

pytestmark = [pytest.mark.gevent, pytest.mark.usefixtures("reader")]

SEED = 11
USERS = 60
CALLS = 6


@contextmanager
def server_and_watch(*, has_tls: bool) -> Iterator[tuple[str, HttpTransport]]:
    """A server, and a stopwatch that trusts it."""
    if not has_tls:
        with running_server() as url:
            yield url, stopwatch(idle_connections=USERS)
        return
    authority = trustme.CA()
    both = authority.issue_cert("127.0.0.1").private_key_and_cert_chain_pem
    with (
        authority.cert_pem.tempfile() as ca_file,
        both.tempfile() as certificate,
        running_server(certificate) as url,
    ):
        yield url, stopwatch(idle_connections=USERS, ca_file=ca_file)


def busy(running: list[bool]) -> None:
    """Compute now and then, so that the loop reads late, until the list is empty."""
    rng = random.Random(SEED)
    while running:
        gevent.sleep(rng.uniform(0, 0.01))
        until = time.monotonic() + rng.choice((0, 0.001, 0.03))
        while time.monotonic() < until:
            pass


def run_users(user: Callable[[int], None]) -> None:
    """Run all users beside a busy client."""
    running = [True]
    blocker = gevent.spawn(busy, running)
    gevent.joinall([gevent.spawn(user, number) for number in range(USERS)], raise_error=True)
    running.clear()
    blocker.join()


def called(watch: HttpTransport, url: str, exchange: Exchange, rng: random.Random) -> str:
    """How a call ended, which a quarter of the users leave at any moment."""
    exchange.on_content = READER.catch_up  # as another call that is sent then
    if rng.random() < 0.25:
        gevent.spawn_later(rng.uniform(0, 0.05), exchange.abort, "cancelled")
    call(watch, url, exchange=exchange)
    if exchange.failure is not None:
        return exchange.failure[0]
    return exchange.aborted or exchange.cut or "ok"


def assert_all_ends_were_seen(ends: Counter[str]) -> None:
    assert ends.total() == USERS * CALLS
    assert ends["ok"] > 150
    assert ends["cancelled"] > 20
    assert ends["connection_closed"] > 10


@pytest.mark.slow("python-many", "compiled-many_under_tls")
@pytest.mark.parametrize("has_tls", [False, True], ids=["many", "many_under_tls"])
def test_no_byte_is_lost_doubled_or_moved_to_another_stream(has_tls: bool) -> None:
    """60 users with reused connections, cut at any byte; a quarter leaves anywhere, some answers end in the middle."""
    ends: Counter[str] = Counter()

    def user(number: int) -> None:
        rng = random.Random(SEED * 1000 + number)
        for turn in range(CALLS):
            name = f"{number}.{turn}"
            decoder = Digest()
            end = called(watch, f"{url}/answer-{name}", Exchange(decoder), rng)
            ends[end] += 1
            sent = b"".join(seeded_server.answer(name))
            if end == "ok":
                assert decoder.size == len(sent), name
            assert decoder.sha.digest() == hashlib.sha256(sent[: decoder.size]).digest(), name

    with server_and_watch(has_tls=has_tls) as (url, watch):
        run_users(user)

    assert_all_ends_were_seen(ends)


class Counting(StreamDecoder):
    """Counts the chunks that the thread has decoded."""

    plain = 0

    def receive(self, news: News) -> None:
        Counting.plain += 0 if news.columns is None else len(news.columns.kind)
        super().receive(news)


def events_exchange(bytes_per_s: float | None = None) -> Exchange:
    settings = AnswerSettings(
        shapes=shapes.compiled(OpenAI.shapes, ("error",)),
        protocol="openai",
        keep_text=True,
        max_tokens=9999,
    )
    return Exchange(Counting(OpenAI.on_event, settings), bytes_per_s)


def assert_its_chunks_are_those_that_were_sent(exchange: Exchange, name: str, end: str) -> None:
    sent, text = seeded_server.events(name)
    decoded = (exchange.decoder.text or "").encode()
    assert decoded == text if end == "ok" else text.startswith(decoded), name

    columns = exchange.decoder.fresh
    around_the_text = len(sent[0]) - len(text.split(b" ")[0]) - 1
    sizes = [len(event) - around_the_text for event in sent]
    assert list(columns.chars) == sizes[: len(columns)], name
    assert all(a <= b for a, b in itertools.pairwise(columns.arrived)), name
    for low, arrived, read_at in zip(columns.low, columns.arrived, columns.read_at, strict=True):
        assert low <= arrived <= read_at, name
    if exchange.capture is not None:
        raw = b"".join(data for _, data in exchange.capture.reads)
        assert raw.count(b'"content"') >= len(columns), name


@pytest.mark.slow("compiled-events_captured", "compiled-events_slow")
@pytest.mark.usefixtures("reading_thread")
@pytest.mark.parametrize("case", ["events", "events_under_tls", "events_captured", "events_slow"])
def test_plain_events_are_decoded_whole_and_in_their_order(case: str) -> None:
    """The same users at a server that cuts its events anywhere; what is captured has all that was decoded."""
    ends: Counter[str] = Counter()
    chunks = 0
    Counting.plain = 0

    def user(number: int) -> None:
        nonlocal chunks
        rng = random.Random(SEED * 1000 + number)
        for turn in range(CALLS):
            name = f"{number}.{turn}"
            exchange = events_exchange(1e6 if case == "events_slow" else None)
            exchange.may_wait = rng.random() < 0.5
            if case == "events_captured":
                exchange.capture = Capture(OpenBytes())
            end = called(watch, f"{url}/events-{name}", exchange, rng)
            ends[end] += 1
            chunks += len(exchange.decoder.fresh)
            assert_its_chunks_are_those_that_were_sent(exchange, name, end)

    with server_and_watch(has_tls=case == "events_under_tls") as (url, watch):
        run_users(user)

    assert ends.total() == USERS * CALLS
    assert ends["ok"] > 150
    assert chunks > 20_000
    assert (Counting.plain > 500) == (case != "events_slow"), "a slow reader is read in Python"


@pytest.mark.slow
def test_of_connections_that_come_and_go_nothing_is_left() -> None:
    """Each call has its own; half of them are closed at any moment. What leaks grows each time, what the allocator keeps does
    not."""
    ends: Counter[str] = Counter()

    def user(number: int) -> None:
        rng = random.Random(number)
        for turn in range(20):
            exchange = Exchange(Size())
            if rng.random() < 0.5:
                reason = rng.choice(("cancelled", "timeout"))
                gevent.spawn_later(rng.uniform(0, 0.02), exchange.abort, reason)
            size = rng.choice((0, 65_536, 1 << 20))
            call(watch, f"{url}/flood-{size}-{turn}", exchange=exchange)
            ends[exchange.aborted or exchange.cut or "ok"] += 1

    with running_server() as url:
        watch = stopwatch(idle_connections=0)
        call(watch, f"{url}/flood-0")
        before = descriptors()
        sizes = []
        for _ in range(3):
            users = [gevent.spawn(user, number) for number in range(USERS)]
            gevent.joinall(users, raise_error=True)
            gc.collect()
            sizes.append(memory())
        gevent.sleep(REST_S)
        left = descriptors() - before

    assert ends.total() == 3 * USERS * 20
    assert ends["ok"] > 900
    assert left <= 0
    assert min(sizes[1] - sizes[0], sizes[2] - sizes[1]) < 8 << 20
