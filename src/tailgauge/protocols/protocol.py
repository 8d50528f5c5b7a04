"""What a wire protocol is: one class, one row of the table."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar
from urllib.parse import urlsplit

from tailgauge.call import Call
from tailgauge.protocols.decoder import StreamDecoder
from tailgauge.protocols.settings import TargetSettings
from tailgauge.table import Table

if TYPE_CHECKING:
    import httpx2

PLACEHOLDER_KEY = "unused"  # the SDKs want a key


@dataclass(frozen=True, slots=True)
class Provider:
    """The provider behind a protocol, the variable that holds the key for it, and what else its SDK reads and would send."""

    host: str
    variable: str
    also_read: tuple[str, ...]


class WireProtocol:
    """A protocol as one target uses it. An SDK is imported by `client` only: each costs a worker a second and tens of MB."""

    name: ClassVar[str]
    summary: ClassVar[str]  # documents the choice in `target.protocol`
    settings_type: ClassVar[type[Table] | None] = None  # the table `[target.<name>]`
    sdk: ClassVar[str | None] = None  # package that builds the requests
    provider: ClassVar[Provider | None] = None
    offers: ClassVar[frozenset[str]] = frozenset()  # of what a call may need; see `call`
    least_output_tokens: ClassVar[int] = 1  # that a call can limit its answer to
    settings: Any

    def __init__(self, target: TargetSettings, url: str) -> None:
        self.settings = getattr(target, self.name, None)
        self.at_provider = self.provider is not None and urlsplit(url).hostname == self.provider.host

    @classmethod
    def refuses(cls, url: str, need: str) -> str:  # noqa: ARG003 - for those that look
        """Why a target at `url` lacks what the protocol offers; empty where it does not."""
        return ""

    def client(self, base_url: str, key: str, http_client: httpx2.Client) -> Any:
        """The official SDK's client, without retries."""
        raise NotImplementedError

    def send(self, sdk: Any, call: Call, model: str, call_id: str) -> AbstractContextManager[Any]:
        """One call; entering it sends the request."""
        raise NotImplementedError

    def body(self, call: Call, model: str) -> Mapping[str, Any] | None:
        """The JSON body of a message's request, its keys in any order; None: only `send` knows."""
        raise NotImplementedError

    # The three below may be static: they run for every event.

    def on_event(self, decoder: StreamDecoder, name: bytes, data: bytes) -> None:
        """Decode one event of a stream."""
        raise NotImplementedError

    def content_of(self, name: bytes, tree: Any) -> tuple[int, str] | None:
        """Kind and text of an event whose JSON is `tree`, if it does nothing but bring content; see `stencil`."""
        raise NotImplementedError

    def on_whole(self, decoder: StreamDecoder, body: bytes) -> None:
        """Decode an answer that came without a stream; raises ValueError and its like for anything else."""
        raise NotImplementedError

    def on_batch(self, decoder: StreamDecoder, body: bytes) -> None:
        """Decode the state or the results of a message batch, where the protocol offers batches."""
        raise NotImplementedError
