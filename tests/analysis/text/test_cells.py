"""Estimates as cells: the interval, the reason where there is none, and fields that are for figures alone."""

from dataclasses import dataclass, field

import numpy as np

from tailgauge_analysis.stats.proportions import proportion
from tailgauge_analysis.stats.quantiles import quantiles
from tailgauge_analysis.text.cells import (
    quantile_cell,
    quantile_table,
    quantiles_text,
    share_cell,
    side_by_side,
    values_needed,
    values_text,
    with_interval,
)
from tailgauge_analysis.text.quantile import UNPUBLISHED, plain_values


def test_a_percentile_has_its_interval_and_its_caution():
    rising = np.arange(1.0, 101.0)
    half, extreme = quantiles(np.random.default_rng(1).permutation(rising), (0.5, 0.999))
    failed = quantiles(np.full(400, np.inf), (0.5,))[0]

    assert with_interval(quantile_cell(half), " ms").startswith("50.0 ms (95% CI ")
    assert quantile_cell(extreme).text == "too few"
    assert quantile_cell(quantiles(np.array([]), (0.5,))[0]).text == "–"
    assert with_interval(quantile_cell(failed)) == "no value: too many requests failed"


def test_values_above_a_median_are_not_called_slow():
    rising = np.arange(1.0, 101.0)
    median, tail = quantiles(rising, (0.5, 0.95))

    assert (
        with_interval(quantile_cell(median))
        == "50.0 (values above the percentile came in only 1 period of the run)"
    )
    assert with_interval(quantile_cell(tail)).endswith(
        "values above the percentile came in only 1 period of the run)"
    )


def test_a_mark_is_shorter_in_a_table_of_text_and_stands_once_in_a_sentence():
    median, tail = quantiles(np.arange(1.0, 101.0), (0.5, 0.95))
    failed = quantiles(np.full(400, np.inf), (0.5, 0.95))

    assert quantile_cell(median).in_line == "50.0, values above it in only 1 period"
    assert quantiles_text(median, tail).startswith("p50 50.0 ms, p95 95.0 ms")
    assert quantiles_text(median, tail).endswith(
        "; each: values above the percentile came in only 1 period of the run"
    )
    assert values_text(failed) == "p50 and p95 have no value: too many requests failed"


def test_a_table_says_how_many_values_are_needed():
    few = quantiles(np.arange(1.0, 41.0), (0.5, 0.95, 0.99))
    none = quantiles(np.array([]), (0.5, 0.95, 0.99))

    assert quantile_table("t", "event", [("a", few)], "Note.").note == (
        "Note. Too few: p95 needs 59, p99 needs 299 values."
    )
    assert values_needed(few[:1]) == values_needed(none) == ""


def test_a_share_of_few_bursts_says_so():
    seen = np.zeros(1000, np.bool_)
    seen[100:150] = True

    assert share_cell(proportion(seen)).mark == "all of these came in only 1 period of the run"
    assert share_cell(proportion(~seen)).mark == "the other 5.0% came in only 1 period of the run"
    assert (
        with_interval(share_cell(proportion(np.ones(20, np.bool_))))
        == "100% (95% CI 83.2% – 100.0%)"
    )
    assert share_cell(proportion(np.zeros(0, np.bool_))).interval == ""


def test_a_table_of_percentiles_leaves_out_what_has_no_values():
    found = quantiles(np.arange(1.0, 101.0), (0.5, 0.95))
    table = quantile_table("Waits", "of", [("first", found), ("none", ())])

    assert table.header == ("of", "p50 (ms)", "p95 (ms)", "n")
    assert [row[0] for row in table.rows] == ["first"]
    assert table.rows[0][-1] == "100"


def test_what_figures_alone_need_is_not_published():
    @dataclass
    class Finding:
        n: int
        points: list = field(default_factory=list, metadata=UNPUBLISHED)

    assert plain_values(Finding(3)) == {"n": 3}


def test_facts_of_several_things_stand_side_by_side():
    one = side_by_side("Hedging", {"late": [("Policy", "fixed")]})
    facts, (table,) = side_by_side(
        "Hedging", {"plain": [("429", "1")], "late": [("Policy", "fixed"), ("429", "2")]}
    )

    assert one == ((("Policy", "fixed"),), ())
    assert (facts, table.header) == ((), ("", "plain", "late"))
    assert table.rows == (("429", "1", "2"), ("Policy", "–", "fixed"))
