"""Anthropic Messages: the official SDK builds the request, this file reads the stream.

Rule: message_start, ping, content_block_start, signature deltas and empty deltas are no content. `usage` of
message_delta is cumulative. A stream without message_stop is truncated. Unknown events pass.
"""

from __future__ import annotations

import json
from contextlib import AbstractContextManager
from typing import Any

import anthropic

from tailgauge.call import Call
from tailgauge.endpoints.decoder import KIND_CODE, StreamDecoder, error_of, text_or_none
from tailgauge.records import TEXT, THINKING, TOOL_JSON

_TEXT, _THINKING, _TOOL = KIND_CODE[TEXT], KIND_CODE[THINKING], KIND_CODE[TOOL_JSON]
_DELTAS = {
    "text_delta": (_TEXT, "text"),
    "thinking_delta": (_THINKING, "thinking"),
    "input_json_delta": (_TOOL, "partial_json"),
}


def client(base_url: str, key: str, http_client: Any) -> anthropic.Anthropic:
    """The official client; retries are the harness's own."""
    return anthropic.Anthropic(
        api_key=key,
        base_url=base_url,
        max_retries=0,
        http_client=http_client,
        timeout=None,
        default_headers={"accept-encoding": "identity"},
    )


def send(sdk: anthropic.Anthropic, call: Call, model: str, call_id: str) -> AbstractContextManager[Any]:
    """One streamed Messages call."""
    return sdk.messages.with_streaming_response.create(
        model=model,
        max_tokens=call.max_tokens,
        messages=[{"role": "user", "content": call.prompt.messages[0].parts[0].text}],
        stream=True,
        extra_headers={"x-client-request-id": call_id},
    )


def on_event(decoder: StreamDecoder, name: bytes, data: bytes) -> None:
    """Meaning of one event of the Messages stream."""
    event = json.loads(data)
    kind = event.get("type") or name.decode("ascii", "replace")
    if kind == "content_block_delta":
        decoder.seen()
        delta = event["delta"]
        if (content := _DELTAS.get(delta.get("type"))) is not None:
            decoder.content(content[0], delta[content[1]])
        return
    if kind == "ping":
        return
    decoder.seen()
    if name == b"error" or kind == "error":
        decoder.error = decoder.error or error_of(event)
    elif kind == "message_start":
        message = event["message"]
        decoder.message_id, decoder.model = (
            text_or_none(message.get("id")),
            text_or_none(message.get("model")),
        )
        _usage(decoder, message.get("usage") or {})
    elif kind == "message_delta":
        decoder.stop_reason = text_or_none(event["delta"].get("stop_reason"))
        _usage(decoder, event.get("usage") or {})
    elif kind == "message_stop":
        decoder.stop()


def _usage(decoder: StreamDecoder, usage: dict[str, Any]) -> None:
    split = usage.get("cache_creation") or {}
    details = usage.get("output_tokens_details") or {}
    decoder.count(
        input_tokens=usage.get("input_tokens"),
        output_tokens=usage.get("output_tokens"),
        cache_read_input_tokens=usage.get("cache_read_input_tokens"),
        cache_creation_input_tokens=usage.get("cache_creation_input_tokens"),
        cache_creation_5m_input_tokens=split.get("ephemeral_5m_input_tokens"),
        cache_creation_1h_input_tokens=split.get("ephemeral_1h_input_tokens"),
        thinking_tokens=details.get("thinking_tokens"),
    )
