"""Call the compiled core a million times at random: any bytes, splits and orders of calls.

It is built with sanitizers (`run.py`), which end the process where they find something.
"""

from __future__ import annotations

import argparse
import secrets
import select
import socket
import struct
import sys
import time
from contextlib import suppress
from random import Random
from typing import Any

from tailgauge.protocols import shapes
from tailgauge.protocols.anthropic import Anthropic
from tailgauge.protocols.openai import OpenAI
from tailgauge.transport import _core

RULES = 12  # of core/shape.h
KINDS = 4  # of content
REFUSED = (KeyError, OSError, TypeError, ValueError, MemoryError)
MOST_CONNECTIONS = 100
MOST_ANSWERS = 30
RESET = struct.pack("ii", 1, 0)
BUFFER = 64 * 1024
KEYS = ("choices", "delta", "content", "index", "role", "id", "type", "text", "usage", "model", "")
PARTS = (
    b"data: ", b"data:", b"event: ", b"event:error", b"id: 1", b"retry:", b": comment", b"\n", b"\n\n", b"\r\n", b"\r",
    b"{", b"}", b"[", b"]", b":", b",", b'"', b'"text"', b"null", b"true", b"false", b"-1.5e3", b"0", b"12", b"9" * 30,
    b'"content":"hello"', b'"choices":[{"delta":{"content":"a"}}]', b'{"type":"content_block_delta"}', b'\\"', b"\\u00e9",
    b"\\ud83d\\ude00", b"\\ud83d", b"\\u", b"\xc3\xa9", b"\xf0\x9f\x98\x80", b"\xed\xa0\x80", b"\xff", b"\x00", b"[" * 40, b" ",
    b"\t", b"5\r\n", b"0\r\n\r\n", b"ffffffffffffffff\r\n", b"1;" + b"x" * 300,
)  # fmt: skip
EVENTS = (
    b'data: {"id":"a","choices":[{"index":0,"delta":{"content":"word"}}]}\n\n',
    b'data: {"id":"a","choices":[{"index":0,"delta":{"content":"w\\u00e9"}}],"usage":null}\n\n',
    b'data: {"id":"a","choices":[],"usage":{"prompt_tokens":3,"completion_tokens":5}}\n\n',
    b'data: {"type":"content_block_delta","index":0,"delta":{"type":"text_delta","text":"word"}}\n\n',
    b'event: ping\ndata: {"type":"ping"}\n\n',
    b": comment\n\n",
)
CLEAN = (EVENTS[:2], EVENTS[3:])  # of a protocol each
PROTOCOLS = [
    shapes.compiled(OpenAI.shapes, ("error",)),
    shapes.compiled(Anthropic.shapes, ("error",)),
]


class Connection:
    """A connection of the core: our end, the other end, and what it listens to."""

    def __init__(self, number: int, ours: socket.socket, peer: socket.socket | None) -> None:
        self.number = number
        self.ours = ours
        self.peer = peer

    def close(self) -> None:
        """Close both ends."""
        self.ours.close()
        if self.peer is not None:
            self.peer.close()


def random_value(rng: Random, depth: int) -> Any:
    """What may stand in the place of a shape, a field or a part of one."""
    return rng.choice(
        (
            None,
            0,
            1,
            -1,
            99,
            True,
            b"key",
            "text",
            (),
            (1, 2),
            (False, ()),
            random_shape(rng, depth + 1),
        )
    )


def random_field(rng: Random, depth: int) -> Any:
    """A field that is described as it should be, but for at most one part."""
    rule = rng.randrange(RULES)
    has_shape = rule in {6, 7} and depth < 9
    field = [
        rng.choice(KEYS).encode(), rule, rng.randrange(KINDS), rng.randrange(32),
        rng.choice(KEYS), random_shape(rng, depth + 1) if has_shape else None, rng.random() < 0.2, rng.random() < 0.1,
    ]  # fmt: skip
    if depth < 3 and rng.random() < 0.03:
        field[rng.randrange(len(field))] = random_value(rng, depth)
    return tuple(field)


def random_shape(rng: Random, depth: int = 0) -> Any:
    """A shape with a few fields; rarely with more than there may be."""
    many = depth == 0 and rng.random() < 0.02
    count = 65 if many else rng.randrange(4)
    return rng.random() < 0.1, tuple(random_field(rng, 9 if many else depth) for _ in range(count))


