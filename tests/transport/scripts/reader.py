"""Script: many streams at once, cut anywhere, ended and left anywhere, beside a client that is busy at random.

The server is a process of its own; each answer says how it was made, so that the client can make it again and compare.
"""

from __future__ import annotations

import gc
import hashlib
import itertools
import json
import os
import random
import resource
import select
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import gevent
import trustme
from gevent.monkey import get_original
from starting.script import case, print_facts
from transport.scripts import scripted_server
from transport.scripts.scripted_server import REST_S, SSE, Payload, Server, call, chunk, stopwatch

from tailgauge.protocols import shapes
from tailgauge.protocols.decoder import AnswerSettings, StreamDecoder
from tailgauge.protocols.openai import OpenAI
from tailgauge.transport.answer import News
from tailgauge.transport.capture import Capture, OpenBytes
from tailgauge.transport.exchange import Exchange
from tailgauge.transport.reader import POLLS, READER, Reader, _core
from tailgauge.worker.timers import hub_ticks

SEED, USERS, CALLS, FLOOD = 11, 60, 6, 96 << 20
GOING = 1200  # calls, three times
FLOODING, READ_S = 32, 0.002  # streams, time that one read of them takes
ANSWER_S, ALONE = 0.03, 5
SERVER = """
import asyncio, random, ssl, sys

def answer(seed):
    rng = random.Random(seed)
    return [rng.randbytes(rng.choice((1, 3, 40, 400, 3000, 90_000))).hex().encode() for _ in range(rng.randrange(2, 60))]

def events(seed):
    rng = random.Random(seed)
    texts = [b"%x " % rng.randrange(1 << 4 * rng.randrange(1, 9)) for _ in range(rng.randrange(2, 600))]
    return [b'data: {"id":"c","model":"m","choices":[{"index":0,"delta":{"content":"%b"}}]}\\n\\n' % text for text in texts], b"".join(texts)

async def serve(reader, writer):
    try:
        while head := await reader.readuntil(b"\\r\\n\\r\\n"):
            words = head.split()[1].decode().split("/")[-1].split("-")
            writer.write(b"HTTP/1.1 200 OK\\r\\ncontent-type: text/event-stream\\r\\ntransfer-encoding: chunked\\r\\n\\r\\n")
            if words[0] == "flood":
                piece = b"x" * 65_536
                for _ in range(int(words[1]) // len(piece)):
                    writer.write(b"10000\\r\\n" + piece + b"\\r\\n")
                    await writer.drain()
            else:
                rng = random.Random(words[-1])
                pieces = events(words[-1])[0] if words[0] == "events" else answer(words[0])
                framed = [b"%x\\r\\n%b\\r\\n" % (len(one), one) for one in pieces]
                while words[0] == "events" and len(framed) > len(pieces) - 2:  # whole: what follows may be plain
                    writer.write(framed.pop(0))
                    await writer.drain()
                    await asyncio.sleep(0.03)
                wire = b"".join(framed)
                while wire:
                    size = rng.choice((1, 7, 200, 5_000, 100_000))
                    writer.write(wire[:size])
                    wire = wire[size:]
                    if rng.random() < 0.3:
                        await writer.drain()
                        await asyncio.sleep(rng.choice((0, 0, 0.001, 0.004)))
                if rng.random() < 0.1:
                    break
            writer.write(b"0\\r\\n\\r\\n")
            await writer.drain()
    except (asyncio.IncompleteReadError, ConnectionError):
        pass
    writer.close()

async def main():
    tls = None
    if len(sys.argv) > 1:
        tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        tls.load_cert_chain(sys.argv[1])
    server = await asyncio.start_server(serve, "127.0.0.1", 0, limit=1 << 20, ssl=tls)
    print(server.sockets[0].getsockname()[1], flush=True)
    await server.serve_forever()

if __name__ == "__main__":
    asyncio.run(main())
"""
made: dict[str, Any] = {"__name__": "server"}
exec(SERVER, made)  # noqa: S102 - the answers are made here again


class Digest(Payload):
    """Keeps no payload."""

    def __init__(self) -> None:
        super().__init__()
        self.sha, self.size = hashlib.sha256(), 0

    def feed(self, payload: bytes, *_: Any, at_rest: bool) -> None:  # noqa: ARG002
        self.sha.update(payload)
        self.size += len(payload)
        self.has_content, self.watching = True, False


class Slow(Digest):
    """Waits for content for ever, and takes long for each read."""

    most = 0  # bytes of this process

    def feed(self, payload: bytes, *times: Any, at_rest: bool) -> None:
        super().feed(payload, *times, at_rest=at_rest)
        self.has_content, self.watching = False, True
        READER.catch_up()
        time.sleep(READ_S)
        Slow.most = max(Slow.most, memory())


