"""Random streams, at one connection whose thread decodes plain events and at one without, give the same.

The server sends each piece to both and waits until both have read it, so that a piece is a read of each.
"""

from __future__ import annotations

import termios
from random import Random
from typing import Any

import gevent
import pytest
from protocols.random_streams import wire
from transport.scripted_server import SSE, Server, call, stopwatch, unread

from tailgauge.clock import monotonic_ns
from tailgauge.protocol_violations import FRAMING
from tailgauge.protocols import shapes
from tailgauge.protocols.anthropic import Anthropic
from tailgauge.protocols.decoder import AnswerSettings, StreamDecoder
from tailgauge.protocols.openai import OpenAI
from tailgauge.transport.answer import News
from tailgauge.transport.exchange import Exchange
from tailgauge.transport.reader import READER

pytestmark = [pytest.mark.gevent, pytest.mark.usefixtures("reading_thread")]

STREAMS = 30
REPEATS = 12
OF_DECODER = "events chunks intervals has_content error broken finished model stop_reason taken"
OF_EXCHANGE = "done cut failure user_stamps"
OF_READS = "body_bytes reads"
STAMPS = "first_event first_content first_text first_thinking last_thinking last_content stopped"


class Counting(StreamDecoder):
    """Counts the chunks that the thread has decoded."""

    plain = 0

    def receive(self, news: News) -> None:
        self.plain += 0 if news.columns is None else len(news.columns.kind)
        super().receive(news)


class Pair:
    """Two calls that get the same pieces; `sent_at_ns`: before and behind each."""

    def __init__(self, module: Any, pieces: list[bytes], plain: Any, rng: Random) -> None:
        self.pieces = pieces
        self.rng = rng
        self.exchanges = []
        for known in (plain, None):
            settings = AnswerSettings(
                shapes=known, protocol=module.name, ends_at_mark=module.ends_at_mark
            )
            self.exchanges.append(Exchange(Counting(module.on_event, settings)))
        self.sent_at_ns: list[tuple[int, int]] = []
        self._sockets: list[Any] = []
        self._server = Server(self._serve)
        watch = stopwatch()
        calls = [
            gevent.spawn(call, watch, self._server.url, exchange=exchange)
            for exchange in self.exchanges
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
            for sock in both:
                sock.sendall(piece)
            self._settle(both)
            self.sent_at_ns.append((began_ns, monotonic_ns()))
            if self.rng.random() < 0.1:
                self._decode()

    def _settle(self, sockets: list[Any]) -> None:
        """Both have read all that was sent, or have left."""
        ours = [exchange.connection for exchange in self.exchanges]
        while any(unread(sock.fileno(), termios.TIOCOUTQ) for sock in sockets) or any(
            unread(one._raw.fileno()) for one in ours if one is not None and not one.closed
        ):
            if any(exchange.done for exchange in self.exchanges):
                break
            gevent.sleep(0.0003)
        if any(exchange.done for exchange in self.exchanges):
            while not all(exchange.done for exchange in self.exchanges):
                gevent.sleep(0.001)
                self._decode()  # one of them may have been decoded just before the other had read the same
            raise ConnectionResetError

    def _decode(self) -> None:
        READER.catch_up()
        for exchange in self.exchanges:
            exchange.advance()

    def assert_that_times_are_those_of_the_pieces(self) -> None:
        chunks = self.exchanges[0].decoder.fresh
        arrivals = dict(zip(chunks.read_index, chunks.arrived, strict=True))
        for place, number in enumerate(chunks.read_index):
            low = chunks.low[place]
            arrived = chunks.arrived[place]
            began_ns, ended_ns = self.sent_at_ns[number]
            # The reader stamps a read behind it: its thread may stall there while the socket is empty already.
            assert began_ns <= arrived <= min(chunks.read_at[place], ended_ns)
            assert not low or arrivals.get(number - 1, 0) <= low <= arrived


def facts(exchange: Exchange) -> dict[str, Any]:
    """What is known of a stream but its times."""
    decoder = exchange.decoder
    chunks = decoder.fresh
    known: dict[str, Any] = {name: getattr(decoder, name) for name in OF_DECODER.split()}
    known |= {name: getattr(exchange, name) for name in OF_EXCHANGE.split()}
    if exchange.cut != FRAMING:  # behind it they are counted as they came
        known |= {name: getattr(exchange, name) for name in OF_READS.split()}
    known |= {name: list(getattr(chunks, name)) for name in ("kind", "read_index", "chars")}
    known["usage"] = decoder.usage.largest
    known["exact"] = [low == 0 for low in chunks.low]
    arrived = list(chunks.arrived)
    for name in STAMPS.split():
        stamp = getattr(decoder, name)
        if stamp is not None:
            place = arrived.index(stamp.at) if stamp.at in arrived else None
            known[name] = (stamp.low is None, place)
    return {name: repr(value) for name, value in known.items()}


@pytest.mark.slow("python", "compiled-changing")
@pytest.mark.parametrize(
    ("name", "module"), [("openai", OpenAI), ("changing", OpenAI), ("anthropic", Anthropic)]
)
def test_what_the_thread_decodes_is_what_the_full_reading_gives(name, module):
    """The times are those of the read that brought the content."""
    plain = shapes.compiled(module.shapes, ("error",))
    count = 0
    count_of_plain = 0
    for seed in range(1000, 1000 + STREAMS):
        rng = Random(seed)
        pair = Pair(module, wire(name, module, rng, REPEATS), plain, rng)
        quick, full = pair.exchanges

        assert facts(quick) == facts(full), seed
        pair.assert_that_times_are_those_of_the_pieces()
        count += quick.decoder.chunks
        count_of_plain += quick.decoder.plain

    assert count > 2000
    assert count_of_plain > count / 10
