"""Prices: exact sums, the entry in force on a day, and a wrong price file told by file, entry and key."""

from __future__ import annotations

from datetime import date
from decimal import Decimal
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tailgauge.errors import Exit, UsageError
from tailgauge.scenario import prices
from tailgauge.scenario.prices import Usage

TODAY = date(2026, 11, 21)
GOOD = """
[[price]]
models = ["m"]
since = 2026-01-01
input = 1
write_5m = 1.25
write_1h = 2
read = 0.1
output = 5
"""
LONG = (
    "[price.long]\nabove = 100\ninput = 2\nwrite_5m = 2.5\nwrite_1h = 4\nread = 0.2\noutput = 10\n"
)
TIER = "[price.tier.priority]\ninput = 2\nwrite_5m = 2.5\nwrite_1h = 4\nread = 0.2\noutput = 10\n"
OPENAI = GOOD.replace("write_5m = 1.25\nwrite_1h = 2\n", "write = 1.25\n")
PACKAGED = prices.read()
FACTS = {  # model, day: five rates
    ("claude-fable-5-2", TODAY): "8 10 16 0.20 40",
    ("claude-mythos-5-1", TODAY): "10 12.50 20 0.25 50",
    ("claude-fable-5", TODAY): "10 12.50 20 1 50",
    ("claude-opus-5-5", TODAY): "4 5 8 0.20 20",
    ("claude-opus-4-5", TODAY): "5 6.25 10 0.50 25",
    ("claude-sonnet-5-5", date(2026, 10, 6)): "2 2.50 4 0.20 10",
    ("claude-sonnet-5-5", date(2026, 10, 7)): "2 2.50 4 0.10 10",
    ("claude-sonnet-4-6", TODAY): "3 3.75 6 0.30 15",
    ("claude-haiku-5-5", TODAY): "0.10 0.125 0.20 0.01 0.50",
    ("claude-haiku-4-5-20251001", TODAY): "1 1.25 2 0.10 5",
}
counts = st.integers(0, 10**12)


def cost(model: str, day: date, usage: Usage) -> Fraction | None:
    price = PACKAGED.price(model, day)
    return None if price is None else price.cost(usage)


@pytest.mark.parametrize(("model", "day"), FACTS)
def test_the_packaged_rates_are_the_published_ones(model, day):
    rates = [Fraction(Decimal(text)) for text in FACTS[model, day].split()]

    for place, rate in enumerate(rates):
        usage = Usage(
            *[1_000 if i == place else 0 for i in range(5)]
        )  # short: the band of Haiku 5.5 is not met
        assert cost(model, day, usage) == rate / 1000


def test_a_model_without_a_price_has_no_cost_rather_than_none_at_all():
    assert cost("tiny", TODAY, Usage(1000, output=1000)) is None
    assert cost("claude-opus-5-5", date(2026, 8, 1), Usage(1000)) is None, "before its first price"
    assert cost("claude-opus-5-5", TODAY, Usage()) == 0


def test_a_long_prompt_has_its_own_rates_for_the_whole_request():
    short = cost("claude-haiku-5-5", TODAY, Usage(40_000, read=60_000, output=100))
    long = cost("claude-haiku-5-5", TODAY, Usage(40_000, read=60_001, output=100))

    assert short == Fraction(40_000 * 10 + 60_000 * 1 + 100 * 50, 100_000_000)
    assert long == Fraction(40_000 * 50 + 60_001 * 5 + 100 * 250, 100_000_000)


@given(st.lists(st.tuples(counts, counts, counts, counts, counts), max_size=20))
def test_costs_of_calls_add_up_exactly_to_the_ledger(rows):
    """The ledger is kept in ten-billionths of the currency, as whole numbers: no rounding can hide in it."""
    model = "claude-sonnet-5-5"
    ledger = sum(
        n * unit
        for row in rows
        for n, unit in zip(row, (2000, 2500, 4000, 100, 10_000), strict=True)
    )

    total = sum((cost(model, TODAY, Usage(*row)) or 0 for row in rows), Fraction(0))

    assert total == Fraction(ledger, 10**9)


def test_usage_counts_each_token_of_a_row_once():
    row = {
        "input_tokens": 10, "cache_read_input_tokens": 20, "cache_creation_input_tokens": 30,
        "cache_creation_5m_input_tokens": 25, "cache_creation_1h_input_tokens": 5, "output_tokens": 40,
        "thinking_tokens": 15,
    }  # fmt: skip

    assert Usage.of(row) == Usage(10, 25, 5, 20, 40)
    assert Usage.of(row).prompt == 60
    assert Usage.of({"input_tokens": 10, "cache_creation_input_tokens": 30}) == Usage(
        10, 30, 0, 0, 0
    )
    assert Usage.of({"input_tokens": None}) == Usage()


