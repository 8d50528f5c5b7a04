"""The numbers of the hedging experiment: the label of a load, the answer for today's, its causes, tables and figures."""

from dataclasses import replace

import numpy as np
import pytest

from tailgauge.experiments import hedging
from tailgauge.experiments.hedging import (
    Attempt,
    Blocks,
    HedgedRun,
    Hedges,
    Hedging,
    compare,
    quantile_for,
)
from tailgauge_analysis import MeanEstimate
from tailgauge_analysis.report.plot import plot

PAIRS, EACH = 10, 60
HEDGED = Hedges(
    hedged=0.2, won=0.4, cost=(0.0, 60.0), unit="units", cancelled=1.0, refused=(0.0, 0.0)
)


def variant(rng, factor=1.0, late=0.0, each=EACH):
    ms = tuple(factor * rng.lognormal(5, 0.5, each) for _ in range(PAIRS))
    return Blocks(ms, tuple((rng.random(each) < late).astype(float) for _ in range(PAIRS)))


def run(rate, factor, seed=1, late=(0.0, 0.0), each=EACH, **given):
    rng = np.random.default_rng(seed)
    off = variant(rng, 1.0, late[0], each)
    on = variant(rng, factor, late[1], each)
    attempt = Attempt(rate_per_s=rate, block_s=10.0)
    return HedgedRun(attempt=attempt, off=off, on=on, **{"hedges": HEDGED, "p99_s": 1.0, **given})


def found(runs, today=4.0):
    """What the planner makes of these runs."""
    p = quantile_for(runs)
    loads = [compare(one, p) for one in runs]
    helping = [one.load for one in loads if one.label == hedging.HELPS]
    harming = [one.load for one in loads if one.label in hedging.HARM]
    low, high = max(helping, default=None), min(harming, default=None)
    return Hedging(
        hedge="hedging after 250 ms",
        unit="requests/s",
        today_per_s=today,
        quantile=p,
        label=next((one.label for one in loads if one.load == today), hedging.NO_RUN),
        helps_up_to_per_s=low,
        hurts_from_per_s=high,
        crossover=(low, high) if low and high and low < high else None,
        loads=tuple(loads),
        delays=(),
    )


def answer_to(runs, today=4.0):
    return hedging.answer(found(runs, today), f"{today:g} requests/s")


def label(one):
    return compare(one, quantile_for([one])).label


@pytest.mark.parametrize(
    ("factor", "late", "expected"),
    [
        (0.5, (0.0, 0.0), "helps"),
        (2.0, (0.0, 0.0), "hurts"),
        (1.0, (0.0, 0.0), "no clear effect"),
        (1.0, (0.3, 0.1), "helps"),
        (1.0, (0.1, 0.3), "hurts"),
        (0.5, (0.1, 0.3), "hurts"),
        (2.0, (0.3, 0.1), "hurts"),
    ],
)
def test_it_helps_if_a_measure_improves_and_neither_gets_worse(factor, late, expected):
    assert label(run(4.0, factor, 22, late)) == expected


def test_a_change_too_small_to_be_worth_one_is_no_effect():
    one = run(4.0, 1.0)
    less = tuple(0.98 * values for values in one.off.ms)

    assert label(replace(one, on=Blocks(less, one.off.missed))) == "no clear effect"


def test_equal_variants_are_hardly_ever_called_different():
    labels = [label(run(4.0, 1.0, seed, (0.1, 0.1))) for seed in range(60)]

    assert (
        sum(one != "no clear effect" for one in labels) <= 9
    )  # of 60 at 7.5%: more have a chance of 1.5%


def test_where_no_hedge_was_sent_the_load_is_not_compared():
    answer = answer_to([run(4.0, 2.0, hedges=Hedges(hedged=0.0))])

    assert answer.result.outcome == "INCONCLUSIVE"
    assert answer.result.sentence == (
        "hedging after 250 ms was not compared at today's 4 requests/s (no hedges were sent)"
    )
    assert answer.result.details == ()


