"""Everything that the official SDKs can read of a stream is named here: read by a protocol, or left alone for a reason.

A new release of an SDK that adds an event, a delta, a block, a stop reason, an error or a field of a usage fails here.
"""

from __future__ import annotations

import inspect
import json
import typing
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from anthropic.types import ErrorObject, RawMessageStreamEvent
from anthropic.types.beta import BetaRawMessageStreamEvent
from anthropic.types.beta_error import BetaError
from openai.types.chat import ChatCompletion, ChatCompletionChunk
from pydantic import BaseModel

from tailgauge import protocol_violations as violations
from tailgauge import vendors
from tailgauge.protocols import anthropic, decoder, openai, usage
from tailgauge.protocols.anthropic import Anthropic

ROOTS: dict[str, tuple[Any, ...]] = {
    "anthropic": (RawMessageStreamEvent, BetaRawMessageStreamEvent),
    "openai": (ChatCompletionChunk, ChatCompletion),
}
SOURCES = {"anthropic": anthropic, "openai": openai}

# Fields that are not read, and why; what stands in them is not looked at either.
NOT_READ: dict[str, dict[str, str]] = {
    "anthropic": {
        "role": "always the assistant",
        "container": "where code ran: no part of the answer",
        "context_management": "which old blocks were dropped from the prompt: the usage has what was counted",
        "input_transformations": "which thinking of earlier turns was dropped: the usage has what was counted",
        "stop_sequence": "which sequence it was that ended the answer; that one did stands in stop_reason",
        "signature": "no content",
        "citations": "of a whole block; in a stream they come as citations_delta",
        "citation": "its text stands in the answer; it is counted by its event",
        "data": "encrypted thinking",
        "caller": "who called the tool",
        "tool_use_id": "which call a result belongs to",
        "is_error": "of a result that the target has brought itself",
        "file_id": "an upload that the target has made itself",
        "server_name": "which MCP server a tool is at",
        "tools": "what an MCP server offers",
        "trigger": "why another model went on; which one is read",
        "encrypted_content": "of a compaction",
        "fallback_credit": "a credit for another request",
        "fallback_credit_token": "a credit for another request",
        "fallback_has_prefill_claim": "a credit for another request",
        "recommended_model": "advice for another request",
        "tool_changes": "which tools a compaction added or removed",
        "toolset_name": "which set of tools a call is of",
        "mcp_server_name": "which MCP server a tool is at",
        "estimated_tokens": "a guess while thinking is hidden; the usage has the count",
        "from_": "`from` on the wire, which is read",
    },
    "openai": {
        "created": "the target's clock in seconds",
        "object": "always the same; an error's is read",
        "role": "always the assistant",
        "logprobs": "not asked for",
        "moderation": "not asked for",
        "obfuscation": "padding",
        "system_fingerprint": "no figure depends on it",
        "expires_at": "of audio",
        "metadata": "what the request said",
        "annotations": "citations of a search that only the Responses API streams",
    },
}  # fmt: skip
# Fields of the parts of a count, which are in the count.
IN_THE_COUNT = {
    "audio_tokens", "image_tokens", "text_tokens", "accepted_prediction_tokens", "rejected_prediction_tokens",
    "web_search_requests", "web_fetch_requests",
}  # fmt: skip
# Blocks that pass as unknown events, with the reason.
PASSED_OVER: dict[str, str] = {}


def models_of(annotation: Any) -> Iterator[type[BaseModel]]:
    """Yield the models of a field's type, whatever is around them."""
    if inspect.isclass(annotation) and issubclass(annotation, BaseModel):
        yield annotation
    for part in typing.get_args(annotation):
        yield from models_of(part)


def literals_of(annotation: Any) -> Iterator[str]:
    if typing.get_origin(annotation) is typing.Literal:
        yield from typing.get_args(annotation)
        return
    for part in typing.get_args(annotation):
        yield from literals_of(part)


def kinds_of(union: Any) -> set[str]:
    """Return the values of `type` in a union of models."""
    kinds: set[str] = set()
    for model in models_of(union):
        kinds |= set(literals_of(model.model_fields["type"].annotation))
    return kinds


def named(protocol: str) -> str:
    """Return the code and data in which a protocol names what it reads."""
    files = [Path(inspect.getfile(module)) for module in (SOURCES[protocol], decoder)]
    return "".join(path.read_text(encoding="utf-8") for path in (*files, vendors.FILE))


def is_named(field: str, text: str) -> bool:
    return f'"{field}"' in text or f"/{field}" in text


def walked(protocol: str) -> Iterator[tuple[type[BaseModel], str]]:
    """Yield the fields of all that may come, but for those within a field that is not read."""
    waiting = [model for root in ROOTS[protocol] for model in models_of(root)]
    seen = set(waiting)
    while waiting:
        model = waiting.pop()
        for name, field in model.model_fields.items():
            yield model, name
            if name in NOT_READ[protocol] or is_result(model):
                continue
            fresh = [inner for inner in models_of(field.annotation) if inner not in seen]
            seen.update(fresh)
            waiting += fresh


