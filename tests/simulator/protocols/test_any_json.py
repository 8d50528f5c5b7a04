"""Whatever JSON comes, a body is answered or refused: nothing else is ever raised."""

import copy
import json
from contextlib import suppress

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tailgauge.simulator.protocols import anthropic, openai
from tailgauge.simulator.protocols.request import Refused, Reply
from tailgauge.simulator.protocols.wire import WIRES

FIELDS_AND_VALUES = st.sampled_from(
    ["type", "text", "content", "role", "user", "name", "source", "tools", "enabled", "\ud800"]
)
JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(max_size=5)
    | FIELDS_AND_VALUES,
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(FIELDS_AND_VALUES | st.text(max_size=5), inner, max_size=4)
    ),
    max_leaves=12,
)
RICH = {
    anthropic: {
        "model": "tiny",
        "max_tokens": 2000,
        "stream": True,
        "system": [{"type": "text", "text": "s", "cache_control": {"type": "ephemeral"}}],
        "tools": [{"name": "look", "input_schema": {"type": "object"}}],
        "tool_choice": {"type": "tool", "name": "look"},
        "thinking": {"type": "enabled", "budget_tokens": 1024},
        "metadata": {"user_id": "u"},
        "stop_sequences": ["x"],
        "output_config": {"effort": "low", "format": {"type": "json_schema", "schema": {}}},
        "messages": [
            {"role": "user", "content": [{"type": "image", "source": {"type": "url", "url": "u"}}]},
            {
                "role": "assistant",
                "content": [{"type": "tool_use", "id": "i", "name": "n", "input": {}}],
            },
            {
                "role": "user",
                "content": [{"type": "tool_result", "tool_use_id": "i", "content": "c"}],
            },
        ],
    },
    openai: {
        "model": "tiny",
        "max_tokens": 3,
        "max_completion_tokens": 3,
        "stream": True,
        "stream_options": {"include_usage": True},
        "n": 1,
        "stop": ["x"],
        "tools": [{"type": "function", "function": {"name": "look", "parameters": {}}}],
        "tool_choice": {"type": "function", "function": {"name": "look"}},
        "response_format": {"type": "json_schema", "json_schema": {"name": "n"}},
        "messages": [
            {"role": "user", "content": [{"type": "text", "text": "t"}]},
            {"role": "assistant", "content": None, "tool_calls": [{"id": "1", "type": "function"}]},
            {"role": "tool", "tool_call_id": "1", "content": "c"},
        ],
    },
}
WRONG = (
    None,
    True,
    -1,
    0,
    1e308,
    float("nan"),
    "",
    "\ud800",
    [],
    {},
    [[]],
    [None],
    {"type": []},
)


def places(value, path=()):
    items = (
        value.items()
        if isinstance(value, dict)
        else enumerate(value)
        if isinstance(value, list)
        else ()
    )
    for key, inner in items:
        yield (*path, key)
        yield from places(inner, (*path, key))


def answered_or_refused(wire, body):
    """Also what follows: a reply can be opened, and a refusal be written."""
    try:
        request = wire.parse(body, "")
    except Refused as refused:
        json.loads(wire.error_body(refused, "req_1"))
    else:
        wire.opening(Reply(request, "1", 0)).decode()


@pytest.mark.parametrize("wire", WIRES, ids=lambda w: w.NAME)
def test_every_field_may_be_of_every_wrong_type(wire):
    answered_or_refused(wire, RICH[wire])
    wire.parse(RICH[wire], "")
    tried = 0
    for path in places(RICH[wire]):
        for wrong in WRONG:
            body = copy.deepcopy(RICH[wire])
            at = body
            for key in path[:-1]:
                at = at[key]
            at[path[-1]] = wrong
            answered_or_refused(wire, body)
            tried += 1
    assert tried > 300


@pytest.mark.parametrize("wire", WIRES, ids=lambda w: w.NAME)
@settings(max_examples=150, derandomize=True, deadline=None, database=None)
@given(key=st.sampled_from(sorted({*RICH[anthropic], *RICH[openai]})), value=JSON)
def test_a_field_may_hold_any_json(wire, key, value):
    answered_or_refused(wire, RICH[wire] | {key: value})


@settings(max_examples=150, derandomize=True, deadline=None, database=None)
@given(blocks=st.lists(JSON, max_size=3))
def test_a_message_may_hold_any_blocks(blocks):
    body = RICH[anthropic] | {"messages": [{"role": "user", "content": blocks}]}
    with suppress(Refused):
        anthropic.prompt_tokens(body)