def memory() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()


@contextmanager
def server(*certificate: str) -> Iterator[str]:
    with subprocess.Popen(
        [sys.executable, "-c", SERVER, *certificate], stdout=subprocess.PIPE, text=True
    ) as child:
        assert child.stdout is not None
        scheme = "https" if certificate else "http"
        try:
            yield f"{scheme}://127.0.0.1:{int(child.stdout.readline())}"
        finally:
            child.terminate()


def busy(running: list[bool]) -> None:
    """Compute now and then, so that the loop reads late, until the list is empty."""
    rng = random.Random(SEED)
    while running:
        gevent.sleep(rng.uniform(0, 0.01))
        until = time.monotonic() + rng.choice((0, 0.001, 0.03))
        while time.monotonic() < until:
            pass


@case
def many(*certificate: str, ca_file: str | None = None) -> Any:
    """Counts of calls by how they ended, and of those whose bytes are not what was sent."""
    ends: dict[str, int] = {}
    wrong, running = [], [True]

    def user(number: int) -> None:
        rng = random.Random(SEED * 1000 + number)
        for turn in range(CALLS):
            name = f"{number}.{turn}"
            decoder = Digest()
            exchange = Exchange(decoder)
            exchange.on_content = READER.catch_up  # as another call that is sent then
            if rng.random() < 0.25:
                gevent.spawn_later(rng.uniform(0, 0.05), exchange.abort, "cancelled")
            call(watch, f"{url}/{name}", exchange=exchange)
            how = exchange.aborted or exchange.cut or (exchange.failure or ("ok",))[0]
            ends[how] = ends.get(how, 0) + 1
            sent = b"".join(made["answer"](name))
            whole = how == "ok"
            got = hashlib.sha256(sent if whole else sent[: decoder.size])
            if got.digest() != decoder.sha.digest() or (whole and decoder.size != len(sent)):
                wrong.append(name)

    watch = stopwatch(idle_connections=USERS, ca_file=ca_file)
    with server(*certificate) as url:
        blocker = gevent.spawn(busy, running)
        gevent.joinall([gevent.spawn(user, number) for number in range(USERS)], raise_error=True)
        running.clear()
        blocker.join()
    return {"ends": ends, "wrong": wrong}


def with_certificate(function: Any) -> Any:
    authority = trustme.CA()
    with authority.cert_pem.tempfile() as ca_file:
        both = authority.issue_cert("127.0.0.1").private_key_and_cert_chain_pem
        with both.tempfile() as certificate:
            return function(certificate, ca_file=ca_file)


@case
def many_under_tls() -> Any:
    return with_certificate(many)


def many_events(
    *certificate: str,
    ca_file: str | None = None,
    is_captured: bool = False,
    bytes_per_s: float | None = None,
) -> Any:
    """Streams of plain events: calls by how they ended, those whose text or chunks are not those that were sent, and the
    chunks that the thread decoded."""
    if scripted_server.READER == "python":
        return None
    ends: dict[str, int] = {}
    wrong: list[str] = []
    running = [True]
    known = shapes.compiled(OpenAI.shapes, ("error",))
    plain = chunks = 0

    class Counting(StreamDecoder):
        def receive(self, news: News) -> None:
            nonlocal plain
            plain += 0 if news.columns is None else len(news.columns.kind)
            super().receive(news)

    def user(number: int) -> None:
        nonlocal chunks
        rng = random.Random(SEED * 1000 + number)
        for turn in range(CALLS):
            name = f"{number}.{turn}"
            decoder = Counting(
                OpenAI.on_event,
                AnswerSettings(shapes=known, protocol="openai", keep_text=True, max_tokens=9999),
            )
            exchange = Exchange(decoder, bytes_per_s)
            exchange.may_wait = rng.random() < 0.5
            exchange.on_content = READER.catch_up
            if is_captured:
                exchange.capture = Capture(OpenBytes())
            if rng.random() < 0.25:
                gevent.spawn_later(rng.uniform(0, 0.05), exchange.abort, "cancelled")
            call(watch, f"{url}/events-{name}", exchange=exchange)
            how = exchange.aborted or exchange.cut or (exchange.failure or ("ok",))[0]
            ends[how] = ends.get(how, 0) + 1
            sent, text = made["events"](name)
            got = (decoder.text or "").encode()
            columns = decoder.fresh
            chunks += len(columns)
            is_ordered = all(a <= b for a, b in itertools.pairwise(columns.arrived)) and all(
                low <= at <= read
                for low, at, read in zip(columns.low, columns.arrived, columns.read_at, strict=True)
            )
            sizes = [len(one) - len(sent[0]) + len(text.split(b" ")[0]) + 1 for one in sent]
            is_same = text.startswith(got) and list(columns.chars) == sizes[: len(columns)]
            if how == "ok":
                is_same &= got == text
            if exchange.capture is not None:
                raw = b"".join(data for _, data in exchange.capture.reads)
                is_same &= raw.count(b'"content"') >= len(columns)
            if not (is_ordered and is_same):
                wrong.append(name)

    watch = stopwatch(idle_connections=USERS, ca_file=ca_file)
    with server(*certificate) as url:
        blocker = gevent.spawn(busy, running)
        gevent.joinall([gevent.spawn(user, number) for number in range(USERS)], raise_error=True)
        running.clear()
        blocker.join()
    return {"ends": ends, "wrong": wrong, "plain": plain, "chunks": chunks}


