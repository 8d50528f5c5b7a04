"""A call as every protocol gives it: what was requested, what answers it, why it is refused, and the checks of its body.

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
    tool: str | None = None  # name of the first tool; None: it gives none
    thinking: bool = False
    thinking_omitted: bool = False  # whatever the endpoint's own setting is
    schema: bool = False  # the answer is to be a JSON object
    diagnoses: bool = False  # the caller asks why the prompt cache missed,
    previous_message: str | None = None  # compared with the prompt of this message


@dataclass(frozen=True, slots=True)
class Reply:
    """The answer's identity, the same in every event of its stream, and what it consists of."""

    request: CallRequest
    id: str
    created_s: int
    plan: Plan | None = None  # None: one text
    prompt: PromptTokens | None = None  # None: there is no prefix cache
    stop: str | None = None  # why it ends early, in the terms of `faults`
    category: str = ""  # of a refusal
    diagnostics: Mapping[str, Any] | None = (
        None  # of the prompt cache, where the caller asks for them
    )
    served: ServedAs = NOTHING
    search: Search | None = None  # before the text

    @property
    def stop_reason(self) -> str:
        """Why the answer ends, in the terms of `faults`."""
        if self.stop is not None:
            return self.stop
        return BY_LIMIT if self.plan is None else self.plan.stop_reason

    @property
    def is_refusal(self) -> bool:
        """Whether its text is a refusal."""
        return self.stop == REFUSAL

    def reason(self, names: Mapping[str, str]) -> str | None:
        """Return why it ends by a protocol's `names`; None: it does not say."""
        reason = self.stop_reason
        return None if reason == NO_REASON else names.get(reason, reason)


class Refused(Exception):  # noqa: N818 - an answer, not an error of ours
    """A call answered by an error: HTTP status, reason, and the body's field at fault or the provider's error code.

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


# Made once: it costs more than an event.
compact = json.JSONEncoder(separators=(",", ":"), ensure_ascii=False).encode


def to_json(value: object) -> bytes:
    """A body or an event: compact, and UTF-8 in place of escapes, so that a client meets chunks that end inside a character."""
    # An error may quote half of a surrogate pair, which has no UTF-8.
    return compact(value).encode("utf-8", "replace")


# --- the checks that all protocols make of a body --------------------------------------------------------------


Fields = Mapping[str, type]
Kinds = Mapping[str, Fields]

MAX_MESSAGES = 100_000
_MAX_MODEL_CHARS = 256  # the OpenAI stream repeats the name in every chunk

# A picture of a megapixel, a page or two of PDF, half a minute of sound: the contents are not read.
FIXED_TOKENS = {
    "image": 1600, "image_url": 1600, "document": 3000, "file": 3000, "container_upload": 3000, "input_audio": 300,
}  # fmt: skip

CACHE_MARKS = ("cache_control", "prompt_cache_breakpoint")
TEXT_BLOCK: Kinds = {"text": {"text": str}}
_TYPE_NAMES: Mapping[type, str] = {str: "a text", dict: "an object", list: "a list"}


def invalid(param: str, expected: str) -> Refused:
    """A 400 that names the field."""
    return Refused(400, f"{param}: {expected}", param)


def decode(raw: bytes) -> dict[str, Any]:
    """The body as a JSON object."""
    try:
        body = json.loads(raw)
    except (ValueError, RecursionError) as error:
        raise Refused(400, f"The request body is not valid JSON: {error}") from None
    if not isinstance(body, dict):
        raise Refused(400, "The request body must be a JSON object")
    return body


def model(body: dict[str, Any]) -> str:
    """The model's name; any will do."""
    value = body.get("model")
    if not isinstance(value, str) or not 0 < len(value) <= _MAX_MODEL_CHARS:
        raise invalid("model", f"a name of 1 to {_MAX_MODEL_CHARS} characters is required")
    if any("\ud800" <= char <= "\udfff" for char in value):
        raise invalid(
            "model", "half of a surrogate pair is no character"
        )  # the stream repeats it as UTF-8
    return value


