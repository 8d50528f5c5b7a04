"""Calibrate: the search over planted verdicts, its answer, and the command at the built-in endpoint."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path
from typing import Any

import pytest
from project.words import in_report

from tailgauge.errors import Exit, UsageError
from tailgauge.experiments.answer import Answer, RunRow, exit_code
from tailgauge.experiments.calibrate import CalibratePlanner, CalibrationRun, sentence
from tailgauge.experiments.command import command as conduct_and_write
from tailgauge.experiments.course import Base, SpentError, StepResult
from tailgauge.scenario import model as scenarios
from tailgauge.scenario.packaged import packaged
from tailgauge.thresholds import DEGRADED, INVALID, VALID

SCENARIO = packaged("scenarios") / "calibrate.toml"
REASON = "Endpoint saturated: it sent chunks up to 70 ms late."


def base_of(folder: Path, **keys: Any) -> Base:
    """The packaged scenario with some keys set, by their dotted names with __ for each dot."""
    tree = tomllib.loads(SCENARIO.read_text(encoding="utf-8"))
    tree["name"] = "calibrate"
    for key, value in keys.items():
        scenarios.put(tree, key.replace("__", "."), value)
    return Base(SCENARIO, scenarios.parse(tree, "calibrate.toml"), (), folder)


class PlantedMachine:
    """A machine that measures up to `limit` requests/s; the first `disturbed` runs are DEGRADED at any load."""

    def __init__(self, limit: float, disturbed: int = 0, runs: int = 1000) -> None:
        self.limit = limit
        self.disturbed = disturbed
        self.left = runs
        self.rates: list[float] = []

    def verdict(self, rate_per_s: float) -> str:
        """The verdict of the next run."""
        self.rates.append(rate_per_s)
        if len(self.rates) <= self.disturbed:
            return DEGRADED
        if rate_per_s > 2 * self.limit:
            return INVALID
        return VALID if rate_per_s <= self.limit else DEGRADED

    def calibrate(self, planner: CalibratePlanner) -> Answer:
        """The answer of a calibration of this machine; time is up after `runs` runs."""
        course = planner.course()
        try:
            steps = next(course)
            while True:
                if len(self.rates) == self.left:
                    steps = course.throw(SpentError("interrupted"))
                (step,) = steps
                verdict = self.verdict(step.given)
                reason = "" if verdict == VALID else REASON
                run = CalibrationRun(step.given, 40.0, 300, verdict, reason)
                steps = course.send([StepResult(step, "run", verdict, reason, run)])
        except StopIteration as end:
            answer: Answer = end.value
            return answer


def rows(planner: CalibratePlanner) -> list[RunRow]:
    """The runs of a planner as the report lists them."""
    return [RunRow("a load", "run", run.verdict, run.reason) for run in planner.results]


@pytest.mark.parametrize("limit", [3.0, 20.0, 49.0, 50.0, 130.0, 777.0, 4000.0])
def test_the_largest_valid_load_is_within_a_quarter_of_the_machines_limit(tmp_path, limit):
    planner = CalibratePlanner(base_of(tmp_path, experiment__minutes=30))
    answer = PlantedMachine(limit).calibrate(planner)

    largest = answer.finding.largest_valid.requests_per_s
    lowest_beyond = answer.finding.lowest_not_valid.requests_per_s
    assert largest <= limit < lowest_beyond
    assert lowest_beyond / largest <= 1.2501
    assert (
        exit_code(answer.result, planner.measurement(rows(planner)), interrupted=False) == Exit.OK
    )


def test_the_rate_doubles_then_the_gap_is_halved_and_what_is_not_valid_runs_twice(tmp_path):
    machine = PlantedMachine(130.0)
    machine.calibrate(CalibratePlanner(base_of(tmp_path)))

    assert machine.rates == [50, 100, 200, 200, 141.4, 141.4, 118.9]


def test_a_load_whose_second_run_is_valid_is_valid(tmp_path):
    machine = PlantedMachine(130.0, disturbed=1)
    answer = machine.calibrate(CalibratePlanner(base_of(tmp_path)))

    assert machine.rates[:3] == [50, 50, 100]
    assert answer.finding.largest_valid.requests_per_s == 118.9


def test_the_minutes_bound_the_runs(tmp_path):
    machine = PlantedMachine(1e9)
    planner = CalibratePlanner(
        base_of(tmp_path, experiment__minutes=1, experiment__calibrate__step_s=5.0)
    )
    answer = machine.calibrate(planner)

    assert machine.rates == [50, 100, 200, 400]
    assert planner.spent_s <= 60
    assert answer.result.sentence == (
        "This machine measures up to 400 requests/s with 40 chunks each: VALID up to there, "
        "no higher load was tested"
    )


def test_runs_of_long_answers_are_longer_and_count_once_they_are_in_flight(tmp_path):
    planner = CalibratePlanner(base_of(tmp_path, traffic__chat__output_tokens=400))
    (step,) = next(planner.course())
    overrides = dict(step.overrides)

    assert step.duration_s == pytest.approx(3 * 1.25 * 8.1)
    assert overrides["stages.warmup_s"] == pytest.approx(1.25 * 8.1)
    assert overrides["target.preopened"] > 50 * 8.1
    assert overrides["limits.drain_s"] > 8.1


def test_an_interrupted_search_answers_with_the_finished_runs(tmp_path):
    planner = CalibratePlanner(base_of(tmp_path))
    answer = PlantedMachine(130.0, runs=2).calibrate(planner)

    assert answer.finding.largest_valid.requests_per_s == 100
    assert answer.result.details[0].startswith("interrupted")


def test_where_no_load_is_valid_the_answer_is_invalid(tmp_path):
    planner = CalibratePlanner(base_of(tmp_path))
    answer = PlantedMachine(0.0).calibrate(planner)
    measurement = planner.measurement(rows(planner))

    assert (measurement.verdict, measurement.sentence) == (INVALID, "no load was VALID")
    assert exit_code(answer.result, measurement, interrupted=False) == Exit.INVALID
    assert answer.result.sentence.startswith("This machine measures no tested load: INVALID at ")


def test_loads_beyond_the_machine_do_not_weaken_the_answer(tmp_path):
    planner = CalibratePlanner(base_of(tmp_path))
    PlantedMachine(130.0).calibrate(planner)

    assert planner.measurement(rows(planner)).verdict == VALID


@pytest.mark.parametrize(("planned", "code"), [(120.0, Exit.OK), (140.0, Exit.FAILED)])
def test_a_planned_load_is_tried_first_and_decides(tmp_path, planned, code):
    planner = CalibratePlanner(base_of(tmp_path, experiment__calibrate__planned=planned))
    machine = PlantedMachine(130.0)
    answer = machine.calibrate(planner)

    assert machine.rates[0] == planned
    assert exit_code(answer.result, planner.measurement(rows(planner)), interrupted=False) == code
    (objective,) = answer.result.objectives
    assert (objective.name, objective.bound) == (
        "largest VALID load",
        f"≥ {planned:.0f} requests/s",
    )


def test_the_sentence_names_both_loads_and_the_reason():
    largest = CalibrationRun(141.4, 40.0, 300, VALID, "")
    above = CalibrationRun(176.8, 40.0, 300, DEGRADED, REASON)

    assert sentence(largest, above) == (
        "This machine measures up to 141 requests/s with 40 chunks each: VALID up to there, DEGRADED at 177, "
        "because endpoint saturated: it sent chunks up to 70 ms late"
    )
    assert "because TTFT is off" in sentence(
        largest, CalibrationRun(1.0, 1.0, 1, DEGRADED, "TTFT is off.")
    )
    assert sentence(None, None) == "No load was run"


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"target__url": "http://127.0.0.1:9"}, "target.url: calibrate measures this machine"),
        ({"experiment__minutes": 0.2}, "experiment.minutes: a run takes 19 s"),
        (
            {"arrival": {"process": "closed", "closed": {"users": 3}}},
            "arrival.process: calibrate sets a rate",
        ),
    ],
)
def test_what_cannot_be_calibrated_is_refused(tmp_path, keys, message):
    with pytest.raises(UsageError, match=message):
        CalibratePlanner(base_of(tmp_path, **keys))


def test_a_dry_run_is_refused(tmp_path):
    with pytest.raises(UsageError, match=r"--dry-run: calibrate measures this machine"):
        conduct_and_write(base_of(tmp_path), (), print, dry_run=True)


def answer_of(done: Any) -> dict[str, Any]:
    """The JSON that the command printed; its exit code is the one in it."""
    answer: dict[str, Any] = json.loads(done.stdout)
    assert done.returncode == answer["exit_code"], done.stderr
    return answer


@pytest.mark.slow
def test_one_load_at_the_built_in_endpoint_is_judged_by_the_verdict_of_its_run(command, tmp_path):
    sets = ["--set=experiment.minutes=0.25", "--set=experiment.calibrate.step_s=5", "--rate=20"]
    line = [
        "tailgauge",
        "run",
        "calibrate",
        "--json",
        *sets,
        "--output-tokens=10",
        "--out",
        tmp_path,
    ]
    done = command(line, 90)
    answer = answer_of(done)

    (run,) = answer["facts"]["runs"]
    (row,) = answer["runs"]
    assert (run["requests_per_s"], run["chunks"]) == (20, 10)
    assert (run["verdict"], run["reason"]) == (row["verdict"], row["reason"])
    assert answer["exit_code"] == (Exit.OK if run["verdict"] == VALID else Exit.INVALID)
    report = Path(answer["report"]["html"]).parent
    assert in_report(report, done.stderr + done.stdout) == []


@pytest.mark.timed
@pytest.mark.alone
def test_the_quick_form_ends_within_its_minute(command, full_size, tmp_path):
    if not full_size:
        pytest.skip("make verify: a minute of a quiet machine")
    answer = answer_of(
        command(["tailgauge", "calibrate", "--quick", "--json", "--out", tmp_path], 120)
    )

    assert answer["exit_code"] == Exit.OK
    assert 2 <= len(answer["runs"]) <= 4
    assert answer["facts"]["largest_valid"]["requests_per_s"] >= 50
