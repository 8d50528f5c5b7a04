"""Every kind of call: its body, what the endpoint makes of it, and each stamp beside the time at which it was written.

See scripts/call_kinds.py. A time is right if it lies between the writing of its event and the writing of the next one.
"""

from __future__ import annotations

import json

import pytest

BOTH = pytest.mark.parametrize("protocol", ["anthropic", "openai"])
SECRETS = {
    "ANTHROPIC_API_KEY": "must-not-go-out", "OPENAI_API_KEY": "must-not-go-out", "ANTHROPIC_AUTH_TOKEN": "must-not-go-out",
    "ANTHROPIC_CUSTOM_HEADERS": "x-secret: must-not-go-out", "OPENAI_ORG_ID": "must-not-go-out", "APP_KEY": "key-of-the-app",
}  # fmt: skip
USER = [{"role": "user", "content": "some words"}]


@pytest.fixture(scope="module")
def seen(run_script):
    return run_script("worker/scripts/call_kinds.py", timeout_s=120, **SECRETS)


def body(seen, name):
    return seen["bodies"][name]["body"]


# --- bodies -------------------------------------------------------------------------------------------------------


@BOTH
def test_a_plain_call_says_nothing_that_was_not_asked_for(seen, protocol):
    plain = body(seen, f"{protocol} plain")
    extra = {} if protocol == "anthropic" else {"stream_options": {"include_usage": True}}

    assert plain == {"model": "tiny", "max_tokens": 7, "messages": USER, "stream": True, **extra}
    assert body(seen, f"{protocol} another model") == {**plain, "model": "other"}


def test_anthropic_gets_the_prompt_with_its_marks_where_they_stand(seen):
    def text(printed, ttl=None):
        block = {"type": "text", "text": printed}
        return (
            block if ttl is None else {**block, "cache_control": {"type": "ephemeral", "ttl": ttl}}
        )

    asked = body(seen, "anthropic conversation")
    look, act = asked["tools"]

    assert asked["system"] == [text("be kind"), text("be brief", "1h")]
    assert asked["messages"] == [
        {"role": "user", "content": "an example"},
        {"role": "assistant", "content": [text("its answer", "5m")]},
        {"role": "user", "content": [text("first part"), text("second part", "5m")]},
    ]
    assert (look["name"], "cache_control" in look) == ("look", False)
    assert act == {"name": "act", "description": "Acts.", "input_schema": {"type": "object"},
                   "cache_control": {"type": "ephemeral", "ttl": "1h"}}  # fmt: skip
    assert "tool_choice" not in asked
    assert body(seen, "anthropic system")["system"] == "be kind"


def test_openai_gets_the_prompt_with_breakpoints_but_not_behind_tools_and_the_system_as_a_message(
    seen,
):
    def text(printed, **mark):
        block = {"type": "text", "text": printed}
        return {**block, "prompt_cache_breakpoint": {"mode": "explicit", **mark}} if mark else block

    asked = body(seen, "openai conversation")
    short = {"type": "text", "text": "its answer", "prompt_cache_breakpoint": {"mode": "explicit"}}

    assert asked["messages"] == [
        {"role": "system", "content": [text("be kind"), text("be brief", ttl="12h")]},
        {"role": "user", "content": "an example"},
        {"role": "assistant", "content": [short]},
        {"role": "user", "content": [text("first part"), {**short, "text": "second part"}]},
    ]
    assert asked["prompt_cache_options"] == {"mode": "explicit"}
    assert body(seen, "openai system")["messages"][0] == {"role": "system", "content": "be kind"}
    assert [tool["function"]["name"] for tool in asked["tools"]] == ["look", "act"]
    assert "cache_control" not in json.dumps(asked)


