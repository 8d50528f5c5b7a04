"""Secrets: which variables hold one, and that none of them is ever written down."""

from __future__ import annotations

import ast
import os
import timeit
from collections.abc import Callable
from pathlib import Path
from random import Random
from string import ascii_letters, digits
from time import process_time
from urllib.parse import quote
from uuid import UUID

import pytest
from end_to_end.echoes import FORMS, kept
from hypothesis import given
from hypothesis import strategies as st

from tailgauge import redaction
from tailgauge.protocols.api_keys import key_for
from tailgauge.redaction import MARK, Redaction, holds_secret, name_secret, shown
from tailgauge.redaction import environment as childs_environment

KEY = "Zz9-canary-of-thirty-characters"


@pytest.fixture(autouse=True)
def environment(monkeypatch):
    """Only the secrets that a test sets."""
    for name in list(os.environ):
        if holds_secret(name):
            monkeypatch.delenv(name)
    monkeypatch.setattr(redaction, "_named", set())
    redaction.forget()
    yield monkeypatch
    redaction.forget()


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


def test_a_secret_of_words_is_removed_whole_and_its_words_stay(environment):
    environment.setenv("MY_TOKEN", "anthropic-local-development-key")

    assert (
        Redaction()("anthropic-ratelimit; anthropic-local-development-key")
        == f"anthropic-ratelimit; {MARK}"
    )
    assert Redaction()("YW50aHJvcGljLWxvY2FsLWRldmVsb3BtZW50LWtleQ==") == f"{MARK}Q=="


def test_a_secret_that_is_no_text_does_no_harm(environment):
    os.environb[b"MY_TOKEN"] = b"\xff1234567 \xfe"
    environment.setenv("MY_OTHER_TOKEN", "p\u00e4ssw\u00f6rd-7")

    assert (
        Redaction()("it was P\u00c4SSW\u00d6RD-7 or " + quote("p\u00e4ssw\u00f6rd-7"))
        == f"it was {MARK} or {MARK}"
    )
    del os.environb[b"MY_TOKEN"]


def test_a_path_in_a_variable_of_that_name_stays_in_other_paths(environment):
    environment.setenv("GOOGLE_CREDENTIALS", "/srv/load1/keys.json")

    assert Redaction()("/srv/load1/x.py and /srv/load1/keys.json") == f"/srv/load1/x.py and {MARK}"


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


# --- how a target may repeat a key --------------------------------------------------------------------------------


def letters(length: int, alphabet: str) -> str:
    return "".join(Random(length).choices(alphabet, k=length))


KEYS = {
    "like base64": "7" + letters(42, ascii_letters + digits + "-_.+/="),
    "of 16 characters": letters(16, ascii_letters + digits) + "",
    "a path": "/" + letters(19, ascii_letters + digits) + "/" + letters(19, ascii_letters + digits),
    "behind ~": "~" + letters(39, ascii_letters),
    "behind .": "." + letters(39, ascii_letters + digits),
    "letters": letters(40, ascii_letters),
    "capitals": letters(32, ascii_letters[26:]),
    "digits": letters(40, digits),
    "hex": letters(64, "0123456789abcdef"),
    "UUID": str(UUID(int=Random(7).getrandbits(128))),
    "long": letters(108, ascii_letters + digits + "_-"),
}


@pytest.mark.parametrize("key", KEYS.values(), ids=KEYS)
@pytest.mark.parametrize("form", FORMS.values(), ids=FORMS)
def test_no_8_characters_of_a_key_are_left_whatever_its_form_and_look(environment, form, key):
    environment.setenv("MY_TOKEN", key)
    clean, text = Redaction().of_peer, f'{{"error": "No: \\"{form(key)}\\" & so on, 100% sure"}}'

    assert kept(key, text), "it can be read there"
    assert kept(key, clean(text)) == []
    assert clean(text).startswith('{"error": "No: ')
    assert clean(text).endswith('100% sure"}')
    for cut in range(0, len(text), 31):
        assert kept(key, clean(text[:cut])) == []


@pytest.mark.parametrize("letter", "bfnrt")
def test_controls_that_json_writes_as_letters_hide_no_key(environment, letter):
    """`\\n` between the characters of a key is a line's end, not an n of the key."""
    key = "Xk29fLq8ZtPw3mVbRj7Hn4"
    environment.setenv("MY_TOKEN", key)
    parts = f"\\{letter}".join(key)

    assert Redaction().of_peer(f"no: {parts}.") == f"no: {MARK}."


