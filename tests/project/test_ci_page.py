"""The examples of docs/how-to/ci.md: YAML that calls what tailgauge has, and a script that keeps its exit code."""

import re
import subprocess

import pytest
import yaml

import tailgauge
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


@pytest.fixture(scope="module")
def inputs(checkout):
    return yaml.safe_load((checkout / "action.yml").read_text(encoding="utf-8"))["inputs"]


def uses(jobs):
    """The inputs of each step that uses the action."""
    return [
        step["with"]
        for job in jobs.values()
        for step in job["steps"]
        if "/tailgauge@" in step.get("uses", "")
    ]


def options(given):
    """The lines of `options` as (option, value)."""
    pairs = [line.partition(" ") for line in given.get("options", "").splitlines()]
    return [(option, value) for option, _, value in pairs]


def test_its_inputs_are_those_of_the_action(page, jobs, inputs):
    listed = re.findall(r"^\| `([a-z]+)` \| ", page, re.MULTILINE)

    assert listed == list(inputs)
    assert len(uses(jobs)) == 2
    for given in uses(jobs):
        assert given.keys() <= inputs.keys()
        assert {name for name, one in inputs.items() if one.get("required")} <= given.keys()


def test_the_tutorial_uses_the_action_of_the_same_version(page, checkout, inputs):
    tutorial = (checkout / "docs" / "tutorials" / "gate-in-ci.md").read_text(encoding="utf-8")
    (example,) = re.findall(r"```yaml\n(.*?)```", tutorial, re.DOTALL)
    steps = yaml.safe_load(example)["steps"]
    versions = set(re.findall(r"uses: \S+/tailgauge@v([\d.]+)", page + tutorial))

    assert steps[-1]["with"].keys() <= inputs.keys()
    assert versions == {tailgauge.__version__}


def test_its_options_exist(jobs):
    known = {option for one in cli.commands["run"].params for option in one.opts}

    assert {option for given in uses(jobs) for option, _ in options(given)} <= known


def test_its_overrides_are_keys_of_the_scenario(jobs):
    sets = [value for given in uses(jobs) for option, value in options(given) if option == "--set"]

    assert sets
    for text in sets:
        assert override(text)[0].startswith("experiment.headroom.")
        assert hasattr(load("headroom").experiment.headroom, override(text)[0].rpartition(".")[2])


def test_it_lists_every_exit_code(page):
    codes = {int(code) for code in re.findall(r"^\| (\d+) \|", page, re.MULTILINE)}

    assert codes == set(Exit)


TAILGAUGE = """#!/bin/sh
test "$CODE" = 2 && exit 2
mkdir -p results/reports/new && echo "report of the new run" > results/reports/new/report.md
exit "$CODE"
"""


@pytest.mark.parametrize("code", [0, 1, 2, 3, 5])
def test_the_script_for_other_build_servers_keeps_the_exit_code(page, code, tmp_path):
    """It shows the report of this run, not that of an earlier build; a wrong usage has none."""
    (script,) = re.findall(r"```bash\n(.*?)```", page, re.DOTALL)
    earlier = tmp_path / "results" / "reports" / "old"
    earlier.mkdir(parents=True)
    (earlier / "report.md").write_text("report of an old run\n")
    program = tmp_path / "bin" / "tailgauge"
    program.parent.mkdir()
    program.write_text(TAILGAUGE)
    program.chmod(0o755)
    variables = {
        "PATH": f"{program.parent}:/usr/bin:/bin",
        "CODE": str(code),
        "TARGET": "http://127.0.0.1:1",
    }

    done = subprocess.run(
        ["bash", "-e", "-c", script],
        cwd=tmp_path,
        env=variables,
        capture_output=True,
        text=True,
        check=False,
    )

    assert done.returncode == code
    assert done.stdout == ("" if code == 2 else "report of the new run\n")


def test_the_page_on_baselines_uses_the_action_and_commands_that_exist(checkout, inputs):
    text = (checkout / "docs" / "how-to" / "baselines.md").read_text(encoding="utf-8")
    (example,) = re.findall(r"```yaml\n(.*?)```", text, re.DOTALL)
    _, action, step = yaml.safe_load(example)["steps"]
    outputs = yaml.safe_load((checkout / "action.yml").read_text(encoding="utf-8"))["outputs"]

    assert action["uses"].endswith(f"@v{tailgauge.__version__}")
    assert action["with"].keys() <= inputs.keys()
    assert step["env"]["RUN"].split(".")[-1].strip(" }") in outputs
    assert set(re.findall(r"baseline (add|list|drop)", text)) == set(
        cli.commands["baseline"].commands
    )
