"""Which bodies are answered, what they ask for, and which are refused and why."""

import pytest

from tailgauge.simulator.protocols import anthropic, openai
from tailgauge.simulator.protocols.request import CallRequest, Refused, decode
from tailgauge.simulator.protocols.wire import WIRES

USER = {"role": "user", "content": "abcdefgh"}
BODY = {"model": "tiny", "max_tokens": 5, "messages": [USER]}


def test_an_anthropic_body_counts_system_and_messages():
    block = {"type": "text", "text": "abcde"}
    body = BODY | {
        "system": [block],
        "messages": [USER, {"role": "assistant", "content": [block]}, USER],
    }
    assert anthropic.parse(body | {"stream": True}) == CallRequest(
        "tiny", 5, 2 + 2 + 2 + 2, stream=True
    )


def test_an_openai_body_counts_all_messages():
    body = BODY | {
        "messages": [
            {"role": "system", "content": "a"},
            USER,
            {"role": "assistant", "content": None},
        ]
    }
    asked = openai.parse(body | {"stream": True, "stream_options": {"include_usage": True}})
    assert asked == CallRequest("tiny", 5, 1 + 2, stream=True, include_usage=True)


@pytest.mark.parametrize(
    ("fields", "max_tokens"),
    [
        ({}, 16),
        ({"max_tokens": 3}, 3),
        ({"max_completion_tokens": 4}, 4),
        ({"max_tokens": 4, "max_completion_tokens": 4}, 4),
    ],
)
def test_openai_takes_either_name_of_the_length_or_none(fields, max_tokens):
    assert openai.parse({"model": "tiny", "messages": [USER]} | fields).max_tokens == max_tokens


@pytest.mark.parametrize("wire", WIRES, ids=lambda w: w.NAME)
@pytest.mark.parametrize(
    ("changed", "param"),
    [
        ({"model": None}, "model"),
        ({"model": ""}, "model"),
        ({"model": 7}, "model"),
        ({"model": "m" * 257}, "model"),
        ({"messages": None}, "messages"),
        ({"messages": []}, "messages"),
        ({"messages": "hello"}, "messages"),
        ({"messages": ["hello"]}, "messages.0"),
        ({"messages": [{"content": "x"}]}, "messages.0.role"),
        ({"messages": [USER, {"role": "robot", "content": "x"}]}, "messages.1.role"),
        ({"messages": [{"role": ["user"], "content": "x"}]}, "messages.0.role"),
        ({"messages": [{"role": "user"}]}, "messages.0.content"),
        ({"messages": [{"role": "user", "content": ""}]}, "messages.0.content"),
        ({"messages": [{"role": "user", "content": []}]}, "messages.0.content"),
        ({"messages": [{"role": "user", "content": 7}]}, "messages.0.content"),
        ({"messages": [{"role": "user", "content": ["x"]}]}, "messages.0.content.0"),
        ({"messages": [{"role": "user", "content": [{"text": "x"}]}]}, "messages.0.content.0"),
        (
            {"messages": [{"role": "user", "content": [{"type": "text"}]}]},
            "messages.0.content.0.text",
        ),
        ({"max_tokens": -1}, "max_tokens"),
        ({"max_tokens": 1_000_001}, "max_tokens"),
        ({"max_tokens": 1.5}, "max_tokens"),
        ({"max_tokens": "5"}, "max_tokens"),
        ({"max_tokens": True}, "max_tokens"),
        ({"stream": "yes"}, "stream"),
    ],
)
def test_a_body_that_cannot_be_is_refused_by_field(wire, changed, param):
    with pytest.raises(Refused) as caught:
        wire.parse(BODY | changed)
    assert (caught.value.status, caught.value.param) == (400, param)
    assert caught.value.message.startswith(param)


@pytest.mark.parametrize(
    ("wire", "changed", "param"),
    [
        (anthropic, {"max_tokens": None}, "max_tokens"),
        (anthropic, {"system": 7}, "system"),
        (anthropic, {"messages": [{"role": "system", "content": "x"}]}, "messages.0.role"),
        (anthropic, {"messages": [{"role": "assistant", "content": None}]}, "messages.0.content"),
        (openai, {"max_tokens": 0}, "max_tokens"),
        (openai, {"max_completion_tokens": 0}, "max_completion_tokens"),
        (openai, {"stream_options": {}}, "stream_options"),
        (openai, {"stream": True, "stream_options": 1}, "stream_options"),
        (
            openai,
            {"stream": True, "stream_options": {"include_usage": 1}},
            "stream_options.include_usage",
        ),
    ],
)
def test_a_protocol_refuses_what_only_it_refuses(wire, changed, param):
    with pytest.raises(Refused) as caught:
        wire.parse(BODY | changed)
    assert (caught.value.status, caught.value.param) == (400, param)


@pytest.mark.parametrize(
    "raw",
    [
        b"",
        b"{",
        b"\xff",
        b"[]",
        b'"text"',
        b"7",
        b"null",
        b"[" * 100_000,
        b'{"a":' + b"9" * 5000 + b"}",
    ],
)
def test_a_body_that_is_no_json_object_is_refused(raw):
    with pytest.raises(Refused) as caught:
        decode(raw)
    assert caught.value.status == 400