WORDY = {
    "local-streaming-key": "streaming is off; the local streaming_mode stays",
    "anthropic-staging-service-0001": "anthropic-ratelimit; the service of staging",
    "Production_Endpoint_Token_42": "the production endpoint has no token_42s",
    "my-completions-cache": "completions come out of a cache",
}


@pytest.mark.parametrize(("key", "text"), WORDY.items())
def test_the_words_of_a_key_stay_and_the_key_goes(environment, key, text):
    environment.setenv("MY_TOKEN", key)

    for clean in (Redaction(), Redaction().of_peer):
        assert clean(text) == text
        assert clean(f"sent {key}, and {key.upper()}") == f"sent {MARK}, and {MARK}"


def test_what_stands_between_the_words_of_a_key_goes_alone_too(environment):
    environment.setenv("MY_TOKEN", "my-service-token-8f3a9c2b7d1e-local")

    for clean in (Redaction(), Redaction().of_peer):
        assert clean("the service has 8f3a9c2b7d1e, local") == f"the service has {MARK}, local"


OURS = {
    "1700000000000000": "started at 1700000000000123",
    "/srv/load1/k7x9q2": "/srv/load1/x.py",
    "qwrtzpsdfghjklmn": "qwrtzpsdf stays",
}


@pytest.mark.parametrize(("key", "text"), OURS.items())
def test_in_texts_of_ours_only_the_whole_of_such_a_key_goes(environment, key, text):
    environment.setenv("MY_TOKEN", key)

    assert Redaction()(text) == text
    assert Redaction()(f"sent {key}.") == f"sent {MARK}."
    assert kept(key, Redaction().of_peer(f"sent {text}.")) == []


HARMLESS = ("The model `tiny` is overloaded: 100% of 20\\u0020requests &amp; more", "\xff\ufffd &#169; \\ud83d %zz &; \\",
            "req_0123456789abcdef0123456789abcdef", '{"type":"error","error":{"message":"say \\"no\\""}}')  # fmt: skip


@pytest.mark.alone
def test_the_cost_grows_with_the_length_of_a_text_whatever_is_in_it(environment):
    """Eight times the text takes eight times as long, and not 64 times, as a search that goes back and forth would."""
    environment.setenv("MY_TOKEN", KEY)
    clean = Redaction()
    parts = ["\\", "\\u", '\\"', "%", "%25", "%41", "&", "&amp;", "&#65;", "&#6", "\0", "\xad", "Bearer ", "sk-", KEY[:4], f"{KEY[:7]} "]  # fmt: skip

    def took(part: str, length: int) -> float:
        text = (part * length)[:length]
        return min(timeit.repeat(lambda: clean(text), timer=process_time, number=1, repeat=7))

    ratios = {part: took(part, 16_000) / took(part, 2000) for part in parts}

    assert {part: ratio for part, ratio in ratios.items() if ratio > 32} == {}


@pytest.mark.parametrize("text", HARMLESS)
def test_what_holds_no_key_stays_as_it_is(environment, text):
    environment.setenv("MY_TOKEN", KEY)

    assert shown(text, 1000) == text


def test_a_peers_text_is_redacted_before_it_is_cut_and_can_be_written(environment):
    environment.setenv("MY_TOKEN", KEY)
    text = "x" * 15 + KEY + "\ud800 and on"

    assert shown(text, 20) == "x" * 15 + MARK[:5]
    assert shown(text.encode("utf-8", "surrogatepass"), 40).startswith("x" * 15 + MARK)
    assert shown(text, 100) == "x" * 15 + MARK + "? and on"
    assert len(shown("y" * 10**7, 5)) == 5


def test_a_variable_that_is_named_later_is_known_from_then_on(environment):
    environment.setenv("MY_ENGINE", KEY)
    before = shown(KEY, 100)
    name_secret("MY_ENGINE")

    assert (before, shown(KEY, 100)) == (KEY, MARK)


@pytest.mark.alone
def test_a_usual_text_costs_about_a_hash(environment):
    """What comes again is not searched again; what is new costs less than ten times as much as to encode it."""
    for number in range(4):
        environment.setenv(f"MY_TOKEN_{number}", f"{number}{KEY}{number * 10**20}")
    text = (
        "the model is overloaded, please retry later with a lower rate of tokens per minute; " * 4
    )
    clean = Redaction()

    def least(work: Callable[[], object]) -> float:
        return min(timeit.repeat(work, timer=process_time, number=200, repeat=7))

    again, new = least(lambda: shown(text, 200)), least(lambda: clean(text))
    loop = least(lambda: [one for one in text])  # noqa: C416 - a loop over its characters

    assert again < new / 5
    assert new < 3 * loop


