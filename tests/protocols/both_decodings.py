"""Decode a stream with compiled code and in Python: what is known of it afterwards, both ways."""

from __future__ import annotations

from random import Random
from typing import Any

from tailgauge.protocols import shapes
from tailgauge.protocols.decoder import AnswerSettings, StreamDecoder
from tailgauge.transport import exchange as exchanges
from tailgauge.transport.answer import News
from tailgauge.transport.exchange import Exchange
from tailgauge.worker.outcome import outcome

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


def decoded(
    module: Any, head: bytes, reads: list[bytes], rng: Random, *, is_compiled: bool
) -> dict[str, Any]:
    """What is known after the stream; it is taken at random moments, the same both ways."""
    decoder = StreamDecoder(
        module.on_event,
        AnswerSettings(
            shapes=shapes.compiled(module.shapes, ("error",)) if is_compiled else None,
            protocol=module.name,
            watch_chunks=rng.choice((0, 0, 5)),
            watch_field=rng.random() < 0.1,
            keep_text=rng.random() < 0.5,
            ends_at_mark=module.ends_at_mark,
            # A text that is too large is noticed at the event in Python, and at the end of the read in compiled code.
            max_tokens=10_000,
        ),
    )
    plain = 0
    receive = decoder.receive

    def counted(news: News) -> None:
        nonlocal plain
        plain += 0 if news.columns is None else len(news.columns.kind)
        receive(news)

    decoder.receive = counted  # type: ignore[method-assign]
    before = exchanges.COMPILED
    exchanges.COMPILED = is_compiled
    exchange = Exchange(decoder)
    exchange.on_data(head, 1, 2)
    exchanges.COMPILED = before
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
    ended = repr(outcome(exchange, decoder))
    facts = facts_of(exchange, decoder) | {"outcome": ended}
    return {"facts": facts, "plain": plain, "chunks": decoder.chunks}


def both_ways(
    module: Any, head: bytes, reads: list[bytes], seed: int | str
) -> tuple[dict[str, Any], dict[str, Any]]:
    """The same by compiled code and in Python."""
    return (
        decoded(module, head, reads, Random(seed), is_compiled=True),
        decoded(module, head, reads, Random(seed), is_compiled=False),
    )


def facts_of(exchange: Exchange, decoder: StreamDecoder) -> dict[str, str]:
    facts = {name: repr(value) for name, value in vars(decoder).items() if name not in NOT_COMPARED}
    first, chunks = decoder.take()
    facts |= {"usage": repr(decoder.usage.largest), "problem": repr(decoder.usage.problem)}
    facts |= {"unknown": repr(decoder.usage.unknown), "tools": repr(decoder.tools.ready_at_ns)}
    facts |= {name: repr(getattr(chunks, name)) for name in type(chunks).__slots__}
    facts |= {
        "first": repr(first),
        "text": repr(decoder.text),
        "valid_json": repr(decoder.valid_json),
    }
    for name in OF_EXCHANGE:
        facts[name] = repr(getattr(exchange, name))
    return facts


def differences(quick: dict[str, Any], full: dict[str, Any]) -> list[list[str]]:
    """Facts that differ: name, by compiled code, in Python."""
    facts = quick["facts"]
    right = full["facts"]
    return [
        [fact, facts.get(fact, "")[:300], right.get(fact, "")[:300]]
        for fact in sorted(facts.keys() | right.keys())
        if facts.get(fact) != right.get(fact)
    ]
