"""Every token of an answer stands in one chunk, and bursts and silences are where they should be."""

from __future__ import annotations

import json
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tailgauge.scenario.simulated import ContentTable
from tailgauge.simulator.behaviours.content import (
    JSON_DELTA,
    SIGNATURE_DELTA,
    TEXT_DELTA,
    THINKING_DELTA,
    Chunk,
    plan,
    tool_json,
    tool_pairs,
    whole_contents,
)

FULL = ContentTable(thinking_share=0.5, tool_share=0.3, text_blocks=2)


def kinds(settings: ContentTable, *, tools: bool, thinking: bool) -> list[tuple[str, int]]:
    return [
        (block.kind, block.tokens)
        for block in plan(settings, 100, 4, tools=tools, thinking=thinking).blocks
    ]


def test_by_default_an_answer_is_one_text_whatever_the_request_gives():
    found = plan(ContentTable(), 10, 4, tools=True, thinking=True)

    assert [block.kind for block in found.blocks] == ["text"]
    assert found.blocks[0].chunks == (
        Chunk(TEXT_DELTA, 4, 4),
        Chunk(TEXT_DELTA, 4, 8),
        Chunk(TEXT_DELTA, 2, 10),
    )
    assert (found.thinking_tokens, found.stop_reason) == (0, "max_tokens")


@pytest.mark.parametrize(
    ("tools", "thinking", "expected"),
    [
        (False, False, [("text", 50), ("text", 50)]),
        (True, False, [("text", 35), ("text", 35), ("tool_json", 30)]),
        (False, True, [("thinking", 50), ("text", 25), ("text", 25)]),
        (True, True, [("thinking", 50), ("text", 10), ("text", 10), ("tool_json", 30)]),
    ],
)
def test_only_what_the_request_gives_is_used(tools, thinking, expected):
    assert kinds(FULL, tools=tools, thinking=thinking) == expected


def test_shown_thinking_streams_and_ends_with_its_signature():
    chunks = plan(FULL, 20, 4, tools=False, thinking=True).blocks[0].chunks

    assert [(one.delta, one.tokens, one.due_tokens) for one in chunks] == [
        (THINKING_DELTA, 4, 4),
        (THINKING_DELTA, 4, 8),
        (THINKING_DELTA, 2, 10),
        (SIGNATURE_DELTA, 0, 10),
    ]


def test_omitted_thinking_is_a_silence_and_one_signature():
    found = plan(
        ContentTable(thinking_share=0.5, thinking_display="omitted"),
        20,
        4,
        tools=False,
        thinking=True,
    )

    assert found.blocks[0].chunks == (Chunk(SIGNATURE_DELTA, 10, 10),)
    assert found.thinking_tokens == 10
    assert found.blocks[1].chunks[0].due_tokens == 14


def test_a_tool_call_comes_in_bursts_of_one_key_and_value():
    settings = ContentTable(tool_share=1.0, tool_pair_tokens=10)
    chunks = plan(settings, 25, 4, tools=True, thinking=False).blocks[0].chunks

    assert {one.delta for one in chunks} == {JSON_DELTA}
    assert [(one.tokens, one.due_tokens) for one in chunks] == [
        (4, 10), (4, 10), (2, 10), (4, 20), (4, 20), (2, 20), (4, 25), (1, 25),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("size", "each", "expected"),
    [
        (30, 10, [10, 10, 10]),
        (35, 10, [10, 10, 10, 5]),
        (32, 10, [10, 10, 12]),
        (3, 10, [3]),
        (7, 1, [3, 4]),
    ],
)
def test_a_rest_too_short_for_a_pair_goes_to_the_last(size, each, expected):
    assert tool_pairs(size, each) == expected


@given(st.integers(3, 3000), st.integers(0, 60))
def test_a_tool_call_is_an_object_of_exactly_its_tokens(size, each):
    raw = tool_json(size, each)

    assert len(raw) == 4 * size
    assert len(json.loads(raw)) == len(tool_pairs(size, each))


SHARES = st.floats(0, 1)


@given(
    st.builds(
        ContentTable, thinking_share=SHARES, thinking_display=st.sampled_from(["shown", "omitted"]),
        tool_share=SHARES, tool_pair_tokens=st.integers(3, 40), text_blocks=st.integers(1, 5),
    ),
    st.integers(1, 500), st.integers(1, 20), st.booleans(), st.booleans(),
)  # fmt: skip
def test_tokens_are_conserved_and_made_in_order(settings, size, per_chunk, tools, thinking):
    found = plan(settings, size, per_chunk, tools=tools, thinking=thinking)
    chunks = [chunk for block in found.blocks for chunk in block.chunks]

    assert (
        sum(chunk.tokens for chunk in chunks) == size == sum(block.tokens for block in found.blocks)
    )
    assert [sum(chunk.tokens for chunk in block.chunks) for block in found.blocks] == [
        b.tokens for b in found.blocks
    ]
    assert all(a.due_tokens <= b.due_tokens for a, b in pairwise(chunks))
    assert chunks[-1].due_tokens == size
    made = 0
    for chunk in chunks:
        made += chunk.tokens
        assert chunk.due_tokens >= made


@pytest.mark.parametrize("tokens_asked", [3, 7, 40])
def test_a_request_with_a_schema_gets_one_text_that_is_a_json_object(tokens_asked):
    answer = plan(FULL, tokens_asked, 2, tools=False, thinking=False, schema=True)
    [content] = whole_contents(answer, FULL.tool_pair_tokens)

    assert [(block.kind, block.tokens) for block in answer.blocks] == [("text", tokens_asked)]
    assert all(json.loads(content).values())
    assert len(content) == 4 * tokens_asked
    assert [chunk.due_tokens for chunk in answer.blocks[0].chunks][:2] == [
        2,
        min(4, tokens_asked),
    ]  # no burst, as a tool's


def test_an_answer_too_short_for_a_field_is_text():
    contents = whole_contents(
        plan(FULL, 2, 2, tools=False, thinking=False, schema=True), FULL.tool_pair_tokens
    )

    assert "{" not in "".join(contents)
