"""Which chat completions bodies are refused, and how the others are counted."""

import pytest

from tailgauge.simulator.protocols import openai
from tailgauge.simulator.protocols.request import Refused

USER = {"role": "user", "content": "abcdefgh"}
TOOL = {"type": "function", "function": {"name": "look", "parameters": {}}}
BODY = {"model": "tiny", "messages": [USER]}

REFUSED = [
    ({"n": 2}, "n"),
    ({"n": "1"}, "n"),
    ({"n": True}, "n"),
    ({"max_tokens": 3, "max_completion_tokens": 4}, "max_tokens"),
    ({"max_tokens": "3", "max_completion_tokens": 3}, "max_tokens"),
    ({"tools": [{}]}, "tools.0.type"),
    ({"tools": [{"type": "hammer"}]}, "tools.0.type"),
    ({"tools": [{"type": "function"}]}, "tools.0.function"),
    ({"tools": [{"type": "function", "function": {}}]}, "tools.0.function.name"),
    (
        {"tools": [{"type": "function", "function": {"name": "x", "parameters": 1}}]},
        "tools.0.function.parameters",
    ),
    ({"tool_choice": "auto"}, "tool_choice"),
    ({"tools": [TOOL], "tool_choice": "never"}, "tool_choice"),
    ({"tools": [TOOL], "tool_choice": 1}, "tool_choice"),
    (
        {"tools": [TOOL], "tool_choice": {"type": "function", "function": {"name": "listen"}}},
        "tool_choice.function.name",
    ),
    ({"response_format": "json"}, "response_format"),
    ({"response_format": {"type": "xml"}}, "response_format.type"),
    ({"response_format": {"type": "json_schema"}}, "response_format.json_schema"),
    (
        {"messages": [{"role": "user", "content": [{"type": "tool_use"}]}]},
        "messages.0.content.0.type",
    ),
    (
        {"messages": [{"role": "user", "content": [{"type": "image_url"}]}]},
        "messages.0.content.0.image_url",
    ),
]


@pytest.mark.parametrize(("changed", "param"), REFUSED)
def test_a_wrong_field_of_a_chat_is_refused_by_its_name(changed, param):
    with pytest.raises(Refused) as caught:
        openai.parse(BODY | changed)
    assert (caught.value.status, caught.value.param) == (400, param)
    assert caught.value.message.startswith(param.split(".", maxsplit=1)[0])


ACCEPTED = [
    {"n": 1, "temperature": 2, "top_p": 1, "stop": "x"},
    {"tools": [TOOL], "tool_choice": "required"},
    {"tools": [TOOL], "tool_choice": {"type": "function", "function": {"name": "look"}}},
    {"tools": [{"type": "custom", "custom": {"name": "talk"}}]},
    {"response_format": {"type": "json_schema", "json_schema": {"name": "x"}}},
    {"stream": True, "stream_options": {"include_usage": True}},
    {"unheard_of": 1},
    {
        "messages": [
            {"role": "assistant", "content": None, "tool_calls": [{"id": "1", "type": "function"}]},
            {"role": "tool", "tool_call_id": "1", "content": "4"},
        ]
    },
]


@pytest.mark.parametrize("fields", ACCEPTED, ids=[str(f)[:60] for f in ACCEPTED])
def test_what_a_chat_may_say_is_taken(fields):
    assert openai.parse(BODY | fields).model == "tiny"


def test_tools_and_pictures_of_a_chat_count():
    part = {"type": "image_url", "image_url": {"url": "https://example.test/a.png"}}
    body = BODY | {"messages": [{"role": "user", "content": [part]}]}
    assert openai.parse(body).input_tokens == 1600
    assert openai.parse(BODY | {"tools": [TOOL]}).input_tokens > 2


def test_a_length_said_twice_alike_is_no_contradiction():
    assert openai.parse(BODY | {"max_tokens": 3, "max_completion_tokens": 3}).max_tokens == 3
