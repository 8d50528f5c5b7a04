"""action.yml: its steps are run as a GitHub runner runs them, with inputs as variables and files for outputs and summary."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml
from starting.command import run_command
from starting.endpoint import endpoint
from starting.programs import TAILGAUGE

import tailgauge
from tailgauge.cli.main import cli

SCENARIO = """
[arrival]
rate_per_s = 20
[stages]
duration_s = 6
[traffic.chat]
prompt_tokens = 50
output_tokens = 5
[simulated]
ttft_ms = 100
chunk_gap_ms = 5
[slo]
errors = "error_rate < 20%"
"""
EXPRESSION = re.compile(r"\$\{\{(.*?)\}\}", re.DOTALL)
SHELL = ("bash", "--noprofile", "--norc", "-eo", "pipefail")  # what `shell: bash` means


@pytest.fixture(scope="module")
def action(checkout: Path) -> dict[str, Any]:
    loaded: dict[str, Any] = yaml.safe_load((checkout / "action.yml").read_text(encoding="utf-8"))
    return loaded


@dataclass(frozen=True)
class Ended:
    """What a step left behind."""

    code: int
    log: str
    summary: str
    outputs: dict[str, str]


class Runner:
    """A job of a build server, in a workspace with the user's files."""

    def __init__(self, action: dict[str, Any], checkout: Path, folder: Path) -> None:
        self._action, self._checkout = action, checkout
        self.workspace, self.temp = folder / "work space", folder / "temp folder"
        for each in (self.workspace, self.temp):
            each.mkdir()

    def has_tailgauge(self) -> None:
        """As after the step that installs it."""
        (self.temp / "tailgauge" / "bin").mkdir(parents=True)
        (self.temp / "tailgauge" / "bin" / "tailgauge").symlink_to(TAILGAUGE)

    def run(self, step: str, secrets: dict[str, str] | None = None, **inputs: str) -> Ended:
        """Run the step with this name."""
        declared = self._action["inputs"]
        assert inputs.keys() <= declared.keys()
        given = {name: inputs.get(name, one.get("default", "")) for name, one in declared.items()}
        (found,) = [one for one in self._action["runs"]["steps"] if one.get("name") == step]
        assert found["shell"] == "bash"
        files = {
            name: self.temp / name for name in ("GITHUB_OUTPUT", "GITHUB_STEP_SUMMARY", "script.sh")
        }
        for path in files.values():
            path.write_text("", encoding="utf-8")
        files["script.sh"].write_text(found["run"], encoding="utf-8")
        env = {name: _value(text, given) for name, text in found["env"].items()}
        env |= {name: str(path) for name, path in files.items() if name != "script.sh"}
        env |= {"RUNNER_TEMP": str(self.temp), "GITHUB_ACTION_PATH": str(self._checkout)}
        line = [*SHELL, files["script.sh"]]
        done = run_command(line, 240, self.workspace, {**env, **(secrets or {})})
        lines = files["GITHUB_OUTPUT"].read_text(encoding="utf-8").splitlines()
        return Ended(
            done.returncode,
            done.stdout + done.stderr,
            files["GITHUB_STEP_SUMMARY"].read_text(encoding="utf-8"),
            dict(line.split("=", 1) for line in lines),
        )


def _value(text: str, given: dict[str, str]) -> str:
    """A variable's value: this action puts in whole inputs only."""
    return EXPRESSION.sub(lambda found: given[found[1].strip().removeprefix("inputs.")], text)


@pytest.fixture
def runner(action, checkout, tmp_path) -> Runner:
    one = Runner(action, checkout, tmp_path)
    (one.workspace / "chat-load.toml").write_text(SCENARIO, encoding="utf-8")
    return one


@pytest.fixture
def run(runner) -> Callable[..., Ended]:
    runner.has_tailgauge()
    return lambda **given: runner.run("Run the scenario", **given)


@pytest.mark.slow
def test_a_run_that_passes_has_its_report_in_the_summary_and_its_answer_in_the_outputs(run, runner):
    ended = run(
        scenario="chat-load.toml",
        objectives="\n  chat: ttft p50 < 900ms  \n\ne2e p50 < 2s\n",
        options="--dry-run\n--set simulated.ttft_ms=300\n--seed=4\n",
    )

    assert ended.code == 0, ended.log
    assert ended.outputs["exit-code"] == "0"
    assert ended.outputs["result"].startswith("DRY RUN  nothing was sent; ")
    report = Path(ended.outputs["report"])
    assert report.parent == runner.temp / "tailgauge-results" / "reports"
    assert ended.summary == (report / "report.md").read_text(encoding="utf-8")
    assert {"report.html", "junit.xml"} <= {path.name for path in report.iterdir()}
    assert ended.outputs["result"] in ended.log


