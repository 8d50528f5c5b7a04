"""The Anthropic Messages protocol, from the server's side.

An event is `event:` and `data:` lines and an empty line. The fields that shape the answer are checked as the provider checks
them, others are ignored. Absent and null mean the same, except for the removed sampling fields, whose presence is an error.

    version       2026-10-21 refuses temperature, top_p and top_k; 2023-06-01 takes them. No version: the newer one.
    max_tokens 0  fills the cache and answers nothing; refused with a stream, a forced tool or an output format
    limits        anthropic-ratelimit-{requests,tokens,input-tokens,output-tokens}-{limit,remaining,reset}
                  `remaining` of tokens is rounded to the nearest 1,000; `reset` is the RFC 3339 instant of the FULL refill,
                  whole seconds, rounded up; `tokens` repeats the more restrictive of input and output

Sources: Anthropic's notes on version 2026-10-21 (a document in an assistant's message is refused), its error page (prefill),
thinking page (budget of at least 1,024, below max_tokens), prompt-caching page (pre-warm); the SDK's own parameter types
(2.11). Its rate-limit page (2026-08), checked on a recorded response: limit 16000, remaining 12000, reset 15 s later =
4000 / (16000 / 60).
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from tailgauge.rows.schema import TEXT, THINKING
from tailgauge.simulator.behaviours.billing import PromptTokens
from tailgauge.simulator.behaviours.content import (
    JSON_DELTA,
    SIGNATURE_DELTA,
    TEXT_DELTA,
    THINKING_DELTA,
)
from tailgauge.simulator.behaviours.limits import REQUESTS, Reading, tightest_tokens
from tailgauge.simulator.protocols import request as checks
from tailgauge.simulator.protocols.request import CallRequest, Refused, Reply, invalid, require

NAME = "anthropic"
PATH = "/v1/messages"
VERSION_HEADER = "anthropic-version"
REQUEST_ID_HEADER = "request-id"
OVERLOADED_STATUS = 529
SIGNATURES = True
PROMPT_USAGE_FIRST = True
CACHE_LIVES = True
SERVER_TOOLS = True
REFUSAL_CHUNKS = 0
STOP_REASONS: Mapping[str, str] = {}

VERSIONS = ("2023-06-01", "2026-10-21")
WITH_SAMPLING = "2023-06-01"
MIN_THINKING_BUDGET = 1024

_SAMPLING = ("temperature", "top_p", "top_k")
_TOOL_USE: checks.Fields = {"id": str, "name": str, "input": dict}
_TOOL_RESULT: checks.Fields = {"tool_use_id": str}
_BLOCKS: Mapping[str, checks.Kinds] = {
    "user": {
        **checks.TEXT_BLOCK,
        "image": {"source": dict},
        "document": {"source": dict},
        "search_result": {"source": str, "title": str, "content": list},
        "tool_result": _TOOL_RESULT,
        "container_upload": {"file_id": str},
    },
    "assistant": {
        **checks.TEXT_BLOCK,
        "thinking": {"thinking": str, "signature": str},
        "redacted_thinking": {"data": str},
        "tool_use": _TOOL_USE,
        "server_tool_use": _TOOL_USE,
        "web_search_tool_result": _TOOL_RESULT,
        "web_fetch_tool_result": _TOOL_RESULT,
        "code_execution_tool_result": _TOOL_RESULT,
        "bash_code_execution_tool_result": _TOOL_RESULT,
        "text_editor_code_execution_tool_result": _TOOL_RESULT,
        "tool_search_tool_result": _TOOL_RESULT,
    },
}
# The field of a delta that has its content.
_CONTENT_FIELD = {TEXT_DELTA: "text", THINKING_DELTA: "thinking", JSON_DELTA: "partial_json"}
_COUNTS = (
    "input_tokens",
    "cache_creation_input_tokens",
    "cache_read_input_tokens",
    "output_tokens",
)
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


def parse(body: dict[str, Any], version: str = "") -> CallRequest:
    """Check a Messages body under a version of the API, or raise `Refused`; `max_tokens` 0 fills the cache only."""
    model = checks.model(body)
    max_tokens = checks.max_tokens(body.get("max_tokens"), "max_tokens", minimum=0)
    stream = checks.flag(body, "stream", "stream")
    input_tokens = prompt_tokens(body, version)
    _check_length(body, max_tokens)
    thinking = body.get("thinking") or {}
    tools = body.get("tools")
    output_format = (body.get("output_config") or {}).get("format") or {}
    diagnostics = body.get("diagnostics") or {}
    return CallRequest(
        model=model,
        max_tokens=max_tokens,
        input_tokens=input_tokens,
        stream=stream,
        tool=tools[0]["name"] if tools else None,
        thinking=thinking.get("type") in {"enabled", "adaptive"},
        thinking_omitted=thinking.get("display") == "omitted",
        schema=output_format.get("type") == "json_schema",
        diagnoses=body.get("diagnostics") is not None,
        previous_message=diagnostics.get("previous_message_id"),
    )


def prompt_tokens(body: dict[str, Any], version: str = "") -> int:
    """Check the fields of the prompt and count its tokens, as a `count_tokens` call does."""
    conversation = checks.messages(body, tuple(_BLOCKS))
    system = body.get("system")
    count = 0
    if system:
        count = checks.content_tokens(system, "system", checks.TEXT_BLOCK)
    for i, message in enumerate(conversation):
        param = f"messages.{i}.content"
        count += checks.content_tokens(message.get("content"), param, _BLOCKS[message["role"]])
    _check(body, version)
    return count + sum(map(checks.json_tokens, body.get("tools") or []))


def error_body(refused: Refused, request_id: str) -> bytes:
    """Return the error body."""
    return checks.to_json(_error(refused) | {"request_id": request_id})


def error_event(refused: Refused) -> bytes:
    """Return the event of an error within a stream."""
    return _event(_error(refused))


def ping() -> bytes:
    """Return the event that keeps a silent stream alive."""
    return _event({"type": "ping"})


def opening(reply: Reply) -> bytes:
    """Return the events before the first delta of the answer; a search comes before it."""
    message = _message(reply, [], None, _usage(reply, 1))
    events = _event({"type": "message_start", "message": message})
    if reply.search is None:
        return events + _before_text(reply, 0)
    search_call = _search_call(reply)
    events += _event({"type": "content_block_start", "index": 0, "content_block": search_call})
    for piece in reply.search.query:
        events += _event(_delta(0, {"type": JSON_DELTA, "partial_json": piece}))
    return events + _event({"type": "content_block_stop", "index": 0})


def after_search(reply: Reply) -> bytes:
    """Return the results of the search, and the events before the first text."""
    return _complete_block(1, _search_results(reply)) + _before_text(reply, 2)


def around_text(reply: Reply) -> tuple[bytes, bytes]:
    """Return the bytes of a text delta before and behind its text."""
    return delta(reply, 0, TEXT_DELTA)


def delta(reply: Reply, block: int, kind: str) -> tuple[bytes, bytes]:
    """Return the bytes of a delta before and behind its content; a signature delta has its content already."""
    index = _index(reply, block)
    if kind == SIGNATURE_DELTA:
        return _event(_delta(index, {"type": kind, "signature": _SIGNATURE})), b""
    event = _event(_delta(index, {"type": kind, _CONTENT_FIELD[kind]: "|"}))
    prefix, _, suffix = event.partition(b"|")
    return prefix, suffix


def between(reply: Reply, block: int) -> bytes:
    """Return the end of the block before, and the start of this one."""
    end = _event({"type": "content_block_stop", "index": _index(reply, block) - 1})
    return end + _block_start(reply, block)


def closing(reply: Reply) -> bytes:
    """Return the events behind the last delta."""
    last_block = 0
    if reply.plan is not None:
        last_block = len(reply.plan.blocks) - 1
    ending: dict[str, Any] = {"stop_reason": reply.reason(STOP_REASONS), "stop_sequence": None}
    if reply.is_refusal:
        ending["stop_details"] = _stop_details(reply)
    usage = _final_usage(reply, cumulative=True)
    return (
        _event({"type": "content_block_stop", "index": _index(reply, last_block)})
        + _event({"type": "message_delta", "delta": ending, "usage": usage})
        + _event({"type": "message_stop"})
    )


def whole(reply: Reply, contents: Sequence[str]) -> bytes:
    """Return the body of an answer that is not streamed, with the content of each of its blocks."""
    if not reply.request.max_tokens and reply.stop is None:
        return checks.to_json(_message(reply, [], "max_tokens", _usage(reply, 0)))
    blocks: list[dict[str, Any]] = []
    if reply.search is not None:
        query = "".join(reply.search.query[1:-1])
        blocks += [_search_call(reply) | {"input": {"query": query}}, _search_results(reply)]
    if reply.served.fallback:
        blocks.append(_fallback_mark(reply))
    for number, content in enumerate(contents):
        blocks.append(_block(reply, number, content))
    message = _message(reply, blocks, reply.reason(STOP_REASONS), _final_usage(reply))
    if reply.is_refusal:
        message["stop_details"] = _stop_details(reply)
    return checks.to_json(message)


def limit_headers(readings: Sequence[Reading], wall_ns: int) -> dict[str, str]:
    """Return the rate-limit headers of a response at `wall_ns`, nanoseconds since 1970 UTC. No limit, no header."""
    headers = {}
    for name, reading in tightest_tokens(readings).items():
        remaining = reading.remaining
        if reading.kind != REQUESTS:
            remaining = (remaining + 500) // 1000 * 1000
        reset_s = -(-(wall_ns + reading.full_in_ns) // 1_000_000_000)
        reset = datetime.fromtimestamp(reset_s, UTC)
        prefix = f"anthropic-ratelimit-{name.replace('_', '-')}"
        headers[f"{prefix}-limit"] = str(reading.limit)
        headers[f"{prefix}-remaining"] = str(remaining)
        headers[f"{prefix}-reset"] = reset.strftime("%Y-%m-%dT%H:%M:%SZ")
    return headers


def _error(refused: Refused) -> dict[str, Any]:
    kind = _ERROR_TYPES.get(refused.status, "api_error")
    error: dict[str, Any] = {"type": kind, "message": refused.message}
    if refused.error_code is not None:
        error["details"] = {"error_code": refused.error_code}
    return {"type": "error", "error": error}


def _stop_details(reply: Reply) -> dict[str, Any]:
    return {"type": "refusal", "category": reply.category, "explanation": None}


def _delta(index: int, delta: dict[str, str]) -> dict[str, Any]:
    return {"type": "content_block_delta", "index": index, "delta": delta}


def _index(reply: Reply, block: int) -> int:
    """Return the index of a block of the plan, behind a search and its results and the mark of a fallback."""
    index = block
    if reply.search is not None:
        index += 2
    if reply.served.fallback:
        index += 1
    return index


def _before_text(reply: Reply, index: int) -> bytes:
    """Return the mark of a fallback, if there is one, as block number `index`, and the start of the first block."""
    events = b""
    if reply.served.fallback:
        events = _complete_block(index, _fallback_mark(reply))
    return events + _block_start(reply, 0)


def _complete_block(index: int, block: dict[str, Any]) -> bytes:
    """Return the start and the end of a block without deltas."""
    start = _event({"type": "content_block_start", "index": index, "content_block": block})
    return start + _event({"type": "content_block_stop", "index": index})


def _fallback_mark(reply: Reply) -> dict[str, Any]:
    """Return the block that says that another model has taken over."""
    return {
        "type": "fallback",
        "from": {"model": reply.request.model},
        "to": {"model": reply.served.fallback},
        "trigger": {"type": "refusal"},
    }


def _search_call(reply: Reply) -> dict[str, Any]:
    return {
        "type": "server_tool_use",
        "id": f"srvtoolu_{reply.id}",
        "name": "web_search",
        "input": {},
    }


def _search_results(reply: Reply) -> dict[str, Any]:
    result = {
        "type": "web_search_result",
        "title": "A page",
        "url": "https://example.com/",
        "encrypted_content": "",
        "page_age": None,
    }
    return {
        "type": "web_search_tool_result",
        "tool_use_id": f"srvtoolu_{reply.id}",
        "content": [result],
    }


def _block_start(reply: Reply, number: int) -> bytes:
    block = _block(reply, number, "", starting=True)
    index = _index(reply, number)
    return _event({"type": "content_block_start", "index": index, "content_block": block})


def _block(reply: Reply, number: int, content: str, *, starting: bool = False) -> dict[str, Any]:
    """Return a content block with all its content; `starting`: as its start event has it."""
    kind = TEXT
    if reply.plan is not None:
        kind = reply.plan.blocks[number].kind
    if kind == TEXT:
        return {"type": "text", "text": content}
    if kind == THINKING:
        return {
            "type": "thinking",
            "thinking": content,
            "signature": "" if starting else _SIGNATURE,
        }
    return {
        "type": "tool_use",
        "id": f"toolu_{reply.id}",
        "name": reply.request.tool or "",
        "input": json.loads(content or "{}"),
    }


def _message(
    reply: Reply, content: list[dict[str, Any]], stop_reason: str | None, usage: dict[str, Any]
) -> dict[str, Any]:
    served = reply.served
    facts = {
        "service_tier": served.service_tier,
        "speed": served.speed,
        "inference_geo": served.inference_geo,
    }
    message: dict[str, Any] = {
        "id": f"msg_{reply.id}",
        "type": "message",
        "role": "assistant",
        "model": served.model or reply.request.model,
        "content": content,
        "stop_reason": stop_reason,
        "stop_sequence": None,
        "usage": usage | {name: value for name, value in facts.items() if value},
    }
    if reply.diagnostics is not None:
        message["diagnostics"] = reply.diagnostics
    return message


def _usage(reply: Reply, output_tokens: int, *, cumulative: bool = False) -> dict[str, Any]:
    """Return a usage with this output; `cumulative`: at the end of a stream, which does not split cache writes by life."""
    prompt = reply.prompt or PromptTokens(reply.request.input_tokens)
    usage: dict[str, Any] = {
        "input_tokens": prompt.input_tokens,
        "cache_creation_input_tokens": prompt.creation_5m + prompt.creation_1h,
        "cache_read_input_tokens": prompt.read,
        "output_tokens": output_tokens,
    }
    if reply.prompt is not None and not cumulative:
        usage["cache_creation"] = {
            "ephemeral_5m_input_tokens": prompt.creation_5m,
            "ephemeral_1h_input_tokens": prompt.creation_1h,
        }
    thinking_tokens = 0
    if reply.plan is not None and output_tokens == reply.request.max_tokens:
        thinking_tokens = reply.plan.thinking_tokens
    if thinking_tokens:
        usage["output_tokens_details"] = {"thinking_tokens": thinking_tokens}
    return usage


def _final_usage(reply: Reply, *, cumulative: bool = False) -> dict[str, Any]:
    """Return the usage of the whole answer, including a search and both models of a fallback."""
    usage = _usage(reply, reply.request.max_tokens, cumulative=cumulative)
    if reply.served.fallback:
        counts = {name: usage[name] for name in _COUNTS}
        declined = {"type": "message", "model": reply.request.model, **counts, "output_tokens": 0}
        fallback = {"type": "fallback_message", "model": reply.served.fallback, **counts}
        usage["iterations"] = [declined, fallback]
    if reply.search is not None:
        usage["server_tool_use"] = {"web_search_requests": 1, "web_fetch_requests": 0}
        usage["input_tokens"] += reply.search.result_tokens
    return usage


def _event(data: dict[str, Any]) -> bytes:
    return b"event: %b\ndata: %b\n\n" % (data["type"].encode(), checks.to_json(data))


# --- the provider's checks ---------------------------------------------------------------------------------------


def _check(body: dict[str, Any], version: str) -> None:
    """Raise `Refused` for a field that the provider refuses."""
    _sampling(body, version)
    checks.apply(_RULES, body)
    if body["messages"][-1]["role"] == "assistant":
        prefill = "messages: This model does not support assistant message prefill."
        raise Refused(400, f"{prefill} The conversation must end with a user message.", "messages")


def _check_length(body: dict[str, Any], max_tokens: int) -> None:
    """Raise `Refused` for a thinking budget that `max_tokens` does not allow, and for options of a call with 0."""
    thinking = body.get("thinking") or {}
    if thinking.get("type") == "enabled" and thinking["budget_tokens"] >= max_tokens:
        raise invalid("thinking.budget_tokens", "must be less than max_tokens")
    if max_tokens > 0:
        return
    if body.get("stream"):
        raise invalid("max_tokens", "0 is not allowed when stream is true")
    if (body.get("tool_choice") or {}).get("type") in {"any", "tool"}:
        raise invalid("max_tokens", "0 is not allowed with a forced tool_choice")
    if (body.get("output_config") or {}).get("format") is not None:
        raise invalid("max_tokens", "0 is not allowed with an output format")


def _sampling(body: dict[str, Any], version: str) -> None:
    """Check the version of the API, and the sampling fields, which only the older one takes."""
    if version and version not in VERSIONS:
        raise invalid("anthropic-version", f"must be one of {', '.join(VERSIONS)}")
    for field in _SAMPLING:
        if field in body and version != WITH_SAMPLING:
            raise invalid(field, f"not permitted in API version {VERSIONS[-1]}")


def _diagnostics(_: dict[str, Any], value: object) -> None:
    table = require(value, "diagnostics", {})
    previous = table.get("previous_message_id")
    if previous is not None and not isinstance(previous, str):
        raise invalid("diagnostics.previous_message_id", "must be the id of a message, or null")


def _thinking(_: dict[str, Any], value: object) -> None:
    table = require(value, "thinking", {"type": str})
    kind = checks.one_of(
        table, "type", "thinking.type", ("adaptive", "enabled", "disabled", "between_tools")
    )
    checks.one_of(table, "display", "thinking.display", ("summarized", "omitted"))
    if kind != "enabled":
        return
    budget = table.get("budget_tokens")
    if not isinstance(budget, int) or isinstance(budget, bool) or budget < MIN_THINKING_BUDGET:
        expected = f"a whole number of at least {MIN_THINKING_BUDGET} is required"
        raise invalid("thinking.budget_tokens", expected)


def _tools(_: dict[str, Any], value: object) -> None:
    """Raise `Refused` for tools without a name or a schema, and for two of one name."""
    if not isinstance(value, list):
        raise invalid("tools", "must be a list of objects")
    for i, tool in enumerate(value):
        fields: dict[str, type] = {"name": str}
        if not _is_of_provider(tool):
            fields["input_schema"] = dict
        require(tool, f"tools.{i}", fields)
    for name, times in Counter(tool["name"] for tool in value).items():
        if times > 1:
            raise invalid("tools", f"names must be unique, {name[:64]!r} is there {times} times")


def _is_of_provider(tool: object) -> bool:
    """Return whether the provider defines a tool: it has a dated type in place of a schema."""
    return isinstance(tool, dict) and isinstance(tool.get("type"), str) and tool["type"] != "custom"


def _tool_choice(body: dict[str, Any], value: object) -> None:
    table = require(value, "tool_choice", {"type": str})
    kind = checks.one_of(table, "type", "tool_choice.type", ("auto", "any", "tool", "none"))
    checks.flag(table, "disable_parallel_tool_use", "tool_choice.disable_parallel_tool_use")
    names = [tool["name"] for tool in body.get("tools") or []]
    if not names and kind != "none":
        raise invalid("tool_choice", "may only be specified while providing tools")
    if kind == "tool" and table.get("name") not in names:
        raise invalid("tool_choice.name", "must be the name of one of the tools")


def _output_config(_: dict[str, Any], value: object) -> None:
    output_format = require(value, "output_config", {}).get("format")
    if output_format is not None:
        require(output_format, "output_config.format", {"type": str, "schema": dict})
        checks.one_of(output_format, "type", "output_config.format.type", ("json_schema",))


_RULES = {
    "thinking": _thinking,
    "tools": _tools,
    "tool_choice": _tool_choice,  # behind the tools, which it names
    "output_config": _output_config,
    "diagnostics": _diagnostics,
}
