"""What a wire protocol is: one class, one row of the table; and the table `[target]`, as far as it is the same for all."""

from __future__ import annotations

import json
import re
from abc import ABC, abstractmethod
from collections.abc import Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, ClassVar
from urllib.parse import parse_qsl, urlsplit

from pydantic import AfterValidator, Field, model_validator

from tailgauge.address import is_loopback
from tailgauge.call import ASSISTANT, USER, Call, Part
from tailgauge.protocols.additions import VARIABLE, Body, Engine, Headers, check_headers
from tailgauge.protocols.decoder import StreamDecoder
from tailgauge.protocols.stencil import Changing
from tailgauge.redaction import shown
from tailgauge.table import Table

if TYPE_CHECKING:
    import httpx2

SIMULATED = "simulated"
TEXT_BLOCK = frozenset({"text"})
PLACEHOLDER_KEY = "unused"  # the SDKs want a key
Opened = AbstractContextManager[Any]  # a call: entering it sends the request
PROMPT_KEYS = "use prompt_tokens, prompts and cache of the traffic table"
IN_TABLE = {  # keys of a body that both official protocols have, with what to use instead
    "model": "use target.model, or `model` of the traffic table",
    "messages": PROMPT_KEYS,
    "stream": "use `stream` of the traffic table",
    **dict.fromkeys(("tools", "tool_choice"), "use `tools` of the traffic table"),
}
# Of the official clients: the harness retries itself, and times chunks as they come.
SDK_OPTIONS: Mapping[str, Any] = {
    "max_retries": 0, "timeout": None, "default_headers": {"accept-encoding": "identity"},
}  # fmt: skip


def checked_url(value: str) -> str:
    """A target's URL without a slash at its end; ValueError for what is none."""
    if value == SIMULATED:
        return value
    match = re.fullmatch(r"(https?)://([^/\s?#]+)(/[^\s?#]*)?(\?[^\s#]*)?", value)
    if not match:
        raise ValueError("must be `simulated` or http(s)://HOST[:PORT][/PATH][?QUERY]")
    if "@" in match[2]:
        raise ValueError("must not carry a user name or password: keys come from the environment")
    port = re.fullmatch(r"(?:\[[0-9A-Fa-f:.]+\]|[^:\[\]]+)(?::(\d{1,5}))?", match[2])
    if not port or (port[1] is not None and not 0 < int(port[1]) < 65536):
        raise ValueError("must name a host and, if any, a port between 1 and 65535")
    path, question, query = value.partition("?")
    return path.rstrip("/") + question + query


def check_header(name: str) -> str:
    """Raise ValueError for what cannot be added as a header; empty means none."""
    if name:
        check_headers({name: ""})
    return name


class TargetSettings(Table):
    """Where the traffic goes."""

    url: Annotated[str, AfterValidator(checked_url)] = SIMULATED
    """base URL of the target, with or without `/v1` or a query, or `simulated` for the embedded endpoint"""
    protocol: str = Field("anthropic", description="wire protocol")
    model: str = Field("tiny", min_length=1)
    """model named in each request"""
    api_key_env: str | None = Field(None, pattern=VARIABLE)
    """environment variable with the key for this target; without it a key is sent only to the provider's own host"""
    headers: Headers = Field({})
    """headers of every call; see `tailgauge docs traffic`"""
    body: Body = Field({})
    """fields merged into the JSON body of every call; see `tailgauge docs traffic`"""
    session_header: Annotated[str, AfterValidator(check_header)] = "x-session-id"
    """header with the session's number, for calls of sessions; empty: none"""
    engine: Engine | None = None
    """the target's engine, for `output = "exact"`; default by its list of models"""
    ca_file: str | None = None
    """PEM file of a certificate authority to trust for this target"""
    connections: int = Field(1000, ge=1, le=60_000)
    """idle connections kept by each worker"""
    preopened: int = Field(0, ge=0, le=60_000)
    """connections, TLS included, that each worker opens before the run; at most `connections`"""

    @model_validator(mode="after")
    def _kept(self) -> TargetSettings:
        if self.preopened > self.connections:
            raise ValueError(f"preopened: more than the {self.connections} connections that a worker keeps")
        return self

    @property
    def is_local(self) -> bool:
        """Whether the target is on this machine: simulated, `localhost`, or a loopback address."""
        return self.url == SIMULATED or is_loopback(urlsplit(self.url).hostname or "")


def without_call(url: str, *ends: str) -> tuple[str, dict[str, str]]:
    """A base URL without its query and without the ends that a call adds, one after the other; and the query."""
    base, _, query = url.partition("?")
    for end in ends:
        base = base.removesuffix(end)
    return base, dict(parse_qsl(query, keep_blank_values=True))


def block_of(part: Part) -> dict[str, Any]:
    """A part as a content block: the user's own, or its text."""
    return json.loads(part.block) if part.block else {"type": "text", "text": part.text}


