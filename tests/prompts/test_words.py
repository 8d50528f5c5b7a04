"""Seeded words: the same for the same use wherever they are made, and alike for no two."""

from itertools import pairwise, takewhile

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tailgauge.prompts.words import WORDS, salt, text
from tailgauge.rows.schema import TURNS


def test_a_text_is_the_same_in_every_version():
    """Runs of two versions are compared: these words may change only with a note in the changelog."""
    assert text(1, "0", 5) == "museum hammer county native handle"
    assert salt(1, "0") == "baiegihelchj"


def test_texts_of_different_requests_share_no_beginning_that_a_cache_could_use():
    """Engines cache blocks of 16 tokens and more; here even the third word hardly ever agrees."""
    texts = sorted(text(1, str(i * TURNS), 100) for i in range(2000))
    shared = [
        len(
            list(takewhile(lambda pair: pair[0] == pair[1], zip(a.split(), b.split(), strict=True)))
        )
        for a, b in pairwise(texts)
    ]

    assert max(shared) <= 4


@given(st.integers(0, 2**63 - 1), st.text(max_size=9), st.integers(1, 60), st.integers(1, 60))
def test_a_shorter_text_of_the_same_use_is_not_another_text(seed, use, one, other):
    shorter, longer = sorted((one, other))

    assert text(seed, use, longer).startswith(text(seed, use, shorter))


@pytest.mark.parametrize("count", [1, 2, 200, 5000])
def test_a_text_has_as_many_words_as_were_asked_for(count):
    assert len(text(1, "7", count).split(" ")) == count


def test_words_are_short_plain_and_different():
    """Four to eight lower-case letters are about one token each for the usual vocabularies."""
    assert len(set(WORDS)) == len(WORDS)
    assert all(
        word.isascii() and word.isalpha() and word.islower() and 4 <= len(word) <= 8
        for word in WORDS
    )


def test_two_requests_with_neighbouring_seeds_and_numbers_do_not_coincide():
    """`1/23` and `12/3` must not be the same seed of the generator."""
    assert text(1, "23", 20) != text(12, "3", 20)


def test_salts_are_twelve_letters_that_do_for_a_tool_name_and_no_two_are_alike():
    salts = [salt(seed, str(use)) for seed in range(3) for use in range(1000)]

    assert len(set(salts)) == len(salts)
    assert all(len(one) == 12 and one.isascii() and one.isalpha() for one in salts)