@case
def come_and_go() -> Any:
    """Calls with a connection each, half of them closed at any moment: descriptors that are left, and the growth in bytes by
    the second or the third part of them, whichever is less: what leaks grows each time, what the allocator keeps does not.
    """

    def user(number: int) -> None:
        rng = random.Random(number)
        for turn in range(GOING // USERS):
            exchange = Exchange(Digest())
            if rng.random() < 0.5:
                gevent.spawn_later(
                    rng.uniform(0, 0.02), exchange.abort, rng.choice(("cancelled", "timeout"))
                )
            call(watch, f"{url}/flood-{rng.choice((0, 65_536, 1 << 20))}-{turn}", exchange=exchange)
            how = exchange.aborted or exchange.cut or "ok"
            ends[how] = ends.get(how, 0) + 1

    def part() -> int:
        gevent.joinall([gevent.spawn(user, number) for number in range(USERS)], raise_error=True)
        gc.collect()
        return memory()

    ends: dict[str, int] = {}
    with server() as url:
        watch = stopwatch(idle_connections=0)
        call(watch, f"{url}/flood-0")
        before = len(list(Path("/proc/self/fd").iterdir()))
        sizes = [part() for _ in range(3)]
        gevent.sleep(REST_S)
        left = len(list(Path("/proc/self/fd").iterdir())) - before
    grown = min(sizes[1] - sizes[0], sizes[2] - sizes[1])
    return {"ends": ends, "left": left, "grown": grown}


@case
def events() -> Any:
    return many_events()


@case
def events_under_tls() -> Any:
    return with_certificate(many_events)


@case
def events_captured() -> Any:
    return many_events(is_captured=True)


@case
def events_slow() -> Any:
    return many_events(bytes_per_s=1e6)


@case
def flood() -> Any:
    """More than is kept, sent at a client that looks at nothing meanwhile: size of what came, growth in bytes."""
    decoder = Digest()
    exchange = Exchange(decoder)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with server() as url:
        caller = gevent.spawn(call, stopwatch(), f"{url}/flood-{FLOOD}", exchange=exchange)
        while not decoder.has_content:
            gevent.sleep(0.001)
        READER.longest_wait_ns()
        began = time.monotonic()
        time.sleep(1.0)
        still_s = time.monotonic() - began
        caller.join()
    waited_s = READER.longest_wait_ns() / 1e9
    grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) << 10
    same = decoder.sha.digest() == hashlib.sha256(b"x" * FLOOD).digest()
    return {
        "size": decoder.size, "same": same, "grown": grown, "cut": exchange.cut, "still_s": still_s,
        "waited_s": waited_s, "waits_again_s": READER.longest_wait_ns() / 1e9,
    }  # fmt: skip


@case
def collected() -> Any:
    """More than it can decode, at a client that collects at each read: growth in bytes."""
    before, watch = memory(), stopwatch()
    exchanges = [Exchange(Slow()) for _ in range(FLOODING)]
    with server() as url:
        calls = [
            gevent.spawn(call, watch, f"{url}/flood-{FLOOD}", exchange=one) for one in exchanges
        ]
        gevent.sleep(2.0)
        for one in exchanges:
            one.abort("cancelled")
        gevent.joinall(calls, raise_error=True)
    return {"grown": Slow.most - before}


@case
def in_time() -> Any:
    """An answer that came in time, when the deadline finds the client behind with others: how it ended."""
    watch, exchange = stopwatch(), Exchange(Payload())
    floods = [Exchange(Slow()) for _ in range(FLOODING)]
    with server() as url, server() as prompt:
        calls = [gevent.spawn(call, watch, f"{url}/flood-{FLOOD}", exchange=one) for one in floods]
        gevent.sleep(1.0)
        calls.append(gevent.spawn(call, watch, f"{prompt}/flood-0", exchange=exchange))
        while exchange.left_at_ns is None:
            gevent.sleep(0)
        time.sleep(0.5)  # the answer comes
        exchange.abort("timeout")
        for one in floods:
            one.abort("cancelled")
        gevent.joinall(calls, raise_error=True)
    return {"done": exchange.done, "aborted": exchange.aborted, "cut": exchange.cut}