@pytest.mark.parametrize(
    ("name", "beyond_plain"),
    [
        ("anthropic forced tool", {"tool_choice": {"type": "any"}}),
        ("anthropic adaptive", {"thinking": {"type": "adaptive"}}),
        ("anthropic enabled", {"thinking": {"type": "enabled", "budget_tokens": 1024}}),
        ("anthropic whole", {"stream": False}),
        ("openai forced tool", {"tool_choice": "required"}),
        ("openai adaptive", {"reasoning_effort": "medium", "chat_template_kwargs": {"enable_thinking": True}}),
        ("openai enabled", {"reasoning_effort": "medium", "thinking_token_budget": 1024,
                            "chat_template_kwargs": {"enable_thinking": True, "thinking_budget": 1024}}),
        ("openai whole", {"stream": False}),
    ],
)  # fmt: skip
def test_what_is_asked_for_stands_in_the_body(seen, name, beyond_plain):
    asked, plain = body(seen, name), body(seen, f"{name.split()[0]} plain")
    changed = {key: value for key, value in asked.items() if plain.get(key) != value}
    changed.pop("max_tokens", None)
    changed.pop("tools", None)

    assert changed == beyond_plain
    assert not {"temperature", "top_p", "top_k"} & set(asked)
    if not asked["stream"]:
        assert "stream_options" not in asked


def test_a_schema_goes_out_as_each_protocol_has_it(seen):
    schema = body(seen, "anthropic schema")["output_config"]["format"]["schema"]

    assert schema["required"] == ["a"]
    assert body(seen, "anthropic schema")["output_config"]["format"]["type"] == "json_schema"
    assert body(seen, "openai schema")["response_format"] == {
        "type": "json_schema", "json_schema": {"name": "answer", "schema": schema, "strict": True},
    }  # fmt: skip


def test_a_pre_warming_call_asks_for_nothing(seen):
    asked = body(seen, "anthropic pre-warm")

    assert (asked["max_tokens"], asked["stream"]) == (0, False)
    assert asked["system"][0]["cache_control"] == {"type": "ephemeral", "ttl": "5m"}
    summary = seen["accepted"]["pre-warm"]["row"]
    assert (summary["status"], summary["ended"], summary["output_tokens"]) == (200, "empty", 0)
    assert summary["cache_creation_5m_input_tokens"] > 0


def test_a_batch_is_submitted_polled_and_fetched(seen):
    asked = body(seen, "anthropic submit")["requests"]

    assert [one["custom_id"] for one in asked] == ["0", "1", "2"]
    assert asked[0]["params"] == {"model": "tiny", "max_tokens": 5, "messages": USER}
    assert "stream" not in asked[2]["params"]
    assert [
        seen["bodies"][f"anthropic {kind}"]["first"] for kind in ("submit", "poll", "fetch")
    ] == [
        "POST /v1/messages/batches HTTP/1.1",
        "GET /v1/messages/batches/msgbatch_1 HTTP/1.1",
        "GET /v1/messages/batches/msgbatch_1/results HTTP/1.1",
    ]


def test_every_request_carries_its_id_and_no_foreign_key(seen):
    requests = [
        *seen["bodies"].values(),
        *(facts["request"] for facts in seen["stamps"].values()),
        *(facts["request"] for facts in seen["app"].values() if "request" in facts),
        seen["two_targets"]["second"],
    ]

    assert len(requests) > 30
    for request in requests:
        assert request["headers"]["x-client-request-id"] == "run-1/65536/1/2"
        assert "must-not-go-out" not in json.dumps(request)
    assert "authorization" not in seen["app"]["cut"]["request"]["headers"]
    assert seen["stamps"]["sse"]["request"]["headers"]["authorization"] == "Bearer key-of-the-app"


# --- what the simulated endpoint makes of them ----------------------------------------------------------------------


@BOTH
def test_the_simulated_endpoint_takes_every_kind_of_call(seen, protocol):
    summary = {name: facts for name, facts in seen["accepted"].items() if name.startswith(protocol)}

    assert len(summary) == 10
    assert {facts["row"]["ended"] for facts in summary.values()} == {"ok"}
    assert summary[f"{protocol} plain"]["row"]["chunks"] == 7
    by_schema = summary[f"{protocol} schema"]
    assert list(json.loads(by_schema["received"][-1][1]["text"]))
    assert by_schema["row"]["first_content_at_ns"] <= by_schema["row"]["first_field_at_ns"]
    assert summary[f"{protocol} adaptive"]["row"]["thinking_tokens"] == 16
    assert summary[f"{protocol} adaptive"]["row"]["first_thinking_at_ns"] is not None
    tool = summary[f"{protocol} forced tool"]["row"]
    assert tool["first_tool_json_at_ns"] <= tool["first_field_at_ns"] <= tool["tool_ready_at_ns"]
    whole = summary[f"{protocol} whole"]
    assert (whole["row"]["streamed"], whole["row"]["chunks"], whole["chars"]) == (False, 1, [28])
    assert whole["row"]["output_tokens"] == 7


