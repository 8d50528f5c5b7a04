"""What a bucket sustains by queueing theory, what the runs show of limits and capacity, and what binds."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from experiments.loads.planted import sustained_by_bucket
from experiments.loads.test_judge import at, missed

from tailgauge.experiments.loads.judge import judge
from tailgauge.experiments.loads.limits import (
    CAPACITY,
    OBJECTIVES,
    Bound,
    Limit,
    Turns,
    binding,
    capacity,
    demand_of,
    demand_of_sessions,
    hides,
    retried,
    sustained,
)
from tailgauge.experiments.loads.run import Charges, Interval

REFUSED = 0.01
GAPS = np.random.default_rng(7).exponential(1.0, 40_000)
FULL: dict[str, Any] = {"growing": True, "saturated": True, "growth_per_s": 3.0}


@pytest.mark.parametrize(("calls", "within"), [(5, 0.02), (20, 0.02), (60, 0.005)])
def test_a_bucket_sustains_what_queueing_theory_says(calls, within):
    found = sustained(demand_of(GAPS, np.ones(100)), 10.0, float(calls), REFUSED)

    assert found == pytest.approx(sustained_by_bucket(10.0, calls, REFUSED), rel=within)


def test_of_one_call_at_once_and_of_very_many_the_rate_is_known_in_closed_form():
    demand = demand_of(GAPS, np.ones(100))

    assert sustained(demand, 10.0, 1.0, 0.1) == pytest.approx(
        10 * 0.1 / 0.9, rel=0.02
    )  # rho / (1 + rho)
    assert sustained(demand, 10.0, 2000.0, 0.1) == pytest.approx(10 / 0.9, rel=0.005)  # 1 - 1 / rho


def test_what_requests_ask_for_scales_the_rate_and_makes_it_unsure():
    seen = np.random.default_rng(1).choice([100.0, 300.0], 400)
    demand = demand_of(GAPS, seen)

    assert demand.mean == pytest.approx(seen.mean())
    assert demand.error == pytest.approx(1.96 * seen.std() / seen.mean() / 20, rel=1e-3)
    assert sustained(demand, 2000.0, 12_000.0, REFUSED) == pytest.approx(
        2000 / seen.mean(), rel=0.02
    )


@pytest.mark.parametrize(
    ("load", "arrived", "is_hidden"), [(4.5, 4.9, False), (4.9, 4.5, True), (9.0, 9.0, False)]
)
def test_a_full_bucket_hides_only_a_planned_load_that_is_too_high(load, arrived, is_hidden):
    """More arrivals than planned make a run harder, and a bucket that they emptied hides nothing."""
    limit = Limit("requests", 9, Interval(5.0, 5.0, 5.0), Interval(20.0, 20.0, 20.0), seen=True)
    bound = Bound("requests", Interval(4.8, 4.7, 4.9), None, limit)
    run = at(load, arrived=arrived, charges=Charges({"requests": np.ones(9)}, {}))

    assert hides(run, [bound], 1.0) == is_hidden


def test_a_bucket_smaller_than_a_request_sustains_nothing():
    assert sustained(demand_of(GAPS, np.full(10, 200.0)), 2000.0, 150.0, REFUSED) == 0.0


def test_bursts_of_arrivals_lower_what_is_sustained():
    bursty = np.where(np.arange(40_000) % 30 == 0, 30 * GAPS, 0.0)

    assert sustained(demand_of(bursty, np.ones(9)), 10.0, 60.0, REFUSED) < 8.0
    assert sustained(demand_of(np.ones(40_000), np.ones(9)), 10.0, 60.0, REFUSED) > 10.0


def test_capacity_is_what_the_lowest_load_that_reaches_it_answers_and_all_of_them_make_its_interval():
    over = at(15, served=Interval(12.0, 11.8, 12.2), **FULL)
    far_over = at(30, served=Interval(9.0, 8.8, 9.2), **FULL)
    few = at(20, served=Interval(20.0, 0.0, float("inf")), **FULL)

    assert capacity([at(5), over], REFUSED) == Interval(12.0, 11.8, 12.2)
    assert capacity([far_over, over, few], REFUSED) == Interval(12.0, 8.8, 12.2)
    assert capacity([at(5), at(15, refused=100)], REFUSED) is None


@pytest.mark.parametrize(
    ("runs", "name"),
    [
        ([at(12, refused=40), at(13, refused=90, kinds={"input_tokens": 90})], "input_tokens"),
        ([at(12, refused=53, kinds={"requests": 3}, overloaded=50)], CAPACITY),
        ([at(15, **FULL)], CAPACITY),
        ([at(5, objectives=missed(100)), at(6, objectives=missed(100), **FULL)], OBJECTIVES),
    ],
    ids=["most 429s", "overload", "backlog", "objective"],
)
def test_what_binds_is_what_fails_the_lowest_load(runs, name):
    assert binding(judge(runs, REFUSED)) == name


# Conversations/s at which 1% of the calls are refused, by bench/bucket_oracle.py: mean turns, median think time, bucket.
@pytest.mark.parametrize(
    ("turns", "think_s", "rate", "burst", "expected"),
    [(5.0, 0.3, 10.0, 60.0, 1.945), (3.0, 1.0, 5.0, 30.0, 1.522), (8.0, 0.2, 20.0, 120.0, 2.615)],
)
def test_turns_come_in_bursts_and_a_refused_one_ends_its_conversation(
    turns, think_s, rate, burst, expected
):
    rng = np.random.default_rng(5)
    sizes = rng.geometric(1 / turns, 3000)
    arrivals = np.repeat(np.arange(3000), sizes)
    steps_s = np.where(
        np.diff(arrivals, prepend=-1) > 0,
        0.0,
        0.1 + rng.lognormal(np.log(think_s), 0.6, len(arrivals)),
    )
    totals_s = np.cumsum(steps_s)
    firsts = np.concatenate(([0], np.cumsum(sizes)[:-1]))
    offsets_s = totals_s - np.repeat(totals_s[firsts], sizes)
    conversations = Turns(charges=np.ones(len(arrivals)), arrivals=arrivals, offsets_s=offsets_s)
    gaps_s = rng.exponential(1.0, int(60_000 / turns)) * turns / rate
    found = sustained(demand_of_sessions(gaps_s, conversations), rate, burst, REFUSED)

    assert found / turns == pytest.approx(expected, rel=0.035)


@pytest.mark.parametrize(
    ("counts", "share", "again"),
    [
        ([], 0.0, 0.0),
        ([(1000, 10, 10, 4)], 1.0, 0.4),
        ([(1000, 12, 6, 3), (900, 500, 400, 390)], 0.793, 0.5),
    ],
)
def test_refused_calls_that_come_again_are_counted_near_the_allowed_share(counts, share, again):
    runs = [
        at(10, requests=n, refused=refused, retries=retries, refused_again=again_k)
        for n, refused, retries, again_k in counts
    ]
    found = retried(runs, REFUSED)

    assert found.share == pytest.approx(share, abs=0.001)
    assert found.refused == pytest.approx(again)
