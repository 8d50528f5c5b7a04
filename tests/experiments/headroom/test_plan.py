"""The course of headroom, driven by hand: which steps it yields, and what it does with INVALID runs."""

from copy import copy
from dataclasses import replace

import pytest
from experiments.headroom.planted import TODAY, conducted, tree
from tailgauge.experiments.headroom.judge import Charges, Rate, RateResult
from tailgauge.experiments.headroom.plan import HeadroomPlanner

from tailgauge.experiments.course import RUN_S, Base, SpentError, StepResult
from tailgauge.experiments.headroom import measure
from tailgauge.scenario import model as scenarios
from tailgauge_analysis.stats.proportions import counted


def based(folder, wanted):
    return Base(folder / "planted.toml", scenarios.parse(wanted, "planted"), (), folder)


def base(folder, **headroom):
    return based(folder, tree("requests", 1, **headroom))


def result(rate, *, refused=0, growing=False, kinds=None, served=12.0):
    return RateResult(
        rate_per_s=rate, emptied=False, seconds=30.0, requests=400, refused=counted(refused, 400),
        overloaded=0, kinds=kinds or {}, objectives=(), served=Rate(served, served - 0.1, served + 0.1),
        growth_per_s=rate - served if growing else 0.0, detectable_per_s=0.4, growing=growing, saturated=growing,
        answer_s=0.5, buckets=(), charges=Charges({}, {}), offered={},
    )  # fmt: skip


def ran(step, verdict="VALID", **values):
    return StepResult(step, "run", verdict, "", result(step.given.rate_per_s, **values))


def rates(steps):
    return [dict(step.overrides).get("arrival.rate_per_s", TODAY) for step in steps]


def played(course, answered, *, minutes=None):
    """The steps of a course at a target that behaves like `answered`, one group after the other; and its answer."""
    steps, groups = next(course), []
    while True:
        groups.append(steps)
        try:
            steps = course.send([ran(step, **answered(step.given.rate_per_s)) for step in steps])
        except StopIteration as end:
            return groups, end.value


def at_capacity(rate):
    return {"growing": rate > 12.0, "served": min(rate, 12.0)}


def test_where_nothing_refuses_it_doubles_and_tries_both_sides_of_the_capacity_without_rests(tmp_path):
    wanted = tree("requests", 1, step_s=None, rest_s=60.0) | {"target": {"url": "http://127.0.0.1:9"}}
    course = HeadroomPlanner(based(tmp_path, wanted)).course()
    groups, answer = played(course, at_capacity)
    every = [step for group in groups for step in group]
    tried = rates(every)

    assert tried[:3] == [TODAY, 2 * TODAY, 4 * TODAY]
    assert {round(one, 2) for one in tried[3:]} == {round(12 / 1.05, 2), round(12.1 * 1.2, 2)}
    assert {step.rest_s for step in every} == {0.0}
    assert all(dict(step.overrides)["limits.drain_s"] <= 5 for step in every[1:])
    assert len({step.seed for step in every}) == len(every)
    half = (0.1**2 + 0.6**2) ** 0.5  # of the interval of what was answered, and of the precision
    assert answer.facts["low_per_s"] == pytest.approx(12 - half, abs=0.05)
    assert answer.facts["high_per_s"] == pytest.approx(12 + half, abs=0.05)


@pytest.mark.parametrize("minutes", [2.0, 4.0, 15.0])
def test_the_steps_never_take_longer_than_the_minutes(tmp_path, minutes):
    for answered in (
        at_capacity,
        lambda rate: {"kinds": {"requests": 40}, "refused": 40 if rate > 12 else 0},
    ):
        wanted = tree("requests", 1, step_s=None, rest_s=60.0) | {"target": {"url": "http://127.0.0.1:9"}}
        wanted["experiment"]["minutes"] = minutes
        groups, answer = played(HeadroomPlanner(based(tmp_path, wanted)).course(), answered)
        takes_s = sum(step.duration_s + step.rest_s + RUN_S for group in groups for step in group)

        assert takes_s <= minutes * 60 + 0.1
        assert takes_s > minutes * 60 - 100 or not any("left no time" in one for one in answer.result.details)


