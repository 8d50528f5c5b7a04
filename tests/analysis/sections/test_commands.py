"""Commands of a report repeat its run, and experiments are given only what they can set the load of."""

import shlex

import pytest

from tailgauge.scenario.model import override, spelled
from tailgauge_analysis.sections.commands import again, experiment
from tailgauge_analysis.sections.environment import besides

HEADROOM = "--set experiment.kind=headroom --set experiment.minutes=15"
CURVE = "--set experiment.kind=curve --set experiment.minutes=15"
STAGES = "stages={duration_s = 9}"


def record(**changes):
    return {
        "scenario_file": "mine.toml", "overrides": ["seed=7", STAGES], "dry_run": False,
        "workers": [{"host": "here"}], "master": {"host": "here"}, "plugins": [],
        "scenario": {"arrival": {"process": "poisson", "rate_per_s": 5.0}}, **changes,
    }  # fmt: skip


def with_arrival(**arrival):
    return record(scenario={"arrival": arrival}, overrides=[])


@pytest.mark.parametrize(
    ("run", "kind", "line"),
    [
        (
            with_arrival(process="poisson", rate_per_s=5.0),
            "headroom",
            f"{HEADROOM} --max-requests 5000",
        ),
        (with_arrival(process="closed"), "headroom", None),
        (with_arrival(process="closed"), "curve", f"{CURVE} --set experiment.curve.by=concurrency"),
        (with_arrival(process="tasks"), "curve", None),
        (
            with_arrival(process="trace"),
            "headroom",
            f"{HEADROOM} --set arrival.rate_per_s=3.142 --max-requests 3000",
        ),
        (with_arrival(process="trace", rate_per_s=2.0), "curve", CURVE),
    ],
)
def test_an_experiment_sets_the_load_that_the_run_has(run, kind, line):
    expected = None if line is None else f"tailgauge run mine.toml {line}"

    assert experiment(run, kind, 3.14159) == expected


@pytest.mark.parametrize(
    ("length", "kept"),
    [
        (STAGES, False),
        ("arrival.closed.requests=100", False),
        ("stages.warmup_s=3", True),
        ("clock=user", True),
    ],
)
def test_an_experiment_does_not_take_the_length_of_the_run(length, kept):
    line = experiment(record(overrides=[length]), "curve", None)

    assert (length in line) == kept


@pytest.mark.parametrize(
    ("overrides", "retries"),
    [
        (["traffic.*.retry.policy=sdk"], {"chat": "sdk", "batch": "sdk"}),
        (
            ['traffic.chat.retry={policy = "polite"}', "traffic.chat.retry.max_retries=5"],
            {"chat": "polite"},
        ),
        ([], {"chat": "naive", "rest": "none"}),
        ([], {}),
    ],
)
def test_headroom_is_measured_without_retries_and_a_curve_with_those_of_the_run(overrides, retries):
    traffic = {name: {"retry": {"policy": policy}} for name, policy in retries.items()}
    scenario = {"arrival": {"process": "poisson", "rate_per_s": 5.0}, "traffic": traffic}
    run = record(overrides=["traffic.chat.prompt_tokens=9", *overrides], scenario=scenario)

    line = experiment(run, "headroom", None)
    off = [
        f"traffic.{name}.retry.policy=none" for name, policy in retries.items() if policy != "none"
    ]

    assert line.count("retry") == len(off)
    assert all(text in line for text in (*off, "traffic.chat.prompt_tokens=9"))
    assert experiment(run, "curve", None).count("retry") == len(overrides)


def test_an_experiment_keeps_options_as_options_and_bounds_its_calls():
    given = [
        "target.url=http://127.0.0.1:9",
        "arrival.rate_per_s=8.0",
        "traffic.*.output_tokens=50",
        "stop.connect_errors=0",
    ]
    scenario = {"arrival": {"process": "poisson", "rate_per_s": 8.0}, "traffic": {}}
    line = experiment(record(overrides=given, scenario=scenario), "headroom", None)
    guarded = record(
        overrides=[*given, "guard.max_requests=500"],
        scenario=scenario | {"guard": {"max_requests": 500}},
    )

    assert "--target http://127.0.0.1:9 --rate 8 --output-tokens 50 --max-requests 8000" in line
    assert "--set stop.connect_errors=0 --set experiment.kind=headroom" in line
    assert "--max-requests" not in experiment(
        record(overrides=given, scenario=scenario), "curve", None
    )
    assert experiment(guarded, "headroom", None).endswith("--max-requests 500")


HERE = {"host": "here"}


@pytest.mark.parametrize(
    ("changes", "line"),
    [
        ({"scenario_file": ""}, None),  # a step of an experiment
        ({"workers": [HERE, HERE]}, "--workers 2 --set seed=7"),
        ({"workers": [HERE, HERE], "dry_run": True}, "--dry-run --set seed=7"),
        ({"workers": [HERE, {"host": "there"}]}, "--set seed=7"),
    ],
)
def test_the_command_of_a_run_repeats_it(changes, line):
    found = again(record(**{"overrides": ["seed=7"], **changes}))

    assert found == (line and f"tailgauge run mine.toml {line}")


@pytest.mark.parametrize(
    "value", ["it's; rm -rf /", {"duration_s": 9.5, "cooldown_s": 0.0}, ["a b", True], "$HOME `x`"]
)
def test_a_shell_reads_every_override_back(value):
    line = shlex.split(again(record(overrides=[spelled("a.b", value)], workers=[])))

    assert line[:4] == ["tailgauge", "run", "mine.toml", "--set"]
    assert override(line[4]) == ("a.b", value)


def test_workers_elsewhere_are_named_beside_the_command():
    away = record(workers=[HERE, {"host": "there"}], target={"simulated": False})

    assert "1 worker ran on other machines" in besides(away)
    assert "may answer differently" in besides(away)


@pytest.mark.slow
def test_the_command_stands_on_the_page_and_in_markdown(made):
    report = made(n=100)
    line = "tailgauge run synthetic.toml --workers 2"

    assert report.data["run"]["reproduce"] == line
    assert f"{line}</dd>" in report.html.read_text()
    assert line in report.markdown.read_text()


@pytest.mark.parametrize(
    "text", ["a.b=one\ntwo", "a.b=\u202etxt", "a.b=" + "x" * 3000, "a.b=\x1b[31m"]
)
def test_a_command_that_cannot_be_shown_as_it_is_is_not_shown(text):
    run = record(overrides=[text])

    assert again(run) is None
    assert experiment(run, "curve", None) is None


def test_another_length_replaces_the_stages_of_the_first():
    assert (
        again(record(), options=["--duration", "60s"])
        == "tailgauge run mine.toml --set seed=7 --duration 60s"
    )
    assert "stages=" in again(record())


@pytest.mark.parametrize("option", ["--duration", "--requests"])
def test_a_longer_run_does_not_keep_the_limit_on_requests_that_ends_it(option):
    run = record(overrides=["guard.max_requests=20", "guard.max_cost=2.0"])

    assert (
        again(run, options=[option, "60"])
        == f"tailgauge run mine.toml --set guard.max_cost=2.0 {option} 60"
    )
    assert "guard.max_requests=20" in again(run)


def test_a_plugin_is_named_as_it_was_given():
    one = {"name": "p", "file": "p.py", "given": "plugins/p.py"}

    assert (
        again(record(plugins=[one], overrides=[]))
        == "tailgauge run mine.toml --plugin plugins/p.py"
    )
