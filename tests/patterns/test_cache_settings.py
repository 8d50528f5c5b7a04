"""Cache tables that make no sense are refused before any traffic, with the key and what to do."""

import pytest

from tailgauge.errors import ScenarioError
from tailgauge.scenario.model import parse

FULL = {"tools": 1, "system_tokens": 10, "few_shot": 1}


@pytest.mark.parametrize(
    ("cache", "complaint"),
    [
        ({}, "breakpoints names 'system', but there is none: set system_tokens, or leave it out"),
        ({"tools": 2}, "breakpoints names 'system'"),
        ({"system_tokens": 9, "breakpoints": ["tools"]}, "breakpoints names 'tools', but there is none: set tools"),
        ({"system_tokens": 9, "breakpoints": ["few_shot"]}, "set few_shot, or leave it out"),
        ({"breakpoints": []}, "the prefix is empty: set tools, system_tokens or few_shot"),
        ({"breakpoints": ["last"], "volatile": "front"}, "volatile needs a prefix"),
        ({**FULL, "breakpoints": ["last"], "volatile": "marked"}, "volatile = 'marked' needs a mark"),
        ({**FULL, "cold": True, "volatile": "front"}, "cold: nothing can be read from a cache"),
        ({**FULL, "cold": True, "pre_warm": True}, "cold: nothing can be read from a cache"),
        ({**FULL, "breakpoints": ["tools", "system", "few_shot", "last", "last"]}, "at most 4 breakpoints are possible, got 5"),
        ({**FULL, "breakpoints": ["system", "system"]}, "names a place twice"),
        ({**FULL, "ttl": "10m"}, "'5m', '30m', '1h' or '12h'"),
    ],
)  # fmt: skip
def test_a_table_without_sense_is_refused(cache, complaint):
    with pytest.raises(ScenarioError) as refused:
        parse({"name": "x", "traffic": {"main": {"pattern": "cached", "cache": cache}}}, "x.toml")

    assert complaint in str(refused.value)
    assert str(refused.value).startswith("x.toml: traffic.main.cache")


def test_a_conversation_alone_is_prefix_enough():
    traffic = {
        "pattern": "cached",
        "cache": {"breakpoints": ["last"]},
        "session": {"turns_mean": 3},
    }

    assert (
        parse({"name": "x", "traffic": {"main": traffic}}, "x.toml").traffic["main"].cache
        is not None
    )


@pytest.mark.parametrize("pattern", ["structured", "progressive", "batch"])
def test_a_prefix_is_refused_where_the_pattern_has_none(pattern):
    with pytest.raises(ScenarioError, match="cache: does not apply with pattern"):
        parse({"name": "x", "traffic": {"main": {"pattern": pattern, "cache": FULL}}}, "x.toml")


@pytest.mark.parametrize("answer", [{"thinking": "adaptive"}, {"tools": 1}])
def test_examples_are_not_pre_warmed_for_answers_that_are_asked_for_otherwise(answer):
    cache = {**FULL, "breakpoints": ["few_shot"], "pre_warm": True}
    with pytest.raises(ScenarioError, match=r"cache\.pre_warm"):
        parse(
            {"name": "x", "traffic": {"main": {"pattern": "cached", "cache": cache, **answer}}},
            "x.toml",
        )