# What turns a peer's bytes into text without `shown`, and why that is no way into a row or a message.
WITHOUT = {
    "worker/outcome.py": {
        "_text",
        "header",
        "limit_headers",
        "retry_after",
    },  # shown where they become rows; a number
    "protocols/decoder.py": {"named_error"},  # `fail` shows it
    "worker/attempt_row.py": {
        "_fill_redirect",
        "_phases",
    },  # shown there; `_durations` shows the names
    "protocols/anthropic.py": {"on_event"},  # the name of an event, compared
    "worker/attempts.py": {"_end_event"},  # where a job is: goes into the next call only
    "protocols/event_ids.py": {"id_of"},  # goes into the next call only, if a header can carry it
    "protocols/target.py": {"address"},  # the bytes of a request of ours
    "worker/raw_redaction.py": {"redact"},  # it is searched for secrets, and becomes bytes again
    "protocols/custom_sse.py": {"_text"},  # content, or a phase, which the decoder shows
}


def test_a_peers_bytes_become_text_in_one_way():
    """Strict decoding (of JSON, of a stencil's text) has no arguments; what is for people has: it goes through `shown`."""
    root = Path(redaction.__file__).parent
    found: dict[str, set[str]] = {}
    for path in sorted(
        path
        for folder in ("transport", "protocols", "worker")
        for path in (root / folder).glob("*.py")
    ):
        functions = [
            node
            for node in ast.walk(ast.parse(path.read_text()))
            if isinstance(node, ast.FunctionDef)
        ]
        for function in functions:
            for node in ast.walk(function):
                is_decode = (
                    isinstance(node, ast.Call)
                    and isinstance(node.func, ast.Attribute)
                    and node.func.attr == "decode"
                )
                if is_decode and node.args:
                    found.setdefault(str(path.relative_to(root)), set()).add(function.name)

    assert found == WITHOUT


def test_what_is_no_http_is_formatted_in_one_place():
    """The text of a WireError holds numbers and names of ours; what a peer sent is an argument."""
    tree = ast.parse((Path(redaction.__file__).parent / "transport/http1.py").read_text())
    calls = [
        node
        for node in ast.walk(tree)
        if isinstance(node, ast.Call) and ast.unparse(node.func) == "WireError"
    ]
    formatted = {
        ast.unparse(part.value)
        for call in calls
        for part in ast.walk(call.args[0])
        if isinstance(part, ast.FormattedValue)
    }

    assert len(calls) > 8
    assert formatted <= {
        "status",
        "len(line)",
        "len(lines)",
        "MAX_LINES",
        "others",
        "MAX_HEAD",
        "MAX_INTERIM",
    }


# --- children ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "expected"),
    [("ANTHROPIC_API_KEY", True), ("ANTHROPIC_AUTH_TOKEN", True), ("ANTHROPIC_CUSTOM_HEADERS", True), ("OPENAI_ADMIN_KEY", True),
     ("TAILGAUGE_TOKEN", True), ("SSH_KEY", True), ("KEY", True), ("AWS_SECRET_ACCESS_KEY", True), ("HF_TOKEN", True),
     ("my_apikey", True), ("DB_PASSWORD", True), ("SOME_SECRET", True), ("AWS_CREDENTIALS", True), ("XKEYSYMDB", False), ("KEYBOARD_LAYOUT", False), ("PATH", False), ("PYTHONPATH", False), ("TAILGAUGE_FULL", False)],
)  # fmt: skip
def test_a_variable_with_a_secret_is_known_by_its_name(name, expected):
    assert holds_secret(name) == expected


def test_only_a_child_that_sends_requests_gets_secrets(environment):
    for name in ("HF_TOKEN", "TAILGAUGE_TOKEN", "MY_ENGINE", "ORDINARY"):
        environment.setenv(name, KEY)
    key_for("http://127.0.0.1:1", "openai", "MY_ENGINE")

    assert {
        name for name, value in childs_environment(with_keys=False).items() if value == KEY
    } == {"ORDINARY"}
    assert {name for name, value in childs_environment(with_keys=True).items() if value == KEY} == {
        "HF_TOKEN", "TAILGAUGE_TOKEN", "MY_ENGINE", "ORDINARY",
    }  # fmt: skip