def random_json(rng: Random, depth: int = 0) -> bytes:
    """An object with keys that shapes name."""
    pairs = []
    for _ in range(rng.randrange(4)):
        value = (
            random_json(rng, depth + 1) if depth < 4 and rng.random() < 0.5 else rng.choice(PARTS)
        )
        if rng.random() < 0.1:
            value = b"[" + value + b"]"
        pairs.append(b'"%b":%b' % (rng.choice(KEYS).encode(), value))
    return b"{" + b",".join(pairs) + b"}"


def random_payload(rng: Random) -> bytes:
    """Events, some of them damaged, or anything."""
    draw = rng.random()
    if draw < 0.5:
        data = rng.choice(EVENTS) * rng.choice((1, 1, 1, 2, 20))
    elif draw < 0.7:
        data = b"data: " + random_json(rng) + b"\n\n"
    elif draw < 0.95:
        data = b"".join(rng.choices(PARTS, k=rng.randrange(12)))
    elif draw < 0.999:
        data = rng.randbytes(rng.choice((1, 10, 1000)))
    else:
        data = rng.choice((b"x", b"\n", b"data: \n")) * rng.choice((30_000, 70_000))
    if data and rng.random() < 0.1:
        place = rng.randrange(len(data))
        data = data[:place] + rng.randbytes(1) + data[place + 1 :]
    return data


def random_wire(rng: Random, clean: int | None) -> bytes:
    """Payload in chunked framing, or not, and rarely the end of it; clean: as the server of a protocol sends it."""
    data = random_payload(rng) if clean is None else rng.choice(CLEAN[clean])
    draw = rng.random()
    if clean is not None or draw < 0.7:
        data = b"%x\r\n%b\r\n" % (len(data), data)
    return data + b"0\r\n\r\n" if draw < 0.02 else data


class Body:
    """The body of an answer, and the bytes of it that come next."""

    def __init__(self, rng: Random) -> None:
        self.clean = rng.choice((0, 1, None, None))
        self.answer = new_answer(rng)
        self.waiting = b""


class Answers:
    """Random calls on answers that nothing else feeds."""

    def __init__(self, rng: Random) -> None:
        self._rng = rng
        self._bodies = [Body(rng)]
        self.chunks = 0

    def act(self) -> None:
        """One call."""
        rng = self._rng
        place = rng.randrange(len(self._bodies))
        answer = self._bodies[place].answer
        draw = rng.random()
        if draw < 0.7:
            self._read(self._bodies[place])
        elif draw < 0.8:
            self._take(answer)
        elif draw < 0.9:
            answer.allow(rng.choice((0, 2, 15, 15, 15, rng.getrandbits(32))))
        elif draw < 0.91:
            begin(rng, answer)
        elif draw < 0.96 and len(self._bodies) < MOST_ANSWERS:
            self._bodies.append(Body(rng))
        elif draw < 0.97:
            self._bodies[place] = Body(rng)
        else:
            new_shapes(rng)

    def _read(self, body: Body) -> None:
        rng = self._rng
        body.waiting = body.waiting or random_wire(rng, body.clean)
        size = rng.choice((0, 1, 2, 10, 50, len(body.waiting), len(body.waiting)))
        data = body.waiting[:size]
        body.waiting = body.waiting[size:]
        arrived = rng.randrange(1 << 61)
        body.answer.read(
            data,
            arrived,
            arrived + rng.choice((0, 1, 1 << 60)),
            rng.choice((0, arrived - 1, arrived + 1)),
        )

    def _take(self, answer: Any) -> None:
        columns, pieces, kept, events, _ = answer.take()
        count = 0 if columns is None else len(columns[0])
        assert count <= events
        assert all(piece[2] for piece in pieces)
        assert all(piece[0] <= count for piece in pieces)
        for piece in pieces:
            assert kept is None or all(
                size <= len(text) for size, text in zip(piece[1], kept, strict=True)
            )
        self.chunks += count


def new_shapes(rng: Random) -> Any:
    """Random shapes, or a protocol's."""
    described = tuple(random_shape(rng) for _ in range(rng.choice((1, 1, 2, 3, 17))))
    names = tuple(rng.choice((b"error", b"ping", b"", "text")) for _ in range(rng.randrange(3)))
    with suppress(*REFUSED):
        return _core.Shapes(described, names, rng.random() < 0.3)
    return rng.choice(PROTOCOLS)


def new_answer(rng: Random) -> Any:
    """An answer whose body has begun."""
    plain = rng.choice((None, *PROTOCOLS, *PROTOCOLS, new_shapes(rng)))
    answer = _core.Answer(plain, rng.choice((0, 2, 15, rng.getrandbits(32))), rng.random() < 0.1)
    begin(rng, answer)
    answer.allow(15)
    return answer


