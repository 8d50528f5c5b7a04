"""The numbers of the hedging experiment: contrasts of blocks, the fit by load, and the sentence about a crossover."""

from dataclasses import replace

import numpy as np
import pytest

from tailgauge.experiments.hedging import contrast, report
from tailgauge.experiments.hedging.judge import (
    CopyStats,
    LoadResult,
    around,
    closer,
    crossover,
    isotonic,
    p_values,
    result,
)  # fmt: skip
from tailgauge_analysis.report.plot import plot

PAIRS, EACH = 10, 60
NO_OBJECTIVE = {"bad_off": (), "bad_on": ()}


def blocks(rng, factor=1.0, each=EACH):
    return tuple(factor * rng.lognormal(5, 0.5, each) for _ in range(PAIRS))


def load(rate, factor, seed=1, copies=None, **given):
    rng = np.random.default_rng(seed)
    off, on = blocks(rng), blocks(rng, factor)
    values = {
        "bad_off": tuple((one > 400).astype(float) for one in off),
        "bad_on": tuple((one > 400).astype(float) for one in on),
        **given,
    }
    return LoadResult(rate, off, on, copies=copies or CopyStats(), washout_s=1.0, short=False, **values)


def answer_to(loads, *notes, today=4.0):
    return report.answer(
        report.TestedHedge("hedging after 250 ms", 10.0, today, minutes=25), loads, [], notes
    )


def test_the_difference_is_that_of_all_blocks_together():
    one = load(1.0, 1.5)
    found = contrast.quantiles(one.off, one.on, 0.95)
    ends = [
        np.quantile(np.concatenate(variant), 0.95, method="inverted_cdf") for variant in (one.on, one.off)
    ]

    assert found.value == pytest.approx(np.log(ends[0] / ends[1]))
    assert found.low < np.log(1.5) < found.high
    beyond = [(np.concatenate(variant) >= np.sqrt(ends[0] * ends[1])).mean() for variant in (one.on, one.off)]
    assert found.exchanged[0] == pytest.approx(beyond[0] - beyond[1])
    assert abs(found.exchanged.mean()) < found.exchanged.std() / 10


def test_shares_are_those_of_all_requests():
    off = (np.array([1.0, 0.0]), np.array([0.0, 0.0, 0.0, 0.0]))
    on = (np.array([1.0]), np.array([1.0, 0.0]))

    assert contrast.shares(off, on).value == pytest.approx(2 / 3 - 1 / 6)


def test_failures_are_slowest_and_not_compared():
    rng = np.random.default_rng(3)
    off = blocks(rng)
    lost = tuple(np.where(np.arange(EACH) < 10, np.inf, one) for one in off)

    assert contrast.quantiles(off, lost, 0.95).value == contrast.MOST
    assert contrast.quantiles(lost, lost, 0.95) is None


def test_drift_through_a_run_that_blocks_of_a_pair_share_makes_no_finding():
    """The target becomes three times slower during the run; a gain of a half is found all the same."""
    called, found = [], []
    for seed in range(12):
        rng = np.random.default_rng(seed)
        drift = np.geomspace(1, 3, PAIRS)
        off, same = ([by * rng.lognormal(5, 0.5, EACH) for by in drift] for _ in range(2))
        called.append(min(p_values([contrast.quantiles(off, same, 0.9)])[side][0] for side in (0, 1)))
        half = [0.5 * one for one in same]
        found.append(p_values([contrast.quantiles(off, half, 0.9)])[0][0])

    assert np.mean(np.array(called) <= 0.025) <= 0.17
    assert np.mean(np.array(found) <= 0.025) >= 0.9


def test_equal_variants_are_called_different_as_rarely_as_is_claimed():
    found = []
    for seed in range(40):
        rng = np.random.default_rng(seed)
        of = [contrast.quantiles(blocks(rng, each=12), blocks(rng, each=12), 0.9) for _ in range(3)]
        helps, hurts = p_values(of)
        found += [helps[0], hurts[-1]]

    assert np.mean(np.array(found) <= 0.05) <= 0.125  # 80 tests at 5%: more than 10 have a chance of 0.3%


def test_the_fit_never_decreases_and_keeps_the_weighted_mean():
    values, weights = np.array([1.0, 0.0, 3.0, 2.0]), np.array([1.0, 3.0, 1.0, 1.0])
    fit = isotonic(values, weights)

    assert fit.tolist() == [0.25, 0.25, 2.5, 2.5]
    assert (fit * weights).sum() == pytest.approx((values * weights).sum())


