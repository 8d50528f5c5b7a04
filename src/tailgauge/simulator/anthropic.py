"""The Anthropic Messages protocol, from the server's side.

Rule: pure: bodies in, bytes out, no clock and no sockets. An event is `event:` and `data:` lines and an empty line.
"""

from __future__ import annotations

import json
from typing import Any

from tailgauge.simulator import ask, messages_body
from tailgauge.simulator.ask import Ask, Refused, Reply
from tailgauge.simulator.content_blocks import ANTHROPIC, SYSTEM, content_tokens

NAME = "anthropic"
PATH = "/v1/messages"
REQUEST_ID_HEADER = "request-id"

_ERROR_TYPES = {
    400: "invalid_request_error",
    401: "authentication_error",
    402: "billing_error",
    403: "permission_error",
    404: "not_found_error",
    405: "invalid_request_error",
    408: "invalid_request_error",
    409: "conflict_error",
    413: "request_too_large",
    429: "rate_limit_error",
    504: "timeout_error",
    529: "overloaded_error",
}


def parse(body: dict[str, Any], version: str = "") -> Ask:
    """Check a Messages body under a version of the API; `max_tokens` is required, and 0 fills the cache only."""
    model = ask.model(body)
    max_tokens = ask.max_tokens(body.get("max_tokens"), "max_tokens", least=0)
    stream = ask.flag(body, "stream", "stream")
    input_tokens = prompt_tokens(body, version)
    messages_body.check_length(body, max_tokens)
    return Ask(model, max_tokens, input_tokens, stream)


def prompt_tokens(body: dict[str, Any], version: str = "") -> int:
    """Check all of a body that says what goes in, and count it: the whole of a `count_tokens` call."""
    conversation = ask.messages(body, tuple(ANTHROPIC))
    system = body.get("system")
    count = content_tokens(system, "system", SYSTEM) if system else 0
    for i, message in enumerate(conversation):
        param = f"messages.{i}.content"
        count += content_tokens(message.get("content"), param, ANTHROPIC[message["role"]])
        _refuse_citations(message, param)
    messages_body.check(body, version)
    return count + messages_body.tools_tokens(body)


def _refuse_citations(message: dict[str, Any], param: str) -> None:
    if message["role"] != "user" or isinstance(message["content"], str):
        return
    for i, block in enumerate(message["content"]):
        if block["type"] == "text" and block.get("citations"):
            raise ask.invalid(f"{param}.{i}.citations", "not permitted on a user's text")


def refusal(refused: Refused, request_id: str) -> bytes:
    """The error body."""
    error = {"type": _ERROR_TYPES.get(refused.status, "api_error"), "message": refused.message}
    return _json({"type": "error", "error": error, "request_id": request_id})


def opening(reply: Reply) -> bytes:
    """The events before the first delta."""
    message = _message(reply, [], None, output_tokens=1)
    block = {"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}}
    return _event({"type": "message_start", "message": message}) + _event(block)


def around_text(reply: Reply) -> tuple[bytes, bytes]:  # noqa: ARG001 - the same for every reply; not so in OpenAI
    """The bytes of a text delta before and behind its text."""
    delta = {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": "|"}}
    before, _, behind = _event(delta).partition(b"|")
    return before, behind


def closing(reply: Reply) -> bytes:
    """The events after the last delta. The answer always runs into `max_tokens`."""
    ended = {
        "type": "message_delta",
        "delta": {"stop_reason": "max_tokens", "stop_sequence": None},
        "usage": _usage(reply, reply.ask.max_tokens),
    }
    return (
        _event({"type": "content_block_stop", "index": 0}) + _event(ended) + _event({"type": "message_stop"})
    )


def whole(reply: Reply, text: str) -> bytes:
    """The body of an answer that is not streamed."""
    content = [{"type": "text", "text": text}]
    return _json(_message(reply, content, "max_tokens", reply.ask.max_tokens))


def _message(
    reply: Reply, content: list[dict[str, str]], stop_reason: str | None, output_tokens: int
) -> dict[str, Any]:
    return {
        "id": f"msg_{reply.id}",
        "type": "message",
        "role": "assistant",
        "model": reply.ask.model,
        "content": content,
        "stop_reason": stop_reason,
        "stop_sequence": None,
        "usage": _usage(reply, output_tokens),
    }


def _usage(reply: Reply, output_tokens: int) -> dict[str, int]:
    return {
        "input_tokens": reply.ask.input_tokens,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": 0,
        "output_tokens": output_tokens,
    }


def _event(data: dict[str, Any]) -> bytes:
    return b"event: %b\ndata: %b\n\n" % (data["type"].encode(), _json(data))


def _json(value: object) -> bytes:
    # As UTF-8, not as escapes: a client must stand a chunk that ends inside a character. An error may quote half of a
    # surrogate pair, which has no UTF-8.
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False).encode("utf-8", "replace")
