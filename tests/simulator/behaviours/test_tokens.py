"""One token is four UTF-8 bytes."""

import json

import pytest

from tailgauge.simulator.behaviours.tokens import count, text


@pytest.mark.parametrize(
    ("block", "tokens"),
    [("", 0), ("a", 1), ("abcd", 1), ("abcde", 2), ("é" * 4, 2), ("😀", 1), ("\ud800", 1)],
)
def test_a_block_is_counted_in_utf8_and_rounded_up(block, tokens):
    assert count(block) == tokens


@pytest.mark.parametrize("tokens", [1, 7, 63, 64, 65, 1000])
def test_the_answer_has_the_tokens_asked_for_and_needs_no_escapes(tokens):
    content = text(tokens).decode()
    assert count(content) == tokens
    assert json.dumps(content) == f'"{content}"'
