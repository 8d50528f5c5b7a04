"""Lists of loads and --sweep: the load curve of any scenario."""

from __future__ import annotations

import io
import json
import re
from types import SimpleNamespace
from typing import Any

import click
import pytest
from click.testing import CliRunner

from tailgauge.cli.main import cli
from tailgauge.cli.options import OVERRIDES, Loads, Positive, Whole
from tailgauge.cli.run import curve_of
from tailgauge.command_line import OPTION_OF
from tailgauge.errors import UsageError
from tailgauge.experiments.course import Prepared, Step
from tailgauge.experiments.runners import RealRunner, RunCounter, figure_of
from tailgauge.scenario.model import load, override


def curve(scenario: str = "quickstart", *, wanted: bool = False, **given: Any) -> Any:
    """The scenario as a sweep runs it."""
    options = {"rate": None, "concurrency": None, "target": None, **given}
    plan = {key: options.pop(key, None) for key in ("duration_s", "requests")}
    texts = curve_of([scenario], options, plan, wanted=wanted)
    return load(scenario, [override(text) for text in texts])


@pytest.mark.parametrize(
    ("text", "loads"),
    [("8", 8.0), ("2,4,8", (2.0, 4.0, 8.0)), ("0.5, 1.5", (0.5, 1.5)), ("1e2,2e2", (100.0, 200.0))],
)
def test_a_load_or_several(text, loads):
    assert Loads(Positive())(text) == loads


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("2,,4", "expected loads such as 2,4,8, got '2,,4'"),
        (",", "expected loads such as 2,4,8"),
        ("8,-1", "expected a whole number from 1 to 100, got '-1'"),
        ("1,2.5", "expected a whole number from 1 to 100, got '2.5'"),
        ("a", "expected a whole number from 1 to 100, got 'a'"),
        ("8,4", "expected ascending loads, each once, got '8,4'"),
        ("4,4", "expected ascending loads, each once, got '4,4'"),
        ("1;2", "got '1;2'"),
    ],
)
def test_a_bad_list_is_refused(text, message):
    with pytest.raises(click.BadParameter, match=message):
        Loads(Whole(1, 100))(text)


def test_a_list_of_rates_is_the_curve_at_these_loads():
    experiment = curve(rate=(2.0, 4.0), duration_s=20.0).experiment

    assert (experiment.kind, experiment.curve.by) == ("curve", "rate")
    assert (experiment.curve.loads, experiment.curve.step_s) == ((2.0, 4.0), 20.0)
    assert 2 * (20 + 20) / 60 < experiment.minutes < 5


def test_a_list_of_requests_in_flight_takes_the_length_of_the_scenario():
    experiment = curve("closed", concurrency=(1, 2, 8)).experiment

    assert (experiment.curve.by, experiment.curve.loads) == ("concurrency", (1, 2, 8))
    assert experiment.curve.step_s == load("closed", []).stages.duration_s


@pytest.mark.parametrize(
    ("line", "key"),
    [
        ("stages.duration_s = 'long'", "stages.duration_s"),
        ("stages = 7", "stages"),
        ("target = []", "target"),
        ("arrival = 'x'", "arrival"),
        ("stages.duration_s = inf", "stages.duration_s"),
    ],
)
def test_what_is_wrong_with_the_scenario_is_refused_by_its_key(tmp_path, line, key):
    path = tmp_path / "mine.toml"
    path.write_text(f"{line}\ntraffic.chat = {{}}\n", encoding="utf-8")

    with pytest.raises(UsageError, match=f"{path}: {key}: expected"):
        curve(str(path), rate=(2.0, 4.0))


def test_requests_are_those_of_each_rate():
    experiment = curve(rate=(2.0, 4.0), requests=100).experiment

    assert (experiment.curve.requests, experiment.curve.step_s) == (100, None)
    assert experiment.minutes > (100 / 2 + 100 / 4) / 60


@pytest.mark.parametrize(
    ("scenario", "duration_s"), [("quickstart", None), ("closed", None), ("streaming", 40.0)]
)
def test_requests_are_those_of_each_concurrency(scenario, duration_s):
    experiment = curve(scenario, concurrency=(1, 8), requests=200, duration_s=duration_s).experiment

    assert (experiment.curve.by, experiment.curve.loads) == ("concurrency", (1, 8))
    assert (experiment.curve.requests, experiment.curve.step_s) == (200, duration_s)
    assert (experiment.minutes == 1440) == (duration_s is None)


@pytest.mark.parametrize(
    ("given", "by"),
    [({}, "rate"), ({"concurrency": 4}, "concurrency"), ({"rate": 3.0, "concurrency": 4}, "rate")],
)
def test_a_sweep_chooses_its_own_loads(given, by):
    experiment = curve(wanted=True, **given).experiment

    assert (experiment.kind, experiment.curve.by, experiment.curve.loads) == ("curve", by, ())
    assert experiment.minutes >= 12
    assert experiment.curve.most == 16


