"""What an answer consists of: thinking, texts and a tool call, and the chunks that carry them.

Every token belongs to one chunk. A chunk leaves when the token `after` of the whole answer has been made, which decides all
bursts and silences:

    thinking   shown: chunk by chunk, then a `signature_delta` without tokens
               summarised: a tenth of the tokens as chunks, the others in the `signature_delta`
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
from typing import Literal, NamedTuple

from tailgauge.rows.schema import TEXT, THINKING, TOOL_JSON
from tailgauge.scenario.simulated import ContentTable
from tailgauge.simulator.behaviours import tokens
from tailgauge.simulator.behaviours.draws import draws

TEXT_DELTA = "text_delta"
THINKING_DELTA = "thinking_delta"
JSON_DELTA = "input_json_delta"
SIGNATURE_DELTA = "signature_delta"
SUMMARISED = 10  # tokens of thinking for each of its summary
_LEAST_PAIR = 3  # tokens of the shortest key and value: 12 bytes
_MERGED = {TEXT_DELTA, THINKING_DELTA}


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
    table: ContentTable, output_tokens: int, tokens_per_chunk: int, *, tools: bool, thinking: bool,
    schema: bool = False, hidden: int = 0,
) -> Plan:  # fmt: skip
    """The answer of `output_tokens` tokens to a request that gives tools, thinking or a schema, or does not.

    `hidden` of them are in no block: they only take their time, before the first chunk.
    """
    shown = output_tokens - hidden
    thought = round(shown * table.thinking_share) if thinking else 0
    called = min(round(shown * table.tool_share), shown - thought) if tools else 0
    called = called if called >= _LEAST_PAIR else 0
    texts = shown - thought - called
    blocks = [_thinking(table, thought, hidden, tokens_per_chunk)] if thought else []
    made = hidden + thought
    fields = schema and texts >= _LEAST_PAIR
    for size in _parts(texts, 1 if fields else table.text_blocks):
        blocks.append(
            Block(TEXT, size, tuple(_stream(TEXT_DELTA, size, made, tokens_per_chunk)), fields)
        )
        made += size
    if called:
        blocks.append(_tool_use(called, made, table.tool_pair_tokens, tokens_per_chunk))
    return Plan(tuple(blocks), thought, "tool_use" if called else "max_tokens")


def hidden_tokens(table: ContentTable, output_tokens: int, seed: int, call_key: str) -> int:
    """Return the tokens of a call that are neither streamed nor reported as thinking; at least one is left."""
    if (
        not table.undeclared_share
        or draws(seed, "undeclared", call_key).random() >= table.undeclared_calls
    ):
        return 0
    return min(round(output_tokens * table.undeclared_share), output_tokens - 1)


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
        out += (
            head + tokens.text(pair)[: pair * tokens.BYTES_PER_TOKEN - len(head) - len(tail)] + tail
        )
    return out


def block_bytes(block: Block, pair_tokens: int) -> bytes:
    """All that a block carries."""
    return tool_json(block.tokens, pair_tokens) if block.is_json else tokens.text(block.tokens)


def whole_contents(answer: Plan, pair_tokens: int) -> list[str]:
    """The content of each block, for an answer that is not streamed; empty where the thinking is omitted."""
    return [
        "" if block.chunks[0].delta == SIGNATURE_DELTA else block_bytes(block, pair_tokens).decode()
        for block in answer.blocks
    ]


# --- the chunks that leave ------------------------------------------------------------------------------------


class TextPieces:
    """One text in chunks of `per_chunk` tokens, the last with the rest."""

    def __init__(self, tokens: int, per_chunk: int) -> None:
        self.tokens = tokens
        self.per_chunk = per_chunk
        self.count = -(-tokens // per_chunk)

    def ready(self, made: int) -> int:
        """Chunks that may leave when `made` tokens of the answer have been made."""
        return self.count if made >= self.tokens else made // self.per_chunk

    def tokens_sent(self, chunks: int) -> int:
        """Tokens that the first `chunks` chunks carry."""
        return min(self.tokens, chunks * self.per_chunk)

    def kinds(self, chunks: int) -> list[str | None]:
        """All of it is text."""
        return [TEXT] * chunks


class Piece(NamedTuple):
    """One chunk of a plan: tokens `start` and on of a block."""

    block: int
    delta: str
    start: int
    tokens: int


class PlanPieces:
    """The chunks of a plan, in the order of the tokens.

    Text that one step of an engine makes leaves as one chunk; a tool call's burst keeps its pieces. Without `signatures`
    the protocol has no such delta: its tokens count to the chunk before.
    """

    def __init__(self, answer: Plan, *, signatures: bool) -> None:
        self._blocks = answer.blocks
        self._signatures = signatures
        self._steps = [
            (i, chunk) for i, block in enumerate(answer.blocks) for chunk in block.chunks
        ]
        self._at = 0  # index of the next step of the plan
        self._taken = [0] * len(answer.blocks)  # tokens of each block that are in pieces
        self._carried = [0]  # tokens of the first i pieces
        self.pieces: list[Piece] = []

    def ready(self, made: int) -> int:
        """Chunks that may leave when `made` tokens of the answer have been made."""
        while self._at < len(self._steps) and self._steps[self._at][1].after <= made:
            self._add(made)
        return len(self.pieces)

    def tokens_sent(self, chunks: int) -> int:
        """Tokens that the first `chunks` chunks carry."""
        return self._carried[chunks]

    def kinds(self, chunks: int) -> list[str | None]:
        """Kinds of the first chunks; None: a signature."""
        kinds = [(piece.delta, self._blocks[piece.block].kind) for piece in self.pieces[:chunks]]
        return [None if delta == SIGNATURE_DELTA else kind for delta, kind in kinds]

    def _add(self, made: int) -> None:
        number, chunk = self._steps[self._at]
        size = chunk.tokens
        self._at += 1
        while self._at < len(self._steps) and chunk.delta in _MERGED:
            other, more = self._steps[self._at]
            if other != number or more.delta != chunk.delta or more.after > made:
                break
            size += more.tokens
            self._at += 1
        if chunk.delta == SIGNATURE_DELTA and not self._signatures:
            self._carried[-1] += size
            return
        self.pieces.append(Piece(number, chunk.delta, self._taken[number], size))
        if chunk.delta != SIGNATURE_DELTA:
            self._taken[number] += size
        self._carried.append(self._carried[-1] + size)


# --- the parts of a plan --------------------------------------------------------------------------------------


def _thinking(table: ContentTable, size: int, made: int, tokens_per_chunk: int) -> Block:
    # Each chunk of a summary leaves when what it sums up has been made.
    each = {"omitted": 0, "summarised": SUMMARISED}.get(table.thinking_display, 1)
    kept = size // each if each else 0
    shown = [
        Chunk(THINKING_DELTA, chunk.tokens, made + each * chunk.after)
        for chunk in _stream(THINKING_DELTA, kept, 0, tokens_per_chunk)
        if chunk.tokens
    ]
    return Block(THINKING, size, (*shown, Chunk(SIGNATURE_DELTA, size - kept, made + size)))


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
