"""The OpenAI chat completions protocol, from the server's side.

Rule: pure: bodies in, bytes out, no clock and no sockets. An event is a `data:` line and an empty line; the stream
opens with the role, then an empty content, and ends with `[DONE]`.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from tailgauge.rows.schema import TEXT, THINKING, TOOL_JSON
from tailgauge.simulator import ask, chat_body
from tailgauge.simulator.ask import Ask, Refused, Reply
from tailgauge.simulator.content import JSON_DELTA, SIGNATURE_DELTA, TEXT_DELTA
from tailgauge.simulator.content_blocks import OPENAI, content_tokens

NAME = "openai"
PATH = "/v1/chat/completions"
REQUEST_ID_HEADER = "x-request-id"
OVERLOADED_STATUS = 503

_DEFAULT_MAX_TOKENS = 16
_ERROR_CODES = {
    401: "invalid_api_key",
    404: "unknown_url",
    405: "method_not_supported",
    413: "request_too_large",
    429: "rate_limit_exceeded",
}
_ERROR_TYPES = {429: "rate_limit_error", 500: "server_error", 503: "server_error"}


def parse(body: dict[str, Any], version: str = "") -> Ask:  # noqa: ARG001 - this protocol has no versions
    """Check a chat completions body; the answer's length is optional, under its new name or its old one."""
    model = ask.model(body)
    stream = ask.flag(body, "stream", "stream")
    max_tokens = chat_body.max_tokens(body, _DEFAULT_MAX_TOKENS)
    input_tokens = 0
    for i, message in enumerate(ask.messages(body, tuple(OPENAI))):
        chat_body.check_speaker(message, f"messages.{i}")
        content, role = message.get("content"), message["role"]
        if content is not None or role != "assistant":  # an assistant may have said nothing but tool calls
            input_tokens += content_tokens(content, f"messages.{i}.content", OPENAI[role])
    chat_body.check(body)
    options = body.get("stream_options") or {}
    input_tokens += chat_body.tools_tokens(body)
    return Ask(model, max_tokens, input_tokens, stream, include_usage=bool(options.get("include_usage")))


def refusal(refused: Refused, request_id: str) -> bytes:  # noqa: ARG001 - this protocol names it in the header only
    """The error body."""
    return _json(_error(refused))


def broken(refused: Refused) -> bytes:
    """The event of an error within a stream."""
    return _event(_error(refused))


def ping() -> bytes:
    """Nothing: this protocol has no such event."""
    return b""


def opening(reply: Reply) -> bytes:
    """The role, with an empty content: it is no content chunk."""
    opened = _event(_choice(reply, {"role": "assistant", "content": ""}))
    return opened if reply.plan is None else opened + _tool_start(reply, 0)


def around_text(reply: Reply) -> tuple[bytes, bytes]:
    """The bytes of a content chunk before and behind its text."""
    return _around(reply, {"content": "|"})


def delta(reply: Reply, block: int, kind: str) -> tuple[bytes, bytes] | None:  # noqa: ARG001 - a Wire's arguments
    """The bytes of any delta before and behind what it carries; there are no signatures."""
    if kind == SIGNATURE_DELTA:
        return None
    if kind == JSON_DELTA:
        return _around(reply, {"tool_calls": [{"index": 0, "function": {"arguments": "|"}}]})
    return _around(reply, {"content" if kind == TEXT_DELTA else "reasoning_content": "|"})


def between(reply: Reply, block: int) -> bytes:
    """Blocks are not told apart; a tool call begins with its name."""
    return _tool_start(reply, block)


def closing(reply: Reply) -> bytes:
    """The finish reason, the usage where asked for, and the end mark."""
    events = _event(_choice(reply, {}, _finish_reason(reply)))
    if reply.ask.include_usage:
        events += _event(_chunk(reply, []) | {"usage": _usage(reply)})
    return events + b"data: [DONE]\n\n"


def whole(reply: Reply, contents: Sequence[str]) -> bytes:
    """The body of an answer that is not streamed, with what each of its blocks says."""
    message: dict[str, Any] = {"role": "assistant", "content": "".join(contents), "refusal": None}
    if reply.plan is not None:
        said = [(block.kind, text) for block, text in zip(reply.plan.blocks, contents, strict=True)]
        message["content"] = "".join(text for kind, text in said if kind == TEXT) or None
        thoughts = "".join(text for kind, text in said if kind == THINKING)
        if thoughts:
            message["reasoning_content"] = thoughts
        calls = [_call(reply, text) for kind, text in said if kind == TOOL_JSON]
        if calls:
            message["tool_calls"] = calls
    choice = {"index": 0, "message": message, "logprobs": None, "finish_reason": _finish_reason(reply)}
    return _json(_chunk(reply, [choice]) | {"object": "chat.completion", "usage": _usage(reply)})


def _error(refused: Refused) -> dict[str, Any]:
    code = refused.error_code or _ERROR_CODES.get(refused.status)
    if refused.status == 404 and refused.param == "model":
        code = "model_not_found"
    error = {
        "message": refused.message,
        "type": _ERROR_TYPES.get(refused.status, "invalid_request_error"),
        "param": refused.param,
        "code": code,
    }
    return {"error": error}


def _around(reply: Reply, delta: dict[str, Any]) -> tuple[bytes, bytes]:
    # The model's name stands before the delta and may hold anything, so cut at the last mark, not at the first.
    before, _, behind = _event(_choice(reply, delta)).rpartition(b"|")
    return before, behind


def _tool_start(reply: Reply, block: int) -> bytes:
    assert reply.plan is not None
    if reply.plan.blocks[block].kind != TOOL_JSON:
        return b""
    return _event(_choice(reply, {"tool_calls": [{"index": 0, **_call(reply, "")}]}))


def _call(reply: Reply, arguments: str) -> dict[str, Any]:
    return {
        "id": f"call_{reply.id}",
        "type": "function",
        "function": {"name": reply.tool, "arguments": arguments},
    }


def _finish_reason(reply: Reply) -> str:
    return "tool_calls" if reply.plan is not None and reply.plan.stop_reason == "tool_use" else "length"


def _choice(reply: Reply, delta: dict[str, Any], finish_reason: str | None = None) -> dict[str, Any]:
    choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish_reason}
    chunk = _chunk(reply, [choice])
    # The provider sends `usage: null` in every chunk of a stream that will end with one.
    return chunk | {"usage": None} if reply.ask.include_usage else chunk


def _chunk(reply: Reply, choices: list[dict[str, Any]]) -> dict[str, Any]:
    return {
        "id": f"chatcmpl-{reply.id}",
        "object": "chat.completion.chunk",
        "created": reply.created_s,
        "model": reply.ask.model,
        "choices": choices,
    }


def _usage(reply: Reply) -> dict[str, Any]:
    asked = reply.ask
    usage: dict[str, Any] = {
        "prompt_tokens": asked.input_tokens,
        "completion_tokens": asked.max_tokens,
        "total_tokens": asked.input_tokens + asked.max_tokens,
    }
    if reply.prompted is not None:
        usage["prompt_tokens_details"] = {"cached_tokens": reply.prompted.read}
    if reply.plan is not None and reply.plan.thinking_tokens:
        usage["completion_tokens_details"] = {"reasoning_tokens": reply.plan.thinking_tokens}
    return usage


def _event(data: dict[str, Any]) -> bytes:
    return b"data: %b\n\n" % _json(data)


def _json(value: object) -> bytes:
    # As UTF-8, not as escapes: a client must stand a chunk that ends inside a character. An error may quote half of a
    # surrogate pair, which has no UTF-8.
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False).encode("utf-8", "replace")
