"""Script: random streams, decoded with the stencil of their content events and without, give the same."""

from __future__ import annotations

import json
import sys
from functools import partial
from random import Random
from typing import Any

from starting.script import CASES, print_facts
from transport.scripts.scripted_server import chunk

from tailgauge.protocols import stencil
from tailgauge.protocols.anthropic import Anthropic
from tailgauge.protocols.decoder import StreamDecoder
from tailgauge.protocols.openai import OpenAI
from tailgauge.protocols.stencil import Stencils
from tailgauge.transport.exchange import Exchange

if "python" in sys.argv:
    stencil._holes = None
STREAMS = 250
HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
TEXTS = (" the", "a", " Zürich", " \u65e5\u672c", "\n\n", 'say "x"', "back\\slash", "", "\ud83d\ude00", "\u00a0", "\x7f",
         "tiny", '","y":"', "\U0001f600", "another text in the same place", " ", "\u2028", "\ud800")  # fmt: skip
Stream = tuple[dict[str, Any], list[bytes]]


def openai_event(rng: Random, *, changing: bool = False) -> bytes:
    kind = rng.choices(
        ("content", "reasoning", "reasoning_content", "tool", "two", "odd"),
        (300 if changing else 30, 4, 4, 2, 1, 2),
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
    data = json.dumps(tree, ensure_ascii=rng.random() < 0.5)
    if changing:
        data = changed(rng, tree, text)
    return b"data: " + data.encode("utf-8", "surrogatepass")


def changed(rng: Random, tree: dict[str, Any], text: str) -> str:
    """The event with values that change from one to the next, and now and then another order, key or kind of value."""
    (choice,) = tree["choices"]
    logprob = {"token": text, "logprob": -rng.random(), "bytes": list(text.encode("utf-8", "replace"))}
    prompt, cached = rng.choices(((9, 4), (3, 4), (9, -1)), (90, 2, 1))[0]
    count = rng.randrange(40)
    odd_count = rng.choices((count, -1, "5", 10**11, True), (90, 1, 1, 1, 1))[0]
    usage: Any = {
        "prompt_tokens": prompt,
        "completion_tokens": odd_count,
        "total_tokens": prompt + count,
        "prompt_tokens_details": {"cached_tokens": cached},
    }
    if rng.random() < 0.05:
        usage["completion_tokens_details"] = {"reasoning_tokens": rng.choice((0, 5))}
    tree |= {
        "id": f"c{rng.randrange(3)}",
        "created": rng.choices((1763660000, 1763660001, 1e9), (30, 9, 1))[0],
    }
    tree |= {"usage": usage} if rng.random() < 0.95 else {}
    padding = ("", "x", "abc", "a" * 9, text, 'q"', "}]}", "\\", "\u00e9", "\ud800", 5)
    tree["obfuscation"] = rng.choices(padding, (30, 30, 30, 30, 30, 1, 1, 1, 1, 1, 1))[0]
    choice["logprobs"] = {"content": [{**logprob, "top_logprobs": [logprob] * (rng.random() < 0.05)}]}
    odd = rng.random() if rng.random() < 0.2 else 0.5
    if odd < 0.03:
        choice["finish_reason"] = "stop"
    elif odd < 0.06:
        tree["choices"] = [choice, choice]
    elif odd < 0.09:
        tree = dict(reversed(tree.items()))
    elif odd < 0.12:
        tree["more"] = text
    elif odd < 0.15:
        tree["usage"] = rng.choice((None, 5, {}, {"prompt_tokens_details": "none"}))
    elif odd < 0.18:
        choice["delta"]["tool_calls"] = [{"index": 0, "function": {"arguments": text}}]
    elif odd < 0.21:
        tree["error"] = rng.choice((None, {"message": text}))
    data = json.dumps(tree, ensure_ascii=rng.random() < 0.5, separators=(",", ":"))
    if odd > 0.97:
        data = data.replace(
            '"created":1', rng.choice(('"created":01', '"created":1e', '"created":' + "1" * 40))
        )
    elif odd > 0.94:
        data = data.replace('"obfuscation"', '"usage":{"completion_tokens":3},"obfuscation"')
    return data


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
MAKE = {
    "openai": openai_event,
    "changing": partial(openai_event, changing=True),
    "anthropic": anthropic_event,
}


def wire(name: str, module: Any, rng: Random) -> list[bytes]:
    """Reads: most are one chunk with one event; some are cut, some joined, some oddly spelt."""
    named = rng.random() < 0.9  # the stream says which model answers
    events = [FIRST[module]] if named else []
    events += [MAKE[name](rng) for _ in range(rng.randrange(40))]
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


def decoded(module: Any, reads: list[bytes], seed: int, stencils: Stencils | None) -> dict[str, Any]:
    """What is known after the stream; it is decoded at random moments, the same with and without stencils."""
    rng = Random(seed)
    watch = {
        "watch_chunks": rng.choice((0, 0, 5)),
        "watch_field": rng.random() < 0.1,
        "keep_text": rng.random() < 0.5,
    }
    decoder = StreamDecoder(module.on_event, stencils=stencils, **watch)
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
        if name
        not in {"_stencils", "_stencil", "_has_skimmed", "_splitter", "fresh", "_field", "skim", "_on_event"}
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


def compared(name: str, module: Any) -> dict[str, Any]:
    """Streams decoded both ways; ten have their stencils in common, as those of one target."""
    different, skimmed, chunks, stencils = [], 0, 0, None
    for seed in range(STREAMS):
        stencils = stencils if seed % 10 else Stencils(module.on_event, module.changing)
        reads = wire(name, module, Random(seed))
        quick, full = (decoded(module, reads, seed, known) for known in (stencils, None))
        skimmed, chunks = skimmed + quick["skimmed"], chunks + quick["chunks"]
        different += [
            [seed, name, str(quick["facts"][name])[:300], str(value)[:300]]
            for name, value in full["facts"].items()
            if quick["facts"][name] != value
        ]
    return {"different": different[:3], "skimmed": skimmed, "chunks": chunks}


for _name, _module in (("openai", OpenAI), ("changing", OpenAI), ("anthropic", Anthropic)):
    CASES[_name] = partial(compared, _name, _module)
print_facts()
