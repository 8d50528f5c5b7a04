"""The run token: what is sealed with it opens, and nothing else does."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tailgauge.channel import auth
from tailgauge.channel.auth import Seal, SealError
from tailgauge.errors import UsageError

OURS = Seal("0123456789abcdef")
PLAIN = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**63 - 1)
    | st.floats(allow_nan=False)
    | st.text()
    | st.binary(),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.text() | st.integers(0, 9), inner, max_size=3)
    ),
    max_leaves=8,
)


@pytest.mark.slow
@settings(max_examples=60)
@given(st.dictionaries(st.text(), PLAIN, max_size=4), st.text(), st.text())
def test_what_was_sealed_opens_as_it_was(data, kind, worker):
    assert OURS.open(kind, worker, OURS.close(kind, worker, data)) == data


@settings(max_examples=60)
@given(st.binary(min_size=1, max_size=80), st.integers(0, 10_000), st.integers(1, 255))
def test_one_changed_byte_is_seen(text, at, by):
    sealed = OURS.close("slice", "w1", {"rows": text})
    body = bytearray(sealed["body"])
    body[at % len(body)] ^= by

    with pytest.raises(SealError):
        OURS.open("slice", "w1", {**sealed, "body": bytes(body)})


@pytest.mark.parametrize(
    "sealed",
    [
        None,
        b"body",
        {},
        {"body": b"\x80"},
        {"body": "text", "mark": b"x"},
        {"body": b"\x80", "mark": "text"},
        {"body": b"\x80", "mark": b""},
        Seal("").close("plan", "w1", {}),
        Seal("0123456789abcdeF").close("plan", "w1", {}),
        OURS.close("slice", "w1", {}),
        OURS.close("plan", "w2", {}),
        OURS.close("planw1", "", {}),
    ],
)
def test_whatever_else_comes_is_refused_unread(sealed):
    with pytest.raises(SealError):
        OURS.open("plan", "w1", sealed)


def test_the_token_itself_is_in_no_message():
    assert b"0123456789abcdef" not in b"".join(OURS.close("plan", "w1", {"a": 1}).values())


def test_a_short_token_is_refused_by_its_length_and_is_not_repeated(monkeypatch):
    monkeypatch.setenv(auth.TOKEN, "secret")
    with pytest.raises(UsageError, match="expected at least 16 characters, got 6") as facts:
        auth.configured_token()
    assert "secret" not in str(facts.value)


def test_white_space_around_the_token_does_not_count(monkeypatch):
    monkeypatch.setenv(auth.TOKEN, " 0123456789abcdef\n")
    sealed = Seal(auth.configured_token("a worker")).close("plan", "w1", {"a": 1})

    assert OURS.open("plan", "w1", sealed) == {"a": 1}


def test_where_one_is_needed_and_none_is_set_it_says_what_for_and_how_to_make_one(monkeypatch):
    monkeypatch.delenv(auth.TOKEN, raising=False)
    with pytest.raises(
        UsageError, match="TAILGAUGE_TOKEN is not set, and a worker needs it: export"
    ) as facts:
        auth.configured_token("a worker")
    assert "openssl rand" in str(facts.value)
    assert auth.configured_token() == ""


def test_each_run_that_makes_its_own_makes_another_one():
    assert len({auth.new_token() for _ in range(100)}) == 100
    assert len(auth.new_token()) >= auth.LEAST
