"""The maker of prompts: what depends on what, sizes, prefixes, marks, sessions, legs, files and traces."""

from __future__ import annotations

import json
import re
from collections import Counter
from itertools import takewhile

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tailgauge.call import ASSISTANT, USER, Prompt
from tailgauge.patterns.settings import ALL_MARKS, NO_MARKS
from tailgauge.patterns.table import Traffic
from tailgauge.prompts import Maker
from tailgauge.prompts.words import text
from tailgauge.rows.schema import TURNS
from tailgauge.schedule.schedule import Planned
from tailgauge.worker.cache_tracker import rendered

FULL = {"tools": 3, "tools_tokens": 300, "system_tokens": 200, "few_shot": 2, "few_shot_tokens": 40}
EVERYWHERE = ("tools", "system", "few_shot", "last")
LAST_BYTES = 4 * 9  # bytes of the words that two texts may have in common by chance


def maker(cache=None, pattern="cached", seed=1, name="main", **more):
    options = {
        key: more.pop(key)
        for key in ("words_per_token", "overhead_tokens", "marks", "run")
        if key in more
    }
    table = {
        "pattern": pattern if cache is not None or pattern != "cached" else "streaming",
        **more,
    }
    if cache is not None:
        table["cache"] = cache
    return Maker(seed, Traffic.model_validate(table), name, **options)


def planned(
    index: int = 0, tokens: int = 20, turns: int = 1, source: dict | None = None
) -> Planned:
    return Planned(index * TURNS, 0, "main", tokens, 10, turns, source)


def one(made: tuple[Prompt, ...]) -> Prompt:
    (prompt,) = made
    return prompt


def asked(of, *plan, **more):
    """The only prompt of a planned request."""
    return one(of.make(planned(*plan, **more)))


def question(prompt: Prompt) -> str:
    return prompt.messages[-1].parts[0].text


def ttls(prompt: Prompt) -> list[str | None]:
    """The mark, or none, of every block in order."""
    blocks = [
        *prompt.tools,
        *prompt.system,
        *(part for message in prompt.messages for part in message.parts),
    ]
    return [block.ttl for block in blocks]


def whole(prompt: Prompt) -> bytes:
    return rendered(prompt.tools, prompt.system, prompt.messages)


def shared(prompt: Prompt) -> bytes:
    return rendered(prompt.tools, prompt.system, prompt.messages[: prompt.shared])


def sections(prompt: Prompt) -> list[bytes]:
    """What an engine may put first: the whole as it is, and without the tools, which templates place as they like."""
    return [whole(prompt), rendered((), prompt.system, prompt.messages)]


def agreeing(one, other):
    """How many items are the same from the start."""
    return len(list(takewhile(lambda pair: pair[0] == pair[1], zip(one, other, strict=False))))


CACHES = st.fixed_dictionaries(
    {
        "prefixes": st.integers(1, 5),
        "zipf": st.sampled_from([0.0, 1.0]),
        "tools": st.integers(1, 3),
        "tools_tokens": st.integers(1, 300),
        "system_tokens": st.integers(1, 100),
        "few_shot": st.integers(1, 3),
        "few_shot_tokens": st.integers(1, 30),
        "breakpoints": st.sets(st.sampled_from(EVERYWHERE), min_size=1).map(
            lambda s: tuple(sorted(s))
        ),
        "ttl": st.sampled_from(["5m", "1h"]),
    }
)


class TestPlain:
    def test_a_prompt_without_a_prefix_is_one_question_of_the_seed_and_the_request(self):
        assert maker().make(planned(5)) == (Prompt.of(text(1, str(5 * TURNS), 20)),)

    def test_a_later_turn_is_another_request(self):
        first, second = (one(maker().make(planned(5, turns=2), turn)) for turn in (0, 1))

        assert question(second) == text(1, str(5 * TURNS + 1), 20)
        assert question(first) != question(second)

    @pytest.mark.parametrize(
        ("per_token", "overhead", "tokens", "words"),
        [(1.0, 0, 30, 30), (0.58, 0, 100, 58), (1.5, 8, 48, 60), (1.0, 50, 20, 1)],
    )
    def test_words_follow_the_tokens_asked_for_less_the_overhead(
        self, per_token, overhead, tokens, words
    ):
        made = maker(words_per_token=per_token, overhead_tokens=overhead).make(
            planned(tokens=tokens)
        )

        assert len(question(one(made)).split(" ")) == words

    def test_tools_of_the_traffic_are_offered_with_every_prompt(self):
        made = [asked(maker(tools=2, pattern="streaming"), i) for i in range(2)]

        assert made[0].tools == made[1].tools
        assert len({tool.name for tool in made[0].tools}) == 2
        assert made[0].prefix is None