@dataclass(frozen=True, slots=True)
class Provider:
    """The provider behind a protocol, the variable that holds the key for it, and what else its SDK reads and would send."""

    host: str
    variable: str
    also_read: tuple[str, ...]


class WireProtocol(ABC):
    """A protocol as one target uses it. An SDK is imported by `client` only: each costs a worker a second and tens of MB."""

    name: ClassVar[str]
    summary: ClassVar[str]  # documents the choice in `target.protocol`
    settings_type: ClassVar[type[Table] | None] = None  # the table `[target.<name>]`
    sdk: ClassVar[str | None] = None  # package that builds the requests
    provider: ClassVar[Provider | None] = None
    offers: ClassVar[frozenset[str]] = frozenset()  # of what a call may need; see `call`
    longest_wait_s: ClassVar[float | None] = None  # before a retry that the target asks for, of its SDK
    least_output_tokens: ClassVar[int] = 1  # that a call can limit its answer to
    obeys_max_tokens: ClassVar[bool] = True  # an answer has no more tokens than the call allows
    takes_bare_names: ClassVar[bool] = False  # an event without data counts where it has a name
    set_elsewhere: ClassVar[Mapping[str, str]] = {}  # keys of the body, with where the scenario sets them
    changing: ClassVar[Changing | None] = None  # of a content event, without a meaning; see `stencil`
    # What messages of a user's file may have: types of content blocks by role, keys, and the key that every tool has.
    content: ClassVar[Mapping[str, frozenset[str]]] = dict.fromkeys((USER, ASSISTANT), TEXT_BLOCK)
    message_keys: ClassVar[frozenset[str]] = frozenset()
    tool_key: ClassVar[str] = ""  # empty: it has no tools
    settings: Any

    def __init__(self, target: TargetSettings, url: str) -> None:
        self.settings = getattr(target, self.name, None)
        self.at_provider = self.provider is not None and urlsplit(url).hostname == self.provider.host

    @classmethod
    def refuses(cls, url: str, need: str) -> str:  # noqa: ARG003 - for those that look
        """Why a target at `url` lacks what the protocol offers; empty where it does not."""
        return ""

    @classmethod
    def refuses_content(cls, row: Mapping[str, Any]) -> str:
        """Which key of a row of a prompt file the protocol cannot send, and what was expected; empty for none."""
        chosen = f"with target.protocol = {cls.name!r}"
        contents = [("system", row.get("system"), TEXT_BLOCK)]
        for i, message in enumerate(row.get("messages", ())):
            at, role = f"messages[{i}]", message["role"]
            if role not in cls.content:
                return f"{at}.role: expected one of {', '.join(cls.content)} {chosen}, got {role[:40]!r}"
            if more := message.keys() - {"role", "content"} - cls.message_keys:
                return f"{at}.{min(more)[:40]}: unknown {chosen}"
            contents.append((f"{at}.content", message.get("content"), cls.content[role]))
        for at, content, types in contents:
            for j, block in enumerate(content if isinstance(content, list) else ()):
                if block["type"] not in types:
                    listed = ", ".join(sorted(types))
                    return f"{at}[{j}].type: expected one of {listed} {chosen}, got {block['type'][:40]!r}"
        for i, tool in enumerate(row.get("tools", ())):
            if not cls.tool_key:
                return f"tools: not {chosen}, which has no tools"
            if cls.tool_key not in tool:
                return f"tools[{i}].{cls.tool_key}: missing, expected {chosen}"
        return ""

    @abstractmethod
    def client(self, base_url: str, key: str, http_client: httpx2.Client) -> Any:
        """The official SDK's client, without retries."""

    @abstractmethod
    def send(self, sdk: Any, call: Call, model: str, call_id: str) -> Opened:
        """One call; entering it sends the request."""

    @abstractmethod
    def body(self, call: Call, model: str) -> Mapping[str, Any] | None:
        """The JSON body of a message's request, its keys in any order; None: only `send` knows."""

    def entries(self, call: Call, tree: dict[str, Any]) -> list[dict[str, Any]]:  # noqa: ARG002 - the interface
        """The bodies of messages in the body of a request, each to be changed in place."""
        return [tree]

    # The methods below may be static: they run for every event.

    @abstractmethod
    def on_event(self, decoder: StreamDecoder, name: bytes, data: bytes) -> None:
        """Decode one event of a stream."""

    def on_whole(self, decoder: StreamDecoder, body: bytes) -> None:  # noqa: ARG002 - the interface
        """Decode an answer that came without a stream; raises ValueError and its like for anything else."""
        raise ValueError(f"an answer without a stream: {shown(body, 80)!r}")

    def on_job(self, decoder: StreamDecoder, body: bytes) -> None:  # noqa: ARG002 - the interface
        """Decode the state or the result of a job or a message batch, where the protocol offers them; see `decoder.kind`."""
        raise ValueError(f"a job: {shown(body, 80)!r}")
