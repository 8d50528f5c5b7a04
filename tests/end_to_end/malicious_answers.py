"""How a target may mean harm: behaviours by name, each what is sent in answer to one request.

Rule: a behaviour yields bytes to send, or seconds to wait. It may go on for ever: it ends when the client hangs up.
"""

from __future__ import annotations

import gzip
import itertools
import json
import random
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

MARK = "pwned"  # what a script of ours would leave behind; harmless where it stands as text
EVIL = (
    f"</script><script>window.{MARK}=1;fetch('http://evil.invalid/a')</script>"
    f"<img src=x onerror=\"window.{MARK}=2;fetch('http://evil.invalid/b')\">"
    f"'\"--><svg onload=window.{MARK}=3>&lt;b&gt;{{{{7*7}}}}]]>"
    f"\x1b[31m\x1b]0;{MARK}\x07\x9b2J\u202eevil\u2066|`x`[l](javascript:window.{MARK}=4)"
)
EVIL_BYTES = EVIL.encode("latin-1", "replace")  # for headers, which know no other characters
FLOOD = b"x" * 65_536
HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n"
CHUNKED = HEAD + b"transfer-encoding: chunked\r\n\r\n"
END = b"0\r\n\r\n"

Sent = Iterator[bytes | float]


@dataclass(frozen=True)
class Request:
    """A request as it came: its protocol, and the key that it brought."""

    protocol: str
    key: str

    def event(self, **tree: Any) -> bytes:
        return chunk(b"data: %b\n\n" % json.dumps(tree).encode())

    def word(self, text: str) -> bytes:
        """One piece of content."""
        if self.protocol == "openai":
            return self.event(id="c-1", model="m", choices=[{"index": 0, "delta": {"content": text}}])
        return self.event(type="content_block_delta", index=0, delta={"type": "text_delta", "text": text})

    def opening(self, model: str = "m") -> bytes:
        if self.protocol == "openai":
            return self.event(id="c-1", model=model, choices=[{"index": 0, "delta": {"role": "assistant"}}])
        usage = {"input_tokens": 32, "output_tokens": 1}
        message = {
            "id": "m-1",
            "type": "message",
            "role": "assistant",
            "model": model,
            "content": [],
            "usage": usage,
        }
        return self.event(type="message_start", message=message)

    def closing(self, reason: str = "stop", usage: Any = None) -> bytes:
        """The end of an answer, with a `usage` of any kind, given as JSON text."""
        summary = usage or (
            '{"output_tokens": 2}'
            if self.protocol == "anthropic"
            else '{"prompt_tokens": 32, "completion_tokens": 2}'
        )
        if self.protocol == "openai":
            last = {
                "id": "c-1",
                "model": "m",
                "choices": [{"index": 0, "delta": {}, "finish_reason": reason}],
                "usage": 0,
            }
            end = chunk(b"data: [DONE]\n\n")
        else:
            last = {"type": "message_delta", "delta": {"stop_reason": reason}, "usage": 0}
            end = self.event(type="message_stop")
        summary = json.dumps(last).replace('"usage": 0', f'"usage": {summary}')
        return chunk(b"data: %b\n\n" % summary.encode()) + end + END

    def count(self, value: str) -> str:
        """A usage whose output tokens are this JSON text."""
        return f'{{"{"completion_tokens" if self.protocol == "openai" else "output_tokens"}": {value}}}'


def chunk(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data)


def whole(status: int, body: bytes, *headers: bytes, kind: bytes = b"application/json") -> bytes:
    summary = b"".join(header + b"\r\n" for header in headers)
    return b"HTTP/1.1 %d No\r\ncontent-type: %b\r\ncontent-length: %d\r\n%b\r\n%b" % (
        status,
        kind,
        len(body),
        summary,
        body,
    )


def error(text: str, kind: str = "bad") -> bytes:
    return json.dumps({"type": "error", "error": {"type": kind, "message": text}}).encode()


# --- behaviours, by name ----------------------------------------------------------------------------------------


def fair(asked: Request) -> Sent:
    yield CHUNKED + asked.opening()
    for text in ("two ", "text"):
        yield 0.01
        yield asked.word(text)
    yield asked.closing()


def forever(
    first: bytes, again: bytes | Callable[[Request], bytes], every_s: float = 0
) -> Callable[[Request], Sent]:
    """`first`, then `again` and again."""

    def sent(asked: Request) -> Sent:
        yield first
        more = again if isinstance(again, bytes) else again(asked)
        while True:
            yield more
            if every_s:
                yield every_s

    return sent


