"""Streams whose events are nearly plain: JSON, lines of events and framing that are written in another way than usual, or
are damaged.
"""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Any

from protocols.random_streams import FIRST
from transport.scripted_server import chunk

from tailgauge.protocols.anthropic import Anthropic
from tailgauge.protocols.openai import OpenAI

Change = tuple[bytes, bytes]  # what of an event is replaced, by what

PLAIN = {
    OpenAI: b'{"id":"c1","model":"tiny","choices":[{"index":0,"delta":{"content":"word"},"finish_reason":null}]}',
    Anthropic: b'{"type":"content_block_delta","index":0,"delta":{"type":"text_delta","text":"word"}}',
}
OTHER_KINDS: dict[Any, tuple[Change, ...]] = {
    OpenAI: (
        (b'"content"', b'"reasoning"'),
        (b'"content"', b'"reasoning_content"'),
        (b'"content":"word"', b'"tool_calls":[{"index":0,"function":{"arguments":"word"}}]'),
        (b'"content":"word"', b'"content":"word","role":"assistant"'),
        (b'"content":"word"', b'"content":"word","reasoning":"why"'),
        (b'"c1"', b'"c2"'),
    ),
    Anthropic: (
        (b'"text_delta","text"', b'"thinking_delta","thinking"'),
        (b'"text_delta","text"', b'"input_json_delta","partial_json"'),
        (b'"index":0', b'"index":1'),
    ),
}
TEXTS = (
    b"", b"\\u0041", b"\\ud83d\\ude00", b"\\uD83D\\uDE00", b"\\ud800", b"\\udc00", b"\\ud83d\\u0041", b"\\ud83dx", b"\\ude00\\ud83d",
    b"\\u00g0", b"\\x", b"\\", b"\\/", b"\\b\\f\\n\\r\\t", b'\\"', b"\\\\", b"\xff", b"\xc0\x80", b"\xed\xa0\x80", b"\xed\x9f\xbf",
    b"\xf4\x8f\xbf\xbf", b"\xf4\x90\x80\x80", b"\xf0\x8f\x80\x80", b"\xe0\x9f\xbf", b"\xe2\x82", b"\xc3", b"\x80", b"\x7f",
    b"\x01", b"\t", b"\0", "\u2028".encode(), "\ufeff".encode(), "\U0001f600".encode(), b"data: x", b"<think>", b"</think>",
)  # fmt: skip
NUMBERS = (
    b"-0", b"01", b"1.", b".5", b"+1", b"1e5", b"1E+5", b"1e", b"1e400", b"-1.5e-7", b"NaN", b"Infinity", b"-Infinity", b"0x10",
    b"9" * 18, b"9" * 19, b"9" * 40, b"9" * 5000, b"1." + b"1" * 30, b"-", b"tru", b"true", b"nulll", b"null", b"'a'", b"",
)  # fmt: skip
VALUES = (
    *NUMBERS, b"5", b"0", b"false", b'""', b'"a"', b"[]", b"[ ]", b"{}", b"{ \t}", b"[null]", b"[1,]", b"[,1]", b"[1 2]",
    b"[" * 31 + b"]" * 31, b"[" * 32 + b"]" * 32, b"[" * 33 + b"]" * 33, b"[" * 500 + b"]" * 500, b"[" * 100_000,
    b'{"a":' * 40 + b"1" + b"}" * 40, b'{"a":1,"a":2}', b'{"a":1,}', b'{"a"}', b'{a:1}', b'{"\\u0061":1}', b'"\\ud800"', b'"\xff"',
)  # fmt: skip
KEYS = {
    OpenAI: (
        b'"id"',
        b'"model"',
        b'"choices"',
        b'"index"',
        b'"delta"',
        b'"content"',
        b'"finish_reason"',
    ),
    Anthropic: (b'"type"', b'"index"', b'"delta"', b'"text"'),
}
MORE_KEYS = {
    OpenAI: (
        b'"error":', b'"usage":', b'"x_groq":', b'"base_resp":', b'"service_tier":', b'"object":', b'"created":', b'"detail":',
        b'"choices":', b'"more":', b'"":',
    ),
    Anthropic: (b'"error":', b'"usage":', b'"message":', b'"type":', b'"delta":', b'"more":', b'"":'),
}  # fmt: skip
BEHIND = (b" ", b"\t ", b" {}", b"x", b",", b"\0", b"\x0b", b"}", b" // comment", b"\xc2\xa0")
LINES = (
    b": comment", b":", b"id: 5", b"id:", b"id", b"id: \0", b"retry: 3000", b"retry", b"event: message", b"event: error",
    b"event:error", b"event:  error", b"event: content_block_delta", b"event: ping", b"event", b"event:", b"foo: bar", b"foo",
    b"data: x", b"data:", b"data", b" data: x", b"Data: x", b"error: x", b"\xef\xbb\xbfdata: x", b"\xef\xbb\xbf: x", b" ", b"\t",
)  # fmt: skip
LONE = (
    b"data: [DONE]", b"data:[DONE]", b": ping", b"event: ping", b"event: ping\ndata: {}", b"data: ", b"data", b"id: 7", b"",
    b'data: {"type":"ping"}', b'data: {"type":"message_stop"}', b'data: {"error":{"message":"no"}}', b"data: null", b"data: []",
    b"data: [{}]", b'data: "text"', b"data: 5", b"data: {", b"retry: 5",
)  # fmt: skip


