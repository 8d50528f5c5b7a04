"""Anthropic Messages: the official SDK builds the request, this file reads the stream.

message_start, ping, content_block_start, signature deltas and empty deltas are no content. `usage` of message_delta is
cumulative. A stream without message_stop is truncated. Unknown events are tolerated. A text without a cache mark is sent as
a plain string; sampling parameters are sent only where the scenario adds them to the body.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Hashable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import lru_cache
from typing import TYPE_CHECKING, Any, ClassVar
from urllib.parse import quote, urlsplit

from tailgauge import call as needs
from tailgauge import protocol_violations as violations
from tailgauge import vendors
from tailgauge.call import (
    ASSISTANT,
    JOB_FETCH,
    JOB_POLL,
    JOB_SUBMIT,
    USER,
    Call,
    Part,
    Prompt,
    Tool,
)
from tailgauge.protocols import protocol
from tailgauge.protocols.decoder import (
    KIND_CODE,
    StreamDecoder,
    stop_details_text,
    text_or_none,
    tree_of,
)
from tailgauge.protocols.errors import looks_like_error
from tailgauge.protocols.protocol import TEXT_BLOCK, MarkRules, Opened, Provider, WireProtocol
from tailgauge.protocols.shapes import Shape, content, inside, required, text
from tailgauge.rows.schema import TEXT, THINKING, TOOL_JSON

if TYPE_CHECKING:
    import anthropic

_TEXT = KIND_CODE[TEXT]
_THINKING = KIND_CODE[THINKING]
_TOOL = KIND_CODE[TOOL_JSON]
_SERVER_TOOLS = (
    "web_search",
    "web_fetch",
    "code_execution",
    "bash_code_execution",
    "text_editor_code_execution",
    "tool_search",
)
_COUNTERS = (
    "input_tokens",
    "output_tokens",
    "cache_read_input_tokens",
    "cache_creation_input_tokens",
)
_SERVER_TOOL_BLOCKS = frozenset({"server_tool_use", "mcp_tool_use"})
_PASSED_BLOCKS = frozenset({"container_upload", "mcp_tool_listing"})
_DONE = b"[DONE]"
_CACHE = vendors.TABLE["cache"]["anthropic"]
_GATEWAY = "Give the URL of a gateway that speaks Messages, such as LiteLLM"
_MAX_ITERATIONS = 50
_DELTAS = {  # kind of content, and the field with it
    "text_delta": (_TEXT, "text"),
    "thinking_delta": (_THINKING, "thinking"),
    "input_json_delta": (_TOOL, "partial_json"),
}


def _delta_shapes() -> Iterator[Shape]:
    """Yield the shape of the events for each kind of delta."""
    for name, (kind, key) in _DELTAS.items():
        delta = inside({"type": text(name), key: required(content(kind))})
        yield Shape({"type": text("content_block_delta"), "delta": required(delta)})


class Anthropic(WireProtocol):
    """The Messages API."""

    name = "anthropic"
    summary = "Messages"
    sdk = "anthropic"
    call_path = "/messages"
    provider = Provider(
        "api.anthropic.com",
        "ANTHROPIC_API_KEY",
        ("ANTHROPIC_CUSTOM_HEADERS", "ANTHROPIC_AUTH_TOKEN"),
    )
    content: ClassVar[Mapping[str, frozenset[str]]] = {
        USER: TEXT_BLOCK
        | {"image", "document", "search_result", "tool_result", "container_upload"},
        ASSISTANT: TEXT_BLOCK
        | {
            "thinking",
            "redacted_thinking",
            "tool_use",
            "server_tool_use",
            "mcp_tool_use",
            "mcp_tool_result",
        }
        | {f"{tool}_tool_result" for tool in _SERVER_TOOLS},
    }
    tool_key = "name"
    key_header = "x-api-key"
    marks = MarkRules(
        places=frozenset({"tools", "system", "few_shot", "last", "automatic"}),
        lives=tuple(_CACHE["lives_s"]),
        automatic_lives=tuple(_CACHE["lives_s"]),
        at_engines=True,
        lookback=_CACHE["lookback"],
    )
    diagnoses_cache = True
    offers = frozenset(
        {
            needs.BATCHES,
            needs.CACHE_MARKS,
            needs.SCHEMAS,
            needs.EXTENDED_THINKING,
            needs.THINKING_BUDGETS,
            needs.TOOLS,
            needs.WHOLE_ANSWERS,
        }
    )
    shapes: ClassVar[tuple[Shape, ...]] = (*_delta_shapes(), Shape({"type": text("ping")}))
    least_output_tokens = 0
    set_elsewhere: ClassVar[Mapping[str, str]] = {
        **protocol.IN_TABLE,
        "system": protocol.PROMPT_KEYS,
        "max_tokens": "use output_tokens of the traffic table",
        "thinking": "use `thinking` of the traffic table",
    }

    @classmethod
    def refuses_url(cls, url: str) -> str:
        """Refuse addresses of other APIs, and of clouds that sign requests and stream in another format."""
        parts = urlsplit(url)
        host = parts.hostname or ""
        if re.fullmatch(r"bedrock-runtime[a-z0-9.-]*\.amazonaws\.com(\.cn)?", host):
            return f"Bedrock signs requests and streams in a format of its own. {_GATEWAY}"
        if host.endswith("aiplatform.googleapis.com"):
            return f"Vertex AI has other paths and its own keys. {_GATEWAY}"
        if parts.path.endswith(("/chat/completions", "/responses")):
            return 'this is an address of OpenAI\'s APIs: set target.protocol = "openai", or give the base URL of Messages'
        return ""

    def client(self, base_url: str, key: str, http_client: Any) -> anthropic.Anthropic:
        """Return the official client; the harness retries itself. The SDK adds the version to the base URL."""
        import anthropic

        base, query = protocol.without_call(base_url, self.call_path, "/v1")
        options = {"base_url": base, "default_query": query, **protocol.SDK_OPTIONS}
        return anthropic.Anthropic(api_key=key, http_client=http_client, **options)

    def send(self, sdk: anthropic.Anthropic, call: Call, model: str, call_id: str) -> Opened:
        """Return one Messages call, or one call of a batch: submit, poll, fetch. Entering it sends the request."""
        headers = {"x-client-request-id": call_id}
        batches = sdk.messages.batches.with_streaming_response
        if call.kind == JOB_SUBMIT:
            requests: Any = []
            for number, prompt in enumerate(call.batch):
                requests.append(
                    {"custom_id": str(number), "params": message_body(call, prompt, model)}
                )
            return batches.create(requests=requests, extra_headers=headers)
        if call.kind == JOB_POLL:
            return batches.retrieve(call.job or "", extra_headers=headers)
        if call.kind == JOB_FETCH:
            return _results(sdk, call.job or "", headers)
        message: Any = {**self.body(call, model), "extra_headers": headers}
        opened: Opened = sdk.messages.with_streaming_response.create(**message)
        return opened

    def entries(self, call: Call, tree: dict[str, Any]) -> list[dict[str, Any]]:
        """Return the body of a message, or the parameters of each message in a batch."""
        if call.kind != JOB_SUBMIT:
            return [tree]
        return [request["params"] for request in tree["requests"]]

    def body(self, call: Call, model: str) -> dict[str, Any]:
        """Return the body of a Messages call."""
        tree = message_body(call, call.prompt, model) | {"stream": call.stream}
        if call.previous_message_id is not None:
            tree["diagnostics"] = {"previous_message_id": call.previous_message_id or None}
        return tree

    def template_key(self, call: Call, body: Mapping[str, Any]) -> Hashable:  # noqa: ARG002 - the interface
        """Return whether there are content blocks, which the SDK writes in another way than texts."""
        return protocol.has_blocks(body)

    @staticmethod
    def on_event(decoder: StreamDecoder, name: bytes, data: bytes) -> None:
        """Decode one event of the Messages stream. Raises for what is not of the protocol; the decoder notes that.

        `decoder.seen` makes an event count as the first one, for which pings do not count.
        """
        if not data or data.startswith(_DONE):
            _note_skipped(decoder, data)
            return
        if name == b"error":
            decoder.named_error(data)
            return
        event = tree_of(data)
        kind = event.get("type") or name.decode("ascii", "replace")
        if kind == "content_block_delta":
            decoder.seen()
            _on_delta(decoder, event)
            return
        if kind == "ping":
            return
        decoder.seen()
        if not name:
            decoder.tolerate(violations.NO_EVENT_NAME)
        _on_landmark(decoder, kind, event)

    @staticmethod
    def on_whole(decoder: StreamDecoder, body: bytes) -> None:
        """Decode a message that came without a stream: its facts, its usage, and all its content as one chunk.

        Raises ValueError and its like for what is no message.
        """
        message = tree_of(body)
        if looks_like_error(message, any_code=True):
            decoder.error_event(message)
            return
        decoder.message_id = text_or_none(message.get("id"))
        decoder.model = text_or_none(message.get("model"))
        decoder.stop_reason = text_or_none(message.get("stop_reason"))
        _read_facts(decoder, message)
        _read_stop_details(decoder, message)
        _read_usage(decoder, message.get("usage"))
        texts = []
        inputs = []
        for block in message["content"]:
            kind = block["type"]
            if kind == "text":
                texts.append(block["text"])
            # The target runs this tool itself: its input is no content.
            elif kind in _SERVER_TOOL_BLOCKS:
                decoder.server_tool(block.get("name"))
            elif kind.endswith("tool_use"):
                inputs.append(json.dumps(block["input"]))
            elif kind == "fallback":
                _on_fallback(decoder, block)
        decoder.whole_content("".join(texts), "".join(inputs))

    @staticmethod
    def on_job(decoder: StreamDecoder, body: bytes) -> None:
        """Decode the state of a batch, or its results, a line each, whose usages are added up.

        `answer` becomes the state as it came, or the lines without the messages, which may be many megabytes.
        """
        results = []
        usages = []
        model = None
        lines = list(filter(bytes.strip, body.splitlines()))
        # One line is parsed at a time: each may be large.
        for tree in map(tree_of, lines):
            if len(lines) == 1 and "processing_status" in tree:
                decoder.message_id = text_or_none(tree["id"])
                decoder.answer = json.dumps(tree)
                decoder.stop_reason = "ended" if tree["processing_status"] == "ended" else None
                return
            result = tree["result"]
            # The pattern needs how each result ended, and not its message.
            short_result = {"custom_id": tree["custom_id"], "result": {**result, "message": None}}
            results.append(json.dumps(short_result))
            if result["type"] == "succeeded":
                usages.append(_counters(result["message"]["usage"]))
                model = model or text_or_none(result["message"]["model"])
        decoder.answer = "\n".join(results)
        decoder.model = model
        for name, count in _total(usages).items():
            decoder.count(**{name: count})


def message_body(call: Call, prompt: Prompt, model: str) -> dict[str, Any]:
    """Return the parameters of one message; those that the call does not need are left out.

    A cache mark (`cache_control`) at the end is the target's to place, if the prompt has an `automatic`
    one.
    """
    messages = [
        {"role": message.role, "content": _content(message.parts)} for message in prompt.messages
    ]
    body: dict[str, Any] = {"model": model, "max_tokens": call.max_tokens, "messages": messages}
    if prompt.system:
        body["system"] = _content(prompt.system)
    if prompt.automatic is not None:
        body["cache_control"] = _mark(prompt.automatic)
    if prompt.tools:
        body["tools"] = _tools(prompt.tools)
        if call.use_tool:
            body["tool_choice"] = {"type": "any"}
    if call.thinking == "adaptive":
        body["thinking"] = {"type": "adaptive"}
    elif call.thinking == "enabled":
        body["thinking"] = {"type": "enabled", "budget_tokens": call.thinking_tokens}
    if call.schema is not None:
        body["output_config"] = {"format": {"type": "json_schema", "schema": _tree(call.schema)}}
    return body


def _content(parts: tuple[Part, ...]) -> Any:
    """Return one plain text as it is, else blocks."""
    if len(parts) == 1 and parts[0].ttl is None and parts[0].block is None:
        return parts[0].text
    return [_marked(protocol.block_of(part), part.ttl) for part in parts]


def _marked(block: dict[str, Any], ttl: str | None) -> dict[str, Any]:
    if ttl is None:
        return block
    return {**block, "cache_control": _mark(ttl)}


def _mark(ttl: str) -> dict[str, Any]:
    """Return a cache mark; a life that only another protocol has becomes the default."""
    lives = Anthropic.marks.lives
    return {"type": "ephemeral", "ttl": ttl if ttl in lives else lives[0]}


@lru_cache(maxsize=256)
def _tools(tools: tuple[Tool, ...]) -> list[dict[str, Any]]:
    return [_marked(_tool(tool), tool.ttl) for tool in tools]


def _tool(tool: Tool) -> dict[str, Any]:
    if tool.given:
        return {**json.loads(tool.given), "name": tool.name}
    return {
        "name": tool.name,
        "description": tool.description,
        "input_schema": json.loads(tool.schema),
    }


@lru_cache(maxsize=256)
def _tree(schema: str) -> Any:
    return json.loads(schema)


@contextmanager
def _results(sdk: anthropic.Anthropic, job: str, headers: dict[str, str]) -> Iterator[Any]:
    """Fetch a batch's results in one call; `results` of the SDK fetches the batch first, and then follows its link."""
    from anthropic._constants import RAW_RESPONSE_HEADER

    path = f"/v1/messages/batches/{quote(job, safe='')}/results"
    headers = {**headers, RAW_RESPONSE_HEADER: "stream", "accept": "application/binary"}
    response: Any = sdk.get(path, cast_to=object, options={"timeout": None, "headers": headers})
    try:
        yield response
    finally:
        response.close()


