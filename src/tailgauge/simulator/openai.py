"""The OpenAI chat completions protocol, from the server's side.

Rule: pure: bodies in, bytes out, no clock and no sockets. An event is a `data:` line and an empty line; the stream
opens with the role, then an empty content, and ends with `[DONE]`.
"""

from __future__ import annotations

import json
from typing import Any

from tailgauge.simulator import ask
from tailgauge.simulator.ask import Ask, Refused, Reply

NAME = "openai"
PATH = "/v1/chat/completions"
REQUEST_ID_HEADER = "x-request-id"

_ROLES = ("developer", "system", "user", "assistant", "tool", "function")
_DEFAULT_MAX_TOKENS = 16
_ERROR_CODES = {
    401: "invalid_api_key",
    404: "unknown_url",
    405: "method_not_supported",
    413: "request_too_large",
}


def parse(body: dict[str, Any]) -> Ask:
    """Check a chat completions body; the answer's length is optional, under its new name or its old one."""
    param = "max_tokens" if body.get("max_completion_tokens") is None else "max_completion_tokens"
    asked = body.get(param)
    stream = ask.flag(body, "stream", "stream")
    options = body.get("stream_options")
    if options is not None and not isinstance(options, dict):
        raise ask.invalid("stream_options", "must be an object")
    if options is not None and not stream:
        raise ask.invalid("stream_options", "only allowed when stream is true")
    return Ask(
        model=ask.model(body),
        max_tokens=_DEFAULT_MAX_TOKENS if asked is None else ask.max_tokens(asked, param),
        input_tokens=ask.messages_tokens(body, _ROLES, null_content=True),
        stream=stream,
        include_usage=ask.flag(options or {}, "include_usage", "stream_options.include_usage"),
    )


def refusal(refused: Refused, request_id: str) -> bytes:  # noqa: ARG001 - this protocol names it in the header only
    """The error body."""
    code = _ERROR_CODES.get(refused.status)
    error = {
        "message": refused.message,
        "type": "invalid_request_error",
        "param": refused.param,
        "code": code,
    }
    return _json({"error": error})


def opening(reply: Reply) -> bytes:
    """The role, with an empty content: it is no content chunk."""
    return _event(_choice(reply, {"role": "assistant", "content": ""}))


def around_text(reply: Reply) -> tuple[bytes, bytes]:
    """The bytes of a content chunk before and behind its text."""
    # The model's name stands before the delta and may hold anything, so cut at the last mark, not at the first.
    before, _, behind = _event(_choice(reply, {"content": "|"})).rpartition(b"|")
    return before, behind


def closing(reply: Reply) -> bytes:
    """The finish reason, the usage where asked for, and the end mark."""
    events = _event(_choice(reply, {}, "length"))
    if reply.ask.include_usage:
        events += _event(_chunk(reply, []) | {"usage": _usage(reply)})
    return events + b"data: [DONE]\n\n"


def whole(reply: Reply, text: str) -> bytes:
    """The body of an answer that is not streamed."""
    message = {"role": "assistant", "content": text, "refusal": None}
    choice = {"index": 0, "message": message, "logprobs": None, "finish_reason": "length"}
    return _json(_chunk(reply, [choice]) | {"object": "chat.completion", "usage": _usage(reply)})


def _choice(reply: Reply, delta: dict[str, str], finish_reason: str | None = None) -> dict[str, Any]:
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


def _usage(reply: Reply) -> dict[str, int]:
    asked = reply.ask
    return {
        "prompt_tokens": asked.input_tokens,
        "completion_tokens": asked.max_tokens,
        "total_tokens": asked.input_tokens + asked.max_tokens,
    }


def _event(data: dict[str, Any]) -> bytes:
    return b"data: %b\n\n" % _json(data)


def _json(value: object) -> bytes:
    return json.dumps(value, separators=(",", ":")).encode()
