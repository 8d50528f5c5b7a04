"""What an answer consists of: thinking, texts and a tool call, cut into chunks.

Rule: pure: settings and what the request allows in, a plan out. Every token belongs to one chunk; a chunk leaves when
the token `after` of the whole answer has been made, which says all about bursts and silences:

    thinking   shown: chunk by chunk, then a `signature_delta` without tokens
               omitted: ONE `signature_delta`, which carries all of them: a long silence that is no stall
    text       chunk by chunk; several blocks share the tokens evenly
    fields     where the request gives a schema: one text that is a JSON object, with keys of its own
    tool use   one key and value at a time: nothing while it is made, then its pieces of JSON in one burst

Only a request that gives tools gets a tool call, only one that gives thinking gets thinking.
Sources: the provider's pages on streaming, extended thinking (`display`) and fine-grained tool streaming (2026-08).
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import Literal

from tailgauge.rows.schema import TEXT, THINKING, TOOL_JSON
from tailgauge.simulator import tokens

TEXT_DELTA, THINKING_DELTA, JSON_DELTA, SIGNATURE_DELTA = (
    "text_delta", "thinking_delta", "input_json_delta", "signature_delta",
)  # fmt: skip
_LEAST_PAIR = 3  # tokens of the shortest key and value: 12 bytes


@dataclass(frozen=True, slots=True)
class ContentSettings:
    """Shares of the answer's tokens; the rest is text. By default all is one text."""

    thinking_share: float = 0.0
    thinking_display: Literal["shown", "omitted"] = "shown"
    tool_share: float = 0.0
    tool_pair_tokens: int = 16  # tokens of one key and its value, at least 3
    text_blocks: int = 1


@dataclass(frozen=True, slots=True)
class Chunk:
    """One delta."""

    delta: str
    tokens: int
    after: int  # tokens of the answer that have been made when it leaves


@dataclass(frozen=True, slots=True)
class Block:
    """One content block."""

    kind: str  # text, thinking or tool_json, as in the records
    tokens: int
    chunks: tuple[Chunk, ...]
    is_json: bool = False  # what its chunks carry, put together, is a JSON object


@dataclass(frozen=True, slots=True)
class Plan:
    """The whole answer."""

    blocks: tuple[Block, ...]
    thinking_tokens: int  # of the usage; omitted ones count too
    stop_reason: Literal["max_tokens", "tool_use"]


def plan(
    settings: ContentSettings,
    output_tokens: int,
    tokens_per_chunk: int,
    *,
    tools: bool,
    thinking: bool,
    schema: bool = False,
) -> Plan:
    """The answer of `output_tokens` tokens to a request that gives tools, thinking or a schema, or does not."""
    thought = round(output_tokens * settings.thinking_share) if thinking else 0
    called = min(round(output_tokens * settings.tool_share), output_tokens - thought) if tools else 0
    called = called if called >= _LEAST_PAIR else 0
    said = output_tokens - thought - called
    blocks: list[Block] = []
    made = 0
    if thought:
        blocks.append(_thinking(settings, thought, tokens_per_chunk))
        made = thought
    fields = schema and said >= _LEAST_PAIR
    for size in _parts(said, 1 if fields else settings.text_blocks):
        blocks.append(Block(TEXT, size, tuple(_stream(TEXT_DELTA, size, made, tokens_per_chunk)), fields))
        made += size
    if called:
        blocks.append(_tool_use(called, made, settings.tool_pair_tokens, tokens_per_chunk))
    return Plan(tuple(blocks), thought, "tool_use" if called else "max_tokens")


def tool_pairs(size: int, pair_tokens: int) -> list[int]:
    """Tokens of each key and value of a tool call with `size` tokens; a rest too short for one goes to the last."""
    each = max(_LEAST_PAIR, pair_tokens)
    whole, rest = divmod(size, each)
    if rest >= _LEAST_PAIR or not whole:
        return [each] * whole + [rest]
    return [each] * (whole - 1) + [each + rest]


def tool_json(size: int, pair_tokens: int) -> bytes:
    """The input of a tool call: a JSON object of exactly `size` tokens; its chunks cut it into pieces."""
    sizes = tool_pairs(size, pair_tokens)
    out = b""
    for i, pair in enumerate(sizes):
        head = b'%c"%04x":"' % (b"{"[0] if i == 0 else b","[0], i)
        tail = b'"}' if i == len(sizes) - 1 else b'"'
        out += head + tokens.text(pair)[: pair * tokens.BYTES_PER_TOKEN - len(head) - len(tail)] + tail
    return out


def _thinking(settings: ContentSettings, size: int, tokens_per_chunk: int) -> Block:
    if settings.thinking_display == "omitted":
        return Block(THINKING, size, (Chunk(SIGNATURE_DELTA, size, size),))
    shown = _stream(THINKING_DELTA, size, 0, tokens_per_chunk)
    return Block(THINKING, size, (*shown, Chunk(SIGNATURE_DELTA, 0, size)))


def _tool_use(size: int, made: int, pair_tokens: int, tokens_per_chunk: int) -> Block:
    ends = accumulate(tool_pairs(size, pair_tokens), initial=0)
    chunks = [
        Chunk(JSON_DELTA, piece.tokens, made + end)
        for start, end in pairwise(ends)
        for piece in _stream(JSON_DELTA, end - start, 0, tokens_per_chunk)
    ]
    return Block(TOOL_JSON, size, tuple(chunks), is_json=True)


def _stream(delta: str, size: int, made: int, tokens_per_chunk: int) -> list[Chunk]:
    ends = [*range(tokens_per_chunk, size, tokens_per_chunk), size]
    return [Chunk(delta, end - start, made + end) for start, end in pairwise([0, *ends])]


def _parts(size: int, blocks: int) -> list[int]:
    each, longer = divmod(size, max(1, blocks))
    return [part for part in (each + (i < longer) for i in range(max(1, blocks))) if part]
