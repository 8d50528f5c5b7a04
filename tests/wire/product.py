"""What the harness makes of a stream: the reads go through its HTTP, its decoder and its outcome into a row."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from wire.grammar import MOST_INPUT, Stream

from tailgauge.protocols import shapes
from tailgauge.protocols.anthropic import Anthropic
from tailgauge.protocols.decoder import KIND_CODE, AnswerSettings, StreamDecoder
from tailgauge.protocols.openai import OpenAI
from tailgauge.protocols.usage import Request
from tailgauge.rows.schema import TEXT, THINKING, TOOL_JSON, AttemptRow
from tailgauge.transport.exchange import Exchange
from tailgauge.worker.attempt_row import fill
from tailgauge.worker.outcome import outcome

PROTOCOLS: dict[str, Any] = {"anthropic": Anthropic, "openai": OpenAI}
READ_LAG_NS = 5


@dataclass
class Reading:
    """The row of a stream, and the text that was kept."""

    row: AttemptRow
    text: str
    tool_input: str
    chars: dict[str, int]  # by kind


def plain_events(protocol: str) -> Any:
    """Return the shapes of the protocol's plain events, as a target has them."""
    return shapes.compiled(PROTOCOLS[protocol].shapes, ("error",))


def read(stream: Stream, plain: Any) -> Reading:
    """Read a stream as a call does."""
    wire = PROTOCOLS[stream.protocol]
    decoder = StreamDecoder(
        wire.on_event,
        AnswerSettings(
            shapes=plain,
            keep_text=True,
            max_tokens=stream.plan.max_tokens,
            obeys_max_tokens=True,
            protocol=stream.protocol,
            ends_naturally=stream.plan.ends_naturally,
            ends_at_mark=wire.ends_at_mark,
        ),
    )
    exchange = Exchange(decoder)
    for number, piece in enumerate(stream.reads, 1):
        if not exchange.done:
            exchange.on_data(piece, 1000 * number, 1000 * number + READ_LAG_NS)
    if not exchange.done:
        exchange.on_end("connection reset by peer" if stream.is_reset else None)
    counts = decoder.usage.counts(
        Request(prompt_bytes=10, most_input_tokens=MOST_INPUT, max_tokens=stream.plan.max_tokens),
        has_content=decoder.has_content,
    )
    row = _empty_row(stream.protocol)
    fill(row, exchange, decoder, outcome(exchange, decoder), counts)
    assert decoder._texts is not None
    texts = {kind: decoder._texts[KIND_CODE[kind]].decode() for kind in (TEXT, TOOL_JSON)}
    chars = {
        kind: sum(count for code, count in zip(decoder.fresh.kind, decoder.fresh.chars, strict=True) if code == KIND_CODE[kind])
        for kind in (TEXT, THINKING, TOOL_JSON)
    }  # fmt: skip
    return Reading(row, texts[TEXT], texts[TOOL_JSON], chars)


def _empty_row(protocol: str) -> AttemptRow:
    return AttemptRow(
        request_id=1, leg=0, attempt=0, cause="primary", of_attempt=None, stage="steady", traffic="chat", protocol=protocol,
        asked_model="m", scheduled_at_ns=0, dispatched_at_ns=0, target="main",
    )  # fmt: skip
