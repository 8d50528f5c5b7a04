"""A wire protocol: one class, one row of the table. And the table `[target]`, as far as it is the same for all protocols."""

from __future__ import annotations

import json
import re
from abc import ABC, abstractmethod
from collections.abc import Hashable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, NamedTuple
from urllib.parse import parse_qsl, urlsplit

from pydantic import AfterValidator, Field, model_validator

from tailgauge.address import is_loopback
from tailgauge.call import ASSISTANT, USER, Call, Part
from tailgauge.protocols.additions import (
    VARIABLE,
    Body,
    Engine,
    Headers,
    check_header_name,
    check_headers,
)
from tailgauge.protocols.decoder import StreamDecoder
from tailgauge.protocols.shapes import Shape
from tailgauge.redaction import shown
from tailgauge.suggestions import near_names
from tailgauge.table import Table

if TYPE_CHECKING:
    import httpx2

SIMULATED = "simulated"
TEXT_BLOCK = frozenset({"text"})
PLACEHOLDER_KEY = "unused"  # the SDKs want a key; it is never sent
AUTHORIZATION = "authorization"
MaxTokensField = Literal["max_tokens", "max_completion_tokens", "none"]
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
    "max_retries": 0,
    "timeout": None,
    "default_headers": {"accept-encoding": "identity"},
}


_URL = re.compile(r"(https?)://([^/\s?#]+)(/[^\s?#]*)?(\?[^\s#]*)?")
_HOST = re.compile(r"(?:\[[0-9A-Fa-f:.]+\]|[^:\[\]]+)(?::(\d{1,5}))?")
_SCHEME = re.compile(r"(?P<name>[A-Za-z][A-Za-z0-9+.-]*?)(?P<mark>:/*|/{2,})(?=.)")
_LARGEST_PORT = 65535


def checked_url(value: str) -> str:
    """Return a target's URL without a slash at its end. Raises ValueError, with the URL that was meant, for any other text."""
    if value == SIMULATED:
        return value
    match = _URL.fullmatch(value)
    if not match:
        raise ValueError(_why_no_url(value))
    if "@" in match[2]:
        raise ValueError(_NO_USER)
    port = _HOST.fullmatch(match[2])
    if port is None or (port[1] is not None and not 0 < int(port[1]) <= _LARGEST_PORT):
        raise ValueError(_about_port(match[2]))
    path, question, query = value.partition("?")
    return path.rstrip("/") + question + query


_NO_USER = "must not carry a user name or password: keys come from the environment, by their variable in target.api_key_env"


def _why_no_url(value: str) -> str:
    """Return why a text is no URL, with the URL that was probably meant, for the user.

    A text that may hold a secret is not repeated.
    """
    expected = "expected http(s)://HOST[:PORT][/PATH], or `simulated`"
    if "@" in value:
        return _NO_USER
    bare = re.sub(r"\s+", "", value)
    if near_names(bare, [SIMULATED], cutoff=0.8):
        return f"{expected}: write {SIMULATED}"
    reason = expected
    if bare != value and bare:
        reason = "a URL has no spaces"
    elif "#" in value:
        reason = "the URL of an API has no part after #"
    elif "://" not in value:
        reason = "expected http:// or https:// in front"
        large = re.fullmatch(r"[^/:]+:(\d+)(?:/.*)?", bare)
        if large is not None and not 0 < int(large[1][:9]) <= _LARGEST_PORT:
            reason += f", and a port from 1 to {_LARGEST_PORT}"
    probable_url = _probable_url(bare.partition("#")[0])
    if probable_url:
        return f"{reason}: write {probable_url}"
    if reason.startswith("expected"):
        return f"{reason}, such as http://127.0.0.1:8000"
    return reason


def _probable_url(text: str) -> str:
    """Return the URL that was probably meant; empty where none is valid. `text` has no spaces and no part behind #.

    A host on this machine, with a port, or in digits gets http; any other https. A port that cannot be
    becomes `PORT`.
    """
    scheme, location = _scheme_and_location(text)
    if re.fullmatch(r":?\d{1,5}", location):
        location = f"127.0.0.1:{location.removeprefix(':')}"
    authority = re.split("[/?]", location)[0]
    host = authority
    port = ""
    if re.search(r":\d+$", authority):
        host, _, port = authority.rpartition(":")
    is_near = is_loopback(host) or bool(port) or host.replace(".", "").isdigit()
    is_spelled_as_host = re.fullmatch(r"[\w.-]+|\[[0-9A-Fa-f:.]+\]", host)
    if not is_spelled_as_host or not ("." in host or is_near or scheme):
        return ""
    if "?" in location:
        return ""
    if port and not 0 < int(port) <= _LARGEST_PORT:
        location = location.replace(f":{port}", ":PORT", 1)
    default_scheme = "http" if is_near else "https"
    return f"{scheme or default_scheme}://{location}"


