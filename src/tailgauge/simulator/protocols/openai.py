"""The OpenAI chat completions protocol, from the server's side.

An event is a `data:` line and an empty line; the stream opens with the role, then an empty content, and ends with `[DONE]`.
The fields that shape the answer are checked as the provider checks them, others are ignored; absent and null mean the same.
This endpoint answers with one choice: `n` above 1 is refused, though the provider itself takes it.

    limits    x-ratelimit-{limit,remaining,reset}-{requests,tokens}
              `reset` is a duration as Go writes it: 120ms, 1.5s, 6m0s

Sources: the openai SDK's own parameter types (3.52), OpenAI's API reference for the ranges, its rate-limit guide.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from tailgauge.rows.schema import TEXT, THINKING, TOOL_JSON
from tailgauge.simulator.behaviours.content import JSON_DELTA, TEXT_DELTA
from tailgauge.simulator.behaviours.limits import Reading, tightest_tokens
from tailgauge.simulator.protocols import request as checks
from tailgauge.simulator.protocols.request import CallRequest, Refused, Reply, invalid, require

NAME = "openai"
PATH = "/v1/chat/completions"
VERSION_HEADER = ""  # this protocol has no versions
REQUEST_ID_HEADER = "x-request-id"
OVERLOADED_STATUS = 503
SIGNATURES = False
PROMPT_USAGE_FIRST = False
CACHE_LIVES = False
SERVER_TOOLS = False
REFUSAL_CHUNKS = 1  # a refusal is a field of the delta, so it needs a chunk
STOP_REASONS: Mapping[str, str] = {
    "tool_use": "tool_calls",
    "max_tokens": "length",
    "end_turn": "stop",
    "refusal": "stop",
}

_BLOCKS: Mapping[str, checks.Kinds] = {
    "developer": checks.TEXT_BLOCK,
    "system": checks.TEXT_BLOCK,
    "user": {
        **checks.TEXT_BLOCK,
        "image_url": {"image_url": dict},
        "input_audio": {"input_audio": dict},
        "file": {"file": dict},
    },
    "assistant": {**checks.TEXT_BLOCK, "refusal": {"refusal": str}},
    "tool": checks.TEXT_BLOCK,
    "function": checks.TEXT_BLOCK,
}

_FORMATS = ("text", "json_object", "json_schema")
_CHOICES = ("none", "auto", "required")
_TOOLS = ("function", "custom")
_DEFAULT_MAX_TOKENS = 16
_ERROR_CODES = {
    401: "invalid_api_key",
    404: "unknown_url",
    405: "method_not_supported",
    413: "request_too_large",
    429: "rate_limit_exceeded",
    503: "engine_overloaded",
}
_ERROR_TYPES = {429: "rate_limit_error", 500: "server_error", 503: "server_error"}


def parse(body: dict[str, Any], version: str = "") -> CallRequest:  # noqa: ARG001 - this protocol has no versions
    """Check a chat completions body and return what the endpoint reads of it; raises `Refused`.

    The answer's length is optional, under its new name or its old one. Only the name of the first tool matters.
    """
    model = checks.model(body)
    stream = checks.flag(body, "stream", "stream")
    max_tokens = _max_tokens(body, _DEFAULT_MAX_TOKENS)
    input_tokens = 0
    for i, message in enumerate(checks.messages(body, tuple(_BLOCKS))):
        content = message.get("content")
        role = message["role"]
        # An assistant's message may have tool calls and no content.
        if content is None and role == "assistant":
            continue
        input_tokens += checks.content_tokens(content, f"messages.{i}.content", _BLOCKS[role])
    checks.apply(_RULES, body)
    tools = body.get("tools") or []
    tool = None
    if tools:
        tool = tools[0].get("function", {}).get("name", "")
    stream_options = body.get("stream_options") or {}
    response_format = body.get("response_format") or {}
    return CallRequest(
        model=model,
        max_tokens=max_tokens,
        input_tokens=input_tokens + sum(map(checks.json_tokens, tools)),
        stream=stream,
        include_usage=bool(stream_options.get("include_usage")),
        tool=tool,
        thinking=bool(body.get("reasoning_effort")),
        schema=response_format.get("type") == "json_schema",
    )


def error_body(refused: Refused, request_id: str) -> bytes:  # noqa: ARG001 - this protocol names it in the header only
    """Return the error body."""
    return checks.to_json(_error(refused))


def error_event(refused: Refused) -> bytes:
    """Return the event of an error within a stream."""
    return _event(_error(refused))


def ping() -> bytes:
    """Return nothing: this protocol has no such event."""
    return b""


def opening(reply: Reply) -> bytes:
    """Return the role, with an empty content: it is no content chunk."""
    return _event(_choice(reply, {"role": "assistant", "content": ""})) + between(reply, 0)


def after_search(reply: Reply) -> bytes:  # noqa: ARG001 - there are no searches
    """Return nothing: this protocol has no searches."""
    return b""


def around_text(reply: Reply) -> tuple[bytes, bytes]:
    """Return the bytes of a content chunk before and behind its text."""
    return _around(reply, {"refusal" if reply.is_refusal else "content": "|"})


def delta(reply: Reply, block: int, kind: str) -> tuple[bytes, bytes]:  # noqa: ARG001 - the interface
    """Return the bytes of a delta before and behind its content; there are no signatures."""
    if kind == JSON_DELTA:
        return _around(reply, {"tool_calls": [{"index": 0, "function": {"arguments": "|"}}]})
    return _around(reply, {"content" if kind == TEXT_DELTA else "reasoning_content": "|"})


def between(reply: Reply, block: int) -> bytes:
    """Return the event with the name of a tool call; other blocks have no event at their start."""
    if reply.plan is None or reply.plan.blocks[block].kind != TOOL_JSON:
        return b""
    return _event(_choice(reply, {"tool_calls": [{"index": 0, **_call(reply, "")}]}))


def closing(reply: Reply) -> bytes:
    """Return the finish reason, the usage where the request wants it, and the end mark."""
    reason = reply.reason(STOP_REASONS)
    events = b""
    if reason is not None:
        events = _event(_choice(reply, {}, reason))
    if reply.request.include_usage:
        events += _event(_chunk(reply, []) | {"usage": _usage(reply)})
    return events + b"data: [DONE]\n\n"


def whole(reply: Reply, contents: Sequence[str]) -> bytes:
    """Return the body of an answer that is not streamed, with the content of each of its blocks in `contents`.

    An answer without a plan is one text. A refusal has its text in a field of its own, and no content.
    """
    message: dict[str, Any] = {"role": "assistant", "content": "".join(contents), "refusal": None}
    if reply.plan is not None:
        texts: dict[str, list[str]] = {TEXT: [], THINKING: [], TOOL_JSON: []}
        for block, text in zip(reply.plan.blocks, contents, strict=True):
            texts[block.kind].append(text)
        message["content"] = "".join(texts[TEXT]) or None
        thinking = "".join(texts[THINKING])
        if thinking:
            message["reasoning_content"] = thinking
        if texts[TOOL_JSON]:
            message["tool_calls"] = [_call(reply, text) for text in texts[TOOL_JSON]]
    if reply.is_refusal:
        message["refusal"] = message["content"]
        message["content"] = None
    reason = reply.reason(STOP_REASONS)
    choice = {"index": 0, "message": message, "logprobs": None, "finish_reason": reason}
    completion = _chunk(reply, [choice]) | {"object": "chat.completion", "usage": _usage(reply)}
    return checks.to_json(completion)


def limit_headers(readings: Sequence[Reading], wall_ns: int) -> dict[str, str]:  # noqa: ARG001 - durations need no date
    """Return the rate-limit headers of a response; the tokens are those of the more restrictive limit."""
    headers = {}
    for name, reading in tightest_tokens(readings).items():
        if name in {"requests", "tokens"}:
            headers[f"x-ratelimit-limit-{name}"] = str(reading.limit)
            headers[f"x-ratelimit-remaining-{name}"] = str(reading.remaining)
            headers[f"x-ratelimit-reset-{name}"] = duration(reading.full_in_ns)
    return headers


def duration(ns: int) -> str:
    """Return the text of a duration, to the millisecond, rounded up: 0s, 120ms, 1.5s, 6m0s, 1h0m0s."""
    ms = -(-ns // 1_000_000)
    if 0 < ms < 1000:
        return f"{ms}ms"
    minutes, rest_ms = divmod(ms, 60_000)
    hours, minutes = divmod(minutes, 60)
    seconds = f"{rest_ms // 1000}.{rest_ms % 1000:03d}".rstrip("0").rstrip(".") + "s"
    if hours:
        return f"{hours}h{minutes}m{seconds}"
    if minutes:
        return f"{minutes}m{seconds}"
    return seconds


def _error(refused: Refused) -> dict[str, Any]:
    code = refused.error_code or _ERROR_CODES.get(refused.status)
    if refused.status == 404 and refused.param == "model":
        code = "model_not_found"
    kind = _ERROR_TYPES.get(refused.status, "invalid_request_error")
    return {
        "error": {"message": refused.message, "type": kind, "param": refused.param, "code": code}
    }


def _around(reply: Reply, delta: dict[str, Any]) -> tuple[bytes, bytes]:
    """Return the bytes of a chunk before and behind the mark `|` in its delta."""
    # The name of the model comes before the delta and may have this mark too, so the last mark is the right one.
    prefix, _, suffix = _event(_choice(reply, delta)).rpartition(b"|")
    return prefix, suffix


def _call(reply: Reply, arguments: str) -> dict[str, Any]:
    function = {"name": reply.request.tool or "", "arguments": arguments}
    return {"id": f"call_{reply.id}", "type": "function", "function": function}


def _choice(
    reply: Reply, delta: dict[str, Any], finish_reason: str | None = None
) -> dict[str, Any]:
    choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish_reason}
    chunk = _chunk(reply, [choice])
    # The provider sends `usage: null` in every chunk of a stream whose last chunk has the usage.
    if reply.request.include_usage:
        chunk["usage"] = None
    return chunk


def _chunk(reply: Reply, choices: list[dict[str, Any]]) -> dict[str, Any]:
    served = reply.served
    chunk: dict[str, Any] = {
        "id": f"chatcmpl-{reply.id}",
        "object": "chat.completion.chunk",
        "created": reply.created_s,
        "model": served.fallback or served.model or reply.request.model,
        "choices": choices,
    }
    if served.service_tier:
        chunk["service_tier"] = served.service_tier
    return chunk


def _usage(reply: Reply) -> dict[str, Any]:
    """Return the usage of the whole answer; details only where there are a cache or thinking."""
    request = reply.request
    prompt = request.input_tokens
    completion = request.max_tokens
    usage: dict[str, Any] = {"prompt_tokens": prompt, "completion_tokens": completion}
    usage["total_tokens"] = prompt + completion
    if reply.prompt is not None:
        written = reply.prompt.creation_5m + reply.prompt.creation_1h
        usage["prompt_tokens_details"] = {
            "cached_tokens": reply.prompt.read,
            "cache_write_tokens": written,
        }
    if reply.plan is not None and reply.plan.thinking_tokens:
        usage["completion_tokens_details"] = {"reasoning_tokens": reply.plan.thinking_tokens}
    return usage


def _event(data: dict[str, Any]) -> bytes:
    return b"data: %b\n\n" % checks.to_json(data)


# --- the provider's checks ---------------------------------------------------------------------------------------


def _max_tokens(body: dict[str, Any], default: int) -> int:
    """Return the answer's length, under its new name or its old one; both at once must not contradict each other."""
    old_value = body.get("max_tokens")
    new_value = body.get("max_completion_tokens")
    if new_value is None and old_value is None:
        return default
    if new_value is None:
        return checks.max_tokens(old_value, "max_tokens")
    count = checks.max_tokens(new_value, "max_completion_tokens")
    if old_value is not None and checks.max_tokens(old_value, "max_tokens") != count:
        raise invalid("max_tokens", "contradicts max_completion_tokens, give one of them")
    return count


