"""Script: random streams, decoded by compiled code and in Python, give the same: NAME or all, SEED, count, and perhaps one number."""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import partial
from random import Random
from typing import Any

from protocols.scripts import nearly_plain, random_streams
from starting.script import CASES, print_facts
from wire.oracle import DRAW

from tailgauge.protocols import shapes
from tailgauge.protocols.anthropic import Anthropic
from tailgauge.protocols.decoder import StreamDecoder
from tailgauge.protocols.openai import OpenAI
from tailgauge.transport import exchange as exchanges
from tailgauge.transport.answer import News
from tailgauge.transport.exchange import Exchange

NAME, *_numbers = sys.argv[1:]
SEED, COUNT, *ONLY = map(int, _numbers)
HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
_OF_THE_EVENT = {"_at", "_low", "_read_at", "_read_index"}  # that is being handled
NOT_COMPARED = {
    "shapes",
    "_splitter",
    "fresh",
    "_field",
    "_on_event",
    "usage",
    "tools",
    "receive",
} | _OF_THE_EVENT
OF_EXCHANGE = (
    "status", "reads", "body_bytes", "receive_lag_max_ns", "user_stamps", "done", "cut", "cut_text", "failure", "plain_body",
)  # fmt: skip
Draw = Callable[[Random], tuple[bytes, list[bytes]]]  # the head, and the reads of the body


def decoded(
    module: Any, head: bytes, reads: list[bytes], rng: Random, *, is_compiled: bool
) -> dict[str, Any]:
    """What is known after the stream; it is taken at random moments, the same both ways."""
    decoder = StreamDecoder(
        module.on_event,
        shapes=shapes.compiled(module.shapes, ("error",)) if is_compiled else None,
        protocol=module.name,
        watch_chunks=rng.choice((0, 0, 5)),
        watch_field=rng.random() < 0.1,
        keep_text=rng.random() < 0.5,
        ends_at_mark=module.ends_at_mark,
    )
    plain = 0
    receive = decoder.receive

    def counted(news: News) -> None:
        nonlocal plain
        plain += 0 if news.columns is None else len(news.columns.kind)
        receive(news)

    decoder.receive = counted  # type: ignore[method-assign]
    exchanges.COMPILED = is_compiled
    exchange = Exchange(decoder)
    exchange.on_data(head, 1, 2)
    often = rng.choice((0.03, 0.2, 0.5, 1.0))
    for number, read in enumerate(reads):
        if exchange.done:
            break
        at = 1000 * (number + 1)
        empty_at = rng.choice((0, 0, at - 1500, at - 300, at + 5))
        assert exchange._answer is not None
        exchange._answer.read(read, at, at + rng.randrange(900), empty_at)
        if rng.random() < often:
            exchange.advance()
    if not exchange.done:
        exchange.on_end("connection reset by peer" if rng.random() < 0.2 else None)
    return {"facts": facts_of(exchange, decoder), "plain": plain, "chunks": decoder.chunks}


def facts_of(exchange: Exchange, decoder: StreamDecoder) -> dict[str, str]:
    facts = {name: repr(value) for name, value in vars(decoder).items() if name not in NOT_COMPARED}
    first, chunks = decoder.take()
    facts |= {"usage": repr(decoder.usage.largest), "problem": repr(decoder.usage.problem)}
    facts |= {"unknown": repr(decoder.usage.unknown), "tools": repr(decoder.tools.ready_at_ns)}
    facts |= {name: repr(getattr(chunks, name)) for name in type(chunks).__slots__}
    facts |= {"first": repr(first), "text": repr(decoder.text), "valid_json": repr(decoder.valid_json)}
    for name in OF_EXCHANGE:
        facts[name] = repr(getattr(exchange, name))
    return facts


def compared(name: str, module: Any, draw: Draw) -> dict[str, Any]:
    """The facts that differ, with the number of their stream."""
    different: list[list[Any]] = []
    plain = chunks = 0
    for number in ONLY or range(COUNT):
        seed = f"{SEED}-{name}-{number}"
        head, reads = draw(Random(seed))
        quick, full = (
            decoded(module, head, reads, Random(seed), is_compiled=is_compiled)
            for is_compiled in (True, False)
        )
        plain += quick["plain"]
        chunks += quick["chunks"]
        facts = quick["facts"]
        right = full["facts"]
        different += [
            [number, fact, facts.get(fact, "")[:300], right.get(fact, "")[:300]]
            for fact in sorted(facts.keys() | right.keys())
            if facts.get(fact) != right.get(fact)
        ]
    streams = len(ONLY or range(COUNT))
    return {"different": different[:6], "plain": plain, "chunks": chunks, "streams": streams}


def usual(name: str, module: Any, rng: Random) -> tuple[bytes, list[bytes]]:
    return HEAD, random_streams.wire(name, module, rng)


def of_grammar(module: Any, rng: Random) -> tuple[bytes, list[bytes]]:
    """A stream of tests/wire/grammar, split at other places; most are framed in another way, too."""
    stream = DRAW[module.name](str(rng.random()))
    if rng.random() < 0.8:
        return nearly_plain.framed(rng, [event.wire for event in stream.events])
    head, blank, body = stream.wire.partition(b"\r\n\r\n")
    return head + blank, nearly_plain.split(rng, body)


DRAWS: dict[str, tuple[Any, Draw]] = {
    "openai": (OpenAI, partial(usual, "openai", OpenAI)),
    "changing": (OpenAI, partial(usual, "changing", OpenAI)),
    "anthropic": (Anthropic, partial(usual, "anthropic", Anthropic)),
    "grammar_openai": (OpenAI, partial(of_grammar, OpenAI)),
    "grammar_anthropic": (Anthropic, partial(of_grammar, Anthropic)),
    "nearly_plain_openai": (OpenAI, partial(nearly_plain.wire, OpenAI)),
    "nearly_plain_anthropic": (Anthropic, partial(nearly_plain.wire, Anthropic)),
}
if __name__ == "__main__":
    for _name, (_module, _draw) in DRAWS.items():
        if NAME in {_name, "all"}:
            CASES[_name] = partial(compared, _name, _module, _draw)
    print_facts(limit_s=None)
