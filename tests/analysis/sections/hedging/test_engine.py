"""What hedges took by the counters of engines: both figures, whichever protocol's usage; a count that is not of these calls is not used."""

import numpy as np
import pandas as pd
import pytest

from tailgauge_analysis.sections.hedging.engine import engine_count
from tailgauge_analysis.sections.hedging.section import LoserCost, by_engine

LLAMA = "llama.cpp"
NONE = float("nan")


def attempts(whole, closed, prompt=100, cached=0.0, output=20):
    """So many whole calls, then as many closed ones without usage, after a preflight."""
    n = 1 + whole + closed
    known = np.arange(n) <= whole
    return pd.DataFrame(
        {
            "stage": ["preflight"] + ["steady"] * (n - 1),
            "sent_at_ns": np.arange(n),
            "ended": np.where(known, "ok", "cancelled"),
            "input_tokens": np.where(known, float(prompt), NONE),
            "cache_creation_input_tokens": 0.0,
            "cache_read_input_tokens": np.where(known, cached, NONE),
            "output_tokens": np.where(known, float(output), NONE),
        }
    )


def work(engine=LLAMA, prompt=0, cached=0, output=0):
    return {"engine": engine, "prompt": prompt, "cached": cached, "output": output}


@pytest.mark.parametrize(
    ("counts", "rows", "expected"),
    [
        (
            [work(prompt=28_500, output=3_300)],
            attempts(159, 140),
            (28_500, 15_900, 3_300, 3_180, 140),
        ),
        (
            [work(prompt=9_000, output=700), work(prompt=7_000, output=600)],
            attempts(60, 100),
            (16_000, 6_000, 1_300, 1_200, 100),
        ),
        # The usage has what was read from the cache: so does the figure of the rows not.
        (
            [work("vLLM", prompt=19_000, cached=8_000, output=2_100)],
            attempts(100, 50, prompt=60, cached=40.0),
            (11_000, 6_000, 2_100, 2_000, 50),
        ),
        # It does not: then neither does the engine's.
        (
            [work("vLLM", prompt=14_000, cached=5_000, output=2_100)],
            attempts(100, 50, cached=NONE),
            (14_000, 10_000, 2_100, 2_000, 50),
        ),
    ],
)
def test_both_figures_stand_side_by_side(counts, rows, expected):
    found = engine_count(counts, rows)
    figures = (
        found.prompt_tokens,
        found.prompt_in_rows,
        found.output_tokens,
        found.output_in_rows,
        found.without_usage,
    )

    assert figures == expected
    assert f"{expected[0]:,} prompt tokens processed, {expected[1]:,} in the rows" in found.text


@pytest.mark.parametrize(
    "counts",
    [
        [],
        [work(prompt=9_000, output=2_000)],  # of another engine behind the same address
        [work(prompt=40_000, output=4_000)],  # other users: more than the closed calls had
        [work(prompt=12_000, output=1_000)],
        [work(prompt=12_000, output=2_100), work(prompt=None, output=50)],
    ],
    ids=["no page", "too few", "too many", "too few generated", "one without prompts"],
)
def test_a_count_that_is_not_of_these_calls_is_not_used(counts):
    assert engine_count(counts, attempts(100, 50)) is None


@pytest.mark.parametrize(("losers", "share"), [(50, 1.0), (20, 0.4), (0, 0.0)])
def test_the_losers_take_their_part_of_what_the_rows_do_not_have(losers, share):
    rows = attempts(100, 50).assign(cache_creation_input_tokens=0.0)
    counted = engine_count([work(prompt=14_000, output=2_500)], rows)
    of_losers = rows[rows["ended"] == "cancelled"].head(losers)
    cost = by_engine(LoserCost(why="no price"), rows[1:], of_losers, counted)

    assert cost.low == cost.high == pytest.approx(share * (4_000 + 500))
    assert cost.low_share == pytest.approx(cost.low / (10_000 + 2_000))
    assert cost.unit == "tokens, by the counters of llama.cpp"


def test_where_there_is_a_price_the_count_stands_beside_the_cost():
    rows = attempts(100, 50)
    counted = engine_count([work(prompt=14_000, output=2_500)], rows)
    cost = by_engine(LoserCost(unit="USD", low=1.0, high=2.0), rows, rows, counted)

    assert (cost.unit, cost.low, cost.high) == ("USD", 1.0, 2.0)
    assert cost.by_engine == counted.text
