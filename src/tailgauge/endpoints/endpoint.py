"""A target as the traffic sees it: one protocol, one SDK client, one pool of connections.

Rule: a protocol is a row of PROTOCOLS; adding one is adding a file and a row.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

import httpx2

from tailgauge.endpoints import anthropic, openai
from tailgauge.endpoints.decoder import OnEvent, StreamDecoder
from tailgauge.endpoints.keys import hidden, key_for
from tailgauge.transport.stopwatch import Stopwatch


@dataclass(frozen=True, slots=True)
class Wire:
    """What differs between protocols."""

    provider_host: str
    key_variable: str
    foreign_variables: tuple[str, ...]
    client: Callable[[str, str, Any], Any]
    send: Callable[[Any, str, str, int, str], AbstractContextManager[Any]]
    on_event: OnEvent


PROTOCOLS = {
    name: Wire(m.PROVIDER_HOST, m.KEY_VARIABLE, m.FOREIGN_VARIABLES, m.client, m.send, m.on_event)
    for name, m in (("anthropic", anthropic), ("openai", openai))
}


class Endpoint:
    """Opens streamed calls at one target."""

    def __init__(
        self, url: str, protocol: str, model: str, api_key_env: str | None, transport: Stopwatch
    ) -> None:
        self.protocol, self.model = protocol, model
        self._wire = wire = PROTOCOLS[protocol]
        key = key_for(url, wire.provider_host, wire.key_variable, api_key_env)
        at_provider = urlsplit(url).hostname == wire.provider_host
        with hidden(wire.foreign_variables, unless=at_provider):
            self._sdk = wire.client(url, key, httpx2.Client(transport=transport, trust_env=False))

    def send(self, prompt: str, max_tokens: int, call_id: str) -> AbstractContextManager[Any]:
        """One streamed call; entering it sends the request and returns with the response's head, or raises."""
        return self._wire.send(self._sdk, prompt, self.model, max_tokens, call_id)

    def decoder(self) -> StreamDecoder:
        """A decoder for one stream of this protocol."""
        return StreamDecoder(self._wire.on_event)


def key_present(url: str, protocol: str, api_key_env: str | None) -> None:
    """Raise TargetError if this target wants a key that the environment does not have."""
    wire = PROTOCOLS[protocol]
    key_for(url, wire.provider_host, wire.key_variable, api_key_env)
