"""The thread that reads, by itself: connections that come and go, hold much, or are read while Python does nothing."""

from __future__ import annotations

import gc
import json
import random
import select
import socket
import subprocess
import sys
import threading
import time
import weakref
from array import array
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from transport.resources import descriptors, memory
from transport.stamps import stamping_sockets

from tailgauge.clock import SO_TIMESTAMPNS, WALL
from tailgauge.protocols import shapes
from tailgauge.protocols.openai import OpenAI

if find_spec("tailgauge.transport._core") is None:
    pytest.skip(
        "it is not compiled here: that needs Linux, a C compiler and Python's headers",
        allow_module_level=True,
    )
from tailgauge.transport import _core

MEGABYTE = 1 << 20
PLAIN = shapes.compiled(OpenAI.shapes, ("error",))
TEXT = 1  # the bit of its kind
CHUNKED, UNTIL_CLOSE = 0, 2  # `FramingKind` of core/framing.h
WAIT_S = 20
ROUNDS, WARM = 6000, 2000
LARGE = 8 << 20
STALL_S = 0.4
SENDER = """
import json, socket, sys, time
with socket.create_server(("127.0.0.1", 0)) as listener:
    print(listener.getsockname()[1], flush=True)
    sock, _ = listener.accept()
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    sys.stdin.readline()
    sent = []
    for number in range(60):
        event = b'data: {"choices":[{"delta":{"content":"%d"}}]}\\n\\n' % number
        before = time.monotonic_ns()
        sock.sendall(b"%x\\r\\n%b\\r\\n" % (len(event), event))
        sent.append([before, time.monotonic_ns()])
        time.sleep(0.005)
    sock.sendall(b"0\\r\\n\\r\\n")
    print(json.dumps(sent), flush=True)
    sys.stdin.read()
"""
ANSWERER = """
import asyncio, json, sys
tokens = []
async def serve(reader, writer):
    while line := await reader.readline():
        tokens.append(int(line))
        writer.write(b"ok\\n")
        await writer.drain()
    writer.close()
async def main():
    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    print(server.sockets[0].getsockname()[1], flush=True)
    await asyncio.get_running_loop().run_in_executor(None, sys.stdin.readline)
    print(json.dumps(tokens), flush=True)
asyncio.run(main())
"""
REQUESTS = 3000
ON_LENT, ON_NEW, BACK = range(3)  # `NoticeKind` of core/sends.h


class Recipient:
    """Stands for a connection."""


def event(text: str) -> bytes:
    return b'data: {"choices":[{"delta":{"content":"%b"}}]}\n\n' % text.encode()


def chunk(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data)


def answer(framing: int = CHUNKED) -> Any:
    made = _core.Answer(PLAIN, TEXT, False)
    made.begin(framing, 0, 0, 0)
    made.allow(TEXT)
    return made


def threads() -> int:
    return len(list(Path("/proc/self/task").iterdir()))


def wait_for(condition: Any) -> None:
    until = time.monotonic() + WAIT_S
    while not condition():
        assert time.monotonic() < until
        time.sleep(0.001)


def test_of_thousands_of_connections_nothing_is_left() -> None:
    """They are opened, fed, taken from and closed at any moment, most while data comes, some with an answer."""
    sockets = _core.Sockets()
    rng = random.Random(1)
    opened: list[tuple[int, Any, Any, Any]] = []
    first = 0
    begun = descriptors()
    for number in range(ROUNDS):
        if number == WARM:
            first = memory()
        ours, peer = socket.socketpair()
        recipient = Recipient()
        place = sockets.add(ours.fileno(), recipient, rng.random() < 0.1)
        body = answer() if rng.random() < 0.5 else None
        sockets.listen(place, body, rng.random() < 0.5)
        peer.sendall(chunk(event("one")) * rng.randrange(4))
        if body is not None and rng.random() < 0.7:
            with suppress(KeyError):  # under TLS
                sockets.feed(place)
        opened.append((place, ours, peer, body))
        if rng.random() < 0.2:
            sockets.ready(0)
        while len(opened) > rng.choice((0, 5, 300)):
            place, ours, peer, body = opened.pop(rng.randrange(len(opened)))
            end = rng.random()
            if end < 0.3:
                peer.close()
            elif end < 0.6:
                peer.sendall(chunk(event("more")))
            if end < 0.2:
                sockets.reads(place)
            if body is not None and end < 0.8:
                body.take()
            sockets.remove(place)
            ours.close()
            peer.close()
    for place, ours, peer, _ in opened:
        sockets.remove(place)
        ours.close()
        peer.close()

    grown = memory() - first
    ready, *_ = sockets.ready(0)
    assert len(ready) == 0
    assert descriptors() == begun
    assert grown < 2 * MEGABYTE, "by 4,000 connections behind the first 2,000"


