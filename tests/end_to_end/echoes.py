"""How a target may repeat a key: the forms of a text, the places of an answer, and how what was written may be read.

`python echoes.py PORT_FILE` serves until its standard input ends. Each protocol meets the echoes in their order, one per
request, after two fair answers for the preflight; below `/refused` every request is refused with the key.
"""

from __future__ import annotations

import contextlib
import html
import json
import re
import socketserver
import sys
import threading
from base64 import b64decode, b64encode, encodebytes, urlsafe_b64encode
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import ClassVar
from urllib.parse import quote, unquote

RUN = 8  # characters of a key in a row: no text may keep them
FAIR = 2  # requests of each path


def _named(key: str) -> str:
    """As HTML with the names of its punctuation."""
    names = {"-": "&#45;", "_": "&lowbar;", ".": "&period;", "+": "&plus;", "/": "&sol;", "=": "&equals;"}
    return "".join(names.get(one, one) for one in key)


def _every(form: str) -> Callable[[str], str]:
    """Every character in this form."""
    return lambda key: "".join(form.format(ord(one)) for one in key)


def _some(form: str) -> Callable[[str], str]:
    """Every other character in this form."""
    return lambda key: "".join(form.format(ord(one)) if at % 2 else one for at, one in enumerate(key))


def _base64(text: str) -> str:
    return b64encode(text.encode()).decode()


FORMS: dict[str, Callable[[str], str]] = {
    "plain": str, "upper": str.upper, "lower": str.lower, "title": str.title,
    "repr": lambda key: repr(key.encode()), "json": json.dumps,
    "its beginning": lambda key: f"{key[:11]}... is wrong", "its end": lambda key: f"...{key[-9:]} is wrong",
    "its middle": lambda key: f"<{key[3:14]}>", "in two": lambda key: f"{key[:12]} {key[12:]}",
    "base64": _base64, "base64 behind 1": lambda key: _base64(f"x{key}"), "base64 behind 2": lambda key: _base64(f"xy{key}z"),
    "base64 without =": lambda key: _base64(key).rstrip("="),
    "urlsafe": lambda key: urlsafe_b64encode(b"Bearer " + key.encode()).decode(),
    "base64 in lines": lambda key: encodebytes(b"authorization: " * 3 + key.encode() * 3).decode(),
    "part of base64": lambda key: _base64(key)[5:25], "base64 in json": lambda key: _base64(f"??>{key}").replace("/", "\\/"),
    "percent": _every("%{:02x}"), "PERCENT": _every("%{:02X}"), "percent, partly": _some("%{:02X}"),
    "percent, twice": lambda key: quote(_every("%{:02x}")(key)), "percent of base64": lambda key: quote(_base64(key), safe=""),
    "json escapes": _every("\\u00{:02x}"), "JSON escapes": _every("\\u00{:02X}"), "json escapes, partly": _some("\\u00{:02x}"),
    "json in json": lambda key: json.dumps(json.dumps(_every("\\u00{:02x}")(key))),
    "escapes in braces": _every("\\u{{{:x}}}"), "hex escapes": _every("\\x{:02x}"),
    "decimal entities": _every("&#{};"), "decimal, 3 digits": _every("&#{:03};"), "hex entities": _every("&#x{:x};"),
    "HEX entities": _every("&#X{:X};"), "entities, partly": _some("&#{};"), "named entities": _named,
    "entities in percent": lambda key: quote(_every("&#{};")(key)), "entity of entity": _every("&amp;#{};"),
    "zeros between": "\0".join, "unseen between": "\u200b".join, "soft hyphens": "\xad".join, "control": "\x1b".join,
    "lines between": "\r\n".join, "utf-16": lambda key: key.encode("utf-16").decode("utf-8", "replace"),
}  # fmt: skip


