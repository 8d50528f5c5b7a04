"""HTTP/1.1 on the wire, without I/O: a request's bytes, a response's head, and where its body ends.

Rule: nothing here reads a clock or a socket. Bodies come back unframed, so that what is above sees payload only.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import lru_cache
from typing import NamedTuple

from tailgauge.redaction import shown
from tailgauge.transport.peer import HTTP, peer_name

MAX_HEAD = 65_536  # bytes
MAX_SHOWN = 80  # characters of what was wrong
MAX_LINES = 256  # headers, or trailers
MAX_INTERIM = 100  # responses (1xx) before the response
NO_BODY = frozenset({204, 304})
MAX_DIGITS = 16  # of a length: more is none, and Python refuses to read thousands
_FRAMING = (b"content-length", b"transfer-encoding", b"connection")
_CHARSETS = frozenset({b"", b"utf-8", b"utf8", b"us-ascii", b"iso-8859-1", b"windows-1252"})
_BEGIN = b"HTTP/1."
_BARE_BLANK = re.compile(rb"\n\r?\n")  # an empty line behind a line that ends with LF alone
_STRAY = re.compile(rb"[\0\r\n]")  # in a line: each reader would find other lines (RFC 9110, 5.5)
_SIZE = re.compile(rb"([0-9A-Fa-f]{1,16})\s*(?:;.*)?$")


class WireError(Exception):
    """The peer does not speak HTTP/1.1 as we understand it; `received` is what it sent instead."""

    def __init__(self, text: str, *received: bytes) -> None:
        shortened = " and ".join(repr(shown(data, MAX_SHOWN)) for data in received)
        super().__init__(f"{text}: {shortened}" if received else text)


class HeadSizeError(WireError):
    """A head beyond its bounds."""


def _no_response(first_bytes: bytes) -> WireError:
    """Return the error of a peer that answers in another protocol."""
    text = "not an HTTP/1.1 response"
    name = _other_protocol(first_bytes)
    if name:
        text += f", {name}"
    return WireError(text, first_bytes)


def _other_protocol(first_bytes: bytes) -> str:
    """Return what a peer speaks instead of HTTP; empty where its first bytes tell nothing else."""
    name = peer_name(first_bytes)
    return "" if name == HTTP else name


def request_bytes(
    method: str, target: bytes, headers: Iterable[tuple[bytes, bytes]], body: bytes
) -> bytes:
    """Return a request, head and body in a single piece so that it leaves in one segment where it fits."""
    head = b"".join(b"%b: %b\r\n" % pair for pair in headers)
    return b"%b %b HTTP/1.1\r\n%b\r\n%b" % (method.encode("ascii"), target, head, body)


def response_head(head: bytes) -> tuple[int, list[tuple[bytes, bytes]]]:
    """Return status and headers of a complete head (up to and without its blank line). Raises WireError."""
    status_line, *lines = head.split(b"\r\n")
    if len(lines) > MAX_LINES:
        raise HeadSizeError(f"{len(lines)} header lines, over {MAX_LINES}")
    status = _status(status_line)
    headers = []
    for line in lines:
        name, colon, value = line.partition(b":")
        if not colon or not name or name != name.strip() or _STRAY.search(line):
            raise WireError("malformed header line", line)
        headers.append((name, value.strip(b" \t")))
    return status, headers


def _status(line: bytes) -> int:
    """Return the status of a status line. Raises WireError."""
    parts = line.split(b" ", 2)
    if len(parts) < 2 or not parts[0].startswith(_BEGIN):
        raise _no_response(line)
    if not parts[1].isdigit() or len(parts[1]) != 3:
        raise _no_response(line)
    if _STRAY.search(line):
        raise WireError("malformed status line", line)
    status = int(parts[1])
    if status < 100 or status == 101:  # nobody has asked for another protocol
        raise WireError(f"not a status: {status}")
    return status


class Body:
    """Framing of one body: feed what arrived, get payload; `done` once it ended.

    This one ends with the connection. `length` is None or the bytes still to come.
    """

    __slots__ = ("done", "has_excess", "length")

    def __init__(self, length: int | None = None) -> None:
        self.length = length
        self.done = length == 0
        # More came than the body: what follows on the connection cannot be known.
        self.has_excess = False

    def feed(self, data: bytes) -> bytes:
        """Return the payload in `data`; bytes beyond the end are dropped."""
        if self.length is None:
            return data
        payload = data[: self.length]
        self.length -= len(payload)
        self.done = self.length == 0
        self.has_excess |= len(payload) < len(data)
        return payload

    @property
    def at_rest(self) -> bool:
        """Whether the last byte fed ended a piece of payload: later bytes of framing did not come with it."""
        return not self.done

    @property
    def held(self) -> int:
        """Return the bytes of framing that wait for their end."""
        return 0


class ChunkedBody(Body):
    """Chunked framing, incremental; split anywhere."""

    __slots__ = ("_gap", "_left", "_line", "_trailer", "_trailers")

    def __init__(self) -> None:
        super().__init__()
        self._left = 0  # payload bytes of the current chunk still to come
        self._gap = False  # the line end behind a chunk's payload is still to come
        self._line = b""  # an unfinished size or trailer line
        self._trailer = False
        self._trailers = 0

    def feed(self, data: bytes) -> bytes:
        """Return the payload in `data`, joined over its chunks. Raises WireError.

        `done` is set by the blank line after the last chunk and the trailers; `has_excess` by bytes after
        that.
        """
        pieces = []
        position = 0
        end = len(data)
        while position < end and not self.done:
            # Payload of the current chunk is still to come; behind it comes a line end (`_gap`).
            if self._left:
                piece = data[position : position + self._left]
                pieces.append(piece)
                position += len(piece)
                self._left -= len(piece)
                self._gap = not self._left
                continue
            stop = data.find(b"\n", position)
            line = self._line + data[position : stop if stop >= 0 else end]
            if len(line) > MAX_HEAD:
                raise WireError(f"a line of over {MAX_HEAD:,} bytes in chunked framing")
            if stop < 0:
                self._line = line
                break
            self._line = b""
            self._on_line(line.strip())
            position = stop + 1
        self.has_excess |= position < end and self.done
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)

    def _on_line(self, line: bytes) -> None:
        """Take a line of framing: the end of a chunk, the size of the next one, or a trailer."""
        if self._trailer:
            self.done = not line
            self._trailers += 1
            if self._trailers > MAX_LINES:
                raise WireError(f"over {MAX_LINES} trailers")
        elif self._gap:
            if line:
                raise WireError("bytes behind a chunk", line)
            self._gap = False
        else:
            size = _SIZE.match(line)
            if not size:
                raise WireError("not a chunk size", line)
            self._left = int(size[1], 16)
            self._trailer = not self._left

    @property
    def held(self) -> int:
        """Return the bytes of an unfinished line."""
        return len(self._line)

    @property
    def at_rest(self) -> bool:
        """Whether it is between chunks: no later framing bytes came in the same read as the payload before."""
        return not (self._left or self._line or self._trailer)


class Framing(NamedTuple):
    """How a response's body ends: chunked, after `length` bytes, or (None) with the connection."""

    length: int | None
    is_chunked: bool
    keep: bool  # the connection may be kept afterwards

    @property
    def ends_with_connection(self) -> bool:
        """Whether there is no other mark of the end: the peer's close is regular."""
        return self.length is None and not self.is_chunked

    def body(self) -> Body:
        """Return a body to be read."""
        return ChunkedBody() if self.is_chunked else Body(self.length)