def _n(_: dict[str, Any], value: object) -> None:
    if not isinstance(value, int) or isinstance(value, bool) or value != 1:
        raise invalid("n", "this endpoint answers with one choice, only 1 is supported")


def _tools(_: dict[str, Any], value: object) -> None:
    if not isinstance(value, list):
        raise invalid("tools", "must be a list of objects")
    for i, tool in enumerate(value):
        require(tool, f"tools.{i}", {"type": str})
        kind = checks.one_of(tool, "type", f"tools.{i}.type", _TOOLS)
        table = require(tool.get(kind), f"tools.{i}.{kind}", {"name": str})
        if "parameters" in table:
            require(table, f"tools.{i}.{kind}", {"parameters": dict})


def _tool_choice(body: dict[str, Any], value: object) -> None:
    """Raise `Refused` for a choice without tools, of an unknown kind, or of a tool that is not there."""
    if not body.get("tools") and value != "none":
        raise invalid("tool_choice", "is only allowed when tools are specified")
    if isinstance(value, str):
        checks.one_of(body, "tool_choice", "tool_choice", _CHOICES)
        return
    table = require(value, "tool_choice", {"type": str})
    kind = checks.one_of(table, "type", "tool_choice.type", ("function", "custom", "allowed_tools"))
    if kind == "allowed_tools":
        require(table.get(kind), f"tool_choice.{kind}", {"mode": str, "tools": list})
        return
    choice = require(table.get(str(kind)), f"tool_choice.{kind}", {"name": str})
    names = [tool[tool["type"]]["name"] for tool in body["tools"]]
    if choice["name"] not in names:
        raise invalid(f"tool_choice.{kind}.name", "must be the name of one of the tools")


def _response_format(_: dict[str, Any], value: object) -> None:
    table = require(value, "response_format", {"type": str})
    if checks.one_of(table, "type", "response_format.type", _FORMATS) == "json_schema":
        require(table.get("json_schema"), "response_format.json_schema", {"name": str})


def _stream_options(body: dict[str, Any], value: object) -> None:
    table = require(value, "stream_options", {})
    if not body.get("stream"):
        raise invalid("stream_options", "only allowed when stream is true")
    checks.flag(table, "include_usage", "stream_options.include_usage")


_RULES = {
    "n": _n,
    "tools": _tools,
    "tool_choice": _tool_choice,  # behind the tools, which it names
    "response_format": _response_format,
    "stream_options": _stream_options,
}
