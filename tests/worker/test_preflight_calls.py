"""A target that refuses the model is asked which models it has, and an engine for its tokens; see scripts/preflight_calls.py."""

from __future__ import annotations

import re
from types import SimpleNamespace

import pytest

from tailgauge.master.progress import preflight_failure
from tailgauge.plan.preflight import is_loading, may_become_ready


@pytest.fixture(scope="module")
def facts(run_script):
    return run_script("worker/scripts/preflight_calls.py")


@pytest.fixture
def seen(facts):
    return facts["models"]


@pytest.mark.parametrize("protocol", ["openai", "anthropic"])
def test_a_refused_model_is_answered_with_the_list_of_models(seen, protocol):
    call = seen[protocol]["call"]
    post = {"openai": "POST /v1/chat/completions", "anthropic": "POST /v1/messages"}[protocol]

    assert seen[protocol]["requests"] == [post, "GET /v1/models"]
    assert preflight_failure("http://h", protocol, call) == (
        "target http://h answered HTTP 404: The model `tiny` does not exist. It has no model 'tiny': choose "
        "another (--model NAME). It lists qwen-7b, qwen-7b-lora"
    )


def test_the_request_for_the_list_is_no_row_and_leaves_nothing_open(seen):
    assert {(facts["rows"], facts["open"]) for facts in seen.values()} == {(2, 0)}


def test_other_statuses_of_a_refusal_count_too(seen):
    assert seen["400"]["call"]["models"] == ["qwen-7b", "qwen-7b-lora"]


def test_the_list_is_asked_for_again_where_an_idle_connection_was_closed_meanwhile(facts):
    """On a new connection, once: if that is closed, too, there is no list."""
    seen = facts["closed_meanwhile"]

    assert seen["answers then"] == {"first": 2, "again": 2, "connections": 2, "requests": 3}
    assert seen["closed again"] == {"first": 2, "again": 0, "connections": 2, "requests": 3}


def test_a_call_whose_idle_connection_was_closed_is_sent_once_more_and_counts(facts):
    closed = ["connect_error", "primary", None, None]

    assert facts["stale"]["answers then"] == [closed, ["ok", "retry", 0, 40]]
    assert facts["stale"]["closed again"] == [closed, ["connect_error", "retry", 0, None]]


def test_a_target_that_loads_is_waited_for_and_noted_once(facts):
    seen = facts["loading"]["waits"]

    assert seen["tries"] == [4, 1, 1]
    assert [call["ended"] for call in seen["calls"]] == ["ok", "ok"]
    assert seen["notes"] == [
        "URL/v1/chat/completions answered HTTP 503: waiting until it is ready, 30 s at most (limits.ready_s)"
    ]
    assert seen["spent"] == 6


def test_a_wait_is_noted_again_with_the_seconds_left(facts):
    notes = facts["loading"]["noted"]["notes"]

    assert len(notes) == 3
    for note in notes:
        assert re.fullmatch(
            r"URL\S+ answered HTTP 503: waiting until it is ready, [23]\d s at most .*", note
        )


@pytest.mark.parametrize("case", ["in vain", "no wait"])
def test_a_target_that_goes_on_loading_is_not_usable_and_the_message_says_what_to_set(facts, case):
    (call,) = facts["loading"][case]["calls"]

    assert preflight_failure("http://h", "openai", call) == (
        "target http://h answered HTTP 503: Loading model. Is it still loading? "
        "--set limits.ready_s=120 waits for it"
    )


def test_a_target_that_is_ready_is_asked_once_more_and_not_noted(facts):
    seen = facts["loading"]["ready"]

    assert (seen["tries"], seen["notes"], seen["spent"]) == ([1, 1, 1], [], 3)


def test_a_call_without_an_answer_for_long_is_noted_during_the_wait(facts):
    seen = facts["loading"]["slow"]

    assert seen["notes"][0].startswith(
        "no answer from URL/v1/chat/completions within 0.05 s: is it still loading?"
    )
    assert [call["ended"] for call in seen["calls"]] == ["ok", "ok"]


def test_the_long_call_begins_while_the_short_one_is_answered(facts):
    seen = facts["beside"]["answered"]

    assert seen["seen"] == ["first half", "long"]
    assert seen["calls"] == [[32, "ok", 40], [232, "ok", 40]]
    assert (seen["tries"], seen["spent"]) == ({"-1": 1, "-2": 1}, 2)


def test_where_a_target_takes_one_call_at_a_time_the_long_one_is_sent_again_alone(facts):
    seen = facts["beside"]["one at a time"]

    assert seen["seen"] == ["first half", "long", "long"]
    assert seen["calls"] == [[32, "ok", 40], [232, "ok", 40]]
    assert (seen["tries"], seen["spent"]) == ({"-1": 1, "-2": 2}, 3)


