"""Script: the thread that reads, by itself: connections that come and go, hold much, or are read while Python does nothing."""

from __future__ import annotations

import gc
import json
import random
import resource
import select
import socket
import subprocess
import sys
import threading
import time
import weakref
from array import array
from contextlib import suppress
from pathlib import Path
from typing import Any

from starting.script import case, print_facts
from transport.scripts.scripted_server import chunk, stamping_sockets

from tailgauge.clock import SO_TIMESTAMPNS, WALL
from tailgauge.protocols import shapes
from tailgauge.protocols.openai import OpenAI
from tailgauge.transport import _core

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


def answer(framing: int = CHUNKED) -> Any:
    made = _core.Answer(PLAIN, TEXT, False)
    made.begin(framing, 0, 0, 0)
    made.allow(TEXT)
    return made


def memory() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()


def descriptors() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


def threads() -> int:
    return len(list(Path("/proc/self/task").iterdir()))


def wait_for(condition: Any) -> bool:
    until = time.monotonic() + WAIT_S
    while not condition():
        if time.monotonic() > until:
            return False
        time.sleep(0.001)
    return True


@case
def churn() -> Any:
    """Connections that are opened, sent to, and closed at any moment, some with an answer: what is left over of them."""
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
    left = descriptors() - begun
    return {"grown": grown, "ready": len(ready), "descriptors": left}


@case
def recipients() -> Any:
    """Who is held while a connection is read, and when the whole is given up with connections open."""
    before = descriptors(), threads()
    sockets = _core.Sockets()
    pairs = [socket.socketpair() for _ in range(300)]
    held = [Recipient() for _ in pairs]
    references = [weakref.ref(one) for one in held]
    bodies = [answer() for _ in pairs]
    places = [
        sockets.add(ours.fileno(), one, False) for (ours, _), one in zip(pairs, held, strict=True)
    ]
    for place, body in zip(places, bodies, strict=True):
        sockets.listen(place, body, False)
        sockets.feed(place)
    counts = [sys.getrefcount(body) for body in bodies]
    for _, peer in pairs:
        peer.sendall(chunk(event("x")) * 3)
    del held
    gc.collect()
    alive = sum(reference() is not None for reference in references)
    for place in places[:100]:
        sockets.remove(place)
    alive_then = sum(reference() is not None for reference in references)
    counts_then = [sys.getrefcount(body) for body in bodies]
    del sockets
    gc.collect()
    alive_behind = sum(reference() is not None for reference in references)
    for ours, peer in pairs:
        ours.close()
        peer.close()
    return {
        "alive": [alive, alive_then, alive_behind],
        "released": sum(then == now - 1 for now, then in zip(counts, counts_then, strict=True)),
        "left": [descriptors() - before[0], threads() - before[1]],
    }


@case
def numbers() -> Any:
    """A number that is used again has nothing of the connection before it; one that is free is refused."""
    sockets = _core.Sockets()
    wrong = []
    for turn in range(300):
        ours, peer = socket.socketpair()
        place = sockets.add(ours.fileno(), f"old {turn}", False)
        peer.sendall(b"old")
        if turn % 2:
            wait_for(lambda place=place: sockets.waits(place))
        sockets.remove(place)
        ours.close()
        other, other_peer = socket.socketpair()
        again = sockets.add(other.fileno(), f"new {turn}", False)
        other_peer.sendall(b"new")
        wait_for(lambda again=again: sockets.waits(again))
        connections, *_ = sockets.ready(0)
        reads, end, *_ = sockets.reads(again)
        if (
            again != place
            or connections != [f"new {turn}"]
            or [read[0] for read in reads] != [b"new"]
            or end is not None
        ):
            wrong.append([turn, place, again, connections, repr(reads), end])
        sockets.remove(again)
        for one in (peer, other, other_peer):
            one.close()
    refused = []
    for call in (sockets.reads, sockets.remove, sockets.waits, sockets.feed):
        for number in (0, 63, 64, 2**32 - 1):
            try:
                call(number)
            except KeyError:
                refused.append(number)
    for pool in (0, 2**32 - 1):
        try:
            sockets.prepare(pool, 1, 1, b"x")
        except KeyError:
            refused.append(pool)
    return {"wrong": wrong[:3], "refused": len(refused)}


def flooded(*, is_fed: bool) -> Any:
    """More than is held is sent to a connection that nobody takes from; then all of it is taken."""
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
    return {"same": b"".join(got) == sent, "grown": grown, "ends": ends}


@case
def flood_of_reads() -> Any:
    return flooded(is_fed=False)


@case
def flood_of_an_answer() -> Any:
    return flooded(is_fed=True)


def unlooked(piece: bytes) -> Any:
    """A flood that takes no room, of which nobody looks at anything: whether Python is woken, and the bytes that were read."""
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
    is_woken = bool(woken.poll(WAIT_S * 1000))
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
    return {"is_woken": is_woken, "at_once": at_once, "all": body_bytes == len(sent) + size}


@case
def flood_of_comments() -> Any:
    return unlooked(b": comment\n\n")


@case
def flood_of_large_events() -> Any:
    return unlooked(event("x" * 60_000))


