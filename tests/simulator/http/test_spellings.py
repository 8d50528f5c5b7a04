"""Spellings of an answer: what the official SDK of the protocol makes of each, and what differs on the wire."""

from __future__ import annotations

import json
from typing import Any, get_args

import httpx2
import pytest
from simulator.http.conftest import HELLO, Serve, ServedForked, named
from simulator.http.test_ends import completion, message

from tailgauge.scenario.simulated import Spelling
from tailgauge.simulator.protocols.spellings import SPELLINGS

MESSAGES = [name for name, row in SPELLINGS.items() if "anthropic" in row]
CHAT = [name for name, row in SPELLINGS.items() if "openai" in row]
SDK_FAILS = {"empty_data", "unknown_event"}  # openai's parses whatever data there is, and expects choices
ACCUMULATION_FAILS = {"no_usage"}  # anthropic's adds the usage of message_delta to that of message_start
HANDED_ON = {"content_list"}  # openai's hands it on as it is
CONTENT = ("content.thinking_share=0.3", "content.tool_share=0.4")
TOOL: dict[str, Any] = {"name": "look", "input_schema": {"type": "object"}}
FUNCTION = {"type": "function", "function": {"name": "look", "parameters": {"type": "object"}}}
ASKED = {"model": "m", "max_tokens": 60, "messages": HELLO}


def always(*names: str) -> list[str]:
    return [f"spellings.{name}=1.0" for name in names]


def events(endpoint: ServedForked, path: str, **more: Any) -> list[Any]:
    """The data of each event of a stream: as JSON, or as the text that is none."""
    body = {**ASKED, "stream": True, **more}
    text = httpx2.post(f"{endpoint.url}{path}", json=body, timeout=10).text
    data = [line.removeprefix("data: ") for line in text.splitlines() if line.startswith("data: ")]
    return [json.loads(line) if line.startswith("{") else line for line in data]


def chat_events(endpoint: ServedForked, **more: Any) -> list[Any]:
    usage = {"stream_options": {"include_usage": True}}
    return events(endpoint, "/v1/chat/completions", **usage, **more)


def deltas(chunks: list[Any], key: str) -> list[Any]:
    choices = [choice for chunk in chunks if isinstance(chunk, dict) for choice in chunk.get("choices", [])]
    return [choice["delta"][key] for choice in choices if choice["delta"].get(key)]


def test_every_spelling_is_a_row() -> None:
    assert set(get_args(Spelling)) == set(SPELLINGS)


@pytest.mark.parametrize("name", sorted(set(MESSAGES) - ACCUMULATION_FAILS))
def test_the_sdk_reads_a_spelled_message_like_a_plain_one(serve: Serve, name: str) -> None:
    plain, spelled = serve(), serve(*always(name))
    expected = message(plain, stream=True)
    answer = message(spelled, stream=True, **named("r"))

    assert [block.text for block in answer.content] == [block.text for block in expected.content]
    assert answer.stop_reason == expected.stop_reason
    assert spelled.row("r")["spellings"] == name


@pytest.mark.parametrize("name", sorted(set(CHAT) - SDK_FAILS - HANDED_ON))
def test_the_sdk_reads_a_spelled_completion_like_a_plain_one(serve: Serve, name: str) -> None:
    plain, spelled = serve(), serve(*always(name))
    expected = completion(plain, stream=True)
    answer = completion(spelled, stream=True, **named("r"))

    assert answer[:3] == expected[:3]
    assert spelled.row("r")["spellings"] == name


def test_a_spelling_of_the_other_protocol_changes_nothing(serve: Serve) -> None:
    endpoint = serve(*always("done_after_stop", "no_done"))
    text = events(endpoint, "/v1/messages")
    chat = chat_events(endpoint)
    completion(endpoint, stream=True, **named("r"))

    assert text[-1] == "[DONE]"
    assert "[DONE]" not in chat
    assert endpoint.row("r")["spellings"] == "no_done"


def test_spellings_go_together_and_have_shares(serve: Serve) -> None:
    endpoint = serve("spellings.done_after_stop=0.5", "spellings.usage_zeros=0.5")
    for call in range(40):
        message(endpoint, stream=True, **named("r", call))
    names = [row["spellings"] for row in endpoint.server_log("r")]

    assert set(names) == {None, "done_after_stop", "usage_zeros", "done_after_stop,usage_zeros"}


def test_events_that_are_no_part_of_the_protocol(serve: Serve) -> None:
    endpoint = serve(*always("empty_data", "unknown_event"))
    text = httpx2.post(f"{endpoint.url}/v1/messages", json={**ASKED, "stream": True}, timeout=10).text

    assert "\n\ndata: \n\n" in text
    assert 'event: progress\ndata: {"type":"progress","percent":50}\n\n' in text
    assert {"object": "chat.completion.progress", "percent": 50} in chat_events(endpoint)