@pytest.mark.parametrize(
    ("ended", "error_type", "status", "expected"),
    [
        ("connect_error", "tcp", None, True),
        ("connect_error", "tls_certificate", None, False),
        ("overloaded", None, 503, True),
        ("server_error", None, 502, True),
        ("server_error", None, 500, False),
        ("client_error", None, 404, False),
        ("ok", None, 200, False),
    ],
)
def test_only_what_may_pass_by_itself_is_waited_for(ended, error_type, status, expected):
    row = SimpleNamespace(ended=ended, error_type=error_type, status=status)

    assert may_become_ready(row) is expected


@pytest.mark.parametrize(
    ("status", "message", "expected"),
    [
        (503, '{"error":{"code":503,"message":"Loading model","type":"unavailable_error"}}', True),
        (503, "The model is currently loading, please retry later", True),
        (503, "The server is starting up", True),
        (503, "The engine is currently busy and cannot accept new requests", False),
        (500, "Loading model", False),
        (503, None, False),
    ],
)
def test_a_503_about_the_model_is_one_that_loads(status, message, expected):
    assert is_loading(status, message) is expected


@pytest.mark.parametrize("case", ["no list", "another list", "no JSON", "no answer", "sse"])
def test_without_a_list_the_advice_is_about_what_the_target_says(seen, case):
    call = seen[case]["call"]

    assert call["models"] == []
    assert preflight_failure("http://h", "openai", call).endswith("choose another (--model NAME)")
    not_found = preflight_failure("http://h", "openai", {**call, "message": "Not Found"})
    assert "Is the base URL right, and is the protocol openai? /" in not_found


def test_a_failure_of_the_server_is_not_about_the_model(seen):
    assert seen["boom"]["requests"] == ["POST /v1/chat/completions"]
    assert "models" not in seen["boom"]["call"]


def test_a_long_list_is_shortened_and_a_listed_model_is_not_the_reason():
    call = {
        "ended": "client_error",
        "status": 404,
        "error_type": None,
        "message": "no",
        "model": "m1",
    }

    assert preflight_failure("http://h", "openai", call | {"models": ["m1", "m2"]}).endswith(
        "protocol openai?"
    )
    text = preflight_failure("http://h", "openai", call | {"models": [f"m-{n}" for n in range(99)]})
    assert text.endswith("...")
    assert len(text) < 400


@pytest.mark.parametrize("case", ["salted", "repeated", "llama.cpp", "named"])
def test_prompts_have_the_tokens_that_were_asked_for_by_the_engines_own_count(facts, case):
    """Template, salt and the first word included; two thirds of the words are one token, the others are not used."""
    found = facts["sizes"][case]

    assert found["prompt_sizes"] == {"main": "exact"}
    assert 16 <= found["words"] < 126
    assert {int(size): got for size, got in found["got"].items()} == {
        int(s): int(s) for s in found["got"]
    }
    assert len(found["got"]) == 6
    fields = ["add_special", "content"] if case == "llama.cpp" else ["add_special_tokens", "prompt"]
    assert found["asked"] == [[sorted(["model", *fields]), "tiny", False]]


@pytest.mark.parametrize("case", ["merging", "another tokenizer", "long words only", "a gateway", "strings",
                                  "null", "nothing", "no JSON", "404", "cut"])  # fmt: skip
def test_what_the_usage_does_not_prove_stays_an_estimate(facts, case):
    """A token over two words, another tokenizer, no word of one token, no known engine, an answer that is none."""
    found = facts["sizes"][case]

    assert found["prompt_sizes"] == {"main": "estimate"}
    assert (found["words"], found["tokens_per_word"] is None) == (0, False)
    assert len(found["asked"]) == (case != "a gateway")
    assert all(abs(got - int(size)) <= 0.15 * int(size) + 4 for size, got in found["got"].items())


def test_a_run_of_whole_answers_is_tried_with_whole_answers(facts):
    """Two prompts, of which each is one request row and one attempt row."""
    whole = facts["forms"]["whole"]

    assert whole["streams"] == [False, False]
    assert (whole["call"]["ended"], whole["call"]["streamed"], whole["rows"]) == ("ok", False, 4)


def test_where_a_target_only_streams_the_call_is_sent_again_as_a_stream(facts):
    only_streams = facts["forms"]["only streams"]

    assert only_streams["streams"] == [False, True, False, True]
    assert only_streams["call"]["ended"] == "ok"
    assert only_streams["call"]["streamed"]
    assert only_streams["call"]["wanted_whole"]


def test_an_endpoint_that_only_answers_whole_is_no_other_api(facts):
    call = facts["forms"]["only whole"]["call"]

    assert (call["ended"], call["error_type"]) == ("client_error", "not_an_event_stream")
    assert "set stream = false" in preflight_failure("http://h", "openai", call)


def test_a_redirect_is_named_without_the_secrets_of_its_location(facts):
    call = facts["forms"]["redirect"]["call"]
    sentence = preflight_failure(call["url"], "openai", call)

    assert call["message"] == "https://api.example/v1/chat/completions"
    assert sentence == (
        f"target {call['url']} answered HTTP 308 with location https://api.example/v1/chat/completions. "
        "No call follows a redirect: write --target https://api.example/v1/chat/completions"
    )
