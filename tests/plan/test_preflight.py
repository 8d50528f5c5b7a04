"""What is asked before a run, and what is learnt from it."""

from __future__ import annotations

from typing import Any

import pytest

from tailgauge.plan.preflight import (
    Learnt,
    learn,
    prefixes,
    preflight_calls,
    sized_tables,
    sizing,
    writes,
)
from tailgauge.plan.spend_limit import Sizing
from tailgauge.prompts import Maker, prompt
from tailgauge.prompts.words import WORDS
from tailgauge.scenario.model import Scenario, parse
from tailgauge.schedule.schedule import Planned


def scenario(**tree: Any) -> Scenario:
    return parse({"name": "n", **tree}, "my.toml")


def test_a_short_and_a_long_prompt_and_one_for_each_further_model():
    wanted = scenario(
        second_target={"model": "other"},
        traffic={"a": {"fallback": {"after_s": 1.0, "target": "second"}}, "b": {"model": "small"}},
    )

    found = preflight_calls(wanted)

    assert [(t.request_id, t.call.target, t.model, t.words, t.needed) for t in found] == [
        (-1, "main", "tiny", 32, True),
        (-2, "main", "tiny", 232, False),
        (-3, "second", "other", 32, True),
        (-4, "main", "small", 32, True),
    ]
    assert all(t.call.stream and t.call.max_tokens <= 16 for t in found)
    assert [len(t.call.prompt.messages[0].parts[0].text.split()) for t in found] == [
        32,
        232,
        32,
        32,
    ]


def test_a_table_of_the_second_target_is_tried_there_with_its_own_model_and_length():
    cache = {"system_tokens": 2000, "pre_warm": True}
    wanted = scenario(
        second_target={"model": "other"},
        traffic={
            "a": {"output_tokens": 9},
            "b": {"target": "second", "output_tokens": 3, "cache": cache},
        },
    )
    found, (written,) = preflight_calls(wanted), writes(wanted, lambda _: [prompt(1, 0, 10)], -4)

    assert [(t.call.target, t.model, t.traffic, t.call.max_tokens, t.words) for t in found] == [
        ("main", "tiny", "a", 9, 32), ("main", "tiny", "a", 9, 232), ("second", "other", "b", 3, 32),
    ]  # fmt: skip
    assert (written.call.target, written.model) == ("second", "other")
    assert sized_tables(wanted) == ["a"]
    assert (
        preflight_calls(scenario(second_target={}, traffic={"b": {"target": "second"}}))[
            0
        ].call.target
        == "second"
    )


@pytest.mark.parametrize(
    ("tables", "streams"),
    [
        ({"a": {}}, [True, True]),
        ({"a": {"stream": False}}, [False, False]),
        ({"a": {"stream": False}, "b": {}}, [True, True]),
        ({"a": {"stream": False}, "b": {"model": "other"}}, [False, False, True]),
    ],
)
def test_calls_are_streamed_where_a_call_of_the_run_to_that_model_is(tables, streams):
    assert [one.call.stream for one in preflight_calls(scenario(traffic=tables))] == streams


@pytest.mark.parametrize("pattern", ["fan_out", "structured", "progressive", "batch"])
def test_the_preflight_is_a_plain_call_whatever_the_pattern(pattern):
    found = preflight_calls(scenario(traffic={"a": {"pattern": pattern}}))

    assert {t.call.kind for t in found} == {"message"}
    assert all(t.call.schema is None and t.call.thinking == "off" for t in found)


@pytest.mark.parametrize(("per_word", "overhead"), [(1.0, 0), (1.31, 7), (2.5, 40), (0.5, 3)])
def test_tokens_of_a_word_and_the_overhead_are_learnt_from_two_usages(per_word, overhead):
    learnt = learn({words: round(per_word * words) + overhead for words in (32, 232)})

    assert learnt.known
    assert learnt.tokens_per_word == pytest.approx(per_word, abs=0.006)
    assert abs(learnt.overhead_tokens - overhead) <= 1