def flag(table: dict[str, Any], key: str, param: str) -> bool:
    """An optional boolean, false where missing or null."""
    value = table.get(key)
    if value is not None and not isinstance(value, bool):
        raise invalid(param, "must be true or false")
    return bool(value)


def max_tokens(value: object, param: str, least: int = 1) -> int:
    """How many tokens the answer has."""
    if (
        not isinstance(value, int)
        or isinstance(value, bool)
        or not least <= value <= MAX_OUTPUT_TOKENS
    ):
        raise invalid(param, f"a whole number from {least} to {MAX_OUTPUT_TOKENS} is required")
    return value


def messages(body: dict[str, Any], roles: Collection[str]) -> list[dict[str, Any]]:
    """The conversation: objects, each with a role; what they say is not looked at."""
    given = body.get("messages")
    if not isinstance(given, list) or not given:
        raise invalid("messages", "a list of at least one message is required")
    if len(given) > MAX_MESSAGES:
        raise invalid("messages", f"at most {MAX_MESSAGES} messages are allowed")
    for i, message in enumerate(given):
        if not isinstance(message, dict):
            raise invalid(f"messages.{i}", "must be an object")
        role = message.get("role")
        if not isinstance(role, str) or role not in roles:
            raise invalid(f"messages.{i}.role", f"must be one of {', '.join(roles)}")
    return given


def one_of(table: dict[str, Any], key: str, param: str, allowed: Collection[str]) -> str | None:
    """An optional word of a closed list."""
    value = table.get(key)
    if value is not None and (not isinstance(value, str) or value not in allowed):
        raise invalid(param, f"must be one of {', '.join(allowed)}")
    return value


# --- content blocks --------------------------------------------------------------------------------------------


def content_tokens(content: object, param: str, kinds: Kinds) -> int:
    """Tokens of a text or of a list of blocks, all of them of these kinds."""
    if isinstance(content, str) and content:
        return tokens.count(content)
    if not isinstance(content, list) or not content:
        raise invalid(param, "a text or a list of content blocks is required, and not an empty one")
    for i, block in enumerate(content):
        _check(block, f"{param}.{i}", kinds)
    return sum(map(block_tokens, content))


def block_tokens(block: Mapping[str, Any]) -> int:
    """Tokens of a block that was checked."""
    if block["type"] == "text":
        return tokens.count(block["text"])
    fixed = FIXED_TOKENS.get(block["type"])
    return json_tokens(block) if fixed is None else fixed


def json_tokens(value: Mapping[str, Any]) -> int:
    """Tokens of what is no text: of its JSON, without its mark."""
    return tokens.count(bare_json(value))


def bare_json(value: Mapping[str, Any]) -> str:
    """A block's JSON without its mark."""
    return compact({key: item for key, item in value.items() if key not in CACHE_MARKS})


def apply(rules: Mapping[str, Callable[[dict[str, Any], Any], None]], body: dict[str, Any]) -> None:
    """Let each rule check its field, where that is given; a rule raises `Refused`."""
    for field, rule in rules.items():
        if body.get(field) is not None:
            rule(body, body[field])


def require(table: object, param: str, fields: Fields) -> dict[str, Any]:
    """`table`, an object that has these fields, each of its type."""
    if not isinstance(table, dict):
        raise invalid(param, "must be an object")
    for name, kind in fields.items():
        if not isinstance(table.get(name), kind):
            raise invalid(f"{param}.{name}", f"{_TYPE_NAMES[kind]} is required")
    return table


def _check(block: object, param: str, kinds: Kinds) -> None:
    if not isinstance(block, dict) or not isinstance(block.get("type"), str):
        raise invalid(param, "must be an object with a type")
    kind = block["type"]
    if kind not in kinds:
        expected = f"expected one of {', '.join(kinds)}"
        raise invalid(f"{param}.type", f"{kind[:64]!r} is not allowed here; {expected}")
    require(block, param, kinds[kind])
    if kind == "text" and not block["text"]:
        raise invalid(f"{param}.text", "a text is required, and not an empty one")