def _note_skipped(decoder: StreamDecoder, data: bytes) -> None:
    """Note an event that the SDK skips: without data, or the end mark of another protocol."""
    if not data:
        decoder.tolerate(violations.EMPTY_DATA)
    elif decoder.stopped is None:
        decoder.tolerate(violations.UNKNOWN_EVENT)
    else:
        decoder.tolerate(violations.DONE_AFTER_STOP)


def _on_delta(decoder: StreamDecoder, event: dict[str, Any]) -> None:
    """Decode a piece of a content block. The input for a tool of the target is no content."""
    delta = event["delta"]
    delta_type = delta.get("type")
    if delta_type not in _DELTAS:
        _on_other_delta(decoder, delta_type)
        return
    kind, key = _DELTAS[delta_type]
    # Without such a tool an index may be anything: not every value can be looked up.
    server_blocks = decoder.server_blocks
    if kind == _TOOL and server_blocks and event.get("index") in server_blocks:
        return
    decoder.content(kind, delta[key])


def _on_other_delta(decoder: StreamDecoder, delta_type: Any) -> None:
    """Decode a delta that brings no content of the answer."""
    if delta_type == "citations_delta":
        decoder.citations = (decoder.citations or 0) + 1
    elif delta_type == "compaction_delta":
        decoder.usage.explained = True
    elif delta_type == "signature_delta":
        decoder.thinks()
    else:
        decoder.tolerate(violations.UNKNOWN_EVENT)