def test_ends_of_a_chat_stream(serve: Serve) -> None:
    assert chat_events(serve(*always("done_by_prefix")))[-1] == "[DONE] "
    assert isinstance(chat_events(serve(*always("no_done")))[-1], dict)
    assert chat_events(serve(*always("no_model_first")))[0]["model"] == ""


def test_text_may_come_with_the_start_of_its_block(serve: Serve) -> None:
    found = events(serve(*always("content_in_start")), "/v1/messages")
    starts = [event for event in found if event["type"] == "content_block_start"]

    assert [start["content_block"]["text"] for start in starts] == ["sea "]
    assert sum(event["type"] == "content_block_delta" for event in found) == 59


@pytest.mark.parametrize(
    ("name", "key", "first"),
    [
        ("reasoning", "reasoning", "sea "),
        ("reasoning_details", "reasoning_details", [{"type": "reasoning.text", "text": "sea ", "index": 0}]),
        ("thinking_in_text", "content", "<think>sea "),
        ("content_list", "content", [{"type": "thinking", "thinking": [{"type": "text", "text": "sea "}]}]),
    ],
)
def test_spellings_of_thinking(serve: Serve, name: str, key: str, first: Any) -> None:
    endpoint = serve(*CONTENT, *always(name))
    chunks = chat_events(endpoint, reasoning_effort="low")

    assert deltas(chunks, key)[0] == first
    assert deltas(chunks, "reasoning_content") == []
    if name == "thinking_in_text":
        text = "".join(deltas(chunks, "content"))
        assert text.count("</think>\n\n") == 1


def test_spellings_of_tool_calls(serve: Serve) -> None:
    endpoint = serve(*CONTENT, *always("tool_without_index", "tool_input_object"))
    calls = [
        call for found in deltas(chat_events(endpoint, tools=[FUNCTION]), "tool_calls") for call in found
    ]
    inputs = [call["function"]["arguments"] for call in calls if call["function"].get("arguments")]
    plain = chat_events(serve(*CONTENT), tools=[FUNCTION])
    pieces = [call["function"]["arguments"] for found in deltas(plain, "tool_calls") for call in found]

    assert all("index" not in call for call in calls)
    assert inputs[0].keys() == json.loads("".join(pieces)).keys()
    assert len(inputs) == 1


USAGES = {  # spelling -> where the usage stands, and some of its counts
    "usage_in_choice": lambda chunk: chunk["choices"][0].get("usage"),
    "usage_in_x_groq": lambda chunk: chunk.get("x_groq", {}).get("usage"),
}


@pytest.mark.parametrize("name", USAGES)
def test_the_usage_may_stand_elsewhere(serve: Serve, name: str) -> None:
    chunks = [chunk for chunk in chat_events(serve(*always(name))) if isinstance(chunk, dict)]
    found = [usage for usage in map(USAGES[name], chunks) if usage]

    assert [usage["completion_tokens"] for usage in found] == [60]
    assert [chunk for chunk in chunks if chunk.get("usage")] == []


def test_a_usage_may_come_with_every_chunk(serve: Serve) -> None:
    chunks = [
        chunk for chunk in chat_events(serve(*always("usage_on_every_chunk"))) if isinstance(chunk, dict)
    ]
    counts = [chunk["usage"]["completion_tokens"] for chunk in chunks]

    assert counts[-1] == 60
    assert counts == sorted(counts)
    assert len(set(counts)) == 61


@pytest.mark.parametrize(
    ("name", "counts"),
    [
        ("usage_deepseek", {"prompt_cache_hit_tokens": 48, "prompt_cache_miss_tokens": 2}),
        ("usage_kimi", {"cached_tokens": 48}),
        ("usage_litellm", {"cache_read_input_tokens": 48, "cache_creation_input_tokens": 0}),
        ("usage_vllm", {"prompt_tokens_details": {"cached_tokens": 48, "created_cache_tokens": 0}}),
        ("input_beyond_prompt", {"prompt_tokens": 1000, "total_tokens": 1060}),
        ("output_beyond_limit", {"completion_tokens": 180}),
    ],
)
def test_spellings_of_a_chat_usage(serve: Serve, name: str, counts: dict[str, Any]) -> None:
    endpoint = serve("cache.mode=automatic", "cache.minimum_tokens=0", *always(name))
    prompt = [{"role": "user", "content": "word" * 50}]
    for _ in range(2):
        usage = chat_events(endpoint, messages=prompt)[-2]["usage"]

    assert {key: usage[key] for key in counts} == counts | (
        {"prompt_tokens_details": usage["prompt_tokens_details"] | counts["prompt_tokens_details"]}
        if "prompt_tokens_details" in counts
        else {}
    )


