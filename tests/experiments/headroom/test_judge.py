"""The pieces of headroom: what a bucket sustains, what a level says, which rate is tried next."""

from dataclasses import replace

import numpy as np
import pytest
from experiments.headroom.planted import sustained_by_bucket
from tailgauge.experiments.headroom.judge import Charges, Met, Rate, RateResult, judged
from tailgauge.experiments.headroom.limits import (
    CAPACITY,
    OBJECTIVES,
    Bound,
    binding,
    capacity,
    ceiling,
    lowest,
    offered,
    sustained,
)
from tailgauge.experiments.headroom.search import NextRate, SearchPlan, attempts, ends

from tailgauge.scenario.experiment import Headroom
from tailgauge_analysis.stats.proportions import counted
from tailgauge_analysis.text.section import FAIL, INCONCLUSIVE, PASS

REFUSED = 0.01
GAPS = np.random.default_rng(7).exponential(1.0, 40_000)
KNOWN = Rate(10.0, 9.9, 10.1)
PLAN = SearchPlan(
    today=4.0, most=40.0, growth=1.25, precision=0.05, confirm=3, period_s=40.0, narrow=1.05**2.4
)

NAMED = ("a limit in the headers",)


def at(rate, k=0, n=400, **given):
    values = {
        "rate_per_s": rate, "emptied": False, "seconds": 30.0, "requests": n,
        "refused": counted(k, n), "overloaded": 0, "kinds": {"requests": k} if k else {}, "objectives": (),
        "served": Rate(rate, rate - 0.1, rate + 0.1), "growth_per_s": 0.0,
        "detectable_per_s": rate / 10, "growing": False, "saturated": False, "answer_s": 0.5, "buckets": NAMED,
        "charges": Charges({}, {}), "offered": {},
    }  # fmt: skip
    return RateResult(**(values | given))


def outcomes(runs, known=None, *, by_capacity=False):
    return {
        (one.rate_per_s, one.emptied): one.outcome
        for one in judged(runs, Headroom(refused=REFUSED), known, by_capacity=by_capacity)
    }


@pytest.mark.parametrize(("calls", "within"), [(5, 0.02), (20, 0.02), (60, 0.005)])
def test_a_bucket_sustains_what_queueing_theory_says(calls, within):
    found = sustained(offered(GAPS, np.ones(100)), 10.0, float(calls), REFUSED)

    assert found == pytest.approx(sustained_by_bucket(10.0, calls, REFUSED), rel=within)


def test_of_one_call_at_once_and_of_very_many_the_rate_is_known_in_closed_form():
    of = offered(GAPS, np.ones(100))

    assert sustained(of, 10.0, 1.0, 0.1) == pytest.approx(10 * 0.1 / 0.9, rel=0.02)  # rho / (1 + rho)
    assert sustained(of, 10.0, 2000.0, 0.1) == pytest.approx(10 / 0.9, rel=0.005)  # 1 - 1 / rho


def test_what_requests_ask_for_scales_the_rate_and_makes_it_unsure():
    seen = np.random.default_rng(1).choice([100.0, 300.0], 400)
    of = offered(GAPS, seen)

    assert of.mean == pytest.approx(seen.mean())
    assert of.unsure == pytest.approx(1.96 * seen.std() / seen.mean() / 20)
    assert sustained(of, 2000.0, 12_000.0, REFUSED) == pytest.approx(2000 / seen.mean(), rel=0.02)


def test_a_bucket_smaller_than_a_request_sustains_nothing():
    assert sustained(offered(GAPS, np.full(10, 200.0)), 2000.0, 150.0, REFUSED) == 0.0


def test_bursts_of_arrivals_lower_what_is_sustained():
    bursty = np.where(np.arange(40_000) % 30 == 0, 30 * GAPS, 0.0)

    assert sustained(offered(bursty, np.ones(9)), 10.0, 60.0, REFUSED) < 8.0
    assert sustained(offered(np.ones(40_000), np.ones(9)), 10.0, 60.0, REFUSED) > 10.0


def test_levels_by_themselves_pass_fail_or_are_inconclusive():
    runs = [at(5), at(6, n=200), at(7, k=40), at(8, growing=True)]

    assert outcomes(runs) == {(5, False): PASS, (6, False): INCONCLUSIVE, (7, False): FAIL, (8, False): FAIL}


def test_runs_of_one_rate_are_one_sample():
    assert outcomes([at(6, n=200)] * 2) == {(6, False): PASS}


def test_a_known_limit_decides_what_a_full_bucket_hides():
    runs = [at(9.5, n=100), at(10), at(10.5), at(10.5, k=30, emptied=True)]

    assert outcomes(runs, KNOWN) == {
        (9.5, False): PASS, (10, False): INCONCLUSIVE, (10.5, False): FAIL, (10.5, True): FAIL,
    }  # fmt: skip


