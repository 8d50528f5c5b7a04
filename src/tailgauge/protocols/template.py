"""Requests like one that the SDK has built: its line, headers and order of the body, with another id and other values.

Rule: the SDK builds each kind of request, twice, under two ids; a template stands only if it gives both byte for byte.
Kinds whose template does not are built by the SDK every time.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass
from typing import Any

import httpx2

from tailgauge.transport.http1 import request_bytes

_IDS = ("a/0/0/0", "another/12/3/4")
_BLANK = b"\r\n\r\n"
_ENCODE = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"), allow_nan=False).encode


class Drawing(httpx2.BaseTransport):
    """A transport under an SDK that keeps the request's bytes instead of sending them."""

    def __init__(self) -> None:
        self.drawn: bytes | None = None

    def handle_request(self, request: httpx2.Request) -> httpx2.Response:
        """Keep it; to the SDK it was not sent."""
        self.drawn = request_bytes(request.method, request.url.raw_path, request.headers.raw, request.read())
        raise httpx2.ConnectError("drawn, not sent", request=request)

    def draw(self, opened: AbstractContextManager[Any]) -> bytes | None:
        """The bytes of a request; None if the SDK refused to build it."""
        self.drawn = None
        with suppress(Exception), opened:
            raise AssertionError("a drawn request was answered")
        return self.drawn


@dataclass(frozen=True, slots=True)
class Template:
    """The head of a request around its id and its length, and the names of the body's values in their order."""

    head: bytes
    behind_id: bytes
    names: tuple[str, ...]

    def request(self, values: Mapping[str, Any], call_id: str) -> bytes:
        """The request with these values, head and body."""
        body = _ENCODE({name: values[name] for name in self.names}).encode()
        return b"%b%b%b%d%b%b" % (self.head, call_id.encode("ascii"), self.behind_id, len(body), _BLANK, body)


def template(draw: Callable[[str], bytes | None], values: Mapping[str, Any]) -> Template | None:
    """A template of the requests that `draw` gives for an id and these values, if there is one."""
    first, second = map(draw, _IDS)
    if first is None:
        return None
    head, _, body = first.partition(_BLANK)
    before, call_id, behind = head.partition(_IDS[0].encode())
    length = b"%d" % len(body)
    if not call_id or not behind.lower().endswith(b"\r\ncontent-length: " + length):
        return None
    try:
        found = Template(before, behind.removesuffix(length), tuple(json.loads(body)))
        same = [found.request(values, call_id) for call_id in _IDS] == [first, second]
    except (ValueError, LookupError, AttributeError):
        return None
    return found if same else None
