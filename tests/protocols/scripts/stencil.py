"""Script: random streams, decoded with the stencil of their content events and without, give the same."""

from __future__ import annotations

import sys
from functools import partial
from random import Random
from typing import Any

from protocols.scripts.random_streams import wire
from starting.script import CASES, print_facts

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


def decoded(module: Any, reads: list[bytes], seed: int, stencils: Stencils | None) -> dict[str, Any]:
    """What is known after the stream; it is decoded at random moments, the same with and without stencils."""
    rng = Random(seed)
    watch = {
        "watch_chunks": rng.choice((0, 0, 5)),
        "watch_field": rng.random() < 0.1,
        "keep_text": rng.random() < 0.5,
    }
    decoder = StreamDecoder(module.on_event, stencils=stencils, protocol=module.name, **watch)
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
        not in {
            "_stencils",
            "_stencil",
            "_has_skimmed",
            "_splitter",
            "fresh",
            "_field",
            "skim",
            "_on_event",
            "usage",
            "tools",
        }
    }
    facts |= {"usage": repr(decoder.usage.largest), "problem": decoder.usage.problem}
    facts |= {"tools": repr(decoder.tools.ready_at_ns)}
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
