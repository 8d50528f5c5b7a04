"""The Anthropic Messages protocol, from the server's side.

Rule: pure: bodies in, bytes out, no clock and no sockets. An event is `event:` and `data:` lines and an empty line.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from tailgauge.rows.schema import TEXT, THINKING
from tailgauge.simulator import ask, messages_body
from tailgauge.simulator.ask import Ask, Prompted, Refused, Reply
from tailgauge.simulator.content import JSON_DELTA, SIGNATURE_DELTA, TEXT_DELTA, THINKING_DELTA
from tailgauge.simulator.content_blocks import ANTHROPIC, SYSTEM, content_tokens

NAME = "anthropic"
PATH = "/v1/messages"
REQUEST_ID_HEADER = "request-id"
OVERLOADED_STATUS = 529

_CARRIER = {TEXT_DELTA: "text", THINKING_DELTA: "thinking", JSON_DELTA: "partial_json"}
_SIGNATURE = "c2ltdWxhdGVkIHRoaW5raW5nLCBzaWduZWQgYnkgbm9ib2R5"

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
    return _json(_error(refused) | {"request_id": request_id})


def broken(refused: Refused) -> bytes:
    """The event of an error within a stream."""
    return _event(_error(refused))


def ping() -> bytes:
    """The event that keeps a silent stream alive."""
    return _event({"type": "ping"})


def opening(reply: Reply) -> bytes:
    """The events before the first delta."""
    message = _message(reply, [], None, output_tokens=1)
    return _event({"type": "message_start", "message": message}) + _block_start(reply, 0)


def around_text(reply: Reply) -> tuple[bytes, bytes]:  # noqa: ARG001 - the same for every reply; not so in OpenAI
    """The bytes of a text delta before and behind its text."""
    return _around(0, {"type": "text_delta", "text": "|"})


def delta(reply: Reply, block: int, kind: str) -> tuple[bytes, bytes]:  # noqa: ARG001 - a Wire's arguments
    """The bytes of any delta before and behind what it carries; a signature is carried already."""
    if kind == SIGNATURE_DELTA:
        signed = {"type": kind, "signature": _SIGNATURE}
        return _event({"type": "content_block_delta", "index": block, "delta": signed}), b""
    return _around(block, {"type": kind, _CARRIER[kind]: "|"})


def between(reply: Reply, block: int) -> bytes:
    """The end of the block before, and the start of this one."""
    return _event({"type": "content_block_stop", "index": block - 1}) + _block_start(reply, block)


def closing(reply: Reply) -> bytes:
    """The events after the last delta."""
    plan = reply.plan
    last = 0 if plan is None else len(plan.blocks) - 1
    ended = {
        "type": "message_delta",
        "delta": {"stop_reason": _stop_reason(reply), "stop_sequence": None},
        "usage": _usage(reply, reply.ask.max_tokens, cumulative=True),
    }
    return (
        _event({"type": "content_block_stop", "index": last})
        + _event(ended)
        + _event({"type": "message_stop"})
    )


def whole(reply: Reply, contents: Sequence[str]) -> bytes:
    """The body of an answer that is not streamed, with what each of its blocks says."""
    if not reply.ask.max_tokens:
        return _json(_message(reply, [], "max_tokens", 0))
    blocks = [_block(reply, number, said) for number, said in enumerate(contents)]
    return _json(_message(reply, blocks, _stop_reason(reply), reply.ask.max_tokens))


def _error(refused: Refused) -> dict[str, Any]:
    error: dict[str, Any] = {
        "type": _ERROR_TYPES.get(refused.status, "api_error"),
        "message": refused.message,
    }
    if refused.error_code is not None:
        error["details"] = {"error_code": refused.error_code}
    return {"type": "error", "error": error}


def _around(block: int, delta: dict[str, str]) -> tuple[bytes, bytes]:
    before, _, behind = _event({"type": "content_block_delta", "index": block, "delta": delta}).partition(
        b"|"
    )
    return before, behind


def _block_start(reply: Reply, number: int) -> bytes:
    block = _block(reply, number, "", starting=True)
    return _event({"type": "content_block_start", "index": number, "content_block": block})


def _block(reply: Reply, number: int, said: str, *, starting: bool = False) -> dict[str, Any]:
    """A content block with all that it says, or as it starts."""
    kind = TEXT if reply.plan is None else reply.plan.blocks[number].kind
    if kind == TEXT:
        return {"type": "text", "text": said}
    if kind == THINKING:
        return {"type": "thinking", "thinking": said, "signature": "" if starting else _SIGNATURE}
    given = json.loads(said) if said else {}
    return {"type": "tool_use", "id": f"toolu_{reply.id}", "name": reply.tool, "input": given}


def _stop_reason(reply: Reply) -> str:
    return "max_tokens" if reply.plan is None else reply.plan.stop_reason


def _message(
    reply: Reply, content: list[dict[str, Any]], stop_reason: str | None, output_tokens: int
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


def _usage(reply: Reply, output_tokens: int, *, cumulative: bool = False) -> dict[str, Any]:
    """`cumulative`: of the stream's end, which says no more how long the written entries live."""
    prompted = reply.prompted or Prompted(reply.ask.input_tokens, 0, 0, 0)
    usage: dict[str, Any] = {
        "input_tokens": prompted.input_tokens,
        "cache_creation_input_tokens": prompted.creation_5m + prompted.creation_1h,
        "cache_read_input_tokens": prompted.read,
        "output_tokens": output_tokens,
    }
    if reply.prompted is not None and not cumulative:
        usage["cache_creation"] = {
            "ephemeral_5m_input_tokens": prompted.creation_5m,
            "ephemeral_1h_input_tokens": prompted.creation_1h,
        }
    if reply.plan is not None and reply.plan.thinking_tokens and output_tokens == reply.ask.max_tokens:
        usage["output_tokens_details"] = {"thinking_tokens": reply.plan.thinking_tokens}
    return usage


def _event(data: dict[str, Any]) -> bytes:
    return b"event: %b\ndata: %b\n\n" % (data["type"].encode(), _json(data))


def _json(value: object) -> bytes:
    # As UTF-8, not as escapes: a client must stand a chunk that ends inside a character. An error may quote half of a
    # surrogate pair, which has no UTF-8.
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False).encode("utf-8", "replace")
