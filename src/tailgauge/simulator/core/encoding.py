"""The bytes of one answer: its head, its content chunks, its end, as the protocol has them.

Everything that a stream's chunks share is encoded once, when the call starts: sending one costs a join of ready-made bytes.
"""

from __future__ import annotations

import json
from collections.abc import Callable

from tailgauge.simulator.behaviours.content import (
    SIGNATURE_DELTA,
    PlanPieces,
    TextPieces,
    block_bytes,
)
from tailgauge.simulator.behaviours.faults import END_MARK, ERROR_EVENT
from tailgauge.simulator.behaviours.tokens import BYTES_PER_TOKEN, chunk_texts, text
from tailgauge.simulator.core.answer import Answer
from tailgauge.simulator.protocols.request import Reply
from tailgauge.simulator.protocols.wire import Wire


class Encoding:
    """The bytes of one answer, part by part in their order. `chunked`: in chunks of HTTP/1.1, but for the end."""

    def __init__(self, answer: Answer, *, chunked: bool) -> None:
        self._answer = answer
        self._chunked = chunked
        self._held = b""  # what the end of a search brings, before the first chunk
        self.chunk = self._frames()

    def head(self) -> bytes:
        """What comes before the first content; once."""
        exchange = self._answer.exchange
        if exchange.reply.search is not None:
            self._held = exchange.wire.after_search(exchange.reply)
        return framed(exchange.wire.opening(exchange.reply), self._chunked)

    def end(self) -> bytes:
        """The end of the answer, or the error that ends it; nothing where the connection ends."""
        answer = self._answer
        exchange = answer.exchange
        if answer.ending == END_MARK:
            return self._resumed(exchange.wire.closing(exchange.reply))
        if answer.ending == ERROR_EVENT:
            return exchange.error_event(exchange.failure(answer.fault.status), has_begun=True)
        return b""

    def _resumed(self, data: bytes) -> bytes:
        held = self._held
        self._held = b""
        return held + data

    def _frames(self) -> Frames:
        answer = self._answer
        exchange = answer.exchange
        wire = exchange.wire
        reply = exchange.reply
        pieces = answer.pieces
        searches = reply.search is not None
        chunked = self._chunked and not searches
        frames: Frames
        if isinstance(pieces, PlanPieces):
            pair_tokens = exchange.endpoint.table.content.tool_pair_tokens
            frames = plan_frames(wire, reply, pieces, pair_tokens, chunked=chunked)
        elif exchange.stream is not None:
            name = exchange.stream.name
            frames = numbered_frames(
                wire.around_text(reply), pieces, name, exchange.first, chunked=chunked
            )
        else:
            frames = text_frames(wire.around_text(reply), pieces, chunked=chunked)
        if not searches:
            return frames
        return lambda index: framed(self._resumed(frames(index)), self._chunked)


Frames = Callable[[int], bytes]  # what is written for a chunk, by its index


def text_frames(around_text: tuple[bytes, bytes], pieces: TextPieces, *, chunked: bool) -> Frames:
    """The chunks of one text."""
    per_chunk = pieces.per_chunk
    last = pieces.count - 1
    texts = chunk_texts(per_chunk)
    last_text = text(pieces.tokens - last * per_chunk, last * per_chunk)
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
        size = pieces.tokens_sent(index + 1) - pieces.tokens_sent(index)
        number = first + index
        content = text(size, number * pieces.per_chunk)
        return framed(
            b"id: %b-%d\n%b%b%b" % (name.encode(), number, before, content, behind), chunked
        )

    return frame


def plan_frames(
    wire: Wire, reply: Reply, pieces: PlanPieces, pair_tokens: int, *, chunked: bool
) -> Frames:
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


def framed(data: bytes, chunked: bool) -> bytes:
    """Bytes of the body as HTTP/1.1 sends them; an empty chunk would end it."""
    return b"%x\r\n%b\r\n" % (len(data), data) if chunked and data else data


def _around(
    around_text: tuple[bytes, bytes], text_bytes: int, chunked: bool
) -> tuple[bytes, bytes]:
    before, behind = around_text
    if not chunked:  # HTTP/1.0: the end of the connection ends the body
        return before, behind
    return b"%x\r\n%b" % (len(before) + text_bytes + len(behind), before), behind + b"\r\n"