def _scheme_and_location(text: str) -> tuple[str, str]:
    """Return the nearest scheme, or "" without one, and the text behind it: `htp:/host` has the scheme `http`."""
    match = _SCHEME.match(text)
    if match is None:
        return "", text
    location = text[match.end() :]
    if match["mark"] == ":" and re.match(r"\d+(?:/|$)", location):
        return "", text  # a host and a port
    schemes = near_names(match["name"], ("http", "https"), cutoff=0.5)
    return (schemes[0] if schemes else "http"), location


def _about_port(authority: str) -> str:
    """Return why the part of a URL between the slashes names no host and port."""
    host, colon, port = authority.rpartition(":")
    if colon and not host:
        return "expected a host in front of the port"
    if colon and port.isdigit() and host.count("[") == host.count("]"):
        return f"expected a port from 1 to {_LARGEST_PORT} after {host}, got {port[:20]}"
    return f"expected HOST or HOST:PORT after the slashes, with a port from 1 to {_LARGEST_PORT}"


def check_header(name: str) -> str:
    """Raise ValueError for what cannot be added as a header; empty means none."""
    if name:
        check_headers({name: ""})
    return name


class TargetSettings(Table):
    """Where the traffic goes; see `tailgauge docs traffic`."""

    url: Annotated[str, AfterValidator(checked_url)] = SIMULATED
    """base URL, with or without `/v1` or a query; `simulated`: the embedded endpoint"""
    protocol: str = Field("anthropic", description="wire protocol")
    model: str = Field("tiny", min_length=1)
    """requested model"""
    api_key_env: str | None = Field(None, pattern=VARIABLE)
    """environment variable with the key; by default only the provider's own host gets a key"""
    auth_header: Annotated[str | None, AfterValidator(check_header_name)] = Field(
        None, min_length=1
    )
    """header of the key, such as `authorization` (Bearer) or `api-key`; default by protocol"""
    headers: Headers = Field({})
    """headers of every call"""
    body: Body = Field({})
    """fields merged into every JSON body"""
    session_header: Annotated[str, AfterValidator(check_header)] = "x-session-id"
    """header with the session's number; empty: none"""
    engine: Engine | None = None
    """for `output = "exact"` and cache marks; default by the list of models"""
    max_tokens_field: MaxTokensField | None = None
    """OpenAI: field of `output_tokens`; default `max_completion_tokens` at the provider, else `max_tokens`, or as the target asks"""
    ca_file: str | None = None
    """PEM file of a trusted certificate authority"""
    connections: int = Field(1000, ge=1, le=60_000)
    """idle connections kept per worker"""
    preopened: int = Field(0, ge=0, le=60_000)
    """connections opened per worker before the run; at most `connections`"""

    @model_validator(mode="after")
    def _keeps_preopened(self) -> TargetSettings:
        if self.preopened > self.connections:
            raise ValueError(
                f"preopened: more than the {self.connections} connections that a worker keeps"
            )
        return self

    @model_validator(mode="after")
    def _sends_one_key(self) -> TargetSettings:
        header = (self.auth_header or "").lower()
        if header and header in {name.lower() for name in self.headers}:
            raise ValueError(
                f"headers.{header}: auth_header puts the key there: leave out one of them"
            )
        return self

    @property
    def is_local(self) -> bool:
        """Return whether the target is on this machine: simulated, `localhost`, or a loopback address."""
        return self.url == SIMULATED or is_loopback(urlsplit(self.url).hostname or "")


def without_call(url: str, *ends: str) -> tuple[str, dict[str, str]]:
    """Return a base URL without its query and without the ends that a call adds, one after the other; and the query."""
    base, _, query = url.partition("?")
    for end in ends:
        base = base.removesuffix(end)
    return base, dict(parse_qsl(query, keep_blank_values=True))


def has_blocks(body: Mapping[str, Any]) -> bool:
    """Return whether a message of a chat-shaped body has content blocks instead of a text."""
    return any(type(message["content"]) is list for message in body["messages"])


