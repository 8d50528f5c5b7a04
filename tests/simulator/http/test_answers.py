"""Answers of several blocks, as the official SDKs read them: streamed, added up and whole, by the latency model and by an engine."""

import json
from itertools import groupby

import pytest
from simulator.http.conftest import HELLO, named

from tailgauge.simulator.behaviours.tokens import text

TOOLS = [{"name": "weather", "input_schema": {"type": "object"}}]
FUNCTIONS = [{"type": "function", "function": {"name": "weather", "parameters": {}}}]
THINKING = {"type": "adaptive"}
BLOCKS = ("content.thinking_share=0.25", "content.tool_share=0.5", "content.text_blocks=2")
TIMES = {
    "model": (*BLOCKS, "tokens_per_chunk=4"),
    "engine": (*BLOCKS, "profile=tiny"),
    "drafts": (*BLOCKS, "profile=tiny", "engine.draft_tokens=3"),
}


@pytest.fixture(scope="module", params=TIMES)
def endpoint(request, nursery):
    with nursery.served(*TIMES[request.param]) as running:
        yield running


def request_of(tokens=160, **more):
    return {"model": "m", "max_tokens": tokens, "messages": HELLO, **more}


def test_the_stream_adds_up_to_the_whole_answer(endpoint):
    wanted = request_of(tools=TOOLS, thinking=THINKING)
    with endpoint.claude.messages.stream(**wanted) as stream:
        streamed = stream.get_final_message()
    whole = endpoint.claude.messages.create(**wanted)
    assert [block.type for block in streamed.content] == ["thinking", "text", "text", "tool_use"]
    plain = [
        [b.model_dump(exclude={"id", "parsed_output"}) for b in m.content]
        for m in (streamed, whole)
    ]
    assert plain[0] == plain[1]
    assert streamed.content[0].thinking == text(40).decode()
    assert streamed.content[3].name == "weather"
    assert streamed.stop_reason == whole.stop_reason == "tool_use"
    for message in (streamed, whole):
        assert message.usage.output_tokens == 160
        assert message.usage.output_tokens_details.thinking_tokens == 40


def test_blocks_open_and_close_in_order_and_a_tool_call_comes_in_bursts(endpoint):
    with endpoint.claude.messages.create(**request_of(tools=TOOLS), stream=True) as stream:
        events = list(stream)
    kinds = [kind for kind, _ in groupby(event.type for event in events)]
    block = ["content_block_start", "content_block_delta", "content_block_stop"]
    assert kinds == ["message_start", *block * 3, "message_delta", "message_stop"]
    assert [e.index for e in events if e.type == "content_block_start"] == [0, 1, 2]
    pieces = [e.delta.partial_json for e in events if getattr(e, "delta", None) and e.type.endswith("block_delta") and e.delta.type == "input_json_delta"]  # fmt: skip
    assert len(json.dumps(json.loads("".join(pieces)), separators=(",", ":"))) == 4 * 80


def test_without_tools_and_thinking_all_is_text(endpoint):
    message = endpoint.message(**request_of())
    assert [block.type for block in message.content] == ["text", "text"]
    assert message.stop_reason == "max_tokens"


def test_chat_streams_reasoning_text_and_a_tool_call(endpoint):
    wanted = request_of(
        tools=FUNCTIONS, reasoning_effort="low", stream_options={"include_usage": True}, stream=True
    )
    with endpoint.chat.chat.completions.create(**wanted) as stream:
        chunks = list(stream)
    deltas = [chunk.choices[0].delta for chunk in chunks if chunk.choices]
    thought = "".join(getattr(delta, "reasoning_content", None) or "" for delta in deltas)
    calls = [delta.tool_calls[0] for delta in deltas if delta.tool_calls]
    assert thought == text(40).decode()
    assert calls[0].function.name == "weather"
    assert json.loads("".join(call.function.arguments for call in calls))
    assert chunks[-1].usage.completion_tokens == 160
    assert chunks[-1].usage.completion_tokens_details.reasoning_tokens == 40
    assert [chunk.choices[0].finish_reason for chunk in chunks if chunk.choices][-1] == "tool_calls"
    whole = endpoint.completion(**request_of(tools=FUNCTIONS, reasoning_effort="low"))
    assert whole.choices[0].finish_reason == "tool_calls"
    assert whole.choices[0].message.tool_calls[0].function.name == "weather"


def test_omitted_thinking_is_a_silence_and_a_signature(endpoint):
    thinking = {"type": "adaptive", "display": "omitted"}
    with endpoint.claude.messages.stream(**request_of(thinking=thinking)) as stream:
        message = stream.get_final_message()
    assert message.content[0].thinking == ""
    assert message.content[0].signature
    assert message.usage.output_tokens_details.thinking_tokens == 40


@pytest.mark.parametrize("blocks", [(), BLOCKS])
def test_drafted_tokens_leave_several_at_a_time(serve, blocks):
    endpoint = serve(*blocks, "profile=tiny", "engine.draft_tokens=3")
    with endpoint.claude.messages.create(**request_of(), **named("d"), stream=True) as stream:
        texts = [len(e.delta.text) // 4 for e in stream if e.type == "content_block_delta"]
    assert texts == [4] * 40
    row = endpoint.row("d")
    assert len(row["chunk_sent_at_ns"]) == 40
    assert row["output_tokens"] == row["billed_output_tokens"] == 160