def test_one_concurrency_beside_rates_is_a_queue():
    scenario = curve(rate=(2.0, 4.0), concurrency=8)

    assert scenario.arrival.max_concurrency == 8
    assert scenario.experiment.curve.by == "rate"


def test_a_curve_keeps_its_own_minutes():
    assert (
        curve("curve", rate=(2.0, 4.0)).experiment.minutes == load("curve", []).experiment.minutes
    )
    assert curve("curve", rate=(2.0, 4.0), duration_s=300.0).experiment.minutes > 10


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("quickstart --rate 2,4 --concurrency 1,2", "--rate: a sweep of --concurrency has no rate: omit it"),
        ("quickstart --concurrency 1,2 --rate 3", "--rate: a sweep of --concurrency has no rate: omit it"),
        ("closed --rate 2,4", "--rate: this scenario is a closed loop: use --concurrency 1,2,4"),
        ("headroom --rate 2,4", "--rate: headroom plans its own loads: give one load"),
        ("hedging --sweep", "--sweep: hedging plans its own loads: give one load"),
        ("quickstart --sweep --rate 2,4", "--sweep: it chooses the loads, but --rate lists them: omit one of the two"),
        ("quickstart --sweep --requests 9", "--requests: with --sweep give the length of each load instead: --duration 30s"),
        ("quickstart --rate 2,4 --requests 9 --duration 5s", "--duration and --requests: at a given rate one follows from the other: choose one"),
        ("quickstart streaming --sweep", "a load curve takes one scenario"),
        ("quickstart --sweep --web 8090 --workers 1", "--web: an experiment starts all of its runs on this machine: omit --web"),
        ("headroom --expect-workers 2", "--expect-workers: an experiment starts all of its runs on this machine: omit --expect-workers"),
    ],
)  # fmt: skip
def test_what_a_sweep_does_not_take_is_one_line(tmp_path, line, message):
    done = CliRunner().invoke(cli, ["run", *line.split(), "--out", str(tmp_path)])

    assert isinstance(done.exception, UsageError)
    assert str(done.exception) == message


def test_a_dry_sweep_has_a_point_for_each_load(tmp_path):
    line = "run quickstart --rate 4,8 --requests 30 --dry-run --json --input-tokens 20 --slo"
    given = [*line.split(), "e2e p50 < 2s", "--out", str(tmp_path)]
    done = CliRunner().invoke(cli, given)
    data = json.loads(done.stdout)

    assert data["kind"] == "curve"
    assert [point["load"] for point in data["facts"]["points"]] == [4.0, 8.0]
    assert all(10 <= point["requests"] <= 40 for point in data["facts"]["points"])
    assert data["facts"]["today"] is None  # the scenario's 50/s is none of the loads
    assert "--set 'experiment.curve.loads=[4.0, 8.0]'" in data["command"]
    assert done.stderr.splitlines()[0].startswith("tailgauge: run 1  ")


@pytest.mark.slow
@pytest.mark.parametrize(("loads", "requests"), [("1,3,4", 12), ("2,16", 5), ("4,8", 40)])
def test_a_dry_sweep_of_a_closed_loop_sends_exactly_so_many_requests(tmp_path, loads, requests):
    line = f"run quickstart --concurrency {loads} --requests {requests} --dry-run --json --out"
    data = json.loads(CliRunner().invoke(cli, [*line.split(), str(tmp_path)]).stdout)
    points = data["facts"]["points"]

    assert [point["load"] for point in points] == [float(load) for load in loads.split(",")]
    assert [point["requests"] for point in points] == [requests] * len(points)
    assert all(point["complete"] == 1 and point["requests_per_s"]["value"] for point in points)
    assert f" {requests * len(points)} calls" in data["planned"][0]
    assert data["description"] == ""  # of another load than the scenario's


def test_the_longer_run_of_a_counted_loop_has_more_requests(tmp_path):
    line = "run quickstart --num-prompts 30 --max-concurrency 4 --dry-run --json --out"
    done = CliRunner().invoke(cli, [*line.split(), str(tmp_path)])

    advice = json.loads(done.stdout)["result"]["advice"]
    assert advice.startswith("run longer: tailgauge run quickstart --dry-run ")
    assert re.search(r" --requests [1-9]\d*0$", advice)
    assert "requests = 30" not in advice
    assert "--duration" not in advice


def test_the_command_of_a_next_step_knows_the_options_of_run():
    options = {one.key: one.option for one in OVERRIDES}

    assert {key: options[key] for key in OPTION_OF} == dict(OPTION_OF)


# --- progress -------------------------------------------------------------------------------------------------------


