"""The bytes of one call's content chunks: the protocol's event around the content, in one HTTP/1.1 chunk.

Everything that a stream's chunks share is encoded once, when the call starts: sending one costs a join of ready-made bytes.
"""

from __future__ import annotations

import json
from collections.abc import Callable

from tailgauge.simulator.behaviours.content import SIGNATURE_DELTA, PlanPieces, TextPieces, block_bytes
from tailgauge.simulator.behaviours.tokens import BYTES_PER_TOKEN, chunk_texts, text
from tailgauge.simulator.protocols.request import Reply
from tailgauge.simulator.protocols.wire import Wire

Frames = Callable[[int], bytes]  # what is written for a chunk, by its index


def text_frames(around_text: tuple[bytes, bytes], pieces: TextPieces, *, chunked: bool) -> Frames:
    """The chunks of one text."""
    per_chunk, last = pieces.per_chunk, pieces.count - 1
    texts, last_text = chunk_texts(per_chunk), text(pieces.tokens - last * per_chunk, last * per_chunk)
    before, behind = _around(around_text, len(texts[0]), chunked)
    before_last, behind_last = _around(around_text, len(last_text), chunked)
    last_frame = before_last + last_text + behind_last

    def frame(index: int) -> bytes:
        return last_frame if index == last else before + texts[index % len(texts)] + behind

    return frame


def numbered_frames(
    around_text: tuple[bytes, bytes], pieces: TextPieces, name: str, first: int, *, chunked: bool
) -> Frames:
    """The chunks of one text whose events have ids; `first` is the number of the first."""
    before, behind = around_text

    def frame(index: int) -> bytes:
        size, number = pieces.tokens_sent(index + 1) - pieces.tokens_sent(index), first + index
        content = text(size, number * pieces.per_chunk)
        return framed(b"id: %b-%d\n%b%b%b" % (name.encode(), number, before, content, behind), chunked)

    return frame


def plan_frames(wire: Wire, reply: Reply, pieces: PlanPieces, pair_tokens: int, *, chunked: bool) -> Frames:
    """The chunks of a plan. With the first chunk of a block go the events between the two blocks."""
    assert reply.plan is not None
    blocks = reply.plan.blocks
    contents = [block_bytes(block, pair_tokens) for block in blocks]

    def frame(index: int) -> bytes:
        number, delta, start, size = pieces.pieces[index]
        opened = pieces.pieces[index - 1].block if index else 0
        between = [wire.between(reply, n) for n in range(opened + 1, number + 1)]
        before, behind = wire.delta(reply, number, delta)
        content = b""
        if delta != SIGNATURE_DELTA:  # which is the protocol's own constant
            content = contents[number][start * BYTES_PER_TOKEN : (start + size) * BYTES_PER_TOKEN]
            if blocks[number].is_json:
                content = json.dumps(content.decode())[1:-1].encode()
        return framed(b"".join((*between, before, content, behind)), chunked)

    return frame


def frames_of(
    wire: Wire, reply: Reply, pieces: TextPieces | PlanPieces, pair_tokens: int, *, chunked: bool,
    numbered: tuple[str, int] | None = None,
) -> Frames:  # fmt: skip
    """The bytes of an answer's chunks; `numbered`: name of the stream and number of its first event."""
    if isinstance(pieces, PlanPieces):
        return plan_frames(wire, reply, pieces, pair_tokens, chunked=chunked)
    if numbered is not None:
        return numbered_frames(wire.around_text(reply), pieces, *numbered, chunked=chunked)
    return text_frames(wire.around_text(reply), pieces, chunked=chunked)


def framed(data: bytes, chunked: bool) -> bytes:
    """Bytes of the body as HTTP/1.1 sends them."""
    return b"%x\r\n%b\r\n" % (len(data), data) if chunked else data


def _around(around_text: tuple[bytes, bytes], text_bytes: int, chunked: bool) -> tuple[bytes, bytes]:
    before, behind = around_text
    if not chunked:  # HTTP/1.0: the end of the connection ends the body
        return before, behind
    return b"%x\r\n%b" % (len(before) + text_bytes + len(behind), before), behind + b"\r\n"