def _on_landmark(decoder: StreamDecoder, kind: str, event: dict[str, Any]) -> None:
    """Decode an event that is no content; unknown ones are tolerated."""
    match kind:
        case "message_start":
            _on_start(decoder, event["message"])
        case "content_block_start":
            _on_block(decoder, event.get("index"), event["content_block"])
        case "content_block_stop":
            index = event.get("index")
            decoder.tool_done(decoder.tools.key(index, None, has_name=False))
        case "message_delta":
            _on_message_delta(decoder, event)
        case "message_stop":
            decoder.stop()
        case "error":
            decoder.error_event(event)
        case _ if looks_like_error(event, any_code=True):
            decoder.error_event(event)
        case _ if not decoder.has_started and event.get("object") == "chat.completion.chunk":
            decoder.violate(violations.MALFORMED_EVENT, f"{violations.OF_ANOTHER_PROTOCOL}openai")
        case _:
            decoder.tolerate(violations.UNKNOWN_EVENT)


def _on_start(decoder: StreamDecoder, message: dict[str, Any]) -> None:
    """Decode the start of the message, which may have content already."""
    if decoder.has_started:
        decoder.violate(violations.SECOND_MESSAGE, "a second message_start")
        return
    decoder.has_started = True
    decoder.message_id = text_or_none(message.get("id"))
    decoder.model = text_or_none(message.get("model"))
    _read_facts(decoder, message)
    _read_usage(decoder, message.get("usage") or {})
    # This count covers a first piece of the answer; only message_delta has that of the whole answer.
    decoder.usage.forget("output_tokens")
    for block in message.get("content") or ():
        _on_block(decoder, None, block)