def test_connections_and_answers_are_held_while_they_are_read_and_no_longer() -> None:
    """Also where all of it is given up with 200 connections open: the thread and its descriptors go."""

    def alive() -> int:
        return sum(reference() is not None for reference in references)

    before = descriptors(), threads()
    sockets = _core.Sockets()
    pairs = [socket.socketpair() for _ in range(300)]
    held = [Recipient() for _ in pairs]
    references = [weakref.ref(recipient) for recipient in held]
    bodies = [answer() for _ in pairs]
    places = []
    for (ours, _), recipient, body in zip(pairs, held, bodies, strict=True):
        place = sockets.add(ours.fileno(), recipient, False)
        sockets.listen(place, body, False)
        sockets.feed(place)
        places.append(place)
    del recipient
    counts = [sys.getrefcount(body) for body in bodies]
    for _, peer in pairs:
        peer.sendall(chunk(event("x")) * 3)
    del held
    gc.collect()

    assert alive() == 300
    for place in places[:100]:
        sockets.remove(place)
    assert alive() == 200
    later_counts = [sys.getrefcount(body) for body in bodies]
    released = [count - later for count, later in zip(counts, later_counts, strict=True)]
    assert released == [1] * 100 + [0] * 200
    del sockets
    gc.collect()
    assert alive() == 0
    for ours, peer in pairs:
        ours.close()
        peer.close()
    assert (descriptors(), threads()) == before


def test_a_number_that_is_used_again_has_nothing_of_the_connection_before_it() -> None:
    sockets = _core.Sockets()
    for turn in range(300):
        ours, peer = socket.socketpair()
        place = sockets.add(ours.fileno(), f"old {turn}", False)
        peer.sendall(b"old")
        if turn % 2:
            wait_for(lambda place=place: sockets.waits(place))
        sockets.remove(place)
        ours.close()
        other, other_peer = socket.socketpair()
        assert sockets.add(other.fileno(), f"new {turn}", False) == place
        other_peer.sendall(b"new")
        wait_for(lambda place=place: sockets.waits(place))
        connections, *_ = sockets.ready(0)
        assert connections == [f"new {turn}"]
        reads, end, *_ = sockets.reads(place)
        assert ([read[0] for read in reads], end) == ([b"new"], None)
        sockets.remove(place)
        for one in (peer, other, other_peer):
            one.close()


@pytest.mark.parametrize("number", [0, 63, 64, 2**32 - 1])
def test_a_number_of_no_connection_or_pool_is_refused(number: int) -> None:
    sockets = _core.Sockets()
    for call in (sockets.reads, sockets.remove, sockets.waits, sockets.feed):
        with pytest.raises(KeyError):
            call(number)
    with pytest.raises(KeyError):
        sockets.prepare(number, 1, 1, b"x")


