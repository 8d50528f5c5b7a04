"""The fields of a chat completions body beside the conversation: what the provider refuses.

Rule: a table from field to check; a check raises `Refused` with the field's name. Absent and null mean the same.
This endpoint answers with one choice: `n` above 1 is refused, which the provider itself would take.

Sources: the openai SDK's own parameter types (3.52) and OpenAI's API reference for the ranges.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from tailgauge.simulator import ask
from tailgauge.simulator.ask import invalid
from tailgauge.simulator.content_blocks import json_tokens, require

_FORMATS = ("text", "json_object", "json_schema")
_CHOICES = ("none", "auto", "required")
_RANGES = {
    "temperature": (0, 2), "top_p": (0, 1), "presence_penalty": (-2, 2), "frequency_penalty": (-2, 2),
}  # fmt: skip


def check(body: dict[str, Any]) -> None:
    """Raise `Refused` where a field is not as it must be."""
    for field, (least, most) in _RANGES.items():
        ask.number(body, field, least, most)
    for field, rule in _RULES.items():
        if body.get(field) is not None:
            rule(body, body[field])


def max_tokens(body: dict[str, Any], default: int) -> int:
    """The answer's length, under its new name or its old one; both at once must not contradict each other."""
    old, new = body.get("max_tokens"), body.get("max_completion_tokens")
    if new is None:
        return default if old is None else ask.max_tokens(old, "max_tokens")
    asked = ask.max_tokens(new, "max_completion_tokens")
    if old is not None and ask.max_tokens(old, "max_tokens") != asked:
        raise invalid("max_tokens", "contradicts max_completion_tokens, give one of them")
    return asked


def check_speaker(message: dict[str, Any], param: str) -> None:
    """What a role needs beside its content."""
    if message["role"] == "tool":
        require(message, param, {"tool_call_id": str})
    if message["role"] == "function":
        require(message, param, {"name": str})
    calls = message.get("tool_calls")
    if calls is None:
        return
    if message["role"] != "assistant" or not isinstance(calls, list):
        raise invalid(f"{param}.tool_calls", "must be a list, of an assistant's message")
    for i, call in enumerate(calls):
        require(call, f"{param}.tool_calls.{i}", {"id": str, "type": str})


def tools_tokens(body: dict[str, Any]) -> int:
    """Tokens of the tools' definitions, which were checked."""
    return sum(map(json_tokens, body.get("tools") or []))


def _n(_: dict[str, Any], value: object) -> None:
    if not isinstance(value, int) or isinstance(value, bool) or value != 1:
        raise invalid("n", "this endpoint answers with one choice, only 1 is supported")


def _tools(_: dict[str, Any], value: object) -> None:
    if not isinstance(value, list):
        raise invalid("tools", "must be a list of objects")
    for i, tool in enumerate(value):
        require(tool, f"tools.{i}", {"type": str})
        kind = ask.one_of(tool, "type", f"tools.{i}.type", ("function", "custom"))
        require(tool.get(kind), f"tools.{i}.{kind}", {"name": str})
        require(tool[kind], f"tools.{i}.{kind}", {"parameters": dict} if "parameters" in tool[kind] else {})


def _tool_choice(body: dict[str, Any], value: object) -> None:
    if not body.get("tools") and value != "none":
        raise invalid("tool_choice", "is only allowed when tools are specified")
    if isinstance(value, str):
        ask.one_of(body, "tool_choice", "tool_choice", _CHOICES)
        return
    require(value, "tool_choice", {"type": str})
    assert isinstance(value, dict)
    kind = ask.one_of(value, "type", "tool_choice.type", ("function", "custom", "allowed_tools"))
    if kind == "allowed_tools":
        require(value.get(kind), f"tool_choice.{kind}", {"mode": str, "tools": list})
        return
    require(value.get(kind), f"tool_choice.{kind}", {"name": str})
    if value[kind]["name"] not in [tool[tool["type"]]["name"] for tool in body["tools"]]:
        raise invalid(f"tool_choice.{kind}.name", "must be the name of one of the tools")


def _response_format(_: dict[str, Any], value: object) -> None:
    require(value, "response_format", {"type": str})
    assert isinstance(value, dict)
    if ask.one_of(value, "type", "response_format.type", _FORMATS) == "json_schema":
        require(value.get("json_schema"), "response_format.json_schema", {"name": str})


def _stop(_: dict[str, Any], value: object) -> None:
    ask.texts([value] if isinstance(value, str) else value, "stop", 4)


def _stream_options(body: dict[str, Any], value: object) -> None:
    require(value, "stream_options", {})
    assert isinstance(value, dict)
    if not body.get("stream"):
        raise invalid("stream_options", "only allowed when stream is true")
    for name in ("include_usage", "include_obfuscation"):
        ask.flag(value, name, f"stream_options.{name}")


_RULES: Mapping[str, Callable[[dict[str, Any], Any], None]] = {
    "n": _n,
    "tools": _tools,
    "tool_choice": _tool_choice,  # after the tools it names
    "response_format": _response_format,
    "stop": _stop,
    "stream_options": _stream_options,
}