def _on_block(decoder: StreamDecoder, index: Any, block: dict[str, Any]) -> None:
    """Decode the start of a content block; `index`: its number in the message. Its content follows in deltas.

    A tool of the target itself is a phase. A tool that the client is to call is content, in the input that
    follows.
    """
    kind = block.get("type") or ""
    if kind in _SERVER_TOOL_BLOCKS:
        # From now on deltas of this block are no content.
        decoder.server_blocks.add(index)
        decoder.server_tool(block.get("name"))
    elif kind.endswith("tool_use"):
        decoder.server_blocks.discard(index)
        call_id = block.get("id")
        decoder.tool(decoder.tools.key(index, call_id, has_name=True), call_id)
        # Another call has the same index: a call is then known by its id too.
        if decoder.tools.shares_index:
            decoder.tolerate(violations.TOOLS_OF_EQUAL_INDEX)
        _content_in_start(decoder, _TOOL, block.get("input"))
    elif kind in {"thinking", "redacted_thinking"}:
        decoder.thinks()
        _content_in_start(decoder, _THINKING, block.get("thinking"))
    elif kind == "text":
        _content_in_start(decoder, _TEXT, block.get("text"))
    elif kind == "fallback":
        _on_fallback(decoder, block)
    elif kind == "compaction":
        decoder.usage.explained = True  # its tokens may go beyond the request
    elif not kind.endswith("_tool_result") and kind not in _PASSED_BLOCKS:
        decoder.tolerate(violations.UNKNOWN_EVENT)


