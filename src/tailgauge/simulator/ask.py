"""What a call asks for, and the checks that both protocols make of a body.

Rule: pure. A body that cannot be answered raises `Refused`; the protocol's own file gives it the provider's shape.
"""

from __future__ import annotations

import json
from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

from tailgauge.simulator.content import Plan

MAX_BODY_BYTES = 32 * 1024 * 1024
MAX_OUTPUT_TOKENS = 1_000_000
MAX_MESSAGES = 100_000
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
    if any("\ud800" <= char <= "\udfff" for char in value):
        raise invalid("model", "half of a surrogate pair is no character")  # the stream repeats it as UTF-8
    return value


def flag(table: dict[str, Any], key: str, param: str) -> bool:
    """An optional boolean, false where missing or null."""
    value = table.get(key)
    if value is not None and not isinstance(value, bool):
        raise invalid(param, "must be true or false")
    return bool(value)


def max_tokens(value: object, param: str, least: int = 1) -> int:
    """How many tokens the answer has."""
    if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= MAX_OUTPUT_TOKENS:
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


def number(body: dict[str, Any], key: str, least: float, most: float) -> None:
    """An optional number between two others."""
    value = body.get(key)
    if value is None:
        return
    if isinstance(value, bool) or not isinstance(value, int | float) or not least <= value <= most:
        raise invalid(key, f"must be a number from {least:g} to {most:g}")


def texts(value: object, param: str, most: int) -> None:
    """An optional list of texts, none of them empty."""
    if value is None:
        return
    if not isinstance(value, list) or len(value) > most:
        raise invalid(param, f"must be a list of at most {most} texts")
    for i, text in enumerate(value):
        if not isinstance(text, str) or not text:
            raise invalid(f"{param}.{i}", "a text is required, and not an empty one")
