"""Script: random streams, decoded with the stencil of their content events and without, give the same."""

from __future__ import annotations

import json
from functools import partial
from random import Random
from typing import Any

from starting.script import CASES, print_facts
from transport.scripts.scripted_server import chunk

from tailgauge.protocols.anthropic import Anthropic
from tailgauge.protocols.decoder import StreamDecoder
from tailgauge.protocols.openai import OpenAI
from tailgauge.transport.exchange import Exchange

STREAMS = 250
HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
TEXTS = (" the", "a", " Zürich", " \u65e5\u672c", "\n\n", 'say "x"', "back\\slash", "", "\ud83d\ude00", "\u00a0", "\x7f",
         "tiny", '","y":"', "\U0001f600", "another text in the same place", " ", "\u2028", "\ud800")  # fmt: skip
Stream = tuple[dict[str, Any], list[bytes]]


def openai_event(rng: Random) -> bytes:
    kind = rng.choices(
        ("content", "reasoning", "reasoning_content", "tool", "two", "odd"), (30, 4, 4, 2, 1, 2)
    )[0]
    text, more = rng.choice(TEXTS), {}
    delta: dict[str, Any] = {kind: text}
    if kind == "tool":
        delta = {"tool_calls": [{"index": rng.randrange(2), "function": {"arguments": text}}]}
    elif kind == "two":
        delta = {"content": text, "reasoning": "why"}
    elif kind == "odd":
        delta = rng.choice(({"content": None}, {"content": 5}, {}, {"role": "assistant", "content": text}))
        more = rng.choice(({}, {"usage": {"completion_tokens": 3}}, {"error": {"message": "no"}}))
    tree = {
        "id": "c1",
        "model": "tiny",
        "choices": [{"index": 0, "delta": delta, "finish_reason": None}],
        **more,
    }
    return b"data: " + json.dumps(tree, ensure_ascii=rng.random() < 0.5).encode("utf-8", "surrogatepass")


def anthropic_event(rng: Random) -> bytes:
    kind, key = rng.choices(
        (
            ("text_delta", "text"),
            ("thinking_delta", "thinking"),
            ("input_json_delta", "partial_json"),
            ("x", "text"),
        ),
        (30, 6, 3, 1),
    )[0]
    delta = {"type": kind, key: rng.choice(TEXTS)}
    tree = {"type": "content_block_delta", "index": 0, "delta": delta}
    if rng.random() < 0.03:
        tree = rng.choice(({"type": "ping"}, {"type": "error", "error": {"type": "overloaded_error"}}))
    data = json.dumps(tree, ensure_ascii=rng.random() < 0.5).encode("utf-8", "surrogatepass")
    return b"event: %b\ndata: %b" % (tree["type"].encode(), data)


FIRST = {
    OpenAI: b'data: {"id":"c1","model":"tiny","choices":[{"index":0,"delta":{"role":"assistant","content":""}}]}',
    Anthropic: b'data: {"type":"message_start","message":{"id":"m1","model":"tiny","usage":{"input_tokens":3}}}',
}
MAKE = {OpenAI: openai_event, Anthropic: anthropic_event}


def wire(module: Any, rng: Random) -> list[bytes]:
    """Reads: most are one chunk with one event; some are cut, some joined, some oddly spelt."""
    named = rng.random() < 0.9  # the stream says which model answers
    events = [FIRST[module]] if named else []
    events += [MAKE[module](rng) for _ in range(rng.randrange(40))]
    reads = [b""]
    for event in events:
        end = rng.choices((b"\n\n", b"\r\n\r\n", b"\n\n\n", b"\n\n: comment\n\n", b"\n"), (60, 1, 1, 1, 1))[0]
        sent = chunk(event + end)
        odd = rng.random()
        if odd < 0.02:
            sent = b"0" + sent
        elif odd < 0.04:
            sent = sent.replace(b"\r\n", b";x=1\r\n", 1)
        elif odd < 0.06:
            sent = sent.replace(b"a", b"\xff", 1)
        if odd > 0.94:
            reads[-1] += sent
        elif odd > 0.88:
            cut = rng.randrange(len(sent))
            reads += [sent[:cut], sent[cut:]]
        else:
            reads.append(sent)
    return [read for read in reads if read] + [b"0\r\n\r\n"][: rng.randrange(2)]


def decoded(module: Any, reads: list[bytes], seed: int, *, stencils: bool) -> dict[str, Any]:
    """What is known after the stream; it is decoded at random moments, the same with and without stencils."""
    rng = Random(seed)
    watch = {
        "watch_chunks": rng.choice((0, 0, 5)),
        "watch_field": rng.random() < 0.1,
        "keep_text": rng.random() < 0.5,
    }
    decoder = StreamDecoder(module.on_event, content_of=module.content_of if stencils else None, **watch)
    skimmed = [0]
    skim = decoder.skim

    def counted(*arguments: Any) -> int:
        done = skim(*arguments)
        skimmed[0] += done
        return done

    decoder.skim = counted  # type: ignore[method-assign]
    exchange = Exchange(decoder)
    exchange.on_data(HEAD, 1, 2)
    for number, read in enumerate(reads):
        at = 1000 * (number + 1)
        exchange.on_data(read, at, at + rng.randrange(900))
        if rng.random() < 0.1:
            exchange.advance()
    exchange.on_end(None)
    first, chunks = decoder.take()
    facts = {
        name: repr(value)
        for name, value in vars(decoder).items()
        if name not in {"_learner", "_stencil", "_splitter", "fresh", "_field", "skim", "_on_event"}
    }
    facts |= {name: repr(getattr(chunks, name)) for name in type(chunks).__slots__}
    facts |= {"first": first, "pending": decoder._splitter.pending, "text": repr(decoder.text)}
    for name in (
        "reads",
        "body_bytes",
        "receive_lag_max_ns",
        "user_stamps",
        "done",
        "cut",
        "failure",
        "_low",
        "_decoded",
    ):
        facts[name] = repr(getattr(exchange, name))
    return {"facts": facts, "skimmed": skimmed[0], "chunks": decoder.chunks}


def compared(module: Any) -> dict[str, Any]:
    """Streams decoded both ways."""
    different, skimmed, chunks = [], 0, 0
    for seed in range(STREAMS):
        reads = wire(module, Random(seed))
        quick, full = (decoded(module, reads, seed, stencils=stencils) for stencils in (True, False))
        skimmed, chunks = skimmed + quick["skimmed"], chunks + quick["chunks"]
        different += [
            [seed, name, str(quick["facts"][name])[:300], str(value)[:300]]
            for name, value in full["facts"].items()
            if quick["facts"][name] != value
        ]
    return {"different": different[:3], "skimmed": skimmed, "chunks": chunks}


CASES.update(openai=partial(compared, OpenAI), anthropic=partial(compared, Anthropic))
print_facts()