@pytest.mark.parametrize(
    ("text", "error_text"),
    [
        (GOOD.replace("2026-01-01", '"2026-01-01"'), "price 1 (m): since: expected a date as 2026-11-01, without quotes"),
        (GOOD.replace("2026-01-01", "2026-01-01T00:00:00"), "price 1 (m): since: expected a date"),
        (GOOD.replace("2026-01-01", "2026-13-41"), "mine.toml: not valid TOML: "),
        (GOOD.replace("2026-01-01", "2026-13-41"), "line 4: 2026-13-41 is no date"),
        (GOOD.replace("since = 2026-01-01\n", ""), "price 1 (m): since: expected a value"),
        (GOOD.replace("read = 0.1\n", ""), "price 1 (m): read: expected a value"),
        (GOOD.replace("0.1", "-0.1"), "price 1 (m): read: expected a number >= 0, got -0.1"),
        (GOOD.replace("0.1", "nan"), "price 1 (m): read: expected a finite number, got NaN"),
        (GOOD.replace("0.1", "1e999999999"), "price 1 (m): read: expected a number <= 1e+06"),
        (GOOD.replace("0.1", "true"), "price 1 (m): read: expected a number, got True"),
        (GOOD.replace("0.1", '"0.1"'), "price 1 (m): read: expected a number"),
        (GOOD + "outputs = 3\n", "price 1 (m): outputs: unknown key; did you mean output?"),
        (GOOD + GOOD, "price 2 (m): since: m has two prices from 2026-01-01 on"),
        (GOOD.replace('["m"]', '"m"'), "price 1: models: expected a list, got 'm'"),
        (GOOD + LONG.replace("above = 100\n", ""), "price 1 (m): long.above: expected a value"),
        (GOOD + LONG.replace("output = 10\n", ""), "price 1 (m): long.output: expected a value"),
        (GOOD + TIER.replace("output = 10\n", ""), "price 1 (m): tier.priority.output: expected a value"),
        (GOOD + TIER + "outputs = 3\n", "price 1 (m): tier.priority.outputs: unknown key; did you mean output?"),
        (GOOD + LONG.replace("write_1h = 4\n", ""), "price 1 (m): long.write_1h: expected a rate"),
        (GOOD + TIER.replace("write_5m = 2.5\n", ""), "price 1 (m): tier.priority.write_5m: expected a rate"),
        (OPENAI.replace("write = 1.25\n", ""), "price 1 (m): write_5m: expected a rate: set it, or `write` for every"),
        (OPENAI.replace("write = 1.25", "write_5m = 1.25"), "price 1 (m): write_1h: expected a rate: set it, or `write`"),
        (OPENAI.replace("write = 1.25", "write = -1"), "price 1 (m): write: expected a number >= 0, got -1"),
        (OPENAI.replace("write = 1.25", "writes = 1.25"), "price 1 (m): writes: unknown key; did you mean write?"),
        ("", "price: expected a value"),
        ("prices = 3\n" + GOOD, "prices: unknown key"),
        ("currency = 3\n" + GOOD, "currency: expected text in quotes, got 3"),
        ("[[price\n", "not valid TOML"),
        ("\udcff", "line 1: not UTF-8 text: "),
    ],
)  # fmt: skip
def test_a_wrong_price_file_is_refused_by_file_entry_and_key(tmp_path, text, error_text):
    path = tmp_path / "mine.toml"
    path.write_bytes(text.encode("utf-8", "surrogateescape"))

    with pytest.raises(UsageError) as raised:
        prices.read(path)

    assert raised.value.exit_code == Exit.USAGE
    assert str(raised.value).startswith(f"{path}: ")
    assert error_text in str(raised.value)


def test_one_rate_for_every_write_is_enough_where_the_provider_has_one(tmp_path):
    """OpenAI's usage has written tokens without their life."""
    path = tmp_path / "mine.toml"
    path.write_text(OPENAI, encoding="utf-8")
    price = prices.read(path).price("m", TODAY)
    assert price is not None
    usage = Usage.of(
        {
            "input_tokens": 100,
            "cache_read_input_tokens": 4_000,
            "cache_creation_input_tokens": 200_000,
        }
    )

    assert usage == Usage(100, 200_000, 0, 4_000, 0)
    assert price.cost(usage) == Fraction(100 * 1000 + 200_000 * 1250 + 4_000 * 100, 1_000_000_000)
    assert price.cost(Usage(write_1h=4)) == price.cost(Usage(write_5m=4))


@pytest.mark.parametrize(
    ("model", "tokens"),
    [
        ("claude-opus-5", 512),
        ("claude-haiku-4-5-20251001", 4096),
        ("gpt-5.6", 1024),
        ("gpt-5.6-mini", 1024),
        ("gpt-4o-2024-08-06", 1024),
        ("o3", 1024),
        ("gpt-oss-120b", None),
        ("olmo-3", None),
        ("tiny", None),
        ("", None),
    ],
)
def test_the_shortest_prefix_that_a_model_caches(model, tokens):
    assert prices.cached_from(model) == tokens


def test_a_tier_has_rates_of_its_own_and_others_the_list_price(tmp_path):
    path = tmp_path / "mine.toml"
    path.write_text(GOOD + TIER, encoding="utf-8")
    price = prices.read(path).price("m", TODAY)
    assert price is not None
    usage = Usage(input=1_000_000)

    assert price.of_tier("priority", None).cost(usage) == 2
    assert price.of_tier("standard", "priority").cost(usage) == 2
    assert price.of_tier("standard", "fast").cost(usage) == price.of_tier(None).cost(usage) == 1


def test_a_price_file_that_is_not_there_is_named(tmp_path):
    with pytest.raises(UsageError, match=r"none\.toml: no such file"):
        prices.read(tmp_path / "none.toml")