@case
def stalled() -> Any:
    """Events that come while Python does nothing else than to hold its lock: those that do not lie where they were sent."""
    held = stamping_sockets()
    with subprocess.Popen(
        [sys.executable, "-c", SENDER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as sender:
        assert sender.stdin is not None
        assert sender.stdout is not None
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
    outside = [
        [number, begin, end, low, at]
        for number, (low, at, (begin, end)) in enumerate(zip(lows, arrived, sent, strict=True))
        if not begin <= at or (low or at) > end  # where it is not exact it came in between
    ]
    return {
        "outside": outside, "pieces": len(pieces), "chunks": len(columns[0]), "text": kept[0].decode(), "events": events,
        "done": facts[7], "lags": len(sockets.lags()) // 8 == facts[0],
    }  # fmt: skip


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
        self.wrong: list[Any] = []
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
            if token in self.notices or at < self.prepared[token]:
                self.wrong.append(["notices twice or early", token, kind])
            self.notices[token] = kind
            if kind == ON_LENT:
                if self.idle.pop(recipient, None) != number:
                    self.wrong.append(["not lent", token, number])
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
        if end is not None or (reads and not sent_at):
            self.wrong.append(["ended", end, sent_at])
        if b"".join(read[0] for read in reads) != b"ok\n":
            return
        del self.busy[recipient]
        if self.rng.random() < 0.8:
            self.lend(recipient, number)
        else:
            self.close(recipient, number)

    def is_over(self) -> bool:
        return not self.busy and len(self.notices) + len(self.withdrawn) == len(self.prepared)


@case
def prepared() -> Any:
    """Requests that are made ahead: each is reported once, or withdrawn, and arrives where it was notices."""
    begun = descriptors()
    with subprocess.Popen(
        [sys.executable, "-c", ANSWERER],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,  # of connections that are open at its end
        text=True,
    ) as server:
        assert server.stdin is not None
        assert server.stdout is not None
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
    left = [token for token, kind in sender.notices.items() if kind != BACK]
    kinds = [list(sender.notices.values()).count(kind) for kind in (ON_LENT, ON_NEW, BACK)]
    over = sender.is_over()
    wrong = sender.wrong[:3]
    withdrawn = len(sender.withdrawn)
    del sender
    gc.collect()
    return {
        "over": over, "wrong": wrong, "kinds": kinds, "withdrawn": withdrawn, "same": sorted(arrived) == sorted(left),
        "left": descriptors() - begun,
    }  # fmt: skip


def opened_and_refused(sockets: Any, pool: int) -> tuple[int, list[int]]:
    """How often a call with a connection that nobody has adopted was refused, and the numbers of these."""
    for token in range(200):
        sockets.prepare(pool, 1, token, b"x")
    notices: list[Any] = []
    wait_for(lambda: notices.extend(sockets.ready(0)[2]) or len(notices) == 200)
    refused = 0
    for _, kind, number, recipient, _ in notices:
        for call, more in (
            (sockets.remove, ()),
            (sockets.reads, ()),
            (sockets.waits, ()),
            (sockets.feed, ()),
            (sockets.listen, (None, True)),
            (sockets.lend, (pool, 0, 0)),
        ):
            try:
                call(number, *more)
            except KeyError:
                refused += kind == ON_NEW and recipient is None
    return refused, [number for _, _, number, _, _ in notices]


@case
def not_adopted() -> Any:
    """Connections that were opened for requests, until Python takes them over."""
    begun = descriptors()
    sockets = _core.Sockets()
    listener = socket.create_server(("127.0.0.1", 0))
    pool = sockets.add_pool("127.0.0.1", listener.getsockname()[1])
    sockets.set_most_sent(200)
    refused, numbers = opened_and_refused(sockets, pool)
    adopted = [socket.socket(fileno=sockets.adopt(number, "x")) for number in numbers[:100]]
    del sockets
    gc.collect()
    for one in (*adopted, listener):
        one.close()
    return {"refused": refused, "left": descriptors() - begun}


@case
def wrong_calls() -> Any:
    """What is no answer, no socket or no framing is refused, and nothing of it is held."""
    sockets = _core.Sockets()
    ours, peer = socket.socketpair()
    place = sockets.add(ours.fileno(), "x", False)
    made = _core.Answer(None, 0, False)
    calls = (
        lambda: sockets.listen(place, "answer", False),
        lambda: sockets.add(-1, "x", False),
        lambda: sockets.add(10**6, "x", False),
        lambda: sockets.add(ours.fileno(), "x", False),  # it is read already
        lambda: made.begin(3, 0, 0, 0),
        lambda: made.begin(0, -1, 0, 0),
        lambda: _core.Answer("shapes", 0, False),
        lambda: _core.Shapes((), (), False),
        lambda: _core.Shapes(((False, ()),) * 17, (), False),
        lambda: _core.Shapes(((False, ((b"k", 99, 0, 0, None, None, False, False),)),), (), False),
        lambda: _core.Shapes(((False, ((b"k", 3, 0, 0, None, None, False, False),)),), (), False),
        lambda: _core.Shapes(((False, ((b"k", 6, 0, 0, None, None, False, False),)),), (), False),
        lambda: _core.Shapes(((False, ((b"k", 0, 0, 32, None, None, False, False),)),), (), False),
        lambda: _core.Shapes((5,), (), False),
        lambda: _core.Shapes(((False, (5,)),), (), False),
        lambda: _core.Shapes(((False, ()),), ("name",), False),
    )
    raised = []
    for call in calls:
        try:
            call()
        except (OSError, TypeError, ValueError) as error:
            raised.append(type(error).__name__)
    sockets.remove(place)
    ours.close()
    peer.close()
    return {"calls": len(calls), "raised": len(raised)}


if __name__ == "__main__":
    print_facts(limit_s=None)