def framing_of(status: int, headers: Iterable[tuple[bytes, bytes]]) -> Framing:
    """Return the framing of a response's body by its head."""
    values: dict[bytes, list[bytes]] = {name: [] for name in _FRAMING}
    for name, value in headers:
        key = name.lower()
        if key in values:
            values[key].append(value)
    length, is_chunked = _framing(values[b"content-length"], values[b"transfer-encoding"])
    options = b",".join(values[b"connection"]).lower().split(b",")
    keep = b"close" not in map(bytes.strip, options)
    if status in NO_BODY:
        return Framing(0, False, keep)
    return Framing(length, is_chunked, keep and (is_chunked or length is not None))


def _framing(lengths: list[bytes], codings: list[bytes]) -> tuple[int | None, bool]:
    """Return the length, if there is one, and whether the body is chunked.

    Headers that contradict each other are an error (RFC 9112, 6.3): each reader would find another end. So is a coding
    that was not offered.
    """
    for value in lengths:
        if not value.isdigit() or len(value) > MAX_DIGITS:
            raise WireError("not a content-length", value)
    if len(set(map(int, lengths))) > 1:
        raise WireError("content-length twice", lengths[0], lengths[-1])
    if codings and (lengths or [coding.lower() for coding in codings] != [b"chunked"]):
        others = ", beside a content-length" if lengths else ""
        raise WireError(f"not a transfer-encoding{others}", *codings[:1], *lengths[:1])
    return int(lengths[0]) if lengths else None, bool(codings)


