"""The client of a StreamingUser does what an HttpUser's does, and says what it does not."""

import json
import re

import pytest


@pytest.fixture(scope="module")
def seen(run_script):
    return run_script("locust_app/scripts/client.py")


def test_a_response_is_like_that_of_an_http_user(seen):
    found = seen["response"]

    assert (found["status"], found["ok"], found["headers"], found["elapsed"], found["ttft"]) == (
        200, True, "a", 0.002, 12.5,
    )  # fmt: skip
    assert found["text"] == "data: {}\n\ndata: [DONE]\n\n"
    assert found["lines"] == ["data: {}", "", "data: [DONE]", ""]
    assert found["json"] == {"a": 1}
    assert found["raises"] == ""
    assert found["reported"] == [["total", "/v1/chat/completions", ""]]
    assert found["judged"] == [None]


def test_a_body_goes_out_as_it_is_and_a_key_in_its_headers_is_a_secret(seen):
    body, headers, model, stream, limit, name = seen["response"]["sent"]

    assert json.loads(body) == {
        "model": "m", "messages": [{"role": "user", "content": "Hi"}], "max_tokens": 7, "stream": True,
    }  # fmt: skip
    assert headers == [["Authorization", "Bearer k3y-0f-a-u53r-1234567"]]
    assert (model, stream, limit, name) == ("m", True, 7, "/v1/chat/completions")
    assert seen["response"]["secret"] == "the target says [redacted]"
    assert seen["request_head"] == (
        "POST / HTTP/1.1\r\nHost: h\r\nauthorization: Bearer mine\r\nX-A: b\r\n\r\n{}"
    )


def test_stream_true_adds_the_time_to_the_headers_and_the_lines_are_a_replay(seen):
    found = seen["stream_argument"]

    assert found["headers_ms"] == [None, 2.0, 2.0, 2.0]
    assert found["lines"] == [["data: {}", "data: [DONE]"]] * 2, (
        "the answer of a stream could be read once"
    )
    assert found["pieces"] == "data: {}\n\ndata: [DONE]\n\n"
    assert found["statistics"] == {"TTFT": 3, "headers": 2}
    assert found["sum"] == 0, "a request counts once, as total"


def test_a_failed_request_fails_for_locust_too_and_keeps_its_own_class(seen):
    assert seen["failures"] == {
        "rejected": [429, False, "429 Client Error: To", [None]],
        "cut off": [200, False, "truncated (HTTP 200)", [None]],
        "no answer": [0, False, "connect_error", [None]],
    }


def test_a_task_judges_its_answer_in_a_with_block(seen):
    found = seen["with_block"]

    assert found["failure"] == [["no end mark"], ["no end mark"], ""]
    assert found["nothing"] == [[None], [""], ""]
    assert found["success of a failure"] == [[None], [""], ""], "Locust's statistics alone"
    assert found["failure of a failure"] == [[None], ["no"], ""], "it has a class of its own"
    assert found["raises"] == [[None], [""], "integer division or modulo by zero"], (
        "and it is recorded"
    )


def test_a_caught_response_without_a_with_block_counts_as_it_ended(seen):
    text, before, after = seen["with_block"]["without"]

    assert "Make sure you use a with-block" in text or text.startswith(
        "LocustError: Tried to set status"
    )
    assert before == []
    assert after == [None, None]
    assert "you must also pass catch_response=True" in seen["with_block"]["with, unasked"]


@pytest.mark.parametrize(
    ("case", "text"),
    [
        ("path", "client.post('/v1/embeddings'): a StreamingUser posts to /messages (anthropic) and /chat/completions (openai)"),
        ("protocol", 'this run speaks openai: set protocol = "anthropic" on the class'),
        ("host", "the calls of this run go to http://127.0.0.1:8000/v1/chat/completions: change host, or the path"),
        ("query", "the calls of this run go to"),
        ("prefix", "the calls of this run go to"),
        ("no body", "expected a JSON object, as in json={...}, got NoneType"),
        ("no json", "expected JSON in data: Expecting property name"),
        ("a list", "expected a JSON object, as in json={...}, got list"),
        ("no messages", "messages: expected a list of messages in the body"),
        ("a set", "expected what JSON has: Object of type set"),
        ("verify", "verify: set target.ca_file"),
        ("unknown", "jsn: unknown argument"),
        ("redirects", "a redirect is an answer here: give the final host"),
        ("gzip", "headers: Accept-Encoding: chunks are timed as they come"),
        ("two lines", "headers: X-A: expected one line"),
    ],
)  # fmt: skip
def test_what_cannot_be_sent_is_refused_by_name(seen, case, text):
    assert text in seen["mistakes"][case]


def test_exceptions_of_tasks_are_logged_once_a_line_and_all_are_counted(seen):
    found = seen["task_errors"]

    others = ["integer division or modulo by zero"] * 4  # of a user that is Locust's
    logged = [
        "integer division or modulo by zero",
        "invalid literal for int() with base 10: 'z0'",
        *others,
    ]
    assert sorted(found["logged"]) == sorted(logged)
    (division, divided), (literal, read) = found["counts"]
    assert (divided, read) == (4, 4)
    assert re.fullmatch(
        r"ZeroDivisionError: integer division or modulo by zero \(client\.py:\d+\)", division
    )
    assert re.fullmatch(
        r"ValueError: invalid literal for int\(\) with base 10: 'z0' \(client\.py:\d+\)", literal
    )
