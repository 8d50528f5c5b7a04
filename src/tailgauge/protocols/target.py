"""A target as the traffic sees it: one protocol, one SDK client, one pool of connections.

Rule: a protocol is a row of PROTOCOLS; adding one is adding a file and a row. An SDK is imported only where its
protocol is spoken: each costs a worker a second and tens of megabytes.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from contextlib import AbstractContextManager
from importlib import import_module
from typing import Any, Protocol, cast

import httpx2

from tailgauge.call import MESSAGE, Call
from tailgauge.protocols.api_keys import key_for, only_for_the_provider
from tailgauge.protocols.decoder import StreamDecoder
from tailgauge.protocols.settings import Target
from tailgauge.protocols.template import Drawing, Template, template
from tailgauge.transport.stopwatch import Stopwatch, origin_of

SSE = "sse"
PROTOCOLS = {
    "anthropic": "tailgauge.protocols.anthropic",
    "openai": "tailgauge.protocols.openai",
    SSE: "tailgauge.protocols.custom_sse",
}


class Wire(Protocol):
    """What a protocol offers: a module, or an object where the target describes the protocol itself."""

    def client(self, base_url: str, key: str, http_client: httpx2.Client) -> Any:
        """The official SDK's client, without retries of its own."""

    def send(self, sdk: Any, call: Call, model: str, call_id: str) -> AbstractContextManager[Any]:
        """One call; entering it sends the request."""

    def values(self, sdk: Any, call: Call, model: str) -> Mapping[str, Any] | None:
        """What the body of a message's request says, by name in any order; None: only `send` knows."""

    def on_event(self, decoder: StreamDecoder, name: bytes, data: bytes) -> None:
        """Meaning of one event of its stream."""

    def content_of(self, name: bytes, tree: Any) -> tuple[int, str] | None:
        """Kind and text of an event whose JSON is `tree`, if it does nothing but bring content; see `stencil`."""

    def on_whole(self, decoder: StreamDecoder, body: bytes) -> None:
        """Meaning of an answer that was asked for at once; raises ValueError and its like for anything else."""


class Endpoint:
    """Makes calls at one target; `url` is where it really is, of a simulated one too."""

    def __init__(self, url: str, target: Target, transport: Stopwatch) -> None:
        self.protocol, self.model = target.protocol, target.model
        module: Any = import_module(PROTOCOLS[target.protocol])
        self._wire = cast("Wire", module.App(target.sse) if target.protocol == SSE else module)
        self._transport, self._origin = transport, origin_of(httpx2.URL(url))
        self._drawing = Drawing()
        self._templates: dict[Hashable, Template | None] = {}
        key = key_for(url, target.protocol, target.api_key_env)
        with only_for_the_provider(url, target.protocol):
            self._sdk, self._draws = (
                self._wire.client(url, key, httpx2.Client(transport=under, trust_env=False))
                for under in (transport, self._drawing)
            )

    def send(self, call: Call, call_id: str) -> AbstractContextManager[Any]:
        """One call; entering it sends the request and returns with the response's head, or raises.

        The SDK builds the first request of each kind, and every one that no template gives; see `template`.
        """
        model = call.model or self.model
        values = self._wire.values(self._sdk, call, model) if call.kind == MESSAGE else None
        if values is not None and (like := self._template(call, model, values)) is not None:
            return self._transport.sent(self._origin, like.request(values, call_id))
        return self._wire.send(self._sdk, call, model, call_id)

    def _template(self, call: Call, model: str, values: Mapping[str, Any]) -> Template | None:
        """The template of calls of this kind: the same model, the same names of values, texts or blocks."""
        blocks = any(type(message["content"]) is list for message in values["messages"])
        kind = (model, call.stream, blocks, *values)
        if kind not in self._templates:

            def draw(call_id: str) -> bytes | None:
                return self._drawing.draw(self._wire.send(self._draws, call, model, call_id))

            self._templates[kind] = template(draw, values)
        return self._templates[kind]

    def decoder(self, call: Call) -> StreamDecoder:
        """A decoder for the answer to one call."""
        wire: Any = self._wire
        on_whole = None if call.stream else wire.on_whole
        return StreamDecoder(
            wire.on_event,
            on_whole=on_whole if call.kind == MESSAGE else wire.on_batch,
            content_of=wire.content_of,
            keep_text=call.keep_text,
            watch_field=call.watch_field,
            watch_chunks=call.watch_chunks,
            asked_tokens=call.max_tokens,
        )
