"""HTTP/1.1 on the wire: heads, and bodies that arrive in any pieces."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tailgauge.transport.http1 import (
    MAX_HEAD,
    Body,
    ChunkedBody,
    Head,
    WireError,
    framing_of,
    is_event_stream,
    request_bytes,
    response_head,
)


def chunk(data: bytes, extension: bytes = b"") -> bytes:
    return b"%x%b\r\n%b\r\n" % (len(data), extension, data)


END = b"0\r\n\r\n"
# wire -> payload
CHUNKED = {
    "nothing": (END, b""),
    "one chunk": (chunk(b"hello") + END, b"hello"),
    "three chunks": (chunk(b"data: a\n\n") + chunk(b"data: b\n\n") + chunk(b"data: c\n\n") + END,
                     b"data: a\n\ndata: b\n\ndata: c\n\n"),
    "extensions": (chunk(b"abc", b";name=value") + chunk(b"def", b' ; q="x y"') + b"0;last\r\n\r\n", b"abcdef"),
    "trailers": (chunk(b"abc") + b"0\r\nX-Sum: 1\r\nX-Other: two\r\n\r\n", b"abc"),
    "sizes in capitals and with zeros in front": (b"0000A\r\n0123456789\r\n1F\r\n" + b"x" * 31 + b"\r\n00\r\n\r\n",
                                                  b"0123456789" + b"x" * 31),
    "payload like framing": (chunk(b"0\r\n\r\n") + chunk(b"\r\n\r\n") + chunk(b"\n") + END, b"0\r\n\r\n\r\n\r\n\n"),
}  # fmt: skip


def fed(body: Body, pieces) -> bytes:
    return b"".join(body.feed(piece) for piece in pieces)


def cut(data: bytes, at) -> list[bytes]:
    edges = [0, *sorted(at), len(data)]
    return [data[a:b] for a, b in itertools.pairwise(edges)]


# --- requests ---------------------------------------------------------------------------------------------------


def test_a_request_is_one_piece_of_head_and_body():
    headers = [(b"Host", b"h:1"), (b"content-length", b"2")]

    assert request_bytes("POST", b"/v1/messages?beta=true", headers, b"{}") == (
        b"POST /v1/messages?beta=true HTTP/1.1\r\nHost: h:1\r\ncontent-length: 2\r\n\r\n{}"
    )


@pytest.mark.parametrize("wire", [b"3\r\nabc\r\n0\r\n\r\n", b"abc"], ids=["chunked", "counted"])
@pytest.mark.parametrize(
    ("more", "has_excess"), [(b"", False), (b"H", True), (b"HTTP/1.1 200 OK\r\n\r\n", True)]
)
def test_bytes_behind_a_body_are_noticed_however_they_come(wire, more, has_excess):
    """The connection is not used again: the rest of them would be taken for the next answer."""
    for at in range(len(wire + more) + 1):
        body = Body(3) if wire == b"abc" else ChunkedBody()

        assert fed(body, cut(wire + more, [at])) == b"abc"
        assert (body.done, body.has_excess) == (True, has_excess)


# --- heads ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("head", "expected"),
    [
        (b"HTTP/1.1 200 OK", (200, [])),
        (b"HTTP/1.1 529 Overloaded right now", (529, [])),
        (b"HTTP/1.1 200", (200, [])),
        (b"HTTP/1.0 404 \r\nA: b", (404, [(b"A", b"b")])),
        (b"HTTP/1.1 200 OK\r\nA:b\r\nc:  d e \r\nEmpty:", (200, [(b"A", b"b"), (b"c", b"d e"), (b"Empty", b"")])),
        (b"HTTP/1.1 200 OK\r\nDate: Fri, 20 Nov 2026 18:15:20 GMT", (200, [(b"Date", b"Fri, 20 Nov 2026 18:15:20 GMT")])),
    ],
)  # fmt: skip
def test_a_head_is_a_status_and_headers(head, expected):
    assert response_head(head) == expected


@pytest.mark.parametrize(
    "head",
    [
        b"", b"SSH-2.0-OpenSSH_9.2", b"HTTP/2 200", b"HTTP/1.1", b"HTTP/1.1 OK", b"HTTP/1.1 20 OK", b"HTTP/1.1 2000 OK",
        b"HTTP/1.1 -20 OK", b"HTTP/1.1  200 OK", b"http/1.1 200 OK", b"\x16\x03\x01\x00\xa5", b"<html>",
        b"HTTP/1.1 200 OK\r\nno colon", b"HTTP/1.1 200 OK\r\n: no name", b"HTTP/1.1 200 OK\r\n folded: x",
        b"HTTP/1.1 200 OK\r\nname : x", b"HTTP/1.1 200 OK\r\nA: b\r\n\r\nC: d", b"HTTP/1.1 \xb2\xb2\xb2 OK",
        b"HTTP/1.1 200 OK\nA: b", b"HTTP/1.1 200 OK\r\nA: b\nC: d", b"HTTP/1.1 200 OK\r\nA: b\rC: d", b"HTTP/1.1 200 OK\r\nA: \0",
    ],
)  # fmt: skip
def test_a_head_that_is_no_http_is_refused(head):
    with pytest.raises(WireError):
        response_head(head)


@pytest.mark.parametrize(
    "head", [b"HTTP/1.1 200 OK\n\n", b"HTTP/1.1 200 OK\nA: b\n\r\n", b"hello\n\n"]
)
def test_a_head_whose_lines_end_with_a_bare_line_feed_is_refused_at_once_and_not_waited_for(head):
    """However it comes: h11 would take it."""
    with pytest.raises(WireError, match="bare LF"):
        Head().feed(head)
    with pytest.raises(WireError, match="bare LF"):
        one_by_one(head)


def one_by_one(head: bytes) -> None:
    parser = Head()
    for byte in head:
        parser.feed(bytes([byte]))


@given(st.binary(max_size=200))
def test_no_bytes_make_the_head_parser_fail_otherwise(data):
    for head in (data, b"HTTP/1.1 200 OK\r\n" + data):
        try:
            status, headers = response_head(head)
            framing_of(status, headers)
        except WireError:
            continue


# --- framing ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("status", "headers", "framing", "keep"),
    [
        (200, [], "connection", False),
        (200, [(b"Content-Length", b"5")], 5, True),
        (200, [(b"content-length", b"0")], 0, True),
        (200, [(b"CONTENT-LENGTH", b"5"), (b"Connection", b"Close")], 5, False),
        (200, [(b"content-length", b"5"), (b"connection", b"keep-alive, close")], 5, False),
        (200, [(b"content-length", b"5"), (b"connection", b"keep-alive")], 5, True),
        (200, [(b"Transfer-Encoding", b"chunked")], "chunked", True),
        (200, [(b"content-length", b"5"), (b"Content-Length", b"05")], 5, True),
        (200, [(b"transfer-encoding", b"chunked"), (b"connection", b"close")], "chunked", False),
        (204, [], 0, True),
        (304, [(b"content-length", b"5")], 0, True),
    ],
)
def test_the_headers_say_how_a_body_ends_and_whether_the_connection_stays(
    status, headers, framing, keep
):
    found_framing = framing_of(status, headers)
    body = found_framing.body()
    found = (
        "chunked"
        if isinstance(body, ChunkedBody)
        else "connection"
        if body.length is None
        else body.length
    )

    assert (found, found_framing.keep) == (framing, keep)
    assert found_framing.ends_with_connection == (framing == "connection")


@pytest.mark.parametrize(
    "value", [b"-1", b"+1", b"1.5", b"", b"5, 5", b"0x10", b"ten", b"9" * 30, b"9" * 5000]
)
def test_an_impossible_content_length_is_refused(value):
    with pytest.raises(WireError, match="not a content-length"):
        framing_of(200, [(b"content-length", value)])


@pytest.mark.parametrize(
    "headers",
    [
        [(b"content-length", b"5"), (b"Content-Length", b"7")],
        [(b"content-length", b"5"), (b"content-length", b"7"), (b"content-length", b"5")],
        [(b"transfer-encoding", b"chunked"), (b"content-length", b"5")],
        [(b"content-length", b"0"), (b"Transfer-Encoding", b"Chunked")],
        [(b"transfer-encoding", b"chunked"), (b"transfer-encoding", b"chunked")],
        [(b"transfer-encoding", b"chunked, chunked")],
        [(b"transfer-encoding", b"gzip, chunked")],
        [(b"transfer-encoding", b"chunked, gzip")],
        [(b"transfer-encoding", b"identity")],
        [(b"transfer-encoding", b"xchunked")],
        [(b"transfer-encoding", b"\x0bchunked")],
        [(b"transfer-encoding", b"")],
    ],
)
@pytest.mark.parametrize("status", [200, 204, 500])
def test_framing_that_contradicts_itself_or_was_not_offered_is_refused(headers, status):
    """RFC 9112, 6.3: one reader would find another end than the next."""
    with pytest.raises(WireError, match=r"content-length twice|not a transfer-encoding"):
        framing_of(status, headers)


CONTENT_TYPES = {
    b"text/event-stream": True, b"Text/Event-Stream; charset=UTF-8": True, b'text/event-stream;charset="utf-8";x=y': True,
    b"text/event-stream; charset=ISO-8859-1": True, b"text/event-stream; x=y": True, b"text/event-stream ;charset=utf-8": True,
    b"text/event-stream; charset=utf-16": False, b"text/event-stream; x=y; charset=UTF-16LE": False, b"text/event-stream; charset=utf-32": False,
    b"text/event-stream; charset=zlib": False, b"text/event-streams": False, b"text/html": False, b"": False,
}  # fmt: skip


@pytest.mark.parametrize(("kind", "expected"), CONTENT_TYPES.items())
def test_an_event_stream_is_utf_8(kind, expected):
    """Its registration allows no other; sets that hold ASCII are read as UTF-8, as both SDKs do."""
    assert is_event_stream(kind) is expected


@pytest.mark.parametrize(
    "size", [b"-5", b"+5", b"x", b"", b"0x5", b"1_0", b"5 5", b"f" * 17, b"f" * 5000, b"\xff"]
)
def test_an_impossible_chunk_size_is_refused(size):
    with pytest.raises(WireError, match="not a chunk size"):
        ChunkedBody().feed(size + b"\r\nabcde")


def test_a_size_line_without_an_end_is_refused_before_it_fills_the_memory():
    body = ChunkedBody()
    body.feed(b"1" * (MAX_HEAD - 1))

    with pytest.raises(WireError, match="a line of over 65,536 bytes"):
        body.feed(b"11")


def test_bytes_between_a_chunk_and_the_next_size_are_refused():
    with pytest.raises(WireError, match="bytes behind a chunk"):
        ChunkedBody().feed(b"3\r\nabcdef\r\n")


# --- bodies -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("wire", "payload"), CHUNKED.values(), ids=CHUNKED)
def test_every_two_way_split_of_a_chunked_body_gives_the_same_payload(wire, payload):
    for at in range(len(wire) + 1):
        body = ChunkedBody()
        early = body.feed(wire[:at])

        assert body.done == (at == len(wire))
        assert early + body.feed(wire[at:]) == payload
        assert body.done


@pytest.mark.parametrize(("wire", "payload"), CHUNKED.values(), ids=CHUNKED)
def test_a_chunked_body_may_come_byte_by_byte(wire, payload):
    body = ChunkedBody()

    assert fed(body, [wire[i : i + 1] for i in range(len(wire))]) == payload
    assert body.done


@given(st.lists(st.binary(min_size=1, max_size=30), max_size=6), st.data())
def test_any_split_of_any_chunked_body_gives_the_same_payload(chunks, data):
    wire = b"".join(map(chunk, chunks)) + END
    cuts = data.draw(st.lists(st.integers(0, len(wire)), max_size=8))
    body = ChunkedBody()

    assert fed(body, cut(wire, cuts)) == b"".join(chunks)
    assert body.done


@given(st.binary(max_size=100))
def test_no_bytes_make_a_chunked_body_fail_otherwise(data):
    body = ChunkedBody()
    try:
        body.feed(data)
    except WireError:
        return
    assert body.done in {True, False}


@pytest.mark.parametrize("at", range(6))
def test_a_counted_body_is_done_with_its_last_byte(at):
    body = Body(5)
    early = body.feed(b"hello"[:at])

    assert body.done == (at == 5)
    assert early + body.feed(b"hello"[at:]) == b"hello"
    assert body.done


def test_a_body_that_ends_with_the_connection_is_never_done_by_itself():
    body = Body()

    assert fed(body, [b"a", b"0\r\n\r\n"]) == b"a0\r\n\r\n"
    assert not body.done


@pytest.mark.parametrize(
    ("pieces", "at_rest"),
    [
        ([b"5\r\nhello\r\n"], True),
        ([b"5\r\nhello"], True),  # the line end behind it comes with the next read
        ([b"5\r\nhel"], False),
        ([b"5\r\nhello\r\n5\r"], False),  # a later chunk has begun in this read
        ([b"5\r\nhello\r\n5\r\nwor"], False),
        ([b"5\r\nhello\r\n0\r\n"], False),
        ([b"5\r\nhello\r\n" + END], False),
        ([b"5\r\nhel", b"lo\r\n"], True),
        ([b"5\r\nhello\r\n", b"5\r\nworld\r\n"], True),
    ],
)
def test_a_chunked_body_is_at_rest_only_if_nothing_came_after_the_payload(pieces, at_rest):
    body = ChunkedBody()
    fed(body, pieces)

    assert body.at_rest == at_rest