def once(answer: Callable[[Request], bytes] | bytes) -> Callable[[Request], Sent]:
    """One answer, whole."""

    def sent(asked: Request) -> Sent:
        yield answer if isinstance(answer, bytes) else answer(asked)

    return sent


def summary(usage: Callable[[Request], str]) -> Callable[[Request], Sent]:
    """A fair answer, but for its usage."""
    return once(lambda asked: CHUNKED + asked.opening() + asked.word("a") + asked.closing(usage=usage(asked)))


def within(data: bytes) -> Callable[[Request], Sent]:
    """A fair answer with this event in it."""
    return once(
        lambda asked: (
            CHUNKED + asked.opening() + asked.word("a") + chunk(b"data: " + data + b"\n\n") + asked.closing()
        )
    )


def script(asked: Request) -> Sent:
    """A script wherever a text may stand in an answer that is fair otherwise."""
    names = ("anthropic-ratelimit-requests-remaining", "x-ratelimit-remaining-tokens", "request-id", "x-request-id",
             "retry-after", "server", "keep-alive", "x-ratelimit-" + "z" * 9000)  # fmt: skip
    headers = b"".join(name.encode() + b": " + EVIL_BYTES + b"\r\n" for name in names)
    headers += b"x-ratelimit-%b: 1\r\n" % EVIL_BYTES.replace(b":", b"").replace(b" ", b"")
    headers += b'server-timing: <script>;dur=1, "%b;dur=2\r\n' % EVIL_BYTES
    yield HEAD + headers + b"transfer-encoding: chunked\r\n\r\n"
    yield (
        asked.opening(EVIL)
        + chunk(b"event: %b\ndata: {}\n\n" % EVIL_BYTES)
        + asked.word(EVIL)
        + asked.closing(EVIL)
    )


def script_error(status: int) -> Callable[[Request], Sent]:
    return once(whole(status, error(EVIL, EVIL), b"request-id: " + EVIL_BYTES, b"retry-after: " + EVIL_BYTES))


def script_event(asked: Request) -> Sent:
    yield CHUNKED + asked.opening() + chunk(b"event: error\ndata: " + error(EVIL, EVIL) + b"\n\n") + END


def echo(asked: Request) -> Sent:
    """The key, wherever a text may stand."""
    key = asked.key.encode()
    yield (
        HEAD
        + b"request-id: %b\r\nx-ratelimit-limit-tokens: %b\r\nx-ratelimit-%b: 1\r\nserver-timing: %b;dur=1\r\n"
        % (key, key, key, key)
    )
    yield (
        b"transfer-encoding: chunked\r\n\r\n"
        + asked.opening(asked.key)
        + asked.word(asked.key)
        + asked.closing(asked.key)
    )


def echo_error(asked: Request) -> Sent:
    """The key in an error, with a script, and cut in the middle by any limit of length."""
    text = f"{EVIL} {asked.key} " * 40
    yield whole(401, error(text, asked.key), b"request-id: " + asked.key.encode())


def echo_event(asked: Request) -> Sent:
    text = "x" * 1990 + asked.key
    yield CHUNKED + asked.opening() + chunk(b"data: " + error(text, asked.key) + b"\n\n") + END


def bomb(form: int) -> bytes:
    """Half a gigabyte of nothing in half a megabyte, as zlib (15) or gzip (31): a block that repeats."""
    packed = zlib.compressobj(9, zlib.DEFLATED, form)
    first, again = (packed.compress(FLOOD * 256) + packed.flush(zlib.Z_FULL_FLUSH) for _ in range(2))
    return first + again * 31 + packed.flush()


def deep(depth: int = 10_000) -> bytes:
    return (
        b'{"choices":'
        + b"[" * depth
        + b"]" * depth
        + b',"type":"message_delta","delta":'
        + b"[" * depth
        + b"]" * depth
        + b"}"
    )


def late(first: bytes, pause_s: float) -> Callable[[Request], Sent]:
    """A head, byte by byte."""

    def sent(_: Request) -> Sent:
        for number in itertools.count():
            yield first[number : number + 1] or b"a"
            yield pause_s

    return sent


def noise(_: Request) -> Sent:
    while True:
        yield random.Random(1).randbytes(65_536)


