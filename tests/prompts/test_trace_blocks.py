"""Prompts of a trace with blocks of any size: as long as the trace has them, and shared as the trace shares them."""

import pytest

from tailgauge.patterns.table import Traffic
from tailgauge.prompts import Maker
from tailgauge.schedule.schedule import Planned


def words_of(maker, tokens, blocks, block_tokens, request=0):
    source = {"blocks": blocks, "block_tokens": block_tokens}
    (prompt,) = maker.make(Planned(request << 16, 0, "main", tokens, 10, 1, source))
    return prompt.messages[-1].parts[-1].text.split(" ")


@pytest.mark.parametrize("words_per_token", [1.0, 0.77, 0.04])
@pytest.mark.parametrize("block_tokens", [1, 16, 64, 512])
def test_a_prompt_is_as_long_as_in_the_trace_however_small_its_blocks_are(
    block_tokens, words_per_token
):
    maker = Maker(1, Traffic(), "main", words_per_token=words_per_token)
    for tokens in (1, 15, 16, 17, 100, 1000, 4099):
        blocks = list(range(-(-tokens // block_tokens)))
        words = words_of(maker, tokens, blocks, block_tokens)

        assert len(words) == max(1, round(tokens * words_per_token))
        assert "" not in words


@pytest.mark.parametrize("words_per_token", [1.0, 0.77])
def test_two_turns_share_the_words_of_their_common_blocks(words_per_token):
    maker = Maker(1, Traffic(), "main", words_per_token=words_per_token)
    first = words_of(maker, 100, [1, 2, 3, 4, 5, 6, 7], 16)
    second = words_of(maker, 170, [1, 2, 3, 4, 5, 6, 8, 9, 10, 11, 12], 16, request=1)
    shared = round(6 * 16 * words_per_token)

    assert first[:shared] == second[:shared]
    assert first[shared:] != second[shared : len(first)]


def test_a_prompt_that_is_longer_than_its_blocks_ends_in_words_of_its_own():
    maker = Maker(1, Traffic(), "main")
    first = words_of(maker, 50, [1, 2], 16)
    second = words_of(maker, 50, [1, 2], 16, request=1)

    assert len(first) == 50
    assert first[:32] == second[:32]
    assert first[32:] != second[32:]