@pytest.mark.parametrize("is_fed", [False, True], ids=["reads", "an answer"])
def test_what_nobody_takes_waits_in_the_kernel_and_all_of_it_comes_later(is_fed: bool) -> None:
    """8 MB come."""
    sockets = _core.Sockets()
    ours, peer = socket.socketpair()
    place = sockets.add(ours.fileno(), "flood", False)
    body = _core.Answer(None, 0, False)
    body.begin(UNTIL_CLOSE, 0, 0, 0)
    if is_fed:
        sockets.listen(place, body, False)
        sockets.feed(place)
    sent = random.Random(2).randbytes(LARGE)
    sender = threading.Thread(target=lambda: (peer.sendall(sent), peer.close()))
    before = memory()
    sender.start()
    time.sleep(0.3)
    grown = memory() - before
    got = []
    ends = []
    woken = select.poll()
    woken.register(sockets.fileno(), select.POLLIN)
    until = time.monotonic() + WAIT_S
    while not ends and time.monotonic() < until:
        woken.poll(1000)
        sockets.ready(0)
        reads, end, *_ = sockets.reads(place)
        pieces = body.take()[1]
        got += [piece[2] for piece in pieces] if is_fed else [read[0] for read in reads]
        ends += [] if end is None else [end]
    sender.join()
    sockets.remove(place)
    ours.close()

    assert (b"".join(got) == sent, ends) == (True, [0])
    assert grown < 2 * MEGABYTE


