"""The row of a call in a dry run: what its client received, under the names of the record.

What only a socket has (reads, bytes, connections, kernel stamps) is null or 0, and `stamps` is `dry_run`. Times are exact.
"""

from __future__ import annotations

from array import array

from tailgauge.dry_run.delivery import Delivery
from tailgauge.protocols.decoder import KIND_CODE
from tailgauge.rows.schema import TEXT, THINKING, TOOL_JSON, AttemptRow, Chunks
from tailgauge.simulator.behaviours import tokens
from tailgauge.simulator.behaviours.content import whole_contents
from tailgauge.simulator.core.exchange import Exchange

STAMPS = "dry_run"
_OPENAI_REASONS = {"max_tokens": "length", "tool_use": "tool_calls"}


def fill(row: AttemptRow, exchange: Exchange, delivery: Delivery, until_ns: int, *, finished: bool) -> Chunks:
    """What had arrived until then; `finished`: with the end mark. Returns the chunks."""
    times, sizes, kinds = delivery.chunks(until_ns)
    row.chunks = len(times)
    if times:
        row.first_content_at_ns = row.first_content_read_at_ns = times[0]
        row.last_content_at_ns = times[-1]
        first = dict(zip(reversed(kinds), reversed(times), strict=True))
        row.first_text_at_ns, row.first_thinking_at_ns = first.get(TEXT), first.get(THINKING)
        row.first_tool_json_at_ns = first.get(TOOL_JSON)
    if row.headers_at_ns is not None and row.status == 200:
        row.model = exchange.request.model
        row.server_request_id = f"req_{exchange.reply.id}"
        row.first_event_at_ns = row.headers_at_ns if exchange.request.stream else None
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


def text_of(exchange: Exchange) -> str:
    """The text of the whole answer, its thinking left out."""
    plan = exchange.reply.plan
    if plan is None:
        return tokens.text(exchange.request.max_tokens).decode()
    contents = whole_contents(plan, exchange.endpoint.table.content.tool_pair_tokens)
    return "".join(text for text, block in zip(contents, plan.blocks, strict=True) if block.kind != THINKING)


def _usage(row: AttemptRow, exchange: Exchange, *, finished: bool) -> None:
    """The Messages stream has the prompt's usage in its first event, with a placeholder for the output."""
    if not finished and (row.protocol == "openai" or not exchange.request.stream):
        return
    prompt = exchange.prompt_tokens
    row.input_tokens, row.cache_read_input_tokens = prompt.input_tokens, prompt.read
    row.cache_creation_input_tokens = prompt.creation_5m + prompt.creation_1h
    if exchange.reply.prompt is not None and row.protocol != "openai":
        row.cache_creation_5m_input_tokens = prompt.creation_5m
        row.cache_creation_1h_input_tokens = prompt.creation_1h
    row.output_tokens = exchange.request.max_tokens if finished else 1


def _finish(row: AttemptRow, exchange: Exchange, at_ns: int) -> None:
    plan, reason = exchange.reply.plan, exchange.reply.stop_reason
    row.stop_reason = _OPENAI_REASONS[reason] if row.protocol == "openai" else reason
    row.stopped_at_ns = at_ns if exchange.request.stream else None
    if plan is not None and plan.thinking_tokens:
        row.thinking_tokens = plan.thinking_tokens
    if row.first_tool_json_at_ns is not None:
        row.tool_ready_at_ns = at_ns
