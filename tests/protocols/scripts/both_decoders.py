"""Script: random streams, decoded by compiled code and in Python, give the same: NAME or all, SEED, count, and perhaps one number."""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import partial
from random import Random
from typing import Any

from protocols.both_decodings import decoded, differences
from protocols.scripts import nearly_plain, random_streams
from starting.script import CASES, print_facts
from wire.oracle import DRAW

from tailgauge.protocols.anthropic import Anthropic
from tailgauge.protocols.openai import OpenAI

NAME, *_numbers = sys.argv[1:]
SEED, COUNT, *ONLY = map(int, _numbers)
HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
Draw = Callable[[Random], tuple[bytes, list[bytes]]]  # the head, and the reads of the body


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
        different += [[number, *difference] for difference in differences(quick, full)]
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
