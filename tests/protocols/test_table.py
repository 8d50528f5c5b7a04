"""What a scenario says of an application's own stream is checked before any traffic."""

from datetime import date
from typing import get_args

import pytest

from tailgauge.errors import ScenarioError
from tailgauge.protocols.additions import ENGINE_OF, EXACT, Engine
from tailgauge.scenario.model import parse

URL = "http://127.0.0.1:1"


def refused(target, **other):
    with pytest.raises(ScenarioError) as raised:
        parse({"name": "x", "target": target, **other}, "f.toml")
    return str(raised.value)


@pytest.mark.parametrize(
    ("sse", "complaint"),
    [
        ({"body": {"q": "{promt}"}}, "target.sse.body: {promt} is not a placeholder; use one of {prompt}, {model}"),
        ({"body": {"{promt}": "{prompt}"}}, "{promt} is not a placeholder"),
        ({"body": {"q": [{"r": "{prompt} {user}"}]}}, "{user} is not a placeholder"),
        ({"body": {"q": "why"}}, "target.sse.body: expected {prompt} somewhere"),
        ({"body": {"q": "{prompt}", "n": "n={max_tokens}"}}, 'write it as "{max_tokens}", alone'),
        ({"content": {"text": "choices/0"}}, "target.sse.content.text: must be a JSON pointer"),
        ({"path": "chat"}, "target.sse.path"),
        ({"contnt": {"event": "x"}}, "target.sse.contnt: unknown key; did you mean content?"),
    ],
)  # fmt: skip
def test_a_bad_description_is_refused_with_what_was_expected(sse, complaint):
    error_text = refused({"protocol": "sse", "url": URL, "sse": sse})

    assert error_text.startswith("f.toml: target.sse")
    assert complaint in error_text


@pytest.mark.parametrize("protocol", ["anthropic", "openai", "sse"])
@pytest.mark.parametrize(
    ("headers", "complaint"),
    [
        ({"Authorization": "Bearer x"}, ".Authorization: looks like a secret by its name"),
        ({"Authorization": "{model}"}, "Authorization: keys come from the environment"),
        ({"X-Api-Key": ""}, "X-Api-Key: keys come from the environment"),
        ({"x-a": "{prompt}"}, "{prompt} is not a placeholder; use one of {model}, {call_id}"),
        ({"x-a": "{max_tokens}"}, "{max_tokens} is not a placeholder"),
        ({"x-a": "a\r\nb: c"}, "x-a: not a header"),
        ({"x a": "b"}, "x a: not a header"),
        ({"x-\u00e9": "b"}, "not a header"),
        ({"": "b"}, "not a header"),
        ({"x-a": "b", "X-A": "c"}, "names a header twice"),
        ({"x-a": 1}, "expected text in quotes"),
        ({"Host": "other"}, "Host: the transport sets it: leave it out"),
        ({"Content-Length": "3"}, "Content-Length: the transport sets it"),
        ({"transfer-encoding": "chunked"}, "the transport sets it"),
        ({"Connection": "close"}, "the transport sets it"),
        ({"accept-encoding": "gzip"}, "leave it out"),
        ({"X-Client-Request-Id": "{call_id}"}, "use another name"),
    ],
)  # fmt: skip
def test_a_header_that_cannot_be_added_is_refused_by_name_with_what_to_do(
    protocol, headers, complaint
):
    base = {"protocol": protocol, "url": URL}
    in_target = refused({**base, "headers": headers})
    in_traffic = refused(base, traffic={"chat": {"headers": headers}})

    assert in_target.startswith("f.toml: target.headers")
    assert in_traffic.startswith("f.toml: traffic.chat.headers")
    assert complaint in in_target
    assert complaint in in_traffic


