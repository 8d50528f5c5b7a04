"""Redaction of an answer's raw bytes that keeps every length: chunk sizes and content-length in it stay right.

A secret is looked for in the bytes as they came, without the framing between chunks, in the texts of one JSON field
joined over all events, and in the data lines joined. What is found is overwritten where it stands; line ends stay.
What a secret is, and how texts of rows lose it, is in `tailgauge.redaction`.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from itertools import accumulate, pairwise

from tailgauge.redaction import MARK, known, secret_like

Span = tuple[int, int]

_CHUNK_LINE = re.compile(r"\r\n[0-9A-Fa-f]{1,8}(?:;[^\r\n]*)?\r\n")  # between two chunks
_FIELD = re.compile(r'"((?:[^"\\]|\\.){1,80}+)"\s*:\s*"((?:[^"\\]|\\.)*+)"', re.DOTALL)
# Plain text, or a JSON string.
_DATA_LINE = re.compile(r'^data:[ ]?(?![\[{])"?([^\r\n]*?)"?\r?$', re.MULTILINE)
_HEADER = re.compile(r"^([^:\r\n]+):[ \t]*([^\r\n]+)$", re.MULTILINE)
_HEAD_END = "\r\n\r\n"
_INTERIM = "HTTP/1."  # another head behind an interim one
_FILL = b"*"
_WINDOW = 65_536  # characters
_OVERLAP = 8192  # longer than a secret in any of its forms


class _Pieces:
    """A text made of pieces of another, and where each of its characters stands there."""

    def __init__(self, text: str, spans: Sequence[Span]) -> None:
        self.text = "".join([text[begin:end] for begin, end in spans])
        self._spans = spans
        self._begins = [0, *accumulate(end - begin for begin, end in spans)]

    def origins(self, begin: int, end: int) -> Iterator[int]:
        """Yield the places in the other text of the characters from `begin` to `end`."""
        for place in range(begin, end):
            piece = bisect_right(self._begins, place) - 1
            offset = place - self._begins[piece]
            yield self._spans[piece][0] + offset


def redact(data: bytes) -> bytes:
    """Return the bytes of an answer without secrets, as many as before."""
    text = data.decode("utf-8", "surrogateescape")
    secrets = set(_secret_places(text))
    if not secrets:
        return data
    sizes = (len(char.encode("utf-8", "surrogateescape")) for char in text)
    begins = [0, *accumulate(sizes)]
    redacted = bytearray(data)
    for first_character, end_character in _runs(secrets):
        begin = begins[first_character]
        end = begins[end_character]
        size = end - begin
        redacted[begin:end] = MARK.encode()[:size].ljust(size, _FILL)
    return bytes(redacted)


def _secret_places(text: str) -> Iterator[int]:
    """Yield the place of every character of a secret, but for line ends."""
    for place in _all_places(text):
        if text[place] not in "\r\n":
            yield place


def _all_places(text: str) -> Iterator[int]:
    """Yield the places of secrets in the text as it came, without chunk framing, and in what a reader would join."""
    for span in (*_spans(text), *_headers(text)):
        yield from range(*span)
    body = _Pieces(text, list(_between_chunks(text)))
    for span in _spans(body.text):
        yield from body.origins(*span)
    for parts in _joined_texts(body.text):
        joined = _Pieces(body.text, parts)
        for span in _spans(joined.text):
            for place in joined.origins(*span):
                yield from body.origins(place, place + 1)


def _spans(text: str) -> Iterator[Span]:
    """Yield where secrets stand; looked for in windows, because each character of one takes a hundred bytes meanwhile."""
    for offset in range(0, max(1, len(text) - _OVERLAP), _WINDOW - _OVERLAP):
        for begin, end in known().spans_of_peer(text[offset : offset + _WINDOW]):
            yield offset + begin, offset + end


def _between_chunks(text: str) -> Iterator[Span]:
    """Yield what stands between the size lines of chunks."""
    begin = 0
    for line in _CHUNK_LINE.finditer(text):
        yield begin, line.start()
        begin = line.end()
    yield begin, len(text)


def _joined_texts(body: str) -> Iterable[Sequence[Span]]:
    """Yield texts that a reader would join: those of one JSON field in all events, and the data lines."""
    by_field: dict[str, list[Span]] = defaultdict(list)
    for match in _FIELD.finditer(body):
        by_field[match[1]].append(match.span(2))
    yield from (parts for parts in by_field.values() if len(parts) > 1)
    yield [match.span(1) for match in _DATA_LINE.finditer(body)]


def _headers(text: str) -> Iterator[Span]:
    """Yield values of headers that are secrets by their name or look, such as a cookie."""
    end = text.find(_HEAD_END)
    while end >= 0 and text.startswith(_INTERIM, end + len(_HEAD_END)):
        end = text.find(_HEAD_END, end + len(_HEAD_END))
    if end >= 0:
        text = text[:end]
    head = text.replace("\r\n", " \n")
    for match in _HEADER.finditer(head):
        if secret_like(match[1], match[2].strip()):
            yield match.span(2)


def _runs(places: set[int]) -> Iterator[Span]:
    """Yield places that follow each other, as spans."""
    ordered = sorted(places)
    begin = ordered[0]
    for place, next_place in pairwise(ordered):
        if next_place != place + 1:
            yield begin, place + 1
            begin = next_place
    yield begin, ordered[-1] + 1
