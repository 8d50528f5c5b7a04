"""How an error is written inside a stream whose status is 200: a row each.

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

from collections.abc import Callable, Mapping
from typing import Any

from tailgauge.simulator.protocols.request import Refused, Reply, to_json
from tailgauge.simulator.protocols.wire import Wire

_TYPES = {429: "rate_limit_error", 503: "overloaded_error", 529: "overloaded_error"}


def error_in_stream(shape: str, wire: Wire, reply: Reply | None, refused: Refused) -> bytes:
    """Return the events that end a stream by an error; `reply` is that of an answer that has begun."""
    return SHAPES[shape](wire, reply, refused)


def _provider(wire: Wire, reply: Reply | None, refused: Refused) -> bytes:  # noqa: ARG001 - a row's arguments
    return wire.error_event(refused)


def _wrapped(wire: Wire, reply: Reply | None, refused: Refused) -> bytes:  # noqa: ARG001
    error = {"message": refused.message, "type": "None", "param": None, "code": str(refused.status)}
    return _data({"error": error})


def _flat(wire: Wire, reply: Reply | None, refused: Refused) -> bytes:  # noqa: ARG001
    error = {"object": "error", "message": refused.message, "type": _type(refused), "param": None}
    return _data(error | {"code": refused.status}) + b"data: [DONE]\n\n"


def _message(wire: Wire, reply: Reply | None, refused: Refused) -> bytes:  # noqa: ARG001
    return _data({"message": refused.message, "code": refused.status})


def _detail(wire: Wire, reply: Reply | None, refused: Refused) -> bytes:  # noqa: ARG001
    return _data({"detail": refused.message, "status": refused.status})


def _field(wire: Wire, reply: Reply | None, refused: Refused) -> bytes:  # noqa: ARG001
    error = {"code": refused.status, "message": refused.message, "type": _type(refused)}
    return b"error: %b\n\ndata: [DONE]\n\n" % to_json(error)


def _chunk(wire: Wire, reply: Reply | None, refused: Refused) -> bytes:  # noqa: ARG001
    choice = {"index": 0, "delta": {"role": "assistant", "content": ""}, "finish_reason": "error"}
    chunk: dict[str, Any] = {"id": "gen-0", "object": "chat.completion.chunk", "created": 0, "model": ""}
    if reply is not None:
        chunk |= {"id": f"gen-{reply.id}", "created": reply.created_s, "model": reply.request.model}
    error = {"code": refused.status, "message": refused.message}
    return _data(chunk | {"error": error, "choices": [choice]}) + b"data: [DONE]\n\n"


def _type(refused: Refused) -> str:
    return _TYPES.get(refused.status, "internal_server_error")


def _data(tree: dict[str, Any]) -> bytes:
    return b"data: %b\n\n" % to_json(tree)


SHAPES: Mapping[str, Callable[[Wire, Reply | None, Refused], bytes]] = {
    "provider": _provider,
    "wrapped": _wrapped,
    "flat": _flat,
    "message": _message,
    "detail": _detail,
    "field": _field,
    "chunk": _chunk,
}