BOMB, BOMB_CHARSET = bomb(31), bomb(15)
DUPLICATED = b'{"type":"ping","type":"ping","choices":[],"choices":[],"usage":null,"usage":null,"usage":{"output_tokens":1}}'
BEHAVIOURS: dict[str, Callable[[Request], Sent]] = {
    # heads
    "big_header": forever(HEAD + b"x-big: ", FLOOD),
    "many_headers": forever(HEAD, b"x-a: b\r\n" * 1000),
    "few_bytes_many_headers": once(HEAD + b"a:b\r\n" * 9000 + b"\r\n"),
    "interim": forever(b"", b"HTTP/1.1 100 Continue\r\n\r\n" * 1000),
    "slow_interim": forever(b"", b"HTTP/1.1 103 Early Hints\r\nlink: x\r\n\r\n", 0.005),
    "slow_head": late(HEAD + b"x-slow: ", 0.01),
    "noise": noise,
    "redirect": once(whole(307, b"", b"location: /redirect/v1/messages")),
    # bodies without end
    "endless_error": forever(b"HTTP/1.1 500 Oops\r\n\r\n", FLOOD),
    "endless_line": forever(HEAD + b"\r\ndata: ", FLOOD),
    "endless_event": forever(HEAD + b"\r\n", b"data: x\n" * 8000),
    "endless_comments": forever(HEAD + b"\r\n", b": keep-alive\n\n" * 4000),
    "endless_text": forever(CHUNKED, lambda asked: asked.opening() + asked.word("a") * 500),
    "endless_long_lines": forever(CHUNKED, lambda asked: asked.opening() + asked.word("a" * 60_000)),
    "endless_trickle": forever(CHUNKED, lambda asked: asked.word("a"), 0.02),
    "endless_pings": forever(CHUNKED, chunk(b': x\n\nevent: ping\ndata: {"type": "ping"}\n\n'), 0.02),
    "endless_bad_events": forever(CHUNKED, chunk(b"data: {\n\n" * 5000)),
    "endless_chunk_line": forever(CHUNKED + b"1", FLOOD),
    "endless_trailers": forever(CHUNKED + b"0\r\n", b"x-a: b\r\n" * 4000),
    "tiny_chunks": forever(CHUNKED, b"1\r\na\r\n" * 8000),
    "huge_chunk": forever(CHUNKED + b"FFFFFFFFFFFFFFFF\r\n", b": x\n\n" * 8000),
    # what would be unpacked
    "bomb": once(whole(200, BOMB, b"content-encoding: gzip", kind=b"text/event-stream")),
    "bomb_error": once(whole(400, BOMB, b"content-encoding: gzip")),
    "bomb_by_charset": once(whole(400, BOMB_CHARSET, kind=b"application/json; charset=zlib")),
    "small_gzip": once(whole(200, gzip.compress(b"data: {}\n\n"), b"content-encoding: gzip", kind=b"text/event-stream")),
    # values that cannot be
    "not_utf8": once(lambda asked: CHUNKED + asked.opening() + asked.word("?").replace(b"?", b"\xff") + asked.closing()),
    "half_characters": once(lambda asked: CHUNKED + asked.opening("\ud800") + asked.word("\udfff") + asked.closing("\ud800")),
    "negative": summary(lambda asked: asked.count("-5")),
    "absurd": summary(lambda asked: asked.count("1" + "0" * 30)),
    "very_long": summary(lambda asked: asked.count("9" * 100_000)),
    "text": summary(lambda asked: asked.count('"' + "9" * 100_000 + '"')),
    "not_a_number": summary(lambda asked: asked.count("NaN")),
    "infinite": summary(lambda asked: asked.count("1e999")),
    "usage_is_a_list": summary(lambda _: "[[1]]"),
    "deep": within(deep()),
    "duplicated": within(DUPLICATED),
    "long_event": within(b'{"type":"ping","x":"' + FLOOD * 300 + b'"}'),
    "array": within(b"[1]"),
    "page": once(whole(200, EVIL.encode(), kind=b"text/html")),
    # scripts
    "script": script,
    "script_400": script_error(400),
    "script_429": script_error(429),
    "script_500": script_error(500),
    "script_event": script_event,
    # keys
    "echo": echo,
    "echo_error": echo_error,
    "echo_event": echo_event,
}  # fmt: skip
