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
MAX_DIGITS = (
    16  # of a length or a chunk size: more is no length, and Python refuses to read thousands
)
_FRAMING = (b"content-length", b"transfer-encoding", b"connection")
_CHARSETS = frozenset({b"", b"utf-8", b"utf8", b"us-ascii", b"iso-8859-1", b"windows-1252"})
_BEGIN = b"HTTP/1."
_BARE_BLANK = re.compile(rb"\n\r?\n")  # an empty line behind a line that ends with LF alone
_STRAY = re.compile(rb"[\0\r\n]")  # in a line: each reader would find other lines (RFC 9110, 5.5)
_SIZE = re.compile(rb"([0-9A-Fa-f]{1,16})\s*(?:;.*)?$")


class WireError(Exception):
    """The peer does not speak HTTP/1.1 as we understand it; `received` is what it sent instead."""

    def __init__(self, text: str, *received: bytes) -> None:
        shortened = " and ".join(repr(shown(one, MAX_SHOWN)) for one in received)
        super().__init__(f"{text}: {shortened}" if received else text)


class HeadSizeError(WireError):
    """A head beyond its bounds."""


def _no_response(first: bytes) -> WireError:
    """The error of a peer that answers in another protocol; `first`: its first bytes."""
    text = "not an HTTP/1.1 response"
    if name := _other_protocol(first):
        text += f", {name}"
    return WireError(text, first)


def _other_protocol(first: bytes) -> str:
    """What a peer speaks instead of HTTP; empty where its first bytes tell nothing else."""
    name = peer_name(first)
    return "" if name == HTTP else name


def request_bytes(
    method: str, target: bytes, headers: Iterable[tuple[bytes, bytes]], body: bytes
) -> bytes:
    """One request, head and body in a single piece so that it leaves in one segment where it fits."""
    head = b"".join(b"%b: %b\r\n" % pair for pair in headers)
    return b"%b %b HTTP/1.1\r\n%b\r\n%b" % (method.encode("ascii"), target, head, body)


def response_head(head: bytes) -> tuple[int, list[tuple[bytes, bytes]]]:
    """Status and headers of a complete head (up to and without its blank line)."""
    first, *lines = head.split(b"\r\n")
    if len(lines) > MAX_LINES:
        raise HeadSizeError(f"{len(lines)} header lines, over {MAX_LINES}")
    parts = first.split(b" ", 2)
    if (
        len(parts) < 2
        or not parts[0].startswith(b"HTTP/1.")
        or not parts[1].isdigit()
        or len(parts[1]) != 3
    ):
        raise _no_response(first)
    if _STRAY.search(first):
        raise WireError("malformed status line", first)
    status = int(parts[1])
    if status < 100 or status == 101:  # nobody has asked for another protocol
        raise WireError(f"not a status: {status}")
    headers = []
    for line in lines:
        name, colon, value = line.partition(b":")
        if not colon or not name or name != name.strip() or _STRAY.search(line):
            raise WireError("malformed header line", line)
        headers.append((name, value.strip(b" \t")))
    return status, headers


class Body:
    """Framing of one body: feed what arrived, get payload; `done` once it ended.

    This one ends with the connection. `length` is None or the bytes still to come.
    """

    __slots__ = ("done", "has_excess", "length")

    def __init__(self, length: int | None = None) -> None:
        self.length = length
        self.done = length == 0
        self.has_excess = (
            False  # more came than the body: what follows on the connection cannot be known
        )

    def feed(self, data: bytes) -> bytes:
        """Payload in `data`; bytes beyond the end are dropped."""
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
        """Bytes of framing that wait for their end."""
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
        """Payload in `data`, joined over its chunks. Raises WireError."""
        out = []
        at = 0
        end = len(data)
        while at < end and not self.done:
            if self._left:
                piece = data[at : at + self._left]
                out.append(piece)
                at += len(piece)
                self._left -= len(piece)
                self._gap = not self._left
                continue
            stop = data.find(b"\n", at)
            line = self._line + data[at : stop if stop >= 0 else end]
            if len(line) > MAX_HEAD:
                raise WireError(f"a line of over {MAX_HEAD:,} bytes in chunked framing")
            if stop < 0:
                self._line = line
                break
            self._line = b""
            self._on_line(line.strip())
            at = stop + 1
        self.has_excess |= at < end and self.done
        return out[0] if len(out) == 1 else b"".join(out)

    def _on_line(self, line: bytes) -> None:
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
        """Of an unfinished line."""
        return len(self._line)

    @property
    def at_rest(self) -> bool:
        """True between chunks: no later framing bytes came in the same read as the payload before."""
        return not (self._left or self._line or self._trailer)


class Framing(NamedTuple):
    """How a response's body ends: chunked, after `length` bytes, or (None) with the connection."""

    length: int | None
    is_chunked: bool
    keep: bool  # the connection may be kept afterwards

    @property
    def ends_with_connection(self) -> bool:
        """No other mark of the end: the peer's close is regular."""
        return self.length is None and not self.is_chunked

    def body(self) -> Body:
        """A body to be read."""
        return ChunkedBody() if self.is_chunked else Body(self.length)


def framing_of(status: int, headers: Iterable[tuple[bytes, bytes]]) -> Framing:
    """Framing of a response's body by its head."""
    found: dict[bytes, list[bytes]] = {name: [] for name in _FRAMING}
    for name, value in headers:
        if (key := name.lower()) in found:
            found[key].append(value)
    length, is_chunked = _framing(found[b"content-length"], found[b"transfer-encoding"])
    options = b",".join(found[b"connection"]).lower().split(b",")
    keep = b"close" not in map(bytes.strip, options)
    if status in NO_BODY:
        return Framing(0, False, keep)
    return Framing(length, is_chunked, keep and (is_chunked or length is not None))


def _framing(lengths: list[bytes], codings: list[bytes]) -> tuple[int | None, bool]:
    """Length, if there is one, and whether the body is chunked.

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
    """Whether a body is one. It is UTF-8 by its registration; other sets that hold ASCII are read as such, and no others."""
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
        """A head without its blank line. Raises WireError."""
        status, headers = response_head(head)
        named = {name.lower(): value for name, value in reversed(headers)}
        return cls(
            len(head),
            status,
            tuple(headers),
            named,
            framing_of(status, headers) if status >= 200 else None,
        )


_read_head = lru_cache(maxsize=16)(
    ResponseHead.read
)  # many targets send the same head again and again


class Head:
    """A response's head, incremental; interim responses (1xx) before it are passed over."""

    __slots__ = ("_data", "_interim")

    def __init__(self) -> None:
        self._data = b""
        self._interim = 0

    @property
    def held(self) -> int:
        """Bytes that wait for the head's end."""
        return len(self._data)

    def feed(self, data: bytes) -> tuple[ResponseHead, bytes] | None:
        """The response and what came behind it, once its head is whole. Raises WireError, of which HeadSizeError is one."""
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
            found = _read_head(head)
            if found.framing is not None:
                self._data = b""
                return found, rest
            self._data = rest
            self._interim += 1
            if self._interim > MAX_INTERIM:
                raise HeadSizeError(f"over {MAX_INTERIM} interim responses (1xx)")
