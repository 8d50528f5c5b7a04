"""OpenAI chat completions: the official SDK builds the request, this file reads the stream.

Rule: the role chunk is no token. `prompt_tokens` includes the cached ones: input_tokens is what remains. The end mark
is [DONE]; an engine that leaves it out is complete when it named a finish reason and ended its body cleanly.
"""

from __future__ import annotations

import json
from contextlib import AbstractContextManager
from typing import Any

import openai

from tailgauge.call import Call
from tailgauge.endpoints.decoder import KIND_CODE, StreamDecoder, error_of, text_or_none
from tailgauge.endpoints.keys import PROVIDERS
from tailgauge.records import TEXT, THINKING, TOOL_JSON

_TEXT, _THINKING, _TOOL = KIND_CODE[TEXT], KIND_CODE[THINKING], KIND_CODE[TOOL_JSON]


def client(base_url: str, key: str, http_client: Any) -> openai.OpenAI:
    """The official client; retries are the harness's own. The SDK wants the version in the base URL."""
    return openai.OpenAI(
        api_key=key,
        base_url=base_url if base_url.endswith("/v1") else f"{base_url}/v1",
        max_retries=0,
        http_client=http_client,
        timeout=None,
        default_headers={"accept-encoding": "identity"},
    )


def send(sdk: openai.OpenAI, call: Call, model: str, call_id: str) -> AbstractContextManager[Any]:
    """One streamed chat completion with usage."""
    # The provider's newer models refuse max_tokens; engines often know nothing else.
    limit = "max_completion_tokens" if sdk.base_url.host == PROVIDERS["openai"].host else "max_tokens"
    create: Any = (
        sdk.chat.completions.with_streaming_response.create
    )  # its overloads cannot name a key by value
    opened: AbstractContextManager[Any] = create(
        model=model,
        messages=[{"role": "user", "content": call.prompt.messages[0].parts[0].text}],
        stream=True,
        stream_options={"include_usage": True},
        extra_headers={"x-client-request-id": call_id},
        **{limit: call.max_tokens},
    )
    return opened


def on_event(decoder: StreamDecoder, name: bytes, data: bytes) -> None:
    """Meaning of one event of the chat stream."""
    if data == b"[DONE]":
        decoder.seen()
        decoder.stop()
        return
    chunk = json.loads(data)
    decoder.seen()
    if name == b"error" or chunk.get("error"):
        decoder.error = decoder.error or error_of(chunk)
        return
    if decoder.model is None:
        decoder.message_id, decoder.model = text_or_none(chunk.get("id")), text_or_none(chunk.get("model"))
    for choice in chunk.get("choices") or ():
        _choice(decoder, choice)
    if usage := chunk.get("usage"):
        _usage(decoder, usage)


def _choice(decoder: StreamDecoder, choice: dict[str, Any]) -> None:
    delta = choice.get("delta") or {}
    for key in ("reasoning_content", "reasoning"):
        if thought := delta.get(key):
            decoder.content(_THINKING, thought)
            break
    if text := delta.get("content"):
        decoder.content(_TEXT, text)
    for call in delta.get("tool_calls") or ():
        decoder.content(_TOOL, (call.get("function") or {}).get("arguments") or "")
    if reason := choice.get("finish_reason"):
        decoder.stop_reason, decoder.finished = text_or_none(reason), True


def _usage(decoder: StreamDecoder, usage: dict[str, Any]) -> None:
    prompt, details = usage.get("prompt_tokens"), usage.get("prompt_tokens_details") or {}
    cached = details.get("cached_tokens")
    decoder.count(
        input_tokens=prompt - (cached or 0) if type(prompt) is int else prompt,
        cache_read_input_tokens=cached,
        cache_creation_input_tokens=details.get("created_cache_tokens"),
        output_tokens=usage.get("completion_tokens"),
        thinking_tokens=(usage.get("completion_tokens_details") or {}).get("reasoning_tokens"),
    )
