"""Server-sent events: the same events however the bytes are cut."""

import time

import pytest

from tailgauge.protocols.sse_parser import (
    MAX_EVENT,
    MAX_LINES,
    EventSizeError,
    IdSplitter,
    Splitter,
)

# stream with \n -> events
SAMPLES = {
    "data only": (b"data: a\n\ndata: b\n\n", [(b"", b"a"), (b"", b"b")]),
    "named": (b"event: ping\ndata: {}\n\nevent: x\ndata: 1\n\n", [(b"ping", b"{}"), (b"x", b"1")]),
    "name behind the data": (b"data: 1\nevent: x\n\n", [(b"x", b"1")]),
    "lines of data": (b"data: a\ndata: b\ndata:\ndata: c\n\n", [(b"", b"a\nb\n\nc")]),
    "no space behind the colon": (b"event:x\ndata:a\n\n", [(b"x", b"a")]),
    "one space is taken, not two": (b"data:  a \n\n", [(b"", b" a ")]),
    "comments": (b": hello\n\n:\n\ndata: a\n: between\n\n: end\n\n", [(b"", b"a")]),
    "no data": (b"event: ping\n\nid: 7\nretry: 100\n\ndata: a\n\n", [(b"", b"a")]),
    "unknown fields": (b"foo: bar\ndatax: no\nDATA: no\ndata: a\n\n", [(b"", b"a")]),
    "a field without colon": (b"data\n\nevent\ndata: a\n\n", [(b"", b""), (b"", b"a")]),
    "colons within": (b'data: {"a": "b: c"}\n\n', [(b"", b'{"a": "b: c"}')]),
    "blank lines between": (b"\n\n\ndata: a\n\n\n\n\ndata: b\n\n\n", [(b"", b"a"), (b"", b"b")]),
    "byte order mark": (b"\xef\xbb\xbfdata: a\n\ndata: b\n\n", [(b"", b"a"), (b"", b"b")]),
    "a byte order mark that does not begin the stream": (
        b"data: a\n\n\xef\xbb\xbfdata: b\n\ndata: c\n\xef\xbb\xbfdata: d\n\n",
        [(b"", b"a"), (b"", b"c")],
    ),
    "two byte order marks": (b"\xef\xbb\xbf\xef\xbb\xbfdata: a\n\ndata: b\n\n", [(b"", b"b")]),
    "a byte order mark within the data": (b"data: \xef\xbb\xbfa\n\n", [(b"", b"\xef\xbb\xbfa")]),
    "bytes above 127": ("data: größe 東\n\n".encode(), [(b"", "größe 東".encode())]),
    "unfinished": (b"data: a\n\ndata: b\n", [(b"", b"a")]),
}
LONG = b"x" * 2000
# What the standard's page shows, and the web platform's tests of event sources: a stream as it comes -> events.
STANDARD = {
    "example 1": (b"data: YHOO\ndata: +2\ndata: 10\n\n", [b"YHOO\n+2\n10"]),
    "example 2": (b": test stream\n\ndata: first event\nid: 1\n\ndata:second event\nid\n\ndata:  third event", [b"first event", b"second event"]),
    "example 3": (b"data\n\ndata\ndata\n\ndata:", [b"", b"\n"]),
    "example 4": (b"data:test\n\ndata: test\n\n", [b"test", b"test"]),
    "field-data": (b"data:\n\ndata\ndata\n\ndata:test\n\n", [b"", b"\n", b"test"]),
    "field-parsing": (
        b"data:\0\ndata:  2\rData:1\ndata\0:2\ndata:1\r\0data:4\nda-ta:3\rdata_5\ndata:3\rdata:\r\n data:32\ndata:4\n\n", [b"\0\n 2\n1\n3\n\n4"],
    ),
    "field-event": (b"event:test\ndata:x\n\ndata:y\n\n", [(b"test", b"x"), b"y"]),
    "field-event-empty": (b"event: \ndata:data\n\n", [b"data"]),
    "field-event-repeated": (b"event: a\nevent: b\ndata:data\n\n", [(b"b", b"data")]),
    "field-id": (b"id: 1\ndata:1\n\ndata:2\n\nid\ndata:3\n\n", [b"1", b"2", b"3"]),
    "field-id-null": (b"id: \0\0\ndata:1\n\n", [b"1"]),
    "field-retry": (b"retry:3000\ndata:test\n\n", [b"test"]),
    "field-retry-bogus": (b"retry:3000\nretry:1000x\ndata:x\n\n", [b"x"]),
    "field-unknown": (b"data:test\n data\ndata\nfoobar:xxx\njustsometext\n:thisisacommentyay\n\n", [b"test\n"]),
    "leading-space": (b"data:\ttest\rdata: \ndata:test\n\n", [b"\ttest\n\ntest"]),
    "newlines": (b"data:test\r\ndata\ndata:test\r\n\r", [b"test\n\ntest"]),
    "null-character": (b"data:\0\n\n\n\n", [b"\0"]),
    "comments": (
        b"data:1\r:\0\n:\r\ndata:2\n:" + LONG + b"\rdata:3\n:data:fail\r:" + LONG + b"\ndata:4\n\n", [b"1\n2\n3\n4"],
    ),
    "data-before-final-empty-line": (b"retry:1000\ndata:test1\n\nid:test\ndata:test2", [b"test1"]),
    "utf-8": ("data:ok\u2026\n\n".encode(), ["ok\u2026".encode()]),
    "bom": (b"\xef\xbb\xbfdata:1\n\n\xef\xbb\xbfdata:2\n\ndata:3\n\n", [b"1", b"3"]),
    "bom-2": (b"\xef\xbb\xbf\xef\xbb\xbfdata:1\n\ndata:2\n\ndata:3", [b"2"]),
}  # fmt: skip
LINE_ENDS = {"LF": b"\n", "CRLF": b"\r\n", "CR": b"\r"}


