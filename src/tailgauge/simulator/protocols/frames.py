"""The bytes of one call's content chunks: the protocol's event around the content, in one HTTP/1.1 chunk.

Everything that a stream's chunks share is encoded once, when the call starts: sending one costs a join of ready-made bytes.
"""

from __future__ import annotations

import json
from typing import Protocol

from tailgauge.simulator.behaviours.content import SIGNATURE_DELTA, PlanPieces, TextPieces, block_bytes
from tailgauge.simulator.behaviours.tokens import BYTES_PER_TOKEN, chunk_texts, text
from tailgauge.simulator.protocols.request import Reply
from tailgauge.simulator.protocols.wire import Wire


class Frames(Protocol):
    """The bytes of a stream's chunks."""

    def frame(self, index: int, /) -> bytes:
        """What is written for chunk `index`."""


class TextFrames:
    """The chunks of one text."""

    def __init__(self, around_text: tuple[bytes, bytes], pieces: TextPieces, *, chunked: bool) -> None:
        per_chunk = pieces.per_chunk
        self._last = pieces.count - 1
        self._texts = chunk_texts(per_chunk)
        self._last_text = text(pieces.tokens - self._last * per_chunk, self._last * per_chunk)
        self._around = _around(around_text, len(self._texts[0]), chunked)
        self._last_around = _around(around_text, len(self._last_text), chunked)

    def frame(self, index: int) -> bytes:
        """What is written for chunk `index`."""
        if index == self._last:
            (before, behind), content = self._last_around, self._last_text
        else:
            (before, behind), content = self._around, self._texts[index % len(self._texts)]
        return before + content + behind


class NumberedFrames:
    """The chunks of one text whose events have ids; `first` is the number of the first."""

    def __init__(
        self, around_text: tuple[bytes, bytes], pieces: TextPieces, name: str, first: int, *, chunked: bool
    ) -> None:
        self._around, self._pieces, self._chunked = around_text, pieces, chunked
        self._name, self._first = name.encode(), first

    def frame(self, index: int) -> bytes:
        """What is written for chunk `index`."""
        pieces, number, (before, behind) = self._pieces, self._first + index, self._around
        size = pieces.tokens_sent(index + 1) - pieces.tokens_sent(index)
        content = text(size, number * pieces.per_chunk)
        return framed(b"id: %b-%d\n%b%b%b" % (self._name, number, before, content, behind), self._chunked)


class PlanFrames:
    """The chunks of a plan. With the first chunk of a block go the events between the two blocks."""

    def __init__(
        self, wire: Wire, reply: Reply, pieces: PlanPieces, pair_tokens: int, *, chunked: bool
    ) -> None:
        assert reply.plan is not None
        self._wire, self._reply, self._pieces = wire, reply, pieces.pieces
        self._blocks = reply.plan.blocks
        self._contents = [block_bytes(block, pair_tokens) for block in self._blocks]
        self._chunked = chunked

    def frame(self, index: int) -> bytes:
        """What is written for chunk `index`."""
        number, delta, start, size = self._pieces[index]
        block, wire, reply = self._blocks[number], self._wire, self._reply
        opened = self._pieces[index - 1].block if index else 0
        between = [wire.between(reply, n) for n in range(opened + 1, number + 1)]
        before, behind = wire.delta(reply, number, delta)
        content = b""
        if delta != SIGNATURE_DELTA:  # which is the protocol's own constant
            content = self._contents[number][start * BYTES_PER_TOKEN : (start + size) * BYTES_PER_TOKEN]
            if block.is_json:
                content = json.dumps(content.decode())[1:-1].encode()
        return framed(b"".join((*between, before, content, behind)), self._chunked)


def frames_of(
    wire: Wire,
    reply: Reply,
    pieces: TextPieces | PlanPieces,
    pair_tokens: int,
    *,
    chunked: bool,
    numbered: tuple[str, int] | None = None,
) -> Frames:
    """The bytes of an answer's chunks; `numbered`: name of the stream and number of its first event."""
    if isinstance(pieces, PlanPieces):
        return PlanFrames(wire, reply, pieces, pair_tokens, chunked=chunked)
    if numbered is not None:
        return NumberedFrames(wire.around_text(reply), pieces, *numbered, chunked=chunked)
    return TextFrames(wire.around_text(reply), pieces, chunked=chunked)


def framed(data: bytes, chunked: bool) -> bytes:
    """Bytes of the body as HTTP/1.1 sends them."""
    return b"%x\r\n%b\r\n" % (len(data), data) if chunked else data


def _around(around_text: tuple[bytes, bytes], text_bytes: int, chunked: bool) -> tuple[bytes, bytes]:
    before, behind = around_text
    if not chunked:  # HTTP/1.0: the end of the connection ends the body
        return before, behind
    return b"%x\r\n%b" % (len(before) + text_bytes + len(behind), before), behind + b"\r\n"