def test_the_crossover_lies_between_the_last_gain_and_the_first_harm():
    assert around([1.0, 2.0, 3.0], np.array([-1.0, 0.0, 1.0])) == (1.0, 3.0)
    assert around([1.0, 2.0], np.array([1.0, 2.0])) == (-np.inf, 1.0)
    assert around([1.0, 2.0, 3.0], np.array([-0.04, 0.0, 0.04]), 0.05) == (
        -np.inf,
        np.inf,
    )  # too small to report


def test_a_planted_crossover_is_found_and_told():
    factors = {2.0: 0.5, 3.0: 0.6, 4.0: 0.8, 5.0: 1.0, 6.0: 1.3, 7.0: 1.8, 8.0: 2.5}
    copies = CopyStats(hedged=0.2, won=0.4, cost=(0.0, 60.0), unit="units", cancelled=0.0, refused=(0.0, 0.0))
    loads = [load(rate, factor, int(rate), copies) for rate, factor in factors.items()]
    answer = answer_to(loads, "a note")
    tail, details, notes = answer.facts["found"]["tail"], answer.result.details, answer.sections[0].notes

    assert tail["helps_below_per_s"] < tail["crossover_per_s"] < tail["hurts_above_per_s"]
    assert tail["helps_below_per_s"] < 5 < tail["hurts_above_per_s"]
    assert "at today's 4 requests/s" in answer.result.sentence
    place, between, sizes, cause = details
    assert place.startswith("hedging after 250 ms helps below")
    assert between.startswith("between ")
    assert between.endswith(": leave it off, or measure again with experiment.minutes = 100")
    assert sizes.startswith("p99 −")
    assert " at 2 requests/s, +" in sizes
    assert cause.startswith("the target keeps generating for closed attempts")
    assert any("each ms gained costs 0 – " in text for text in notes)
    assert "A note." in notes
    assert [one["name"] for one in answer.facts["why"]] == [report.CANCEL]
    for table in answer.sections[0].tables:
        assert [len(row) for row in table.rows] == [len(table.header)] * len(loads)
    assert {row[5].text for row in answer.sections[0].tables[0].rows} == {"helps", "hurts", "inconclusive"}
    assert answer.result.outcome == "PASS"


def test_it_advises_on_todays_rate():
    loads = [
        load(rate, factor, int(rate)) for rate, factor in ((2.0, 0.4), (4.0, 0.5), (6.0, 2.0), (8.0, 2.5))
    ]
    advice = [answer_to(loads, today=rate).result.sentence for rate in (1.0, 5.0, 9.0)]

    assert advice == [
        "turn hedging on at today's 1 requests/s",
        "hedging has no clear effect at today's 5 requests/s",
        "leave hedging off at today's 9 requests/s",
    ]


def test_where_only_goodput_differs_it_decides():
    def missed(share):
        return tuple((np.arange(EACH) < share * EACH).astype(float) for _ in range(PAIRS))

    loads = [
        load(rate, 1.0, int(rate) + 20, bad_off=missed(0.3), bad_on=missed(0.3 + change))
        for rate, change in ((2.0, -0.2), (4.0, -0.1), (6.0, 0.1), (8.0, 0.2))
    ]
    answer = answer_to(loads, today=9.0)

    assert (answer.result.outcome, answer.result.sentence) == (
        "PASS",
        "leave hedging off at today's 9 requests/s",
    )
    assert answer.result.details[0].endswith(" by goodput")
    assert not answer.facts["found"]["tail"]["helps"]


def test_where_nothing_differs_that_is_the_answer_with_the_smallest_effect():
    answer = answer_to([load(rate, 1.0, int(rate) + 20) for rate in (2.0, 4.0, 6.0)])

    assert "shows no difference" in answer.result.sentence
    assert answer.smallest.startswith("a p99 that differs by ")
    assert answer.smallest.endswith("% at every load")
    assert answer.result.outcome == "INCONCLUSIVE"


def test_too_few_requests_for_a_p99_give_the_p95_and_say_so_and_fewer_give_nothing():
    def short(each):
        one = load(2.0, 0.5, **NO_OBJECTIVE)
        cut = [tuple(values[:each] for values in variant) for variant in (one.off, one.on)]
        return LoadResult(2.0, *cut, (), (), CopyStats(), 1.0, short=True)

    answer = answer_to([short(12)])
    assert answer.facts["found"]["quantile"] == 0.95
    notes = answer.sections[0].notes
    assert any("the p95 is used" in text for text in notes)
    assert any(text.startswith("Blocks are shorter") for text in notes)
    assert answer_to([short(5)]).result.sentence == report.NOTHING


