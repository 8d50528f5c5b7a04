"""Which loads are run next: double, bracket, halve, confirm."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from tailgauge.experiments.loads.run import Interval
from tailgauge.experiments.loads.search import NextLoad, Search, TriedLoad, bracket
from tailgauge_analysis import FAIL, INCONCLUSIVE, PASS

SEARCH = Search(start=4.0, least=0.1, most=40.0, growth=1.25, narrow=1.05, confirm=3, period_s=40.0)


def tried_load(load: float, outcome: str = PASS, leans: str = PASS, runs: int = 1) -> TriedLoad:
    """A load that was run."""
    return TriedLoad(load=load, arrived=load, runs=(None,) * runs, outcome=outcome, leans=leans)


def fails(load: float, runs: int = 1) -> TriedLoad:
    """A load that fails."""
    return tried_load(load, FAIL, FAIL, runs)


def next_loads(tried: list[TriedLoad], search: Search = SEARCH, **known: Any) -> list[float]:
    """The loads that come next."""
    return [load.load for load in search.next_loads(tried, **known)]


def test_the_search_begins_at_todays_load_and_goes_up_by_steps():
    assert next_loads([]) == [4.0]
    assert next_loads([tried_load(4.0)]) == [5.0]


def test_towards_a_named_limit_it_goes_up_at_most_twice_in_a_minute():
    assert next_loads([tried_load(4.0)], ceiling=100.0) == [
        pytest.approx(4 * 2 ** (40 / 60), rel=1e-3)
    ]
    assert next_loads([tried_load(4.0)], ceiling=5.5) == [pytest.approx(5.5 * 1.05, rel=1e-3)]


def test_where_todays_load_fails_it_goes_down_and_gives_up_in_the_end():
    assert next_loads([fails(4.0)]) == [pytest.approx(4 / 1.25**2)]
    assert next_loads([fails(0.11)]) == []


def test_inconclusive_loads_count_by_what_they_lean_to_until_the_gap_is_narrow():
    tried = [tried_load(4.0, INCONCLUSIVE), tried_load(9.0, INCONCLUSIVE, FAIL)]

    assert next_loads(tried) == [6.0]
    assert next_loads([tried_load(8.8), fails(9.0)]) == [8.8, 9.0]


def test_both_ends_are_confirmed_and_then_it_is_over():
    confirmed = 3

    assert SEARCH.next_loads([tried_load(8.8), fails(9.0, 2)]) == [
        NextLoad(8.8, 2),
        NextLoad(9.0, 1),
    ]
    assert next_loads([tried_load(8.8, runs=confirmed), fails(9.0, 3)]) == []


def test_once_a_limit_is_known_a_load_just_below_it_is_confirmed():
    known = Interval(10.0, 9.9, 10.1)
    (below,) = SEARCH.next_loads([tried_load(4.0), fails(12.0)], known)

    assert below == NextLoad(pytest.approx(10 / 1.05, rel=1e-3), 3)
    assert (
        next_loads([tried_load(4.0), tried_load(below.load, runs=3), fails(12.0)], known_rate=known)
        == []
    )


def test_a_known_limit_is_confirmed_at_once_where_every_load_was_beyond_it():
    known = Interval(3.0, 2.9, 3.1)
    below = NextLoad(2.857, 3)

    assert SEARCH.next_loads([fails(4.0)], known) == [below]
    assert SEARCH.next_loads([tried_load(below.load, runs=3), fails(4.0)], known) == []
    assert next_loads([fails(2.8, runs=3), fails(4.0)], known_rate=known) == [
        pytest.approx(2.8 / 1.25**2)
    ]
    assert next_loads([fails(4.0)], known_rate=Interval(0.05, 0.04, 0.06)) == [
        pytest.approx(4 / 1.25**2)
    ]


def test_where_nothing_fails_the_highest_load_is_run_again_until_it_is_shown_to_hold():
    assert SEARCH.next_loads([tried_load(40.0)]) == []
    assert SEARCH.next_loads([tried_load(40.0, INCONCLUSIVE)]) == [NextLoad(40.0, 2)]
    assert next_loads([tried_load(40.0, INCONCLUSIVE, runs=3)]) == []


def test_on_both_sides_loads_come_ever_closer_and_none_is_run_twice():
    search = replace(SEARCH, on_both_sides=True)
    tried = [tried_load(8.0), fails(32.0)]
    first = next_loads(tried, search)
    again = next_loads(
        [*tried, *(tried_load(load, INCONCLUSIVE) for load in first[:2]), fails(first[2])], search
    )

    assert first == [pytest.approx(8 * 2**power, rel=1e-3) for power in (0.5, 1, 1.5)]
    assert not set(first) & set(again)
    assert all(8 < load < first[2] * 1.01 for load in again)


def test_the_ends_are_the_largest_that_holds_below_the_smallest_that_fails():
    low, high = bracket(
        [tried_load(4.0), tried_load(6.0), fails(8.0), tried_load(10.0), fails(12.0)]
    )

    assert low is not None
    assert high is not None
    assert (low.load, high.load) == (6.0, 8.0)
