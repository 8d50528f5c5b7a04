"""Script: random streams, at one connection whose thread decodes plain events and at one without, give the same.

The server sends each piece to both and waits until both have read it, so that a piece is a read of each.
"""

from __future__ import annotations

import termios
from functools import partial
from random import Random
from typing import Any

import gevent
from protocols.scripts.random_streams import wire
from starting.script import CASES, print_facts
from transport.scripts.scripted_server import SSE, Server, call, stopwatch, unread

from tailgauge.clock import monotonic_ns
from tailgauge.protocol_violations import FRAMING
from tailgauge.protocols import shapes
from tailgauge.protocols.anthropic import Anthropic
from tailgauge.protocols.decoder import AnswerSettings, StreamDecoder
from tailgauge.protocols.openai import OpenAI
from tailgauge.transport.answer import News
from tailgauge.transport.exchange import Exchange
from tailgauge.transport.reader import READER

STREAMS, REPEATS = 30, 12
OF_DECODER = (
    "events",
    "chunks",
    "intervals",
    "has_content",
    "error",
    "broken",
    "finished",
    "model",
    "stop_reason",
)
OF_EXCHANGE = ("done", "cut", "failure", "user_stamps")
OF_READS = ("body_bytes", "reads")


class Counting(StreamDecoder):
    """Counts the chunks that the thread has decoded."""

    plain = 0

    def receive(self, news: News) -> None:
        self.plain += 0 if news.columns is None else len(news.columns.kind)
        super().receive(news)


class Pair:
    """Two calls that get the same pieces; `sent_at_ns`: before and behind each."""

    def __init__(self, module: Any, pieces: list[bytes], plain: Any, rng: Random) -> None:
        self.pieces, self.rng = pieces, rng
        self.decoders = [
            Counting(
                module.on_event,
                AnswerSettings(
                    shapes=known, protocol=module.name, ends_at_mark=module.ends_at_mark
                ),
            )
            for known in (plain, None)
        ]
        self.exchanges = [Exchange(decoder) for decoder in self.decoders]
        self.sent_at_ns: list[tuple[int, int]] = []
        self._sockets: list[Any] = []
        self._server, watch = Server(self._serve), stopwatch()
        calls = [
            gevent.spawn(call, watch, self._server.url, exchange=one) for one in self.exchanges
        ]
        gevent.joinall(calls, raise_error=True)

    def _serve(self, sock: Any, _: int) -> None:
        self._server.request(sock)
        sock.sendall(SSE)
        self._sockets.append(sock)
        if len(self._sockets) == 1:
            while len(self._sockets) < 2:
                gevent.sleep(0.001)
            try:
                self._send()
            finally:
                self._sockets.append(None)
        while len(self._sockets) < 3:
            gevent.sleep(0.001)

    def _send(self) -> None:
        both = list(self._sockets)
        self._settle(both)
        for piece in self.pieces:
            began_ns = monotonic_ns()
            for one in both:
                one.sendall(piece)
            self._settle(both)
            self.sent_at_ns.append((began_ns, monotonic_ns()))
            if self.rng.random() < 0.1:
                self._decode()

    def _settle(self, sockets: list[Any]) -> None:
        """Both have read all that was sent, or have left."""
        ours = [one.connection for one in self.exchanges]
        while any(unread(one.fileno(), termios.TIOCOUTQ) for one in sockets) or any(
            unread(one._raw.fileno()) for one in ours if one is not None and not one.closed
        ):
            if any(one.done for one in self.exchanges):
                break
            gevent.sleep(0.0003)
        if any(one.done for one in self.exchanges):
            while not all(one.done for one in self.exchanges):
                gevent.sleep(0.001)
                self._decode()  # one of them may have been decoded just before the other had read the same
            raise ConnectionResetError

    def _decode(self) -> None:
        READER.catch_up()
        for one in self.exchanges:
            one.advance()


def facts(exchange: Exchange, decoder: StreamDecoder) -> dict[str, str]:
    """What is known of a stream but its times."""
    found = {name: repr(getattr(decoder, name)) for name in OF_DECODER}
    found |= {name: repr(getattr(exchange, name)) for name in OF_EXCHANGE}
    if exchange.cut != FRAMING:  # behind it they are counted as they came
        found |= {name: repr(getattr(exchange, name)) for name in OF_READS}
    found["usage"] = repr(decoder.usage.largest)
    first, chunks = decoder.taken, decoder.fresh
    for name in (
        "first_event",
        "first_content",
        "first_text",
        "first_thinking",
        "last_thinking",
        "last_content",
        "stopped",
    ):
        stamp = getattr(decoder, name)
        found[name] = repr(
            stamp
            and (
                stamp.low is None,
                list(chunks.arrived).index(stamp.at) if stamp.at in chunks.arrived else None,
            )
        )
    for name in ("kind", "read_index", "chars"):
        found[name] = repr(list(getattr(chunks, name)))
    return found | {"first": repr(first), "exact": repr([low == 0 for low in chunks.low])}


def out_of_place(pair: Pair) -> list[str]:
    """Chunks whose times are not those of the piece that brought them."""
    chunks, wrong = pair.decoders[0].fresh, []
    arrivals = dict(zip(chunks.read_index, chunks.arrived, strict=True))
    for place, number in enumerate(chunks.read_index):
        at, low, read_at = chunks.arrived[place], chunks.low[place], chunks.read_at[place]
        began_ns, ended_ns = pair.sent_at_ns[number]
        before = arrivals.get(number - 1, 0)
        # The reader stamps a read behind it: its thread may stall there while the socket is empty already.
        if not began_ns <= at <= min(read_at, ended_ns) or (low and not before <= low <= at):
            wrong.append(
                f"chunk {place} of read {number}: {began_ns} <= {at} <= {read_at}, {ended_ns}; {before} <= {low}"
            )
    return wrong


def compared(name: str, module: Any) -> dict[str, Any]:
    """Streams decoded both ways."""
    found: dict[str, Any] = {"different": [], "wrong": [], "chunks": 0, "plain": 0}
    plain = shapes.compiled(module.shapes, ("error",))
    for seed in range(STREAMS):
        rng = Random(1000 + seed)
        pair = Pair(module, wire(name, module, rng, REPEATS), plain, rng)
        quick, full = map(facts, pair.exchanges, pair.decoders)
        found["different"] += [
            [seed, key, quick[key][:300], value[:300]]
            for key, value in full.items()
            if quick[key] != value
        ]
        found["wrong"] += out_of_place(pair)
        found["chunks"] += pair.decoders[0].chunks
        found["plain"] += pair.decoders[0].plain
    return found | {"different": found["different"][:3], "wrong": found["wrong"][:3]}


for _name, _module in (("openai", OpenAI), ("changing", OpenAI), ("anthropic", Anthropic)):
    CASES[_name] = partial(compared, _name, _module)
print_facts(limit_s=60)