def _content_in_start(decoder: StreamDecoder, kind: int, content: Any) -> None:
    """Decode content that has come with the start of its block, where it should be empty."""
    if not content:
        return
    decoder.tolerate(violations.CONTENT_IN_START)
    text = content
    if not isinstance(content, str):
        text = json.dumps(content)
    decoder.content(kind, text)


def _on_fallback(decoder: StreamDecoder, block: dict[str, Any]) -> None:
    """Decode the place where another model goes on."""
    decoder.usage.explained = True
    replaced = block.get("from") or {}
    fallback = block.get("to") or {}
    decoder.served.fallback = text_or_none(replaced.get("model")) or decoder.model
    decoder.model = text_or_none(fallback.get("model")) or decoder.model


def _on_message_delta(decoder: StreamDecoder, event: dict[str, Any]) -> None:
    """Decode how the message ends, and its usage."""
    delta = event.get("delta")
    if delta is None:
        decoder.tolerate(violations.NO_DELTA)
        delta = {}
    decoder.stop_reason = text_or_none(delta.get("stop_reason")) or decoder.stop_reason
    decoder.finished = decoder.stop_reason is not None
    _read_stop_details(decoder, delta)
    _read_usage(decoder, event.get("usage") or {})
    _read_facts(decoder, event)


