"""What headroom says of targets that are assumed: its runs are computed, so that no endpoint is needed."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tailgauge.experiments.answer import Answer
from tailgauge.experiments.command import search_lines
from tailgauge.experiments.course import Base, SpentError, StepResult
from tailgauge.experiments.headroom import HeadroomPlanner
from tailgauge.experiments.loads.forecast import Limit, run_of
from tailgauge.experiments.loads.run import LoadRun
from tailgauge.scenario import model as scenarios

URL = "http://127.0.0.1:9"
Measure = Callable[[float, float], LoadRun]


def base_of(folder: Path, *sets: str, rate: float = 8.0, text: str = "") -> Base:
    """A scenario at another target, with options of the command line."""
    path = folder / "mine.toml"
    path.write_text(f"{text}[traffic.chat]\n", encoding="utf-8")
    typed = [f"target.url={URL}", f"arrival.rate_per_s={rate}", "experiment.kind=headroom", *sets]
    pairs = tuple(scenarios.override(one) for one in typed)
    return Base(path, scenarios.load(str(path), pairs), pairs, folder)


def answer_at(base: Base, measure: Measure, runs: int = 99) -> tuple[Answer, list[Any]]:
    """The answer after so many runs at most, and the steps."""
    course = HeadroomPlanner(base).course()
    taken: list[Any] = []
    try:
        steps = next(course)
        while True:
            if len(taken) + len(steps) > runs:
                steps = course.throw(SpentError("guard.max_requests: used up"))
            results = []
            for step in steps:
                run = measure(step.given.load, step.duration_s)
                results.append(StepResult(step, "", "VALID", "", run))
            taken += steps
            steps = course.send(results)
    except StopIteration as end:
        return end.value, taken


@pytest.mark.parametrize(("per_s", "rate"), [(5.0, 8.0), (10.0, 13.0), (40.0, 100.0)])
def test_a_named_limit_is_confirmed_just_below_it_after_the_first_refusals(tmp_path, per_s, rate):
    answer, steps = answer_at(base_of(tmp_path, rate=rate), Limit(per_s, is_named=True).run)
    loads = [step.given.load for step in steps]

    assert loads[0] == rate
    assert len(set(loads[1:])) == 1
    assert 0.85 * per_s < loads[1] < per_s
    assert answer.facts["low_per_s"] <= answer.facts["sustained_per_s"] <= answer.facts["high_per_s"]
    assert 0.9 * per_s < answer.facts["sustained_per_s"] <= 1.02 * per_s
    assert answer.facts["rarely_refused_per_s"] < answer.facts["sustained_per_s"]
    burst = f"{6 * per_s:.3g}"
    lasts = f"{6 * per_s / (rate - per_s):.3g}"
    name = f"limit: {60 * per_s:,.0f} requests per minute, burst {burst}"
    assert answer.result.details[1] == f"{name}: used up in {lasts} s at today's rate"
    confirmed = f"confirmed at {loads[1]:.3g} by 3 runs"
    assert answer.result.details[2] == f"computed from the limit's refill and burst; {confirmed}"
    refused = answer.result.details[3]
    assert refused.startswith("1% of calls refused (experiment.headroom.refused); 0.01% at ")
    assert all(len(text) <= 76 for text in answer.result.details)


def test_a_rate_that_no_run_confirms_is_named_as_such(tmp_path):
    answer, steps = answer_at(base_of(tmp_path), Limit(5.0, is_named=True).run, runs=1)

    assert len(steps) == 1
    (source,) = [text for text in answer.result.details if text.startswith("computed from")]
    assert source.endswith("not confirmed: no rate held in a run")
    longer, raised = answer.result.advice.split("\n")[::2]
    assert longer.startswith("search longer: tailgauge run ")
    assert "--set experiment.kind=headroom --set experiment.minutes=30" in longer
    assert raised.startswith("or raise the limit on requests ")


@pytest.mark.parametrize("need", [0, 3])
def test_a_rate_that_is_refused_names_the_pace_and_the_limit_that_it_needs(tmp_path, need):
    sets = ["guard.max_requests=9000", "traffic.*.output_tokens=50", f"experiment.headroom.need={need}"]
    answer, _ = answer_at(base_of(tmp_path, *sets), Limit(5.0, is_named=True).run)
    pace, limit = answer.result.advice.split("\n")
    needed = 8.0 * max(1, need)
    raised = float(limit.partition(" to ")[2].partition(" per ")[0].replace(",", ""))

    assert answer.result.outcome == "FAIL"
    assert pace.startswith(
        f"pace the client at {answer.facts['low_per_s']:.3g} requests/s (evenly spaced: up to 5)"
    )
    for option in (f"--target {URL}", "--max-requests 9000", "--output-tokens 50"):
        assert option in pace, "options are kept as options"
    assert pace.endswith(f" --rate {answer.facts['low_per_s']:.3g}")
    assert "experiment" not in pace
    assert limit.startswith("or raise the limit on requests from 300 to ")
    assert limit.endswith(f" per minute, for {needed:g} requests/s")
    assert raised == pytest.approx(300 * needed / answer.facts["sustained_per_s"], rel=0.01)


def test_a_target_that_refuses_nothing_needs_no_change_but_may_count_by_the_minute(tmp_path):
    answer, _ = answer_at(base_of(tmp_path, "experiment.headroom.most=4"), run_of)
    long, _ = answer_at(
        base_of(tmp_path, "experiment.headroom.most=4", "experiment.headroom.step_s=75"), run_of
    )
    hidden = [text for text in answer.result.details if "would not have shown" in text]

    assert answer.result.outcome == "PASS"
    assert answer.result.advice == ""
    assert len(hidden) == 1
    assert hidden[0].startswith("a limit above ")
    assert not [text for text in long.result.details if "would not have shown" in text]


def test_a_limit_that_refills_within_seconds_is_not_waited_for_a_minute(tmp_path):
    _, named = answer_at(base_of(tmp_path), Limit(5.0, is_named=True).run)
    _, unnamed = answer_at(base_of(tmp_path), Limit(5.0, is_named=False).run)

    assert {step.rest_s for step in named[1:]} == {6.0}
    assert {step.rest_s for step in unnamed[1:]} == {60.0}


@pytest.fixture(scope="module")
def plan(tmp_path_factory) -> list[str]:
    """The plan at today's 5 requests/s."""
    folder = tmp_path_factory.mktemp("plan")
    base = base_of(folder, rate=5.0)
    return search_lines(HeadroomPlanner(base), base, folder)