@lru_cache(maxsize=16)
def is_event_stream(content_type: bytes) -> bool:
    """Return whether a body is one. It is UTF-8 by its registration; other sets that hold ASCII are read as such, and no others."""
    kind, _, parameters = content_type.lower().partition(b";")
    charset = parameters.partition(b"charset=")[2].partition(b";")[0].strip(b' "')
    return kind.strip() == b"text/event-stream" and charset in _CHARSETS


class ResponseHead(NamedTuple):
    """A whole head of `size` bytes; `named`: the first header of each name in lower case."""

    size: int
    status: int
    headers: tuple[tuple[bytes, bytes], ...]
    named: dict[bytes, bytes]
    framing: Framing | None  # None: of an interim response

    @classmethod
    def read(cls, head: bytes) -> ResponseHead:
        """Read a head without its blank line. Raises WireError."""
        status, headers = response_head(head)
        framing = None
        if status >= 200:
            framing = framing_of(status, headers)
        named = {name.lower(): value for name, value in reversed(headers)}
        return cls(len(head), status, tuple(headers), named, framing)


# Many targets send the same head again and again.
_read_head = lru_cache(maxsize=16)(ResponseHead.read)


class Head:
    """A response's head, incremental; interim responses (1xx) before it are passed over."""

    __slots__ = ("_data", "_interim")

    def __init__(self) -> None:
        self._data = b""
        self._interim = 0

    @property
    def held(self) -> int:
        """Return the bytes that wait for the head's end."""
        return len(self._data)

    def feed(self, data: bytes) -> tuple[ResponseHead, bytes] | None:
        """Return the response, and the bytes behind its head, once the head is whole; None until then.

        Heads of interim responses (1xx) are dropped. Raises WireError for what is no HTTP, and
        HeadSizeError, which is a WireError, for too much of it.
        """
        self._data += data
        while True:
            head, blank, rest = self._data.partition(b"\r\n\r\n")
            if len(head) > MAX_HEAD:
                raise HeadSizeError(f"over {MAX_HEAD} bytes")
            if not blank:
                if not head.startswith(_BEGIN[: len(head)]) and _other_protocol(head):
                    raise _no_response(head)  # another protocol, whose answer has no blank line
                if _BARE_BLANK.search(head):
                    raise WireError("a head whose lines end with a bare LF", head)
                return None
            response = _read_head(head)
            # An interim response has no body, and so no framing.
            if response.framing is not None:
                self._data = b""
                return response, rest
            self._data = rest
            self._interim += 1
            if self._interim > MAX_INTERIM:
                raise HeadSizeError(f"over {MAX_INTERIM} interim responses (1xx)")
