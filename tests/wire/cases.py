"""Thirty streams rebuilt from public bug reports, as a target sends them: each a traffic table with its model.

What is right to say of each stands in `test_cases.py`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

from wire.answering import END, Answer, Answering, Received, framed, stream, whole
from wire.pieces import (
    BLOCK_END,
    DONE,
    MESSAGE_STOP,
    ROLE,
    START,
    STOP,
    TEXT_PIECES,
    block,
    chunk,
    counts,
    data,
    good,
    message,
    message_delta,
    pieces_of_text,
    start,
    text_block,
    usage,
)

POLITE = """
[traffic.{name}.retry]
policy = "polite"
base_s = 0.01
cap_s = 0.01
budget_share = 1.0
budget_burst = 1000
"""
CACHED = """pattern = "cached"
[traffic.{name}.cache]
system_tokens = 1500
breakpoints = ["system"]
"""
OVERLOADED = {"type": "overloaded_error", "message": "Overloaded"}
CONTEXT_FULL = b'error: {"code":400,"message":"the request exceeds the available context size","type":"invalid_request_error"}\n\n'


@dataclass(frozen=True, kw_only=True)
class Case:
    """One stream: where it was reported, what is sent, and what its traffic table says besides.

    `is_like_all`: the preflight is answered so too; else with a usual answer.
    """

    source: str
    answer: Answering
    settings: str = ""
    is_like_all: bool = True


def always(*events: bytes, **more: Any) -> Answering:
    """Answer each request with these events."""
    return lambda _: stream(*events, **more)


def every_other(*events: bytes, protocol: str = "openai") -> Answering:
    """Answer every second request with these events."""
    return lambda seen: stream(*(events if seen.number % 2 else good(protocol)))


def first_attempt(answer: Callable[[Received], Answer], protocol: str) -> Answering:
    """Answer the first attempt of each request otherwise."""
    return lambda seen: (
        stream(*good(protocol)) if seen.attempt or seen.is_preflight else answer(seen)
    )


# --- chat completions -------------------------------------------------------------------------------------------


def thought(text: str) -> bytes:
    return chunk({"content": [{"type": "thinking", "thinking": [{"type": "text", "text": text}]}]})


def detail(text: str) -> bytes:
    part = {
        "type": "reasoning.text",
        "id": "r",
        "format": "MiniMax-response-v1",
        "index": 0,
        "text": text,
    }
    return chunk({"content": "", "reasoning_details": [part]}, usage=None)


def call(call_id: str, value: str) -> bytes:
    function = {"name": "look_up", "arguments": f'{{"q": "{value}"}}'}
    return chunk({"tool_calls": [{"id": call_id, "type": "function", "function": function}]})


def split_characters(_: Received) -> Answer:
    """Answer in chunks of HTTP that end within characters and events."""
    events = [
        *[chunk({"content": "\U0001f600你好 "}) for _ in range(5)],
        chunk({"content": "Keep [DONE] here"}),
    ]
    body = b"".join([ROLE, *events, STOP, usage(), DONE])
    size = 37
    chunks = [framed(body[place : place + size]) for place in range(0, len(body), size)]
    head = stream(b": hello\n\n").pieces[0]
    return Answer(pieces=[head, *chunks, END], gap_s=0.001)


def limited_by_azure(_: Received) -> Answer:
    headers = {
        "retry-after-ms": "700",
        "x-rate-limit-reset-tokens": "2",
        "x-ratelimit-remaining-requests": "9",
    }
    text = "Requests to the ChatCompletions_Create Operation have exceeded the token rate limit."
    return whole(429, {"error": {"code": "429", "message": text}}, headers)


def limits_of_mistral(seen: Received) -> Answer:
    headers = {
        "x-ratelimit-limit-tokens-minute": "50000",
        "x-ratelimit-remaining-tokens-minute": str(50_000 - 100 * seen.number),
        "x-ratelimit-tokens-query-cost": "100",
        "x-ratelimit-limit-req-minute": "72",
        "x-ratelimit-remaining-req-minute": str(72 - seen.number),
    }
    return stream(*good("openai"), headers=headers)


WRITTEN = {"prompt_tokens_details": {"cached_tokens": 0, "cache_write_tokens": 4200}}
HITS = {"prompt_cache_hit_tokens": 896, "prompt_cache_miss_tokens": 104}
DISCONNECTED = {
    "code": 502,
    "message": "Provider disconnected",
    "metadata": {"error_type": "provider_unavailable"},
}
DIED = data(
    {
        "error": {
            "message": "EngineCore encountered an issue.",
            "type": "InternalServerError",
            "param": None,
            "code": 500,
        }
    }
)

CHAT: dict[str, Case] = {
    "abort": Case(
        source="vllm-project/vllm#57082", is_like_all=False,
        answer=every_other(ROLE, *TEXT_PIECES, chunk({}, "abort"), usage(2), DONE)),
    "heartbeat": Case(
        source="omnigent#1474, cadis#362, opencodex#1188",
        answer=always(ROLE, *pieces_of_text(4), b"data:\n\n", *pieces_of_text(4), STOP, usage(), DONE)),
    "content_list": Case(
        source="symfony/ai#2422, agent-framework#6978",
        answer=always(ROLE, thought("hm "), thought("so "), chunk({"content": [{"type": "text", "text": "It "}]}),
                      chunk({"content": "is."}), STOP, usage(), DONE)),
    "deepseek_hits": Case(
        source="hermes-agent#61871, langchain#39637",
        answer=always(ROLE, *pieces_of_text(), STOP, usage(8, 1000, **HITS), DONE)),
    "cache_writes": Case(
        source="litellm#32656, ax#573, agentgateway#2555", settings=CACHED,
        answer=always(ROLE, *pieces_of_text(), STOP, usage(8, 4300, **WRITTEN), DONE)),
    "tools_without_index": Case(
        source="openai-python#2806, dayu-agent#57", settings="tools = 2",
        answer=always(ROLE, call("a", "x"), call("b", "y"), STOP, usage(), DONE, gap_s=0.05)),
    "error_field": Case(
        source="llama.cpp#16104, coddy-agent#106", is_like_all=False,
        answer=lambda seen: stream(*([] if seen.number % 2 else [ROLE, *TEXT_PIECES]), CONTEXT_FULL, DONE)),
    "azure_429": Case(
        source="openai-python#937, azure-openai-benchmark#31", settings=POLITE,
        answer=first_attempt(limited_by_azure, "openai")),
    "openrouter_error": Case(
        source="local-operator#223", is_like_all=False,
        answer=always(ROLE, *TEXT_PIECES, chunk({"content": ""}, "error", error=DISCONNECTED), DONE)),
    "engine_died": Case(
        source="vllm#57519, sglang#38868, inference-perf#713", is_like_all=False,
        answer=lambda seen: stream(*([ROLE, *TEXT_PIECES] if seen.number % 2 else []), DIED, DONE)),
    "reasoning_details": Case(
        source="archestra#2527",
        answer=always(chunk({"role": "", "content": ""}), detail("hm "), detail("so "), *pieces_of_text(3), STOP, usage(), DONE)),
    "split_characters": Case(source="second-brain-cloudflare#353", answer=split_characters),
    "no_blank_line": Case(
        source="apogee#139",
        answer=always(b"retry: 3000\n\n", b": ping\n\n", ROLE, b": heartbeat\n\n", *pieces_of_text(), STOP, usage(), b"id: 7\n\n",
                      b"data: [DONE]")),
    "usage_on_each": Case(
        source="opencode-cmd-provider#213",
        answer=always(ROLE, *[chunk({"content": "w "}, usage=counts(100, number)) for number in range(1, 15)],
                      chunk({"content": ""}, "stop", usage=counts(100, 14)), DONE)),
}  # fmt: skip
LIMITS = Case(source="mistralai/client-ts#169", answer=limits_of_mistral)
IDLE = Case(
    source="vllm-omni#1374, aiohttp#7297", is_like_all=False,
    answer=always(ROLE, *TEXT_PIECES, STOP, usage(2), DONE, first_s=0.0, gap_s=0.001, closes_after_s=0.06),
)  # fmt: skip
WHOLE = Case(
    source="9router#3492", settings="stream = false",
    answer=lambda _: whole(200, b'{"id":"c","object":"chat.completion","model":"m","choices":[{"index":0,"message":{"role":'
                           b'"assistant","content":"whole"},"finish_reason":"stop"}]}\n\ndata: [DONE]\n\n',
                           kind="text/event-stream"),
)  # fmt: skip

# --- messages ---------------------------------------------------------------------------------------------------

OVERLOAD = (START, data({"type": "error", "error": OVERLOADED}, "error"))
LONG = {
    "input_tokens": 1500,
    "output_tokens": 1,
    "cache_read_input_tokens": 1200,
    "cache_creation_input_tokens": 0,
}
ZEROS = {
    "input_tokens": 0,
    "output_tokens": 8,
    "cache_read_input_tokens": 0,
    "cache_creation_input_tokens": 0,
}
STEPS = [
    {"type": "message", "model": "claude-fable-5", "input_tokens": 100, "output_tokens": 9},
    {
        "type": "fallback_message",
        "model": "claude-opus-4-8",
        "input_tokens": 140,
        "output_tokens": 20,
    },
]
TO_OPUS = {
    "type": "fallback",
    "from": {"model": "claude-fable-5"},
    "to": {"model": "claude-opus-4-8"},
    "trigger": {"type": "refusal"},
}
MISS = {"cache_miss_reason": {"type": "tools_changed", "cache_missed_input_tokens": 4096}}


def limited_until_reset(_: Received) -> Answer:
    """Refuse, with nothing but the time of the reset, which lies one to two seconds ahead."""
    reset = (datetime.now(UTC) + timedelta(seconds=2)).strftime("%Y-%m-%dT%H:%M:%SZ")
    headers = {
        "anthropic-ratelimit-requests-limit": "5",
        "anthropic-ratelimit-requests-remaining": "0",
        "anthropic-ratelimit-requests-reset": reset,
        "x-should-retry": "true",
    }
    error = {
        "type": "rate_limit_error",
        "message": "Number of requests has exceeded your per-minute rate limit",
    }
    return whole(429, {"type": "error", "error": error}, headers)


def served_as(seen: Received) -> Answer:
    tier = "standard" if seen.number % 2 else "priority"
    counts = {
        **LONG,
        "cache_read_input_tokens": 0,
        "service_tier": tier,
        "speed": "fast",
        "inference_geo": "us",
    }
    return stream(
        start(counts, diagnostics=MISS),
        *text_block(),
        message_delta({"output_tokens": 8}),
        MESSAGE_STOP,
    )


def refused_for_now(seen: Received) -> Answer:
    return whole(
        408 if seen.number % 4 < 2 else 409,
        {"type": "error", "error": {"type": "api_error", "message": "again"}},
    )


END_OF_MESSAGE = (message_delta({"output_tokens": 8}), MESSAGE_STOP)
MESSAGES: dict[str, Case] = {
    "overload": Case(
        source="anthropic-sdk-python#1258, ai-gateway#2697, forgecode#2595", settings=POLITE,
        answer=first_attempt(lambda _: stream(*OVERLOAD), "anthropic")),
    "done_behind": Case(
        source="earendil-works/pi#3708, vllm#37510, tau#692", answer=always(*good("anthropic"), DONE)),
    "reset_only": Case(
        source="anthropic-sdk-typescript#357", settings=POLITE,
        answer=first_attempt(limited_until_reset, "anthropic")),
    "zeros_at_the_end": Case(
        source="envoyproxy/ai-gateway#1631", answer=always(start(LONG), *text_block(), message_delta(ZEROS), MESSAGE_STOP)),
    "zeros_at_the_start": Case(
        source="rig#2279",
        answer=always(start({"input_tokens": 0, "output_tokens": 0}), message("ping"), *text_block(),
                      message_delta({"input_tokens": 4522, "cache_creation_input_tokens": 4511, "output_tokens": 8}),
                      MESSAGE_STOP)),
    "no_usage": Case(source="pi#6567", answer=always(START, *text_block(), message_delta(None), MESSAGE_STOP)),
    "fallback": Case(
        source="oh-my-pi#4182, dust#26813",
        answer=always(start({"input_tokens": 100, "output_tokens": 1}, model="claude-fable-5"), *text_block(0, 3),
                      block(TO_OPUS, 1), BLOCK_END.replace(b"0", b"1"), *text_block(2),
                      message_delta({"output_tokens": 20, "iterations": STEPS}), MESSAGE_STOP)),
    "served_as": Case(source="types of anthropic 2.11", settings=CACHED, answer=served_as),
    "for_now": Case(
        source="the SDKs retry 408 and 409", settings=POLITE, answer=first_attempt(refused_for_now, "anthropic")),
    "three_in_ten": Case(
        source="anthropic-sdk-python#1258", is_like_all=False, settings=POLITE,
        answer=lambda seen: stream(*(OVERLOAD if seen.number % 10 < 3 else good("anthropic")))),
}  # fmt: skip
REFUSAL = {"type": "refusal", "category": "cyber", "explanation": None}
REFUSALS = Case(
    source="pi#8258, zeroclaw#8721", is_like_all=False,
    answer=every_other(START, *text_block(0, 1), message_delta({"output_tokens": 3}, "refusal", stop_details=REFUSAL),
                       MESSAGE_STOP, protocol="anthropic"),
)  # fmt: skip


def scenario(
    protocol: str, url: str, cases: dict[str, Case], *, rate: float, seconds: float
) -> str:
    """Return a scenario with a traffic table for each case, whose model is the case's name."""
    first = next(iter(cases))
    text = f"""
[target]
url = "{url}"
protocol = "{protocol}"
model = "{first}"
[arrival]
process = "constant"
rate_per_s = {rate}
[stages]
duration_s = {seconds}
warmup_s = 0
"""
    for name, case in cases.items():
        text += f'[traffic.{name}]\nmodel = "{name}"\nprompt_tokens = 20\noutput_tokens = 64\n'
        text += case.settings.format(name=name) + "\n"
    return text
