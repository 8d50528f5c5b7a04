"""Messages on Locust's channel: a slow handler delays nobody, and the clock's answer waits for nobody."""

from __future__ import annotations

import re

import pytest


@pytest.fixture(scope="module")
def seen(run_script):
    return run_script("channel/scripts/messages.py")


def test_only_the_clocks_messages_are_handled_at_once(seen):
    assert seen["at_once"] == [["w1", "ping"], ["w1", "pong"]]
    assert seen["later"] == [["w1", "slice"], ["w1", "tally"]]


def test_messages_carry_our_prefix_and_their_addressee(seen):
    assert seen["sent"] == [
        ["tailgauge:plan", {"a": 1}, "w1"],
        ["tailgauge:hello", {"b": 2}, None],
    ]
    assert all(kind.startswith("tailgauge:") for kind in seen["kinds"])


def test_what_has_no_mark_of_the_token_reaches_no_handler_and_is_reported(seen):
    """Bare, empty, another token's, another kind's, another worker's."""
    assert seen["dropped"] == ["messages without a valid mark of the run's token were dropped: 5"]
    assert seen["after"] == 0


def test_what_its_receiver_would_refuse_is_not_sent(seen):
    text, sent = seen["too_large"]
    assert re.fullmatch(
        r"a message 'plan' has 67,1\d\d,\d\d\d bytes: expected at most 67,107,840", text
    )
    assert sent == 1
