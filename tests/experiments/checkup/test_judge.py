"""The numbers of the checkup: tests of shares and medians, what fan-out adds, the family, and the sentence."""

from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest

from tailgauge.experiments.checkup import report
from tailgauge.experiments.checkup.checks import CHECKS, COST, LATENCY, REQUESTS
from tailgauge.experiments.checkup.judge import (
    Gain,
    ProbeCheck,
    findings,
    inconclusive,
    judged,
    medians,
    of_share,
)  # fmt: skip
from tailgauge.experiments.checkup.light import idle_cut, light, second_call
from tailgauge.experiments.checkup.probes import amplified, heavy_leg, without_usage
from tailgauge.experiments.course import RunReading
from tailgauge.scenario.experiment import Checkup
from tailgauge_analysis.metrics.steady import steady
from tailgauge_analysis.reading.frames import load
from tailgauge_analysis.stats.binomial import binomial_cdf
from tailgauge_analysis.stats.proportions import proportion
from tailgauge_analysis.verdict.checks import COMPARABLE

SETTINGS = Checkup(first_ms=2000, tokens_per_s=20, threshold=0.1)


def test_a_share_is_tested_exactly():
    seen = np.arange(100) % 20 == 7  # 5 of 100, evenly spread, so that each counts in full
    found = of_share("broken", seen, "five")

    assert proportion(seen).n_eff == 100
    assert found.p_value == pytest.approx(1 - binomial_cdf(4, 100, 0.01), rel=1e-9)
    assert (found.gain.value, found.n) == (0.05, 100)
    assert of_share("broken", np.zeros(100, bool), "").p_value == 1.0
    assert of_share("broken", np.ones(9, bool), "").p_value is None


def test_the_smallest_share_is_one_that_would_be_called_too_much():
    found = of_share("tail", np.zeros(200, bool), "")
    k = round(found.smallest * 200)

    assert 1 - binomial_cdf(k - 1, 200, 0.05) < 0.002 <= 1 - binomial_cdf(k - 2, 200, 0.05)


def test_what_is_exactly_allowed_is_a_finding_as_rarely_as_promised():
    rng = np.random.default_rng(5)
    p_values = [of_share("tail", rng.random(150) < 0.05, "").p_value for _ in range(400)]

    assert np.mean(np.array(p_values) < 0.05) < 0.08  # 4.3 sigma above 5% would be 0.1


def test_two_medians_differ_by_more_than_what_is_allowed():
    rng = np.random.default_rng(7)
    pairs = [(rng.lognormal(4 + np.log(1.1), 0.5, 80), rng.lognormal(4, 0.5, 80)) for _ in range(40)]
    just = [medians(a, b, 1.1).p_value for a, b in pairs]
    doubled = medians(2 * pairs[0][0], pairs[0][1], 1.1)

    assert np.mean(np.array(just) < 0.05) < 0.2  # 4 sigma above 5%
    assert doubled.p_value < 0.001
    assert doubled.ends[0] < 2.2 < doubled.ends[1]
    assert medians(pairs[0][0][:9], pairs[0][1], 1.1) is None


def test_a_fan_out_is_held_against_the_slowest_of_as_many_single_calls():
    rng = np.random.default_rng(3)
    single, joins = rng.lognormal(4, 0.5, 300), rng.lognormal(4, 0.5, (60, 8)).max(axis=1)
    alike, doubled = amplified(joins, [(single, 8)]), amplified(2 * joins, [(single, 8)])

    assert alike.p_value > 0.5
    assert doubled.p_value < 0.001
    assert doubled.gain.low < 0.5 < doubled.gain.high
    assert amplified(joins[:5], [(single, 8)]).p_value is None


@pytest.mark.parametrize(
    ("times", "kinds", "found"),
    [
        (lambda rng: rng.lognormal(4, 0.5, (80, 5)), [0] * 5, ""),
        (lambda rng: rng.lognormal(4, 0.5, (80, 2)), [0] * 2, ""),
        (lambda rng: rng.lognormal(4, 0.5, (80, 5)) * [1, 1, 6, 1, 1], [0] * 5, "leg 3 of 5"),
        (
            lambda rng: rng.lognormal(4, 0.3, (80, 5)) * [1, 1, 1, 5, 5],
            [0, 0, 0, 1, 1],
            "legs of kind 2 of 2",
        ),
        (lambda rng: rng.lognormal(4, 0.5, (80, 8)), [0] * 7 + [1], ""),  # most are of one kind
    ],
)
def test_a_leg_is_heavy_where_requests_would_be_done_without_it(times, kinds, found):
    drawn = times(np.random.default_rng(8))
    of = SimpleNamespace(times_ms=drawn, complete=np.ones(len(drawn), bool), kinds=np.array(kinds))
    check = heavy_leg(of)

    assert (check.p_value < 0.001) is bool(found), check.evidence
    assert check.evidence.startswith(found)