def test_too_few_requests_for_any_quantile_leave_the_objectives_and_a_tail_without_a_number():
    one = load(2.0, 0.5)
    cut = [tuple(values[:5] for values in of) for of in (one.off, one.on, one.bad_off, one.bad_on)]
    answer = answer_to([LoadResult(2.0, *cut, CopyStats(), 1.0, short=False)])

    assert answer.facts["found"]["quantile"] is None
    assert [name for name in answer.sections[0].tables[0].header if name.endswith("ms")] == [
        "tail off, ms",
        "tail on, ms",
    ]


@pytest.mark.parametrize(
    ("name", "low", "high"),
    [
        (report.CANCEL, {}, {"cancelled": 0.2}),
        (report.LIMIT, {}, {"refused": (0.01, 0.2)}),
        (report.DELAY, {"hedged": 0.011}, {"hedged": 0.011}),
        (report.LOAD, {"hedged": 0.1}, {"hedged": 0.4}),
    ],
)
def test_every_reason_is_named_where_the_rows_show_it(name, low, high):
    healthy = {"hedged": 0.1, "cancelled": 1.0, "refused": (0.0, 0.0)}
    loads = [
        load(2.0, 0.5, 1, CopyStats(**{**healthy, **low})),
        load(8.0, 2.0, 2, CopyStats(**{**healthy, **high})),
    ]

    assert [one.name for one in report.causes(result(loads))] == [name]


def test_the_interval_holds_a_crossover_between_loads_and_the_loads_at_it():
    """p99 crosses at 5: at a tested load, or between two; by 60 requests a block, heavy tails, five loads."""
    held, width = [], []
    for seed in range(14):
        rates = (2.0, 4.0, 5.0 + seed % 2, 6.5, 8.0)
        found = result(
            [load(rate, 1.25 ** (rate - 5), 100 * seed + int(10 * rate), **NO_OBJECTIVE) for rate in rates],
            0.95,
        ).tail
        low, high = found.helps_below_per_s or 0.0, found.hurts_above_per_s or np.inf
        held.append(low <= 5 <= high)
        width.append(high - low)

    assert sum(held) >= 12
    assert np.median(width) < 5


def test_the_smallest_effect_that_is_printed_is_found_at_every_load_by_four_in_five():
    """A factor at all loads alike, in either direction."""
    text = answer_to([load(rate, 1.0, int(rate), **NO_OBJECTIVE) for rate in (2.0, 4.0, 6.0)]).smallest
    factor = 1 + float(text.removeprefix("a p99 that differs by ").removesuffix("% at every load")) / 100
    found = [
        result([load(rate, by, 50 * seed + int(rate), **NO_OBJECTIVE) for rate in (2.0, 4.0, 6.0)]).tail
        for seed in range(1, 9)
        for by in (factor, 1 / factor)
    ]

    assert 0.6 <= np.mean([one.helps or one.hurts for one in found]) <= 1.0
    assert all(one.helps != one.hurts for one in found if one.helps or one.hurts)


def test_the_tail_with_and_without_hedging_is_drawn_at_the_load_nearest_to_todays():
    loads = [load(rate, 0.5, int(rate)) for rate in (2.0, 4.0, 8.0)]
    lost = tuple(np.where(np.arange(EACH) < 6, np.inf, one) for one in loads[1].off)
    answer = answer_to([loads[0], replace(loads[1], off=lost), loads[2]], today=5.0)
    (section,) = answer.sections
    figures = {figure.name: figure for figure in section.figures}
    tails = figures["tails"]
    off, on = tails.panels[0].curves

    assert tails.caption.startswith("At 4 requests/s, the tested load nearest to today's 5.")
    assert (off.name, on.name) == ("without hedging", "with hedging")
    assert off.y[-1] == pytest.approx(0.1)  # failed
    assert 0 < on.y[-1] < 0.1  # a logarithmic axis has no zero
    assert "logarithmic" in plot(tails)
    gains = figures["hedging"].panels[0].curves
    assert [curve.name for curve in gains] == ["each load", "fit", "no change"]
    assert len(gains[0].low) == 3


def test_more_loads_are_tried_where_it_turns_only():
    assert closer([2.0, 4.0, 6.0], [-1.0, -0.5, 1.0], 3) == [4.5, 5.0, 5.5]
    assert closer([2.0, 4.0], [0.1, 0.5], 2) == []


def test_nothing_at_all_is_no_answer():
    answer = answer_to([])

    assert answer.result.outcome == "INCONCLUSIVE"
    assert answer.facts["found"]["loads"] == []


def test_turning_of_nothing_is_unknown():
    assert crossover([], [], helps=False, hurts=False, least=0.05).crossover_per_s is None


