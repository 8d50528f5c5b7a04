"""The bytes of one answer in its protocol: head, content chunks, end.

The bytes that all chunks of a stream share are encoded once, when the call starts: a chunk is a join of ready-made bytes.
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
    """The bytes of one answer, part by part in their order. `chunked`: all but the end in chunks of HTTP/1.1."""

    def __init__(self, answer: Answer, *, chunked: bool) -> None:
        self._answer = answer
        self._chunked = chunked
        self._search_end = b""  # events at the end of a search, which leave with the first chunk
        self.chunk = self._frames()

    def head(self) -> bytes:
        """Return the events before the first content; called once."""
        exchange = self._answer.exchange
        if exchange.reply.search is not None:
            self._search_end = exchange.wire.after_search(exchange.reply)
        return framed(exchange.wire.opening(exchange.reply), self._chunked)

    def end(self) -> bytes:
        """Return the end of the answer, or the error that ends it; nothing where the connection ends."""
        answer = self._answer
        exchange = answer.exchange
        if answer.ending == END_MARK:
            return self._after_search(exchange.wire.closing(exchange.reply))
        if answer.ending == ERROR_EVENT:
            return exchange.error_event(exchange.failure(answer.fault.status), has_begun=True)
        return b""

    def _after_search(self, data: bytes) -> bytes:
        """Return the data, the first time behind the end of the search."""
        search_end = self._search_end
        self._search_end = b""
        return search_end + data

    def _frames(self) -> Frames:
        """Return the function that gives the bytes of a chunk by its index.

        With a search before the text, the first chunk begins with the events that end the search, so the HTTP frame is
        added around both.
        """
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
                wire.around_text(reply), pieces, name, exchange.first_event, chunked=chunked
            )
        else:
            frames = text_frames(wire.around_text(reply), pieces, chunked=chunked)
        if not searches:
            return frames
        return lambda index: framed(self._after_search(frames(index)), self._chunked)


Frames = Callable[[int], bytes]  # returns the bytes of a chunk by its index


def text_frames(around_text: tuple[bytes, bytes], pieces: TextPieces, *, chunked: bool) -> Frames:
    """Return a function for the chunks of one text; `around_text`: the bytes before and behind a chunk's text."""
    per_chunk = pieces.per_chunk
    last_index = pieces.count - 1
    texts = chunk_texts(per_chunk)
    prefix, suffix = _around(around_text, len(texts[0]), chunked)
    last_start = last_index * per_chunk
    last_text = text(pieces.tokens - last_start, last_start)
    last_prefix, last_suffix = _around(around_text, len(last_text), chunked)
    last_frame = last_prefix + last_text + last_suffix

    def frame(index: int) -> bytes:
        if index == last_index:
            return last_frame
        return prefix + texts[index % len(texts)] + suffix

    return frame


def numbered_frames(
    around_text: tuple[bytes, bytes],
    pieces: TextPieces,
    name: str,
    first_number: int,
    *,
    chunked: bool,
) -> Frames:
    """Return a function for the chunks of one text whose events have ids; `first_number`: of the first event."""
    prefix, suffix = around_text

    def frame(index: int) -> bytes:
        size = pieces.tokens_sent(index + 1) - pieces.tokens_sent(index)
        number = first_number + index
        content = text(size, number * pieces.per_chunk)
        event = b"id: %b-%d\n%b%b%b" % (name.encode(), number, prefix, content, suffix)
        return framed(event, chunked)

    return frame


def plan_frames(
    wire: Wire, reply: Reply, pieces: PlanPieces, pair_tokens: int, *, chunked: bool
) -> Frames:
    """Return a function that gives the bytes of a plan's chunk by its index.

    The first chunk of a block begins with the events between blocks. `pair_tokens`: tokens of one key and value of a tool
    call. `chunked`: each in a chunk of HTTP/1.1.
    """
    assert reply.plan is not None
    blocks = reply.plan.blocks
    contents = [block_bytes(block, pair_tokens) for block in blocks]

    def frame(index: int) -> bytes:
        number, delta, start, size = pieces.pieces[index]
        open_block = pieces.pieces[index - 1].block if index else 0
        separators = [wire.between(reply, n) for n in range(open_block + 1, number + 1)]
        prefix, suffix = wire.delta(reply, number, delta)
        content = b""
        # A signature is a constant of the protocol.
        if delta != SIGNATURE_DELTA:
            end = start + size
            content = contents[number][start * BYTES_PER_TOKEN : end * BYTES_PER_TOKEN]
            # JSON inside JSON: the content is escaped, without the quotes around it.
            if blocks[number].is_json:
                content = json.dumps(content.decode())[1:-1].encode()
        return framed(b"".join((*separators, prefix, content, suffix)), chunked)

    return frame


def framed(data: bytes, chunked: bool) -> bytes:
    """Return bytes of the body as HTTP/1.1 sends them; an empty chunk would end it."""
    if not chunked or not data:
        return data
    return b"%x\r\n%b\r\n" % (len(data), data)


def _around(
    around_text: tuple[bytes, bytes], text_bytes: int, chunked: bool
) -> tuple[bytes, bytes]:
    """Return the bytes before and behind a text of `text_bytes` bytes, with the frame of its HTTP chunk."""
    prefix, suffix = around_text
    # With HTTP/1.0, the end of the connection ends the body.
    if not chunked:
        return prefix, suffix
    size = len(prefix) + text_bytes + len(suffix)
    return b"%x\r\n%b" % (size, prefix), suffix + b"\r\n"