@pytest.mark.parametrize(
    ("draw", "start"),
    [
        (lambda rng, n: rng.lognormal(6, 0.3, n), "hedging is not worth a try"),
        (
            lambda rng, n: np.where(rng.random(n) < 0.03, 15, 1) * rng.lognormal(6, 0.2, n),
            "hedging is worth a try",
        ),
        (
            lambda rng, n: np.where(rng.random(n) < 0.02, np.inf, rng.lognormal(6, 0.2, n)),
            "hedging is worth a try",
        ),
        (
            lambda rng, n: np.where(rng.random(n) < 0.10, np.inf, rng.lognormal(6, 0.2, n)),
            "hedging: not estimated",
        ),
        (
            lambda rng, n: np.where(np.arange(n) // 40 == 9, 15, 1) * rng.lognormal(6, 0.2, n),
            "hedging: not known",
        ),
    ],
)
def test_what_a_second_call_would_leave_of_the_tail_is_that_of_independent_calls(draw, start):
    rng = np.random.default_rng(21)
    text = second_call(draw(rng, 2000))

    assert text.startswith(start), text
    if "to " in text.partition("p99")[2] and "episodes" not in text:
        one, other = draw(rng, 400_000), draw(rng, 400_000)
        hedged = np.minimum(one, np.quantile(one, 0.95, method="inverted_cdf") + other)
        expected = np.quantile(hedged, 0.99, method="inverted_cdf")
        predicted = float(
            text.partition("p99")[2].rpartition(" ms at best")[0].rpartition("to ")[2].replace(",", "")
        )
        assert predicted == pytest.approx(expected, rel=0.15)


def test_too_few_waits_say_nothing_of_hedging():
    assert (
        second_call(np.ones(298)) == "hedging: not estimated, 299 waits with a finite p95 are needed, got 298"
    )


@pytest.mark.parametrize(
    ("counted", "cold_ms", "outcome", "part"),
    [
        ({"engine": "vLLM", "cached": 49_664, "prompt": 50_508}, 30.0, 1.0, "98.3% of 50,508 prompt tokens"),
        ({"engine": "vLLM", "cached": 0, "prompt": 50_508}, 90.0, 0.0, "0% of 50,508 prompt tokens"),
        ({}, 90.0, 1.0, "a cold prefix takes"),
        ({}, 30.0, None, "no sign of a cache, or of no use here"),
    ],
)
def test_without_cached_tokens_in_the_usage_counters_or_times_tell_of_a_cache(
    counted, cold_ms, outcome, part
):
    rng = np.random.default_rng(4)
    names = ("created", "read", "short", "hour")
    sent = pd.DataFrame(
        {**dict.fromkeys(names, [0] * 60), "uncached": [800] * 60, "output_tokens": [20.0] * 60}
    )
    ratio = medians(rng.lognormal(np.log(cold_ms), 0.3, 60), rng.lognormal(np.log(30), 0.3, 60), 1.1)
    first, *others = without_usage(counted, sent, ratio)

    assert (first.name, first.p_value) == ("no_cache", outcome)
    assert part in first.evidence
    assert {one.p_value for one in others} == {None}
    assert all("usage" in one.evidence for one in others)


def check(name, p_value, gain=0.1):
    return ProbeCheck(name, 50, p_value, f"{name} was seen", Gain(gain, gain / 2, min(1.0, gain * 2)))


def test_all_checks_are_one_family_and_gains_of_one_kind_are_compared():
    checks = [
        check("tail", 0.001, 0.05),
        check("burst", 1e-6, 0.04),
        check("pace", 0.02),
        inconclusive("connections", "none"),
    ]
    family = judged([*checks, *(check(name, 1.0) for name in ("broken", "refused", "unstable"))])
    by_name = {one.check.name: one for one in family}

    assert [one.check.name for one in findings(family)] == ["burst", "tail"]
    assert by_name["pace"].adjusted == pytest.approx(0.02 * 4)  # six are tested, two went before
    assert by_name["connections"].outcome == "INCONCLUSIVE"


def test_what_gives_nothing_back_is_noted_and_no_finding():
    found = report.answer([check("early_headers", 1e-9, 0.0), check("pace", 1.0)], (), (), ())

    assert (found.result.outcome, found.facts["findings"], found.facts["noted"]) == (
        "PASS",
        [],
        ["early_headers"],
    )
    assert "response headers arrive long before the first content" in found.result.details[0]


def test_the_answer_says_what_to_change_first():
    found = report.answer(
        [check("tail", 1e-9), check("unstable", 1e-9, 0.3), check("burst", 1.0)], (), (), ()
    )

    first, second = found.result.objectives
    assert (found.result.outcome, found.result.sentence) == (
        "FAIL",
        "2 problems found",
    )
    assert found.facts["findings"] == ["tail", "unstable"]  # 5% of the latency before 30% of the cost
    assert second.name == "the prompt prefix changes from call to call"
    assert second.why == (
        "Gain 30.0% (15.0% – 60.0%) of the cost. Unstable was seen (p < 0.001). "
        "Move what changes (dates, names, numbers) behind the last mark."
    )
    assert first.name.startswith("too many requests take far longer")
    assert len(found.sections[0].tables[0].rows) == 3


def test_without_a_finding_the_outcome_says_whether_all_was_looked_at():
    well = report.answer([check("tail", 1.0)], (), (), ())
    lost = report.answer([check("tail", 1.0)], (), ("cached",), ())

    assert (well.result.outcome, well.result.sentence) == ("PASS", "no problem found in 1 check")
    assert lost.result.outcome == "INCONCLUSIVE"
    assert "1 probe had no valid run" in lost.result.sentence
    assert lost.result.details == ("no valid run of these probes: cached",)


def test_every_check_says_what_to_change():
    assert all(one.change and one.problem and one.allowed for one in CHECKS.values())
    assert {one.gain_of for one in CHECKS.values()} >= {LATENCY, COST, REQUESTS}


@pytest.mark.parametrize(("new", "found"), [(False, False), (True, True)])
def test_connections_of_their_own_are_found_where_there_are_connections(write, new, found):
    reading = RunReading(write(n=400), COMPARABLE)
    steady = reading.evidence.of_target
    steady.requests["traffic"] = "users"
    if new:
        steady.attempts["connection_is_new"] = True
    checks = {one.name: one for one in light(reading, SETTINGS, {"users"}).checks}

    assert (checks["connections"].p_value < 0.001) is found
    assert checks["stalled"].p_value == 1.0
    assert checks["held_back"].p_value == 1.0


def test_an_answer_that_comes_all_at_once_at_its_end_was_held_back(write):
    reading = RunReading(write(n=400, ttft_ms=500.0, gap_ms=0.01, chunks=30), COMPARABLE)
    reading.evidence.of_target.requests["traffic"] = "users"
    checks = {one.name: one for one in light(reading, SETTINGS, {"users"}).checks}

    assert checks["held_back"].p_value < 1e-6
    assert checks["coalesced"].p_value == 1.0  # every token is a chunk all the same


@pytest.mark.parametrize(
    ("silent_s", "survived_ms", "found"),
    [
        ((30.0, 30.2, 29.9), 4_000, True),
        ((30.0, 4.0, 55.0), 4_000, False),  # not by one clock
        ((30.0, 30.2, 29.9), 40_000, False),  # others live longer
        ((0.3, 0.3, 0.3), 100, False),  # broken off, but not for want of a sign
    ],
)
def test_calls_that_end_after_one_silence_that_no_other_survives_were_cut_on_the_way(
    mixed, tmp_path, silent_s, survived_ms, found
):
    run = mixed(duration_s=300.0)
    for number in range(200):
        at_ms = 1000.0 * number
        if number % 20 == 7:
            end = 200 + 1000 * silent_s[number // 20 % 3]
            run.request(
                at_ms, [{"first": 100, "gap": 50, "ended": "truncated", "end": end}], ended="truncated"
            )
        else:
            run.request(at_ms, [{"first": survived_ms if number == 9 else 100}])
    evidence = steady(load([run.write(tmp_path / "run")]))
    check = idle_cut(evidence)

    assert (check.p_value < 1e-4) is found, check.evidence
    assert check.n == 200
    assert check.evidence.endswith(f"survives is {(survived_ms - 0.05) / 1000:.3g} s")