@pytest.mark.parametrize(
    ("name", "at_start", "at_end"),
    [
        ("usage_zeros", 3, 0),
        ("usage_only_in_delta", 0, 3),
        ("no_usage", None, None),
        ("input_beyond_prompt", 60, 60),
    ],
)
def test_spellings_of_a_message_usage(
    serve: Serve, name: str, at_start: int | None, at_end: int | None
) -> None:
    found = {event["type"]: event for event in events(serve(*always(name)), "/v1/messages")}
    start = found["message_start"]["message"].get("usage", {}).get("input_tokens")
    end = found["message_delta"].get("usage", {}).get("input_tokens")

    assert (start, end) == (at_start, at_end)


def test_an_answer_says_how_it_was_served(serve: Serve) -> None:
    endpoint = serve(
        'served.model="behind-the-alias"', 'served.service_tier="priority"', 'served.speed="fast"',
        'served.inference_geo="eu"',
    )  # fmt: skip
    for stream in (True, False):
        answer = message(endpoint, stream=stream)
        usage = answer.usage
        assert answer.model == "behind-the-alias"
        assert (usage.service_tier, usage.speed, usage.inference_geo) == ("priority", "fast", "eu")
    chunks = [chunk for chunk in chat_events(endpoint) if isinstance(chunk, dict)]
    assert {(chunk["model"], chunk["service_tier"]) for chunk in chunks} == {("behind-the-alias", "priority")}


def test_another_model_takes_over(serve: Serve) -> None:
    endpoint = serve("served.fallback=1.0", 'served.fallback_model="smaller"')
    for stream in (True, False):
        answer = endpoint.claude.beta.messages.create(**ASKED) if not stream else beta(endpoint)
        mark, text = answer.content
        assert (mark.type, mark.from_.model, mark.to.model) == ("fallback", "m", "smaller")
        assert text.text.startswith("sea sky")
        assert [(one.type, one.model) for one in answer.usage.iterations] == [
            ("message", "m"),
            ("fallback_message", "smaller"),
        ]
    chunks = [chunk for chunk in chat_events(endpoint) if isinstance(chunk, dict)]
    assert {chunk["model"] for chunk in chunks} == {"smaller"}


def beta(endpoint: ServedForked) -> Any:
    with endpoint.claude.beta.messages.stream(**ASKED) as stream:
        return stream.get_final_message()


@pytest.mark.parametrize("more", [(), ("served.fallback=1.0",), ("spellings.content_in_start=1.0",)])
def test_a_search_comes_before_the_text(serve: Serve, more: tuple[str, ...]) -> None:
    endpoint = serve("search.share=1.0", "search.seconds=0.4", "search.result_tokens=100", *more)
    answer = message(endpoint, stream=True, **named("r"))
    found = {block.type: block for block in answer.content}
    row = endpoint.row("r")

    assert found["server_tool_use"].input == {"query": "sea sky sun fog "}
    assert found["web_search_tool_result"].tool_use_id == found["server_tool_use"].id
    assert [block.type for block in answer.content][:2] == ["server_tool_use", "web_search_tool_result"]
    assert found["text"].text.startswith("sea sky")
    assert answer.usage.server_tool_use.web_search_requests == 1
    assert answer.usage.input_tokens == row["input_tokens"] == 103
    assert row["chunk_sent_at_ns"][0] - row["received_at_ns"] >= 400_000_000


def test_a_search_in_one_piece(serve: Serve) -> None:
    answer = message(serve("search.share=1.0", "search.seconds=0.1"), stream=False)

    assert [block.type for block in answer.content] == ["server_tool_use", "web_search_tool_result", "text"]
    assert answer.content[0].input == {"query": "sea sky sun fog "}


def test_a_whole_answer_has_its_spellings_too(serve: Serve) -> None:
    endpoint = serve(*CONTENT, *always("reasoning", "tool_input_object", "usage_in_choice"))
    body = {**ASKED, "reasoning_effort": "low", "tools": [FUNCTION]}
    answer = httpx2.post(f"{endpoint.url}/v1/chat/completions", json=body, timeout=10).json()
    choice = answer["choices"][0]

    assert choice["message"]["reasoning"].startswith("sea sky")
    assert isinstance(choice["message"]["tool_calls"][0]["function"]["arguments"], dict)
    assert (choice["usage"]["completion_tokens"], "usage" in answer) == (60, False)
