"""A call in the same form for every protocol: its request, its reply, its refusal, and the checks of its body.

tokens    text: one per 4 UTF-8 bytes; pictures and files: a fixed number; any other block: its JSON without the
          `cache_control` mark, as in `prefix`
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any

from tailgauge.simulator.behaviours import tokens
from tailgauge.simulator.behaviours.billing import PromptTokens
from tailgauge.simulator.behaviours.content import Plan
from tailgauge.simulator.behaviours.faults import BY_LIMIT, NO_REASON, REFUSAL
from tailgauge.simulator.behaviours.search import Search
from tailgauge.simulator.behaviours.served import NOTHING, ServedAs

MAX_BODY_BYTES = 32 * 1024 * 1024
MAX_OUTPUT_TOKENS = 1_000_000


@dataclass(frozen=True, slots=True)
class CallRequest:
    """A call that will be answered."""

    model: str
    max_tokens: int
    input_tokens: int
    stream: bool
    include_usage: bool = False  # OpenAI: a last chunk with the usage
    tool: str | None = None  # name of the first tool; None: there is no tool
    thinking: bool = False
    thinking_omitted: bool = False  # overrides the setting of the endpoint
    schema: bool = False  # the answer must be a JSON object
    diagnoses: bool = False  # the caller wants to know why the prompt cache missed
    previous_message: str | None = None  # id of the message whose prompt is compared for that


@dataclass(frozen=True, slots=True)
class Reply:
    """The answer's identity, the same in every event of its stream, and its contents."""

    request: CallRequest
    id: str
    created_s: int
    plan: Plan | None = None  # None: one text
    prompt: PromptTokens | None = None  # None: there is no prefix cache
    stop: str | None = None  # why it ends early, in the terms of `faults`
    category: str = ""  # of a refusal
    diagnostics: Mapping[str, Any] | None = None  # of the prompt cache, if the caller wants them
    served: ServedAs = NOTHING
    search: Search | None = None  # before the text

    @property
    def stop_reason(self) -> str:
        """Return why the answer ends, in the terms of `faults`."""
        if self.stop is not None:
            return self.stop
        if self.plan is None:
            return BY_LIMIT
        return self.plan.stop_reason

    @property
    def is_refusal(self) -> bool:
        """Return whether the text is a refusal."""
        return self.stop == REFUSAL

    def reason(self, names: Mapping[str, str]) -> str | None:
        """Return why the answer ends, by a protocol's `names`; None: it does not say."""
        reason = self.stop_reason
        if reason == NO_REASON:
            return None
        return names.get(reason, reason)


