"""A target as the traffic sees it: one protocol, one SDK client, one pool of connections.

Rule: a protocol is a row of PROTOCOLS; adding one is adding a file and a row. An SDK is imported only where its
protocol is spoken: each costs a worker a second and tens of megabytes.
"""

from __future__ import annotations

from contextlib import AbstractContextManager
from importlib import import_module
from typing import Any, Protocol, cast

import httpx2

from tailgauge.call import MESSAGE, Call
from tailgauge.endpoints.decoder import StreamDecoder
from tailgauge.endpoints.keys import key_for, only_for_the_provider
from tailgauge.target_tables import Target
from tailgauge.transport.stopwatch import Stopwatch

SSE = "sse"
PROTOCOLS = {
    "anthropic": "tailgauge.endpoints.anthropic",
    "openai": "tailgauge.endpoints.openai",
    SSE: "tailgauge.endpoints.sse_app",
}


class Wire(Protocol):
    """What a protocol offers: a module, or an object where the target describes the protocol itself."""

    def client(self, base_url: str, key: str, http_client: httpx2.Client) -> Any:
        """The official SDK's client, without retries of its own."""

    def send(self, sdk: Any, call: Call, model: str, call_id: str) -> AbstractContextManager[Any]:
        """One call; entering it sends the request."""

    def on_event(self, decoder: StreamDecoder, name: bytes, data: bytes) -> None:
        """Meaning of one event of its stream."""

    def content_of(self, name: bytes, tree: Any) -> tuple[int, str] | None:
        """Kind and text of an event whose JSON is `tree`, if it does nothing but bring content; see `shape`."""

    def on_whole(self, decoder: StreamDecoder, body: bytes) -> None:
        """Meaning of an answer that was asked for at once; raises ValueError and its like for anything else."""


class Endpoint:
    """Makes calls at one target; `url` is where it really is, of a simulated one too."""

    def __init__(self, url: str, target: Target, transport: Stopwatch) -> None:
        self.protocol, self.model = target.protocol, target.model
        module: Any = import_module(PROTOCOLS[target.protocol])
        self._wire = cast("Wire", module.App(target.sse) if target.protocol == SSE else module)
        key = key_for(url, target.protocol, target.api_key_env)
        with only_for_the_provider(url, target.protocol):
            self._sdk = self._wire.client(url, key, httpx2.Client(transport=transport, trust_env=False))

    def send(self, call: Call, call_id: str) -> AbstractContextManager[Any]:
        """One call; entering it sends the request and returns with the response's head, or raises."""
        return self._wire.send(self._sdk, call, call.model or self.model, call_id)

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
        )