@pytest.mark.slow
def test_a_failed_objective_fails_the_step_after_the_summary(run):
    ended = run(scenario="chat-load.toml", objectives="ttft p50 < 20ms", options="--dry-run")

    assert ended.code == 1
    assert ended.outputs["exit-code"] == "1"
    assert ended.outputs["result"].startswith("DRY RUN  ")
    assert "**FAIL** ttft p50" in ended.summary


@pytest.mark.parametrize(("accept", "code"), [("", 2), ("5", 2), ("22", 2), ("3, 2", 0), ("2", 0)])
def test_a_run_without_a_report_says_so_and_accepted_codes_do_not_fail_the_step(run, accept, code):
    ended = run(scenario="nowhere.toml", accept=accept)

    assert ended.code == code
    assert ended.outputs == {"exit-code": "2", "result": "", "report": "", "run": ""}
    assert "made no report: exit code 2" in ended.summary
    assert "nowhere.toml" in ended.log


@pytest.mark.slow
def test_a_run_is_judged_by_the_baseline_and_the_graver_answer_counts(run, runner):
    """The first run is not enough; then one passes, and one of a slower endpoint fails although its objectives are met."""
    given = {"scenario": "chat-load.toml", "baseline": "kept runs"}
    options = "--dry-run\n--set simulated.ttft_sigma=0.2\n--seed "
    first = run(**given, accept="5", options=f"{options}1")
    kept = runner.workspace / "kept runs"
    added = run_command(
        [TAILGAUGE, "baseline", "add", kept, first.outputs["run"]], 60, runner.workspace, {}
    )

    assert (first.code, first.outputs["exit-code"]) == (0, "5"), first.log
    assert "Not enough history: the baseline has 0 of 5 runs" in first.summary
    assert added.returncode == 0, added.stderr

    def keep(factor: float) -> None:
        """Five runs like the first one, all times multiplied."""
        for i, by in enumerate((0.98, 0.99, 1.0, 1.01, 1.02)):
            times = {"value", "low", "high"}
            figures = [
                {
                    key: (of and key in times and one["p"] and of * by * factor) or of
                    for key, of in one.items()
                }
                for one in tree["figures"]
            ]
            text = json.dumps({**tree, "run_id": f"run-{i}", "seed": 90 + i, "figures": figures})
            (kept / f"run-{i}.json").write_text(text, encoding="utf-8")

    (path,) = kept.iterdir()
    tree = json.loads(path.read_text(encoding="utf-8"))
    path.unlink()
    tree["facts"]["seed"] = {}
    keep(1.0)
    same = run(**given, options=f"{options}1")
    keep(0.5)
    slower = run(**given, options=f"{options}1")

    assert (same.code, same.outputs["exit-code"]) == (0, "0"), same.log
    assert "**PASS** No regression beyond 5%" in same.summary
    assert (slower.code, slower.outputs["exit-code"]) == (1, "1"), slower.log
    assert slower.outputs["result"].startswith("DRY RUN  ")
    assert "Regression: TTFT since scheduled p95 +" in slower.summary
    assert len(list(runner.temp.glob("tailgauge-results/reports/*-baseline/junit.xml"))) == 3

    (kept / "other.json").write_text("{}", encoding="utf-8")
    broken = run(**given, options=f"{options}1")
    assert (broken.code, broken.outputs["exit-code"]) == (2, "2")
    assert "Tailgauge made no comparison: exit code 2" in broken.summary


HOSTILE = """x'"; touch pwned; $(touch pwned) `touch pwned` ${{ github.token }} && touch pwned\ntouch pwned"""


@pytest.mark.parametrize(
    "name", ["scenario", "target", "objectives", "options", "baseline", "accept"]
)
def test_an_input_is_never_run_by_the_shell(name, run, runner):
    ended = run(**{"scenario": "chat-load.toml", "options": "--set a.b=1", name: HOSTILE})

    assert ended.code == 2, ended.log
    assert [path.name for path in runner.workspace.rglob("*")] == ["chat-load.toml"]


@pytest.mark.parametrize("scenario", ["--help", "--version", "-h"])
def test_a_scenario_is_not_taken_for_an_option(scenario, run):
    assert run(scenario=scenario).code == 2


def test_no_script_has_an_expression_in_it_and_no_input_is_a_secret(action):
    scripts = [step["run"] for step in action["runs"]["steps"] if "run" in step]

    assert len(scripts) == 2
    assert [script for script in scripts if EXPRESSION.search(script)] == []
    assert [name for name in action["inputs"] if re.search("key|token|secret|password", name)] == []