def test_levels_that_contradict_a_known_limit_are_inconclusive():
    runs = [at(9.5, k=40), at(10.5, emptied=True)]

    assert outcomes(runs, KNOWN) == {(9.5, False): INCONCLUSIVE, (10.5, True): INCONCLUSIVE}


def test_a_backlog_that_grew_less_than_it_would_have_contradicts_a_known_capacity():
    runs = [at(12), at(13, growth_per_s=2.5, growing=True), at(14), *[at(11)] * 20]

    assert outcomes(runs, KNOWN, by_capacity=True) == {
        (11, False): PASS,  # of twenty runs: one in 4.5 of what a single run sees
        (12, False): PASS, (13, False): FAIL, (14, False): PASS,
    }  # fmt: skip
    assert outcomes([at(11)], KNOWN, by_capacity=True) == {(11, False): INCONCLUSIVE}


def test_below_a_known_capacity_only_an_objective_fails_a_rate():
    met = within(400)
    runs = [at(8, growing=True, objectives=met), at(9.5, growth_per_s=None, objectives=met)]

    assert outcomes(runs, KNOWN, by_capacity=True) == {(8, False): INCONCLUSIVE, (9.5, False): PASS}
    assert outcomes([*runs, at(9.7, objectives=MISSED)], KNOWN, by_capacity=True)[9.7, False] == FAIL


def free(rate, **given):
    return at(rate, buckets=(), **({"n": 60} | given))


def unlimited(one):
    return replace(one, buckets=())


def test_where_nothing_refuses_a_rate_passes_whose_backlog_was_seen_not_to_grow():
    runs = [free(4, growth_per_s=None), free(5), free(6, growing=True)]
    found = {
        one.rate_per_s: (one.outcome, one.leans) for one in judged(runs, Headroom(), None, by_capacity=False)
    }

    assert found == {4: (INCONCLUSIVE, PASS), 5: (PASS, PASS), 6: (FAIL, FAIL)}
    assert outcomes([*runs, free(7, k=1)])[5, False] == INCONCLUSIVE  # it refuses after all


def test_a_level_that_was_made_to_refuse_fails_nothing_without_a_known_limit():
    assert outcomes([at(5, k=40, emptied=True)]) == {(5, True): INCONCLUSIVE}


def within(k, n=400, needed=0.95):
    return (Met(counted(k, n), needed),)


MISSED, UNSURE = within(300), within(378)


def test_an_objective_fails_a_level_that_refuses_nobody():
    runs = [at(5, objectives=within(395)), at(6, objectives=MISSED), at(7, objectives=UNSURE)]

    assert outcomes(runs[:2]) == {(5, False): PASS, (6, False): FAIL}
    assert outcomes(runs[2:]) == {(7, False): INCONCLUSIVE}
    assert binding([runs[1]]) == OBJECTIVES


def test_rates_beside_it_say_whether_an_objective_is_met():
    """More load makes no answer faster: with the runs at higher rates one passes, with those at lower ones it fails."""
    few = {"n": 60}
    better = [at(5, objectives=within(60, 60), **few), at(6, objectives=within(60, 60), **few)]
    worse = [at(8, objectives=within(50, 60), **few), at(9, objectives=within(53, 60), **few)]

    assert outcomes([free(5, objectives=within(60, 60))]) == {(5, False): INCONCLUSIVE}
    assert outcomes([*map(unlimited, better), *map(unlimited, worse)]) == {
        (5, False): PASS, (6, False): INCONCLUSIVE, (8, False): FAIL, (9, False): FAIL,
    }  # fmt: skip


def test_capacity_is_what_the_lowest_rate_that_reaches_it_answers_and_all_of_them_make_its_interval():
    over = at(15, growing=True, saturated=True, served=Rate(12.0, 11.8, 12.2))
    far_over = at(30, growing=True, saturated=True, served=Rate(9.0, 8.8, 9.2))
    few = at(20, growing=True, saturated=True, served=Rate(20.0, 0.0, float("inf")))

    assert capacity([at(5), over], REFUSED) == Rate(12.0, pytest.approx(11.8), pytest.approx(12.2))
    assert capacity([over, over], REFUSED).high == pytest.approx(12 + 0.2 / 2**0.5)
    assert capacity([far_over, over, few], REFUSED) == Rate(12.0, pytest.approx(8.8), pytest.approx(12.2))
    assert capacity([at(5), at(15, k=100)], REFUSED) is None
    assert binding([over]) == CAPACITY
    assert binding([at(5, objectives=MISSED)]) == OBJECTIVES


def test_what_binds_is_the_limit_with_most_429s():
    assert binding([at(12, k=40), at(13, kinds={"input_tokens": 30})]) == "requests"
    assert binding([at(12, k=3, overloaded=50)]) == CAPACITY


def test_only_limits_that_were_met_decide():
    seen = Bound("requests", KNOWN, None, None, decides=True)
    named = Bound("input_tokens", Rate(2.0, 1.0, 6.0), None, None, decides=False)

    assert lowest([named, seen]) == KNOWN
    assert lowest([named]) is None
    assert ceiling([seen]) is None