def test_marks_are_seen_as_marks(seen):
    row = seen["accepted"]["anthropic conversation"]["row"]

    assert row["cache_creation_1h_input_tokens"] > 0
    assert row["cache_creation_5m_input_tokens"] > 0


def test_the_calls_of_a_batch_are_rows_and_their_usage_is_added_up(seen):
    submitted, *polls, fetched, missing = seen["accepted"]["batch"]
    states = [
        json.loads(one["received"][-1][1]["text"])["processing_status"]
        for one in (submitted, *polls)
    ]

    assert states == ["in_progress"] * (len(states) - 1) + ["ended"]
    assert {one["row"]["ended"] for one in (submitted, *polls, fetched)} == {"ok"}
    assert (fetched["row"]["output_tokens"], fetched["row"]["chunks"], fetched["row"]["model"]) == (
        15,
        0,
        "tiny",
    )
    assert fetched["row"]["input_tokens"] > 6
    lines = [json.loads(line) for line in fetched["received"][-1][1]["text"].splitlines()]
    assert sorted(line["custom_id"] for line in lines) == ["0", "1", "2"]
    assert {line["result"]["type"] for line in lines} == {"succeeded"}
    assert missing["row"]["ended"] == "client_error"
    assert (missing["row"]["status"], missing["row"]["error_type"]) == (404, "not_found_error")


def test_an_application_may_be_told_in_a_scenario(seen):
    row = seen["accepted"]["own stream"]["row"]

    assert (row["ended"], row["chunks"], row["output_tokens"], row["protocol"]) == (
        "ok",
        9,
        9,
        "sse",
    )
    assert row["input_tokens"] > 0


# --- stamps ---------------------------------------------------------------------------------------------------------


def event_of(wrote, at_ns):
    """Number of the event after whose writing, and before the next one's, a time lies."""
    return sum(written <= at_ns for written in wrote) - 1


LANDMARKS = {
    "anthropic": {"first_event": 0, "first_thinking": 2, "first_content": 2, "first_text": 6, "first_tool_json": 10,
                  "first_field": 11, "last_content": 12, "tool_ready": 13, "stopped": 15},
    "openai": {"first_event": 0, "first_thinking": 1, "first_content": 1, "first_text": 2, "first_tool_json": 3,
               "first_field": 4, "last_content": 6, "tool_ready": 6, "stopped": 8},
    "sse": {"first_event": 0, "first_content": 3, "first_text": 3, "last_content": 4, "stopped": 7},
}  # fmt: skip


@pytest.mark.parametrize("protocol", LANDMARKS)
def test_each_landmark_is_stamped_when_its_event_came(seen, protocol):
    facts = seen["stamps"][protocol]
    found = {
        name: event_of(facts["wrote"], facts["row"][f"{name}_at_ns"])
        for name in {name for landmarks in LANDMARKS.values() for name in landmarks}
        if facts["row"][f"{name}_at_ns"] is not None
    }

    assert facts["row"]["ended"] == "ok"
    assert found == LANDMARKS[protocol]


@BOTH
def test_a_pattern_hears_of_the_chunk_it_waits_for(seen, protocol):
    facts = seen["stamps"][protocol]
    received = dict(facts["received"])

    assert [name for name, _ in facts["received"]] == ["FirstContent", "Chunks", "Ended"]
    assert received["Chunks"]["at_ns"] == facts["arrived"][2]
    assert received["FirstContent"]["sent_at_ns"] == facts["row"]["sent_at_ns"]
    assert received["Ended"]["text"] == "well"


def test_nothing_is_watched_or_kept_that_was_not_asked_for(seen):
    facts = seen["stamps"]["unwatched"]

    assert [name for name, _ in facts["received"]] == ["FirstContent", "Ended"]
    assert facts["row"]["first_field_at_ns"] is None
    assert dict(facts["received"])["Ended"]["text"] is None


