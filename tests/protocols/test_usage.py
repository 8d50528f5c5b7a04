"""Counts of an answer: the largest of what came, or unknown; never what contradicts the call."""

import pytest

from tailgauge.protocols.usage import Request, Usage


def counts(protocol, *usages, request=None, has_content=True, explained=False):
    usage = Usage(protocol)
    for each in usages:
        usage.read(each)
    usage.explained = explained
    return usage.counts(request or Request(), has_content=has_content)


def tokens(protocol, *usages):
    return dict(counts(protocol, *usages).tokens)


def test_cached_tokens_may_be_counted_beside_those_of_the_prompt():
    details = {"cached_tokens": 600, "cache_write_tokens": 300}
    usage = {"prompt_tokens": 100, "total_tokens": 1000, "prompt_tokens_details": details}

    assert tokens("openai", usage) == {
        "input_tokens": 100, "cache_read_input_tokens": 600, "cache_creation_input_tokens": 300,
    }  # fmt: skip


def test_what_is_missing_is_unknown_and_zero_is_zero():
    assert tokens("openai", {"prompt_tokens": 5}) == {"input_tokens": 5}
    zero = {"prompt_tokens": 5, "prompt_tokens_details": {"cached_tokens": 0}}
    assert tokens("openai", zero) == {"input_tokens": 5, "cache_read_input_tokens": 0}
    nothing = {"prompt_tokens": None, "completion_tokens": None, "prompt_tokens_details": None}
    assert tokens("openai", nothing) == {}
    assert tokens("openai") == {}


@pytest.mark.parametrize("value", [8, 8.0, "8", "08"])
def test_a_count_may_be_written_as_gateways_write_numbers(value):
    assert tokens("openai", {"prompt_tokens": 5, "completion_tokens": value})["output_tokens"] == 8
    assert tokens("anthropic", {"input_tokens": value})["input_tokens"] == 8


@pytest.mark.parametrize("usage", [[], "many", 5])
def test_a_usage_that_is_no_object_is_named(usage):
    assert counts("openai", usage).problem.startswith("usage = ")


def test_more_cached_than_the_prompt_has_feeds_nothing():
    usage = {
        "prompt_tokens": 5,
        "completion_tokens": 2,
        "prompt_tokens_details": {"cached_tokens": 9},
    }
    found = counts("openai", usage)

    assert found.tokens == {"output_tokens": 2}
    assert found.problem == "9 cached tokens of a prompt of 5"


@pytest.mark.parametrize(
    ("usage", "left"),
    [
        ({"input_tokens": 0, "output_tokens": 3}, {"output_tokens": 3}),
        (
            {"input_tokens": 3, "cache_read_input_tokens": 0, "output_tokens": 3},
            {"output_tokens": 3},
        ),
        ({"input_tokens": 0, "cache_read_input_tokens": 99, "output_tokens": 3}, None),
    ],
)
def test_far_fewer_input_tokens_than_were_sent_feed_nothing(usage, left):
    found = counts("anthropic", usage, request=Request(prompt_bytes=5000))

    assert found.tokens == (usage if left is None else left)
    assert (found.problem is None) == (left is None)


REQUEST = Request(most_input_tokens=100, max_tokens=10)


@pytest.mark.parametrize(
    ("usage", "marks"),
    [
        ({"input_tokens": 100, "output_tokens": 10}, ()),
        ({"input_tokens": 101, "output_tokens": 10}, ("input",)),
        (
            {"input_tokens": 60, "cache_read_input_tokens": 60, "output_tokens": 11},
            ("input", "output"),
        ),
        ({"output_tokens": 30, "output_tokens_details": {"thinking_tokens": 25}}, ()),
    ],
)
def test_counts_beyond_the_request_are_kept_and_marked(usage, marks):
    found = counts("anthropic", usage, request=REQUEST)

    assert found.marks == marks
    assert found.tokens["output_tokens"] == usage["output_tokens"]
    assert ("output_tokens" in found.trusted()) == ("output" not in marks)


def test_tokens_that_a_server_tool_or_a_fallback_explains_are_not_marked():
    usage = {"input_tokens": 9000, "output_tokens": 900}

    assert counts("anthropic", usage, request=REQUEST, explained=True).marks == ()


def test_fields_that_nobody_knows_are_named():
    usage = Usage("openai")
    usage.read({"prompt_tokens": 5, "total_tokens": 5, "dream_tokens": 3, "cost": 0.1})

    assert usage.unknown == {"usage.dream_tokens"}


def test_qwen_counts_what_it_wrote_among_the_details():
    details = {
        "cached_tokens": 5,
        "cache_creation": {"ephemeral_5m_input_tokens": 80},
        "cache_creation_input_tokens": 80,
    }
    found = tokens(
        "openai",
        {"prompt_tokens": 100, "prompt_tokens_details": {**details, "cache_type": "ephemeral"}},
    )

    assert found["input_tokens"] == 15
    assert found["cache_creation_input_tokens"] == found["cache_creation_5m_input_tokens"] == 80


def test_a_count_among_the_details_that_nobody_knows_is_named():
    usage = Usage("openai")
    usage.read(
        {
            "prompt_tokens": 9,
            "prompt_tokens_details": {"cached_tokens": 1, "dream_tokens": 4, "note": "x"},
        }
    )

    assert usage.unknown == {"usage.prompt_tokens_details.dream_tokens"}
