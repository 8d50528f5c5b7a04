"""Chat completions: compiled code decodes what Python decodes."""

from __future__ import annotations

import zlib
from random import Random
from typing import Any

from protocols.both_decodings import both_ways, differences
from protocols.nearly_plain import framed, split
from protocols.test_captured_streams import CAPTURES
from wire.oracle import DRAW

from tailgauge.protocols.openai import OpenAI


def corpus() -> list[bytes]:
    return streams("openai", "chat")


def check(data: bytes) -> None:
    compare(OpenAI, data)


def streams(protocol: str, capture: str) -> list[bytes]:
    """The payloads of drawn streams, and of streams that an engine sent."""
    drawn = [
        b"".join(event.wire for event in DRAW[protocol](f"fuzz-{number}").events)
        for number in range(40)
    ]
    return drawn + [path.read_bytes() for path in sorted(CAPTURES.glob(f"*_{capture}*.sse"))]


def compare(module: Any, data: bytes) -> None:
    """The same facts both ways, for the same reads."""
    seed = zlib.crc32(data)
    rng = Random(seed)
    head, reads = framed(rng, split(rng, data))
    different = differences(*both_ways(module, head, reads, seed))
    assert not different, f"fact, compiled, in Python: {different[:4]}"
