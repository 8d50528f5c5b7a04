"""OpenAI chat completions: the official SDK builds the request, this file reads the stream.

The role chunk is no token. `prompt_tokens` includes the cached ones, and those that vLLM wrote to its cache: input_tokens
is what remains. The end mark is [DONE]; an engine that leaves it out is complete when it named a finish reason and ended
its body cleanly.

Thinking has no common name here: `reasoning_effort` goes to everyone, and engines get the variable `enable_thinking` of
their chat template besides. Only engines get a budget (`thinking_token_budget`, `thinking_budget`).
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from functools import lru_cache
from typing import TYPE_CHECKING, Any, ClassVar
from urllib.parse import urlsplit

from tailgauge import call as needs
from tailgauge.call import ASSISTANT, SYSTEM, USER, Call, Message, Part, Prompt, Tool
from tailgauge.protocols import protocol
from tailgauge.protocols.decoder import KIND_CODE, StreamDecoder, error_of, text_or_none, tree_of
from tailgauge.protocols.protocol import TEXT_BLOCK, Opened, Provider, WireProtocol
from tailgauge.protocols.stencil import COUNT, FREE, SAME, Changing
from tailgauge.rows.schema import TEXT, THINKING, TOOL_JSON

if TYPE_CHECKING:
    import openai

_VERSION = re.compile(r"/v\d\w*(?:/|$)")  # in a path: /v1, /v1beta/openai, /api/v3
_REFUSED = {  # by the provider, of what engines take
    needs.EXACT_OUTPUT: "this provider ends each answer where the model does: leave `output` out",
    needs.THINKING_BUDGETS: "this provider takes no budget for it: use 'adaptive'",
}
_TEXT, _THINKING, _TOOL = KIND_CODE[TEXT], KIND_CODE[THINKING], KIND_CODE[TOOL_JSON]


class OpenAI(WireProtocol):
    """Chat completions."""

    name = "openai"
    summary = "chat completions"
    sdk = "openai"
    provider = Provider(
        "api.openai.com", "OPENAI_API_KEY", ("OPENAI_ORG_ID", "OPENAI_PROJECT_ID", "OPENAI_ADMIN_KEY")
    )
    changing: ClassVar[Changing | None] = {
        **dict.fromkeys(("id", "model", "created", "system_fingerprint", "obfuscation", "timings"), FREE),
        **dict.fromkeys(("choices/logprobs", "choices/token_ids"), FREE),
        "usage/prompt_tokens": SAME,
        "usage/prompt_tokens_details/cached_tokens": SAME,
        "usage/prompt_tokens_details/created_cache_tokens": SAME,
        **dict.fromkeys(("usage/completion_tokens", "usage/total_tokens"), COUNT),
        "usage/completion_tokens_details/reasoning_tokens": COUNT,
    }
    content: ClassVar[Mapping[str, frozenset[str]]] = {
        USER: TEXT_BLOCK | {"image_url", "input_audio", "file", "video_url", "audio_url"},
        ASSISTANT: TEXT_BLOCK | {"refusal"},
        **dict.fromkeys((SYSTEM, "developer", "tool", "function"), TEXT_BLOCK),
    }
    message_keys = frozenset({
        "name", "tool_calls", "tool_call_id", "function_call", "refusal", "audio", "reasoning_content", "reasoning",
    })  # fmt: skip
    tool_key = "function"
    offers = frozenset({
        needs.EXACT_OUTPUT, needs.SCHEMAS, needs.EXTENDED_THINKING, needs.THINKING_BUDGETS, needs.TOOLS,
        needs.WHOLE_ANSWERS,
    })  # fmt: skip
    set_elsewhere: ClassVar[Mapping[str, str]] = {
        **protocol.IN_TABLE,
        **dict.fromkeys(("max_tokens", "max_completion_tokens"), "use output_tokens of the traffic table"),
        "stream_options.include_usage": "tokens are counted by it: leave it out",
        "n": "one answer is read per call: use a higher rate",
    }

    @classmethod
    def refuses(cls, url: str, need: str) -> str:
        """The provider takes no thinking budget and no exact length; engines do."""
        return _REFUSED.get(need, "") if cls.provider.host in url else ""

    def client(self, base_url: str, key: str, http_client: Any) -> openai.OpenAI:
        """The official client; the harness retries itself. The SDK wants the version in the base URL."""
        import openai

        base, query = protocol.without_call(base_url, "/chat/completions")
        base += "" if "api-version" in query or _VERSION.search(urlsplit(base).path) else "/v1"
        options = {"base_url": base, "default_query": query, **protocol.SDK_OPTIONS}
        return openai.OpenAI(api_key=key, http_client=http_client, **options)

    def send(self, sdk: openai.OpenAI, call: Call, model: str, call_id: str) -> Opened:
        """One chat completion, streamed with usage, or whole."""
        # Its overloads cannot name a key by value.
        create: Any = sdk.chat.completions.with_streaming_response.create
        extra = {} if self.at_provider else _engine_thinking(call)
        more = {"extra_body": extra or None, "extra_headers": {"x-client-request-id": call_id}}
        opened: Opened = create(**self._standard(call, model), **more)
        return opened

    def body(self, call: Call, model: str) -> dict[str, Any]:
        """The body of a chat completion's request."""
        standard = self._standard(call, model)
        return standard if self.at_provider else standard | _engine_thinking(call)

    def _standard(self, call: Call, model: str) -> dict[str, Any]:
        """What the SDK has parameters for."""
        # The provider's newer models refuse max_tokens; engines often know nothing else.
        limit = "max_completion_tokens" if self.at_provider else "max_tokens"
        return {"model": model, "messages": _messages(call.prompt), limit: call.max_tokens, **_options(call)}

    @staticmethod
    def on_event(decoder: StreamDecoder, name: bytes, data: bytes) -> None:
        """Decode one event of the chat stream."""
        if data == b"[DONE]":
            decoder.seen()
            decoder.stop()
            return
        chunk = tree_of(data)
        decoder.seen()
        get = chunk.get
        if name == b"error" or get("error"):
            decoder.error_event(chunk)
            return
        if decoder.model is None:
            decoder.message_id, decoder.model = text_or_none(get("id")), text_or_none(get("model"))
        for choice in get("choices") or ():
            _choice(decoder, choice)
        if usage := get("usage"):
            _usage(decoder, usage)

    @staticmethod
    def on_whole(decoder: StreamDecoder, body: bytes) -> None:
        """Decode an answer that came without a stream; raises ValueError and its like for what is no completion."""
        answer = tree_of(body)
        if answer.get("error"):
            decoder.error = error_of(answer)
            return
        decoder.message_id, decoder.model = text_or_none(answer.get("id")), text_or_none(answer["model"])
        choice = answer["choices"][0]
        decoder.stop_reason = text_or_none(choice.get("finish_reason"))
        if usage := answer.get("usage"):
            _usage(decoder, usage)
        message = choice["message"]
        calls = [call["function"]["arguments"] for call in message.get("tool_calls") or ()]
        decoder.whole_content(message.get("content") or "", "".join(calls))