def block_of(part: Part) -> dict[str, Any]:
    """Return a part as a content block: the user's own, or its text."""
    if part.block:
        block: dict[str, Any] = json.loads(part.block)
        return block
    return {"type": "text", "text": part.text}


class Adaptation(NamedTuple):
    """What a target takes, found by the preflight where the scenario does not say it."""

    max_tokens_field: str | None = None
    # The engine that caches without marks, by the target's list of models.
    automatic_cache: str | None = None


@dataclass(frozen=True, slots=True)
class MarkRules:
    """The cache marks of a protocol."""

    places: frozenset[str]  # of a scenario's breakpoints, those that can be marked
    lives: tuple[str, ...]  # of a mark; the first is the default
    automatic_lives: tuple[str, ...]  # of a mark that the target sets at the end
    at_engines: bool  # engines with an automatic cache take requests with marks
    # Blocks from a mark in which an entry is looked for, the marked one included.
    lookback: int | None = None
    has_key: bool = False  # a request may name its prefix, to be routed to where that was cached


@dataclass(frozen=True, slots=True)
class Provider:
    """The provider behind a protocol."""

    host: str
    variable: str  # environment variable that holds the key
    also_read: tuple[str, ...]  # other variables that the SDK reads and would send


def at_provider(url: str, provider: Provider | None) -> bool:
    """Return whether `url` is a provider's own host, over TLS."""
    parts = urlsplit(url)
    return provider is not None and parts.scheme == "https" and parts.hostname == provider.host


