"""A target as the traffic sees it: one protocol, one SDK client, one pool of connections.

Rule: a protocol is a row of PROTOCOLS; adding one is adding a file and a row. An SDK is imported only where its
protocol is spoken: each costs a worker a second and tens of megabytes.
"""

from __future__ import annotations

from contextlib import AbstractContextManager
from importlib import import_module
from typing import Any, Protocol, cast

import httpx2

from tailgauge.call import Call
from tailgauge.endpoints.decoder import StreamDecoder
from tailgauge.endpoints.keys import key_for, only_for_the_provider
from tailgauge.transport.stopwatch import Stopwatch

PROTOCOLS = {"anthropic": "tailgauge.endpoints.anthropic", "openai": "tailgauge.endpoints.openai"}


class Wire(Protocol):
    """What a protocol's module offers."""

    def client(self, base_url: str, key: str, http_client: httpx2.Client) -> Any:
        """The official SDK's client, without retries of its own."""

    def send(self, sdk: Any, call: Call, model: str, call_id: str) -> AbstractContextManager[Any]:
        """One streamed call; entering it sends the request."""

    def on_event(self, decoder: StreamDecoder, name: bytes, data: bytes) -> None:
        """Meaning of one event of its stream."""


class Endpoint:
    """Opens streamed calls at one target."""

    def __init__(
        self, url: str, protocol: str, model: str, api_key_env: str | None, transport: Stopwatch
    ) -> None:
        self.protocol, self.model = protocol, model
        self._wire = cast("Wire", import_module(PROTOCOLS[protocol]))
        key = key_for(url, protocol, api_key_env)
        with only_for_the_provider(url, protocol):
            self._sdk = self._wire.client(url, key, httpx2.Client(transport=transport, trust_env=False))

    def send(self, call: Call, call_id: str) -> AbstractContextManager[Any]:
        """One streamed call; entering it sends the request and returns with the response's head, or raises."""
        return self._wire.send(self._sdk, call, call.model or self.model, call_id)

    def decoder(self) -> StreamDecoder:
        """A decoder for one stream of this protocol."""
        return StreamDecoder(self._wire.on_event)