def test_what_is_uploaded_is_what_the_run_wrote_and_also_after_a_failure(action):
    upload = action["runs"]["steps"][-1]
    (run_step,) = [step for step in action["runs"]["steps"] if step.get("id") == "run"]

    assert upload["if"].startswith("always() && ")
    assert "out=$RUNNER_TEMP/tailgauge-results\n" in run_step["run"]
    assert upload["with"]["path"].splitlines()[0] == "${{ runner.temp }}/tailgauge-results/reports"
    outputs = {one["value"] for one in action["outputs"].values()}
    written = re.findall(r'echo "([\w-]+)=', run_step["run"])
    assert outputs == {f"${{{{ steps.run.outputs.{name} }}}}" for name in written}


def test_the_target_gets_the_key_of_the_job_which_is_written_nowhere(run, full_size, tmp_path):
    """The simulated endpoint refuses requests without it."""
    if not full_size:
        pytest.skip("make verify: a run in real time")
    canary = "sk-canary-7f3a9b1c5d2e"
    with endpoint("--set=ttft_ms=20", "--api-key-env=MY_KEY", env={"MY_KEY": canary}) as server:
        ended = run(
            scenario="chat-load.toml",
            target=server.url,
            options="--duration 3s\n--set target.api_key_env=MY_KEY",
            secrets={"MY_KEY": canary},
        )

    assert ended.code in {0, 3, 5}, ended.log
    assert "100% of " in ended.log
    written = [path for path in tmp_path.rglob("*") if path.is_file() and not path.is_symlink()]
    assert len(written) > 8
    assert [path for path in written if canary.encode() in path.read_bytes()] == []
    assert canary not in ended.log


def test_the_install_step_installs_the_version_of_the_action(runner, full_size):
    if not full_size:
        pytest.skip("make verify: half a minute")
    if shutil.which("cc") is None:
        pytest.skip("no C compiler")

    done = runner.run("Install Tailgauge")
    ended = runner.run("Run the scenario", scenario="chat-load.toml", options="--dry-run")

    assert done.code == 0, done.log
    assert ended.outputs["exit-code"] in {"0", "5"}, ended.log


TAILGAUGE_OF_THE_SCRIPT = """#!/bin/sh
test "$CODE" = 2 && exit 2
mkdir -p results/reports/new && echo "report of the new run" > results/reports/new/report.md
exit "$CODE"
"""


@pytest.mark.parametrize("code", [0, 1, 2])
def test_the_script_for_other_build_servers_keeps_the_exit_code(code, checkout, tmp_path):
    """It shows the report of this run, not that of an earlier build; a wrong usage has none."""
    page = (checkout / "docs" / "how-to" / "ci.md").read_text(encoding="utf-8")
    (script,) = re.findall(r"```bash\n(.*?)```", page, re.DOTALL)
    earlier = tmp_path / "results" / "reports" / "old"
    earlier.mkdir(parents=True)
    (earlier / "report.md").write_text("report of an old run\n")
    program = tmp_path / "bin" / "tailgauge"
    program.parent.mkdir()
    program.write_text(TAILGAUGE_OF_THE_SCRIPT)
    program.chmod(0o755)
    variables = {
        "PATH": f"{program.parent}:/usr/bin:/bin",
        "CODE": str(code),
        "TARGET": "http://127.0.0.1:1",
    }

    done = run_command(["bash", "-e", "-c", script], 30, tmp_path, variables)

    assert done.returncode == code
    assert done.stdout == ("" if code == 2 else "report of the new run\n")


def test_the_steps_in_the_pages_have_inputs_of_the_action_and_options_of_a_run(action, checkout):
    known = {option for one in cli.commands["run"].params for option in one.opts}
    pages = [path.read_text(encoding="utf-8") for path in checkout.glob("docs/**/*.md")]
    examples = [
        text for page in pages for text in re.findall(r"```yaml\n(.*?)```", page, re.DOTALL)
    ]
    steps = [step for text in examples for step in _steps(yaml.safe_load(text))]
    used = [step for step in steps if "/tailgauge@" in step.get("uses", "")]

    assert len(used) >= 3
    for step in used:
        options = [line.split()[0] for line in step["with"].get("options", "").splitlines()]
        assert step["uses"].endswith(f"@v{tailgauge.__version__}")
        assert {"scenario"} <= step["with"].keys() <= action["inputs"].keys()
        assert set(options) <= known


def _steps(tree: Any) -> list[dict[str, Any]]:
    """The steps of a workflow, or of a part of one."""
    if not isinstance(tree, dict):
        return []
    jobs = tree.get("jobs", {"job": tree}).values()
    return [step for job in jobs for step in job.get("steps", [])]