def _read_stop_details(decoder: StreamDecoder, tree: dict[str, Any]) -> None:
    details = tree.get("stop_details")
    if isinstance(details, dict):
        decoder.served.stop_details = stop_details_text(details)


def _read_facts(decoder: StreamDecoder, message: dict[str, Any]) -> None:
    """Read why the target's cache missed, where it says so."""
    diagnostics = message.get("diagnostics")
    if not isinstance(diagnostics, dict):
        return
    reason = diagnostics.get("cache_miss_reason")
    if isinstance(reason, dict):
        decoder.served.cache_miss_reason = text_or_none(reason.get("type"))
        tokens = reason.get("cache_missed_input_tokens")
        if type(tokens) is int:
            decoder.served.cache_missed_input_tokens = tokens


def _read_usage(decoder: StreamDecoder, usage: Any) -> None:
    """Read a usage: its counts, and how the answer was served."""
    if not usage:
        return
    decoder.read_usage(usage)
    if not isinstance(usage, dict):
        return
    served = decoder.served
    served.service_tier = text_or_none(usage.get("service_tier")) or served.service_tier
    served.speed = text_or_none(usage.get("speed")) or served.speed
    served.inference_geo = text_or_none(usage.get("inference_geo")) or served.inference_geo
    iterations = usage.get("iterations")
    if isinstance(iterations, list) and iterations:
        _read_iterations(decoder, iterations[:_MAX_ITERATIONS])


def _read_iterations(decoder: StreamDecoder, iterations: list[Any]) -> None:
    """Read what is billed for each step of an answer, including compactions and models that gave up."""
    rows = []
    for iteration in iterations:
        row: dict[str, Any] = {"type": text_or_none(iteration.get("type"))}
        row["model"] = text_or_none(iteration.get("model"))
        row |= {name: count for name, count in _counters(iteration).items() if type(count) is int}
        rows.append(row)
    decoder.served.iterations = json.dumps(rows)
    if len(rows) > 1 or rows[0]["type"] != "message":
        decoder.usage.explained = True
    # The model of the answer is that of its last fallback.
    models = [row["model"] for row in rows if row["type"] == "fallback_message" and row["model"]]
    if models:
        decoder.served.fallback = decoder.served.fallback or decoder.model
        decoder.model = models[-1]


def _total(usages: Iterable[dict[str, Any]]) -> Counter[str]:
    """Return the counters of several answers, added up, without those that no answer has."""
    total: Counter[str] = Counter()
    for usage in usages:
        counts = {name: count for name, count in usage.items() if count is not None}
        if min(counts.values(), default=0) < 0:
            raise ValueError("a count below zero, which a sum would hide")
        total.update(counts)
    return total


def _counters(usage: dict[str, Any]) -> dict[str, Any]:
    """Return the counters of a usage by column."""
    written_by_life = usage.get("cache_creation") or {}
    output_details = usage.get("output_tokens_details") or {}
    counters = {name: usage.get(name) for name in _COUNTERS}
    counters["cache_creation_5m_input_tokens"] = written_by_life.get("ephemeral_5m_input_tokens")
    counters["cache_creation_1h_input_tokens"] = written_by_life.get("ephemeral_1h_input_tokens")
    counters["thinking_tokens"] = output_details.get("thinking_tokens")
    return counters
