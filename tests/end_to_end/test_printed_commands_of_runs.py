"""The printed commands that take a run or an experiment, which `make verify` runs; see test_printed_commands.py.

A run of a busy machine may be INVALID: what is tested is that a command does what its line says, not how fast this machine is.
An experiment ends with the requests that its scenario allows.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from run_folders.run_data import RunData
from starting.command import free_port
from starting.endpoint import endpoint as simulated_endpoint
from starting.shell import MINE, Shell, Typed

from tailgauge.errors import Exit

pytestmark = pytest.mark.slow

ENDED = (Exit.OK, Exit.FAILED, Exit.INVALID, Exit.INCONCLUSIVE)
FAST = ("--set=ttft_ms=30", "--set=chunk_gap_ms=2")
ALLOWED = re.compile(r"--allow\s+([\w.]+)")
FEW = "[guard]\nmax_requests = 150\n"
TOO_FEW = "not enough requests"
EASY = "--slo 'ttft p90 < 5s'"
LOCUSTFILE = """
from locust import constant, task
from tailgauge import StreamingUser

class Chat(StreamingUser):
    wait_time = constant(0.2)
    model = "tiny"

    @task
    def ask(self):
        self.stream(prompt="Say hello", max_tokens=5)
"""
Endpoint = Callable[..., str]


@pytest.fixture
def shell(tmp_path: Path) -> Shell:
    return Shell(tmp_path)


@pytest.fixture(scope="module")
def url(endpoint: Endpoint) -> str:
    """A target that refuses nothing."""
    return endpoint(*FAST)


def command_with(word: str, typed: Typed) -> str:
    """The printed command that has this in it."""
    (command,) = [command for command in typed.commands if word in command]
    return command


# --- the first steps ----------------------------------------------------------------------------------------------


def test_the_first_steps(shell, url):
    lines = re.findall(r"^tailgauge run .*?(?=  |$)", shell.type("tailgauge").text, re.MULTILINE)
    for number, line in enumerate(lines, 1):
        shell.type(line.replace("http://127.0.0.1:8000", f"{url}/v1")).ended(*ENDED)

        assert len(shell.reports()) == number
    assert [report["run"]["target"]["simulated"] for report in shell.reports()] == [True, False]


def test_a_copied_scenario_runs(shell):
    copied = shell.type("tailgauge scenario copy streaming 'my own.toml'").ended(Exit.OK)
    file = shell.folder / "my own.toml"
    text = file.read_text(encoding="utf-8")
    file.write_text(text.replace("duration_s = 60", "duration_s = 2"), encoding="utf-8")
    shell.type(copied.command).ended(*ENDED)

    assert len(shell.reports()) == 1


@pytest.mark.parametrize("line", [f"tailgauge {MINE}", f"tailgauge run {MINE} --plugin {MINE}"])
def test_a_scenario_in_the_wrong_place_is_run(line, shell, url):
    shell.write(url)
    shell.type(shell.type(line).ended(Exit.USAGE).command).ended(*ENDED)

    assert shell.reports()[0]["run"]["scenario"] == "mine"


def test_a_url_is_taken_as_a_target(shell, url):
    command = shell.type(f"tailgauge {url}").ended(Exit.USAGE).command
    shell.type(f"{command} --duration 2s").ended(*ENDED)

    assert shell.reports()[0]["run"]["target"]["url"] == url


def test_a_locustfile_is_run_by_locust(shell, url):
    (shell.folder / "my chat.py").write_text(LOCUSTFILE, encoding="utf-8")
    wrong = shell.type("tailgauge run 'my chat.py'").ended(Exit.USAGE)
    shell.type(f"locust -f 'my chat.py' --headless -u 1 -t 2s --host {url}").ended(*ENDED)

    assert "`locust -f FILE`" in wrong.text
    assert len(shell.reports()) == 1


# --- what comes next ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("load", "option"),
    [("--rate 10", "--duration"), ("--concurrency 2 --requests 10", "--requests")],
)
def test_a_longer_run_has_the_requests_that_an_objective_needs(load, option, shell, url):
    shell.write(url)
    short = shell.type(f"tailgauge run {MINE} {load} {EASY}").ended(Exit.INCONCLUSIVE)
    longer = shell.type(short.command).ended(*ENDED)

    assert option in short.command
    assert TOO_FEW in short.stdout
    assert TOO_FEW not in longer.stdout


def test_a_longer_run_of_a_locustfile_has_them_too(shell, url):
    (shell.folder / "my chat.py").write_text(LOCUSTFILE, encoding="utf-8")
    objective = "--set 'slo.ttft_p90=ttft p90 < 5s'"
    line = f"locust -f 'my chat.py' --headless -u 1 -t 2s --host {url} {objective}"
    short = shell.type(line).ended(Exit.INCONCLUSIVE)
    longer = shell.type(short.command).ended(*ENDED)

    assert short.command.startswith("locust -f 'my chat.py'")
    assert TOO_FEW in short.stdout
    assert longer.stdout.count("report ") == 1
    assert (
        shell.reports()[1]["run"]["steady_requests"] > shell.reports()[0]["run"]["steady_requests"]
    )


def test_a_refused_rate_is_searched_below(shell, endpoint):
    shell.write(endpoint(*FAST, "--set=limits.rpm=60", "--set=limits.burst=1"), rate=10, more=FEW)
    refused = shell.type(f"tailgauge run {MINE} --duration 12s").ended(Exit.FAILED, Exit.INVALID)
    if "stopped" in refused.stdout:
        to_the_end = shell.type(command_with("stop.min_completed", refused)).ended(*ENDED)
        assert "stopped" not in to_the_end.stdout
    searched = shell.type(command_with("kind=headroom", refused)).ended(*ENDED)

    assert shell.reports()[-1]["kind"] == "headroom"
    assert "can be sustained" in searched.stdout


def test_the_rates_of_a_ramp_are_measured_each(shell):
    ramp = (
        "--set arrival.shape.kind=ramp --set arrival.shape.factor=6 --set simulated.ttft_sigma=0.16"
    )
    shell.write(rate=1, seconds=200)
    pooled = shell.type(f"tailgauge run {MINE} --dry-run {ramp} --slo 'ttft p90 < 255ms'")
    curve = shell.type(pooled.ended(Exit.INCONCLUSIVE).command).ended(*ENDED)

    assert "pooled" in pooled.text
    assert "requests/s" in curve.stdout
    assert shell.reports()[-1]["kind"] == "curve"


@pytest.mark.parametrize(
    ("limits", "traffic", "change"),
    [
        ("rpm = 1700\nburst = 5", 'pattern = "hedged"\nhedge = {policy = "fixed", delay_ms = 100, budget_share = 1, throttle_tokens = 0}', "hedge.policy=off"),
        ("rpm = 1300\nburst = 2", 'retry = {policy = "naive", max_retries = 10, naive_wait_s = 0.05}', "retry.policy=polite"),
    ],
)  # fmt: skip
def test_traffic_that_overloads_by_itself_is_run_without_that(limits, traffic, change, shell):
    more = f"{traffic}\n[simulated.limits]\noverload = true\n{limits}"
    shell.write(rate=20, seconds=60, more=more)
    overloaded = shell.type(f"tailgauge run {MINE} --dry-run").ended(Exit.FAILED)
    shell.type(command_with(change, overloaded)).ended(*ENDED)
    before, after = (attempts(shell, report) for report in shell.reports())

    assert after < before / 1.1


def attempts(shell: Shell, report: dict[str, Any]) -> int:
    """How many attempts a run made."""
    run = RunData(shell.folder / "runs" / report["run"]["run_id"])
    return len(run.table("attempts"))


# --- where something went wrong -----------------------------------------------------------------------------------


def test_a_report_that_failed_is_made_from_the_rows(shell):
    shell.write()
    (shell.folder / "reports").touch()  # no folder
    failed = shell.type(f"tailgauge run {MINE} --dry-run")
    (shell.folder / "reports").unlink()
    shell.type(failed.ended(Exit.USAGE).command).ended(Exit.OK)

    assert len(shell.reports()) == 1


def test_a_port_in_use_is_left_for_the_one_that_is_named(shell, url):
    shell.write(url)
    port = url.rpartition(":")[2]
    refused = shell.type(f"tailgauge endpoint --port {port}").ended(Exit.USAGE)
    with shell.typing("tailgauge endpoint --port 0") as running:
        assert running.process.stdout is not None
        listening = running.process.stdout.readline()

    assert "--port 0" in refused.text
    assert listening.startswith("listening on http")


def test_a_target_that_still_loads_is_waited_for(shell):
    port = free_port()
    shell.write(f"http://127.0.0.1:{port}")
    refused = shell.type(f"tailgauge run {MINE}").ended(Exit.TARGET)
    assert "--set limits.ready_s=120" in refused.text
    line = f"tailgauge run {MINE} --set limits.ready_s=120"
    with shell.typing(line) as waiting, simulated_endpoint(*FAST, f"--port={port}"):
        done = waiting.finish()

    assert done.code in ENDED, done.stderr


@pytest.mark.parametrize(
    ("endpoint_options", "target", "typed", "suggested", "then"),
    [
        (("--api-key-env=API_KEY",), "{url}", "", "export API_KEY=... and add --set target.api_key_env=API_KEY",
         "--set target.api_key_env=API_KEY"),
        ((), "{url}/v2", "", "{url} or {url}/v1", "--target {url}"),
        ((), "{tls}", "", "Write {url}", "--target {url}"),
    ],
)  # fmt: skip
def test_a_refused_preflight_names_what_works(
    endpoint_options, target, typed, suggested, then, shell, endpoint
):
    url = endpoint(*FAST, *endpoint_options, env={"API_KEY": "a-key"})
    tls = url.replace("http://", "https://")
    shell.write(target.format(url=url, tls=tls))
    refused = shell.type(f"tailgauge run {MINE} {typed}").ended(Exit.TARGET)
    mended = shell.type(f"API_KEY=a-key tailgauge run {MINE} {typed} {then.format(url=url)}")

    assert suggested.format(url=url) in refused.text
    assert mended.ended(*ENDED).code in ENDED


def test_a_safety_limit_is_no_number_of_requests(shell, url):
    shell.write(url, seconds=4)
    limited = shell.type(f"tailgauge run {MINE} --max-requests 30").ended(*ENDED)
    option = re.search(r"to send 30\s+requests:\s+(--requests 30)", limited.text)
    assert option is not None
    whole = shell.type(f"tailgauge run {MINE} {option[1]}").ended(*ENDED)

    assert "early" in limited.text
    assert "early" not in whole.text


def test_runs_that_differ_are_compared_with_what_the_refusal_names(shell):
    shell.write()
    for seed in (1, 2):
        line = f"tailgauge run {MINE} --dry-run --seed {seed} --set simulated.ttft_ms={100 * seed}"
        shell.type(line).ended(Exit.OK)
    a, b = (report["run"]["run_id"] for report in shell.reports())
    missing = shell.type("tailgauge compare nothing else").ended(Exit.USAGE)
    listed = shell.type(missing.command).ended(Exit.OK)
    refused = shell.type(f"tailgauge compare {a[-4:]} {b[-4:]}").ended(Exit.INVALID)
    allowed = " ".join(f"--allow {name}" for name in dict.fromkeys(ALLOWED.findall(refused.text)))

    assert all(run[-4:] in listed.text for run in (a, b))
    assert allowed
    compared = shell.type(f"{refused.line} {allowed}").ended(*ENDED)
    assert "To allow this difference" not in compared.text
