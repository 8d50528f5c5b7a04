"""The course of headroom, driven by hand: which steps it yields, and what it does with INVALID runs."""

from dataclasses import replace

import pytest
from experiments.headroom.planted import TODAY, conducted, tree

from tailgauge.experiments.course import Base, SpentError, StepResult
from tailgauge.experiments.headroom import measure
from tailgauge.experiments.headroom.judge import Charges, Rate, RateResult
from tailgauge.experiments.headroom.plan import HeadroomPlanner
from tailgauge.scenario import model as scenarios
from tailgauge_analysis.stats.proportions import counted


def base(folder, **headroom):
    return Base(
        folder / "planted.toml", scenarios.parse(tree("requests", 1, **headroom), "planted"), (), folder
    )


def result(rate, *, refused=0, growing=False):
    return RateResult(
        rate_per_s=rate, emptied=False, seconds=30.0, requests=400, refused=counted(refused, 400),
        overloaded=0, kinds={}, good=None, served=Rate(12.0, 11.9, 12.1), waiting=(1.0, 1.0), growing=growing, buckets=(),
        charges=Charges({}, {}), offered={},
    )  # fmt: skip


def ran(step, verdict="VALID", **values):
    return StepResult(step, "run", verdict, "", result(step.given.rate_per_s, **values))


def rates(steps):
    return [dict(step.overrides).get("arrival.rate_per_s", TODAY) for step in steps]


def test_it_goes_up_from_today_and_confirms_both_sides_of_the_capacity(tmp_path):
    course = HeadroomPlanner(base(tmp_path, growth=2.0)).course()
    today = next(course)
    steps = [today, course.send([ran(today[0])])]
    steps.append(course.send([ran(steps[-1][0])]))
    last = course.send([ran(steps[-1][0], growing=True)])
    above = [
        step
        for step in last
        if "arrival.shape" in dict(step.overrides) and dict(step.overrides)["arrival.shape"]
    ]

    assert [rates(group)[0] for group in steps] == [TODAY, 2 * TODAY, 4 * TODAY]
    assert len(last) == 6
    assert len({step.seed for group in (*steps, last) for step in group}) == 9
    assert len(above) == 3
    for step in above:  # after its warm-up, the steady rate is the one that is tried
        overrides = dict(step.overrides)
        share = overrides["stages.warmup_s"] / step.duration_s
        assert overrides["arrival.rate_per_s"] / (1 + share) == pytest.approx(12 * 1.05)
        assert step.duration_s - overrides["stages.warmup_s"] == 30.0


def test_a_run_that_is_invalid_is_run_once_more_and_then_left_out(tmp_path):
    course = HeadroomPlanner(base(tmp_path)).course()
    (first,) = next(course)
    (again,) = course.send([ran(first, "INVALID")])
    (once_more,) = course.send([ran(again)])

    assert again.seed != first.seed
    assert again.overrides == first.overrides
    assert rates([once_more]) == [TODAY * 1.25]


def test_where_every_run_is_invalid_there_is_no_answer(tmp_path):
    course = HeadroomPlanner(base(tmp_path)).course()
    again = course.send([ran(step, "INVALID") for step in next(course)])
    with pytest.raises(StopIteration) as end:
        course.send([ran(step, "INVALID") for step in again])

    assert end.value.value.result.outcome == "INCONCLUSIVE"
    assert "INVALID" in end.value.value.result.sentence


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
        course = HeadroomPlanner(
            Base(tmp_path / "planted.toml", scenarios.parse(wanted, "planted"), (), tmp_path)
        ).course()
        lengths.append(next(course)[0].duration_s / 1.1)

    assert lengths == pytest.approx([15 * 60 / 14 - 15, 10.0, 120.0])


def test_limits_without_headers_are_found_by_their_429s(tmp_path, monkeypatch):
    def blind(rate, reading, **flags):
        attempts = reading.frames.attempts
        headers = [column for column in attempts.columns if column.startswith("header_")]
        frames = replace(reading.frames, attempts=attempts.drop(columns=headers))
        return rate_result(rate, replace(reading, frames=frames), **flags)

    rate_result = measure.rate_result
    monkeypatch.setattr(measure, "rate_result", blind)
    facts = conducted(tree("output_tokens", 2, step_s=15.0, confirm=2, growth=1.6), tmp_path).answer.facts

    assert facts["low_per_s"] <= 10.03 <= facts["high_per_s"]
    assert facts["limits"][0]["bound"]["limit"]["rate"]["value"] == pytest.approx(200, rel=0.02)
    assert facts["first_429"]["value"] > 1
