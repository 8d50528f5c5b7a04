"""The course of the curve, driven by hand: which loads it runs, in which order and time, and what it answers."""

from dataclasses import replace
from pathlib import Path

import pytest
from experiments.driving import drive

from tailgauge.errors import UsageError
from tailgauge.experiments.course import Base
from tailgauge.experiments.curve import (
    CurvePlanner,
    CurveRun,
    disturbance_of,
    faster_with_more_load,
)
from tailgauge.experiments.loads.planner import IN_FLIGHT, Unit
from tailgauge.experiments.loads.run import Charges, Exceedance, Interval, LoadRun
from tailgauge.scenario import model as scenarios
from tailgauge.scenario.experiment import RUN_S
from tailgauge.thresholds import ENDLESS_S
from tailgauge_analysis.comparing.curve import UNKNOWN, CurvePoint, Ends
from tailgauge_analysis.stats.proportions import counted
from tailgauge_analysis.text.section import FAIL, INCONCLUSIVE, PASS

TODAY, KNEE, FULL = 3.0, 14.0, 20.0
LABEL = "ttft p95 < 800 ms"
AT_4 = "requests/s (TTFT p95 420 ms, 4 requests/s answered, 400 output tokens/s)"
AT_8 = "requests/s (TTFT p95 420 ms, 8 requests/s answered, 800 output tokens/s)"
OBJECTIVE = {"first": {"metric": "ttft", "quantile": 0.95, "max_ms": 800.0}}


def planner(
    folder,
    today=TODAY,
    slo=OBJECTIVE,
    arrival=None,
    minutes=12.0,
    url="simulated",
    turns_mean=1.0,
    limits=None,
    **curve,
):
    session = {"session": {"turns_mean": turns_mean}} if turns_mean > 1 else {}
    tree = {
        "name": "planted", "target": {"url": url}, "experiment": {"kind": "curve", "minutes": minutes, "curve": curve},
        "arrival": arrival or {"rate_per_s": today}, "traffic": {"chat": {"pattern": "streaming", **session}}, "slo": slo,
        "limits": limits or {},
    }  # fmt: skip
    pairs = (("experiment.kind", "curve"),)  # of --rate 2,4
    return CurvePlanner(
        Base(folder / "planted.toml", scenarios.parse(tree, "planted"), pairs, folder)
    )


