"""Prompts as the harness makes them against the simulated prefix cache: hit shares, races, and four mistakes, in usage.

Rule: every call goes the whole way, maker, request body, cache, on a clock of its own; and the book of the worker that
sent it must have known what would happen.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from math import exp

import numpy as np
import pytest

from tailgauge.call import Call, Prompt
from tailgauge.patterns.settings import ALL_MARKS, NO_MARKS
from tailgauge.patterns.table import Traffic
from tailgauge.prompts import Maker
from tailgauge.protocols import anthropic, openai
from tailgauge.rows.schema import COLD, TURNS, UNKNOWN, WARM
from tailgauge.scenario.simulated import CacheTable
from tailgauge.schedule.schedule import Planned
from tailgauge.simulator.behaviours import tokens
from tailgauge.simulator.behaviours.prefix_cache import (
    BELOW_MINIMUM,
    EXPIRED,
    HIT,
    RACE,
    Lookup,
    PrefixCache,
)
from tailgauge.simulator.protocols.prefix import block_prompt, marked_prompt
from tailgauge.worker.cache_tracker import CacheBook, CacheNote

S = 1_000_000_000
TTL_S = 300.0
FULL = {"tools": 2, "tools_tokens": 200, "system_tokens": 300, "few_shot": 2, "few_shot_tokens": 40}
PLAIN = {"system_tokens": 300}
QUESTION = 30


class Target:
    """The simulated cache and one worker that is alone with it."""

    def __init__(self, **settings):
        chosen = CacheTable(
            **{"mode": "marked", "minimum_tokens": 0, "ttl_5m_s": TTL_S, **settings}
        )
        self.cache, self.mode = PrefixCache(chosen, 0), chosen.mode
        self.book = CacheBook(is_alone=True, ttl_s={"5m": chosen.ttl_5m_s, "1h": chosen.ttl_1h_s})
        self.count = 0

    def takes(self, prompt: Prompt, now_ns: int) -> tuple[Lookup, CacheNote]:
        """A call arrives."""
        call = Call(prompt, 10)
        if self.mode == "automatic":
            seen = block_prompt({"model": "m", "messages": openai._messages(prompt)}, 16)
        else:
            seen = marked_prompt(anthropic.message_body(call, prompt, "m"))
        self.count += 1
        note = self.book.sent(call, (self.count, 0, 0), now_ns)
        assert note is not None
        return self.cache.lookup(seen, now_ns), note

    def begins(self, number, found, now_ns):
        """The answer to the call of that number begins."""
        self.cache.begin(found, now_ns)
        self.book.begun((number, 0, 0), now_ns)

    def answers(self, prompt: Prompt, now_ns: int) -> tuple[Lookup, CacheNote]:
        """A call arrives and its answer begins at once."""
        found, note = self.takes(prompt, now_ns)
        self.begins(self.count, found, now_ns)
        return found, note


def maker(cache, pattern="cached", *, marks=ALL_MARKS, **more):
    return Maker(
        1, Traffic.model_validate({"pattern": pattern, "cache": cache, **more}), "main", marks=marks
    )


def requests(of: Maker, count: int, size: int = QUESTION) -> Iterable[Prompt]:
    return (of.make(Planned(i * TURNS, 0, "main", size, 10))[0] for i in range(count))


def calls(cache, count, every_s, **settings):
    """So many requests at equal gaps."""
    target = Target(**settings)
    return [
        target.answers(prompt, round(i * every_s * S))
        for i, prompt in enumerate(requests(maker(cache), count))
    ]


def usage(found: Sequence[tuple[Lookup, CacheNote]]) -> list[tuple[int, int, int]]:
    """Input, creation and read tokens, as the API counts them."""
    return [(one.input_tokens, one.cache_creation, one.cache_read) for one, _ in found]


def expected(found: Sequence[tuple[Lookup, CacheNote]]) -> list[str]:
    return [note.cache_expected for _, note in found]


def sizes(cache: dict) -> tuple[int, int]:
    """Tokens of the stable prefix up to its last mark, and of the first request's question, counted apart."""
    prompt = next(iter(requests(maker(cache), 1)))
    marked = marked_prompt(anthropic.message_body(Call(prompt, 10), prompt, "m"))
    prefix = marked.positions[marked.breakpoints[-1].position].tokens
    return prefix, tokens.count(prompt.messages[-1].parts[0].text)


