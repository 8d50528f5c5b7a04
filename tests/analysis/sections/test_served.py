"""Served as: what the responses name of model, tier, speed and region, and what each costs."""

import json

import pytest
from run_folders.run_data import edited_run

from tailgauge_analysis.report.report import make

pytestmark = pytest.mark.slow

TOKENS = {"input_tokens": 100_000, "cache_read_input_tokens": 0, "cache_creation_input_tokens": 0}
OPUS = {
    "asked_model": "claude-opus-4-8",
    "model": "claude-opus-4-8",
    **TOKENS,
    "output_tokens": 1000,
}  # $0.525
PRICES = """
[[price]]
models = ["m"]
since = 2026-01-01
input = 1
write_5m = 1.25
write_1h = 2
read = 0.1
output = 5

[price.tier.priority]
input = 2
write_5m = 2.5
write_1h = 4
read = 0.2
output = 10
"""
MINE = {**OPUS, "asked_model": "m", "model": "m"}  # $0.105 standard, $0.21 priority


@pytest.fixture
def report(mixed, tmp_path):
    """The report of requests with these attempts against a real target; keywords change the scenario."""

    def of(*attempts, **scenario):
        run = mixed(duration_s=100.0)
        for number, attempt in enumerate(attempts):
            run.request(100 * number, [{"first": 100, "kinds": "xxxxx", **attempt}])
        folder = run.write(tmp_path / "run")
        with edited_run(folder) as record:
            record["scenario"] |= scenario
            record["target"] |= {"url": "https://api.example.com", "simulated": False}
        return make([folder], tmp_path)

    return of


def section_of(report):
    return next((section for section in report.report.sections if section.name == "served"), None)


def rows_of(report):
    (table,) = section_of(report).tables
    return [tuple(getattr(cell, "text", cell) for cell in row) for row in table.rows]


@pytest.mark.parametrize(
    "attempt", [{}, {"service_tier": "standard", "speed": "standard"}, {"model": ""}]
)
def test_where_all_are_served_alike_there_is_no_section(report, attempt):
    assert section_of(report(*[{**OPUS, **attempt}] * 20)) is None


def test_tiers_have_a_row_each_and_their_own_price(report, tmp_path):
    (tmp_path / "prices.toml").write_text(PRICES)
    attempts = [{**MINE, "service_tier": "standard"}] * 12 + [
        {**MINE, "service_tier": "priority", "first": 40}
    ] * 8
    found = report(*attempts, guard={"prices": str(tmp_path / "prices.toml")})

    assert section_of(found).tables[0].header[:4] == ("model", "tier", "answers", "cost (USD)")
    assert [row[:4] for row in rows_of(found)] == [
        ("m", "standard", "12", "1.2600"),
        ("m", "priority", "8", "1.6800"),
    ]
    assert section_of(found).notes == ()


def test_a_speed_may_have_a_price_too(report, tmp_path):
    (tmp_path / "prices.toml").write_text(PRICES.replace("priority", "fast"))
    attempts = [
        {**MINE, "service_tier": "standard", "speed": speed} for speed in ("standard", "fast")
    ] * 10
    found = report(*attempts, guard={"prices": str(tmp_path / "prices.toml")})

    assert {row[2]: row[4] for row in rows_of(found)} == {"standard": "1.0500", "fast": "2.1000"}


def test_a_tier_without_a_price_is_charged_at_the_list_price_and_named(report):
    attempts = [
        {**OPUS, "service_tier": tier, "inference_geo": "us"} for tier in ("standard", "priority")
    ] * 10
    found = report(*attempts)

    assert [row[:5] for row in rows_of(found)] == [
        ("claude-opus-4-8", "priority", "us", "10", "5.2500"),
        ("claude-opus-4-8", "standard", "us", "10", "5.2500"),
    ]
    assert section_of(found).notes == (
        "The price file has no rates for priority: these costs are at the list price.",
    )


def test_a_fallback_is_named_and_each_iteration_costs_what_its_model_costs(report):
    iterations = [
        {"type": "message", "model": "claude-fable-5", "input_tokens": 100_000, "output_tokens": 0},
        {
            "type": "fallback_message",
            "model": "claude-opus-4-8",
            "input_tokens": 100_000,
            "output_tokens": 1000,
        },
    ]
    fable = {**OPUS, "asked_model": "claude-fable-5", "model": "claude-fable-5"}
    fell_back = {
        **fable,
        "model": "claude-opus-4-8",
        "fallback": "claude-fable-5",
        "iterations": json.dumps(iterations),
    }
    found = report(*[fell_back] * 6, *[fable] * 14)
    sentence = "6 of 20 answers were served by claude-opus-4-8 after claude-fable-5 (fallback)"

    assert section_of(found).answer == f"{sentence}."
    assert sentence in " ".join(found.summary.split())
    assert found.data["served"]["fallbacks"] == [
        {"before": "claude-fable-5", "after": "claude-opus-4-8", "calls": 6}
    ]
    # $1 for the model that gave up, and $0.525 for the one that answered; $1.05 where none gave up.
    assert {row[0]: row[2] for row in rows_of(found)} == {
        "claude-opus-4-8": f"{6 * 1.525:.4f}", "claude-fable-5": f"{14 * 1.05:.4f}",
    }  # fmt: skip


def test_models_without_a_price_have_no_cost_and_not_one_of_zero(report):
    attempts = [
        {**OPUS, "model": model, "asked_model": model}
        for model in ("unheard-of", "claude-opus-4-8")
    ] * 10
    found = report(*attempts)

    assert {row[0]: row[2] for row in rows_of(found)} == {
        "unheard-of": "–",
        "claude-opus-4-8": "5.2500",
    }


def test_answers_with_counts_beyond_the_request_are_in_no_cost(report):
    attempts = [{**OPUS, "speed": speed} for speed in ("standard", "fast")] * 10
    marked = [{**OPUS, "speed": "standard", "usage_marks": mark} for mark in ("input", "output")]
    found = report(*attempts, *marked)

    assert {row[1]: row[2:4] for row in rows_of(found)} == {
        "standard": ("12", "5.2500"), "fast": ("10", "5.2500"),
    }  # fmt: skip