@pytest.mark.parametrize(
    "piece", [b": comment\n\n", event("x" * 60_000)], ids=["comments", "large events"]
)
def test_what_takes_no_room_is_not_read_without_end_either(piece: bytes) -> None:
    """32 MB of events of which the thread keeps little: Python has bounds for the bytes of a body."""
    sockets = _core.Sockets()
    ours, peer = socket.socketpair()
    place = sockets.add(ours.fileno(), "flood", False)
    body = answer(UNTIL_CLOSE)
    body.read(event("one") + event("two"), 1, 2, 0)  # content is known
    body.take()
    sockets.listen(place, body, False)
    sockets.feed(place)
    sent = piece * (4 * LARGE // len(piece))
    sender = threading.Thread(target=peer.sendall, args=(sent,))
    sender.start()
    woken = select.poll()
    woken.register(sockets.fileno(), select.POLLIN)
    assert woken.poll(WAIT_S * 1000)
    time.sleep(0.3)
    body_bytes = body.take()[4][1]
    size = len(event("one") + event("two"))
    until = time.monotonic() + WAIT_S
    at_once = body_bytes
    while body_bytes < len(sent) + size and time.monotonic() < until:
        woken.poll(1000)
        sockets.ready(0)
        sockets.reads(place)
        body_bytes = body.take()[4][1]
    sender.join()
    sockets.remove(place)
    ours.close()
    peer.close()

    assert at_once < 5 * MEGABYTE
    assert body_bytes == len(sent) + size


def test_events_that_come_while_python_holds_its_lock_have_the_times_at_which_they_were_sent() -> (
    None
):
    held = stamping_sockets()
    with subprocess.Popen(
        [sys.executable, "-c", SENDER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as sender:
        ours = socket.create_connection(("127.0.0.1", int(sender.stdout.readline())))
        ours.setsockopt(socket.SOL_SOCKET, SO_TIMESTAMPNS, 1)
        ours.setblocking(False)
        sockets = _core.Sockets()
        sockets.ready(WALL.offset_ns)
        body = answer()
        place = sockets.add(ours.fileno(), "stalled", False)
        sockets.listen(place, body, False)
        sockets.feed(place)
        sender.stdin.write("\n")
        sender.stdin.flush()
        until = time.monotonic() + STALL_S
        while time.monotonic() < until:
            pass
        sent = json.loads(sender.stdout.readline())
        woken = select.poll()
        woken.register(sockets.fileno(), select.POLLIN)
        woken.poll(WAIT_S * 1000)
        columns, pieces, kept, events, facts = body.take()
        sockets.remove(place)
        ours.close()
        sender.communicate()
    for one in held or ():
        one.close()
    first = pieces[0]
    arrived = [first[4], *array("q", columns[1])]
    lows = [0 if first[7] else first[3], *array("q", columns[2])]
    for number, (low, at, (begin, end)) in enumerate(zip(lows, arrived, sent, strict=True)):
        assert begin <= at, number
        assert (low or at) <= end, number  # where it is not exact it came in between
    assert len(pieces) == 1, "the first is decoded in Python"
    assert (len(columns[0]), events) == (59, 59)
    assert kept[0].decode() == "".join(map(str, range(1, 60)))
    assert facts[7], "it is done"
    assert len(sockets.lags()) // 8 == facts[0], "one for each read"


class Sender:
    """Prepares requests, withdraws some, and uses connections again or closes them, each at random."""

    def __init__(self, port: int) -> None:
        self.rng = random.Random(3)
        self.port = port
        self.sockets = _core.Sockets()
        self.pool = self.sockets.add_pool("127.0.0.1", port)
        self.notices: dict[int, int] = {}  # kinds of notices by token
        self.prepared: dict[int, int] = {}  # due times
        self.withdrawn: set[int] = set()
        self.idle: dict[Recipient, int] = {}  # numbers of lent connections
        self.busy: dict[Recipient, int] = {}
        self.raw: dict[Recipient, socket.socket] = {}

    def open(self) -> None:
        raw = socket.create_connection(("127.0.0.1", self.port))
        raw.setblocking(False)
        recipient = Recipient()
        number = self.sockets.add(raw.fileno(), recipient, False)
        self.raw[recipient] = raw
        self.lend(recipient, number)

    def lend(self, recipient: Recipient, number: int) -> None:
        self.sockets.lend(
            number, self.pool, time.monotonic_ns() + self.rng.choice((0, 3_000_000)), 1 << 62
        )
        self.idle[recipient] = number

    def close(self, recipient: Recipient, number: int) -> None:
        self.sockets.remove(number)
        self.raw.pop(recipient).close()

    def take_back_one(self) -> None:
        recipient = self.rng.choice(list(self.idle))
        if self.sockets.unlend(self.idle[recipient]):
            self.close(recipient, self.idle.pop(recipient))

    def prepare(self, token: int) -> None:
        self.prepared[token] = time.monotonic_ns() + self.rng.randrange(30_000_000)
        self.sockets.prepare(self.pool, self.prepared[token], token, b"%d\n" % token)

    def withdraw(self, token: int) -> None:
        if self.sockets.withdraw(token):
            self.withdrawn.add(token)

    def look(self) -> None:
        recipients, _, notices = self.sockets.ready(0)
        for token, kind, number, recipient, at in notices:
            assert token not in self.notices
            assert at >= self.prepared[token]
            self.notices[token] = kind
            if kind == ON_LENT:
                assert self.idle.pop(recipient) == number
                self.busy[recipient] = number
            elif kind == ON_NEW:
                adopted = Recipient()
                self.raw[adopted] = socket.socket(fileno=self.sockets.adopt(number, adopted))
                self.busy[adopted] = number
                self.take(adopted)
        for recipient in recipients:
            if recipient in self.busy:
                self.take(recipient)

    def take(self, recipient: Recipient) -> None:
        number = self.busy[recipient]
        reads, end, sent_at, *_ = self.sockets.reads(number)
        assert end is None
        assert sent_at or not reads
        if b"".join(read[0] for read in reads) != b"ok\n":
            return
        del self.busy[recipient]
        if self.rng.random() < 0.8:
            self.lend(recipient, number)
        else:
            self.close(recipient, number)

    def is_over(self) -> bool:
        return not self.busy and len(self.notices) + len(self.withdrawn) == len(self.prepared)


def test_each_prepared_request_is_reported_once_or_withdrawn_and_arrives_once() -> None:
    """On connections that are lent, used again, taken back and closed at any moment, and on new ones."""
    begun = descriptors()
    with subprocess.Popen(
        [sys.executable, "-c", ANSWERER],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,  # of connections that are open at its end
        text=True,
    ) as server:
        sender = Sender(int(server.stdout.readline()))
        for token in range(REQUESTS):
            if token == REQUESTS // 2:
                sender.sockets.set_most_sent(token)  # those behind come back
            elif token == 0:
                sender.sockets.set_most_sent(1 << 40)
            if len(sender.raw) < 20 and sender.rng.random() < 0.1:
                sender.open()
            if sender.idle and sender.rng.random() < 0.02:
                sender.take_back_one()
            sender.prepare(token)
            if sender.rng.random() < 0.2:
                sender.withdraw(sender.rng.randrange(token + 1))
            if sender.rng.random() < 0.5:
                sender.look()
            if sender.rng.random() < 0.1:
                time.sleep(0.002)
        until = time.monotonic() + WAIT_S
        while not sender.is_over() and time.monotonic() < until:
            time.sleep(0.001)
            sender.look()
        server.stdin.write("\n")
        server.stdin.flush()
        arrived = json.loads(server.stdout.readline())
    for recipient, number in [*sender.idle.items(), *sender.busy.items()]:
        sender.close(recipient, number)

    assert sender.is_over()
    assert sorted(arrived) == sorted(
        token for token, kind in sender.notices.items() if kind != BACK
    )
    kinds = Counter(sender.notices.values())
    assert min(kinds[ON_LENT], kinds[ON_NEW], kinds[BACK], len(sender.withdrawn)) > 20
    del sender
    gc.collect()
    assert descriptors() == begun


def opened_and_refused(sockets: Any, pool: int) -> list[int]:
    """Open 200 connections, which nobody may use before they are adopted; their numbers."""
    for token in range(200):
        sockets.prepare(pool, 1, token, b"x")
    notices: list[Any] = []
    wait_for(lambda: notices.extend(sockets.ready(0)[2]) or len(notices) == 200)
    for _, kind, number, recipient, _ in notices:
        assert (kind, recipient) == (ON_NEW, None)
        for call in (sockets.remove, sockets.reads, sockets.waits, sockets.feed):
            with pytest.raises(KeyError):
                call(number)
        with pytest.raises(KeyError):
            sockets.listen(number, None, True)
        with pytest.raises(KeyError):
            sockets.lend(number, pool, 0, 0)
    return [number for _, _, number, _, _ in notices]


def test_a_connection_that_was_opened_for_a_request_is_nobodys_until_it_is_adopted() -> None:
    """200 of them, more than there was room for; the half that is never adopted is closed with the rest."""
    begun = descriptors()
    sockets = _core.Sockets()
    listener = socket.create_server(("127.0.0.1", 0))
    pool = sockets.add_pool("127.0.0.1", listener.getsockname()[1])
    sockets.set_most_sent(200)
    numbers = opened_and_refused(sockets, pool)
    adopted = [socket.socket(fileno=sockets.adopt(number, "x")) for number in numbers[:100]]
    del sockets
    gc.collect()
    for one in (*adopted, listener):
        one.close()
    assert descriptors() == begun


@pytest.fixture
def place() -> Iterator[tuple[Any, int, int]]:
    """The thread, the number of a connection of it, and its descriptor."""
    sockets = _core.Sockets()
    ours, peer = socket.socketpair()
    number = sockets.add(ours.fileno(), "x", False)
    yield sockets, number, ours.fileno()
    sockets.remove(number)
    ours.close()
    peer.close()


def test_what_is_no_answer_or_no_socket_is_refused(place: tuple[Any, int, int]) -> None:
    sockets, number, descriptor = place

    with pytest.raises(TypeError):
        sockets.listen(number, "answer", False)
    for wrong in (-1, 10**6, descriptor):  # the last is read already
        with pytest.raises((OSError, ValueError)):
            sockets.add(wrong, "x", False)


def test_what_is_no_framing_is_refused() -> None:
    made = _core.Answer(None, 0, False)

    for framing in ((3, 0), (0, -1)):
        with pytest.raises(ValueError, match=r"framing|length"):
            made.begin(*framing, 0, 0)


KEY = (b"k", 0, 0, 0, None, None, False, False)


@pytest.mark.parametrize(
    "shapes",
    [
        ((), (), False),
        (((False, ()),) * 17, (), False),
        (((False, ((b"k", 99, *KEY[2:]),)),), (), False),
        (((False, ((b"k", 3, *KEY[2:]),)),), (), False),
        (((False, ((b"k", 6, *KEY[2:]),)),), (), False),
        (((False, ((b"k", 0, 0, 32, *KEY[4:]),)),), (), False),
        ((5,), (), False),
        (((False, (5,)),), (), False),
        (((False, ()),), ("name",), False),
    ],
)
def test_what_are_no_shapes_is_refused(shapes: tuple[Any, ...]) -> None:
    with pytest.raises((TypeError, ValueError)):
        _core.Shapes(*shapes)


def test_an_answer_takes_nothing_else_for_shapes() -> None:
    with pytest.raises(TypeError):
        _core.Answer("shapes", 0, False)
