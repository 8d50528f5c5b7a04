"""The bytes of an answer with several content blocks, chunk by chunk.

Rule: pure: a plan and a protocol in, frames out, with the same interface as `Frames`, which is the quick way for an
answer that is one text. Where a chunk is the first of its block, the events between the two blocks go with it.
Text that one step of an engine makes leaves as one chunk; a tool call's burst keeps its pieces.
"""

from __future__ import annotations

import json
from typing import NamedTuple

from tailgauge.rows.schema import TEXT
from tailgauge.simulator import tokens
from tailgauge.simulator.ask import Reply
from tailgauge.simulator.content import (
    SIGNATURE_DELTA,
    TEXT_DELTA,
    THINKING_DELTA,
    Block,
    ContentSettings,
    Plan,
    tool_json,
)
from tailgauge.simulator.frames import framed
from tailgauge.simulator.wire import Wire

_MERGED = {TEXT_DELTA, THINKING_DELTA}


class _Piece(NamedTuple):
    prefix: bytes
    around: tuple[bytes, bytes]
    carried: bytes
    stamped: bool


class Script:
    """Chunks of a plan, in the order of the tokens."""

    def __init__(
        self, wire: Wire, reply: Reply, pair_tokens: int, *, embed_clock: bool, chunked: bool
    ) -> None:
        assert reply.plan is not None
        self._wire, self._reply = wire, reply
        self._stamp, self._chunked = embed_clock, chunked
        self._steps = [
            (number, block, chunk) for number, block in enumerate(reply.plan.blocks) for chunk in block.chunks
        ]
        self._contents = [_content(block, pair_tokens) for block in reply.plan.blocks]
        self._sent_of_block = [0] * len(reply.plan.blocks)
        self._at = 0  # index of the next step of the plan
        self._opened = 0
        self._pieces: list[_Piece] = []
        self._carried = [0]  # tokens of the first i pieces
        self.kinds: list[str] = []  # of the pieces, as in the records
        self.silent: list[int] = []  # pieces that are no content: signatures

    def ready(self, made: int) -> int:
        """Chunks that may leave when `made` tokens of the answer have been made."""
        while self._at < len(self._steps) and self._steps[self._at][2].after <= made:
            self._add(made)
        return len(self._pieces)

    def tokens_sent(self, chunks: int) -> int:
        """Tokens that the first `chunks` chunks carry."""
        return self._carried[chunks]

    def frame(self, index: int, now_ns: int) -> bytes:
        """What is written for chunk `index` at `now_ns`."""
        prefix, (before, behind), carried, stamped = self._pieces[index]
        stamp = b"%019d " % now_ns if stamped else b""
        return framed(b"".join((prefix, before, stamp, carried, behind)), self._chunked)

    def _add(self, made: int) -> None:
        number, block, chunk = self._steps[self._at]
        size = chunk.tokens
        self._at += 1
        while self._at < len(self._steps) and chunk.delta in _MERGED:
            other, _, more = self._steps[self._at]
            if other != number or more.delta != chunk.delta or more.after > made:
                break
            size += more.tokens
            self._at += 1
        around = self._wire.delta(self._reply, number, chunk.delta)
        if around is None:
            self._carried[-1] += size
            return
        prefix = b"".join(self._wire.between(self._reply, n) for n in range(self._opened + 1, number + 1))
        self._opened = number
        if chunk.delta == SIGNATURE_DELTA:
            self.silent.append(len(self._pieces))
        carried = self._cut(block, number, chunk.delta, size)
        self.kinds.append(block.kind)
        self._pieces.append(
            _Piece(prefix, around, carried, self._stamp and block.kind == TEXT and not block.is_json)
        )
        self._carried.append(self._carried[-1] + size)

    def _cut(self, block: Block, number: int, kind: str, size: int) -> bytes:
        if kind == SIGNATURE_DELTA:
            return b""  # the protocol's own constant
        start = self._sent_of_block[number]
        self._sent_of_block[number] = start + size
        width = tokens.BYTES_PER_TOKEN
        raw = self._contents[number][start * width : (start + size) * width]
        return json.dumps(raw.decode())[1:-1].encode() if block.is_json else raw


def whole_contents(plan: Plan, settings: ContentSettings) -> list[str]:
    """What each block of a plan says, for an answer that is not streamed; nothing where the thinking is omitted."""
    return [
        ""
        if block.chunks[0].delta == SIGNATURE_DELTA
        else _content(block, settings.tool_pair_tokens).decode()
        for block in plan.blocks
    ]


def _content(block: Block, pair_tokens: int) -> bytes:
    if block.is_json:
        return tool_json(block.tokens, pair_tokens)
    return tokens.text(block.tokens)
