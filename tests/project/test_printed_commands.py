"""Every command that a report, an experiment or a message prints is one that the command line takes.

Three nets. Each place that builds a command is reached by a test, and what it prints is planned as before a run. Commands of
the packaged scenarios, with the options that users type, are planned too. The commands and options that stand in texts exist.
"""

from __future__ import annotations

import ast
import importlib.util
import re
import shlex
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import click
import pandas as pd
import pytest
from starting.planned import base_of, planned

from tailgauge import command_line
from tailgauge.cli.main import FIRST_STEPS, cli
from tailgauge.dry_run.command import dry_run
from tailgauge.errors import UsageError
from tailgauge.experiments import course
from tailgauge.experiments.checkup import hedging as checkup_hedging
from tailgauge.experiments.checkup import report as checkup_report
from tailgauge.experiments.checkup import tested as traffic_under_test
from tailgauge.experiments.checkup.checks import CHECKS
from tailgauge.experiments.checkup.numbers import Number
from tailgauge.experiments.command import command as conduct
from tailgauge.master import run_json
from tailgauge.plan.resolve import Settings
from tailgauge.scenario.packaged import packaged
from tailgauge_analysis.report import model
from tailgauge_analysis.run import Run
from tailgauge_analysis.sections import commands
from tailgauge_analysis.sections.environment import compute
from tailgauge_analysis.sections.result import result

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
SOURCES = {name: ROOT / name for name in ("src/tailgauge", "analysis/tailgauge_analysis")}
# Who builds a command: the names by which its caller knows it.
BUILDERS = {
    "run_line", "_command_line", "commands.again", "commands.experiment", "base.command", "self.command", "of.line_of",
    "line_of",  # of experiments
}  # fmt: skip
MINE = "my runs/it's mine.toml"
SCENARIO = """
name = "mine"
[target]
url = "simulated"
[arrival]
rate_per_s = 1
[stages]
duration_s = 200
warmup_s = 0
[simulated]
ttft_ms = 200
ttft_sigma = 0.16
chunk_gap_ms = 2
[traffic.chat]
prompt_tokens = 200
output_tokens = 8
"""
OK = {"first": 100, "stop_reason": "stop", "output_tokens": 20}
LIMIT = {"ended": "rate_limited", "status": 429}
BROKEN = {"ended": "server_error", "status": 500}
BUSY = {"ended": "overloaded", "status": 529, "end": 4000.0}
STORM = [
    {**BUSY, "attempt": n, "cause": "retry" if n else "primary", "sent": 0.1 + n} for n in range(6)
]
COPIES = [
    {**OK, "first": None, "ended": "cancelled"},
    {**BUSY, "attempt": 1, "cause": "hedge", "sent": 50.0},
    {**BUSY, "attempt": 2, "cause": "retry", "sent": 90.0},
]
MINE_LINE = shlex.join(["tailgauge", "run", MINE])
# The run, what became of its requests, and what the advice changes.
RUNS: dict[str, tuple[str, list[Any], str]] = {
    "limited": (f"{MINE_LINE} --rate 8 --duration 60s", [OK, LIMIT] * 30, "experiment.kind=headroom"),
    "limited with retries": (
        "tailgauge run retries --target http://127.0.0.1:8000/v1 --protocol openai --workers 2 --requests 100",
        [OK, LIMIT] * 30,
        "retry.policy=none",
    ),
    "limited users": (
        f"{MINE_LINE} --concurrency 8 --requests 100 --input-tokens 30",
        [OK, LIMIT] * 30,
        "experiment.curve.by=concurrency",
    ),
    "overloaded": (f"{MINE_LINE} --slo 'chat: ttft p95 < 2s'", [OK, BUSY] * 30, "experiment.kind=curve"),
    "stopped": (f"{MINE_LINE} --rate 8", [OK, LIMIT] * 30, "experiment.kind=headroom"),
    "limited at the end": (MINE_LINE, [*[BROKEN] * 20, *[OK] * 20, *[LIMIT] * 15], "experiment.kind=headroom"),
    "retries": (
        "tailgauge run streaming --set traffic.chat.retry.policy=naive",
        [*[OK] * 30, *({**OK, "first": 100.0 + 60 * n} for n in range(20)), *[STORM] * 40],
        "traffic.chat.retry.policy=polite",
    ),
    "hedges": ("tailgauge run hedged", [OK, COPIES] * 30, "traffic.chat.hedge.policy=off"),
    "too short": (f"{MINE_LINE} --slo 'ttft p95 < 2s' --seed 7", [OK] * 40, "--duration"),
    "too few": (f"{MINE_LINE} --concurrency 4 --requests 40 --slo 'ttft p95 < 2s'", [OK] * 40, "--requests"),
}  # fmt: skip
POOLED = f"{MINE_LINE} --dry-run --set arrival.shape.kind=ramp --set arrival.shape.factor=6 --slo 'ttft p90 < 255ms'"