def _messages(prompt: Prompt) -> list[dict[str, Any]]:
    """The conversation; cache marks are left out, because these caches find prefixes by themselves."""
    system = (Message(SYSTEM, prompt.system),) if prompt.system else ()
    return [
        {"role": one.role, "content": _content(one.parts), **(json.loads(one.more) if one.more else {})}
        for one in (*system, *prompt.messages)
    ]


def _content(parts: tuple[Part, ...]) -> Any:
    """One text: chat templates of engines differ in how they join several, or take none but the first.

    Blocks that the user gave are sent as they are.
    """
    if len(parts) == 1 and not parts[0].block:
        return parts[0].text
    if any(part.block for part in parts):
        return list(map(protocol.block_of, parts))
    return "\n\n".join(part.text for part in parts) if parts else None


def _options(call: Call) -> dict[str, Any]:
    """Everything beside the conversation; what a call does not need is left out."""
    options: dict[str, Any] = {"stream": call.stream}
    if call.stream:
        options["stream_options"] = {"include_usage": True}
    if call.prompt.tools:
        options["tools"] = _tools(call.prompt.tools)
        if call.use_tool:
            options["tool_choice"] = "required"
    if call.thinking != "off":
        options["reasoning_effort"] = "medium"
    if call.schema is not None:
        schema = {"name": "answer", "schema": json.loads(call.schema), "strict": True}
        options["response_format"] = {"type": "json_schema", "json_schema": schema}
    return options


def _engine_thinking(call: Call) -> dict[str, Any]:
    """The names that engines know: a variable of the chat template, and for a budget vLLM's field beside it."""
    if call.thinking == "off":
        return {}
    template, budget = {"enable_thinking": True}, call.thinking_tokens
    if call.thinking != "enabled":
        return {"chat_template_kwargs": template}
    return {"chat_template_kwargs": {**template, "thinking_budget": budget}, "thinking_token_budget": budget}


@lru_cache(maxsize=256)
def _tools(tools: tuple[Tool, ...]) -> list[dict[str, Any]]:
    return [_tool(tool) for tool in tools]


def _tool(tool: Tool) -> dict[str, Any]:
    if tool.given:
        given = json.loads(tool.given)
        return {**given, "function": {**given["function"], "name": tool.name}}
    function = {"name": tool.name, "description": tool.description, "parameters": json.loads(tool.schema)}
    return {"type": "function", "function": function}


def _choice(decoder: StreamDecoder, choice: dict[str, Any]) -> None:
    if delta := choice.get("delta"):
        get = delta.get
        if thought := get("reasoning_content") or get("reasoning"):
            decoder.content(_THINKING, thought)
        if text := get("content"):
            decoder.content(_TEXT, text)
        for call in get("tool_calls") or ():
            decoder.tool(call.get("index"))
            decoder.content(_TOOL, (call.get("function") or {}).get("arguments") or "")
    if reason := choice.get("finish_reason"):
        decoder.tools_done()
        decoder.stop_reason, decoder.finished = text_or_none(reason), True


def _usage(decoder: StreamDecoder, usage: dict[str, Any]) -> None:
    prompt, details = usage.get("prompt_tokens"), usage.get("prompt_tokens_details") or {}
    cached, created = details.get("cached_tokens"), details.get("created_cache_tokens")
    output = usage.get("completion_tokens")
    thinking = (usage.get("completion_tokens_details") or {}).get("reasoning_tokens")
    if isinstance(prompt, int) and isinstance(output, int) and isinstance(thinking, int):
        # xAI counts thinking beside the completion.
        output += thinking if usage.get("total_tokens") == prompt + output + thinking else 0
    decoder.count(
        input_tokens=prompt - (cached or 0) - (created or 0) if type(prompt) is int else prompt,
        cache_read_input_tokens=cached, cache_creation_input_tokens=created,
        output_tokens=output, thinking_tokens=thinking,
    )  # fmt: skip
