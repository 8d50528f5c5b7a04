"""Commands of a report repeat its run, and experiments are given only what they can set the load of."""

import pytest

from tailgauge_analysis.sections.commands import again, experiment


def record(**changes):
    return {
        "scenario_file": "mine.toml", "overrides": ["seed=7", "stages={duration_s = 9}"], "dry_run": False,
        "workers": [{"host": "here"}], "master": {"host": "here"}, "plugins": [],
        "scenario": {"arrival": {"process": "poisson", "rate_per_s": 5.0}}, **changes,
    }  # fmt: skip


def with_arrival(**arrival):
    return record(scenario={"arrival": arrival}, overrides=[])


@pytest.mark.parametrize(
    ("run", "kind", "line"),
    [
        (with_arrival(process="poisson", rate_per_s=5.0), "headroom", "--set experiment.kind=headroom"),
        (with_arrival(process="closed"), "headroom", None),
        (with_arrival(process="closed"), "curve", "--set experiment.kind=curve --set experiment.curve.by=concurrency"),
        (with_arrival(process="tasks"), "curve", None),
        (with_arrival(process="trace"), "headroom", "--set experiment.kind=headroom --set arrival.rate_per_s=3.142"),
        (with_arrival(process="trace", rate_per_s=2.0), "curve", "--set experiment.kind=curve"),
    ],
)  # fmt: skip
def test_an_experiment_sets_the_load_that_the_run_has(run, kind, line):
    expected = None if line is None else f"tailgauge run mine.toml {line}"

    assert experiment(run, kind, 3.14159) == expected


def test_a_step_of_an_experiment_has_no_command():
    assert again(record(scenario_file="")) is None


def test_another_length_replaces_the_stages_of_the_first():
    assert (
        again(record(), options=["--duration", "60s"])
        == "tailgauge run mine.toml --set seed=7 --duration 60s"
    )
    assert "stages=" in again(record())


def test_a_plugin_is_named_as_it_was_given():
    one = {"name": "p", "file": "p.py", "given": "plugins/p.py"}

    assert again(record(plugins=[one], overrides=[])) == "tailgauge run mine.toml --plugin plugins/p.py"