class WireProtocol(ABC):
    """A protocol as one target uses it.

    Only `client` imports an SDK: each takes a worker a second and tens of MB.
    """

    name: ClassVar[str]
    summary: ClassVar[str]  # documents the choice in `target.protocol`
    settings_type: ClassVar[type[Table] | None] = None  # the table `[target.<name>]`
    sdk: ClassVar[str | None] = None  # package that builds the requests
    call_path: ClassVar[str] = ""  # the end of the address of its calls
    provider: ClassVar[Provider | None] = None

    # What a call may use.
    offers: ClassVar[frozenset[str]] = frozenset()  # of the needs in `call`
    marks: ClassVar[MarkRules | None] = None  # of what to cache; None: it has none
    diagnoses_cache: ClassVar[bool] = False  # on request, the target says why its cache missed
    least_output_tokens: ClassVar[int] = 1  # smallest limit of an answer
    obeys_max_tokens: bool = True  # an answer has no more tokens than the call allows
    # Choices of `target.max_tokens_field`; empty: the field has one name.
    limit_fields: ClassVar[tuple[str, ...]] = ()
    # Longest wait before a retry that the target asks for, by the SDK; None: it has no limit.
    longest_wait_s: ClassVar[float | None] = None
    key_header: ClassVar[str] = AUTHORIZATION  # carries a key to hosts other than the provider's
    # Keys of the body that the harness sets, with where the scenario sets them.
    set_elsewhere: ClassVar[Mapping[str, str]] = {}

    # How an answer is read.
    takes_bare_names: ClassVar[bool] = False  # an event without data counts where it has a name
    ends_at_mark: ClassVar[bool] = False  # its SDK reads nothing behind the end mark
    shapes: ClassVar[tuple[Shape, ...]] = ()  # of its plain events; see `shapes`

    # What messages of a user's file may have: types of content blocks by role, keys, and the key that every tool has.
    content: ClassVar[Mapping[str, frozenset[str]]] = dict.fromkeys((USER, ASSISTANT), TEXT_BLOCK)
    message_keys: ClassVar[frozenset[str]] = frozenset()
    tool_key: ClassVar[str] = ""  # empty: it has no tools
    settings: Any

    def __init__(self, target: TargetSettings, url: str) -> None:
        self.settings = getattr(target, self.name, None)
        self.at_provider = (
            self.provider is not None and urlsplit(url).hostname == self.provider.host
        )
        self.auth_header = target.auth_header

    @classmethod
    def refuses_url(cls, url: str) -> str:  # noqa: ARG003 - for those that look
        """Return why `url` is no base URL of the protocol, and what to use instead; empty where it may be one."""
        return ""

    @classmethod
    def refuses(cls, url: str, need: str) -> str:  # noqa: ARG003 - for those that look
        """Return why a target at `url` lacks what the protocol offers; empty where it does not."""
        return ""

    @classmethod
    def refuses_content(cls, row: Mapping[str, Any]) -> str:
        """Return which key of a row of a prompt file the protocol cannot send, and what was expected; empty for none.

        `row`: whose shape was checked before, whatever the protocol. The first such key counts.
        """
        messages = row.get("messages", ())
        for i, message in enumerate(messages):
            problem = cls._refuses_message(message, f"messages[{i}]")
            if problem:
                return problem
        problem = cls._refuses_blocks(row.get("system"), TEXT_BLOCK, "system")
        if problem:
            return problem
        for i, message in enumerate(messages):
            # The types of content blocks that a message of this role may have.
            types = cls.content[message["role"]]
            problem = cls._refuses_blocks(message.get("content"), types, f"messages[{i}].content")
            if problem:
                return problem
        chosen = f"with target.protocol = {cls.name!r}"
        for i, tool in enumerate(row.get("tools", ())):
            if not cls.tool_key:
                return f"tools: not {chosen}, which has no tools"
            if cls.tool_key not in tool:
                return f"tools[{i}].{cls.tool_key}: missing, expected {chosen}"
        return ""

    @classmethod
    def _refuses_message(cls, message: Mapping[str, Any], place: str) -> str:
        """Return which key of a message, or which role, the protocol does not know; empty for none."""
        chosen = f"with target.protocol = {cls.name!r}"
        role = message["role"]
        if role not in cls.content:
            return f"{place}.role: expected one of {', '.join(cls.content)} {chosen}, got {role[:40]!r}"
        known_keys = {"role", "content", *cls.message_keys}
        unknown_keys = message.keys() - known_keys
        if unknown_keys:
            listed = ", ".join(sorted(known_keys))
            return (
                f"{place}.{min(unknown_keys)[:40]}: unknown key {chosen}: expected one of {listed}"
            )
        return ""

    @classmethod
    def _refuses_blocks(cls, content: Any, types: frozenset[str], place: str) -> str:
        """Return which content block is of a type that may not be there; empty for none."""
        if not isinstance(content, list):
            return ""
        for i, block in enumerate(content):
            if block["type"] not in types:
                listed = ", ".join(sorted(types))
                chosen = f"with target.protocol = {cls.name!r}"
                return f"{place}[{i}].type: expected one of {listed} {chosen}, got {block['type'][:40]!r}"
        return ""

    def key_headers(self, key: str) -> dict[str, str]:
        """Return the header with a key; none for the placeholder, because some targets refuse a second authorization."""
        if key == PLACEHOLDER_KEY:
            return {}
        header = self.auth_header or self.key_header
        if header.lower() == AUTHORIZATION:
            return {header: f"Bearer {key}"}
        return {header: key}

    def sends_key_as_sdk(self, key: str) -> bool:
        """Return whether a key is sent as the SDK sends it: at the provider, without another header, or without an SDK."""
        if self.sdk is None:
            return True
        return self.at_provider and key != PLACEHOLDER_KEY and self.auth_header is None

    def adaptation(self, refusal: str) -> Adaptation | None:  # noqa: ARG002 - for those that adapt
        """Return what to send instead of what a target has refused with this text; None where nothing is known."""
        return None

    def adapt(self, adaptation: Adaptation) -> None:  # noqa: B027 - for those that adapt
        """Send what the preflight found that the target takes."""

    @abstractmethod
    def client(self, base_url: str, key: str, http_client: httpx2.Client) -> Any:
        """Return the official SDK's client, without retries.

        The SDK's header with the key, or with the placeholder, is replaced by that of `key_headers`. A protocol without
        an SDK sends `key_headers` itself.
        """

    @abstractmethod
    def send(self, sdk: Any, call: Call, model: str, call_id: str) -> Opened:
        """Return one call; entering it sends the request."""

    @abstractmethod
    def body(self, call: Call, model: str) -> Mapping[str, Any] | None:
        """Return the JSON body of a message's request, its keys in any order; None: only `send` knows it."""

    def template_key(self, call: Call, body: Mapping[str, Any]) -> Hashable:  # noqa: ARG002 - the interface
        """Return what bodies of one template have in common besides their keys: the SDK writes others in another way."""
        return None

    def entries(self, call: Call, tree: dict[str, Any]) -> list[dict[str, Any]]:  # noqa: ARG002 - the interface
        """Return the bodies of messages within the body of a request. The caller changes each in place."""
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
