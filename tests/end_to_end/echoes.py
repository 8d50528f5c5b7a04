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
from string import ascii_lowercase, ascii_uppercase, digits
from typing import ClassVar
from unicodedata import category, normalize
from urllib.parse import quote, unquote

from hostile import answers

RUN = 8  # characters of a key in a row: no text may keep them
FAIR = 2  # requests of each path


def _named(key: str) -> str:
    """As HTML with the names of its punctuation."""
    names = {
        "-": "&#45;",
        "_": "&lowbar;",
        ".": "&period;",
        "+": "&plus;",
        "/": "&sol;",
        "=": "&equals;",
    }
    return "".join(names.get(one, one) for one in key)


def _every(form: str) -> Callable[[str], str]:
    """Every character in this form."""
    return lambda key: "".join(form.format(ord(one)) for one in key)


def _some(form: str) -> Callable[[str], str]:
    """Every other character in this form."""
    return lambda key: "".join(
        form.format(ord(one)) if at % 2 else one for at, one in enumerate(key)
    )


def _shifted(key: str) -> str:
    """In letters and digits of full width, as Japanese text has them."""
    return "".join(chr(ord(one) + 0xFEE0) if "!" <= one <= "~" else one for one in key)


def _bold(key: str) -> str:
    """In the bold letters of mathematics."""
    bold = {**dict(zip(ascii_uppercase, range(0x1D400, 0x1D41A), strict=True)),
            **dict(zip(ascii_lowercase, range(0x1D41A, 0x1D434), strict=True)),
            **dict(zip(digits, range(0x1D7CE, 0x1D7D8), strict=True))}  # fmt: skip
    return "".join(chr(bold[one]) if one in bold else one for one in key)


def _circled(key: str) -> str:
    """In letters with a circle."""
    circled = {**dict(zip(ascii_uppercase, range(0x24B6, 0x24D0), strict=True)),
               **dict(zip(ascii_lowercase, range(0x24D0, 0x24EA), strict=True))}  # fmt: skip
    return "".join(chr(circled[one]) if one in circled else one for one in key)


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
    "variation selectors": "\ufe0f".join, "word joiners": "\u2060".join, "byte order marks": "\ufeff".join,
    "directions": "\u202e".join, "marks of direction": "\u200e".join, "line separators": "\u2028".join, "accents": "\u0301".join,
    "vowel separators": "\u180e".join, "joiners": "\u200d".join, "tabs between": "\t".join, "C1 controls": "\x9b".join,
    "full width": _shifted, "full width in json": lambda key: json.dumps(_shifted(key)), "bold letters": _bold,
    "full width entities": lambda key: "".join(f"&#{ord(one)};" for one in _shifted(key)), "circled letters": _circled,
    "full width, partly": lambda key: "".join(_shifted(one) if at % 3 else one for at, one in enumerate(key)),
    "entities and percent": lambda key: "".join(f"&#{ord(one)};" if at % 2 else f"%{ord(one):02x}" for at, one in enumerate(key)),
    "escapes, twice": lambda key: json.dumps(_every("\\x{:02x}")(key)), "query": lambda key: f"?key={quote(key, safe='')}&a=1",
    "header": lambda key: f"Authorization: Bearer {key}", "in a path": lambda key: f"https://h/v1/{key}/x", "repeated": lambda key: key * 2,
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
            r"\\u([0-9a-fA-F]{4})|\\u\{0*([0-9a-fA-F]+)\}|\\x([0-9a-fA-F]{2})",
            lambda found: chr(int(found[1] or found[2] or found[3], 16)),
            text,
        )
        after = normalize("NFKD", html.unescape(unquote(text, "latin-1")).replace("\\", ""))
        text = "".join(one for one in after if category(one) not in {"Cc", "Cf", "Mn", "Zl", "Zp"})