class TestUsage:
    """What the API documents: creation at a mark, reads of what was written, the remainder as input."""

    def test_the_first_call_writes_the_prefix_and_the_others_read_it(self):
        prefix, question = sizes({**FULL, "few_shot": 0})
        found = calls({**FULL, "few_shot": 0}, 5, every_s=1)

        assert usage(found)[0] == (question, prefix, 0)
        assert [(creation, read) for _, creation, read in usage(found)[1:]] == [(0, prefix)] * 4
        assert expected(found) == [COLD, WARM, WARM, WARM, WARM]

    def test_an_hour_is_written_as_an_hour(self):
        cache = {**FULL, "ttl": "1h", "breakpoints": ("tools", "system", "few_shot")}
        first = calls(cache, 1, every_s=1)[0][0]

        assert (first.creation_5m, first.creation_1h) == (0, sizes(cache)[0])

    @pytest.mark.parametrize("gap", [TTL_S - 1, TTL_S + 1])
    def test_sparse_traffic_writes_each_time_once_its_gaps_are_longer_than_the_life(self, gap):
        cache = {**FULL, "few_shot": 0}
        prefix, _ = sizes(cache)
        found = calls(cache, 6, every_s=gap)

        later = (0, prefix, HIT, WARM) if gap < TTL_S else (prefix, 0, EXPIRED, COLD)
        assert [
            (one.cache_creation, one.cache_read, one.reason, note.cache_expected)
            for one, note in found[1:]
        ] == [later] * 5
        assert usage(found)[0][1:] == (prefix, 0)
        assert {note.cache_since_use_ns for _, note in found[1:]} == {round(gap * S)}

    @pytest.mark.parametrize("places", [("system",), ("tools", "system", "few_shot")])
    def test_a_volatile_byte_in_front_makes_every_call_write_and_none_read(self, places):
        found = calls({**FULL, "breakpoints": places, "volatile": "front"}, 6, every_s=1)

        assert all(creation > 500 and read == 0 for _, creation, read in usage(found))
        assert expected(found) == [COLD] * 6
        assert {note.first_difference for _, note in found[1:]} <= {0, 1}
        assert len({note.prefix_hash for _, note in found}) == 6

    def test_volatile_text_within_the_marked_part_is_written_each_time(self):
        found = calls({**FULL, "breakpoints": ("system",), "volatile": "marked"}, 6, every_s=1)

        stable, _ = sizes({**FULL, "breakpoints": ("system",)})
        assert all(creation > stable and read == 0 for _, creation, read in usage(found))
        assert expected(found) == [COLD] * 6
        assert all(note.first_difference and note.first_difference > 1000 for _, note in found[1:])

    def test_only_an_earlier_mark_is_read_where_the_later_part_changes(self):
        tools, _ = sizes({**FULL, "breakpoints": ("tools",)})
        found = calls(
            {**FULL, "breakpoints": ("tools", "system"), "volatile": "marked"}, 6, every_s=1
        )

        assert usage(found)[0][2] == 0
        assert all(creation > 300 and read == tools for _, creation, read in usage(found)[1:])
        assert expected(found) == [COLD] + [WARM] * 5
        assert [note.cache_blocks for _, note in found] == [None] + [0] * 5

    def test_a_prefix_below_the_minimum_is_neither_written_nor_read_and_no_error(self):
        prefix, question = sizes(PLAIN)
        found = calls(PLAIN, 4, every_s=1, minimum_tokens=prefix + 1)

        assert [(creation, read) for _, creation, read in usage(found)] == [(0, 0)] * 4
        assert usage(found)[0][0] == prefix + question
        assert {one.reason for one, _ in found} == {BELOW_MINIMUM}
        assert {note.cache_marks for _, note in found} == {1}

    def test_a_prefix_of_just_the_minimum_is_cached(self):
        found = calls(PLAIN, 2, every_s=1, minimum_tokens=sizes(PLAIN)[0])

        assert [read > 0 for _, _, read in usage(found)] == [False, True]

    def test_cold_prompts_read_nothing(self):
        found = calls(
            {**FULL, "breakpoints": ("tools", "system", "few_shot", "last"), "cold": True},
            6,
            every_s=1,
        )

        assert all(read == 0 and creation > 500 for _, creation, read in usage(found))
        assert expected(found) == [COLD] * 6

    def test_each_turn_of_a_conversation_reads_all_that_the_turn_before_had(self):
        of = maker({**FULL, "breakpoints": ("system", "last")}, session={"turns_mean": 5})
        target, history, found = Target(), (), []
        for turn in range(
            12
        ):  # 24 blocks: the start is beyond the lookback, the turn before never is
            prompt = of.make(Planned(0, 0, "main", QUESTION, 10, turns=12), turn, history)[0]
            found.append(target.answers(prompt, turn * S))
            history = (*history, (prompt.messages[-1].parts[0].text, f"answer {turn}"))

        before = [creation + read for _, creation, read in usage(found)[:-1]]
        assert [read for _, _, read in usage(found)[1:]] == before
        assert {rest for rest, _, _ in usage(found)} == {0}
        assert expected(found) == [COLD] + [WARM] * 11
        assert {note.cache_blocks for _, note in found[1:]} == {2}

    def test_an_engine_that_caches_by_itself_reads_the_whole_blocks_that_are_shared(self):
        target, of = Target(mode="automatic"), maker({**PLAIN, "breakpoints": ()}, marks=NO_MARKS)
        prefix = tokens.count(next(iter(requests(of, 1))).system[0].text)
        found = [target.answers(prompt, i * S) for i, prompt in enumerate(requests(of, 5))]

        assert [creation for _, creation, _ in usage(found)] == [0] * 5
        assert usage(found)[0][2] == 0
        # Up to a block more: two questions may begin with the same word.
        assert all(
            prefix // 16 * 16 <= read <= prefix // 16 * 16 + 16 for _, _, read in usage(found)[1:]
        )
        assert expected(found) == [COLD] + [WARM] * 4