def backlog(value, half, *, grows):
    """A growth of the requests in flight with its interval; `grows`: whether it is shown."""
    estimate = MeanEstimate(
        value=value, low=value - half, high=value + half, p_value=0.001 if grows else 0.5
    )
    return {"backlog_per_s": estimate, "backlog_grows": grows}


GROWS = backlog(1.0, 0.5, grows=True)


@pytest.mark.parametrize(
    ("factor", "given", "control", "expected"),
    [
        (9.0, {"growth_per_s": (None, 0.3)}, None, "unstable with hedging"),
        (1.0, {"growth_per_s": (None, 0.3), "p99_s": 8.0}, None, "unstable with hedging"),
        (1.0, {"growth_per_s": (None, 0.3)}, None, "unstable with hedging"),
        (1.0, {"growth_per_s": (0.3, None)}, None, "no clear effect"),
        (0.5, {"growth_per_s": (0.3, None)}, None, "helps"),
        (9.0, {"growth_per_s": (1.4, 1.5)}, None, "unstable, with hedging or without"),
        (1.0, GROWS, None, "unstable, with hedging or without"),
        (1.0, GROWS, backlog(0.0, 0.1, grows=False), "unstable with hedging"),
        (1.0, GROWS, backlog(0.4, 0.5, grows=False), "unstable, with hedging or without"),
        (1.0, GROWS, backlog(0.9, 0.5, grows=True), "unstable without hedging too"),
        (1.0, {"p99_s": 11.0}, None, "blocks too short"),
    ],
)
def test_where_a_backlog_grows_nothing_is_compared(factor, given, control, expected):
    without = run(4.0, 1.0, 23, **control) if control else None
    one = compare(run(4.0, factor, 22, **given), 0.95, without)

    assert one.label == expected
    assert (one.tail is None) == (expected not in {"no clear effect", "helps"})


CROSSING = ((2.0, 0.4), (4.0, 0.5), (6.0, 1.0), (8.0, 2.5))


@pytest.mark.parametrize(
    ("today", "outcome", "text", "advice"),
    [
        (2.0, "PASS", "helps at today's 2 requests/s, hurts at 8", "switch hedging on"),
        (6.0, "INCONCLUSIVE", "has no clear effect at today's 6 requests/s, helps at 4, hurts at 8", "leave hedging off"),
        (8.0, "FAIL", "hurts at today's 8 requests/s, helps at 4", "leave hedging off"),
    ],
)  # fmt: skip
def test_the_outcome_is_that_at_todays_load_and_other_loads_stand_beside_it(
    today, outcome, text, advice
):
    answer = answer_to([run(rate, factor, int(rate) + 20) for rate, factor in CROSSING], today)

    assert (answer.result.outcome, answer.result.sentence) == (
        outcome,
        f"hedging after 250 ms {text}",
    )
    assert answer.result.details[0].startswith(f"{advice} at today's load")
    assert "hedging turns from help to harm between 4 and 8 requests/s" in answer.result.details
    assert answer.facts["crossover"] == [4.0, 8.0]


def test_a_target_that_only_hedging_makes_unstable_is_harmed():
    answer = answer_to([run(2.0, 0.4, 2), run(4.0, 9.0, growth_per_s=(None, 1.5))])

    assert answer.result.outcome == "FAIL"
    assert answer.result.sentence == (
        "hedging after 250 ms hurts at today's 4 requests/s (unstable with hedging), helps at 2"
    )
    assert answer.facts["loads"][1]["tail"] is None


def test_without_a_run_at_todays_load_there_is_no_answer_for_it():
    for runs in ([], [run(8.0, 2.0)]):
        answer = answer_to(runs)

        assert answer.result.outcome == "INCONCLUSIVE"
        assert (
            "was not compared at today's 4 requests/s (no run was valid" in answer.result.sentence
        )


def test_the_details_have_size_cost_and_cause():
    copies = replace(HEDGED, cancelled=0.0)
    answer = answer_to([run(rate, factor, int(rate), hedges=copies) for rate, factor in CROSSING])
    size = answer.result.details[1]

    assert size.startswith("at today's load p99 changes by −")
    assert size.endswith(
        "missed requests 0% → 0%; 20.0% of the calls are hedged, extra cost 0 – 60,000 units per 1,000 requests"
    )
    assert answer.result.details[-1].startswith("the target keeps generating for closed attempts")
    for table in answer.sections[0].tables:
        assert [len(row) for row in table.rows] == [len(table.header)] * len(CROSSING)
    assert answer.sections[0].tables[1].note.endswith(", in units.")


