"""What a scenario says of an application's own stream is checked before any traffic."""

from __future__ import annotations

import pytest

from tailgauge.errors import ScenarioError
from tailgauge.scenario.model import parse

URL = "http://127.0.0.1:1"


def refused(target, **other) -> str:
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
        ({"headers": {"Authorization": "Bearer x"}}, "target.sse.headers.Authorization: looks like a secret by its name"),
        ({"headers": {"x-a": "{prompt}"}}, "{prompt} is not a placeholder; use one of {model}, {call_id}"),
        ({"headers": {"x-a": "a\r\nb: c"}}, "x-a: not a header"),
        ({"headers": {"x a": "b"}}, "x a: not a header"),
        ({"text": "choices/0"}, "target.sse.text: must be a JSON pointer"),
        ({"path": "chat"}, "target.sse.path"),
        ({"token_evnt": "x"}, "target.sse.token_evnt: unknown key; did you mean token_event?"),
    ],
)  # fmt: skip
def test_a_bad_description_is_refused_with_what_was_expected(sse, complaint):
    error_text = refused({"protocol": "sse", "url": URL, "sse": sse})

    assert error_text.startswith("f.toml: target.sse")
    assert complaint in error_text


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
    hedged = {"pattern": "hedged", "hedge": {"policy": "fixed", "target": "second"}, "thinking": "adaptive"}
    second = {"protocol": "sse", "url": URL}

    assert "traffic.main.thinking" in refused({}, second_target=second, traffic={"main": hedged})
    hedged["hedge"]["target"] = "main"
    assert parse({"name": "x", "second_target": second, "traffic": {"main": hedged}}, "f.toml")


def test_a_provider_that_takes_no_thinking_budget_is_not_sent_one():
    target = {"protocol": "openai", "url": "https://api.openai.com"}

    assert "use 'adaptive'" in refused(
        target, traffic={"main": {"thinking": "enabled", "output_tokens": 2000}}
    )
    assert parse({"name": "x", "target": target, "traffic": {"main": {"thinking": "adaptive"}}}, "f.toml")
