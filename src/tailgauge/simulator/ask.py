"""What a call asks for, and the checks that both protocols make of a body.

Rule: pure. A body that cannot be answered raises `Refused`; the protocol's own file gives it the provider's shape.
"""

from __future__ import annotations

import json
from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

from tailgauge.simulator import tokens
from tailgauge.simulator.content import Plan

MAX_BODY_BYTES = 32 * 1024 * 1024
MAX_OUTPUT_TOKENS = 1_000_000
_MAX_MODEL_CHARS = 256  # the OpenAI stream repeats the name in every chunk


@dataclass(frozen=True, slots=True)
class Ask:
    """A call that will be answered."""

    model: str
    max_tokens: int
    input_tokens: int
    stream: bool
    include_usage: bool = False  # OpenAI: a last chunk with the usage


@dataclass(frozen=True, slots=True)
class Prompted:
    """The prompt's tokens as the prefix cache took them; the four add up to the prompt."""

    input_tokens: int  # the uncached remainder
    read: int
    creation_5m: int
    creation_1h: int


@dataclass(frozen=True, slots=True)
class Reply:
    """The answer's identity, the same in every event of its stream, and what it consists of."""

    ask: Ask
    id: str
    created_s: int
    plan: Plan | None = None  # None: one text
    prompted: Prompted | None = None  # None: there is no prefix cache
    tool: str = ""  # name of the tool that the plan calls


class Refused(Exception):  # noqa: N818 - an answer, not an error of ours
    """A call answered by an error: HTTP status, reason, and the body's field at fault or the provider's error code."""

    def __init__(
        self, status: int, message: str, param: str | None = None, *, error_code: str | None = None
    ) -> None:
        super().__init__(message)
        self.status, self.message, self.param, self.error_code = status, message, param, error_code


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
    return value


def flag(table: dict[str, Any], key: str, param: str) -> bool:
    """An optional boolean, false where missing or null."""
    value = table.get(key)
    if value is not None and not isinstance(value, bool):
        raise invalid(param, "must be true or false")
    return bool(value)


def max_tokens(value: object, param: str) -> int:
    """How many tokens the answer has."""
    if not isinstance(value, int) or isinstance(value, bool) or not 1 <= value <= MAX_OUTPUT_TOKENS:
        raise invalid(param, f"a whole number from 1 to {MAX_OUTPUT_TOKENS} is required")
    return value


def messages_tokens(body: dict[str, Any], roles: Collection[str], *, null_content: bool) -> int:
    """Tokens of all messages. `null_content`: an assistant may have said nothing but tool calls."""
    messages = body.get("messages")
    if not isinstance(messages, list) or not messages:
        raise invalid("messages", "a list of at least one message is required")
    total = 0
    for i, message in enumerate(messages):
        param = f"messages.{i}"
        if not isinstance(message, dict):
            raise invalid(param, "must be an object")
        role = message.get("role")
        if not isinstance(role, str) or role not in roles:
            raise invalid(f"{param}.role", f"must be one of {', '.join(roles)}")
        content = message.get("content")
        if content is None and null_content and role == "assistant":
            continue
        total += content_tokens(content, f"{param}.content")
    return total


def content_tokens(content: object, param: str) -> int:
    """Tokens of a string or of a list of blocks; blocks other than text are accepted and count nothing."""
    if isinstance(content, str) and content:
        return tokens.count(content)
    if not isinstance(content, list) or not content:
        raise invalid(param, "a text or a list of content blocks is required, and not an empty one")
    return sum(_block_tokens(block, f"{param}.{i}") for i, block in enumerate(content))


def _block_tokens(block: object, param: str) -> int:
    if not isinstance(block, dict) or not isinstance(block.get("type"), str):
        raise invalid(param, "must be an object with a type")
    if block["type"] != "text":
        return 0
    text = block.get("text")
    if not isinstance(text, str) or not text:
        raise invalid(f"{param}.text", "a text is required, and not an empty one")
    return tokens.count(text)