def is_result(model: type[BaseModel]) -> bool:
    """Return whether it is what a tool of the target has brought: no part of the answer."""
    return model.__name__.endswith("ToolResultBlock")


def unnamed_fields(protocol: str) -> set[str]:
    """Return the fields that are neither read nor left alone."""
    text = named(protocol)
    unnamed = set()
    for model, name in walked(protocol):
        if not (is_named(name, text) or name in NOT_READ[protocol] or name in IN_THE_COUNT):
            unnamed.add(f"{model.__name__}.{name}")
    return unnamed


@pytest.mark.parametrize("protocol", ROOTS)
def test_every_field_of_the_sdks_types_is_read_or_left_alone_for_a_reason(protocol):
    assert len(list(walked(protocol))) > 40
    assert unnamed_fields(protocol) == set()


@pytest.mark.parametrize("protocol", ROOTS)
def test_every_field_of_a_usage_is_known(protocol):
    names = {"Usage", "MessageDeltaUsage", "BetaUsage", "BetaMessageDeltaUsage", "CompletionUsage"}
    usages = {model for model, _ in walked(protocol) if model.__name__ in names}
    fields = set().union(*(model.model_fields for model in usages))

    assert len(usages) == {"anthropic": 4, "openai": 1}[protocol]
    assert fields - usage._table(protocol).names == set()


def tolerated(event: dict[str, Any]) -> set[str]:
    """Return what is noted of an event that comes as its type says."""
    fresh = decoder.StreamDecoder(Anthropic.on_event, decoder.AnswerSettings(protocol="anthropic"))
    Anthropic.on_event(fresh, event["type"].encode(), json.dumps(event).encode())
    return set(fresh.tolerated)


@pytest.mark.parametrize("root", ROOTS["anthropic"], ids=["stable", "beta"])
def test_every_event_is_known(root):
    more = {
        "index": 0,
        "message": {},
        "delta": {"type": "text_delta", "text": ""},
        "content_block": {"type": "text"},
    }
    unknown = {
        kind
        for kind in kinds_of(root)
        if violations.UNKNOWN_EVENT in tolerated({"type": kind, **more})
    }

    assert kinds_of(root) >= {"message_start", "message_delta", "message_stop"}
    assert unknown == set()


def annotation_within(root: Any, event: str, field: str) -> Any:
    """Return the type of a field of one of the events."""
    models = [model for model in models_of(root) if event in kinds_of(model)]
    return models[0].model_fields[field].annotation


@pytest.mark.parametrize("root", ROOTS["anthropic"], ids=["stable", "beta"])
def test_every_delta_is_known(root):
    kinds = kinds_of(annotation_within(root, "content_block_delta", "delta"))
    content = {"text": "", "thinking": "", "partial_json": ""}
    unknown = {
        kind
        for kind in kinds
        if tolerated(
            {"type": "content_block_delta", "index": 0, "delta": {"type": kind, **content}}
        )
    }

    assert len(kinds) >= 5
    assert unknown == set()


@pytest.mark.parametrize("root", ROOTS["anthropic"], ids=["stable", "beta"])
def test_every_block_is_known(root):
    kinds = kinds_of(annotation_within(root, "content_block_start", "content_block"))
    unknown = {
        kind
        for kind in kinds
        if tolerated({"type": "content_block_start", "index": 0, "content_block": {"type": kind}})
    }

    assert len(kinds) >= 12
    assert unknown - PASSED_OVER.keys() == set()


@pytest.mark.parametrize("root", ROOTS["anthropic"], ids=["stable", "beta"])
def test_every_stop_reason_has_a_class(root):
    (delta,) = models_of(annotation_within(root, "message_delta", "delta"))
    reasons = set(literals_of(delta.model_fields["stop_reason"].annotation))

    assert len(reasons) >= 7
    assert {
        reason for reason in reasons if vendors.class_of_stop("anthropic", reason) is None
    } == set()


def test_every_finish_reason_has_a_class():
    (choice,) = models_of(ChatCompletionChunk.model_fields["choices"].annotation)
    reasons = set(literals_of(choice.model_fields["finish_reason"].annotation))

    assert len(reasons) >= 5
    assert {
        reason for reason in reasons if vendors.class_of_stop("openai", reason) is None
    } == set()


@pytest.mark.parametrize("union", [ErrorObject, BetaError], ids=["stable", "beta"])
def test_every_error_has_the_class_of_its_status(union):
    kinds = kinds_of(union)

    assert "overloaded_error" in kinds
    assert {kind for kind in kinds if vendors.class_of_error(kind) is None} == set()


def test_a_field_that_nobody_names_is_found(monkeypatch):
    """As one of a new release would be."""
    monkeypatch.delitem(NOT_READ["openai"], "expires_at")
    monkeypatch.delitem(NOT_READ["anthropic"], "estimated_tokens")

    assert unnamed_fields("openai") == {
        "ChatCompletionAudio.expires_at",
        "ChoiceDeltaAudio.expires_at",
    }
    assert unnamed_fields("anthropic") == {"BetaThinkingDelta.estimated_tokens"}