def test_from_where_it_is_unstable_hedging_hurts_and_no_size_is_given():
    """The largest of what was seen is a backlog, which grows with the run; the load above it is one of the target's own."""
    stable = [load(rate, factor, int(rate)) for rate, factor in ((2.0, 0.4), (4.0, 0.5))]
    above = [load(6.0, 9.0, 6, growth_per_s=(None, 1.5)), load(8.0, 30.0, 8, growth_per_s=(2.0, 4.0))]
    answer = answer_to([*stable, *above], today=7.0)
    found = answer.facts["found"]

    assert answer.result.sentence == (
        "leave hedging off at today's 7 requests/s: the target is unstable with hedging there"
    )
    assert answer.result.details[0].endswith("; unstable with hedging from 6 requests/s")
    assert (found["unstable_per_s"], found["tail"]["hurts_above_per_s"]) == (6.0, 6.0)
    assert found["tail"]["helps_below_per_s"] == 2.0  # the last with a gain, and one further
    assert [one["change"] is None for one in found["loads"]] == [False, False, True, True]
    assert [one["on_ms"] is None for one in found["loads"]] == [False, False, True, True]
    assert [row[5].text for row in answer.sections[0].tables[0].rows] == [
        "helps",
        "inconclusive",
        *["unstable with hedging"] * 2,
    ]
    assert any(text.startswith("Unstable without hedging too at 8 ") for text in answer.sections[0].notes)


def test_a_target_that_is_unstable_with_and_without_hedging_says_nothing_of_hedging():
    loads = [load(2.0, 1.0, 21), load(4.0, 1.0, 22), load(6.0, 3.0, 6, growth_per_s=(1.4, 1.5))]
    found = answer_to(loads).facts["found"]

    assert found["unstable_per_s"] is None
    assert not found["tail"]["hurts"]
    assert found["loads"][2]["change"] is None


def test_a_single_load_called_unstable_below_stable_ones_is_chance():
    loads = [load(2.0, 0.4, 2, growth_per_s=(None, 0.2)), load(4.0, 0.5, 4), load(6.0, 2.0, 6)]

    assert result(loads).unstable_per_s is None
    assert all(one.change is not None for one in result(loads).loads)


def test_an_effect_below_the_smallest_worth_reporting_does_not_help():
    loads = [load(rate, 1.0, int(rate) + 30, **NO_OBJECTIVE) for rate in (2.0, 4.0)]
    same = [replace(one, on=tuple(0.98 * values for values in one.off)) for one in loads]

    assert not result(same).tail.helps


def test_work_that_is_not_equal_comes_before_the_answer():
    text = "not the same work: with hedging 5.0% fewer output tokens a call"
    loads = [load(rate, 0.4, int(rate), unequal=(text,)) for rate in (2.0, 4.0)]

    assert answer_to(loads).result.details[0] == text


def test_a_gain_where_few_requests_are_much_slower_is_found():
    """8% of the requests take five times as long, 3% with hedging: under exchange the p95 is one or the other by chance."""
    found = []
    for seed in range(20):
        rng = np.random.default_rng(seed)
        off, on = (
            [np.where(rng.random(60) < slow, 3000.0, 600.0) * rng.lognormal(0, 0.1, 60) for _ in range(12)]
            for slow in (0.08, 0.03)
        )
        found.append(p_values([contrast.quantiles(off, on, 0.95)])[0][0])

    assert np.mean(np.array(found) <= 0.02) >= 0.7


def test_a_backlog_that_grows_where_the_tail_is_no_slower_is_chance():
    loads = [load(2.0, 1.0, 21), load(4.0, 1.0, 24, growth_per_s=(None, 0.3))]

    assert result(loads).unstable_per_s is None
    assert not result(loads).tail.hurts
    assert result(loads).loads[1].change is not None


@pytest.mark.parametrize(
    ("growth_per_s", "unstable"), [((None, 0.3), 4.0), ((None, None), None), ((1.0, 1.2), None)]
)
def test_where_a_backlog_outlasts_a_block_the_growth_alone_decides_and_nothing_is_compared(
    growth_per_s, unstable
):
    """Both variants wait for what hedging piled up, so that their tails are alike."""
    loads = [load(2.0, 1.0, 21), load(4.0, 1.0, 24, growth_per_s=growth_per_s, mixed=True)]
    found = result(loads)

    assert found.unstable_per_s == unstable
    assert found.tail.hurts == (unstable is not None)
    assert [one.change is None for one in found.loads] == [False, True]
    notes = answer_to(loads).sections[0].notes
    assert any("Not compared at 4 requests/s: the backlog outlasts a block" in text for text in notes), notes
    assert not any("failed request" in text or "shorter than" in text for text in notes)
    if not any(growth_per_s):
        assert "from 2 to 2 requests/s" in answer_to(loads).result.sentence