@pytest.fixture(scope="module")
def reached() -> set[tuple[str, str]]:
    """Files and functions on the way to the line of a printed command."""
    return set()


@pytest.fixture(scope="module")
def printed(
    mixed: Any, reached: set[tuple[str, str]], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[dict[str, str]]:
    """What each place that builds a command prints, by name."""
    folder = tmp_path_factory.mktemp("printed")
    (folder / "my runs").mkdir()
    (folder / MINE).write_text(SCENARIO)

    def run_line(*arguments: Any, **options: Any) -> str:
        frame = sys._getframe(1)
        while frame is not None:
            reached.add((frame.f_code.co_filename, frame.f_code.co_name))
            frame = frame.f_back
        return command_line.run_line(*arguments, **options)

    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        patch.setattr(commands, "run_line", run_line)
        patch.setattr(course, "run_line", run_line)
        lines: dict[str, str] = {}
        for name, (line, attempts, _) in RUNS.items():
            advice = result(run_of(mixed, folder / name, planned(line), attempts)).advice
            first, *more = commands_in(advice)
            lines[name] = first
            lines |= {f"{name}, also {number}": command for number, command in enumerate(more)}
        settings = planned(POOLED)
        folder_of_run = dry_run(
            settings.scenario, settings.schedule, settings.scenario_file, settings.overrides, folder
        ).path
        run = Run([folder_of_run])
        lines["pooled"] = commands_in(result(run).advice)[0]
        lines["reproduce"] = str(compute(run).reproduce)
        assert model.run_facts(run).reproduce == lines["reproduce"]
        lines |= of_experiments(folder)
        yield lines


def run_of(mixed: Any, folder: Path, settings: Settings, attempts: list[Any]) -> Run:
    """A run of the scenario in which this became of its requests, one every 100 ms."""
    rows = mixed(duration_s=100.0)
    for number, attempt in enumerate(attempts):
        several = attempt if isinstance(attempt, list) else [attempt]
        rows.request(
            100 * number, several, ended=several[-1].get("ended", "ok"), asked_output_tokens=200
        )
    urls = ["http://127.0.0.1:8000"] * len(settings.scenario.targets)
    if folder.name == "stopped":
        rows.run |= {
            "state": "stopped",
            "stopped": "at 9.9 s: 40% of 60 completed (stop.min_completed 0.5)",
        }
    rows.run |= run_json.scenario_facts(
        settings.scenario, settings.scenario_file, settings.overrides, urls
    )
    return Run([rows.write(folder)])


def of_experiments(folder: Path) -> dict[str, str]:
    """The commands that experiments print: theirs, and those of other experiments."""
    line = "tailgauge run headroom --rate 4 --set experiment.headroom.no_429=true --set experiment.minutes=2"
    settings = planned(f"{line} --dry-run")
    made = conduct(base_of("headroom", settings), settings.overrides, lambda _: None, dry_run=True)
    lines = {"headroom": made.report.data["command"]}
    scenario = f"{MINE_LINE} --set experiment.kind=checkup --target http://127.0.0.1:8000"
    traffic = traffic_under_test.tested(base_of(MINE, planned(scenario), workers=2))
    lines["hedges, of a checkup"] = checkup_hedging._experiment(traffic, 412.3)
    hedged = traffic_under_test.tested(
        base_of("hedged", planned("tailgauge run hedged --set experiment.kind=checkup"))
    )
    lines["hedged already"] = commands_in(
        checkup_hedging.advice(hedged, Hedged(), (), has_tail=False)
    )[0]
    for name, check in CHECKS.items():
        if check.experiment:
            number = Number(evidence="it was seen", gain=0.9, n=100, value=0.9, low=0.9, high=1.0)
            found = checkup_report.judge(name, number, 0.1)
            lines[f"check {name}"] = commands_in(
                checkup_report._problem(found, traffic.line_of).why
            )[0]
    return lines


class Hedged:
    """Answers of which some were hedged."""

    attempts = pd.DataFrame({"cause": ["hedge"]})


def commands_in(text: str) -> list[str]:
    """The commands at the ends of the lines of an advice."""
    found = [command_line.with_command(line)[1] for line in text.splitlines()]
    assert any(found), text
    return [command for command in found if command]


def test_every_printed_command_is_one_that_runs(printed):
    for name, line in printed.items():
        settings = planned(line)
        expected = RUNS[name][2] if name in RUNS else ""

        assert expected in line, line
        assert settings.scenario.traffic, line


def test_what_is_typed_is_in_the_command_and_its_length_is_not(printed):
    limited = planned(printed["limited with retries"]).scenario
    users = planned(printed["limited users"]).scenario

    assert (limited.target.url, limited.target.protocol) == ("http://127.0.0.1:8000/v1", "openai")
    assert "--workers 2" not in printed["limited with retries"]  # the record has one worker
    assert all(table.retry.policy == "none" for table in limited.traffic.values())
    assert users.arrival.closed.users == 8
    assert users.arrival.closed.requests is None
    assert [table.prompt_tokens for table in users.traffic.values()] == [30]
    assert planned(printed["too short"]).scenario.seed == 7
    assert "experiment.minutes" in printed["limited"]


def test_every_place_that_builds_a_command_is_reached(printed, reached):
    """A new place fails here until a case of this file prints its command."""
    assert printed
    places = dict(building_places())

    assert len(places) > 10
    assert sorted(place for key, place in places.items() if key not in reached) == []


def building_places() -> Iterator[tuple[tuple[str, str], str]]:
    """File and function of each call of a builder, and where it stands."""
    for folder in SOURCES.values():
        for path in sorted(folder.rglob("*.py")):
            source = path.read_text("utf-8")
            if not any(f"{builder}(" in source for builder in BUILDERS):
                continue
            for function in ast.walk(ast.parse(source)):
                if not isinstance(function, ast.FunctionDef):
                    continue
                calls = [call for call in ast.walk(function) if isinstance(call, ast.Call)]
                for call in calls:
                    builder = ast.unparse(call.func)
                    if builder == "line_of" and "experiments" not in path.parts:
                        continue
                    if builder in BUILDERS:
                        key = (str(path), function.name)
                        yield key, f"{path.relative_to(ROOT)}:{call.lineno} {builder}"


def test_no_other_module_knows_the_builder():
    found = [
        str(path.relative_to(ROOT))
        for folder in SOURCES.values()
        for path in folder.rglob("*.py")
        if re.search(r"import .*\brun_line\b", path.read_text("utf-8"))
    ]

    assert sorted(found) == [
        "analysis/tailgauge_analysis/sections/commands.py",
        "src/tailgauge/experiments/course.py",
    ]


OPTIONS = (
    "",
    "--duration 60s --rate 3",
    "--requests 100 --seed 7",
    "--concurrency 4 --requests 50",
    "--rate 3 --concurrency 4",
    "--target http://127.0.0.1:9 --protocol openai --max-requests 50000",
    "--slo 'ttft p95 < 800ms' --slo 'error_rate < 1%'",
    "--dry-run --duration 20s",
    "--set 'stages={duration_s = 20, warmup_s = 2}' --set 'target.headers={x-team = \"a \u26a1 b\"}'",
)


@pytest.mark.parametrize(
    "path", sorted(packaged("scenarios").glob("*.toml")), ids=lambda path: path.stem
)
def test_commands_of_packaged_scenarios_run(path, full_size, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    number = len(path.stem)
    for options in OPTIONS if full_size else (OPTIONS[number % len(OPTIONS)],):
        try:
            settings = planned(f"tailgauge run {path.stem} {options}")
        except UsageError:  # what this scenario does not take
            continue
        for line in commands_of(settings, is_dry="--dry-run" in options):
            again = planned(line).scenario

            assert again.target == settings.scenario.target
            assert again.seed == settings.scenario.seed


def commands_of(settings: Settings, *, is_dry: bool) -> list[str]:
    """The commands that a report of this run could print."""
    scenario = settings.scenario
    urls = [target.url for target in scenario.targets.values()]
    facts = run_json.scenario_facts(scenario, settings.scenario_file, settings.overrides, urls)
    machine = {"host": "here"}
    record = {**facts, "workers": [machine], "master": machine, "dry_run": is_dry}
    longer = ["--requests", "900"] if scenario.arrival.is_counted else ["--duration", "900s"]
    lines = [commands.again(record)]
    if scenario.experiment is None:
        lines.append(commands.again(record, options=longer))
        lines += [
            commands.experiment(record, kind, 2.5) for kind in (commands.HEADROOM, commands.CURVE)
        ]
    return [line for line in lines if line is not None]


# --- commands and options in texts ------------------------------------------------------------------------------------

NAMED = re.compile(r"(?<![\w./-])tailgauge ((?:[a-z]|-)[^`\n;,()\"]*)")
OPTION = re.compile(r"(?<![\w-])--[a-z][a-z-]+")
GROUPS = {"baseline", "scenario", "runs"}
UNKNOWN_TO_USERS = {
    "--enable-prompt-tokens-details",
    "--lifeline",
}  # of an engine, and of our own children
PLACEHOLDER = re.compile(r"[A-Z{%*.].*|.*\{\}.*")
NO_COMMANDS = {"reads", "and", "its", "of", "is"}  # behind the name of the program


@cache
def texts() -> list[tuple[str, str]]:
    """Every text of the sources that names a command or an option, with its place."""
    return [
        (place, text) for place, text in _every_text() if NAMED.search(text) or OPTION.search(text)
    ]


def _every_text() -> Iterator[tuple[str, str]]:
    """Values that are filled in are `{}`."""
    for folder in SOURCES.values():
        for path in sorted(folder.rglob("*.py")):
            source = path.read_text("utf-8")
            if not (NAMED.search(source) or OPTION.search(source)):
                continue
            tree = ast.parse(source)
            parts = {
                id(value)
                for node in ast.walk(tree)
                if isinstance(node, ast.JoinedStr)
                for value in node.values
            }
            for node in ast.walk(tree):
                place = f"{path.relative_to(ROOT)}:{getattr(node, 'lineno', 0)}"
                if isinstance(node, ast.JoinedStr):
                    filled = [
                        value.value if isinstance(value, ast.Constant) else "{}"
                        for value in node.values
                    ]
                    yield place, "".join(map(str, filled))
                elif (
                    isinstance(node, ast.Constant)
                    and isinstance(node.value, str)
                    and id(node) not in parts
                ):
                    yield place, node.value


def problems(text: str) -> Iterator[str]:
    """What is wrong with the commands that a text names."""
    for found in NAMED.findall(text):
        arguments = found.split()
        if arguments[0] not in NO_COMMANDS and re.fullmatch(r"[a-z-]+", arguments[0]):
            yield from _problems_of(arguments)


def _problems_of(arguments: list[str]) -> Iterator[str]:
    command: click.Command = cli
    while arguments and isinstance(command, click.Group):
        if arguments[0] not in command.commands:
            break
        command = command.commands[arguments.pop(0)]
    if command is cli and arguments and not arguments[0].startswith("-"):
        yield f"no command {arguments[0]!r}"
        return
    known = {option for parameter in command.params for option in parameter.opts} | {"-h", "--help"}
    yield from (
        f"{command.name} has no {word}"
        for word in arguments
        if word.startswith("--") and word.split("=")[0] not in known
    )
    first = next((word for word in arguments if not word.startswith("-")), "")
    if not first or PLACEHOLDER.fullmatch(first):
        return
    pages = {path.stem for path in packaged("docs").rglob("*.md")}
    scenarios = {path.stem for path in packaged("scenarios").glob("*.toml")}
    if command.name == "docs" and len(arguments) == 1 and first.strip("'.:") not in pages:
        yield f"no page {first!r}"
    if command.name in {"run", "checkup"} and first not in scenarios:
        yield f"no scenario {first!r}"


def test_the_commands_in_texts_exist():
    found = [(place, problem) for place, text in texts() for problem in problems(text)]

    assert found == []


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("see `tailgauge doc prices`", "no command 'doc'"),
        ("use `tailgauge docs price`", "no page 'price'"),
        ("run: tailgauge run quickstrat --target URL", "no scenario 'quickstrat'"),
        ("add `tailgauge compare A B --treshold 3`", "compare has no --treshold"),
        ("`tailgauge scenario list` lists them, or `tailgauge run SCENARIO --dry-run`", None),
        ("tailgauge reads them", None),
    ],
)
def test_a_command_that_does_not_exist_is_found(text, problem):
    assert list(problems(text)) == ([] if problem is None else [problem])


def test_the_options_in_texts_exist():
    known = {*every_option(cli), *options_of_locust(), "--help", "--name", *UNKNOWN_TO_USERS}
    found = {
        (place, option)
        for place, text in texts()
        for option in OPTION.findall(text)
        if option not in known
    }

    assert sorted(found) == []


def options_of_locust() -> set[str]:
    """Its options and those that we add; it is read, because its import patches the process."""
    (folder,) = importlib.util.find_spec("locust").submodule_search_locations
    files = (
        Path(folder, "argument_parser.py"),
        SOURCES["src/tailgauge"] / "locust_app" / "users.py",
    )
    return {
        option for file in files for option in re.findall(r'"(--[a-z-]+)"', file.read_text("utf-8"))
    }


def every_option(command: click.Command) -> Iterator[str]:
    """The options of a command and of all below it."""
    yield from (option for parameter in command.params for option in parameter.opts)
    for below in command.commands.values() if isinstance(command, click.Group) else ():
        yield from every_option(below)


def test_the_first_steps_run():
    lines = re.findall(r"^tailgauge run .*?(?=  |$)", FIRST_STEPS, re.MULTILINE)

    assert len(lines) == 2
    for line in lines:
        assert planned(line).scenario.name == "quickstart"
