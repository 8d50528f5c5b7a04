"""The shapes of an error inside a stream whose status is 200: a row each.

    provider  as the provider does: an `error` event in Messages, an object in chat completions
    wrapped   `{"error": {...}}` without the name of an event, whatever the protocol: LiteLLM
    flat      `{"object": "error", "message": ..., "code": 500}`: older vLLM, LMDeploy
    message   `{"message": ..., "code": 502}`: gateways
    detail    `{"detail": ...}`: gateways that are written in FastAPI
    field     the field `error:` in place of `data:`, and then [DONE]: llama.cpp (llama.cpp#16104)
    chunk     a chunk with the finish reason `error` and an error beside its choices: OpenRouter

Sources: public issues and the engines' own sources (2026-11).
"""

from __future__ import annotations

from typing import Any

from tailgauge.simulator.protocols.request import Refused, Reply, to_json
from tailgauge.simulator.protocols.wire import Wire

_TYPES = {429: "rate_limit_error", 503: "overloaded_error", 529: "overloaded_error"}
_WITH_DONE = {"flat", "field", "chunk"}


def error_in_stream(shape: str, wire: Wire, reply: Reply | None, refused: Refused) -> bytes:
    """Return the events that end a stream by an error; `reply` is that of an answer that has begun."""
    if shape == "provider":
        return wire.error_event(refused)
    status = refused.status
    message = refused.message
    kind = _TYPES.get(status, "internal_server_error")
    trees: dict[str, dict[str, Any]] = {
        "wrapped": {
            "error": {"message": message, "type": "None", "param": None, "code": str(status)}
        },
        "flat": {
            "object": "error",
            "message": message,
            "type": kind,
            "param": None,
            "code": status,
        },
        "message": {"message": message, "code": status},
        "detail": {"detail": message, "status": status},
        "field": {"code": status, "message": message, "type": kind},
        "chunk": _chunk(reply) | {"error": {"code": status, "message": message}},
    }
    field = b"error" if shape == "field" else b"data"
    events = b"%b: %b\n\n" % (field, to_json(trees[shape]))
    if shape in _WITH_DONE:
        events += b"data: [DONE]\n\n"
    return events


def _chunk(reply: Reply | None) -> dict[str, Any]:
    """Return a chunk with the finish reason `error`; None: no chunk has come before it."""
    choice = {"index": 0, "delta": {"role": "assistant", "content": ""}, "finish_reason": "error"}
    chunk: dict[str, Any] = {"object": "chat.completion.chunk", "choices": [choice]}
    if reply is None:
        return chunk | {"id": "gen-0", "created": 0, "model": ""}
    return chunk | {
        "id": f"gen-{reply.id}",
        "created": reply.created_s,
        "model": reply.request.model,
    }