class TestPrefix:
    @given(CACHES, st.integers(0, 2**40), st.integers(0, 50))
    def test_the_same_seed_makes_the_same_prompt_anywhere(self, cache, seed, index):
        one_worker, other_worker = maker(cache, seed=seed), maker(cache, seed=seed)
        one_worker.make(planned(index + 1))  # what is made between changes nothing

        assert one_worker.make(planned(index)) == other_worker.make(planned(index))

    @given(CACHES, st.lists(st.integers(0, 100), min_size=2, max_size=2, unique=True))
    def test_two_requests_share_exactly_the_prefix_of_their_number_and_nothing_else(
        self, cache, pair
    ):
        of = maker(cache)
        first, second = (asked(of, index) for index in pair)
        common = agreeing(whole(first), whole(second))

        if first.prefix == second.prefix:
            assert shared(first) == shared(second)
            assert 0 <= common - len(shared(first)) <= LAST_BYTES
        else:
            assert common <= LAST_BYTES

    @given(CACHES, st.sampled_from(["none", "front", "marked", "cold"]))
    def test_there_is_one_mark_for_each_breakpoint_and_never_more_than_four(self, cache, kind):
        if kind == "marked" and cache["breakpoints"] == ("last",):
            return
        extra = {"cold": True} if kind == "cold" else {"volatile": kind}
        found = [ttl for ttl in ttls(asked(maker({**cache, **extra}))) if ttl]

        assert found == [cache["ttl"]] * len(cache["breakpoints"])
        assert len(found) <= 4

    def test_marks_stand_after_the_tools_the_system_prompt_the_examples_and_the_question(self):
        prompt = asked(maker({**FULL, "breakpoints": EVERYWHERE, "ttl": "1h"}))

        assert ttls(prompt) == [None, None, "1h", "1h", None, None, None, "1h", "1h"]
        assert [message.role for message in prompt.messages] == [USER, ASSISTANT] * 2 + [USER]
        assert prompt.shared == 4

    def test_a_protocol_without_marks_gets_the_same_text_and_no_mark(self):
        cache = {**FULL, "breakpoints": EVERYWHERE}
        with_marks, without = (asked(maker(cache, marks=marks)) for marks in (ALL_MARKS, NO_MARKS))

        assert whole(with_marks) == whole(without)
        assert set(ttls(without)) == {None}

    def test_sizes_are_about_those_asked_for(self):
        prompt = asked(maker({**FULL, "tools_tokens": 600}))
        tools = [
            json.dumps([tool.name, tool.description, json.loads(tool.schema)])
            for tool in prompt.tools
        ]

        assert len(prompt.system[0].text.split()) == 200
        assert [len(message.parts[0].text.split()) for message in prompt.messages] == [20] * 4 + [
            20
        ]
        assert sum(map(len, tools)) / 4 == pytest.approx(
            600 * 1.7, rel=0.2
        )  # a word is 1.7 times four bytes

    def test_tools_can_be_used(self):
        prompt = asked(maker({**FULL, "tools": 100}, tools=2))

        assert len({tool.name for tool in prompt.tools}) == 102
        assert all(re.fullmatch(r"[a-zA-Z0-9_-]{1,64}", tool.name) for tool in prompt.tools)
        for tool in prompt.tools:
            schema = json.loads(tool.schema)
            assert set(schema["required"]) < set(schema["properties"])
            assert len(schema["properties"]) == 2

    def test_popularity_is_zipf(self):
        of = maker({**FULL, "prefixes": 4, "zipf": 1.0})
        counts = Counter(asked(of, i).prefix for i in range(4000))

        weights = [12 / 25, 6 / 25, 4 / 25, 3 / 25]  # 1/k over 25/12
        for number, weight in enumerate(weights):
            assert counts[number] / 4000 == pytest.approx(
                weight, abs=4 * (weight * (1 - weight) / 4000) ** 0.5
            )

    def test_tables_of_another_name_have_other_prefixes(self):
        assert shared(asked(maker(FULL, name="a"))) != shared(asked(maker(FULL, name="b")))

    def test_pre_warming_writes_every_prefix_and_asks_for_no_mark_of_its_own(self):
        of = maker({**FULL, "prefixes": 3, "breakpoints": EVERYWHERE})
        calls = list(of.pre_warm())
        prompts = [asked(of, i) for i in range(40)]
        by_prefix = {prompt.prefix: prompt for prompt in prompts}

        assert [call.prefix for call in calls] == [0, 1, 2]
        for call in calls:
            assert shared(call) == shared(by_prefix[call.prefix])
            assert call.messages[-1].parts[0].ttl is None

    def test_no_cache_nothing_to_pre_warm(self):
        assert list(maker().pre_warm()) == []


