"""The blocks of an answer: thinking, texts and a tool call, and the chunks that carry them.

Which tokens and when, in tokens made; the bytes of a chunk are in core/encoding.py, the time of a token in latency.py or the
engine.

Every token belongs to one chunk. A chunk leaves when `due_tokens` tokens of the whole answer have been made, which decides
all bursts and silences:

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
from itertools import pairwise
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
_MIN_PAIR = 3  # tokens of the shortest key and value: 12 bytes
_MERGED = {TEXT_DELTA, THINKING_DELTA}


@dataclass(frozen=True, slots=True)
class Chunk:
    """One delta."""

    delta: str
    tokens: int
    due_tokens: int  # tokens of the answer that are made when the chunk leaves


@dataclass(frozen=True, slots=True)
class Block:
    """One content block."""

    kind: str  # text, thinking or tool_json, as in the records
    tokens: int
    chunks: tuple[Chunk, ...]
    is_json: bool = False  # its content is a JSON object


@dataclass(frozen=True, slots=True)
class Plan:
    """The whole answer."""

    blocks: tuple[Block, ...]
    thinking_tokens: int  # of the usage; omitted thinking counts too
    stop_reason: Literal["max_tokens", "tool_use"]


def plan(
    table: ContentTable,
    output_tokens: int,
    tokens_per_chunk: int,
    *,
    tools: bool,
    thinking: bool,
    schema: bool = False,
    hidden: int = 0,
) -> Plan:
    """Return the blocks of an answer of `output_tokens` tokens: thinking, then texts, then a tool call.

    `tools`, `thinking`, `schema`: the request gives them; only then has the answer thinking, a tool call, or one JSON
    object in place of its texts. The shares of `table` are of the visible tokens. A tool call or an object of fewer
    tokens than one key and value take is left out or is plain text. `hidden` of the tokens are in no block: they only
    take time, before the first chunk.
    """
    visible = output_tokens - hidden
    thinking_tokens = 0
    if thinking:
        thinking_tokens = round(visible * table.thinking_share)
    tool_tokens = 0
    if tools:
        tool_tokens = min(round(visible * table.tool_share), visible - thinking_tokens)
    if tool_tokens < _MIN_PAIR:
        tool_tokens = 0
    text_tokens = visible - thinking_tokens - tool_tokens
    blocks = []
    start = hidden  # tokens of the answer before the next block
    if thinking_tokens:
        blocks.append(_thinking(table, thinking_tokens, start, tokens_per_chunk))
        start += thinking_tokens
    is_json = schema and text_tokens >= _MIN_PAIR
    # A JSON object is one block, plain text may be several.
    for size in _parts(text_tokens, 1 if is_json else table.text_blocks):
        chunks = tuple(_stream(TEXT_DELTA, size, start, tokens_per_chunk))
        blocks.append(Block(TEXT, size, chunks, is_json))
        start += size
    if not tool_tokens:
        return Plan(tuple(blocks), thinking_tokens, "max_tokens")
    blocks.append(_tool_use(tool_tokens, start, table.tool_pair_tokens, tokens_per_chunk))
    return Plan(tuple(blocks), thinking_tokens, "tool_use")


def hidden_tokens(table: ContentTable, output_tokens: int, seed: int, call_key: str) -> int:
    """Draw the tokens of a call that are neither streamed nor reported as thinking; at least one is left."""
    if not table.undeclared_share:
        return 0
    if draws(seed, "undeclared", call_key).random() >= table.undeclared_calls:
        return 0
    return min(round(output_tokens * table.undeclared_share), output_tokens - 1)


def tool_pairs(size: int, pair_tokens: int) -> list[int]:
    """Return the tokens of each key and value of a tool call with `size` tokens; the last pair takes a short rest."""
    pair = max(_MIN_PAIR, pair_tokens)
    count, rest = divmod(size, pair)
    if rest >= _MIN_PAIR or not count:
        return [pair] * count + [rest]
    return [pair] * (count - 1) + [pair + rest]


def tool_json(size: int, pair_tokens: int) -> bytes:
    """Return the input of a tool call: a JSON object of exactly `size` tokens, which its chunks cut into pieces."""
    sizes = tool_pairs(size, pair_tokens)
    last_index = len(sizes) - 1
    json_bytes = b""
    for i, pair in enumerate(sizes):
        separator = b"," if i else b"{"
        head = b'%b"%04x":"' % (separator, i)
        tail = b'"}' if i == last_index else b'"'
        value_size = pair * tokens.BYTES_PER_TOKEN - len(head) - len(tail)
        json_bytes += head + tokens.text(pair)[:value_size] + tail
    return json_bytes


def block_bytes(block: Block, pair_tokens: int) -> bytes:
    """Return the whole content of a block."""
    if block.is_json:
        return tool_json(block.tokens, pair_tokens)
    return tokens.text(block.tokens)


def whole_contents(answer: Plan, pair_tokens: int) -> list[str]:
    """Return the content of each block, for an answer that is not streamed; empty where the thinking is omitted."""
    contents = []
    for block in answer.blocks:
        if block.chunks[0].delta == SIGNATURE_DELTA:
            contents.append("")
        else:
            contents.append(block_bytes(block, pair_tokens).decode())
    return contents


# --- the chunks that leave ------------------------------------------------------------------------------------


class TextPieces:
    """One text in chunks of `per_chunk` tokens, the last with the rest."""

    def __init__(self, tokens: int, per_chunk: int) -> None:
        self.tokens = tokens
        self.per_chunk = per_chunk
        self.count = -(-tokens // per_chunk)

    def ready(self, tokens_made: int) -> int:
        """Return how many chunks may leave when so many tokens of the answer have been made."""
        if tokens_made >= self.tokens:
            return self.count
        return tokens_made // self.per_chunk

    def tokens_sent(self, chunks: int) -> int:
        """Return the tokens that the first `chunks` chunks carry."""
        return min(self.tokens, chunks * self.per_chunk)

    def kinds(self, chunks: int) -> list[str | None]:
        """Return the kind of each of the first chunks: text."""
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
        self._chunks: list[tuple[int, Chunk]] = []  # with the number of the block
        for number, block in enumerate(answer.blocks):
            self._chunks += [(number, chunk) for chunk in block.chunks]
        self._next = 0  # index of the next chunk that is in no piece
        self._block_starts = [0] * len(answer.blocks)  # tokens of each block that are in pieces
        self._tokens_sent = [0]  # tokens of the first i pieces
        self.pieces: list[Piece] = []

    def ready(self, tokens_made: int) -> int:
        """Return how many pieces may leave when so many tokens of the answer have been made."""
        while (
            self._next < len(self._chunks) and self._chunks[self._next][1].due_tokens <= tokens_made
        ):
            self._add(tokens_made)
        return len(self.pieces)

    def tokens_sent(self, chunks: int) -> int:
        """Return the tokens that the first `chunks` pieces carry."""
        return self._tokens_sent[chunks]

    def kinds(self, chunks: int) -> list[str | None]:
        """Return the kind of each of the first pieces; None: a signature."""
        kinds: list[str | None] = []
        for piece in self.pieces[:chunks]:
            is_signature = piece.delta == SIGNATURE_DELTA
            kinds.append(None if is_signature else self._blocks[piece.block].kind)
        return kinds

    def _add(self, tokens_made: int) -> None:
        """Add a piece: the next chunk, with the chunks behind it that are ready too and may be merged.

        The next chunk must be ready: the caller has compared it with `tokens_made`, the tokens of the answer made by now.
        Chunks are merged within one block, and only those of text and thinking.
        """
        number, chunk = self._chunks[self._next]
        size = chunk.tokens
        self._next += 1
        while self._next < len(self._chunks) and chunk.delta in _MERGED:
            next_number, next_chunk = self._chunks[self._next]
            is_alike = next_number == number and next_chunk.delta == chunk.delta
            if not is_alike or next_chunk.due_tokens > tokens_made:
                break
            size += next_chunk.tokens
            self._next += 1
        # A protocol without signatures sends no chunk for it; its tokens count to the piece before.
        if chunk.delta == SIGNATURE_DELTA and not self._signatures:
            self._tokens_sent[-1] += size
            return
        self.pieces.append(Piece(number, chunk.delta, self._block_starts[number], size))
        # A signature carries tokens, but nothing of the block's text.
        if chunk.delta != SIGNATURE_DELTA:
            self._block_starts[number] += size
        self._tokens_sent.append(self._tokens_sent[-1] + size)


# --- the parts of a plan --------------------------------------------------------------------------------------


def _thinking(table: ContentTable, size: int, start: int, tokens_per_chunk: int) -> Block:
    """Return thinking of `size` tokens, behind `start` tokens of the answer."""
    # A chunk of a summary leaves when the tokens that it sums up have been made.
    tokens_per_visible = {"omitted": 0, "summarised": SUMMARISED}.get(table.thinking_display, 1)
    visible = 0
    chunks = []
    if tokens_per_visible:
        visible = size // tokens_per_visible
        for chunk in _stream(THINKING_DELTA, visible, 0, tokens_per_chunk):
            if chunk.tokens:
                due_tokens = start + tokens_per_visible * chunk.due_tokens
                chunks.append(Chunk(THINKING_DELTA, chunk.tokens, due_tokens))
    chunks.append(Chunk(SIGNATURE_DELTA, size - visible, start + size))
    return Block(THINKING, size, tuple(chunks))


def _tool_use(size: int, start: int, pair_tokens: int, tokens_per_chunk: int) -> Block:
    """Return a tool call of `size` tokens, behind `start` tokens: the chunks of each pair leave at its end."""
    chunks = []
    due_tokens = start
    for pair in tool_pairs(size, pair_tokens):
        due_tokens += pair
        for piece in _stream(JSON_DELTA, pair, 0, tokens_per_chunk):
            chunks.append(Chunk(JSON_DELTA, piece.tokens, due_tokens))
    return Block(TOOL_JSON, size, tuple(chunks), is_json=True)


def _stream(delta: str, size: int, start: int, tokens_per_chunk: int) -> list[Chunk]:
    """Return the chunks of `size` tokens, behind `start` tokens: each leaves when its own are made."""
    bounds = [0, *range(tokens_per_chunk, size, tokens_per_chunk), size]
    return [Chunk(delta, end - begin, start + end) for begin, end in pairwise(bounds)]


def _parts(size: int, count: int) -> list[int]:
    """Return the sizes of at most `count` parts, which differ by one at most; none is empty."""
    count = max(1, count)
    small_size, large_count = divmod(size, count)
    sizes = [small_size + 1] * large_count + [small_size] * (count - large_count)
    return [part_size for part_size in sizes if part_size]
