"""A prompt as the body of a Messages call, for what the simulated endpoint decides by a body: the prefix cache, tools.

Rule: pure. Both protocols are decided on this body: the cache looks at the same blocks in either.
"""

from __future__ import annotations

import json
from functools import lru_cache
from typing import Any

from tailgauge.call import Call, Part, Tool
from tailgauge.simulator import tokens


def plain_tokens(call: Call) -> int | None:
    """Tokens of a prompt that is messages of text only; None where it takes the whole body to count."""
    prompt = call.prompt
    if prompt.tools or prompt.system or call.schema is not None:
        return None
    return sum(tokens.count(part.text) for message in prompt.messages for part in message.parts)


def body_of(call: Call, model: str) -> dict[str, Any]:
    """The body; what a call does not ask for is not there."""
    prompt = call.prompt
    body: dict[str, Any] = {
        "model": model,
        "max_tokens": call.max_tokens,
        "stream": call.stream,
        "messages": [{"role": one.role, "content": _content(one.parts)} for one in prompt.messages],
    }
    if prompt.system:
        body["system"] = _content(prompt.system)
    if prompt.tools:
        body["tools"] = _tools(prompt.tools)
        if call.use_tool:
            body["tool_choice"] = {"type": "any"}
    return body | asked_of(call)


def asked_of(call: Call) -> dict[str, Any]:
    """The part of the body that says how to answer."""
    said: dict[str, Any] = {}
    if call.thinking == "adaptive":
        said["thinking"] = {"type": "adaptive"}
    elif call.thinking == "enabled":
        said["thinking"] = {"type": "enabled", "budget_tokens": call.thinking_tokens}
    if call.schema is not None:
        said["output_config"] = {"format": {"type": "json_schema", "schema": json.loads(call.schema)}}
    return said


def _content(parts: tuple[Part, ...]) -> Any:
    if len(parts) == 1 and parts[0].ttl is None:
        return parts[0].text
    return [_marked({"type": "text", "text": part.text}, part.ttl) for part in parts]


def _marked(block: dict[str, Any], ttl: str | None) -> dict[str, Any]:
    return block if ttl is None else {**block, "cache_control": {"type": "ephemeral", "ttl": ttl}}


@lru_cache(maxsize=256)
def _tools(tools: tuple[Tool, ...]) -> list[dict[str, Any]]:
    return [
        _marked(
            {"name": one.name, "description": one.description, "input_schema": json.loads(one.schema)},
            one.ttl,
        )
        for one in tools
    ]
