"""A stencil is the bytes around the text of a stream's content events: learnt from one, compared with the next.

It is taken from an event that was read in full, and confirmed by reading it in full once more with another
text in the same place. What has the same bytes around a complete JSON string then means the same with that string as its
text, by the grammar of JSON. Whatever differs by a byte, or might, is left to the full reading.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from functools import lru_cache
from itertools import islice
from typing import Any

from tailgauge.protocols.sse_parser import Splitter

ContentOf = Callable[[bytes, Any], tuple[int, str] | None]
_OTHER = "another text in the same place"
_ENDS = b"\r\n"  # of a chunk of HTTP/1.1
_LOOKS = 16  # events of a stream that are looked at: it may change from thinking to text, or have no stencil at all
_KNOWN = 10_000  # texts that are remembered: the words of a language come again and again
_TEXTS: dict[bytes, str] = {}
_NO_CONTENT = (ValueError, TypeError, AttributeError, LookupError)


class Stencil:
    """Reads that are one HTTP chunk with one content event, of this kind, between these bytes."""

    __slots__ = ("_head", "_starts", "_tail", "kind")

    def __init__(self, head: bytes, tail: bytes, kind: int) -> None:
        self.kind = kind
        self._head, self._tail = head, tail
        self._starts: dict[int, bytes] = {}  # by the length of a read: how it would begin

    def texts(self, reads: Sequence[bytes], begin: int) -> list[str]:
        """The texts of the reads from number `begin` on, as long as they are of this stencil; none is empty."""
        found: list[str] = []
        starts, known, tail = self._starts, _TEXTS, self._tail + _ENDS
        end = -len(tail)
        for read in islice(reads, begin, None):
            start = starts.get(len(read)) or self._start(len(read))
            if not (read.startswith(start) and read.endswith(tail)):
                break
            string = read[len(start) : end]
            text = known.get(string) or _text(string)
            if not text:
                break
            found.append(text)
        return found

    def _start(self, length: int) -> bytes:
        """How a chunk of so many bytes on the wire begins; longer than itself where it is too short for an event."""
        digits = next(n for n in range(1, 17) if length - len(_ENDS) * 2 - n < 16**n)
        size = max(0, length - len(_ENDS) * 2 - digits)
        is_possible = size > len(self._head) + len(self._tail)
        start = b"%x\r\n%b" % (size, self._head) if is_possible else bytes(length + 1)
        self._starts[length] = start
        return start


def _text(string: bytes) -> str | None:
    """The text that these bytes are between two quotation marks of JSON; empty or None where they are none."""
    try:
        text = string.decode()
        if not text.isprintable() or '"' in text or "\\" in text:
            text = json.loads(f'"{text}"')
    except ValueError:
        return None
    if len(_TEXTS) < _KNOWN:
        _TEXTS[string] = text
    return text


class Learner:
    """Learns the stencil of one stream's content events, if they have one. `content_of` names kind and text of an event
    that does nothing but bring content, and None for all others."""

    __slots__ = ("_content_of", "_left")

    def __init__(self, content_of: ContentOf | None) -> None:
        self._content_of = content_of
        self._left = _LOOKS if content_of else 0

    def look(self, payload: bytes, name: bytes, data: bytes) -> Stencil | None:
        """The stencil of an event that was a read's whole payload and has just been read in full."""
        if not self._left or self._content_of is None:
            return None
        self._left -= 1
        try:
            content = self._content_of(name, json.loads(data))
        except _NO_CONTENT:
            content = None
        if content is None:
            return None
        kind, text = content
        text_bytes = b'"%b"' % text.encode("utf-8", "replace")
        if not text or payload.count(text_bytes) != 1 or b"\r" in payload:
            return None
        head, _, tail = payload.partition(text_bytes)
        head, tail = head + b'"', b'"' + tail
        return Stencil(head, tail, kind) if _confirmed(self._content_of, head, tail, kind) else None


@lru_cache(maxsize=256)
def _confirmed(content_of: ContentOf, head: bytes, tail: bytes, kind: int) -> bool:
    """Whether another text between these bytes is one whole event and nothing but that content."""
    splitter = Splitter()
    events = splitter.feed(head + _OTHER.encode() + tail)
    if len(events) != 1 or not splitter.resting or not splitter.ended_with_event:
        return False
    name, data = events[0]
    try:
        return content_of(name, json.loads(data)) == (kind, _OTHER)
    except _NO_CONTENT:
        return False
