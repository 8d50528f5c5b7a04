"""Script: random streams, decoded by compiled code and in Python, give the same."""

from __future__ import annotations

from functools import partial
from random import Random
from typing import Any

from protocols.scripts.random_streams import wire
from starting.script import CASES, print_facts

from tailgauge.protocols import shapes
from tailgauge.protocols.anthropic import Anthropic
from tailgauge.protocols.decoder import StreamDecoder
from tailgauge.protocols.openai import OpenAI
from tailgauge.transport import exchange as exchanges
from tailgauge.transport.answer import News
from tailgauge.transport.exchange import Exchange

STREAMS = 250
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
    "decode",
} | _OF_THE_EVENT


def decoded(module: Any, reads: list[bytes], seed: int, *, is_compiled: bool) -> dict[str, Any]:
    """What is known after the stream; it is taken at random moments, the same both ways."""
    rng = Random(seed)
    decoder = StreamDecoder(
        module.on_event,
        shapes=shapes.compiled(module.shapes, ("error",)) if is_compiled else None,
        protocol=module.name,
        watch_chunks=rng.choice((0, 0, 5)),
        watch_field=rng.random() < 0.1,
        keep_text=rng.random() < 0.5,
    )
    plain = 0
    decode = decoder.decode

    def counted(news: News) -> None:
        nonlocal plain
        plain += 0 if news.columns is None else len(news.columns.kind)
        decode(news)

    decoder.decode = counted  # type: ignore[method-assign]
    exchanges.COMPILED = is_compiled
    exchange = Exchange(decoder)
    exchange.on_data(HEAD, 1, 2)
    for number, read in enumerate(reads):
        if exchange.done:
            break
        at = 1000 * (number + 1)
        assert exchange._answer is not None
        exchange._answer.read(read, at, at + rng.randrange(900), 0)
        if rng.random() < 0.3:
            exchange.advance()
    if not exchange.done:
        exchange.on_end(None)
    return {"facts": facts_of(exchange, decoder), "plain": plain, "chunks": decoder.chunks}


def facts_of(exchange: Exchange, decoder: StreamDecoder) -> dict[str, str]:
    facts = {name: repr(value) for name, value in vars(decoder).items() if name not in NOT_COMPARED}
    first, chunks = decoder.take()
    facts |= {"usage": repr(decoder.usage.largest), "problem": repr(decoder.usage.problem)}
    facts |= {"unknown": repr(decoder.usage.unknown), "tools": repr(decoder.tools.ready_at_ns)}
    facts |= {name: repr(getattr(chunks, name)) for name in type(chunks).__slots__}
    facts |= {"first": repr(first), "text": repr(decoder.text)}
    for name in ("reads", "body_bytes", "receive_lag_max_ns", "user_stamps", "done", "cut", "failure"):
        facts[name] = repr(getattr(exchange, name))
    return facts


def compared(name: str, module: Any) -> dict[str, Any]:
    different: list[list[Any]] = []
    plain = chunks = 0
    for seed in range(STREAMS):
        reads = wire(name, module, Random(seed))
        quick, full = (decoded(module, reads, seed, is_compiled=way) for way in (True, False))
        plain += quick["plain"]
        chunks += quick["chunks"]
        different += [
            [seed, fact, quick["facts"].get(fact, "")[:300], value[:300]]
            for fact, value in full["facts"].items()
            if quick["facts"].get(fact) != value
        ]
    return {"different": different[:6], "plain": plain, "chunks": chunks}


for _name, _module in (("openai", OpenAI), ("changing", OpenAI), ("anthropic", Anthropic)):
    CASES[_name] = partial(compared, _name, _module)
print_facts()