def readings(text: str) -> Iterator[str]:
    """A text as anybody may read it: decoded from percent, JSON, HTML, up to three times, and each of these from base64."""
    for _ in range(4):
        yield text
        for token in re.findall(r"[A-Za-z0-9_+/=\r\n-]{8,}", text):
            plain = re.sub(r"[\r\n]", "", token).replace("-", "+").replace("_", "/").rstrip("=")
            for begin in range(4):
                part = plain[begin:]
                with contextlib.suppress(ValueError):
                    yield b64decode(part[: len(part) // 4 * 4]).decode("latin-1")
        text = re.sub(
            r"\\u\{?0*([0-9a-fA-F]{2})\}?|\\x([0-9a-fA-F]{2})",
            lambda found: chr(int(found[1] or found[2], 16)),
            text,
        )
        after = re.sub(
            "[\0\u200b\xad\x1b\r\n]", "", html.unescape(unquote(text, "latin-1")).replace("\\", "")
        )
        text = after


def kept(key: str, text: str) -> list[str]:
    """The runs of a key's characters that are left in a text, however it is read."""
    low = [one.lower() for one in readings(text)]
    runs = [key[at : at + RUN].lower() for at in range(len(key) - RUN + 1)]
    return [run for run in runs if any(run in one for one in low)]


# --- places of an answer ----------------------------------------------------------------------------------------

HEAD = "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n"
CHUNKED = HEAD + "transfer-encoding: chunked\r\n\r\n"
Answer = Callable[["Received"], str]


class Received:
    """A request: the key that it brought, and how its protocol says something."""

    def __init__(self, head: str) -> None:
        found = re.search(r"(?im)^(?:x-api-key: |authorization: Bearer )(\S+)", head)
        self.key, self.is_anthropic = found[1] if found else "", "/messages" in head.partition("\r\n")[0]

    def opening(self, model: str = "m", identity: str = "id-1") -> str:
        if not self.is_anthropic:
            return data({"id": identity, "model": model, "choices": [{"delta": {"role": "assistant"}}]})
        usage = {"input_tokens": 9, "output_tokens": 1}
        return data({"type": "message_start", "message": {"id": identity, "model": model, "usage": usage}})

    def word(self, text: str) -> str:
        if not self.is_anthropic:
            return data({"choices": [{"delta": {"content": text}}]})
        return data(
            {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": text}}
        )

    def closing(self, reason: str = "stop", count: object = 2) -> str:
        if not self.is_anthropic:
            usage = {"prompt_tokens": 9, "completion_tokens": count}
            last = {"choices": [{"delta": {}, "finish_reason": reason}], "usage": usage}
            return data(last) + chunk("data: [DONE]\n\n") + "0\r\n\r\n"
        last = {"type": "message_delta", "delta": {"stop_reason": reason}, "usage": {"output_tokens": count}}
        return data(last) + data({"type": "message_stop"}) + "0\r\n\r\n"

    def fair(self, *headers: str, between: str = "") -> str:
        """A good answer, but for these headers and events."""
        head = HEAD + "".join(f"{one}\r\n" for one in headers) + "transfer-encoding: chunked\r\n\r\n"
        return head + self.opening() + self.word("a") + between + self.closing()


def chunk(text: str) -> str:
    return f"{len(text.encode('latin-1')):x}\r\n{text}\r\n"


def data(tree: object) -> str:
    return chunk(f"data: {json.dumps(tree)}\n\n")


def whole(status: int, body: str, *headers: str, kind: str = "application/json") -> str:
    size = len(body.encode("utf-8"))
    lines = "".join(f"{one}\r\n" for one in (*headers, f"content-type: {kind}", f"content-length: {size}"))
    return f"HTTP/1.1 {status} No\r\n{lines}\r\n" + body.encode("utf-8").decode("latin-1")


def error(text: str, kind: str = "bad") -> str:
    return json.dumps({"type": "error", "error": {"type": kind, "message": text}})


def cut(at: int, key: str) -> str:
    """The key where a text of so many characters would be cut in it."""
    return "y" * (at - 12) + key


PLACES: dict[str, Answer] = {
    "status line": lambda asked: f"HTTP {asked.key}\r\n\r\n",
    "status line, cut": lambda asked: f"HTTP {cut(75, asked.key)}\r\n\r\n",
    "reason": lambda asked: f"HTTP/1.1 401 {asked.key}\r\ncontent-length: 0\r\n\r\n",
    "header line": lambda asked: f"{HEAD}{asked.key}\r\n\r\n",
    "header line, cut": lambda asked: f"{HEAD}{cut(80, asked.key)}\r\n\r\n",
    "content-length": lambda asked: f"{HEAD}content-length: {asked.key}\r\n\r\n",
    "content-length, cut": lambda asked: f"{HEAD}content-length: {cut(40, asked.key)}\r\n\r\n",
    "chunk size": lambda asked: f"{CHUNKED}{asked.key}\r\n",
    "chunk size, cut": lambda asked: f"{CHUNKED}{cut(40, asked.key)}\r\n",
    "behind a chunk": lambda asked: f"{CHUNKED}1\r\na{asked.key}\r\n",
    "behind a chunk, cut": lambda asked: f"{CHUNKED}1\r\na{cut(40, asked.key)}\r\n",
    "content-encoding": lambda asked: f"{HEAD}content-encoding: {asked.key}\r\n\r\n",
    "content-encoding, cut": lambda asked: f"{HEAD}content-encoding: {cut(100, asked.key)}\r\n\r\n",
    "content-type": lambda asked: whole(200, "", kind=asked.key),
    "location": lambda asked: whole(307, "", f"location: /{asked.key}", f"set-cookie: k={asked.key}"),
    "server-timing": lambda asked: asked.fair(f"server-timing: {asked.key};dur=1, {cut(100, asked.key)};dur=2;desc={asked.key}"),
    "limits": lambda asked: asked.fair(f"x-ratelimit-{asked.key}: {asked.key}", f"x-ratelimit-remaining-tokens: {cut(200, asked.key)}"),
    "limit's name, cut": lambda asked: asked.fair(f"x-ratelimit-{cut(188, asked.key.upper())}: 1"),
    "request-id": lambda asked: asked.fair(f"request-id: {cut(200, asked.key)}", f"x-request-id: {asked.key}"),
    "retry-after": lambda asked: whole(429, error(asked.key), f"retry-after: {asked.key}", f"x-should-retry: {asked.key}"),
    "interim": lambda asked: f"HTTP/1.1 103 {asked.key}\r\nlink: {asked.key}\r\n\r\n" + asked.fair(),
    "trailer": lambda asked: asked.fair().removesuffix("\r\n") + f"x-trailer: {asked.key}\r\n\r\n",
    "error": lambda asked: whole(401, error(f"wrong: {asked.key}", asked.key)),
    "error, cut": lambda asked: whole(400, error(cut(1990, asked.key), cut(88, asked.key))),
    "error's headers": lambda asked: whole(500, json.dumps({"error": {"headers": {"authorization": f"Bearer {asked.key}"}}})),
    "page": lambda asked: whole(502, f"<html><p title={asked.key}>{asked.key}</p>", kind="text/html"),
    "page for a stream": lambda asked: whole(200, f"<html><p>{asked.key}</p>", kind="text/html"),
    "basic": lambda asked: whole(407, f"Basic {_base64('user:' + asked.key)}", kind="text/plain"),
    "error event": lambda asked: asked.fair(between=chunk(f"event: error\ndata: {error(asked.key, asked.key)}\n\n")),
    "error event, cut": lambda asked: asked.fair(between=chunk(f"event: error\ndata: {error(cut(1995, asked.key))}\n\n")),
    "event's name": lambda asked: asked.fair(between=chunk(f"event: {asked.key}\ndata: {{\n\n")),
    "bad event": lambda asked: asked.fair(between=chunk(f"data: {asked.key}\n\n")),
    "bad event, cut": lambda asked: asked.fair(between=chunk(f"data: {cut(200, asked.key)}\n\n")),
    "comment": lambda asked: asked.fair(between=chunk(f": {asked.key}\nid: {asked.key}\nretry: {asked.key}\n\n")),
    "over two chunks": lambda asked: asked.fair(between=chunk(f"event: error\ndata: {asked.key[:9]}") + chunk(f"{asked.key[9:]}\n\n")),
    "model": lambda asked: CHUNKED + asked.opening(asked.key, asked.key) + asked.word("a") + asked.closing(),
    "model, cut": lambda asked: CHUNKED + asked.opening(cut(200, asked.key), cut(200, asked.key)) + asked.word("a") + asked.closing(),
    "stop reason": lambda asked: CHUNKED + asked.opening() + asked.word("a") + asked.closing(asked.key),
    "content": lambda asked: CHUNKED + asked.opening() + asked.word(asked.key) + asked.closing(),
    "usage": lambda asked: CHUNKED + asked.opening() + asked.word("a") + asked.closing(count=cut(200, asked.key)),
}  # fmt: skip


def refused(form: str) -> Answer:
    """The key in a form, as the message of an error."""
    return lambda asked: whole(400, error(f"No: {FORMS[form](asked.key)} & so on"))


ECHOES = {**PLACES, **{f"error as {form}": refused(form) for form in FORMS}}


class Handler(socketserver.StreamRequestHandler):
    """One connection: each request meets the next echo of its path."""

    served: ClassVar[Counter[str]] = Counter()
    lock = threading.Lock()

    def handle(self) -> None:
        with contextlib.suppress(OSError):
            while first := self.rfile.readline():
                lines = [first, *iter(self.rfile.readline, b"\r\n")]
                head = b"".join(lines).decode("latin-1")
                length = re.search(r"(?i)content-length: (\d+)", head)
                self.rfile.read(int(length[1]) if length else 0)
                self.wfile.write(self._answer(head.split()[1], Received(head)).encode("latin-1"))

    def _answer(self, path: str, asked: Received) -> str:
        if path.startswith("/refused"):
            listed = {"data": [{"id": asked.key}, {"id": _base64(asked.key)}]}
            return whole(200, json.dumps(listed)) if path.endswith("models") else PLACES["error, cut"](asked)
        with self.lock:
            number = Handler.served[path] - FAIR
            Handler.served[path] += 1
        return asked.fair() if number < 0 else list(ECHOES.values())[number % len(ECHOES)](asked)


def main() -> None:
    """Serve on loopback; write the port, and at the end what was served."""
    socketserver.ThreadingTCPServer.daemon_threads = True
    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        Path(sys.argv[1]).write_text(str(server.server_address[1]))
        sys.stdin.read()
        print(json.dumps(Handler.served))
        server.shutdown()


if __name__ == "__main__":
    main()
