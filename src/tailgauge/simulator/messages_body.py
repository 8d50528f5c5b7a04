"""The fields of a Messages body beside the conversation: what the provider refuses, under which version of its API.

Rule: a table from field to check; a check raises `Refused` with the field's name. Absent and null mean the same, except
for the removed sampling fields, whose mere presence is an error.

    version       2026-10-21 refuses temperature, top_p and top_k; 2023-06-01 takes them. No version: the newer one.
    max_tokens 0  fills the cache and answers nothing: not streamed, no forced tool, no output format

Sources: Anthropic's notes on version 2026-10-21, its error page (prefill), thinking page (budget of at least 1,024, below
max_tokens) and prompt-caching page (pre-warm); the SDK's own parameter types.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any

from tailgauge.simulator import ask
from tailgauge.simulator.ask import Refused, invalid
from tailgauge.simulator.content_blocks import json_tokens, require

VERSIONS = ("2023-06-01", "2026-10-21")
WITH_SAMPLING = "2023-06-01"
MIN_THINKING_BUDGET = 1024

_SAMPLING = {"temperature": (0, 1), "top_p": (0, 1), "top_k": (0, 1_000_000)}
_MAX_STOP_SEQUENCES = 8192


def check(body: dict[str, Any], version: str) -> None:
    """Raise `Refused` where a field is not as it must be."""
    _sampling(body, version)
    for field, rule in _RULES.items():
        if body.get(field) is not None:
            rule(body, body[field])
    if body["messages"][-1]["role"] == "assistant":
        raise Refused(
            400,
            "messages: This model does not support assistant message prefill. "
            "The conversation must end with a user message.",
            "messages",
        )


def check_length(body: dict[str, Any], max_tokens: int) -> None:
    """What depends on `max_tokens`: the thinking budget, and what a pre-warming call may not ask for."""
    thinking = body.get("thinking") or {}
    if thinking.get("type") == "enabled" and thinking["budget_tokens"] >= max_tokens:
        raise invalid("thinking.budget_tokens", "must be less than max_tokens")
    if max_tokens > 0:
        return
    if body.get("stream"):
        raise invalid("max_tokens", "0 is not allowed when stream is true")
    if (body.get("tool_choice") or {}).get("type") in {"any", "tool"}:
        raise invalid("max_tokens", "0 is not allowed with a forced tool_choice")
    if (body.get("output_config") or {}).get("format") is not None:
        raise invalid("max_tokens", "0 is not allowed with an output format")


def tools_tokens(body: dict[str, Any]) -> int:
    """Tokens of the tools' definitions, which were checked."""
    return sum(map(json_tokens, body.get("tools") or []))


def _sampling(body: dict[str, Any], version: str) -> None:
    if version and version not in VERSIONS:
        raise invalid("anthropic-version", f"must be one of {', '.join(VERSIONS)}")
    for field, (least, most) in _SAMPLING.items():
        if field not in body:
            continue
        if version != WITH_SAMPLING:
            raise invalid(field, f"not permitted in API version {VERSIONS[-1]}")
        ask.number(body, field, least, most)


def _thinking(_: dict[str, Any], value: object) -> None:
    require(value, "thinking", {"type": str})
    assert isinstance(value, dict)
    kind = ask.one_of(value, "type", "thinking.type", ("adaptive", "enabled", "disabled", "between_tools"))
    ask.one_of(value, "display", "thinking.display", ("summarized", "omitted"))
    if kind != "enabled":
        return
    budget = value.get("budget_tokens")
    if not isinstance(budget, int) or isinstance(budget, bool) or budget < MIN_THINKING_BUDGET:
        raise invalid(
            "thinking.budget_tokens", f"a whole number of at least {MIN_THINKING_BUDGET} is required"
        )


def _tools(_: dict[str, Any], value: object) -> None:
    if not isinstance(value, list):
        raise invalid("tools", "must be a list of objects")
    for i, tool in enumerate(value):
        require(
            tool, f"tools.{i}", {"name": str} if _of_provider(tool) else {"name": str, "input_schema": dict}
        )
    for name, times in Counter(tool["name"] for tool in value).items():
        if times > 1:
            raise invalid("tools", f"names must be unique, {name[:64]!r} is there {times} times")


def _of_provider(tool: object) -> bool:
    """A tool that the provider defines has a dated type in place of a schema."""
    return isinstance(tool, dict) and isinstance(tool.get("type"), str) and tool["type"] != "custom"


def _tool_choice(body: dict[str, Any], value: object) -> None:
    require(value, "tool_choice", {"type": str})
    assert isinstance(value, dict)
    kind = ask.one_of(value, "type", "tool_choice.type", ("auto", "any", "tool", "none"))
    ask.flag(value, "disable_parallel_tool_use", "tool_choice.disable_parallel_tool_use")
    names = [tool["name"] for tool in body.get("tools") or []]
    if not names and kind != "none":
        raise invalid("tool_choice", "may only be specified while providing tools")
    if kind == "tool" and value.get("name") not in names:
        raise invalid("tool_choice.name", "must be the name of one of the tools")


def _output_config(_: dict[str, Any], value: object) -> None:
    require(value, "output_config", {})
    assert isinstance(value, dict)
    ask.one_of(value, "effort", "output_config.effort", ("low", "medium", "high", "xhigh", "max"))
    if value.get("format") is not None:
        require(value["format"], "output_config.format", {"type": str, "schema": dict})
        ask.one_of(value["format"], "type", "output_config.format.type", ("json_schema",))


def _metadata(_: dict[str, Any], value: object) -> None:
    require(value, "metadata", {})
    assert isinstance(value, dict)
    if not isinstance(value.get("user_id", ""), str | None):
        raise invalid("metadata.user_id", "must be a text")


def _stop_sequences(_: dict[str, Any], value: object) -> None:
    ask.texts(value, "stop_sequences", _MAX_STOP_SEQUENCES)


def _service_tier(body: dict[str, Any], _: object) -> None:
    ask.one_of(body, "service_tier", "service_tier", ("auto", "standard_only"))


def _speed(body: dict[str, Any], _: object) -> None:
    ask.one_of(body, "speed", "speed", ("standard", "fast"))


_RULES: Mapping[str, Callable[[dict[str, Any], Any], None]] = {
    "thinking": _thinking,
    "tools": _tools,
    "tool_choice": _tool_choice,  # after the tools it names
    "output_config": _output_config,
    "metadata": _metadata,
    "stop_sequences": _stop_sequences,
    "service_tier": _service_tier,
    "speed": _speed,
}
