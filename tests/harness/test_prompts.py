"""Prompts: the same for the same request wherever it is made, and alike for no two."""

from __future__ import annotations

from itertools import pairwise, takewhile

import pytest

from tailgauge.prompts import WORDS, prompt
from tailgauge.records import TURNS


def test_a_prompt_depends_on_seed_and_request_only():
    first = prompt(1, 5 * TURNS, 40)
    prompt(1, 6 * TURNS, 40)  # what is made between changes nothing

    assert first == prompt(1, 5 * TURNS, 40)
    assert first != prompt(2, 5 * TURNS, 40)
    assert first != prompt(1, 6 * TURNS, 40)


def test_a_prompt_is_the_same_in_every_version():
    """Runs of two versions are compared: these words may change only with a note in the changelog."""
    assert prompt(1, 0, 5) == "option camera county couple figure"


def test_prompts_of_different_requests_share_no_prefix_that_a_cache_could_use():
    """Engines cache blocks of 16 tokens and more; here even the third word hardly ever agrees."""
    texts = sorted(prompt(1, i * TURNS, 100) for i in range(2000))
    shared = [
        len(list(takewhile(lambda pair: pair[0] == pair[1], zip(a.split(), b.split(), strict=True))))
        for a, b in pairwise(texts)
    ]

    assert max(shared) <= 4


def test_a_shorter_prompt_of_the_same_request_is_not_another_text():
    assert prompt(1, 0, 50).startswith(prompt(1, 0, 20))


@pytest.mark.parametrize("tokens", [1, 2, 200, 5000])
def test_a_prompt_has_as_many_words_as_tokens_were_asked_for(tokens):
    assert len(prompt(1, 7 * TURNS, tokens).split(" ")) == tokens


def test_words_are_short_plain_and_different():
    """Four to eight lower-case letters are about one token each for the usual vocabularies."""
    assert len(set(WORDS)) == len(WORDS)
    assert all(word.isascii() and word.isalpha() and word.islower() and 4 <= len(word) <= 8 for word in WORDS)


def test_two_requests_with_neighbouring_seeds_and_numbers_do_not_coincide():
    """`1/23` and `12/3` must not be the same seed of the generator."""
    assert prompt(1, 23, 20) != prompt(12, 3, 20)
