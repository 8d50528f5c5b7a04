"""What headroom says of targets that are assumed: its runs are computed, so that no endpoint is needed."""

from __future__ import annotations

import math
import shlex
from collections.abc import Callable
from dataclasses import replace
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
    def run(load: float, seconds: float) -> LoadRun:
        found = Limit(per_s, is_named=True).run(load, seconds)
        return replace(found, first_429_s=1.5 if found.kinds else None)

    answer, steps = answer_at(base_of(tmp_path, rate=rate), run)
    loads = [step.given.load for step in steps]

    assert loads[0] == rate
    assert len(set(loads[1:])) == 1
    assert 0.85 * per_s < loads[1] < per_s
    assert (
        answer.facts["low_per_s"] <= answer.facts["sustained_per_s"] <= answer.facts["high_per_s"]
    )
    assert 0.9 * per_s < answer.facts["sustained_per_s"] <= 1.02 * per_s
    assert answer.facts["rarely_refused_per_s"] < answer.facts["sustained_per_s"]
    burst = f"{6 * per_s:.3g}"
    lasts = f"{6 * per_s / (rate - per_s):.3g}"
    name = f"limit: {60 * per_s:,.0f} requests per minute ({per_s:g}/s); burst {burst}"
    without, _, today, limit, source = answer.result.details
    rare = answer.facts["rarely_refused_per_s"]
    assert without == (
        f"without refusals: {rare:.3g} requests/s with random arrivals (1 in 10,000 refused), "
        f"{per_s:g} requests/s if evenly spaced (computed from the limit)"
    )
    assert " with at most 1% of calls refused (CI " in answer.result.sentence
    assert " of today's calls are refused (CI " in today
    assert today.endswith(", the first after 1.5 s")
    assert limit == f"{name} lasts {lasts} s today on average"
    confirmed = f"confirmed at {loads[1]:.3g}/s by 3 runs"
    assert source == f"computed from the limit's refill and burst; {confirmed}"
    assert all(len(text) <= 78 for text in answer.result.details[1:])
    names = [step.name for step in steps[1:]]
    assert names == [f"confirms {loads[1]:.4g} requests/s ({number} of 3)" for number in (1, 2, 3)]


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
    sets = [
        "guard.max_requests=9000",
        "traffic.*.output_tokens=50",
        f"experiment.headroom.need={need}",
    ]
    answer, _ = answer_at(base_of(tmp_path, *sets), Limit(5.0, is_named=True).run)
    pace, limit = answer.result.advice.split("\n")
    needed = 8.0 * max(1, need)
    raised = float(limit.partition(" to ")[2].partition(" per ")[0].replace(",", ""))

    assert answer.result.outcome == "FAIL"
    rare = answer.facts["rarely_refused_per_s"]
    low = answer.facts["low_per_s"]
    first, others = pace.partition(". A run of ")[0].split("; ")
    assert (
        first
        == f"pace the client at {rare:.3g} requests/s: no refusals with random arrivals (1 in 10,000 refused)"
    )
    evenly = "up to 5 if evenly spaced (--set arrival.process=constant)"
    assert others == f"{evenly}, {low:.3g} if 1% may be refused"
    for option in (f"--target {URL}", "--max-requests 9000", "--output-tokens 50"):
        assert option in pace, "options are kept as options"
    assert "experiment" not in pace
    assert limit.startswith("or raise the limit on requests from 300 to ")
    allowed = math.ceil(300 * needed / answer.facts["sustained_per_s"])
    assert limit.endswith(
        f" per minute: {needed:g} requests/s without refusals ({allowed:,} are enough with at most 1% of calls refused)"
    )
    assert raised == math.ceil(300 * needed / rare)


@pytest.mark.parametrize(("per_s", "needs_s"), [(5.0, 2_000 / 5), (60.0, 360 / (0.05 * 60))])
def test_the_run_that_confirms_the_pace_decides_its_share_beyond_a_full_burst(
    tmp_path, per_s, needs_s
):
    """The share needs 2,000 requests; a burst of 6 s at 5% above the refill lasts 120 s."""
    base = base_of(tmp_path, "stages.duration_s=30", rate=2 * per_s)
    answer, _ = answer_at(base, Limit(per_s, is_named=True).run)
    pace = answer.result.advice.split("\n")[0]
    text, _, line = pace.partition(" confirms it: ")
    options = shlex.split(line)
    minutes = int(options[options.index("--duration") + 1].removesuffix("m"))

    assert text.endswith(f"A run of {minutes} minutes")
    assert options.count("--duration") == 1
    assert not [option for option in options if "duration_s" in option]
    assert options[options.index("--slo") + 1] == "error_rate < 1%"
    assert float(options[options.index("--rate") + 1]) == pytest.approx(
        answer.facts["rarely_refused_per_s"], rel=0.01
    )
    assert needs_s < 0.9 * 60 * minutes < 2 * needs_s + 60


def test_a_run_that_is_not_allowed_so_many_requests_is_not_said_to_confirm(tmp_path):
    answer, _ = answer_at(
        base_of(tmp_path, "guard.max_requests=900"), Limit(5.0, is_named=True).run
    )

    pace = answer.result.advice.split("\n")[0]
    assert pace.startswith("pace the client at ")
    assert "confirm" not in pace
    assert "tailgauge" not in pace


@pytest.mark.parametrize("process", ["constant", "gamma"])
def test_arrivals_that_are_not_random_are_not_called_so(tmp_path, process):
    base = base_of(tmp_path, f"arrival.process={process}")
    answer, _ = answer_at(base, Limit(5.0, is_named=True).run)

    assert answer.result.details[0].endswith(
        " requests/s (1 in 10,000 refused; computed from the limit)"
    )
    assert "evenly" not in answer.result.advice
    assert "random" not in answer.result.advice


def test_retries_of_refused_calls_are_to_be_switched_off(tmp_path):
    def run(load: float, seconds: float) -> LoadRun:
        found = Limit(5.0, is_named=True).run(load, seconds)
        return replace(found, retries=found.refused.k // 2)

    answer, _ = answer_at(base_of(tmp_path), run)

    assert "or switch retries off" in answer.result.advice


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


@pytest.mark.slow
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


@pytest.mark.slow
def test_the_plan_names_a_guard_that_may_end_it(tmp_path):
    base = base_of(tmp_path, "guard.max_requests=2000")

    assert "--max-requests ends the search at 2,000 calls" in search_lines(
        HeadroomPlanner(base), base, tmp_path
    )
    base = base_of(tmp_path, "guard.max_requests=900000")
    assert not [
        line
        for line in search_lines(HeadroomPlanner(base), base, tmp_path)
        if "max-requests" in line
    ]


def test_one_quiet_run_is_counted_by_its_dry_run(tmp_path):
    base = base_of(tmp_path, "experiment.headroom.no_429=true")

    assert search_lines(HeadroomPlanner(base), base, tmp_path) == []