def begin(rng: Random, answer: Any) -> None:
    """Begin a body, mostly a chunked one."""
    framing = rng.choice((0, 0, 0, 0, 0, 0, 1, 2, 3, -1))
    length = rng.choice((0, 1, 1000, 1 << 62, -1))
    with suppress(ValueError):
        answer.begin(framing, length, rng.choice((0, 5)), rng.choice((0, 7)))


class Streams:
    """Random calls on sockets, with peers that send, close and reset meanwhile."""

    def __init__(self, rng: Random) -> None:
        self._rng = rng
        self._sockets: Any = None
        self._connections: list[Connection] = []
        self._accepted: list[socket.socket] = []
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=1024)
        self._listener.setblocking(False)
        self._pools: list[int] = []
        self._token = 0
        self._open_tokens: set[int] = set()
        self.kinds = [0, 0, 0]
        self._calls = (
            (12, self._peer_acts), (4, self._add), (3, self._remove), (5, self._listen), (4, self._feed), (6, self._reads),
            (4, self._lend), (3, self._unlend), (6, self._prepare), (2, self._withdraw), (5, self._ready), (2, self._accept),
            (6, self._accepted_acts), (2, self._query), (2, self._refused), (1, self._limit),
        )  # fmt: skip
        self._weights = [weight for weight, _ in self._calls]
        self._renew()

    def act(self) -> None:
        """One call; rarely all is given up and begun anew, whatever the thread does at that moment."""
        rng = self._rng
        if rng.random() < 0.0005:
            self._renew()
        if rng.random() < 0.003:
            time.sleep(rng.random() * 0.003)
        rng.choices(self._calls, self._weights)[0][1]()

    def _renew(self) -> None:
        self._sockets = None  # with connections open and requests that are due now
        for connection in self._connections:
            connection.close()
        for peer in self._accepted:
            peer.close()
        self._connections = []
        self._accepted = []
        self._open_tokens = set()
        self._sockets = _core.Sockets()
        port = self._listener.getsockname()[1]
        hosts = ((None, 0), ("127.0.0.1", port), ("127.0.0.1", 1), ("::1", port))
        self._pools = [self._sockets.add_pool(host, number) for host, number in hosts]
        self._sockets.set_most_sent(1 << 40)

    def _any(self) -> Connection | None:
        return self._rng.choice(self._connections) if self._connections else None

    def _add(self) -> None:
        if len(self._connections) >= MOST_CONNECTIONS:
            self._remove()
        ours, peer = socket.socketpair()
        peer.setblocking(False)
        connection = Connection(0, ours, peer)
        connection.number = self._sockets.add(ours.fileno(), connection, self._rng.random() < 0.1)
        self._connections.append(connection)

    def _remove(self) -> None:
        connection = self._any()
        if connection is not None:
            self._connections.remove(connection)
            self._sockets.remove(connection.number)
            connection.close()

    def _listen(self) -> None:
        connection = self._any()
        if connection is not None:
            answer = new_answer(self._rng) if self._rng.random() < 0.8 else None
            self._sockets.listen(connection.number, answer, self._rng.random() < 0.5)
            if self._rng.random() < 0.5:
                self._feed(connection)

    def _feed(self, connection: Connection | None = None) -> None:
        connection = connection or self._any()
        if connection is not None:
            with suppress(KeyError):  # under TLS, or without an answer
                self._sockets.feed(connection.number)

    def _reads(self) -> None:
        connection = self._any()
        if connection is not None:
            reads, _, sent_at, _, opened_at, connected_at = self._sockets.reads(connection.number)
            assert all(
                data and arrived and read_at >= empty_at
                for data, arrived, read_at, empty_at in reads
            )
            assert not (opened_at and sent_at and sent_at < connected_at)

    def _lend(self) -> None:
        connection = self._any()
        if connection is not None:
            pool = self._rng.choice((*self._pools, 99))
            until = time.monotonic_ns() + self._rng.choice((-1, 10**6, 10**9))
            with suppress(KeyError):  # it is lent
                self._sockets.lend(connection.number, pool, 0, until)

    def _unlend(self) -> None:
        connection = self._any()
        if connection is not None:
            is_lent = self._sockets.is_lent(connection.number)
            was_lent = self._sockets.unlend(connection.number)
            assert is_lent or not was_lent
            assert not self._sockets.is_lent(connection.number)

    def _prepare(self) -> None:
        rng = self._rng
        due = rng.choice((0, -1, time.monotonic_ns() + rng.choice((-1, 10**5, 10**6, 10**8))))
        size = rng.choice((0, 10, 10, 10, 400_000))
        self._token += 1
        with suppress(*REFUSED):
            self._sockets.prepare(rng.choice((*self._pools, 99)), due, self._token, b"x" * size)
            self._open_tokens.add(self._token)

    def _withdraw(self) -> None:
        token = self._rng.choice((self._token, 1 << 63))
        if self._sockets.withdraw(token):
            self._open_tokens.remove(token)

    def _ready(self) -> None:
        connections, _, notices = self._sockets.ready(time.time_ns() - time.monotonic_ns())
        known = set(map(id, self._connections))
        assert all(id(connection) in known for connection in connections)
        for token, kind, number, _, _ in notices:
            self._open_tokens.remove(token)
            self.kinds[kind] += 1
            if kind == 1:
                self._adopt(number)

    def _adopt(self, number: int) -> None:
        connection = Connection.__new__(Connection)
        raw = socket.socket(fileno=self._sockets.adopt(number, connection))
        Connection.__init__(connection, number, raw, None)
        self._connections.append(connection)
        while len(self._connections) > MOST_CONNECTIONS:
            self._remove()

    def _accept(self) -> None:
        with suppress(BlockingIOError):
            while True:
                peer, _ = self._listener.accept()
                peer.setblocking(False)
                self._accepted.append(peer)
                if len(self._accepted) > MOST_CONNECTIONS:
                    self._accepted.pop(0).close()

    def _query(self) -> None:
        connection = self._any()
        if connection is not None:
            self._sockets.waits(connection.number)
        assert len(self._sockets.lags()) % 8 == 0
        select.select([self._sockets.fileno()], [], [], 0)

    def _refused(self) -> None:
        """Numbers that nobody has, and arguments that are no such thing."""
        sockets = self._sockets
        calls = (
            lambda: sockets.remove(99_999), lambda: sockets.listen(99_999, None, False), lambda: sockets.feed(99_999),
            lambda: sockets.reads(99_999), lambda: sockets.adopt(99_999, None), lambda: sockets.lend(99_999, 0, 0, 0),
            lambda: sockets.listen(0, "text", False), lambda: sockets.add(-1, None, False), lambda: sockets.add_pool("x", 1),
        )  # fmt: skip
        call = self._rng.choice(calls)
        with suppress(*REFUSED):
            call()
            raise AssertionError("it was not refused")

    def _limit(self) -> None:
        self._sockets.set_most_sent(self._rng.choice((0, 1 << 40, 1 << 40, 1 << 40)))

    def _peer_acts(self) -> None:
        connection = self._any()
        if connection is not None and connection.peer is not None:
            self._act_as(connection.peer)

    def _accepted_acts(self) -> None:
        if self._accepted:
            self._act_as(self._rng.choice(self._accepted))

    def _act_as(self, peer: socket.socket) -> None:
        draw = self._rng.random()
        with suppress(OSError):
            if draw < 0.7:
                peer.send(random_wire(self._rng, (0, 1, None)[peer.fileno() % 3]))
            elif draw < 0.94:
                peer.recv(BUFFER)
            elif draw < 0.96:
                peer.shutdown(socket.SHUT_WR)
            elif draw < 0.98:
                peer.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
                peer.close()
            else:
                peer.close()


def main() -> int:
    """Make the calls; they are the same for the same seed, but for what the thread has done meanwhile."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--seed", type=int, default=secrets.randbits(32))
    parser.add_argument("--operations", type=int, default=1_000_000)
    arguments = parser.parse_args()
    print(f"seed {arguments.seed}, core {_core.__file__}", flush=True)
    rng = Random(arguments.seed)
    answers = Answers(rng)
    streams = Streams(rng)
    for _ in range(arguments.operations):
        if rng.random() < 0.5:
            answers.act()
        else:
            streams.act()
    on_lent, on_new, back = streams.kinds
    requests = f"requests on lent connections {on_lent}, on new ones {on_new}, back {back}"
    print(f"{arguments.operations:,} operations, {answers.chunks:,} chunks; {requests}")
    is_complete = arguments.operations < 500_000 or min(answers.chunks, on_lent, on_new, back) > 0
    return 0 if is_complete else 3  # else it has not reached all of the core


if __name__ == "__main__":
    sys.exit(main())