def tried(runs, known=None, *, by_capacity=False):
    return judged(runs, Headroom(refused=REFUSED), known, by_capacity=by_capacity)


def next_rates(runs, known=None, ceiling=None, plan=PLAN, *, by_capacity=False):
    return attempts(
        tried(runs, known, by_capacity=by_capacity), plan, known, ceiling, by_capacity=by_capacity
    )


def test_the_search_begins_at_todays_rate_and_goes_up_by_steps():
    assert next_rates([]) == [NextRate(4.0, 1, above=False)]
    assert next_rates([at(4)]) == [NextRate(5.0, 1, above=False)]


def test_towards_a_named_limit_it_goes_up_at_most_twice_in_a_minute():
    (jump,) = next_rates([at(4)], ceiling=100.0)
    (near,) = next_rates([at(4)], ceiling=5.5)

    assert jump.rate_per_s == pytest.approx(4 * 2 ** (40 / 60))
    assert near.rate_per_s == pytest.approx(5.5 * 1.05)


def test_where_todays_rate_fails_it_goes_down_and_gives_up_in_the_end():
    (down,) = next_rates([at(4, k=100)])

    assert down.rate_per_s == pytest.approx(4 / 1.25**2)
    assert next_rates([at(4 / 60, k=100)]) == []


def test_inconclusive_rates_count_by_what_they_lean_to_until_the_gap_is_narrow():
    (middle,) = next_rates([at(4, n=130), at(9, k=2, n=130)])

    assert middle == NextRate(pytest.approx(6.0), 1, above=False)


def test_both_ends_are_run_until_they_are_decided_and_further_out_where_they_stay_inconclusive():
    close = [at(8.6, n=130), at(9, k=2, n=130)]
    decided = [*[at(8.6, n=130)] * 3, *[at(9, k=2, n=130)] * 3]

    assert next_rates(close) == [NextRate(8.6, 2, above=False), NextRate(9, 2, above=False)]
    assert next_rates(decided) == [NextRate(pytest.approx(9 * 1.05), 3, above=False)]


def test_once_a_limit_is_known_both_sides_of_it_are_tried():
    below, above = next_rates([at(4), at(12, k=60)], KNOWN)

    assert below == NextRate(pytest.approx(10 / 1.05), 3, above=False)
    assert above == NextRate(pytest.approx(10.5), 3, above=True)


def test_both_ends_are_confirmed_and_then_it_is_over():
    runs = [at(9.52)] * 3 + [at(10.5, k=30, emptied=True)]

    assert next_rates(runs, KNOWN) == [NextRate(10.5, 2, above=True)]
    assert next_rates([*runs, *runs[-1:] * 2], KNOWN) == []


def test_a_side_that_contradicts_is_tried_further_out():
    runs = [at(4), *[at(9.52, k=40)] * 3, *[at(10.5, k=30, emptied=True)] * 3]
    (lower,) = next_rates(runs, KNOWN)

    assert lower == NextRate(pytest.approx(9.52 / 1.05), 3, above=False)


def test_without_a_known_limit_it_halves_the_gap_until_it_is_narrow():
    (middle,) = next_rates([at(4), at(9, k=60)])

    assert middle.rate_per_s == pytest.approx(6.0)
    close = [at(8.6), at(9, k=60)]
    assert {one.rate_per_s for one in next_rates(close)} == {8.6, 9}
    assert [one and one.rate_per_s for one in ends(tried(close))] == [8.6, 9]


def test_where_nothing_fails_the_highest_rate_is_confirmed():
    assert next_rates([at(40)]) == [NextRate(40, 2, above=False)]
    assert next_rates([at(40)] * 3) == []


def test_a_capacity_is_tried_just_below_and_well_above_without_a_burst():
    over = free(16, growing=True, saturated=True)
    below, above = next_rates([free(8), over], KNOWN, by_capacity=True)

    assert below == NextRate(pytest.approx(10 / 1.05), 3, above=False)
    assert above == NextRate(pytest.approx(10.1 * 1.2), 3, above=False)
    ends_tried = [free(8), over, free(9.52), free(12.12, growing=True)]
    assert next_rates(ends_tried, KNOWN, by_capacity=True) == [
        NextRate(9.52, 2, above=False), NextRate(12.12, 2, above=False),
    ]  # fmt: skip


@pytest.mark.parametrize(("runs", "middle"), [
    ([free(8), free(14), free(16, growing=True)], (14 * 16) ** 0.5),  # it does more with a short queue
    ([free(4, objectives=within(400)), free(8, objectives=MISSED), free(16, growing=True, objectives=MISSED)], 32**0.5),
])  # fmt: skip
def test_a_capacity_that_the_rates_contradict_is_left_and_the_gap_halved(runs, middle):
    assert next_rates(runs, KNOWN, by_capacity=True) == [NextRate(pytest.approx(middle), 1, above=False)]
