"""Secrets: which variables hold one, and that none of them is ever written down."""

from __future__ import annotations

import os

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tailgauge import redaction
from tailgauge.protocols.api_keys import key_for
from tailgauge.redaction import MARK, Redaction, holds_secret
from tailgauge.redaction import environment as childs_environment

KEY = "Zz9-canary-of-thirty-characters"


@pytest.fixture(autouse=True)
def environment(monkeypatch):
    """Only the secrets that a test sets."""
    for name in list(os.environ):
        if holds_secret(name):
            monkeypatch.delenv(name)
    monkeypatch.setattr(redaction, "_named", set())
    return monkeypatch


SHAPES = {
    "an anthropic key": ("bad key sk-" + "ant-api03-abcDEF_123-456", "bad key [redacted]"),
    "an openai key": ("Incorrect API key provided: sk-" + "proj-abcdefgh12345678.", "Incorrect API key provided: [redacted]."),
    "a bearer header": ("Authorization: Bearer abc.def-ghi_jkl==", "Authorization: [redacted]"),
    "two of them": ("sk-" + "aaaaaaaaaa sk-" + "bbbbbbbbbb", "[redacted] [redacted]"),
    "nothing secret": ("the task-sk is a desk-lamp; Bearer of news", "the task-sk is a desk-lamp; Bearer of news"),
    "too short for a key": ("sk-short Bearer x", "sk-short Bearer x"),
}  # fmt: skip


@pytest.mark.parametrize(("text", "expected"), SHAPES.values(), ids=SHAPES)
def test_what_looks_like_a_key_is_redacted(text, expected):
    assert Redaction()(text) == expected


@pytest.mark.parametrize(
    "name", ["ANTHROPIC_API_KEY", "my_apikey", "HF_TOKEN", "DB_PASSWORD", "SOME_SECRET", "AWS_CREDENTIALS"]
)
def test_secrets_of_the_environment_are_redacted_whatever_they_look_like(environment, name):
    environment.setenv(name, "open sesame 99")

    assert Redaction()("it said: open sesame 99!") == "it said: [redacted]!"


def test_a_secret_is_redacted_as_it_was_sent_without_the_blanks_around_it(environment):
    environment.setenv("OPENAI_API_KEY", "plain-key-99\n")

    assert Redaction()("you sent plain-key-99 to us") == "you sent [redacted] to us"


def test_a_key_out_of_a_variable_of_any_name_is_redacted(environment):
    environment.setenv("MY_ENGINE", "plain-key-77")
    key_for("http://127.0.0.1:1", "openai", "MY_ENGINE")

    assert Redaction()("you sent plain-key-77 to us") == "you sent [redacted] to us"


def test_short_values_and_other_variables_stay(environment):
    environment.setenv("HF_TOKEN", "abc")
    environment.setenv("EDITOR", "a-long-editor-name")

    assert Redaction()("abc a-long-editor-name") == "abc a-long-editor-name"


def test_a_secret_is_found_in_any_case(environment):
    environment.setenv("MY_TOKEN", KEY)

    assert Redaction()(f"x-{KEY.lower()}: {KEY.upper()}") == f"x-{MARK}: {MARK}"


def test_of_two_secrets_the_longer_is_replaced_whole(environment):
    environment.setenv("A_TOKEN", KEY)
    environment.setenv("B_TOKEN", f"{KEY}-and-more")

    assert Redaction()(f"{KEY}-and-more {KEY}") == f"{MARK} {MARK}"


def test_a_text_that_was_cut_within_a_secret_keeps_nothing_of_it(environment):
    environment.setenv("MY_TOKEN", KEY)
    texts = {cut: Redaction()("x" * 50 + KEY[:cut]) for cut in range(1, len(KEY) + 1)}

    assert all(
        text == "x" * 50 + (KEY[:cut] if cut < redaction.MIN_BEGINNING else MARK)
        for cut, text in texts.items()
    )


def test_a_secret_that_repeats_itself_is_found_at_the_end_too(environment):
    environment.setenv("MY_TOKEN", "abcdefabcdefX-and-on")

    assert Redaction()("said abcdefabcdefabcdefX") == f"said abcdef{MARK}"
    assert Redaction()("said abcdefabcdefY") == "said abcdefabcdefY"


@given(st.text(max_size=40), st.text(max_size=40))
def test_no_text_raises_and_none_keeps_a_secret(before, after):
    clean = Redaction.__new__(Redaction)
    os.environ["HYPOTHESIS_TOKEN"] = KEY
    try:
        clean.__init__()
    finally:
        del os.environ["HYPOTHESIS_TOKEN"]

    assert KEY not in clean(f"{before}{KEY}{after}")


def test_what_was_made_before_knows_what_was_there_then(environment):
    environment.setenv("MY_TOKEN", KEY)
    clean = Redaction()
    environment.delenv("MY_TOKEN")

    assert (clean(KEY), Redaction()(KEY)) == (MARK, KEY)


@given(
    st.lists(
        st.sampled_from(["", "end_turn", KEY, KEY[:9], f"x{KEY}", "y" * 100 + KEY[:12], "z" * 300]),
        max_size=6,
    )
)
def test_many_texts_are_cleaned_as_each_of_them(texts):
    os.environ["HYPOTHESIS_TOKEN"] = KEY
    try:
        clean = Redaction()
    finally:
        del os.environ["HYPOTHESIS_TOKEN"]
    cleaned = clean.each(texts)

    assert len(cleaned) == len(texts)
    assert not any(KEY in text for text in cleaned)
    for text, after in zip(texts, cleaned, strict=True):
        assert after == clean(text) or (after == text and len(text) < redaction.WHOLE), (
            "only what may have been cut is looked at"
        )


# --- children ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "expected"),
    [("ANTHROPIC_API_KEY", True), ("ANTHROPIC_AUTH_TOKEN", True), ("ANTHROPIC_CUSTOM_HEADERS", True), ("OPENAI_ADMIN_KEY", True),
     ("TAILGAUGE_TOKEN", True), ("SSH_KEY", True), ("KEY", True), ("AWS_SECRET_ACCESS_KEY", True), ("HF_TOKEN", True),
     ("XKEYSYMDB", False), ("KEYBOARD_LAYOUT", False), ("PATH", False), ("PYTHONPATH", False), ("TAILGAUGE_FULL", False)],
)  # fmt: skip
def test_a_variable_with_a_secret_is_known_by_its_name(name, expected):
    assert holds_secret(name) == expected


def test_only_a_child_that_sends_requests_gets_secrets(environment):
    for name in ("HF_TOKEN", "TAILGAUGE_TOKEN", "MY_ENGINE", "ORDINARY"):
        environment.setenv(name, KEY)
    key_for("http://127.0.0.1:1", "openai", "MY_ENGINE")

    assert {name for name, value in childs_environment(with_keys=False).items() if value == KEY} == {
        "ORDINARY"
    }
    assert {name for name, value in childs_environment(with_keys=True).items() if value == KEY} == {
        "HF_TOKEN", "TAILGAUGE_TOKEN", "MY_ENGINE", "ORDINARY",
    }  # fmt: skip
