"""Responses in any pieces, whole and cut. What happens is in scripts/exchange.py."""

from __future__ import annotations

import pytest

EVENTS = "data: a\n\ndata: b\n\n"


@pytest.fixture(scope="module")
def seen(run_script, reader):
    return run_script("transport/scripts/exchange.py", reader)


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


def test_the_end_is_noticed_where_nobody_waits_for_reads(seen):
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
    "bad_chunk": {"cut": "framing", "payload": ""},
    "bad_length": {"status": None, "payload": "", "failure": "not_http"},
    "banner": {"status": None, "payload": "", "failure": "not_http"},
    "tls_alert": {"status": None, "payload": "", "failure": "not_http"},
    "long_head": {"status": None, "payload": "", "failure": "head_too_large"},
    "many_headers": {"status": None, "payload": "", "failure": "head_too_large"},
    "endless_interim": {"status": None, "payload": "", "failure": "head_too_large"},
    "endless_trailers": {"cut": "framing", "payload": ""},
    "huge_chunk": {"payload": EVENTS, "aborted": "timeout"},
    "compressed": {"payload": "", "cut": "compressed"},  # never unpacked
    "a_bomb": {"payload": "", "cut": "compressed"},
    "page": {"payload": "<p>"},
}


@pytest.mark.parametrize("name", CASES)
def test_a_response_that_is(seen, name):
    facts = seen[name]

    assert {key: facts[key] for key in WHOLE} == {**WHOLE, **CASES[name]}
    assert facts["done"]


@pytest.mark.parametrize("name", ["cancelled_stream", "cancelled_whole"])
def test_what_nobody_has_seen_when_a_call_is_cancelled_is_no_part_of_it(seen, name):
    """A hedge's loser: its answer may lie there to its end."""
    facts = seen[name]

    assert (facts["aborted"], facts["payload"], facts["status"]) == ("cancelled", "", 200)


def test_an_error_body_without_end_is_given_up_before_it_fills_the_memory(seen):
    facts = seen["endless_error"]

    assert (facts["cut"], facts["cut_text"], facts["done"], facts["aborted"]) == (
        "too_large",
        "over 1 MiB",
        True,
        None,
    )
    assert facts["bytes"] < 2 << 20
    assert len(facts["payload"]) < 1 << 18  # most of it is not even kept


def test_answers_that_hold_too_much_together_are_given_up_but_for_those_that_hold_little(seen):
    """Four of 3 MiB where 8 MiB are allowed, and one of 6 bytes."""
    facts = seen["together"]

    assert facts["cut"].count("too_large") >= 1
    assert facts["cut"].count(None) >= 3
    assert facts["small"] == [None, "answer"]
    assert facts["held"] == 0, "all of it was given back"
    assert facts["most"] <= 9 << 20


def test_what_one_answer_may_hold_is_its_share(seen):
    """Small ones are never dropped for a large one."""
    facts = seen["shares"]

    assert facts["dropped"] == [False, False, False, True]
    assert facts["left"] == 420


def test_a_flood_is_decoded_as_it_comes_and_not_gathered(seen):
    """8 MiB of small events after the first content, which nobody waits for: no look is asked for, none is long."""
    facts = seen["flood"]

    assert facts["payload"] == facts["sent"]
    assert facts["most_at_once"] < 1 << 20


@pytest.mark.parametrize("name", ["sdk_packed", "sdk_packed_by_charset"])
def test_an_sdk_learns_the_status_alone_and_unpacks_nothing(seen, name):
    assert seen[name] == {"status": 400, "headers": [], "content": "", "kept": True}


@pytest.mark.parametrize(
    ("name", "received"),
    [
        ("whole", ["content"]),  # though both came in one read
        ("byte_by_byte", ["content"]),
        ("counted_closed_early", ["content"]),
        ("compressed", []),
        ("banner", []),
    ],
)
def test_content_is_reported_once(seen, name, received):
    assert seen[name]["received"] == received


def test_no_response_prints_a_traceback(seen):
    assert seen["stderr"] == ""


@pytest.fixture(scope="module")
def pairs(run_script, reader):
    if reader == "python":
        pytest.skip("it decodes nothing")
    return run_script("transport/scripts/pairs.py", reader)


@pytest.mark.parametrize("protocol", ["openai", "changing", "anthropic"])
def test_what_the_thread_decodes_is_what_the_full_reading_gives(pairs, protocol):
    """Random streams, each at two connections at once; the times are those of the read that brought the content."""
    facts = pairs[protocol]

    assert (facts["different"], facts["wrong"]) == ([], [])
    assert facts["chunks"] > 2000
    assert facts["plain"] > facts["chunks"] / 10