class Refused(Exception):  # noqa: N818 - an answer, not an error of ours
    """A call answered by an error: HTTP status, reason, and the wrong field of the body or the provider's error code.

    `in_band`: the response is a stream with status 200, and the error is in it.
    """

    def __init__(
        self,
        status: int,
        message: str,
        param: str | None = None,
        *,
        error_code: str | None = None,
        in_band: bool = False,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.param = param
        self.error_code = error_code
        self.in_band = in_band


# Made once, because an encoder takes longer to make than an event.
compact = json.JSONEncoder(separators=(",", ":"), ensure_ascii=False).encode


def to_json(value: object) -> bytes:
    """Return a body or an event as compact JSON, in UTF-8 without escapes, so that chunks may end inside a character."""
    # An error may quote half of a surrogate pair, which has no UTF-8.
    return compact(value).encode("utf-8", "replace")


# --- the checks that all protocols make of a body --------------------------------------------------------------


Fields = Mapping[str, type]
Kinds = Mapping[str, Fields]

MAX_MESSAGES = 100_000
_MAX_MODEL_CHARS = 256  # the OpenAI stream repeats the name in every chunk

# A picture of a megapixel, a page or two of PDF, half a minute of sound: the contents are not read.
FIXED_TOKENS = {
    "image": 1600,
    "image_url": 1600,
    "document": 3000,
    "file": 3000,
    "container_upload": 3000,
    "input_audio": 300,
}

CACHE_MARKS = ("cache_control", "prompt_cache_breakpoint")
TEXT_BLOCK: Kinds = {"text": {"text": str}}
_TYPE_NAMES: Mapping[type, str] = {str: "a text", dict: "an object", list: "a list"}


def invalid(param: str, expected: str) -> Refused:
    """Return a 400 that names the field."""
    return Refused(400, f"{param}: {expected}", param)


def decode(raw: bytes) -> dict[str, Any]:
    """Return the body as a JSON object, or raise `Refused`."""
    try:
        body = json.loads(raw)
    except (ValueError, RecursionError) as error:
        raise Refused(400, f"The request body is not valid JSON: {error}") from None
    if not isinstance(body, dict):
        raise Refused(400, "The request body must be a JSON object")
    return body


def model(body: dict[str, Any]) -> str:
    """Return the model's name; any name is accepted."""
    value = body.get("model")
    if not isinstance(value, str) or not 0 < len(value) <= _MAX_MODEL_CHARS:
        raise invalid("model", f"a name of 1 to {_MAX_MODEL_CHARS} characters is required")
    # The stream repeats the name as UTF-8.
    if any("\ud800" <= char <= "\udfff" for char in value):
        raise invalid("model", "half of a surrogate pair is no character")
    return value


def flag(table: dict[str, Any], key: str, param: str) -> bool:
    """Return an optional boolean, false where missing or null."""
    value = table.get(key)
    if value is not None and not isinstance(value, bool):
        raise invalid(param, "must be true or false")
    return bool(value)


def max_tokens(value: object, param: str, minimum: int = 1) -> int:
    """Return how many tokens the answer has."""
    expected = f"a whole number from {minimum} to {MAX_OUTPUT_TOKENS} is required"
    if not isinstance(value, int) or isinstance(value, bool):
        raise invalid(param, expected)
    if not minimum <= value <= MAX_OUTPUT_TOKENS:
        raise invalid(param, expected)
    return value


def messages(body: dict[str, Any], roles: Collection[str]) -> list[dict[str, Any]]:
    """Return the conversation: objects, each with a role. Their contents are not checked."""
    value = body.get("messages")
    if not isinstance(value, list) or not value:
        raise invalid("messages", "a list of at least one message is required")
    if len(value) > MAX_MESSAGES:
        raise invalid("messages", f"at most {MAX_MESSAGES} messages are allowed")
    for i, message in enumerate(value):
        if not isinstance(message, dict):
            raise invalid(f"messages.{i}", "must be an object")
        role = message.get("role")
        if not isinstance(role, str) or role not in roles:
            raise invalid(f"messages.{i}.role", f"must be one of {', '.join(roles)}")
    return value


def one_of(table: dict[str, Any], key: str, param: str, allowed: Collection[str]) -> str | None:
    """Return an optional word of a closed list."""
    value = table.get(key)
    if value is not None and (not isinstance(value, str) or value not in allowed):
        raise invalid(param, f"must be one of {', '.join(allowed)}")
    return value


# --- content blocks --------------------------------------------------------------------------------------------


def content_tokens(content: object, param: str, kinds: Kinds) -> int:
    """Return the tokens of a text or of a list of blocks; raise `Refused` for a block of another kind."""
    if isinstance(content, str) and content:
        return tokens.count(content)
    if not isinstance(content, list) or not content:
        raise invalid(param, "a text or a list of content blocks is required, and not an empty one")
    for i, block in enumerate(content):
        _check(block, f"{param}.{i}", kinds)
    return sum(map(block_tokens, content))


def block_tokens(block: Mapping[str, Any]) -> int:
    """Return the tokens of a block that was checked."""
    if block["type"] == "text":
        return tokens.count(block["text"])
    fixed_tokens = FIXED_TOKENS.get(block["type"])
    if fixed_tokens is None:
        return json_tokens(block)
    return fixed_tokens


def json_tokens(value: Mapping[str, Any]) -> int:
    """Return the tokens of an object that is no text: those of its JSON, without its mark."""
    return tokens.count(bare_json(value))


def bare_json(value: Mapping[str, Any]) -> str:
    """Return a block's JSON without its mark."""
    return compact({key: item for key, item in value.items() if key not in CACHE_MARKS})


def apply(rules: Mapping[str, Callable[[dict[str, Any], Any], None]], body: dict[str, Any]) -> None:
    """Let each rule check its field, where that is given; a rule raises `Refused`."""
    for field, rule in rules.items():
        if body.get(field) is not None:
            rule(body, body[field])


def require(table: object, param: str, fields: Fields) -> dict[str, Any]:
    """Return `table` if it is an object that has these fields, each of its type; else raise `Refused`."""
    if not isinstance(table, dict):
        raise invalid(param, "must be an object")
    for name, kind in fields.items():
        if not isinstance(table.get(name), kind):
            raise invalid(f"{param}.{name}", f"{_TYPE_NAMES[kind]} is required")
    return table


def _check(block: object, param: str, kinds: Kinds) -> None:
    """Raise `Refused` for a content block that is not of these kinds, or lacks a field of its kind."""
    if not isinstance(block, dict) or not isinstance(block.get("type"), str):
        raise invalid(param, "must be an object with a type")
    kind = block["type"]
    if kind not in kinds:
        expected = f"expected one of {', '.join(kinds)}"
        raise invalid(f"{param}.type", f"{kind[:64]!r} is not allowed here; {expected}")
    require(block, param, kinds[kind])
    if kind == "text" and not block["text"]:
        raise invalid(f"{param}.text", "a text is required, and not an empty one")