def result(step, *, kinds=None, is_open=True):
    """At a target whose TTFT p95 is at its bound at KNEE, and that answers FULL a second."""
    load, seconds = step.given.load, step.duration_s
    arrived = load if is_open else min(load * 2.0, FULL)
    served, n = min(arrived, FULL), int(arrived * seconds)
    late = counted(round(n / (1 + 19 * 2.718 ** (-15 * (load / KNEE - 1)))), n)
    growing = is_open and load > FULL
    refused = counted(n // 4 if kinds and load > FULL else 0, n)
    run = LoadRun(
        load=load, arrived=load, seconds=n / arrived, requests=n, refused=refused,
        kinds=kinds if kinds and load > FULL else {}, objectives=(Exceedance(LABEL, late, 0.05),),
        served=Interval(served, 0.98 * served, 1.02 * served), growth_per_s=load - served if growing else 0.0,
        detectable_per_s=0.1, growing=growing, saturated=growing, stay_s=0.5, charges=Charges({}, {}),
    )  # fmt: skip
    ends = Ends(served, 0.98 * served, 1.02 * served)
    latency = {
        name: dict.fromkeys(("p50", "p90", "p95", "p99"), Ends(420.0, 400.0, 440.0))
        for name in ("ttft", "e2e", "tpot")
    }
    point = CurvePoint(
        load=load, runs=("run",), seconds=seconds, requests=n, complete=1.0, refused=UNKNOWN, growth_per_s=None, stable=None,
        meets=INCONCLUSIVE, requests_per_s=ends, output_tokens_per_s=Ends(100 * served, 98 * served, 102 * served), good_per_s=ends,
        latency=latency, user_tokens_per_s=ends, prompt_tokens=300.0, output_tokens=100.0,
    )  # fmt: skip
    return CurveRun(run, point)


def played(of, slo=True, invalid=(), **how):
    """The groups of steps of a course, and its answer; every run of the loads in `invalid` is INVALID."""

    def measure(step):
        found = result(step, **how)
        return found if slo else replace(found, run=replace(found.run, objectives=()))

    return drive(of, measure, lambda step: "INVALID" if step.given.load in invalid else "VALID")


def saturation(answer):
    """What the answer says of saturation, behind the load that it names."""
    texts = [answer.result.sentence, *answer.result.details]
    (text,) = [text for text in texts if text.startswith("saturated at ")]
    load, _, rates = text.partition(": ")
    assert 0.95 * FULL <= float(load.removeprefix("saturated at ").split()[0]) <= 1.3 * FULL
    return rates


def loads(groups):
    return [[step.given.load for step in group] for group in groups]


def test_it_doubles_until_the_target_is_full_then_goes_around_the_knee_in_random_order(tmp_path):
    groups, answer = played(planner(tmp_path))
    ran = loads(groups)
    later = [load for group in ran[4:] for load in group]

    assert ran[:4] == [[3.0], [6.0], [12.0], [24.0]]
    assert len(later) >= 3
    assert all(0.5 * KNEE < load < 1.6 * KNEE for load in later)
    assert later != sorted(later)
    assert len({load for group in ran for load in group}) == sum(map(len, ran)) >= 7
    assert len({step.seed for group in groups for step in group}) == sum(map(len, ran))
    knee = answer.finding.knee
    assert knee.low <= KNEE <= knee.high
    assert knee.high - knee.low < 0.15 * KNEE
    assert answer.finding.binds == "ttft p95 < 800 ms"
    assert answer.result.outcome == PASS
    assert answer.result.sentence.startswith("the objective holds up to ")
    assert (
        saturation(answer) == "the target completes at most 2,000 output tokens/s and 20 requests/s"
    )
    assert "at today's 3 requests/s TTFT p95 is 420 ms" in answer.result.details
    assert answer.smallest.startswith("a change of the largest load that holds by ")


@pytest.mark.parametrize("minutes", [2.0, 8.0, 12.0, 60.0])
def test_the_minutes_are_kept_within_ten_per_cent(tmp_path, minutes):
    groups, _ = played(planner(tmp_path, minutes=minutes))
    takes_s = sum(step.duration_s + step.rest_s + RUN_S for group in groups for step in group)

    assert 0.9 * 60 * minutes <= takes_s <= 1.001 * 60 * minutes


@pytest.mark.parametrize(("knee", "turns"), [(1.7, 3.0), (2.0, 8.0), (2.3, 5.0)])
def test_runs_of_conversations_around_the_knee_are_longer_and_fewer(
    tmp_path, monkeypatch, knee, turns
):
    monkeypatch.setitem(globals(), "KNEE", knee)
    monkeypatch.setitem(globals(), "FULL", 1.4 * knee)
    plain, _ = played(planner(tmp_path, today=0.4 * knee))
    groups, answer = played(planner(tmp_path, today=0.4 * knee, turns_mean=turns))
    near = [step for group in groups[3:] for step in group]

    assert min(step.duration_s for step in near) * knee >= 200
    assert sum(map(len, groups)) <= sum(map(len, plain))
    assert answer.finding.knee.low <= knee <= answer.finding.knee.high


def test_loads_that_are_given_are_run_once_each_in_random_order(tmp_path):
    given = [2.0, 4.0, 8.0, 12.0, 16.0, 24.0, 4.0]
    groups, answer = played(planner(tmp_path, loads=given))
    ran = [load for group in loads(groups) for load in group]

    assert sorted(ran) == sorted(set(given))
    assert ran != sorted(ran)
    assert [one.load for one in answer.finding.points] == sorted(set(given))
    assert len({round(step.duration_s, 3) for group in groups for step in group}) == 1


@pytest.mark.parametrize(
    ("given", "invalid", "sentence", "outcome"),
    [
        ([4.0, 8.0, 16.0], [], f"the objective holds at 8 {AT_8} and fails at 16 (TTFT p95 420 ms)", PASS),
        ([2.0, 4.0, 8.0, 16.0], [4.0], f"the objective holds at 8 {AT_8} and fails at 16 (TTFT p95 420 ms)", PASS),
        ([2.0, 4.0, 8.0, 16.0], [8.0], f"the objective holds at 4 {AT_4} and fails at 16 (TTFT p95 420 ms); no valid run at 8", INCONCLUSIVE),
        ([4.0, 6.0, 10.0, 18.0], [6.0, 10.0], f"the objective holds at 4 {AT_4} and fails at 18 (TTFT p95 420 ms); no valid run at 6 and 10", INCONCLUSIVE),
        ([2.0, 4.0, 8.0], [8.0], f"the objective holds at 4 {AT_4}; no valid run at 8", INCONCLUSIVE),
        ([2.0, 4.0], [], f"the objective holds at 4 {AT_4}; no higher load was tested", PASS),
        ([8.0, 18.0], [8.0], "the objective does not hold at 18 requests/s, the lowest load that fails; no valid run at 8", INCONCLUSIVE),
        ([18.0, 24.0], [], "the objective does not hold at 18 requests/s, the lowest load of this sweep", FAIL),
    ],
)  # fmt: skip
def test_the_answer_claims_nothing_of_loads_without_a_valid_run(
    tmp_path, given, invalid, sentence, outcome
):
    groups, answer = played(planner(tmp_path, loads=given), invalid=invalid)
    ran = [step for group in groups for step in group]
    texts = [text for text in answer.result.details if text.startswith("no valid run at ")]

    assert (answer.result.sentence, answer.result.outcome) == (sentence, outcome)
    assert [point.load for point in answer.finding.points] == [
        load for load in given if load not in invalid
    ]
    assert sorted(step.given.load for step in ran if step.is_repeat) == invalid
    assert len(texts) == bool(invalid)
    assert answer.smallest == ""
    assert bool(answer.result.advice) == (not texts or outcome == PASS)


def answer_of(of, counts):
    """The answer to a course whose runs have so many requests, by load; each other one 400."""

    def measure(step):
        count = counts.get(step.given.load, 400)
        return result(replace(step, duration_s=count / step.given.load))

    return drive(of, measure)[1]


@pytest.mark.parametrize(
    ("requests", "sentence", "outcome"),
    [
        (
            60,
            f"the objective probably holds at 8 {AT_8}; no higher load was tested; shown at 2",
            INCONCLUSIVE,
        ),
        (400, f"the objective holds at 8 {AT_8}; no higher load was tested", PASS),
    ],
)
def test_a_load_with_too_few_requests_is_not_called_shown(tmp_path, requests, sentence, outcome):
    answer = answer_of(planner(tmp_path, loads=[2.0, 8.0]), {8.0: requests})

    assert (answer.result.sentence, answer.result.outcome) == (sentence, outcome)
    assert ("which was not shown" in answer.sections[0].card.detail) == (outcome == INCONCLUSIVE)


@pytest.mark.parametrize(
    ("curve", "option"),
    [
        ({"step_s": 10.0}, "--duration 20s"),
        ({"requests": 60}, "--requests 100"),
        ({"requests": 600}, "--requests 900"),
    ],
)
def test_an_inconclusive_load_has_its_cause_and_the_command_that_answers(tmp_path, curve, option):
    of = planner(tmp_path, loads=[2.0, 4.0, 8.0, 16.0], **curve)
    answer = answer_of(of, {4.0: 50, 8.0: 60})
    texts = [text for text in answer.result.details if text.startswith("inconclusive at ")]

    assert texts[-1] == (
        "inconclusive at 8 requests/s: 0 of 60 requests miss ttft p95 < 800 ms (5.0% may): about 88 are needed"
    )
    why, _, command = answer.result.advice.partition(": ")
    assert answer.result.outcome == INCONCLUSIVE
    assert why.startswith("narrow it down between 8 and 16, about ")
    assert command.startswith("tailgauge run ")
    assert command.endswith(f" --rate 9.514,11.31,13.45 {option}")


@pytest.mark.parametrize(
    ("late", "latter"), [(0, "0 of 60 requests miss"), (8, "8 of 60 requests miss")]
)
def test_an_inconclusive_load_below_one_that_fails_does_not_fail_with_it(tmp_path, late, latter):
    """More than allowed in one slow period, or none in few requests: both leave it open, and the headline says so."""

    def measure(step):
        found = result(step, is_open=False)
        share = counted(60, 150)
        if step.given.load == 4.0:
            share = replace(counted(late, 60, 12), low=0.01, high=0.5)
        run = replace(found.run, requests=share.n, objectives=(Exceedance(LABEL, share, 0.05),))
        return replace(found, run=run)

    _, answer = drive(planner(tmp_path, loads=[4.0, 5.0], by="concurrency", step_s=60.0), measure)

    assert answer.result.outcome == INCONCLUSIVE
    assert answer.result.sentence == (
        "not shown whether the objective holds at 4 requests in flight; it fails at 5 (TTFT p95 420 ms)"
        if late
        else "the objective probably holds at 4 requests in flight (TTFT p95 420 ms, 8 requests/s answered, 800 output tokens/s) "
        "and fails at 5 (TTFT p95 420 ms); not shown at any load"
    )
    assert answer.result.details[0].startswith(
        f"inconclusive at 4 requests in flight: {latter} {LABEL}"
    )
    assert "backlog" not in answer.result.details[0]
    why, loads = (
        ("find a load that holds", "1,2") if late else ("run the inconclusive loads longer", "4")
    )
    assert answer.result.advice.startswith(f"{why}, about ")
    assert f" --concurrency {loads} " in answer.result.advice
    assert [point.meets for point in answer.finding.points] == [INCONCLUSIVE, FAIL]


@pytest.mark.parametrize(
    ("given", "advice", "loads"),
    [
        ([2.0, 4.0], "find the load that fails", "held=4 --rate 6,8,12,16"),
        ([16.0, 24.0], "find a load that holds", "failed=16 --rate 4,8"),
        ([8.0, 16.0], "narrow it down between 8 and 16", "failed=16 --rate 9.514,11.31,13.45"),
    ],
)
def test_what_a_sweep_leaves_open_has_its_command(tmp_path, given, advice, loads):
    _, answer = played(planner(tmp_path, loads=given, step_s=30.0))

    assert answer.result.advice.startswith(f"{advice}, about ")
    assert answer.result.advice.endswith(f"{loads} --duration 30s")


@pytest.mark.parametrize(
    ("given", "known", "sentence", "outcome", "advice"),
    [
        ([8.0], {"failed": 9.0}, f"the objective holds at 8 {AT_8} and fails at 9 (an earlier curve)", PASS, " --rate 8 --duration 30s"),
        ([4.0], {"held": 2.0, "failed": 16.0}, f"the objective holds at 4 {AT_4} and fails at 16 (an earlier curve)", PASS,
         " --set experiment.curve.held=4 --set experiment.curve.failed=16 --rate 5.657,8,11.31 --duration 30s"),
        ([18.0, 24.0], {"held": 17.0}, "the objective holds at 17 requests/s (an earlier curve) and fails at 18 (TTFT p95 420 ms)", PASS, " --rate 17 --duration 30s"),
        ([8.0], {"held": 20.0, "failed": 30.0}, f"the objective holds at 8 {AT_8} and fails at 30 (an earlier curve)", PASS,
         " --set experiment.curve.held=8 --set experiment.curve.failed=30 --rate 11.13,15.49,21.56 --duration 30s"),
        ([18.0], {"held": 20.0}, "the objective does not hold at 18 requests/s, the lowest load of this sweep", FAIL,
         " --set experiment.curve.failed=18 --rate 4.5,9 --duration 30s"),
    ],
)  # fmt: skip
def test_what_an_earlier_curve_has_shown_is_named_and_not_tried_again(
    tmp_path, given, known, sentence, outcome, advice
):
    _, answer = played(planner(tmp_path, loads=given, step_s=30.0, **known))

    assert (answer.result.sentence, answer.result.outcome) == (sentence, outcome)
    assert answer.result.advice.endswith(advice)


def test_the_scenario_of_a_curve_is_not_run_at_one_load(tmp_path):
    of = planner(tmp_path, loads=[8.0], failed=9.0)
    of._base = replace(of._base, pairs=())
    _, answer = played(of)

    assert answer.result.advice == ""


@pytest.mark.parametrize("step_s", [60.0, 300.0])
def test_the_minutes_of_the_next_command_are_those_of_its_plan(tmp_path, step_s):
    _, answer = played(planner(tmp_path, loads=[8.0, 16.0], step_s=step_s, minutes=90.0))
    groups, _ = played(planner(tmp_path, loads=[9.514, 11.31, 13.45], step_s=step_s, minutes=90.0))
    seconds = sum(step.duration_s + RUN_S for group in groups for step in group)

    assert f"about {round(seconds / 60)} minutes: " in answer.result.advice


def test_the_command_repeats_options_as_they_are_typed(tmp_path):
    of = planner(tmp_path, loads=[2.0, 4.0], by="concurrency", requests=100)
    pairs = (
        ("experiment.kind", "curve"), ("target.url", "http://h"), ("traffic.*.prompt_tokens", 300), ("slo.ttft_p95", "ttft p95 < 800ms"),
        ("limits.ready_s", 60), ("experiment.curve.loads", [2.0, 4.0]), ("experiment.curve.refused", 0.05),
    )  # fmt: skip
    of._base = replace(of._base, pairs=pairs)
    _, answer = played(of, is_open=False)

    assert answer.result.advice.endswith(
        " --set limits.ready_s=60 --set experiment.curve.refused=0.05 --set experiment.curve.held=4 --target http://h --input-tokens 300 "
        "--slo 'ttft p95 < 800ms' --concurrency 6,8,12,16 --requests 100"
    )


@pytest.mark.parametrize(
    ("given", "text"),
    [
        ([2.0, 4.0, 9.0, 12.0, 13.0], "saturated at 12 requests in flight"),
        (
            [1.0, 9.0, 64.0],
            "saturated at 9 requests in flight: the target completes at most 2,000 output tokens/s and 20 requests/s; more requests in flight only wait longer",
        ),
        (
            [4.0, 6.0, 8.0],
            "no saturation up to 8 requests in flight: 33% more output tokens/s than at 6",
        ),
    ],
)
def test_users_who_add_nothing_show_saturation_at_any_two_loads(tmp_path, given, text):
    """12 and 13 are no doubling, but a closed loop that completes no more is full."""
    _, answer = played(planner(tmp_path, loads=given, by="concurrency"), is_open=False)
    texts = [part for part in (answer.result.sentence, *answer.result.details) if "satura" in part]

    assert len(texts) == 1
    assert texts[0].startswith(text)
    assert not any("too much for the target" in note for note in answer.sections[0].notes)


@pytest.mark.parametrize(
    ("ends", "text"),
    [
        ((0.9, 1.1), "no saturation up to 8 requests in flight: 33% more output tokens/s than at 6"),
        ((0.5, 1.5), "not shown whether 8 requests in flight saturate the target: 33% more output tokens/s than at 6, a difference within the intervals"),
        ((None, None), "no saturation up to 8 requests in flight: 33% more output tokens/s than at 6"),
    ],
)  # fmt: skip
def test_a_gain_of_throughput_counts_beyond_its_intervals(tmp_path, ends, text):

    def measure(step):
        found = result(step, is_open=False)
        rate = found.point.output_tokens_per_s.value
        low, high = (None if end is None else end * rate for end in ends)
        return replace(found, point=replace(found.point, output_tokens_per_s=Ends(rate, low, high)))

    _, answer = drive(planner(tmp_path, loads=[4.0, 6.0, 8.0], by="concurrency"), measure)

    assert text in answer.result.details


def test_a_rate_that_is_not_answered_in_full_is_not_called_unsaturated(tmp_path):

    def measure(step):
        found = result(step)
        return replace(found, run=replace(found.run, growing=False, saturated=False))

    _, answer = drive(planner(tmp_path, loads=[2.0, 24.0]), measure)
    texts = answer.result.details

    assert "20 requests/s answered at 24 requests/s: it may be more than the target can do" in texts
    assert not any("no saturation" in text for text in texts)


@pytest.mark.parametrize(
    ("curve", "longer"),
    [({"requests": 30}, ": --requests 100"), ({"step_s": 4.0}, ": --duration 10s"), ({}, None)],
)
def test_a_plan_that_is_too_short_names_the_length_that_is_not(tmp_path, curve, longer):
    of = planner(tmp_path, loads=[2.0, 12.0], **curve)
    played(of)
    (line,) = of.needs

    assert ("may end INCONCLUSIVE" in line) == (longer is not None)
    assert line.endswith(longer or " count as fewer")


def test_the_order_of_given_loads_is_the_one_of_the_plan(tmp_path):
    of = planner(tmp_path, loads=[2.0, 4.0, 8.0, 12.0])
    groups, answer = played(of)
    ran = ", ".join(f"{load:g}" for group in loads(groups) for load in group)

    assert of.order.startswith(f"order of the loads: {ran} (random, so that ")
    assert any("random order" in note for note in answer.sections[0].notes)
    assert planner(tmp_path).order == ""


@pytest.mark.parametrize(
    ("curve", "has", "shorter"),
    [
        ({"requests": 100}, "100", "shorter: fewer loads"),
        ({"requests": 1000}, "1,000", "shorter: fewer loads, or fewer requests for each: --requests 400"),
        ({"step_s": 15.0}, "39 to 312", "shorter: fewer loads"),
        ({"step_s": 600.0}, "1,380 to 11,040", "shorter: fewer loads, or fewer seconds for each: --duration 174s"),
    ],
)  # fmt: skip
def test_no_plan_proposes_a_length_that_cannot_answer(tmp_path, curve, has, shorter):
    of = planner(tmp_path, loads=[2.0, 16.0], minutes=60.0, **curve)
    played(of)

    assert of.needs == [
        f"ttft p95 < 800 ms: 72 independent requests decide a load that never misses it, 400 one near the bound; this plan has {has} at a load, and correlated ones count as fewer"
    ]
    assert of.shorter == [shorter]


@pytest.mark.parametrize(
    ("given", "step_s"), [({"loads": [2.0, 8.0, 16.0]}, 15.0), ({"loads": [1.0, 2.0], "by": "concurrency"}, 6.0), ({}, 20.0)]
)  # fmt: skip
def test_the_seconds_of_a_load_are_those_that_are_measured(tmp_path, given, step_s):
    groups, _ = played(planner(tmp_path, step_s=step_s, **given), is_open="by" not in given)
    for step in [step for group in groups for step in group]:
        warmup_s = dict(step.overrides)["stages.warmup_s"]

        assert step.duration_s - warmup_s == pytest.approx(step_s)
        assert 0.1 * step_s < warmup_s <= 0.5 * step_s


@pytest.mark.parametrize("step_s", [None, 30.0])
def test_a_number_of_requests_in_a_closed_loop_has_no_warm_up(tmp_path, step_s):
    of = planner(tmp_path, loads=[1.0, 2.0, 8.0], by="concurrency", requests=200, step_s=step_s)
    groups, answer = played(of, is_open=False)
    for step in [step for group in groups for step in group]:
        overrides = dict(step.overrides)

        assert overrides["arrival"]["closed"] == {
            "users": step.given.load,
            "think_s": 0.0,
            "requests": 200,
        }
        assert (overrides["stages.warmup_s"], overrides["stages.duration_s"]) == (
            0.0,
            step_s or ENDLESS_S,
        )
    assert len(answer.finding.points) == 3


def shaped(rates, p50s=None):
    """Points at 1, 2, 4, ... users, which give so many requests/s with ends 15% away."""
    _, answer = played(planner_of_users(len(rates)), is_open=False)
    points = []
    for number, point in enumerate(answer.finding.points):
        rate = rates[number]
        p50 = 400.0 if p50s is None else p50s[number]
        latency = {"ttft": {"p50": Ends(p50, 0.9 * p50, 1.1 * p50)}}
        points.append(
            replace(point, requests_per_s=Ends(rate, 0.85 * rate, 1.15 * rate), latency=latency)
        )
    return points


def planner_of_users(count):
    return planner(Path(), loads=[2.0**number for number in range(count)], by="concurrency")


@pytest.mark.parametrize(
    ("rates", "text"),
    [
        (
            [1.82, 1.33, 3.8],
            "2 requests in flight gave 1.33 requests/s, 1 gave 1.82 and 4 gave 3.8",
        ),
        ([2, 4, 2.4, 4.2], "4 requests in flight gave 2.4 requests/s, 2 gave 4 and 8 gave 4.2"),
        ([2, 4, 3.8, 4.1], ""),
        ([2, 4, 3, 2], ""),
    ],
)
def test_a_row_that_its_load_cannot_explain_is_named(rates, text):
    """A target that is too full may lose throughput, so only a dip between two loads is named."""
    found = disturbance_of(shaped(rates), Unit(IN_FLIGHT))

    assert found.partition(": ")[0] == text
    assert ("something else changed between the runs" in found) == bool(text)


@pytest.mark.parametrize(
    ("p50s", "text"),
    [
        ([700, 700, 350, 700], "4 requests in flight had a TTFT p50 of 350 ms, 2 of 700 ms"),
        ([240, 137, 144, 200], "2 requests in flight had a TTFT p50 of 137 ms, 1 of 240 ms"),
        ([400, 380, 410, 900], ""),
    ],
)
def test_answers_that_are_faster_with_more_load_are_named(p50s, text):
    found = faster_with_more_load(shaped([2, 4, 4, 4], p50s), Unit(IN_FLIGHT))

    assert found.partition(": ")[0] == text
    assert ("fell into step" in found) == bool(text)


def test_no_saturation_is_claimed_of_a_disturbed_curve(tmp_path):

    def measure(step):
        found = result(step, is_open=False)
        if step.given.load != 12.0:
            return found
        return replace(found, point=replace(found.point, requests_per_s=Ends(2.0, 1.9, 2.1)))

    loads_in_flight = [2.0, 12.0, 16.0, 18.0]
    _, answer = drive(planner(tmp_path, loads=loads_in_flight, by="concurrency"), measure)
    texts = (answer.result.sentence, *answer.result.details, *answer.sections[0].card.lines)

    assert any(
        text.startswith("12 requests in flight gave 2 requests/s, 2 gave 4 and 16 gave 20: ")
        for text in texts
    )
    assert not any("satura" in text for text in texts)
    assert answer.finding.saturation.value is None


def test_a_limit_brings_rests_at_a_target_that_keeps_state(tmp_path):
    groups, answer = played(planner(tmp_path, url="http://127.0.0.1:9"), kinds={"requests": 40})
    rests = [step.rest_s for group in groups for step in group]

    assert rests[:4] == [0.0] * 4
    assert set(rests[4:]) == {60.0}
    takes_s = sum(step.takes_s for group in groups for step in group)
    assert takes_s <= 12 * 60 + 0.1
    assert answer.finding.points[-1].load == 24.0


def test_where_todays_load_is_too_much_it_goes_down_and_fails(tmp_path):
    groups, answer = played(planner(tmp_path, today=40.0))
    tried = [load for group in loads(groups) for load in group]

    assert tried[:3] == [40.0, 20.0, 10.0]
    assert answer.result.outcome == FAIL
    assert answer.finding.knee.low <= KNEE <= answer.finding.knee.high


def test_without_an_objective_it_says_where_the_target_saturates(tmp_path):
    groups, answer = played(planner(tmp_path, slo={}), slo=False)

    assert answer.finding.knee == UNKNOWN
    assert (
        saturation(answer) == "the target completes at most 2,000 output tokens/s and 20 requests/s"
    )
    assert any("no objective on a latency in [slo]" in text for text in answer.result.details)
    assert all(0.5 * FULL < load < 1.2 * FULL for group in loads(groups)[4:] for load in group)


def test_requests_in_flight_are_whole_and_doubled_until_no_more_are_answered(tmp_path):
    closed = {"process": "closed", "closed": {"users": 2}}
    groups, answer = played(planner(tmp_path, arrival=closed, by="concurrency"), is_open=False)
    ran = [load for group in loads(groups) for load in group]

    assert ran[:4] == [2.0, 4.0, 8.0, 16.0]
    assert all(load == round(load) for load in ran)
    assert dict(groups[0][0].overrides)["arrival"] == {
        "process": "closed",
        "closed": {"users": 2, "think_s": 0.0},
    }
    assert answer.finding.by == "concurrency"
    assert answer.finding.knee.low <= KNEE <= answer.finding.knee.high


def test_loads_in_flight_stay_below_the_cap_that_the_scenario_sets(tmp_path):
    limits = {"in_flight_per_worker": 12}
    closed = {"process": "closed", "closed": {"users": 2}}
    groups, _ = played(
        planner(tmp_path, arrival=closed, limits=limits, by="concurrency"), is_open=False
    )

    assert max(load for group in loads(groups) for load in group) == 12

    message = "experiment.curve.loads: expected at most 12: limits.in_flight_per_worker is 12: raise it, or add"
    with pytest.raises(UsageError, match=message):
        planner(tmp_path, arrival=closed, limits=limits, by="concurrency", loads=[4.0, 16.0])


def test_many_requests_in_flight_get_the_cap_that_they_need(tmp_path):
    closed = {"process": "closed", "closed": {"users": 2}}
    given = planner(tmp_path, arrival=closed, by="concurrency", loads=[9000.0])
    (step,) = next(given.course())
    prepared = given._base.prepare(step, 1, tmp_path, sends=False)

    assert prepared.settings.scenario.limits.in_flight_per_worker == 9000


def test_without_a_run_that_can_be_used_there_is_no_answer(tmp_path):
    groups, answer = drive(planner(tmp_path), lambda _: None, lambda _: "INVALID")

    assert len(groups) == 2
    assert (answer.result.outcome, answer.facts) == (INCONCLUSIVE, {})


def test_a_run_is_not_ended_by_a_precision_that_an_objective_asks_for(tmp_path):
    slo = {"first": {**OBJECTIVE["first"], "precision": 0.05}}
    of = planner(tmp_path, slo=slo)
    (step,) = next(of.course())
    prepared = of._base.prepare(step, 1, tmp_path, sends=False)

    assert prepared.settings.scenario.slo["first"].precision is None


@pytest.mark.parametrize(
    ("given", "error"),
    [
        ({"arrival": {"process": "closed"}}, r"experiment.curve.by: .*expected by = 'concurrency'"),
        ({"by": "concurrency", "loads": [1.0, 2.5]}, r"experiment.curve.loads: expected whole numbers"),
        ({"requests": 9}, r"experiment.curve.requests: expected `loads` as well: each load gets this many requests"),
        ({"failed": 9.0}, r"experiment.curve.failed: expected `loads` as well"),
        ({"loads": [8.0], "held": 9.0, "failed": 9.0}, r"experiment.curve.held: expected a load below that of experiment.curve.failed"),
        ({"minutes": 1.0, "loads": [1.0, 2.0, 4.0, 8.0]}, r"experiment.minutes: 4 loads take 2 minutes or more"),
    ],
    ids=["closed loop by rate", "half a request", "requests of no load", "known of no load", "known both ways", "too few minutes"],
)  # fmt: skip
def test_what_cannot_be_run_is_refused_with_its_key(tmp_path, given, error):
    with pytest.raises(UsageError, match=error):
        planner(tmp_path, **given)


def test_that_other_processes_took_the_cores_stands_once(tmp_path):

    def measure(step):
        load = step.given.load
        return replace(result(step), core_wait_ms=0.0 if load == 4.0 else 30.0 * load)

    _, answer = drive(planner(tmp_path, loads=[2.0, 4.0, 8.0]), measure)

    assert [text for text in answer.result.details if "other processes" in text] == [
        "other processes used the client's cores in 2 of 3 runs: a worker waited up to 240 ms of a second for a core; they slow a target on this machine too"
    ]
