"""Whole calls: what goes out, and the row that comes of it, for both protocols. See scripts/attempts.py."""

from __future__ import annotations

import json

import pytest

BOTH = pytest.mark.parametrize("protocol", ["anthropic", "openai"])


@pytest.fixture(scope="module")
def seen(run_script):
    return run_script(
        "worker/scripts/attempts.py", ANTHROPIC_API_KEY="must-not-go-out", OPENAI_API_KEY="must-not-go-out",
        ANTHROPIC_AUTH_TOKEN="must-not-go-out", OPENAI_ORG_ID="must-not-go-out",
    )  # fmt: skip


@BOTH
def test_a_request_is_what_the_traffic_asked_for(seen, protocol):
    facts = seen[f"{protocol} a_stream"]
    body = json.loads(facts["body"])
    path = {"anthropic": "/v1/messages", "openai": "/v1/chat/completions"}[protocol]

    assert facts["first"] == f"POST {path} HTTP/1.1"
    assert (body["model"], body["max_tokens"], body["stream"]) == ("tiny", 4, True)
    assert body["messages"] == [{"role": "user", "content": "some words"}]
    assert facts["headers"]["x-client-request-id"] == "run-1/65536/1/2"
    assert facts["headers"]["accept-encoding"] == "identity"


@BOTH
def test_no_key_of_the_provider_goes_to_another_host(seen, protocol):
    facts = seen[f"{protocol} a_stream"]

    assert "must-not-go-out" not in json.dumps(facts["headers"])
    assert not {"authorization", "x-api-key", "api-key"} & set(facts["headers"])


@BOTH
def test_warming_up_sends_nothing(seen, protocol):
    assert seen[f"{protocol} a_stream"]["warm"] == 0


@BOTH
def test_a_stream_becomes_a_row_and_its_chunks(seen, protocol):
    facts = seen[f"{protocol} a_stream"]
    row = facts["row"]

    assert (row["ended"], row["status"], row["error_type"], row["chunks"]) == ("ok", 200, None, 4)
    assert (row["request_id"], row["leg"], row["attempt"], row["stage"], row["traffic"]) == (
        65536,
        1,
        2,
        "steady",
        "chat",
    )
    assert (row["protocol"], row["asked_model"], row["model"], row["server_request_id"]) == (
        protocol,
        "tiny",
        "tiny",
        "req_9",
    )
    assert row["output_tokens"] == 4
    assert (row["connection_is_new"], row["dns_ns"], row["tls_ns"]) == (True, 0, 0)
    assert (facts["chunk_runs"], facts["ended"], facts["counters"][:2]) == ([[0, 4]], "ok", [0, 4])
    assert facts["received"] == ["FirstContent", "Ended"]
    assert (facts["counted"], len(facts["ttft"]), facts["tpot"]) == (["chat", "main"], 1, [])
    assert facts["tokens"] == [row["input_tokens"] + (row["cache_read_input_tokens"] or 0), 4]


@BOTH
def test_the_times_of_a_row_are_in_order(seen, protocol):
    row = seen[f"{protocol} a_stream"]["row"]
    names = ("dispatched_at_ns", "sent_at_ns", "first_byte_at_ns", "headers_at_ns", "first_event_at_ns", "first_content_at_ns",
             "last_content_at_ns", "stopped_at_ns", "ended_at_ns")  # fmt: skip
    times = [row[name] for name in names]

    assert times == sorted(times)
    assert row["cancelled_at_ns"] is None


@BOTH
@pytest.mark.parametrize(
    ("case", "expected"),
    [
        ("limited", {"ended": "rate_limited", "status": 429, "error_type": "rate_limit_error", "limit_kind": "requests", "retry_after_s": 7.0}),
        ("refused", {"ended": "client_error", "status": 401, "error_type": "authentication_error", "limit_kind": None}),
        ("overloaded", {"ended": "overloaded", "status": 529, "error_type": "overloaded_error"}),
        ("broken", {"ended": "server_error", "status": 500, "error_type": "api_error"}),
        ("moved", {"ended": "client_error", "status": 307}),
        ("cut", {"ended": "truncated", "status": 200, "error_type": "connection_closed"}),
        ("too_long", {"ended": "timeout", "status": 200}),
        ("never_answered", {"ended": "timeout", "status": None, "headers_at_ns": None, "chunks": 0}),
        ("censored", {"ended": "censored", "status": 200, "ended_at_ns": None}),
    ],
)  # fmt: skip
def test_a_failure_is_a_row_and_is_never_sent_again(seen, protocol, case, expected):
    facts = seen[f"{protocol} {case}"]

    assert {name: facts["row"][name] for name in expected} == expected
    assert (facts["rows"], facts["requests"], facts["ended"]) == (1, 1, expected["ended"])
    assert (facts["counters"][0], facts["attempts"]) == (0, {expected["ended"]: 1})


@BOTH
def test_what_we_closed_says_when(seen, protocol):
    for case in ("too_long", "never_answered", "censored"):
        row = seen[f"{protocol} {case}"]["row"]

        assert row["cancelled_at_ns"] >= row["sent_at_ns"]


@BOTH
def test_chunks_of_an_open_call_are_passed_on_once(seen, protocol):
    facts = seen[f"{protocol} censored"]

    assert facts["row"]["chunks"] > 0
    assert facts["chunk_runs"] == [[0, facts["row"]["chunks"]]]


def test_waiting_for_a_slot_that_the_scenario_limits_is_no_late_sending(seen):
    (late_ms,) = seen["waited_for_a_slot"]["delays"]

    assert 90 < late_ms < 1000


def test_a_small_request_is_sent_when_it_begins_where_a_connection_rests(seen):
    facts = seen["at_once"]

    assert facts["new"] == [True, False, False, False, True, False]
    assert facts["at_once"] == [False, True, False, True, False, True]
    assert facts["ended"] == ["ok", "ok", "ok", "timeout", "ok", "truncated"]


def test_a_call_sent_at_once_gives_the_events_and_rows_of_any_other(seen):
    facts = seen["at_once"]
    of_an_answer = ["FirstContent", "Ended"]

    assert facts["events"] == [*[of_an_answer] * 3, ["Ended"], *[of_an_answer] * 2]
    assert facts["chunks"] == 5 * 4
