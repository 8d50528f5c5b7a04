"""The numbers of the checkup: shares, ratios of medians, hedging, and the sentence."""

import json
from dataclasses import replace

import numpy as np
import pytest

from tailgauge.experiments.checkup import report
from tailgauge.experiments.checkup.cache import without_usage
from tailgauge.experiments.checkup.hedging import lacking, second_call
from tailgauge.experiments.checkup.measure import light
from tailgauge.experiments.checkup.numbers import (
    LEVEL,
    Number,
    idle_cut,
    of_ratio,
    of_share,
    quantile_of,
)
from tailgauge.experiments.checkup.tested import UserTraffic
from tailgauge.experiments.course import RunReading
from tailgauge.patterns.settings import NO_MARKS
from tailgauge.scenario import model as scenarios
from tailgauge.scenario.experiment import Checkup
from tailgauge_analysis import COMPARABLE, ObjectiveLine, at_level, counted, quantiles
from tailgauge_analysis.metrics.steady import steady
from tailgauge_analysis.reading.frames import load
from tailgauge_analysis.report.plot import plot


def users():
    table = next(iter(scenarios.load("streaming").traffic.values()))
    return UserTraffic(
        tables={"users": table}, plain={}, rate_per_s=1.0, settings=Checkup(), marks=NO_MARKS,
        heaviest="users", fan_out="", cached="", whole="", line_of=lambda *_: "",
    )  # fmt: skip


def number(low, gain=0.1):
    return Number(evidence="it was seen", gain=gain, n=50, value=low, low=low, high=1.0)


def test_a_share_at_what_is_allowed_is_rarely_a_problem():
    rng = np.random.default_rng(5)
    with at_level(LEVEL):
        shares = [of_share(counted(int(rng.binomial(150, 0.05)), 150), "") for _ in range(400)]

    beyond = [report.judge("tail", one, 0.05).outcome == "FAIL" for one in shares]
    assert np.mean(beyond) < 0.02


def test_two_medians_differ_by_more_than_what_is_allowed():
    rng = np.random.default_rng(7)
    a = rng.lognormal(4, 0.5, 80)
    b = rng.lognormal(4, 0.5, 80)
    with at_level(LEVEL):
        doubled = of_ratio(quantile_of(2 * a), quantile_of(b), "{}")
        alike = of_ratio(quantile_of(a), quantile_of(b), "{}")
        few = of_ratio(quantile_of(a[:9]), quantile_of(b), "{}")

    assert doubled.low > 1.1
    assert doubled.gain == pytest.approx(0.5, abs=0.15)
    assert alike.low < 1.1
    assert few.low is None


