"""The row and the chunks of a call in a dry run, from what the endpoint planned: what only a socket has is null or 0.

An answer that is not plain is decoded from its bytes instead: received.py.
"""

from __future__ import annotations

from array import array

from tailgauge.dry_run.driver import Delivery
from tailgauge.protocols.decoder import KIND_CODE
from tailgauge.rows.schema import TEXT, THINKING, TOOL_JSON, AttemptRow, Chunks
from tailgauge.simulator.behaviours import tokens
from tailgauge.simulator.behaviours.content import whole_contents
from tailgauge.simulator.core.exchange import Exchange

STAMPS = "dry_run"


def fill_from_delivery(
    row: AttemptRow, exchange: Exchange, delivery: Delivery, until_ns: int, *, has_end_mark: bool
) -> Chunks:
    """Fill in what had arrived by `until_ns`, and return the chunks. `has_end_mark`: the answer is whole.

    Times, kinds and tokens are those that the endpoint planned; nothing is decoded.
    """
    times, sizes, kinds = delivery.chunks(until_ns)
    row.chunks = len(times)
    if times:
        row.first_content_at_ns = row.first_content_read_at_ns = times[0]
        row.last_content_at_ns = times[-1]
        # Of equal kinds a dictionary keeps the last: reversed, the first.
        first_ns = dict(zip(reversed(kinds), reversed(times), strict=True))
        row.first_text_at_ns = first_ns.get(TEXT)
        row.first_thinking_at_ns = first_ns.get(THINKING)
        row.first_tool_json_at_ns = first_ns.get(TOOL_JSON)
        last_ns = dict(zip(kinds, times, strict=True))
        row.last_thinking_at_ns = last_ns.get(THINKING)
    if row.headers_at_ns is not None and row.status == 200:
        row.model = exchange.request.model
        row.server_request_id = f"req_{exchange.reply.id}"
        if exchange.request.stream:
            row.first_event_at_ns = row.headers_at_ns
        _usage(row, exchange, has_end_mark=has_end_mark)
    if has_end_mark:
        _finish(row, exchange, until_ns)
    return chunks_of(times, sizes, kinds)


def chunks_of(times: list[int], sizes: list[int], kinds: list[str]) -> Chunks:
    """Return chunk columns as a decoder would have collected them; `sizes` are in tokens."""
    arrived = array("q", times)
    return Chunks(
        kind=bytearray(map(KIND_CODE.__getitem__, kinds)),
        arrived=arrived,
        low=array("q", bytes(8 * len(times))),
        read_at=arrived,
        read_index=array("i", range(len(times))),
        chars=array("i", [size * tokens.BYTES_PER_TOKEN for size in sizes]),
    )


def text_of(exchange: Exchange) -> str:
    """Return the text of the whole answer, its thinking left out."""
    plan = exchange.reply.plan
    if plan is None:
        return tokens.text(exchange.request.max_tokens).decode()
    contents = whole_contents(plan, exchange.endpoint.table.content.tool_pair_tokens)
    texts = []
    for text, block in zip(contents, plan.blocks, strict=True):
        if block.kind != THINKING:
            texts.append(text)
    return "".join(texts)


def _usage(row: AttemptRow, exchange: Exchange, *, has_end_mark: bool) -> None:
    """Fill in the usage. Where the prompt's is in the first event, the output has a placeholder of 1 there."""
    is_first = exchange.wire.PROMPT_USAGE_FIRST and exchange.request.stream
    if not has_end_mark and not is_first:
        return
    prompt = exchange.prompt_tokens
    row.input_tokens = prompt.input_tokens
    if exchange.reply.prompt is not None or exchange.wire.CACHE_LIVES:
        row.cache_read_input_tokens = prompt.read
        row.cache_creation_input_tokens = prompt.creation_5m + prompt.creation_1h
    if exchange.reply.prompt is not None and exchange.wire.CACHE_LIVES:
        row.cache_creation_5m_input_tokens = prompt.creation_5m
        row.cache_creation_1h_input_tokens = prompt.creation_1h
    row.output_tokens = 1
    if has_end_mark:
        row.output_tokens = exchange.request.max_tokens


def _finish(row: AttemptRow, exchange: Exchange, at_ns: int) -> None:
    plan = exchange.reply.plan
    row.stop_reason = exchange.reply.reason(exchange.wire.STOP_REASONS)
    if exchange.request.stream:
        row.stopped_at_ns = at_ns
    if plan is not None and plan.thinking_tokens:
        row.thinking_tokens = plan.thinking_tokens
    if row.first_tool_json_at_ns is not None:
        row.tool_ready_at_ns = at_ns
