"""The chunks of an answer: how many may leave when so many tokens have been made, and what each carries.

Rule: pure; one text goes the quick way, anything else by its plan. No time stands here, so that real and virtual time
share it.
"""

from __future__ import annotations

from typing import Protocol

from tailgauge.simulator.exchange import Exchange
from tailgauge.simulator.frames import Frames
from tailgauge.simulator.script import Script


class Answer(Protocol):
    """The chunks of an answer."""

    def ready(self, made: int, /) -> int:
        """Chunks that may leave when so many tokens have been made."""

    def tokens_sent(self, chunks: int, /) -> int:
        """Tokens that the first chunks carry."""

    def frame(self, index: int, now_ns: int, /) -> bytes:
        """What is written for chunk `index` at `now_ns`."""


def answer_of(exchange: Exchange, *, chunked: bool) -> Frames | Script:
    """What a call is answered, in HTTP/1.1 chunks or without."""
    settings, wire, reply = exchange.behaviours.settings, exchange.wire, exchange.reply
    if reply.plan is not None:
        pairs = settings.content.tool_pair_tokens
        return Script(wire, reply, pairs, embed_clock=settings.embed_clock, chunked=chunked)
    per_chunk = settings.latency.tokens_per_chunk
    return Frames(
        wire.around_text(reply), reply.ask.max_tokens, per_chunk, embed_clock=settings.embed_clock, chunked=chunked
    )  # fmt: skip


def late_ns(exchange: Exchange, *kinds: str) -> int:
    """What a fault of one of these kinds adds."""
    fault = exchange.fault
    return round(fault.seconds * 1e9) if fault is not None and fault.kind in kinds else 0