class TestMistakes:
    @pytest.mark.parametrize(
        "cache",
        [FULL, {"system_tokens": 50}, {"tools": 1, "breakpoints": ("tools",)}, {"few_shot": 1, "breakpoints": ("few_shot",)}],
        ids=["all", "system", "tools", "examples"],
    )  # fmt: skip
    @pytest.mark.parametrize("kind", ["front", "cold"])
    def test_what_changes_in_front_stands_at_the_first_byte_of_the_prompt(self, cache, kind):
        extra = {"cold": True} if kind == "cold" else {"volatile": "front"}
        of = maker({**cache, **extra})
        first, second = (asked(of, index) for index in (1, 2))  # 65536 and 131072

        assert agreeing(whole(first), whole(second)) <= 1
        assert first.unique
        assert ttls(first) == ttls(asked(maker(cache), 1))

    def test_cold_salts_whatever_a_template_may_put_first(self):
        prompt = asked(maker({"tools": 2, "breakpoints": ("tools",), "cold": True}))

        opening = prompt.tools[0].name.partition("_")[0]
        assert len(opening) == 12
        assert question(prompt).startswith(f"{opening} ")

    def test_cold_legs_share_nothing_among_themselves(self):
        of = maker({**FULL, "cold": True}, pattern="fan_out", fan_out={"legs": 3})

        assert len({prompt.system[0].text[:12] for prompt in of.make(planned())}) == 3

    def test_marked_text_that_changes_stands_at_the_end_of_the_last_marked_block(self):
        for place in ("tools", "system", "few_shot"):
            cache = {**FULL, "breakpoints": (place,)}
            stable = asked(maker(cache), 1)
            first, second = (asked(maker({**cache, "volatile": "marked"}), i) for i in (1, 2))
            block = ttls(stable).index("5m")
            texts = [[t.description for t in p.tools] + [s.text for s in p.system] + [m.parts[0].text for m in p.messages] for p in (stable, first, second)]  # fmt: skip

            assert texts[1][block] == f"{texts[0][block]} This is request 65536."
            assert texts[2][block] == f"{texts[0][block]} This is request 131072."
            assert not first.unique
            without_marks = asked(maker({**cache, "volatile": "marked"}, marks=NO_MARKS), 1)
            assert whole(without_marks) == whole(first)


class TestSession:
    HISTORY = (("one?", "yes"), ("two?", "no"))

    def test_a_turn_carries_what_was_said_before_after_the_prefix(self):
        prompt = one(
            maker({**FULL, "breakpoints": ("system", "last")}).make(
                planned(3, turns=5), 2, self.HISTORY
            )
        )

        piece = [(m.role, m.parts[0].text) for m in prompt.messages[prompt.shared : -1]]
        assert piece == [(USER, "one?"), (ASSISTANT, "yes"), (USER, "two?"), (ASSISTANT, "no")]
        assert ttls(prompt).count("5m") == 2
        assert ttls(prompt)[-1] == "5m"

    def test_an_exchange_without_an_answer_is_left_out(self):
        prompt = one(maker().make(planned(3, turns=5), 2, (("one?", ""), ("two?", "no"))))

        assert [m.parts[0].text for m in prompt.messages[:-1]] == ["two?", "no"]

    def test_a_session_that_does_not_grow_asks_its_question_only(self):
        assert (
            len(
                one(
                    maker(session={"grow": False}).make(planned(3, turns=5), 2, self.HISTORY)
                ).messages
            )
            == 1
        )

    def test_a_session_keeps_the_prefix_of_its_first_turn_and_a_user_of_a_closed_loop_does_not(
        self,
    ):
        of = maker({**FULL, "prefixes": 50})

        assert len({one(of.make(planned(3, turns=9), turn)).prefix for turn in range(9)}) == 1
        assert len({one(of.make(planned(3, turns=0), turn)).prefix for turn in range(9)}) > 3

    def test_a_closed_loop_has_no_history(self):
        assert len(one(maker().make(planned(3, turns=0), 2, self.HISTORY)).messages) == 1