def kept(key: str, text: str) -> list[str]:
    """The runs of a key's characters that are left in a text, however it is read."""
    low = [one.lower() for one in readings(text)]
    runs = [key[at : at + RUN].lower() for at in range(len(key) - RUN + 1)]
    return [run for run in runs if any(run in one for one in low)]


# --- places of an answer ----------------------------------------------------------------------------------------

HEAD = answers.HEAD.decode()
CHUNKED = answers.CHUNKED.decode()
Answer = Callable[["Request"], str]


class Request:
    """A request: the key that it brought, and how its protocol says something."""

    def __init__(self, head: str) -> None:
        found = re.search(r"(?im)^(?:x-api-key: |authorization: Bearer )(\S+)", head)
        self.key = found[1] if found else ""
        is_anthropic = "/messages" in head.partition("\r\n")[0]
        self._asked = answers.Request("anthropic" if is_anthropic else "openai", self.key)

    def opening(self, model: str = "m", identity: str = "id-1") -> str:
        return self._asked.opening(model, identity).decode()

    def word(self, text: str) -> str:
        return self._asked.word(text).decode()

    def closing(self, reason: str = "stop", count: object = 2) -> str:
        return self._asked.closing(reason, self._asked.count(json.dumps(count))).decode()

    def fair(self, *headers: str, between: str = "") -> str:
        """A good answer, but for these headers and events."""
        lines = "".join(f"{one}\r\n" for one in headers)
        head = f"{HEAD}{lines}transfer-encoding: chunked\r\n\r\n"
        return head + self.opening() + self.word("a") + between + self.closing()


def chunk(text: str) -> str:
    return answers.chunk(text.encode("latin-1")).decode("latin-1")


def whole(status: int, body: str, *headers: str, kind: str = "application/json") -> str:
    lines = [one.encode() for one in headers]
    return answers.whole(status, body.encode(), *lines, kind=kind.encode()).decode("latin-1")


def error(text: str, kind: str = "bad") -> str:
    return answers.error(text, kind).decode()


def cut(at: int, key: str) -> str:
    """The key where a text of so many characters would be cut in it."""
    return "y" * (at - 12) + key


