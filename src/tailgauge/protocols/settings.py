"""The tables `[target]` and `[second_target]` of a scenario: where the traffic goes, and how it is spoken to.

Rule: values, bounds and meanings only; `endpoints` speaks the protocols.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any, Literal
from urllib.parse import urlsplit

from pydantic import Field, field_validator, model_validator

from tailgauge.address import is_loopback
from tailgauge.call import BATCHES, CACHE_MARKS, SCHEMAS, THINKING, THINKING_BUDGETS, TOOLS, WHOLE_ANSWERS
from tailgauge.table import Table

SIMULATED = "simulated"
PLACEHOLDER = re.compile(r"\{([A-Za-z_][A-Za-z0-9_]*)\}")
_WORDS = ("prompt", "model", "call_id")  # and max_tokens, which is a number
_KEY_HEADERS = {"authorization", "proxy-authorization", "x-api-key", "api-key", "cookie"}


class Sse(Table):
    """An application's own stream of server-sent events, with `protocol = "sse"`.

    Pointers are JSON pointers (RFC 6901) into an event's data; an empty one means the data itself, as text.
    """

    path: str = Field("/", pattern=r"^/\S*$", description="path of the call, after the target's URL")
    body: Mapping[str, Any] = Field(
        {"prompt": "{prompt}", "max_tokens": "{max_tokens}"},
        description='the JSON body; `{prompt}`, `{model}`, `{call_id}` are replaced within its strings, and `"{max_tokens}"` by the number',
    )
    headers: Mapping[str, str] = Field({}, description="headers of the call; keys do not belong here")
    token_event: str = Field("", description="name of the event with content; empty: an event without a name")
    text: str = Field("", description="pointer to the content's text in that event")
    done_event: str | None = Field(None, description="name of the event that ends the answer")
    done_data: str | None = Field("[DONE]", description="data of the event that ends the answer")
    error_event: str = Field("error", description="name of the event that reports a failure")
    status_event: str | None = Field(
        None, description="name of an event that begins a phase, as retrieval or generation"
    )
    status_name: str = Field("", description="pointer to the phase's name in it")
    citation_event: str | None = Field(None, description="name of an event with a citation; counted")
    input_tokens: str | None = Field(None, description="pointer to a count of input tokens, in any event")
    output_tokens: str | None = Field(None, description="pointer to a count of output tokens, in any event")

    @field_validator("body")
    @classmethod
    def _template(cls, value: Mapping[str, Any]) -> Mapping[str, Any]:
        texts = list(_texts(value))
        for text in texts:
            if "{max_tokens}" in text and text != "{max_tokens}":
                raise ValueError('{max_tokens} is a number: write it as "{max_tokens}", alone')
            _check_words(text, (*_WORDS, "max_tokens"))
        if not any("{prompt}" in text for text in texts):
            raise ValueError("says nowhere {prompt}: every call would ask the same")
        return value

    @field_validator("headers")
    @classmethod
    def _no_keys(cls, value: Mapping[str, str]) -> Mapping[str, str]:
        for name, text in value.items():
            if name.lower() in _KEY_HEADERS:
                raise ValueError(f"{name}: keys come from the environment, see api_key_env")
            if not re.fullmatch(r"[A-Za-z0-9!#$%&'*+.^_`|~-]+", name) or not re.fullmatch(r"[ -~]*", text):
                raise ValueError(f"{name}: not a header (visible ASCII characters only)")
            _check_words(text, ("model", "call_id"))
        return value

    @model_validator(mode="after")
    def _ends(self) -> Sse:
        if self.done_event is None and self.done_data is None:
            raise ValueError("done_event or done_data is needed: else no stream could be told from a cut one")
        return self

    @field_validator("text", "status_name", "input_tokens", "output_tokens")
    @classmethod
    def _pointer(cls, value: str | None) -> str | None:
        if value and not value.startswith("/"):
            raise ValueError("must be a JSON pointer such as /choices/0/text, or empty")
        return value


class Target(Table):
    """Where the traffic goes."""

    url: str = Field(
        SIMULATED, description="base URL of the target, or `simulated` for the embedded endpoint"
    )
    protocol: Literal["anthropic", "openai", "sse"] = Field(
        "anthropic",
        description="wire protocol: `anthropic` (Messages), `openai` (chat completions), or `sse` (an application's own, see `target.sse`)",
    )
    model: str = Field("tiny", min_length=1, description="model named in each request")
    api_key_env: str | None = Field(
        None,
        pattern=r"^[A-Za-z_][A-Za-z0-9_]*$",
        description="environment variable with the key for this target; without it a key is sent only to the provider's own host",
    )
    ca_file: str | None = Field(
        None, description="PEM file of a certificate authority to trust for this target"
    )
    connections: int = Field(1000, ge=1, le=60_000, description="idle connections kept by each worker")
    preopened: int = Field(
        0,
        ge=0,
        le=60_000,
        description="connections, TLS included, that each worker opens before the run begins, so that no request pays for them; at most `connections`",
    )
    sse: Sse = Sse()

    @field_validator("url")
    @classmethod
    def _url(cls, value: str) -> str:
        if value == SIMULATED:
            return value
        match = re.fullmatch(r"(https?)://([^/\s?#]+)(/[^\s?#]*)?", value)
        if not match:
            raise ValueError("must be `simulated` or http(s)://HOST[:PORT][/PATH] without a query")
        if "@" in match.group(2):
            raise ValueError("must not carry a user name or password: keys come from the environment")
        port = re.fullmatch(r"(?:\[[0-9A-Fa-f:.]+\]|[^:\[\]]+)(?::(\d{1,5}))?", match.group(2))
        if not port or (port.group(1) is not None and not 0 < int(port.group(1)) < 65536):
            raise ValueError("must name a host and, if any, a port between 1 and 65535")
        return value.rstrip("/")

    @model_validator(mode="after")
    def _described(self) -> Target:
        if self.protocol != "sse" and self.sse != Sse():
            raise ValueError(f"sse: has no meaning with protocol = {self.protocol!r}")
        if self.preopened > self.connections:
            raise ValueError(f"preopened: more than the {self.connections} connections that a worker keeps")
        return self

    @property
    def is_local(self) -> bool:
        """Whether the target is on this machine: simulated, `localhost`, or a loopback address."""
        if self.url == SIMULATED:
            return True
        return is_loopback(urlsplit(self.url).hostname or "")


_ALL = {CACHE_MARKS, BATCHES, SCHEMAS, THINKING, THINKING_BUDGETS, TOOLS, WHOLE_ANSWERS}
OFFERS = {"anthropic": _ALL, "openai": _ALL - {CACHE_MARKS, BATCHES}, "sse": set()}


def refusal(target: Target, need: str) -> str:
    """Why calls that need this cannot be sent to a target; empty where they can."""
    if need not in OFFERS[target.protocol]:
        others = " or ".join(repr(name) for name, offers in OFFERS.items() if need in offers)
        return f"expected target.protocol {others}, got {target.protocol!r}, which has no {need}"
    if need == THINKING_BUDGETS and target.protocol == "openai" and "api.openai.com" in target.url:
        return "this provider takes no budget for it: use 'adaptive'"
    return ""


def _texts(tree: Any) -> Iterator[str]:
    """Every text of a template, keys included."""
    if isinstance(tree, str):
        yield tree
    elif isinstance(tree, Mapping):
        for key, value in tree.items():
            yield from (key, *_texts(value))
    elif isinstance(tree, list | tuple):
        for value in tree:
            yield from _texts(value)


def _check_words(text: str, known: tuple[str, ...]) -> None:
    for word in PLACEHOLDER.findall(text):
        if word not in known:
            raise ValueError(
                f"{{{word}}} is no placeholder; there are {', '.join(f'{{{name}}}' for name in known)}"
            )