class TestLegs:
    def test_each_leg_has_the_prefix_and_a_question_of_its_own(self):
        made = maker(FULL, pattern="fan_out", fan_out={"legs": 4}).make(planned())

        assert len({shared(prompt) for prompt in made}) == 1
        assert len({question(prompt) for prompt in made}) == len(made) == 4

    def test_kinds_of_legs_have_their_sizes(self):
        kinds = [
            {"prompt_tokens": 5, "output_tokens": 9},
            {"prompt_tokens": 30, "output_tokens": 9, "count": 2},
        ]
        made = maker(pattern="fan_out", fan_out={"kinds": kinds}).make(planned())

        assert [len(question(prompt).split()) for prompt in made] == [5, 30, 30]

    def test_a_batch_has_one_prompt_a_call(self):
        made = maker(pattern="batch", batch={"requests": 7}).make(planned())

        assert len({question(prompt) for prompt in made}) == 7


class TestFilesAndTraces:
    def test_the_text_of_a_prompt_file_is_asked_as_it_stands(self):
        assert question(asked(maker(), source={"text": "Why? ü"})) == "Why? ü"

    @given(
        st.lists(st.integers(0, 3), max_size=4),
        st.lists(st.integers(0, 3), max_size=4),
        st.sampled_from([0.1, 1.0]),
    )
    def test_requests_share_exactly_the_blocks_that_the_trace_says(self, mine, others, per_token):
        of = maker(words_per_token=per_token)
        same = agreeing(mine, others)
        texts = [
            question(asked(of, i, 512 * len(blocks) + 100, source={"blocks": blocks}))
            for i, blocks in enumerate((mine, others))
        ]
        common = agreeing(*(words.split(" ") for words in texts))

        assert 0 <= common - same * round(512 * per_token) <= 4


class TestSaltOfTheRun:
    """Two runs share no beginning; within a run, requests share what they did without it."""

    @pytest.mark.parametrize("kind", ["none", "front", "marked", "cold"])
    @given(CACHES, st.booleans(), st.integers(0, 100))
    def test_two_runs_share_nothing_and_one_run_what_it_should(
        self, kind, cache, with_system, index
    ):
        if kind == "marked" and cache["breakpoints"] == ("last",):
            return
        extra = {"cold": True} if kind == "cold" else {"volatile": kind}
        if not with_system:
            cache = {
                **cache,
                "system_tokens": 0,
                "breakpoints": ("last",) if kind != "marked" else ("few_shot",),
            }
        runs = [maker({**cache, **extra}, run=run) for run in ("abcdefghijkl", "lkjihgfedcba")]
        here, elsewhere = (asked(run, index) for run in runs)
        plain = maker({**cache, **extra})

        for ours, others in zip(sections(here), sections(elsewhere), strict=True):
            assert agreeing(ours, others) <= LAST_BYTES
        assert here == asked(runs[0], index)
        if kind == "none":
            pairs = [[asked(of, i) for i in (index, index + 1)] for of in (runs[0], plain)]
            salted, before = (agreeing(whole(a), whole(b)) for a, b in pairs)
            assert salted >= before or pairs[0][0].prefix != pairs[0][1].prefix

    def test_a_prompt_of_one_question_begins_with_it(self):
        assert question(asked(maker(run="abcdefghijkl"))) == "abcdefghijkl " + text(1, "0", 20)

    def test_a_conversation_keeps_the_bytes_of_its_first_turn(self):
        of = maker(run="abcdefghijkl", pattern="streaming", session={"turns_mean": 3, "grow": True})
        first = asked(of, turns=3)
        second = one(of.make(planned(turns=3), 1, ((question(first), "an answer"),)))

        assert second.messages[0] == first.messages[0]
        assert not question(second).startswith("abcdefghijkl")
