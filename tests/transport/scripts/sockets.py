"""Script: the thread that reads, by itself: connections that come and go, hold much, or are read while Python does nothing."""

from __future__ import annotations

import gc
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


class Owner:
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
        owner = Owner()
        place = sockets.add(ours.fileno(), owner, rng.random() < 0.1)
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
def owners() -> Any:
    """Who is held while a connection is read, and when the whole is given up with connections open."""
    before = descriptors(), threads()
    sockets = _core.Sockets()
    pairs = [socket.socketpair() for _ in range(300)]
    held = [Owner() for _ in pairs]
    references = [weakref.ref(one) for one in held]
    bodies = [answer() for _ in pairs]
    places = [sockets.add(ours.fileno(), one, False) for (ours, _), one in zip(pairs, held, strict=True)]
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
        sent = eval(sender.stdout.readline())  # noqa: S307 - of our own process
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