def test_phases_begin_with_their_first_event_and_last_what_the_header_says(seen):
    facts = seen["stamps"]["sse"]
    row, phases = facts["row"], json.loads(facts["row"]["phases"])
    began = {
        name: event_of(facts["wrote"], row["sent_at_ns"] + phases[name])
        for name in ("retrieval", "generation")
    }

    assert began == {"retrieval": 0, "generation": 2}
    assert (phases["db;dur"], phases["cache;dur"], len(phases)) == (53_500_000, 100_000, 4)
    assert (row["citations"], row["input_tokens"], row["output_tokens"]) == (1, 4, 2)
    assert json.loads(seen["stamps"]["openai"]["row"]["phases"]) == {
        "db;dur": 53_500_000,
        "cache;dur": 100_000,
    }


def test_a_template_is_filled_once(seen):
    request = seen["stamps"]["sse"]["request"]

    assert request["first"] == "POST /ask?v=1 HTTP/1.1"
    assert request["headers"]["x-app"] == "for tiny"
    assert request["body"]["opts"] == {"n": 7, "ids": ["run-1/65536/1/2", "tiny"]}
    assert request["body"]["q"].startswith("be kind\n\nbe brief\n\nan example")
    assert seen["app"]["braces"]["request"]["body"]["q"] == "{call_id} {x}"


@pytest.mark.parametrize(
    ("case", "expected"),
    [
        ("cut", ("truncated", "no_end_mark", None)),
        ("failed", ("stream_error", "boom", "no")),
        ("failed in words", ("stream_error", "error", "out of luck")),
        (
            "no text",
            ("stream_error", "malformed_event", 'a field is not what the protocol says: {"t": 5}'),
        ),
        ("text left out", ("empty", None, None)),
        ("refused", ("rate_limited", "error", "{}")),
        ("plain", ("ok", None, None)),
    ],
)
def test_an_application_can_fail_like_any_target(seen, case, expected):
    facts = seen["app"][case]
    row = facts["row"]

    assert (row["ended"], row["error_type"], row["error_body"]) == expected
    if case == "refused":
        ended = facts["received"][-1][1]
        assert (row["retry_after_s"], ended["should_retry"]) == (3.0, False)
    if case == "plain":
        assert dict(facts["received"])["Ended"]["text"] == "hello"


def test_the_cache_book_is_reported_in_order_and_its_note_is_in_the_row(seen):
    row = seen["book"]["row"]
    key = "(65536, 1, 2)"

    assert seen["book"]["reported"] == [f"sent {key} chat", f"begun {key}", f"ended {key}"]
    assert (row["prefix"], row["prefix_hash"], row["cache_expected"], row["cache_marks"]) == (
        3,
        "abc",
        "warm",
        2,
    )


# --- whole answers --------------------------------------------------------------------------------------------------


@BOTH
def test_a_whole_answer_is_one_chunk_stamped_at_the_read_that_completed_it(seen, protocol):
    facts = seen["whole"][protocol]
    row, wrote = facts["row"], facts["wrote"]

    assert (row["ended"], row["streamed"], row["chunks"], facts["chars"]) == ("ok", False, 1, [4])
    assert row["first_content_at_ns"] == row["last_content_at_ns"] == facts["arrived"][0]
    assert event_of(wrote, facts["arrived"][0]) == len(wrote) - 1 == 2
    assert (row["first_content_low_at_ns"], row["reads"] >= 3) == (None, True)
    assert (row["input_tokens"], row["output_tokens"], row["model"]) == (3, 4, "tiny")
    assert [name for name, _ in facts["received"]] == ["FirstContent", "Ended"]
    assert dict(facts["received"])["Ended"]["text"] == "well"
    assert seen["whole"][f"{protocol} until close"]["row"]["ended"] == "ok"


@BOTH
def test_json_that_is_not_the_protocol_is_a_client_error(seen, protocol):
    for case, kind in (("wrong", "malformed_answer"), ("not streamed", "not_an_event_stream")):
        row = seen["whole"][f"{protocol} {case}"]["row"]

        assert (row["ended"], row["error_type"], row["error_body"]) == (
            "client_error",
            kind,
            '{"a": []}',
        )


# --- two targets ------------------------------------------------------------------------------------------------------


def test_a_call_goes_to_the_target_it_names(seen):
    facts = seen["two_targets"]
    row = facts["row"]

    assert facts["first"] == 0
    assert (row["target"], row["protocol"], row["asked_model"]) == ("second", "openai", "spare")
    assert facts["second"]["headers"]["authorization"] == "Bearer key-of-the-app"
