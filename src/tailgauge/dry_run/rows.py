"""The row of a call in virtual time: what its client saw, under the names of the record.

Rule: what only a socket has (reads, bytes, connections, kernel stamps) is null or 0, and `stamps` is `virtual`. Times
are exact.
"""

from __future__ import annotations

from array import array

from tailgauge.dry_run.service import Service
from tailgauge.protocols.decoder import KIND_CODE
from tailgauge.rows.chunks import Chunks
from tailgauge.rows.schema import TEXT, THINKING, TOOL_JSON, AttemptRow, ServerLogRow
from tailgauge.simulator import tokens
from tailgauge.simulator.ask import Prompted
from tailgauge.simulator.exchange import Exchange
from tailgauge.simulator.script import whole_contents

STAMPS = "virtual"
_OPENAI_REASONS = {"max_tokens": "length", "tool_use": "tool_calls"}


def fill(row: AttemptRow, exchange: Exchange, service: Service, until_ns: int, *, finished: bool) -> Chunks:
    """What had arrived until then; `finished`: with the end mark. Returns the chunks."""
    times, sizes, kinds = service.chunks(until_ns)
    row.chunks = len(times)
    if times:
        row.first_content_at_ns = row.first_content_read_at_ns = times[0]
        row.last_content_at_ns = times[-1]
        first = dict(zip(reversed(kinds), reversed(times), strict=True))
        row.first_text_at_ns, row.first_thinking_at_ns = first.get(TEXT), first.get(THINKING)
        row.first_tool_json_at_ns = first.get(TOOL_JSON)
    if row.headers_at_ns is not None and row.status == 200:
        row.model = exchange.ask.model
        row.server_request_id = f"req_{exchange.reply.id}"
        row.first_event_at_ns = row.headers_at_ns if exchange.ask.stream else None
        _usage(row, exchange, finished=finished)
    if finished:
        _finish(row, exchange, until_ns)
    return chunks_of(times, sizes, kinds)


def chunks_of(times: list[int], sizes: list[int], kinds: list[str]) -> Chunks:
    """As a decoder would have collected them."""
    arrived, n = array("q", times), len(times)
    return Chunks(
        bytearray(map(KIND_CODE.__getitem__, kinds)), arrived, array("q", bytes(8 * n)), arrived,
        array("i", range(n)), array("i", [size * tokens.BYTES_PER_TOKEN for size in sizes]),
    )  # fmt: skip


def complete(row: ServerLogRow, service: Service) -> None:
    """What the endpoint's own row says of the chunks."""
    until_ns = row.cancelled_at_ns if row.cancelled_at_ns is not None else 1 << 62
    row.chunk_sent_at_ns, _, _ = service.chunks(until_ns)
    row.output_tokens = service.tokens(until_ns)


def text_of(exchange: Exchange) -> str:
    """What the whole answer says, its thinking left out."""
    plan = exchange.reply.plan
    if plan is None:
        return tokens.text(exchange.ask.max_tokens).decode()
    said = whole_contents(plan, exchange.content)
    return "".join(text for text, block in zip(said, plan.blocks, strict=True) if block.kind != THINKING)


def _usage(row: AttemptRow, exchange: Exchange, *, finished: bool) -> None:
    """The Messages stream tells of the prompt in its first event, with a placeholder for the output."""
    if not finished and (row.protocol == "openai" or not exchange.ask.stream):
        return
    prompted = exchange.reply.prompted or Prompted(exchange.ask.input_tokens, 0, 0, 0)
    row.input_tokens, row.cache_read_input_tokens = prompted.input_tokens, prompted.read
    row.cache_creation_input_tokens = prompted.creation_5m + prompted.creation_1h
    if exchange.reply.prompted is not None and row.protocol != "openai":
        row.cache_creation_5m_input_tokens = prompted.creation_5m
        row.cache_creation_1h_input_tokens = prompted.creation_1h
    row.output_tokens = exchange.ask.max_tokens if finished else 1


def _finish(row: AttemptRow, exchange: Exchange, at_ns: int) -> None:
    plan = exchange.reply.plan
    reason = "max_tokens" if plan is None else plan.stop_reason
    row.stop_reason = _OPENAI_REASONS[reason] if row.protocol == "openai" else reason
    row.stopped_at_ns = at_ns if exchange.ask.stream else None
    if plan is not None and plan.thinking_tokens:
        row.thinking_tokens = plan.thinking_tokens
    if row.first_tool_json_at_ns is not None:
        row.tool_ready_at_ns = at_ns