@pytest.mark.parametrize(
    "tokens",
    [
        {},
        {32: 40},
        {232: 250},
        {32: 9, 232: 9},
        {32: 300, 232: 40},
        {32: 1, 232: 9999},
        {32: 10**12, 232: 10**12 + 200},
    ],
)
def test_what_makes_no_sense_is_not_learnt(tokens):
    assert learn(tokens) == Learnt(1.0, 0, known=False)
    assert learn(tokens).facts(scenario()) == {
        "tokens_per_word": None,
        "overhead_tokens": None,
        "prompt_sizes": {"main": "estimate"},
    }


SIZED = [
    ({}, "exact"), ({"prompts": {"file": "x.jsonl"}}, None), ({"session": {"turns_mean": 2.0}}, None), ({"tools": 1}, None),
    ({"pattern": "cached", "cache": {"system_tokens": 50}}, None), ({"model": "other"}, None), ({"model": "tiny"}, "exact"),
]  # fmt: skip


@pytest.mark.parametrize(("table", "size"), SIZED)
def test_only_prompts_of_one_question_are_called_exact(table, size):
    """Not what comes with a prefix, tools or earlier turns, out of a file, or to a model whose tokens nobody asked for."""
    found = Learnt(1.0, 5, known=True, words=["river"]).facts(
        scenario(traffic={"first": {}, "b": table})
    )

    assert found["prompt_sizes"] == {"first": "exact"} | ({"b": size} if size else {})


@pytest.mark.parametrize("words", [sorted(WORDS, key=len)[:16], list(WORDS)])
def test_short_words_are_sized_above_what_the_target_counts(words):
    learnt = Learnt(1.0, 5, known=True, words=words)
    made = Maker(1, scenario().traffic["main"], "main", words=words).make(
        Planned(0, 0, "main", 500, 10)
    )

    assert sizing(scenario(), learnt).tokens(made[0]) >= 1.2 * 505


def test_a_prompt_has_the_asked_tokens_by_what_was_learnt():
    """Counted as a target would count it: so many tokens a word and some around them."""
    table = scenario().traffic["main"]
    made = Maker(1, table, "main", 1 / 1.6, 10).make(Planned(65536, 0, "main", 500, 10))

    words = len(made[0].messages[0].parts[0].text.split())
    assert words * 1.6 + 10 == pytest.approx(500, abs=1)


CACHE = {"pattern": "cached", "cache": {"system_tokens": 50, "pre_warm": True, "prefixes": 3}}


@pytest.mark.parametrize(("protocol", "tokens"), [("anthropic", 0), ("openai", 1)])
def test_every_prefix_is_written_once_before_the_run(protocol, tokens):
    wanted = scenario(target={"protocol": protocol}, traffic={"a": CACHE, "b": {}})
    makers = {name: Maker(1, table, name) for name, table in wanted.traffic.items()}

    found = list(writes(wanted, lambda name: makers[name].pre_warm(), -3))

    assert prefixes(wanted) == len(found) == 3
    assert [t.request_id for t in found] == [-3, -4, -5]
    assert {(t.call.max_tokens, t.call.stream, t.needed) for t in found} == {(tokens, False, False)}
    assert sorted(t.call.prompt.prefix or 0 for t in found) == [0, 1, 2]


@pytest.mark.parametrize("table", [
    {"prompts": {"file": "x.jsonl"}}, {"session": {"turns_mean": 2.0}}, {"tools": 1},
    {"pattern": "structured", "structured": {"mode": "two_calls"}},
    {"pattern": "cached", "cache": {"tools": 1, "breakpoints": ["tools"]}}, {"fallback": {"after_s": 1.0, "model": "other"}},
])  # fmt: skip
def test_texts_that_are_not_ours_are_sized_by_their_bytes(table):
    assert sizing(scenario(traffic={"a": table}), Learnt(1.7, 5, known=True)) == Sizing()


@pytest.mark.parametrize(
    "learnt", [Learnt(1.0, 0, known=True), Learnt(1.76, 30, known=True), Learnt()]
)
@pytest.mark.parametrize("words", [1, 32, 2000])
def test_our_own_words_are_sized_above_what_the_target_counts(learnt, words):
    sized = sizing(scenario(), learnt).tokens(
        type(preflight_calls(scenario())[0].call.prompt).of(prompt(1, 5, words))
    )
    counted = learnt.tokens_per_word * words + learnt.overhead_tokens

    assert counted * 1.2 <= sized
    assert not learnt.known or sized <= counted * 1.6 + 150
