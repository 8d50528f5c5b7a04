"""The example of docs/how-to/ci.md is YAML, and what it calls of tailgauge exists."""

import re
import shlex

import pytest
import yaml

from tailgauge.cli.main import cli
from tailgauge.errors import Exit
from tailgauge.scenario.model import load, override


@pytest.fixture(scope="module")
def page(checkout):
    return (checkout / "docs" / "how-to" / "ci.md").read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def jobs(page):
    (example,) = re.findall(r"```yaml\n(.*?)```", page, re.DOTALL)
    return yaml.safe_load(example)["jobs"]


def commands(jobs):
    lines = [step["run"] for job in jobs.values() for step in job["steps"] if "run" in step]
    return [shlex.split(line) for line in lines if line.startswith("tailgauge ")]


def test_its_commands_and_options_exist(jobs):
    found = commands(jobs)

    assert len(found) == 2
    for _, name, *arguments in found:
        known = {option for one in cli.commands[name].params for option in one.opts}
        assert {word for word in arguments if word.startswith("--")} <= known


def test_its_overrides_are_keys_of_the_scenario(jobs):
    sets = [
        arguments[i + 1]
        for arguments in commands(jobs)
        for i, word in enumerate(arguments)
        if word == "--set"
    ]

    assert sets
    for text in sets:
        assert override(text)[0].startswith("experiment.headroom.")
        assert hasattr(load("headroom").experiment.headroom, override(text)[0].rpartition(".")[2])


def test_it_lists_every_exit_code(page):
    codes = {int(code) for code in re.findall(r"^\| (\d+) \|", page, re.MULTILINE)}

    assert codes == set(Exit)


def test_what_it_keeps_is_kept_where_the_command_failed(jobs):
    after = [
        step
        for job in jobs.values()
        for step in job["steps"]
        if "reports" in str(step) and "tailgauge run" not in str(step)
    ]

    assert len(after) == 3
    assert all(step["if"] == "always()" for step in after)