@pytest.mark.parametrize(
    ("protocol", "body", "complaint"),
    [
        ("anthropic", {"model": "m"}, "body.model: the harness sets it: use target.model"),
        ("anthropic", {"max_tokens": 5}, "body.max_tokens: the harness sets it: use output_tokens"),
        ("anthropic", {"system": "s"}, "body.system: the harness sets it: use prompt_tokens"),
        ("openai", {"messages": []}, "body.messages: the harness sets it: use prompt_tokens"),
        ("openai", {"stream": False}, "body.stream: the harness sets it: use `stream`"),
        (
            "openai",
            {"stream_options": {"include_usage": False}},
            "body.stream_options.include_usage: the harness",
        ),
        ("openai", {"stream_options": "none"}, "body.stream_options.include_usage: the harness"),
        ("openai", {"a": [float("inf")]}, "body: expected what JSON has: Out of range float"),
        ("openai", {"a": date(2026, 11, 1)}, "body: expected what JSON has: Object of type date"),
        ("openai", {"n": 2}, "body.n: the harness"),
        ("openai", {"a": "{promt}"}, "body: {promt} is not a placeholder"),
        (
            "openai",
            {"a": ["n={max_tokens}"]},
            'body: {max_tokens} is a number: write it as "{max_tokens}", alone',
        ),
        ("openai", {"a": {"env": "no name"}}, "body: a: expected {env ="),
    ],
)
def test_a_field_that_the_harness_owns_is_refused_by_name_with_what_to_use_instead(
    protocol, body, complaint
):
    base = {"protocol": protocol, "url": URL}

    assert f"f.toml: target.{complaint}" in refused({**base, "body": body})
    assert f"f.toml: traffic.chat.{complaint}" in refused(base, traffic={"chat": {"body": body}})


@pytest.mark.parametrize("protocol", ["anthropic", "openai"])
def test_sampling_and_other_fields_pass(protocol):
    body = {
        "temperature": 0.2,
        "top_k": 5,
        "a": {"b": [1, "{{x}} {session_id}"]},
        "least": "{max_tokens}",
    }

    assert (
        parse({"name": "x", "target": {"protocol": protocol, "body": body}}, "f.toml").target.body
        == body
    )


def test_engines_are_those_that_exact_answers_are_known_for():
    assert set(get_args(Engine)) == set(EXACT) >= set(ENGINE_OF.values())


@pytest.mark.parametrize(
    ("target", "traffic", "complaint"),
    [
        ({"protocol": "anthropic"}, {}, "traffic.chat.output: expected target.protocol 'openai', got 'anthropic'"),
        ({"protocol": "openai", "url": "https://api.openai.com"}, {}, "traffic.chat.output: this provider ends each"),
        ({"protocol": "openai"}, {"tools": 1}, "traffic.chat.output: an answer that uses a tool"),
        ({"protocol": "openai"}, {"pattern": "structured"}, "traffic.chat.output: an answer by a schema"),
        ({"protocol": "openai"}, {"body": {"min_tokens": 3}}, "traffic.chat.body.min_tokens: output = 'exact' sets it"),
    ],
)  # fmt: skip
def test_exact_answers_are_refused_where_they_cannot_be(target, traffic, complaint):
    table = {"output": "exact", **traffic}

    assert f"f.toml: {complaint}" in refused(target, traffic={"chat": table})


def test_a_description_that_no_protocol_reads_is_refused():
    assert refused({"protocol": "openai", "sse": {"path": "/x"}}) == (
        "f.toml: target.sse: does not apply with protocol = 'openai'"
    )


@pytest.mark.parametrize(
    ("traffic", "key"),
    [
        ({"thinking": "adaptive"}, "thinking"),
        ({"tools": 2}, "tools"),
        ({"stream": False}, "stream"),
        ({"pattern": "structured"}, "pattern"),
        ({"pattern": "cached", "cache": {"tools": 1, "breakpoints": ["tools"]}}, "cache.tools"),
    ],
)
def test_what_a_protocol_has_no_words_for_is_refused(traffic, key):
    error_text = refused({"protocol": "sse", "url": URL}, traffic={"main": traffic})

    assert error_text.startswith(
        f"f.toml: traffic.main.{key}: expected target.protocol 'anthropic' or 'openai', got 'sse'"
    )


def test_the_second_target_must_have_words_for_what_goes_there():
    hedged = {
        "pattern": "hedged",
        "hedge": {"policy": "fixed", "target": "second"},
        "thinking": "adaptive",
    }
    second = {"protocol": "sse", "url": URL}

    assert "traffic.main.thinking" in refused({}, second_target=second, traffic={"main": hedged})
    hedged["hedge"]["target"] = "main"
    assert parse({"name": "x", "second_target": second, "traffic": {"main": hedged}}, "f.toml")


def test_a_provider_that_takes_no_thinking_budget_is_not_sent_one():
    target = {"protocol": "openai", "url": "https://api.openai.com"}

    assert "use 'adaptive'" in refused(
        target, traffic={"main": {"thinking": "enabled", "output_tokens": 2000}}
    )
    assert parse(
        {"name": "x", "target": target, "traffic": {"main": {"thinking": "adaptive"}}}, "f.toml"
    )