def test_the_smallest_effect_that_is_printed_is_found_in_four_of_five():
    texts = [answer_to([run(4.0, 1.0, seed)]).smallest for seed in range(10)]
    sizes = [
        text.removeprefix("a p99 that differs by ").removesuffix("% at today's load")
        for text in texts
    ]
    factor = 1 + np.mean([float(size) for size in sizes]) / 100
    labels = [label(run(4.0, by, seed)) for seed in range(20) for by in (factor, 1 / factor)]

    assert 0.65 <= np.mean([one != "no clear effect" for one in labels]) <= 0.95
    assert labels[::2].count("helps") == labels[1::2].count("hurts") == 0


def test_too_few_requests_for_a_p99_give_the_p95_and_say_so_and_fewer_give_nothing():
    answer = answer_to([run(4.0, 0.5, each=12, p99_s=4.0)])
    notes = answer.sections[0].notes

    assert answer.facts["quantile"] == 0.95
    assert any("the p95 is used" in text for text in notes)
    assert any(
        text.startswith("Blocks are shorter than 5 times the end-to-end p99") for text in notes
    )
    assert any(text.endswith(": make them 20 s or longer.") for text in notes)
    few = answer_to([run(4.0, 0.5, each=5)])
    assert few.facts["quantile"] is None
    assert "(too few requests)" in few.result.sentence


@pytest.mark.parametrize(
    ("text", "low", "high"),
    [
        ("the target keeps generating", {}, {"cancelled": 0.2}),
        ("hedges use up a limit at 8 requests/s", {}, {"refused": (0.01, 0.2)}),
        ("the delay lies among the slow calls", {"hedged": 0.011}, {}),
    ],
)
def test_every_cause_is_named_where_the_rows_show_it(text, low, high):
    runs = [
        run(2.0, 0.5, 1, hedges=replace(HEDGED, **low)),
        run(8.0, 2.0, 2, hedges=replace(HEDGED, **high)),
    ]
    (cause,) = hedging.causes(found(runs))

    assert cause.startswith(text)
    assert list(hedging.causes(found(runs[:1]))) == []


@pytest.mark.parametrize(("factor", "is_named"), [(1.0, True), (2.0, True), (0.4, False)])
def test_slowness_after_the_first_content_is_named_unless_hedging_helps_all_the_same(
    factor, is_named
):
    (today,) = [run(4.0, factor, 22, slow_after_first=True)]
    causes = list(hedging.causes(found([today])))

    assert any("slow after their first content" in text for text in causes) == is_named


def test_work_that_is_not_equal_comes_first():
    text = "not the same work: with hedging 5.0% fewer output tokens per call"

    assert answer_to([run(4.0, 0.4, unequal=(text,))]).result.details[0] == text


def test_the_figures_show_the_change_by_load_and_the_tail_at_todays():
    runs = [run(rate, factor, int(rate)) for rate, factor in CROSSING]
    failed = tuple(np.where(np.arange(EACH) < 6, np.inf, values) for values in runs[1].off.ms)
    runs[1] = replace(runs[1], off=Blocks(failed, runs[1].off.missed))
    tails, changes = answer_to(runs).sections[0].figures
    compared = changes.panels[0].curves
    off, on = tails.panels[0].curves

    assert [curve.name for curve in compared] == ["each load", "no change"]
    assert len(compared[0].low) == len(CROSSING)
    assert [(mark.low, mark.high) for mark in changes.marks] == [(4.0, 8.0)]
    assert tails.caption.startswith("The load is 4 requests/s.")
    assert off.y[-1] == pytest.approx(0.1)  # failed
    assert 0 < on.y[-1] < 0.1  # a logarithmic axis has no zero
    assert "logarithmic" in plot(tails)
