"""How servers and gateways end a stream badly, each as the named issue or source has it. None of them is a success.

An answer is a list of events; it comes in chunks, and ends as `framing` says.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from wire.pieces import (
    BLOCK,
    BLOCK_END,
    DONE,
    ROLE,
    START,
    TEXT_PIECES,
    THOUGHTS,
    chunk,
    data,
    message,
    message_delta,
    piece,
    usage,
)


@dataclass(frozen=True, kw_only=True)
class BadEnd:
    """One way to end badly: the events, and what the row of such a call has to say."""

    source: str  # where it was read: owner/name#number, a file of a repository, or a page
    events: tuple[bytes, ...]
    ended: str
    protocol: str = "openai"
    error_type: str | None = None
    error_class: str | None = None
    error_text: str = ""  # a part of the text that is kept
    stop_reason: str | None = None
    framing: Literal["whole", "cut", "reset", "close"] = "whole"


ENGINE_DIED = {
    "message": "EngineCore encountered an issue.",
    "type": "InternalServerError",
    "param": None,
    "code": 500,
}
OVERLOADED = {"details": None, "type": "overloaded_error", "message": "Overloaded"}

BAD_ENDS: dict[str, BadEnd] = {
    "vLLM aborts a request, as on a scale-down": BadEnd(
        source="vllm-project/vllm#57082",
        events=(ROLE, *TEXT_PIECES, chunk({}, "abort"), usage(2), DONE),
        ended="aborted", error_type="abort", stop_reason="abort"),
    "vLLM refuses a request inside the stream": BadEnd(
        source="BerriAI/litellm#32237",
        events=(data({"error": {"object": "error", "message": "The model is not multimodal.", "type": "BadRequestError",
                                "param": None, "code": 400}}), DONE),
        ended="client_error", error_type="BadRequestError", error_class="client_error", error_text="not multimodal"),
    "vLLM's engine dies after some words": BadEnd(
        source="vllm-project/vllm: entrypoints/openai, create_streaming_error_response; vllm-project/vllm#27194",
        events=(ROLE, *TEXT_PIECES, data({"error": ENGINE_DIED}), DONE),
        ended="stream_error", error_type="InternalServerError", error_class="server_error", error_text="EngineCore"),
    "vLLM's engine dies before a word": BadEnd(
        source="vllm-project/vllm: entrypoints/openai, create_streaming_error_response; vllm-project/vllm#27194",
        events=(data({"error": ENGINE_DIED}), DONE),
        ended="server_error", error_type="InternalServerError", error_class="server_error"),
    "vLLM leaves the finish reason null": BadEnd(
        source="vllm-project/vllm#27572",
        events=(ROLE, *TEXT_PIECES, chunk({"content": ""}), usage(2), DONE),
        ended="aborted", error_type="no_finish_reason"),
    "vllm-mlx never says why it stopped": BadEnd(
        source="waybarrios/vllm-mlx#628",
        events=(ROLE, *TEXT_PIECES, chunk({}), DONE),
        ended="aborted", error_type="no_finish_reason"),
    "SGLang's scheduler aborts": BadEnd(
        source="sgl-project/sglang#19357; python/sglang/srt/entrypoints/openai/serving_chat.py",
        events=(ROLE, *TEXT_PIECES, data({"error": {"object": "error", "message": "Generation aborted.",
                                              "type": "SERVICE_UNAVAILABLE", "param": None, "code": 503}}), DONE),
        ended="stream_error", error_type="SERVICE_UNAVAILABLE", error_class="overloaded"),
    "SGLang's scheduler aborts before a word": BadEnd(
        source="sgl-project/sglang#19357; python/sglang/srt/entrypoints/openai/serving_chat.py",
        events=(data({"error": {"object": "error", "message": "The request queue is full.",
                                "type": "SERVICE_UNAVAILABLE", "param": None, "code": 503}}), DONE),
        ended="overloaded", error_type="SERVICE_UNAVAILABLE", error_class="overloaded"),
    "SGLang sends an empty finish reason and no other": BadEnd(
        source="sgl-project/sglang#3912",
        events=(chunk({"role": None, "content": "The "}, ""), chunk({"content": "answer"}, ""), DONE),
        ended="aborted", error_type="no_finish_reason"),
    "TGI breaks off a generation": BadEnd(
        source="huggingface/text-generation-inference#3050; router/src/infer/mod.rs, InferError::error_type",
        events=(*TEXT_PIECES, data({"error": "Incomplete generation", "error_type": "incomplete_generation"})),
        ended="stream_error", error_text="Incomplete generation"),
    "TGI is overloaded": BadEnd(
        source="huggingface/text-generation-inference: router/src/infer/mod.rs, InferError::Overloaded",
        events=(data({"error": "Model is overloaded", "error_type": "overloaded"}),),
        ended="overloaded", error_class="overloaded", error_text="overloaded"),
    "TGI refuses the length inside the stream": BadEnd(
        source="huggingface/huggingface_hub#2558",
        events=(data({"error": "Input validation error: `inputs` tokens + `max_new_tokens` must be <= 4096",
                      "error_type": "validation"}),),
        ended="client_error", error_class="client_error", error_text="Input validation error"),
    "LMDeploy's engine fails": BadEnd(
        source="InternLM/lmdeploy: lmdeploy/serve/openai/protocol.py, finish_reason 'error'",
        events=(chunk({"role": "assistant", "content": "The "}), chunk({"role": "assistant", "content": ""}, "error"), DONE),
        ended="aborted", error_type="error", stop_reason="error"),
    "LMDeploy's session is stopped": BadEnd(
        source="InternLM/lmdeploy: lmdeploy/serve/openai/protocol.py, finish_reason 'abort'",
        events=(chunk({"role": "assistant", "content": "The "}), chunk({"role": "assistant", "content": ""}, "abort"), DONE),
        ended="aborted", error_type="abort", stop_reason="abort"),
    "llama.cpp refuses a prompt that is too long": BadEnd(
        source="coddy-project/coddy-agent#106; ggml-org/llama.cpp#16104",
        events=(b'error: {"code":400,"message":"the request exceeds the available context size","type":"invalid_request_error"}\n\n', DONE),
        ended="client_error", error_type="invalid_request_error", error_class="client_error", error_text="context size"),
    "llama.cpp's context is full after some words": BadEnd(
        source="ggml-org/llama.cpp#19774; unslothai/unsloth#9390",
        events=(ROLE, *TEXT_PIECES, data({"error": {"code": 500, "message": "Context size has been exceeded.", "type": "server_error"}})),
        ended="stream_error", error_type="server_error", error_class="server_error", error_text="Context size"),
    "Ollama's runner fails after some words": BadEnd(
        source="ollama/ollama: middleware/openai.go, ChatWriter.Write: an error line becomes an empty chunk",
        events=(*TEXT_PIECES, chunk({"role": "assistant", "content": ""})),
        ended="truncated", error_type="no_end_mark"),
    "LM Studio says nothing where the prompt is too long": BadEnd(
        source="lmstudio-ai/lmstudio-bug-tracker#2339",
        events=(ROLE, chunk({}, "stop"), usage(0), DONE),
        ended="empty", stop_reason="stop"),
    "LiteLLM ends a failed response as an empty one": BadEnd(
        source="BerriAI/litellm#36768",
        events=(ROLE, chunk({}, "stop"), DONE),
        ended="empty", stop_reason="stop"),
    "LiteLLM's fallback fails too, in Messages": BadEnd(
        source="BerriAI/litellm#38610", protocol="anthropic",
        events=(START, data({"error": {"message": "litellm.RateLimitError: no deployments available", "type": "None",
                                       "param": "None", "code": "429"}})),
        ended="rate_limited", error_class="rate_limited", error_text="no deployments"),
    "Anthropic is overloaded before a word": BadEnd(
        source="anthropics/anthropic-sdk-python#1258", protocol="anthropic",
        events=(START, message("ping"), data({"type": "error", "error": OVERLOADED}, "error")),
        ended="overloaded", error_type="overloaded_error", error_class="overloaded"),
    "Anthropic is overloaded after some words": BadEnd(
        source="karthink/gptel#1512; anthropics/anthropic-sdk-python#688", protocol="anthropic",
        events=(START, *BLOCK, data({"type": "error", "error": OVERLOADED, "request_id": "req_1"}, "error")),
        ended="stream_error", error_type="overloaded_error", error_class="overloaded"),
    "Envoy AI Gateway passes an overload on": BadEnd(
        source="envoyproxy/ai-gateway#2698",
        events=(data({"error": {"type": "overloaded_error", "message": "Overloaded"}}),),
        ended="overloaded", error_type="overloaded_error", error_class="overloaded"),
    "Envoy AI Gateway ends the stream at an overload": BadEnd(
        source="envoyproxy/ai-gateway#2697", framing="cut",
        events=(ROLE, *TEXT_PIECES),
        ended="truncated", error_type="connection_closed"),
    "Portkey turns an error of the stream into a reason": BadEnd(
        source="Portkey-AI/gateway#741",
        events=(ROLE, *TEXT_PIECES, chunk({}, "error"), DONE),
        ended="aborted", error_type="error", stop_reason="error"),
    "nginx cuts a stream that is silent for too long": BadEnd(
        source="nexu-io/open-design#99; skyflo-ai/skyflo#46", framing="cut",
        events=(ROLE, *TEXT_PIECES),
        ended="truncated", error_type="connection_closed"),
    "a proxy resets the connection": BadEnd(
        source="imzodev/openaidy#408", framing="reset",
        events=(ROLE, *TEXT_PIECES),
        ended="truncated", error_type="connection_reset"),
    "Azure's filter cuts an answer, without [DONE]": BadEnd(
        source="experientiallabs/experiential#962", framing="close",
        events=(ROLE, *TEXT_PIECES, chunk({}, "content_filter")),
        ended="filtered", stop_reason="content_filter"),
    "Azure's filter takes the whole answer": BadEnd(
        source="microsoft/semantic-kernel#5289; Azure/azure-sdk-for-net#38608",
        events=(data({"id": "", "object": "", "created": 0, "model": "", "choices": [],
                      "prompt_filter_results": [{"prompt_index": 0, "content_filter_results": {}}]}),
                chunk({}, "content_filter"), usage(0), DONE),
        ended="filtered", stop_reason="content_filter"),
    "OpenRouter's provider disconnects": BadEnd(
        source="use-agent-os/agent-os#2214; openrouter.ai/docs/api/reference/errors-and-debugging",
        events=(ROLE, *TEXT_PIECES, chunk({"content": ""}, "error", provider="openai",
                                    error={"code": "server_error", "message": "Provider disconnected unexpectedly"}), DONE),
        ended="stream_error", error_type="server_error", error_class="server_error", error_text="disconnected"),
    "OpenRouter finds no provider": BadEnd(
        source="openrouter.ai/docs/api/reference/errors-and-debugging",
        events=(b": OPENROUTER PROCESSING\n\n", data({"id": "gen-1", "error": {"code": 429, "message": "Rate limited upstream"},
                                                     "choices": []})),
        ended="rate_limited", error_type="429", error_class="rate_limited"),
    "DeepSeek runs out of resources": BadEnd(
        source="docs.rs/crate/ds-api: FinishReason::InsufficientSystemResource",
        events=(ROLE, *THOUGHTS, chunk({}, "insufficient_system_resource"), DONE),
        ended="aborted", error_type="insufficient_system_resource", stop_reason="insufficient_system_resource"),
    "a proxy in front of DeepSeek appends the error as text": BadEnd(
        source="tetsuo-ai/agenc-core#2492", framing="close",
        events=(ROLE, *THOUGHTS, b"upstream error: read ECONNRESET\n"),
        ended="truncated", error_type="no_end_mark"),
    "Fireworks stops within the thinking": BadEnd(
        source="anomalyco/opencode#37852",
        events=(ROLE, *THOUGHTS),
        ended="truncated", error_type="no_end_mark"),
    "Gemini's tool call is malformed": BadEnd(
        source="NousResearch/hermes-agent#83886; googleapis/python-genai#1836",
        events=(ROLE, chunk({}, "malformed_function_call"), DONE),
        ended="aborted", error_type="malformed_function_call", stop_reason="malformed_function_call"),
    "Gemini's malformed tool call is called a stop": BadEnd(
        source="BerriAI/litellm#21744",
        events=(ROLE, chunk({}, "stop"), usage(0), DONE),
        ended="empty", stop_reason="stop"),
    "DashScope reports a failure without [DONE]": BadEnd(
        source="open-octo/octo-agent#910",
        events=(ROLE, *TEXT_PIECES, data({"error": {"message": "Internal server error!", "type": "InternalError"}})),
        ended="stream_error", error_type="InternalError", error_class="server_error"),
    "Messages without their end": BadEnd(
        source="use-agent-os/agent-os#2137", protocol="anthropic",
        events=(START, *BLOCK, BLOCK_END),
        ended="truncated", error_type="no_end_mark"),
    "Messages that break behind their stop reason": BadEnd(
        source="esengine/DeepSeek-Reasonix#8756", protocol="anthropic", framing="cut",
        events=(START, *BLOCK, BLOCK_END, message_delta({"output_tokens": 3})),
        ended="truncated", error_type="connection_closed", stop_reason="end_turn"),
    "OpenRouter's provider breaks off, as an error in the choice": BadEnd(
        source="JetBrains/koog: OpenRouterStreamChoice.error",
        events=(ROLE, *TEXT_PIECES, piece([{"index": 0, "delta": {"content": ""}, "finish_reason": "error", "error": {"code": 502, "message": "Upstream disconnected"}}]), DONE),
        ended="stream_error", error_type="502", error_class="server_error", error_text="Upstream disconnected", stop_reason="error"),
    "OpenRouter's provider is overloaded, as an error in the choice": BadEnd(
        source="JetBrains/koog: OpenRouterStreamChoice.error",
        events=(piece([{"index": 0, "delta": {"content": ""}, "finish_reason": "error", "error": {"code": 503, "message": "busy"}}]), DONE),
        ended="overloaded", error_type="503", error_class="overloaded", error_text="busy", stop_reason="error"),
    "MiniMax limits the rate inside a 200": BadEnd(
        source="infiniflow/ragflow#17292",
        events=(data({"id": "x", "choices": None, "base_resp": {"status_code": 1002, "status_msg": "rate limit exceeded(RPM)"}}), DONE),
        ended="rate_limited", error_type="base_resp 1002", error_class="rate_limited", error_text="RPM"),
    "Groq runs out of capacity after some words": BadEnd(
        source="groq/groq-python: types/chat/chat_completion_chunk.py",
        events=(ROLE, *TEXT_PIECES, data({"choices": [{"index": 0, "delta": {}}], "x_groq": {"id": "r", "error": "over_capacity"}}), DONE),
        ended="stream_error", error_type="over_capacity", error_class="overloaded", error_text="over_capacity"),
    "Gemini puts its error into a list": BadEnd(
        source="n4ze3m/page-assist#406",
        events=(data([{"error": {"code": 429, "message": "quota", "status": "RESOURCE_EXHAUSTED"}}]),),
        ended="rate_limited", error_type="RESOURCE_EXHAUSTED", error_class="rate_limited", error_text="quota"),
    "a gateway sends an error as the stream itself": BadEnd(
        source="QuantumNous/new-api: relay/helper/common.go",
        events=(b'{"error": {"message": "Overloaded", "type": "overloaded_error"}}',),
        ended="overloaded", error_type="overloaded_error", error_class="overloaded", error_text="Overloaded"),
    "a proxy sends a page as the stream": BadEnd(
        source="cloudflare/cloudflare-docs: support/troubleshooting/http-status-codes",
        events=(b"<!DOCTYPE html><title>502 Bad Gateway</title>\n",),
        ended="client_error", error_type="not_an_event_stream", error_text="502 Bad Gateway"),
    "a gateway begins another completion": BadEnd(
        source="Portkey-AI/gateway: src/handlers/retryHandler.ts",
        events=(ROLE, *TEXT_PIECES, ROLE.replace(b'"id": "', b'"id": "other-'), *TEXT_PIECES, chunk({}, "stop"), DONE),
        ended="stream_error", error_type="second_message", stop_reason="stop"),
}  # fmt: skip
