"""The OpenAI chat completions protocol, from the server's side.

Rule: pure: bodies in, bytes out, no clock and no sockets. An event is a `data:` line and an empty line; the stream
opens with the role, then an empty content, and ends with `[DONE]`.
"""

from __future__ import annotations

import json
from typing import Any

from tailgauge.simulator import ask, chat_body
from tailgauge.simulator.ask import Ask, Refused, Reply
from tailgauge.simulator.content_blocks import OPENAI, content_tokens

NAME = "openai"
PATH = "/v1/chat/completions"
REQUEST_ID_HEADER = "x-request-id"

_DEFAULT_MAX_TOKENS = 16
_ERROR_CODES = {
    401: "invalid_api_key",
    404: "unknown_url",
    405: "method_not_supported",
    413: "request_too_large",
}


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
    code = _ERROR_CODES.get(refused.status)
    if refused.status == 404 and refused.param == "model":
        code = "model_not_found"
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
    # As UTF-8, not as escapes: a client must stand a chunk that ends inside a character. An error may quote half of a
    # surrogate pair, which has no UTF-8.
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False).encode("utf-8", "replace")