def _other_value(rng: Random, module: Any, data: bytes) -> bytes:
    key = rng.choice(KEYS[module])
    begin = data.index(key) + len(key) + 1 if key in data else 1
    return data[:begin] + rng.choice(VALUES) + rng.choice((b"", b",", b"")) + data[begin:]


def _replaced_value(rng: Random, module: Any, data: bytes) -> bytes:
    old = rng.choice(
        (
            b'"word"',
            b'"c1"',
            b'"tiny"',
            b":0",
            b"null",
            b'"text_delta"',
            b'"content_block_delta"',
            b'{"content":"word"}',
        )
    )
    value = rng.choice(VALUES)
    return data.replace(old, b":" + value if old == b":0" else value, 1)


def _more(rng: Random, module: Any, data: bytes) -> bytes:
    pair = rng.choice(MORE_KEYS[module]) + rng.choice(VALUES)
    places = [place + 1 for place, byte in enumerate(data) if byte == ord("{")] or [0]
    place = rng.choice(places)
    return data[:place] + pair + b"," + data[place:]


def _repeated(rng: Random, module: Any, data: bytes) -> bytes:
    key = rng.choice(KEYS[module])
    value = rng.choice(
        (
            b'"other"',
            b"null",
            b"[]",
            b"{}",
            b"5",
            b'{"content":"other"}',
            b'{"type":"text_delta","text":"other"}',
        )
    )
    end = rng.choice([place for place, byte in enumerate(data) if byte == ord("}")] or [0])
    return data[:end] + b"," + key + b":" + value + data[end:]


def _escaped_key(rng: Random, module: Any, data: bytes) -> bytes:
    key = rng.choice(KEYS[module])
    escaped = b'"\\u%04x' % key[1] + key[2:]
    return data.replace(key, escaped, 1)


def _spaces(rng: Random, module: Any, data: bytes) -> bytes:
    mark = rng.choice((b":", b",", b"{", b"}", b"[", b"]"))
    space = rng.choice((b" ", b"\t", b"  ", b"\x0b", b"\xc2\xa0"))
    return data.replace(mark, rng.choice((mark + space, space + mark)), rng.choice((1, 9)))


def _cut(rng: Random, module: Any, data: bytes) -> bytes:
    place = rng.randrange(len(data) + 1)
    return data[:place] + data[place + rng.choice((1, 1, 3, 10_000)) :]


def _damaged(rng: Random, module: Any, data: bytes) -> bytes:
    place = rng.randrange(len(data) + 1)
    return data[:place] + rng.randbytes(rng.choice((1, 1, 2))) + data[place + rng.choice((0, 1)) :]


CHANGES: tuple[Callable[[Random, Any, bytes], bytes], ...] = (
    lambda rng, _, data: data.replace(b"word", rng.choice(TEXTS), 1),
    lambda rng, _, data: data.replace(b"word", rng.choice(TEXTS) + b"more" + rng.choice(TEXTS), 1),
    lambda rng, module, data: data.replace(*rng.choice(OTHER_KINDS[module]), 1),
    lambda rng, module, data: data.replace(*rng.choice(OTHER_KINDS[module]), 1),
    _other_value,
    _replaced_value,
    _replaced_value,
    _more,
    _more,
    _repeated,
    _escaped_key,
    _spaces,
    _cut,
    _damaged,
    lambda rng, _, data: data + rng.choice(BEHIND),
    lambda rng, _, data: rng.choice(BEHIND) + data,
)  # fmt: skip