PLACES: dict[str, Answer] = {
    "status line": lambda request: f"HTTP {request.key}\r\n\r\n",
    "status line, cut": lambda request: f"HTTP {cut(75, request.key)}\r\n\r\n",
    "reason": lambda request: f"HTTP/1.1 401 {request.key}\r\ncontent-length: 0\r\n\r\n",
    "header line": lambda request: f"{HEAD}{request.key}\r\n\r\n",
    "header line, cut": lambda request: f"{HEAD}{cut(80, request.key)}\r\n\r\n",
    "content-length": lambda request: f"{HEAD}content-length: {request.key}\r\n\r\n",
    "content-length, cut": lambda request: f"{HEAD}content-length: {cut(40, request.key)}\r\n\r\n",
    "chunk size": lambda request: f"{CHUNKED}{request.key}\r\n",
    "chunk size, cut": lambda request: f"{CHUNKED}{cut(40, request.key)}\r\n",
    "behind a chunk": lambda request: f"{CHUNKED}1\r\na{request.key}\r\n",
    "behind a chunk, cut": lambda request: f"{CHUNKED}1\r\na{cut(40, request.key)}\r\n",
    "content-encoding": lambda request: f"{HEAD}content-encoding: {request.key}\r\n\r\n",
    "content-encoding, cut": lambda request: f"{HEAD}content-encoding: {cut(100, request.key)}\r\n\r\n",
    "content-type": lambda request: whole(200, "", kind=request.key),
    "location": lambda request: whole(307, "", f"location: /{request.key}", f"set-cookie: k={request.key}"),
    "server-timing": lambda request: request.fair(f"server-timing: {request.key};dur=1, {cut(100, request.key)};dur=2;desc={request.key}"),
    "limits": lambda request: request.fair(f"x-ratelimit-{request.key}: {request.key}", f"x-ratelimit-remaining-tokens: {cut(200, request.key)}"),
    "limit's name, cut": lambda request: request.fair(f"x-ratelimit-{cut(188, request.key.upper())}: 1"),
    "request-id": lambda request: request.fair(f"request-id: {cut(200, request.key)}", f"x-request-id: {request.key}"),
    "retry-after": lambda request: whole(429, error(request.key), f"retry-after: {request.key}", f"x-should-retry: {request.key}"),
    "interim": lambda request: f"HTTP/1.1 103 {request.key}\r\nlink: {request.key}\r\n\r\n" + request.fair(),
    "trailer": lambda request: request.fair().removesuffix("\r\n") + f"x-trailer: {request.key}\r\n\r\n",
    "error": lambda request: whole(401, error(f"wrong: {request.key}", request.key)),
    "error, cut": lambda request: whole(400, error(cut(1990, request.key), cut(88, request.key))),
    "error's headers": lambda request: whole(500, json.dumps({"error": {"headers": {"authorization": f"Bearer {request.key}"}}})),
    "page": lambda request: whole(502, f"<html><p title={request.key}>{request.key}</p>", kind="text/html"),
    "page for a stream": lambda request: whole(200, f"<html><p>{request.key}</p>", kind="text/html"),
    "basic": lambda request: whole(407, f"Basic {_base64('user:' + request.key)}", kind="text/plain"),
    "error event": lambda request: request.fair(between=chunk(f"event: error\ndata: {error(request.key, request.key)}\n\n")),
    "error event, cut": lambda request: request.fair(between=chunk(f"event: error\ndata: {error(cut(1995, request.key))}\n\n")),
    "event's name": lambda request: request.fair(between=chunk(f"event: {request.key}\ndata: {{\n\n")),
    "bad event": lambda request: request.fair(between=chunk(f"data: {request.key}\n\n")),
    "bad event, cut": lambda request: request.fair(between=chunk(f"data: {cut(200, request.key)}\n\n")),
    "comment": lambda request: request.fair(between=chunk(f": {request.key}\nid: {request.key}\nretry: {request.key}\n\n")),
    "over two chunks": lambda request: request.fair(between=chunk(f"event: error\ndata: {request.key[:9]}") + chunk(f"{request.key[9:]}\n\n")),
    "model": lambda request: CHUNKED + request.opening(request.key, request.key) + request.word("a") + request.closing(),
    "model, cut": lambda request: CHUNKED + request.opening(cut(200, request.key), cut(200, request.key)) + request.word("a") + request.closing(),
    "stop reason": lambda request: CHUNKED + request.opening() + request.word("a") + request.closing(request.key),
    "content": lambda request: CHUNKED + request.opening() + request.word(request.key) + request.closing(),
    "usage": lambda request: CHUNKED + request.opening() + request.word("a") + request.closing(count=cut(200, request.key)),
}  # fmt: skip


def refused(form: str) -> Answer:
    """The key in a form, as the message of an error."""
    return lambda request: whole(400, error(f"No: {FORMS[form](request.key)} & so on"))


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
                body, request = (
                    self.rfile.read(int(length[1]) if length else 0).decode(),
                    Request(head),
                )
                with self.lock:
                    Handler.served["with the key in the body"] += bool(
                        request.key and request.key in body
                    )
                self.wfile.write(self._answer(head.split()[1], request).encode("latin-1"))

    def _answer(self, path: str, request: Request) -> str:
        if path.startswith("/refused"):
            listed = {"data": [{"id": request.key}, {"id": _base64(request.key)}]}
            return (
                whole(200, json.dumps(listed))
                if path.endswith("models")
                else PLACES["error, cut"](request)
            )
        with self.lock:
            number = Handler.served[path] - FAIR
            Handler.served[path] += 1
        return (
            request.fair() if number < 0 else list(ECHOES.values())[number % len(ECHOES)](request)
        )


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
