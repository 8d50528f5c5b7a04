"""A load by its rows: it holds, fails or is inconclusive; a known limit never overrules them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from tailgauge.experiments.loads.judge import BACKLOG, REFUSALS, JudgedLoad, judge
from tailgauge.experiments.loads.run import Charges, Exceedance, Interval, LoadRun
from tailgauge_analysis import FAIL, INCONCLUSIVE, PASS, counted

REFUSED = 0.01
NAME = "ttft p95 < 800 ms"
NAMED: Any = ("a limit in the headers",)


def at(load: float, refused: int = 0, requests: int = 400, **given: Any) -> LoadRun:
    """A run with so many refused attempts, at a target that names a limit."""
    values: dict[str, Any] = {
        "load": load,
        "arrived": load,
        "seconds": 30.0,
        "requests": requests,
        "refused": counted(refused, requests),
        "kinds": {"requests": refused} if refused else {},
        "served": Interval(load, load - 0.1, load + 0.1),
        "growth_per_s": 0.0,
        "detectable_per_s": load / 10,
        "growing": False,
        "saturated": False,
        "stay_s": 0.5,
        "buckets": NAMED,
        "charges": Charges({}, {}),
    }
    return LoadRun(**(values | given))


def missed(late: int, requests: int = 400) -> tuple[Exceedance, ...]:
    """An objective that so many requests missed."""
    return (Exceedance(NAME, counted(late, requests), 0.05),)


def outcomes(runs: list[LoadRun], **given: Any) -> dict[float, str]:
    """The outcome of each load."""
    return {load.load: load.outcome for load in judge(runs, REFUSED, **given)}


def test_a_load_fails_by_its_refusals_or_its_backlog_and_else_holds_if_that_is_shown():
    grows = {"growing": True, "saturated": True, "growth_per_s": 3.0}
    runs = [at(5), at(6, requests=200), at(7, refused=40), at(8, **grows)]
    judged = judge(runs, REFUSED)

    assert [load.outcome for load in judged] == [PASS, INCONCLUSIVE, FAIL, FAIL]
    assert [load.cause for load in judged[:3]] == ["", "", REFUSALS]
    assert judge([at(5), at(8, **grows)], REFUSED)[1].cause == BACKLOG
    assert [load.leans for load in judged] == [PASS, PASS, FAIL, FAIL]


def test_runs_of_one_load_are_one_sample():
    assert outcomes([at(6, requests=200)] * 2) == {6: PASS}


def test_a_full_bucket_hides_a_load_that_would_hold_but_never_one_that_fails():
    runs = [at(9), at(11), at(12, refused=40)]
    found = outcomes(runs, hides=lambda run: run.load > 10)

    assert found == {9: PASS, 11: INCONCLUSIVE, 12: FAIL}


def test_a_small_growth_of_the_backlog_is_inconclusive_and_leans_to_a_failure():
    (load,) = judge([at(8, growing=True, growth_per_s=0.3)], REFUSED)

    assert (load.outcome, load.leans) == (INCONCLUSIVE, FAIL)


def test_where_nothing_refuses_a_load_holds_whose_backlog_was_seen_not_to_grow():
    free: dict[str, Any] = {"buckets": (), "requests": 60}

    assert outcomes([at(4, growth_per_s=None, **free), at(5, **free)]) == {4: INCONCLUSIVE, 5: PASS}
    assert (
        outcomes([at(5, **free), at(7, refused=1, **free)])[5] == INCONCLUSIVE
    )  # it refuses after all


def test_an_objective_fails_a_load_that_refuses_nobody():
    judged = judge([at(5, objectives=missed(5)), at(6, objectives=missed(100))], REFUSED)

    assert [load.outcome for load in judged] == [PASS, FAIL]
    assert [load.cause for load in judged] == ["", NAME]
    assert [load.met for load in judged] == [PASS, FAIL]


def test_neighbours_say_whether_an_objective_is_met():
    """More load makes no answer faster: with the runs at higher loads one holds, with those at lower ones it fails."""
    better = [at(load, objectives=missed(0, 60), buckets=()) for load in (5, 6)]
    worse = [
        at(8, objectives=missed(10, 60), buckets=()),
        at(9, objectives=missed(7, 60), buckets=()),
    ]

    assert outcomes(better[:1]) == {5: INCONCLUSIVE}
    assert outcomes([*better, *worse]) == {5: PASS, 6: INCONCLUSIVE, 8: FAIL, 9: FAIL}


def test_only_neighbours_that_are_decided_themselves_decide_a_load_of_a_curve():
    """A load is decided by itself, or where its own value agrees with a neighbour that is."""
    open_loads = [at(load, objectives=missed(0, 60), buckets=()) for load in (4, 5)]
    held = at(6, objectives=missed(0, 100), buckets=())
    nearly = [at(load, objectives=missed(7, 60), buckets=()) for load in (7, 8)]
    failed = at(7, objectives=missed(20, 60), buckets=())

    assert outcomes(open_loads) == {4: PASS, 5: INCONCLUSIVE}
    assert outcomes(open_loads, borrows=False) == {4: INCONCLUSIVE, 5: INCONCLUSIVE}
    judged = judge([*open_loads, held, failed, nearly[1]], REFUSED, borrows=False)
    assert [load.outcome for load in judged] == [PASS, PASS, PASS, FAIL, FAIL]
    assert [load.pooled_with for load in judged] == [(5, 6), (6,), (), (), (7,)]
    assert outcomes(nearly, borrows=False) == {7: INCONCLUSIVE, 8: INCONCLUSIVE}
    contradicts = at(5, objectives=missed(4, 60), buckets=())  # 6.7% of 5%
    assert outcomes([contradicts, held], borrows=False)[5] == INCONCLUSIVE


def test_a_single_run_keeps_the_interval_of_its_few_slow_periods():
    """44 of 140 in one period say less than 44 of 140 that count as 10."""
    wide = replace(counted(44, 140, 10), low=0.026, high=0.80)
    (load,) = judge(
        [at(4, objectives=(Exceedance(NAME, wide, 0.05),), buckets=())], REFUSED, borrows=False
    )

    assert (load.outcome, load.leans) == (INCONCLUSIVE, FAIL)


@pytest.mark.parametrize(("shown", "outcome"), [(8.2, INCONCLUSIVE), (12.0, PASS)])
def test_few_late_requests_depend_on_each_other_as_in_a_run_close_by(shown, outcome):
    bursty = (Exceedance(NAME, counted(60, 400, 8), 0.05),)
    runs = [at(8, objectives=missed(0)), at(shown, objectives=bursty)]

    assert outcomes(runs)[8] == outcome


def test_the_ends_of_an_interval_are_as_planned_or_as_arrived_whichever_is_further_out():
    load: JudgedLoad
    (load,) = judge([at(8, arrived=8.3)], REFUSED)

    assert (load.least, load.most) == (8, 8.3)