def _event(rng: Random, module: Any) -> bytes:
    """One event without its empty line."""
    if rng.random() < 0.03:
        return rng.choice(LONE)
    data = PLAIN[module]
    for _ in range(rng.choice((0, 0, 0, 0, 0, 0, 0, 1, 1, 2))):
        data = rng.choice(CHANGES)(rng, module, data)
    lines = [rng.choice((b"data: ", b"data: ", b"data: ", b"data:", b"data:  ")) + data]
    odd = rng.random()
    if odd < 0.08:
        lines.insert(rng.randrange(2), rng.choice(LINES))
    elif odd < 0.1:
        comma = data.find(b",") + 1
        lines = [b"data: " + data[:comma], b"data: " + data[comma:]]
    elif odd < 0.102:
        lines += [b":"] * rng.choice((90, 110, 9_990))
    elif odd < 0.104:
        lines = [lines[0].replace(b"word", b"w" * rng.choice((60_000, 65_500, 70_000)))]
    if module is Anthropic and rng.random() < 0.5:
        lines.insert(0, b"event: content_block_delta")
    return b"\n".join(lines)


def events(module: Any, rng: Random) -> list[bytes]:
    """The events of a stream: its beginning is regular, so that what follows may be plain."""
    found = [FIRST[module] + b"\n\n", b"data: " + PLAIN[module] + b"\n\n"]
    ends = (
        b"\n\n",
        b"\n\n\n",
        b"\n\n\n\n",
        b"\r\n\r\n",
        b"\r\r",
        b"\n\r\n",
        b"\n",
        b"\n\n: c\n\n",
        b"\n\n\xef\xbb\xbf",
    )
    for _ in range(rng.randrange(4, 90)):
        (end,) = rng.choices(ends, (400, 8, 8, 3, 3, 3, 3, 8, 2))
        found.append(_event(rng, module) + end)
    if rng.random() < 0.1:
        line_end = rng.choice((b"\r\n", b"\r"))
        found = [event.replace(b"\n", line_end) for event in found]
    if rng.random() < 0.1:
        found[0] = b"\xef\xbb\xbf" + found[0]
    if rng.random() < 0.1:
        found[-1] = found[-1][: -rng.randrange(1, 5)]
    return found


def cut(rng: Random, pieces: list[bytes]) -> list[bytes]:
    """The same bytes, cut at most ends of pieces and at some other places."""
    keeps_end = rng.choice((0.0, 0.5, 0.9, 1.0))
    more = rng.choice((0.0, 0.0, 0.2, 1.0))
    found = [b""]
    for piece in pieces:
        begin = 0
        while rng.random() < more / (1 + more):
            end = rng.randint(begin, len(piece))
            found[-1] += piece[begin:end]
            found.append(b"")
            begin = end
        found[-1] += piece[begin:]
        if rng.random() < keeps_end:
            found.append(b"")
    return [piece for piece in found if piece]


def split(rng: Random, data: bytes) -> list[bytes]:
    """The bytes, cut at random places: into few or into many."""
    most = max(len(data) // 300, rng.choice((1, 8, 30, 100, 1000, 100_000)))
    found = []
    while data:
        size = rng.randint(1, most)
        found.append(data[:size])
        data = data[size:]
    return found


def framed(rng: Random, pieces: list[bytes]) -> tuple[bytes, list[bytes]]:
    """The head that says how they are framed, and the reads of the body; some are cut, damaged, or have more behind their end."""
    kind = rng.choices(("chunked", "counted", "close"), (8, 1, 1))[0]
    parts = cut(rng, pieces)
    if kind == "counted":
        length = sum(map(len, parts)) + rng.choice((0, 0, -3, 5))
        headers = b"content-length: %d" % max(0, length)
    elif kind == "close":
        headers = b"connection: close"
    else:
        headers = b"transfer-encoding: chunked"
        parts = [*map(chunk, parts), b"0\r\n\r\n"]
        odd = rng.random()
        place = rng.randrange(len(parts))
        if odd < 0.05:
            parts.append(b"more")
        elif odd < 0.1:
            del parts[place:]
        elif odd < 0.15:
            parts[place] += rng.choice((b"\r\n", b"x", b"0", b"\n"))
        elif odd < 0.2:
            parts[place] = rng.choice((b"0", b"0" * 20, b" ")) + parts[place]
        elif odd < 0.25:
            parts[place] = parts[place].replace(
                b"\r\n", rng.choice((b";x=1\r\n", b"\n", b" \t\r\n")), 1
            )
    head = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n%b\r\n\r\n" % headers
    return head, cut(rng, parts)


def wire(module: Any, rng: Random) -> tuple[bytes, list[bytes]]:
    """The head of a response, and the reads of its body."""
    return framed(rng, events(module, rng))