def test_a_line_for_each_run_has_its_number_figure_and_time_left():
    lines: list[str] = []
    counter = RunCounter(lines.append, 3, is_timed=True)
    for verdict in ("VALID", "DEGRADED", "VALID", "VALID"):
        counter.ended("4 requests/s", "ttft p95 412 ms", verdict)

    assert lines == [
        "run 1 of 3  4 requests/s  ttft p95 412 ms  VALID  under 1 min left",
        "run 2 of 3  4 requests/s  ttft p95 412 ms  DEGRADED  under 1 min left",
        "run 3 of 3  4 requests/s  ttft p95 412 ms  VALID",
        "run 4  4 requests/s  ttft p95 412 ms  VALID",
    ]


def test_a_repeated_run_is_announced_and_counted():
    lines: list[str] = []
    counter = RunCounter(lines.append, 2, is_timed=True)
    counter.ended("4 in flight", "", "VALID")
    counter.ended("8 in flight", "", "INVALID")
    counter.repeat([])
    counter.repeat(["8 in flight"])
    counter.ended("8 in flight", "", "VALID")

    assert lines == [
        "run 1 of 2  4 in flight  VALID  under 1 min left",
        "run 2 of 2  8 in flight  INVALID",
        "repeated once, because INVALID: 8 in flight",
        "run 3 of 3  8 in flight  VALID",
    ]


def test_what_a_run_waits_for_is_printed_and_all_else_is_logged(tmp_path):
    printed: list[str] = []
    runner = RealRunner(tmp_path, 1, tmp_path / "log", RunCounter(printed.append))
    lines = [
        "calls go to http://h",
        "note: http://h answered HTTP 503: waiting until it is ready",
        "note: other",
    ]
    runner._follow(io.StringIO("".join(f"{line}\n" for line in lines)))

    assert printed == ["http://h answered HTTP 503: waiting until it is ready"]
    assert (tmp_path / "log").read_text(encoding="utf-8").splitlines() == lines


def test_a_rest_is_announced_with_its_length_and_reason(tmp_path, monkeypatch):
    printed: list[str] = []
    slept: list[float] = []
    runner = RealRunner(tmp_path, 1, tmp_path / "log", RunCounter(printed.append))
    monkeypatch.setattr(runner, "_run_group", lambda _: iter(()))
    monkeypatch.setattr("tailgauge.experiments.runners.time.sleep", slept.append)
    monkeypatch.setattr("tailgauge.experiments.runners.time.monotonic", lambda: 100.0)
    steps = [
        Step("first", (), 12.0, 1),
        Step("second", (), 12.0, 2, 19.2, rests_until="the limit has refilled"),
        Step("third", (), 12.0, 3),
    ]
    settings: Any = SimpleNamespace(
        scenario=SimpleNamespace(target=SimpleNamespace(url="http://h"))
    )

    list(runner.run([Prepared(step, tmp_path, settings, ()) for step in steps]))

    assert slept == [pytest.approx(19.2)]
    assert printed == ["resting 20 s until the limit has refilled"]


LATENCY = {"metric": "ttft", "population": "offered", "unit": "ms"}


@pytest.mark.parametrize(
    ("facts", "figure"),
    [
        ({"result": {"objectives": [{"name": "ttft p95", "value": ""}, {"name": "e2e p50", "value": "1.2 s"}]}}, "e2e p50 1.2 s"),
        (
            {"result": {"objectives": [{"name": "ttft p95", "value": "87% of requests", "required": "< 500 ms", "numbers": {"value": None}}]}},
            "87% of requests miss ttft p95 < 500 ms",
        ),
        ({"result": {"objectives": []}, "latency": [{**LATENCY, "percentiles": {"p95": {"value": 411.6}}}]}, "ttft p95 412 ms"),
        ({"latency": [{**LATENCY, "percentiles": {"p95": {"value": None}, "p50": {"value": 50.0}}}]}, "ttft p50 50.0 ms"),
        ({"latency": [{**LATENCY, "population": "completed", "percentiles": {"p50": {"value": 50.0}}}]}, ""),
        ({}, ""),
    ],
)  # fmt: skip
def test_the_figure_of_a_run(facts, figure):
    assert figure_of(facts) == figure


# --- a checkup at the user's rate -----------------------------------------------------------------------------------


def test_a_checkup_takes_the_rate_the_sizes_and_the_limits(monkeypatch, tmp_path):
    asked = []
    monkeypatch.setattr(
        "tailgauge.cli.main._answer", lambda _, settings, **__: asked.append(settings) or 0
    )
    line = (
        "checkup --rate 2 --seed 9 --max-requests 50000 --input-tokens 70 --output-tokens 30 --slo"
    )

    done = CliRunner().invoke(cli, [*line.split(), "ttft p95 < 1s", "--out", str(tmp_path)])

    assert done.exit_code == 0, done.output
    scenario = asked[0].scenario
    assert (scenario.arrival.rate_per_s, scenario.seed, scenario.guard.max_requests) == (
        2,
        9,
        50_000,
    )
    assert {(table.prompt_tokens, table.output_tokens) for table in scenario.traffic.values()} == {
        (70, 30)
    }
    assert [objective.max_ms for objective in scenario.slo.values()][-1] == 1000