@pytest.mark.parametrize(
    ("draw", "start"),
    [
        (lambda rng, n: rng.lognormal(6, 0.3, n), "hedging is not worth a try"),
        (lambda rng, n: np.where(rng.random(n) < 0.03, 15, 1) * rng.lognormal(6, 0.2, n), "hedging is worth a try"),
        (lambda rng, n: np.where(rng.random(n) < 0.02, np.inf, rng.lognormal(6, 0.2, n)), "hedging is worth a try"),
        (lambda rng, n: np.where(rng.random(n) < 0.15, np.inf, rng.lognormal(6, 0.2, n)), "hedging is not worth a try"),
        (lambda rng, n: np.where(rng.random(n) < 0.30, np.inf, rng.lognormal(6, 0.2, n)), "hedging is not worth a try"),
        (lambda rng, n: np.where(rng.random(n) < 0.60, np.inf, rng.lognormal(6, 0.2, n)), "hedging: not estimated"),
        (lambda rng, n: np.where(np.arange(n) // 40 == 9, 15, 1) * rng.lognormal(6, 0.2, n), "hedging: not known"),
    ],
)  # fmt: skip
def test_a_second_call_is_worth_a_try_where_slow_calls_are_slow_by_chance(draw, start):
    text = second_call(draw(np.random.default_rng(21), 2000))

    assert text.startswith(start), text


def test_a_delay_below_the_slow_share_is_tried():
    rng = np.random.default_rng(3)
    waits = np.where(rng.random(2000) < 0.07, 4000, 0) + rng.lognormal(np.log(200), 0.1, 2000)
    text = second_call(waits)

    assert text.startswith("hedging is worth a try"), text
    assert ", the p90, would" in text
    assert "room for 10% more" in text
    assert second_call(waits, has_tail=False).startswith("hedging is not worth a try")


def test_a_hedge_that_is_worth_a_try_has_the_command_that_measures_it():
    rng = np.random.default_rng(3)
    waits = np.where(rng.random(2000) < 0.07, 4000, 0) + rng.lognormal(np.log(200), 0.1, 2000)

    assert "more; measure it: tailgauge run x --set hedge=2" in second_call(
        waits, measured_by=lambda ms: f"tailgauge run x --set hedge={ms:.0f}"
    )


@pytest.mark.parametrize(("n", "n_eff", "text"), [
    (120, 120, "299 waits are needed, got 120"),
    (1025, 40, "299 independent waits are needed: the 1,025 here count as 40, because consecutive waits are alike"),
])  # fmt: skip
def test_dependent_waits_are_not_called_too_few(n, n_eff, text):
    assert lacking(replace(quantiles(np.ones(400), (0.99,))[0], n=n, n_eff=n_eff)) == text


def test_too_few_waits_say_nothing_of_hedging():
    assert second_call(np.ones(298)).startswith("hedging: not estimated, 299 waits")


@pytest.mark.parametrize(
    ("engine", "cold_ms", "value", "text"),
    [
        (
            {"engine": "vLLM", "cached": 49_664, "prompt": 50_508},
            30.0,
            0.0,
            "98.3% of 50,508 prompt tokens",
        ),
        (
            {"engine": "vLLM", "cached": 0, "prompt": 50_508},
            90.0,
            1.0,
            "0% of 50,508 prompt tokens",
        ),
        ({}, 90.0, 0.0, "a cold prefix takes at least"),
        ({}, 30.0, None, "no sign of a cache, or of no use here"),
    ],
)
def test_without_cached_tokens_counters_or_times_tell_of_a_cache(engine, cold_ms, value, text):
    rng = np.random.default_rng(4)
    cold = quantile_of(rng.lognormal(np.log(cold_ms), 0.3, 60))
    warm = quantile_of(rng.lognormal(np.log(30), 0.3, 60))
    (found,) = without_usage(engine, 60, cold, warm).values()

    assert found.value == value
    assert text in found.evidence


def test_the_answer_says_what_to_change_first():
    numbers = {"unstable": number(0.3, 0.3), "tail": number(0.2, 0.05), "burst": number(0.0)}
    found = report.answer(numbers, (), (), threshold=0.1)

    first, second = found.result.objectives
    assert (found.result.outcome, found.result.sentence) == ("FAIL", "2 problems found")
    assert found.facts["findings"] == [
        "tail",
        "unstable",
    ]  # 5% of the latency before 30% of the cost
    assert first.name.startswith("too many requests take far longer")
    assert second.why == (
        "Gain at most 30.0% of the cost. It was seen. Move what changes (dates, names, numbers) behind the last mark."
    )


def test_the_card_counts_problems_and_the_figure_has_a_bar_for_each():
    numbers = {"unstable": number(0.3, 0.3), "tail": number(0.2, 0.05), "burst": number(0.0)}
    section = report.answer(numbers, (), (), threshold=0.1).sections[0]
    (picture,) = section.figures
    bars = json.loads(plot(picture))["data"]

    assert section.card.value.text == "2 problems"
    assert [(bar["y"], bar["x"], bar["orientation"]) for bar in bars] == [
        (["tail"], [5.0], "h"),
        (["unstable"], [30.0], "h"),
    ]
    well = report.answer({"tail": number(0.0)}, (), (), threshold=0.1).sections[0]
    assert (well.card.value.text, well.figures) == ("0 problems", ())


def test_what_gives_nothing_back_is_noted_and_no_finding():
    found = report.answer(
        {"early_headers": number(1.0, 0.0), "pace": number(0.0)}, (), (), threshold=0.1
    )

    assert found.result.outcome == "PASS"
    assert (found.facts["findings"], found.facts["noted"]) == ([], ["early_headers"])
    assert "response headers arrive long before the first content" in found.result.details[0]


@pytest.mark.parametrize(
    ("outcomes", "low", "lost", "expected", "begin"),
    [
        (["PASS", "PASS"], 0.0, (), "PASS", "2 of 2 objectives met, no problem found"),
        (["PASS", "FAIL"], 0.0, (), "FAIL", "1 of 2 objectives met, no problem found"),
        (["INCONCLUSIVE"], 0.0, (), "INCONCLUSIVE", "0 of 1 objective met, no problem found"),
        (["PASS"], 0.2, (), "FAIL", "1 of 1 objective met, 1 problem found"),
        (["FAIL"], 0.0, ("cached",), "FAIL", "0 of 1 objective met, no problem found"),
        ([], 0.0, (), "PASS", "no problem found"),
    ],
)
def test_objectives_decide_beside_the_checks(outcomes, low, lost, expected, begin):
    objectives = [
        ObjectiveLine(f"slo {n}", outcome, "9 ms", "< 8 ms") for n, outcome in enumerate(outcomes)
    ]
    found = report.answer({"tail": number(low)}, lost, (), threshold=0.1, objectives=objectives)

    assert found.result.outcome == expected
    assert found.result.sentence.startswith(begin)
    assert list(found.result.objectives[: len(objectives)]) == objectives
    assert found.sections[0].card.tone == ("bad" if low else "warn" if lost else "good")


def test_the_first_line_names_what_is_inconclusive_and_what_was_lost():
    well = report.answer({"tail": number(0.0)}, (), (), threshold=0.1)
    unknown = report.answer(
        {"tail": number(0.0), "race": Number(evidence="too few")}, (), (), threshold=0.1
    )
    lost = report.answer({"tail": number(0.0)}, ("cached",), (), threshold=0.1)

    assert (well.result.outcome, well.result.sentence) == ("PASS", "no problem found in 1 check")
    assert unknown.result.sentence == "no problem found in 1 check, 1 inconclusive (race)"
    assert lost.result.outcome == "INCONCLUSIVE"
    assert "1 probe had no valid run" in lost.result.sentence


@pytest.mark.slow("True")
@pytest.mark.parametrize("new", [False, True])
def test_connections_of_their_own_are_seen_where_there_are_connections(write, new):
    reading = RunReading(write(n=400), COMPARABLE)
    stage = reading.evidence.without_slow_readers
    stage.requests["traffic"] = "users"
    if new:
        stage.attempts["connection_is_new"] = True
    numbers = light(users(), reading).numbers

    assert (numbers["connections"].low > 0.2) is new
    assert numbers["stalled"].value == 0


def test_an_answer_that_comes_all_at_once_at_its_end_was_held_back(write):
    reading = RunReading(write(n=400, ttft_ms=500.0, gap_ms=0.01, chunks=30), COMPARABLE)
    reading.evidence.without_slow_readers.requests["traffic"] = "users"

    assert light(users(), reading).numbers["held_back"].low > 0.5


@pytest.mark.parametrize(
    ("silent_s", "survived_ms", "found"),
    [
        ((30.0, 30.2, 29.9), 4_000, True),
        ((30.0, 4.0, 55.0), 4_000, False),  # not by one clock
        ((30.0, 30.2, 29.9), 40_000, False),  # others live longer
        ((0.3, 0.3, 0.3), 100, False),  # broken off, but not for want of a sign
    ],
)
def test_calls_that_end_after_one_silence_that_no_other_survives_were_cut(
    mixed, tmp_path, silent_s, survived_ms, found
):
    run = mixed(duration_s=300.0)
    for number_of_call in range(200):
        at_ms = 1000.0 * number_of_call
        if number_of_call % 20 == 7:
            end = 200 + 1000 * silent_s[number_of_call // 20 % 3]
            leg = {"first": 100, "gap": 50, "ended": "truncated", "end": end}
            run.request(at_ms, [leg], ended="truncated")
        else:
            run.request(at_ms, [{"first": survived_ms if number_of_call == 9 else 100}])
    check = idle_cut(steady(load([run.write(tmp_path / "run")])))

    assert (check.low > 0.01) is found, check.evidence
    assert check.n == 200


@pytest.mark.parametrize(
    ("name", "value", "low", "gain", "outcome"),
    [
        ("stalled", 0.2, 0.1, 0.08, "PASS"),  # a gain of 4% at its low end
        ("stalled", 0.2, 0.15, 0.08, "FAIL"),
        ("broken", 0.03, 0.015, 0.03, "FAIL"),  # failed requests count from 0.5%
        ("no_retry_after", 1.0, 0.9, 0.00016, "PASS"),
        ("early_headers", 1.0, 0.9, 1.0, "PASS"),
    ],
)
def test_a_problem_has_a_gain_that_is_large_at_the_low_end_of_its_interval(
    name, value, low, gain, outcome
):
    seen = Number(evidence="it was seen", gain=gain, n=50, value=value, low=low, high=1.0)
    judged = report.judge(name, seen, 0.01)
    found = report.answer({name: seen}, [], [], threshold=0.1)

    assert (judged.outcome, judged.noted) == (outcome, outcome == "PASS")
    assert found.result.outcome == outcome
    assert any(text.startswith("small: ") for text in found.result.details) == judged.noted


def test_the_least_gain_of_a_ratio_is_that_of_its_low_end():
    ratio = Number(evidence="", gain=0.5, n=50, value=2.0, low=1.25, high=3.0, is_ratio=True)

    assert ratio.least_gain == pytest.approx(0.2)