def test_a_429_brings_the_rests_and_the_small_steps_back(tmp_path):
    wanted = tree("requests", 1, step_s=None, rest_s=60.0) | {"target": {"url": "http://127.0.0.1:9"}}
    course = HeadroomPlanner(based(tmp_path, wanted)).course()
    (today,) = next(course)
    (next_step,) = course.send([ran(today, kinds={"requests": 1}, refused=1)])

    assert (today.rest_s, next_step.rest_s) == (0.0, 60.0)
    assert rates([next_step]) == [TODAY * 1.25]


def test_a_run_that_is_invalid_is_run_once_more_and_then_left_out(tmp_path):
    course = HeadroomPlanner(base(tmp_path)).course()
    (first,) = next(course)
    (again,) = course.send([ran(first, "INVALID")])
    (once_more,) = course.send([ran(again)])

    assert again.seed != first.seed
    assert again.overrides == first.overrides
    assert rates([once_more]) == [TODAY * 2]


def test_where_every_run_is_invalid_there_is_no_answer(tmp_path):
    course = HeadroomPlanner(base(tmp_path)).course()
    again = course.send([ran(step, "INVALID") for step in next(course)])
    with pytest.raises(StopIteration) as end:
        course.send([ran(step, "INVALID") for step in again])

    assert end.value.value.result.outcome == "INCONCLUSIVE"
    assert "INVALID" in end.value.value.result.sentence


def test_a_rate_without_a_valid_run_ends_it_and_is_named(tmp_path):
    course = HeadroomPlanner(base(tmp_path)).course()
    (today,) = next(course)
    (first,) = course.send([ran(today)])
    (again,) = course.send([ran(first, "INVALID")])
    with pytest.raises(StopIteration) as end:
        course.send([ran(again, "INVALID")])

    assert any(f"ended at {first.name}" in one for one in end.value.value.result.details)


def test_what_is_spent_ends_it_with_what_is_known_by_then(tmp_path):
    course = HeadroomPlanner(base(tmp_path)).course()
    steps = next(course)
    course.send([ran(step) for step in steps])
    with pytest.raises(StopIteration) as end:
        course.throw(SpentError("guard.max_requests: used up after 1 runs"))
    answer = end.value.value

    assert answer.result.details[0].startswith("guard.max_requests: used up")
    assert answer.facts["low_per_s"] == TODAY
    assert answer.facts["high_per_s"] is None


def test_the_steps_fit_into_the_minutes_that_there_are(tmp_path):
    wanted = tree("requests", 1)
    del wanted["experiment"]["headroom"]["step_s"]
    lengths = []
    for minutes in (15.0, 5.0, 120.0):
        wanted["experiment"]["minutes"] = minutes
        course = HeadroomPlanner(based(tmp_path, wanted)).course()
        lengths.append(next(course)[0].duration_s / 1.1)

    assert lengths == pytest.approx([15 * 60 / 14 - 15, 10.0, 120.0])


def test_limits_without_headers_are_found_by_their_429s(tmp_path, monkeypatch):
    def blind(rate, reading, **flags):
        attempts = reading.frames.attempts
        headers = [column for column in attempts.columns if column.startswith("header_")]
        unseeing = copy(reading)
        unseeing.frames = replace(reading.frames, attempts=attempts.drop(columns=headers))
        return rate_result(rate, unseeing, **flags)

    rate_result = measure.rate_result
    monkeypatch.setattr(measure, "rate_result", blind)
    facts = conducted(tree("output_tokens", 2, step_s=15.0, confirm=2, growth=1.6), tmp_path).answer.facts

    assert facts["low_per_s"] <= 10.03 <= facts["high_per_s"]
    assert facts["limits"][0]["bound"]["limit"]["rate"]["value"] == pytest.approx(200, rel=0.02)
    assert facts["first_429"]["value"] > 1
