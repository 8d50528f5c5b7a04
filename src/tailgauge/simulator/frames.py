"""The bytes of one call's content chunks.

Rule: pure. Everything that a stream's chunks share is encoded once when the call starts: sending one costs a join of
ready-made bytes. A frame is the protocol's event around the text, in one HTTP/1.1 chunk.
"""

from __future__ import annotations

from tailgauge.simulator.tokens import chunk_texts, text

_STAMP_BYTES = 20  # 19 digits of nanoseconds and a space


class Frames:
    """Content chunks by their index, each with `tokens_per_chunk` tokens of text and the last with the rest.

    With `embed_clock` a chunk's text starts with the clock of its write, 19 digits and a space, for tests that compare
    clocks. The stamp comes on top of the chunk's own text: usage goes on counting the tokens without it.
    """

    def __init__(
        self,
        around_text: tuple[bytes, bytes],
        tokens: int,
        tokens_per_chunk: int,
        *,
        embed_clock: bool,
        chunked: bool,
    ) -> None:
        self.count = -(-tokens // tokens_per_chunk)
        self._tokens, self._per_chunk = tokens, tokens_per_chunk
        self._last = self.count - 1
        self._stamp = b"%019d " if embed_clock else b""
        self._texts = chunk_texts(tokens_per_chunk)
        self._last_text = text(tokens - self._last * tokens_per_chunk, self._last * tokens_per_chunk)
        stamp_bytes = _STAMP_BYTES if embed_clock else 0
        self._around = _framed(around_text, len(self._texts[0]) + stamp_bytes, chunked)
        self._last_around = _framed(around_text, len(self._last_text) + stamp_bytes, chunked)

    def ready(self, made: int) -> int:
        """Chunks that may leave when `made` tokens of the answer have been made."""
        return self.count if made >= self._tokens else made // self._per_chunk

    def tokens_sent(self, chunks: int) -> int:
        """Tokens that the first `chunks` chunks carry."""
        return min(self._tokens, chunks * self._per_chunk)

    def frame(self, index: int, now_ns: int) -> bytes:
        """What is written for chunk `index` at `now_ns`."""
        if index == self._last:
            (before, behind), words = self._last_around, self._last_text
        else:
            (before, behind), words = self._around, self._texts[index % len(self._texts)]
        if self._stamp:
            return before + self._stamp % now_ns + words + behind
        return before + words + behind


def framed(data: bytes, chunked: bool) -> bytes:
    """Bytes of the body as HTTP/1.1 sends them."""
    return b"%x\r\n%b\r\n" % (len(data), data) if chunked else data


def _framed(around_text: tuple[bytes, bytes], text_bytes: int, chunked: bool) -> tuple[bytes, bytes]:
    before, behind = around_text
    if not chunked:  # HTTP/1.0: the end of the connection ends the body
        return before, behind
    return b"%x\r\n%b" % (len(before) + text_bytes + len(behind), before), behind + b"\r\n"