@case
def patient() -> Any:
    """Messages for a connection that may wait, then for it and one that may not, then its end: time until the loop is woken
    for the first, in ms, and what is taken each time."""
    if scripted_server.READER == "python":
        return None
    thread = _core.Sockets()
    (waits, waits_peer), (counts, counts_peer) = socket.socketpair(), socket.socketpair()
    numbers = {"waits": thread.add(waits.fileno(), "waits", False)}
    thread.listen(numbers["waits"], None, False)
    numbers["counts"] = thread.add(counts.fileno(), "counts", False)
    thread.listen(numbers["counts"], None, True)
    woken = get_original("select", "poll")()
    woken.register(thread.fileno(), select.POLLIN)

    def taken(many: int) -> list[str]:
        found: list[str] = []
        while len(found) < many and woken.poll(5000):
            for name in thread.ready(0)[0]:
                reads, end, *_ = thread.reads(numbers[name])
                found += [f"{name}:{read[0].decode()}" for read in reads]
                found += [] if end is None else [f"{name} ends:{end}"]
        return found

    began = time.monotonic()
    waits_peer.send(b"x")
    first = taken(1)
    waited_ms = (time.monotonic() - began) * 1e3
    waits_peer.send(b"y")
    counts_peer.send(b"z")
    both = taken(2)
    waits_peer.close()
    return {"waited_ms": waited_ms, "taken": [first, both, taken(1)]}


@case
def priority() -> Any:
    """Nice values of a process before it starts a thread, of its own thread then and of the other, the policy of that and
    what is recorded of it: as root, and as nobody."""
    if scripted_server.READER == "python":
        return None
    found = {}
    for user in ("root", "nobody"):
        ours, other = os.pipe()
        if not os.fork():
            resource.setrlimit(resource.RLIMIT_NICE, (0, 0))
            resource.setrlimit(resource.RLIMIT_RTPRIO, (0, 0))
            if user == "nobody" and not os.geteuid():
                os.setuid(65534)
            before = os.getpriority(os.PRIO_PROCESS, 0)
            thread = _core.Sockets()
            tasks = {int(one.name) for one in Path("/proc/self/task").iterdir()}
            (apart,) = tasks - {os.getpid()}
            nice = [os.getpriority(os.PRIO_PROCESS, one) for one in (os.getpid(), apart)]
            is_first = os.sched_getscheduler(apart) == os.SCHED_FIFO
            reader = Reader()
            reader._sockets = thread
            os.write(other, json.dumps([before, *nice, is_first, reader.priority]).encode())
            del thread
            os._exit(0)
        os.wait()
        found[user] = json.loads(os.read(ours, 1000))
    return found


@case
def censored() -> Any:
    """An answer that has been read to its end, and waits, when its call is closed: how it ended, and what was decoded."""
    if scripted_server.READER == "python":
        return None

    def answer(sock: Any, _: int) -> None:
        late.request(sock)
        sock.sendall(SSE + chunk(b"data: a\n\n") + b"0\r\n\r\n")
        late.wait_end(sock)

    late, exchange = Server(answer), Exchange(Payload())
    exchange.may_wait = True
    gevent.spawn(call, stopwatch(), late.url, exchange=exchange)
    until = time.monotonic() + 5
    while (
        not (used := exchange.connection)
        or used._reading is None
        or not READER.waits(used._reading)
    ):
        gevent.sleep(0)
        if exchange.done or time.monotonic() > until:
            break
    exchange.abort("censored")
    return {
        "done": exchange.done,
        "aborted": exchange.aborted,
        "cut": exchange.cut,
        "status": exchange.status,
    }


@case
def alone() -> Any:
    """One connection at a time: how long after the sending the lower bound of what comes first is, in ms."""

    def answer(sock: Any, _: int) -> None:
        late.request(sock)
        gevent.sleep(ANSWER_S)
        sock.sendall(SSE + chunk(b"data: a\n\n") + b"0\r\n\r\n")

    late, watch, known_ms = Server(answer), stopwatch(), []
    POLLS.start(hub_ticks)
    for _ in range(ALONE):
        decoder = Payload()
        exchange = call(watch, late.url, exchange=Exchange(decoder))
        known_ms.append((decoder.fed[0][1] - (exchange.sent_at_ns or 0)) / 1e6)
        gevent.sleep(REST_S)
    POLLS.stop()
    return {"known_ms": known_ms, "wait_ms": ANSWER_S * 1000}


print_facts(limit_s=60)
