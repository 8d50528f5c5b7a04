"""Responses in any pieces, whole and cut. What happens is in exercises/responses.py."""

from __future__ import annotations

import pytest

EVENTS = "data: a\n\ndata: b\n\n"


@pytest.fixture(scope="module")
def seen(exercise):
    return exercise("transport/exercises/responses.py")


@pytest.mark.parametrize(
    ("name", "outcome"),
    [
        ("stream_split", [200, EVENTS, None, True, None]),
        ("counted_split", [400, "hello", None, True, None]),
        ("interim_split", [200, "ok", None, True, None]),
    ],
)
def test_a_response_may_be_split_at_every_byte(seen, name, outcome):
    count, *outcomes = seen[name]

    assert outcomes == [outcome]
    assert count > 50


def test_a_response_may_come_byte_by_byte(seen):
    facts = seen["byte_by_byte"]

    assert (facts["payload"], facts["done"], facts["cut"]) == (EVENTS, True, None)
    assert facts["reads"] > 50


def test_the_end_is_noticed_where_reads_are_only_kept(seen):
    outcomes = seen["content_and_end_much_later"]

    assert set(outcomes) == {"data: first\n\n" + EVENTS}


WHOLE = {"status": 200, "payload": EVENTS, "cut": None, "failure": None, "aborted": None}
# name -> what differs from a whole stream
CASES = {
    "whole": {},
    "trailers": {},
    "until_close": {"payload": "data: a\n\n"},
    "until_close_reset": {"payload": "data: a\n\n", "cut": "connection_reset"},
    "closed_early": {"cut": "connection_closed"},
    "closed_in_a_chunk": {"cut": "connection_closed", "payload": EVENTS[:-4]},
    "closed_behind_the_last_size": {"cut": "connection_closed"},
    "counted_closed_early": {"cut": "connection_closed", "payload": "o"},
    "reset_in_the_stream": {"cut": "connection_reset"},
    "reset_in_the_head": {"status": None, "payload": "", "failure": "closed"},
    "closed_in_the_head": {"status": None, "payload": "", "failure": "closed"},
    "no_content": {"status": 204, "payload": ""},
    "not_modified": {"status": 304, "payload": ""},
    "empty": {"payload": ""},
    "bad_chunk": {"cut": "framing: not a chunk size: b'zzz'", "payload": ""},
    "bad_length": {"status": None, "payload": "", "failure": "not_http"},
    "banner": {"status": None, "payload": "", "failure": "not_http"},
    "tls_alert": {"status": None, "payload": "", "failure": "not_http"},
    "long_head": {"status": None, "payload": "", "failure": "not_http"},
    "compressed": {},  # left as it is: the outcome says why it is no stream
    "page": {"payload": "<p>"},
}


@pytest.mark.parametrize("name", CASES)
def test_a_response_that_is(seen, name):
    facts = seen[name]

    assert {key: facts[key] for key in WHOLE} == {**WHOLE, **CASES[name]}
    assert facts["done"]


def test_an_error_body_without_end_is_given_up_before_it_fills_the_memory(seen):
    facts = seen["endless_error"]

    assert (facts["cut"], facts["done"], facts["aborted"]) == ("response too large", True, None)
    assert facts["bytes"] < 2 << 20


@pytest.mark.parametrize(
    ("name", "heard"),
    [
        ("whole", ["headers", "content"]),  # though both came in one read
        ("byte_by_byte", ["headers", "content"]),
        ("counted_closed_early", ["headers"]),
        ("compressed", ["headers"]),
        ("banner", []),
    ],
)
def test_headers_are_told_before_content_and_each_once(seen, name, heard):
    assert seen[name]["heard"] == heard


def test_no_response_prints_a_traceback(seen):
    assert seen["stderr"] == ""