@pytest.fixture(scope="module")
def size(full_size):
    """Calls, and the tolerance of a hit share: four standard errors or more of either size."""
    return (400_000, 0.003) if full_size else (6_000, 0.03)


@pytest.mark.parametrize(
    ("load", "delay", "sliding"),
    [(1.0, 0.0, True), (3.0, 0.0, True), (1.0, 0.0, False), (2.0, 0.5, True)],
    ids=["sliding", "busy", "fixed", "race"],
)
def test_row_16_hit_shares_of_poisson_calls(load, delay, sliding, size):
    """`load` calls a life; `delay` in lives until what was written can be read."""
    count, tolerance = size
    target = Target(visibility_delay_s=delay * TTL_S, sliding=sliding)
    gaps = np.random.Generator(np.random.Philox(16)).exponential(TTL_S / load * S, count)
    hits = known = 0
    of = maker({"system_tokens": 1})
    for now, prompt in zip(
        np.cumsum(gaps).astype(np.int64).tolist(), requests(of, count, 1), strict=True
    ):
        found, note = target.answers(prompt, now)
        hits += found.cache_read > 0
        known += (found.cache_read > 0) == (note.cache_expected == WARM)

    missing = exp(-load)
    exact = (1 - missing) / (1 + missing * load * delay) if sliding else load / (1 + load)
    assert hits / count == pytest.approx(exact, abs=tolerance)
    if sliding and not delay:
        assert known == count  # the book knew it of every call


@pytest.mark.parametrize("legs", [1, 2, 20])
class TestRow18:
    """The legs of a fan-out over a prefix that nobody has written yet."""

    def legs(self, legs: int, index: int = 0) -> tuple[Prompt, ...]:
        return maker(PLAIN, "fan_out", fan_out={"legs": legs}).make(
            Planned(index * TURNS, 0, "main", 9, 9)
        )

    def test_sent_at_once_each_of_them_writes_and_none_reads(self, legs):
        prefix, target = sizes(PLAIN)[0], Target()
        found = [target.takes(prompt, 0) for prompt in self.legs(legs)]
        for number, (one, _) in enumerate(found, 1):
            target.begins(number, one, S + number)
        after = [target.answers(prompt, 2 * S) for prompt in self.legs(legs, index=1)]

        assert [row[1:] for row in usage(found)] == [(prefix, 0)] * legs
        assert [one.reason for one, _ in found] == ["cold"] + [RACE] * (legs - 1)
        assert [(note.cache_expected, note.cache_writers) for _, note in found] == [
            (UNKNOWN if i else COLD, i) for i in range(legs)
        ]
        assert [row[1:] for row in usage(after)] == [(0, prefix)] * legs
        assert expected(after) == [WARM] * legs

    def test_one_after_the_other_only_the_first_writes(self, legs):
        prefix, target = sizes(PLAIN)[0], Target()
        found = [target.answers(prompt, i * S) for i, prompt in enumerate(self.legs(legs))]

        assert [row[1:] for row in usage(found)] == [(prefix, 0)] + [(0, prefix)] * (legs - 1)

    def test_after_pre_warming_none_writes(self, legs):
        prefix, target = sizes(PLAIN)[0], Target()
        for prompt in maker(PLAIN, "fan_out", fan_out={"legs": legs}).pre_warm():
            target.answers(prompt, 0)
        found = [target.takes(prompt, S) for prompt in self.legs(legs)]

        assert [row[1:] for row in usage(found)] == [(0, prefix)] * legs
        assert expected(found) == [WARM] * legs