@pytest.mark.parametrize(
    ("factor", "is_named"), [(0.3, True), (0.7, False), (1.6, True), (1.6, False), (3.7, False)]
)
def test_the_plan_of_a_search_covers_what_it_takes(tmp_path, plan, factor, is_named):
    minutes, runs, calls = plan[0].split(", ")[:3]
    _, steps = answer_at(base_of(tmp_path, rate=5.0), Limit(5.0 * factor, is_named=is_named).run)
    sent = sum(step.given.load * step.duration_s for step in steps)

    assert _is_within(sum(step.takes_s for step in steps) / 60, minutes, 0.5)
    assert _is_within(len(steps), runs, 0)
    assert _is_within(sent, calls, 0.05 * sent)


def _is_within(value: float, text: str, slack: float) -> bool:
    low, _, rest = text.partition(" to ")
    high = rest.partition(" ")[0]
    return float(low.replace(",", "")) - slack <= value <= float(high.replace(",", "")) + slack


def test_the_plan_names_a_guard_that_may_end_it(tmp_path):
    base = base_of(tmp_path, "guard.max_requests=2000")

    assert "--max-requests ends the search at 2,000 calls" in search_lines(
        HeadroomPlanner(base), base, tmp_path
    )
    base = base_of(tmp_path, "guard.max_requests=900000")
    assert not [
        line for line in search_lines(HeadroomPlanner(base), base, tmp_path) if "max-requests" in line
    ]


def test_one_quiet_run_is_counted_by_its_dry_run(tmp_path):
    base = base_of(tmp_path, "experiment.headroom.no_429=true")

    assert search_lines(HeadroomPlanner(base), base, tmp_path) == []