def events_of(pieces):
    splitter = Splitter()
    return [event for piece in pieces for event in splitter.feed(piece)]


@pytest.fixture(params=LINE_ENDS.values(), ids=LINE_ENDS)
def line_end(request):
    return request.param


@pytest.mark.parametrize(("stream", "events"), SAMPLES.values(), ids=SAMPLES)
def test_every_two_way_split_gives_the_same_events(stream, events, line_end):
    wire = stream.replace(b"\n", line_end)
    for at in range(len(wire) + 1):
        assert events_of([wire[:at], wire[at:]]) == events


@pytest.mark.parametrize(("wire", "events"), STANDARD.values(), ids=STANDARD)
def test_the_standards_cases(wire, events):
    wanted = [event if isinstance(event, tuple) else (b"", event) for event in events]

    assert all(events_of([wire[:at], wire[at:]]) == wanted for at in range(len(wire) + 1))
    assert events_of([wire[i : i + 1] for i in range(len(wire))]) == wanted


MARKED = {
    "first": (b"\xef\xbb\xbfdata: a\n\n", False),
    "within a line": (b"data: a\xef\xbb\xbf\n\n: \xef\xbb\xbf\n\n", False),
    "repeated": (b"\xef\xbb\xbf\xef\xbb\xbfdata: a\n\n", True),
    "before an event": (b"data: a\n\n\xef\xbb\xbfdata: b\n\n", True),
    "before a field": (b"event: x\n\xef\xbb\xbfdata: b\n\n", True),
}


@pytest.mark.parametrize(("stream", "is_marked"), MARKED.values(), ids=MARKED)
def test_a_byte_order_mark_that_hides_a_field_is_noticed(stream, is_marked, line_end):
    wire = stream.replace(b"\n", line_end)
    for at in range(len(wire) + 1):
        splitter = Splitter()
        splitter.feed(wire[:at])
        splitter.feed(wire[at:])
        assert splitter.has_late_byte_order_mark == is_marked, at


@pytest.mark.parametrize(
    ("pieces", "ended_with_event"),
    [
        ([], False),
        ([b"data: a\n\n"], True),
        ([b"data: a\r\n\r\n"], True),
        ([b"data: a\r\r"], True),
        ([b"data: a\n\n\n"], True),
        ([b": c\n\ndata: a\n\n"], True),
        ([b"data: a\n"], False),
        ([b"data: a\n\nd"], False),
        (
            [b"data: a\n\n: c\n\n"],
            False,
        ),  # the read ended with the comment: when the event came is not known
        ([b"data: a\n\nevent: x\n\n"], False),
        ([b"data: a\n\n", b": c\n\n"], False),
        ([b"data: a", b"\n\n"], True),
    ],
)
def test_it_is_known_whether_a_read_ended_with_an_event(pieces, ended_with_event):
    splitter = Splitter()
    for piece in pieces:
        splitter.feed(piece)

    assert splitter.ended_with_event == ended_with_event


def test_an_event_of_megabytes_passes():
    splitter = Splitter()
    half = b"x" * (MAX_EVENT // 2 - 10)

    assert splitter.feed(b"data: " + half) == []
    assert splitter.feed(half + b"\n\n") == [(b"", half + half)]


def test_an_event_of_very_many_lines_is_given_up():
    with pytest.raises(EventSizeError):
        Splitter().feed(b"data: x\n" * (MAX_LINES + 2) + b"\n")


def test_bytes_that_wait_are_looked_at_once():
    """An event that comes in ten thousand pieces costs what its length costs, not the square of it: 2 MiB, else 20 GB."""
    splitter = Splitter()
    splitter.feed(b"data: " + b"x" * (2 << 20))
    began = time.process_time()
    for _ in range(10_000):
        splitter.feed(b"y")
    small = time.process_time() - began
    began = time.process_time()
    for _ in range(100):
        bytes(splitter.pending).split(b"\n\n")
    hundred_looks = time.process_time() - began

    assert splitter.feed(b"\n\n") == [(b"", b"x" * (2 << 20) + b"y" * 10_000)]
    assert small < 10 * hundred_looks


BARE = [
    (b"event: end\n\n", [(b"end", b"")]),
    (b"event: a\ndata: 1\n\nevent: end\n\n: note\n\nid: 1\n\n", [(b"a", b"1"), (b"end", b"")]),
    (b"event:\n\nevent\n\n", []),
    (b"event: end\nid: 3\n\n", [(b"end", b"")]),
]


@pytest.mark.parametrize(("stream", "events"), BARE)
@pytest.mark.parametrize("kind", [Splitter, IdSplitter])
def test_an_event_without_data_counts_where_bare_names_are_taken(kind, stream, events):
    splitter = kind(takes_bare_names=True)
    found = [
        event for start in range(len(stream)) for event in splitter.feed(stream[start : start + 1])
    ]

    assert found == events
    assert [event for event in Splitter().feed(stream) if not event[1]] == []
