"""Keys come from the environment and reach no file, message or command line, no child that needs none, and no target that
is not theirs. What a target repeats of its own key is in hostile/test_hostile_targets.py."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
from end_to_end.everything_written import Channel, Processes, everything
from hostile.target import Target
from run_folders.run_data import RunData
from starting.command import Finished, Running
from starting.programs import TAILGAUGE

CANARY = "sk-ant-canary-0123456789abcdef"
KEYS = {
    "ANTHROPIC_API_KEY": CANARY,
    "OPENAI_API_KEY": CANARY,
    "ANTHROPIC_AUTH_TOKEN": CANARY,
    "ANTHROPIC_CUSTOM_HEADERS": f"x-extra: {CANARY}",
    "OPENAI_ADMIN_KEY": CANARY,
    "OPENAI_ORG_ID": "org-canary",  # no secrets, and nobody else's business
    "OPENAI_PROJECT_ID": "proj-canary",
    "TAILGAUGE_TOKEN": f"{CANARY}-of-the-run",
    "HF_TOKEN": CANARY,
}
SCENARIO = """
[target]
url = "{url}"
protocol = "{protocol}"
[arrival]
rate_per_s = 5
[stages]
duration_s = 1.5
warmup_s = 0
[traffic.chat]
prompt_tokens = 20
output_tokens = 5
"""
RUNS = ("anthropic", "openai", "simulated")


@dataclass(frozen=True)
class Result:
    """One command with a run for each of `RUNS`, and all that it said to anybody."""

    done: Finished
    asked: list[dict[str, Any]]
    channel: bytes
    processes: Processes

    def run(self, name: str) -> RunData:
        (folder,) = (self.done.out / "runs").glob(f"*-{name}-*")
        return RunData(folder)


@pytest.fixture(scope="module")
def seen(malicious: Callable[[], Target], tmp_path_factory: pytest.TempPathFactory) -> Result:
    folder, target = tmp_path_factory.mktemp("secrets"), malicious()
    for name in RUNS:
        url = "simulated" if name == "simulated" else f"{target.url}/fair/{name}"
        protocol = name if name == "openai" else "anthropic"
        (folder / f"{name}.toml").write_text(SCENARIO.format(url=url, protocol=protocol))
    channel = Channel(folder / "channel")
    files = [str(folder / f"{name}.toml") for name in RUNS]
    line = [TAILGAUGE, "run", *files, "--workers=1", "--out", str(folder / "out")]
    running = Running(line, folder / "out", {**KEYS, **channel.env}, folder)
    processes = Processes(running.process.pid)
    try:
        done = running.finish(120)
    finally:
        processes.end()
    return Result(done, target.end(), channel.sent, processes)


def test_every_run_went_well(seen: Result) -> None:
    for name in RUNS:
        assert seen.run(name).requests().ended.eq("ok").all(), seen.done.stderr


@pytest.mark.parametrize("name", ["anthropic", "openai"])
def test_the_providers_keys_do_not_reach_another_target(seen: Result, name: str) -> None:
    asked = [call["request"] for call in seen.asked if f"/fair/{name}/" in call["path"]]

    assert len(asked) > len(seen.run(name).requests())
    assert [text for text in asked if "canary" in text] == []
    assert all("unused" in text for text in asked)


def test_no_secret_is_in_any_file_or_output(seen: Result) -> None:
    texts = everything(seen.done)

    assert len(texts) > 20, "there is much to look at"
    assert [text[:200] for text in texts if CANARY in text] == []


def test_no_secret_is_in_a_message_between_processes(seen: Result) -> None:
    for kind in (b"tailgauge:plan", b"tailgauge:tried", b"tailgauge:counters", b"tailgauge:drained"):
        assert seen.channel.count(kind) >= len(RUNS), "the messages were seen"
    assert CANARY.encode() not in seen.channel


def test_no_secret_is_in_a_command_line(seen: Result) -> None:
    assert set(seen.processes.environments) >= {"run", "worker", "endpoint", "report"}, "all were seen"
    assert [line for _, line in seen.processes.lines if CANARY in line] == []


@pytest.mark.parametrize("role", ["endpoint", "report"])
def test_a_child_that_sends_no_request_has_no_secret_in_its_environment(seen: Result, role: str) -> None:
    summary = seen.processes.environments[role]

    assert all("PATH=" in text for text in summary), "they were read"
    assert [text for text in summary if CANARY in text] == []
