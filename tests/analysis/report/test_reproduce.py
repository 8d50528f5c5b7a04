"""The command on the page is one that a shell and `tailgauge run` read back."""

import shlex

import pytest

from tailgauge.scenario.model import override, spelled
from tailgauge_analysis.sections.commands import again as command
from tailgauge_analysis.sections.environment import besides


def run(**changes):
    workers = [{"host": "here"}, {"host": "here"}]
    return {
        "scenario_file": "mine.toml", "overrides": [], "dry_run": False, "workers": workers, "master": {"host": "here"},
        "target": {"simulated": True}, "plugins": [], "scenario": {}, **changes,
    }  # fmt: skip


def test_file_workers_and_overrides():
    assert command(run(overrides=["seed=7"])) == "tailgauge run mine.toml --workers 2 --set seed=7"
    assert command(run(dry_run=True)) == "tailgauge run mine.toml --dry-run"
    assert command(run(scenario_file="")) is None


@pytest.mark.parametrize(
    "value", ["it's; rm -rf /", {"duration_s": 9.5, "cooldown_s": 0.0}, ["a b", True], "$HOME `x`"]
)
def test_a_shell_reads_every_override_back(value):
    line = shlex.split(command(run(overrides=[spelled("a.b", value)], workers=[])))

    assert line[:4] == ["tailgauge", "run", "mine.toml", "--set"]
    assert override(line[4]) == ("a.b", value)


def test_workers_elsewhere_are_named_and_not_counted():
    away = run(workers=[{"host": "here"}, {"host": "there"}], target={"simulated": False})

    assert command(away) == "tailgauge run mine.toml"
    assert "1 worker ran on other machines" in besides(away)
    assert "may answer differently" in besides(away)


@pytest.mark.at_full_size
def test_it_stands_on_the_page_and_in_markdown(made):
    report = made(n=100)

    assert "tailgauge run synthetic.toml --workers 2</dd>" in report.html.read_text()
    assert "tailgauge run synthetic.toml --workers 2" in report.markdown.read_text()
