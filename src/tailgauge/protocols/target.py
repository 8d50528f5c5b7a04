"""A target as the traffic sees it: one protocol, one SDK client, one pool of connections.

The SDK builds each kind of request, twice, under two ids. A template of its line, headers and order of the body makes
the others, with another id and another body; it is used only if it gives the two byte for byte. Kinds whose template does
not are built by the SDK every time.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Hashable, Iterable, Mapping
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass
from typing import Any

import httpx2

from tailgauge.call import MESSAGE, Call, Prompt
from tailgauge.protocols.api_keys import key_for, only_for_the_provider
from tailgauge.protocols.decoder import StreamDecoder
from tailgauge.protocols.protocol import PLACEHOLDER_KEY, TargetSettings
from tailgauge.protocols.stencil import Stencils
from tailgauge.protocols.table import PROTOCOLS
from tailgauge.transport.exchange import Exchange
from tailgauge.transport.http1 import request_bytes
from tailgauge.transport.stopwatch import Stopwatch, origin_of

_IDS = ("a/0/0/0", "another/12/3/4")
_BLANK = b"\r\n\r\n"
_ENCODE = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"), allow_nan=False).encode


class Endpoint:
    """Makes calls at one target; `url` is where it really is, of a simulated one too."""

    def __init__(self, url: str, target: TargetSettings, transport: Stopwatch) -> None:
        self.protocol, self.model = target.protocol, target.model
        self._wire = PROTOCOLS[target.protocol](target, url)
        self._transport, self._origin = transport, origin_of(httpx2.URL(url))
        wire = self._wire
        self._stencils = None if wire.changing is None else Stencils(wire.on_event, wire.changing)
        self._capture = Capture()
        self._templates: dict[Hashable, Template | None] = {}
        key = key_for(url, target.protocol, target.api_key_env)
        with only_for_the_provider(url, target.protocol):
            self._sdk, self._unsent = (
                self._wire.client(url, key, httpx2.Client(transport=under, trust_env=False))
                for under in (transport, self._capture)
            )

    def send(self, call: Call, call_id: str, request: bytes | None = None) -> AbstractContextManager[Any]:
        """One call; entering it sends the request and returns with the response's head, or raises.

        The SDK builds the first request of each kind, and every one that no template gives. `request`: as `prepared`.
        """
        request = request or self.prepared(call, call_id)
        if request is not None:
            return self._transport.sent(self._origin, request)
        return self._wire.send(self._sdk, call, call.model or self.model, call_id)

    def rests(self) -> bool:
        """Whether there is an idle connection."""
        return self._transport.rests(self._origin)

    def send_at_once(self, request: bytes, exchange: Exchange) -> bool:
        """Send a prepared request without waiting for anything; False: nothing was done, use `send`."""
        return self._transport.send_at_once(exchange, self._origin, request)

    def prepared(self, call: Call, call_id: str) -> bytes | None:
        """A request by its template; None where there is none."""
        model = call.model or self.model
        body = self._wire.body(call, model) if call.kind == MESSAGE else None
        like = None if body is None else self._template(call, model, body)
        return None if body is None or like is None else like.request(body, call_id)

    def list_models(self) -> AbstractContextManager[Any] | None:
        """Request the target's list of models; None where the protocol has no such list."""
        return None if self._wire.sdk is None else self._sdk.models.with_streaming_response.list()

    def _template(self, call: Call, model: str, body: Mapping[str, Any]) -> Template | None:
        """The template of calls of this kind: the same model, the same keys of the body, texts or blocks."""
        blocks = any(type(message["content"]) is list for message in body["messages"])
        kind = (model, call.stream, blocks, *body)
        if kind not in self._templates:

            def capture(call_id: str) -> bytes | None:
                return self._capture.of(self._wire.send(self._unsent, call, model, call_id))

            self._templates[kind] = template(capture, body)
        return self._templates[kind]

    def decoder(self, call: Call) -> StreamDecoder:
        """A decoder for the answer to one call."""
        wire = self._wire
        on_whole = None if call.stream else wire.on_whole
        return StreamDecoder(
            wire.on_event,
            on_whole=on_whole if call.kind == MESSAGE else wire.on_job,
            kind=call.kind,
            stencils=self._stencils,
            keep_text=call.keep_text,
            watch_field=call.watch_field,
            watch_chunks=call.watch_chunks,
            max_tokens=call.max_tokens,
            obeys_max_tokens=wire.obeys_max_tokens,
        )


class Capture(httpx2.BaseTransport):
    """A transport under an SDK that keeps the request's bytes instead of sending them."""

    def __init__(self) -> None:
        self.captured: bytes | None = None

    def handle_request(self, request: httpx2.Request) -> httpx2.Response:
        """Keep it; to the SDK it was not sent."""
        self.captured = request_bytes(
            request.method, request.url.raw_path, request.headers.raw, request.read()
        )
        raise httpx2.ConnectError("captured, not sent", request=request)

    def of(self, opened: AbstractContextManager[Any]) -> bytes | None:
        """The bytes of a request; None if the SDK refused to build it."""
        self.captured = None
        with suppress(Exception), opened:
            raise AssertionError("a captured request was answered")
        return self.captured


def load_sdks(targets: Iterable[TargetSettings]) -> None:
    """Import the SDKs of these targets and build a request with each: up to a second, once for all workers forked later."""
    nowhere, capture = "http://127.0.0.1", Capture()
    for target in {target.protocol: target for target in targets}.values():
        wire = PROTOCOLS[target.protocol](target, nowhere)
        with only_for_the_provider(nowhere, target.protocol):
            sdk = wire.client(nowhere, PLACEHOLDER_KEY, httpx2.Client(transport=capture, trust_env=False))
        capture.of(wire.send(sdk, Call(Prompt.of("warm up"), 1), target.model, _IDS[0]))


@dataclass(frozen=True, slots=True)
class Template:
    """The head of a request around its id and its length, and the keys of the body in their order."""

    head: bytes
    behind_id: bytes
    names: tuple[str, ...]

    def request(self, body: Mapping[str, Any], call_id: str) -> bytes:
        """The request with this body."""
        text = _ENCODE({name: body[name] for name in self.names}).encode()
        return b"%b%b%b%d%b%b" % (self.head, call_id.encode("ascii"), self.behind_id, len(text), _BLANK, text)


def template(capture: Callable[[str], bytes | None], body: Mapping[str, Any]) -> Template | None:
    """A template of the requests that `capture` gives for an id and this body, if there is one."""
    first, second = map(capture, _IDS)
    if first is None:
        return None
    head, _, text = first.partition(_BLANK)
    before, call_id, behind = head.partition(_IDS[0].encode())
    length = b"%d" % len(text)
    if not call_id or not behind.lower().endswith(b"\r\ncontent-length: " + length):
        return None
    try:
        found = Template(before, behind.removesuffix(length), tuple(json.loads(text)))
        same = [found.request(body, call_id) for call_id in _IDS] == [first, second]
    except (ValueError, LookupError, AttributeError):
        return None
    return found if same else None
