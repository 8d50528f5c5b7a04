"""Keys come from the environment and reach no file, message or command line, no child that needs none, and no target that
is not theirs. Nor is anything kept of a key that a target repeats, in whatever form; see `echoes`."""

from __future__ import annotations

import json
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from random import SystemRandom
from string import ascii_letters, ascii_lowercase, digits, hexdigits
from typing import Any

import pytest
from end_to_end import echoes
from end_to_end.everything_written import Channel, Processes, everything
from hostile.target import Target
from run_folders.run_data import RunData
from starting.command import Finished, Running, free_port
from starting.programs import TAILGAUGE, scripts_path

pytestmark = pytest.mark.slow

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
duration_s = 3
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


def test_every_run_went_well(seen):
    for name in RUNS:
        assert seen.run(name).requests().ended.eq("ok").all(), seen.done.stderr


@pytest.mark.parametrize("name", ["anthropic", "openai"])
def test_the_providers_keys_do_not_reach_another_target(seen, name):
    asked = [call["request"] for call in seen.asked if f"/fair/{name}/" in call["path"]]

    assert len(asked) > len(seen.run(name).requests())
    assert [text for text in asked if "canary" in text] == []
    assert [text for text in asked if "unused" in text or "authorization" in text.lower()] == []


def test_no_secret_is_in_any_file_or_output(seen):
    texts = everything(seen.done)

    assert len(texts) > 20, "there is much to look at"
    assert [text[:200] for text in texts if CANARY in text] == []


def test_no_secret_is_in_a_message_between_processes(seen):
    for kind in (
        b"tailgauge:plan",
        b"tailgauge:tried",
        b"tailgauge:counters",
        b"tailgauge:drained",
    ):
        assert seen.channel.count(kind) >= len(RUNS), "the messages were seen"
    assert CANARY.encode() not in seen.channel


def test_no_secret_is_in_a_command_line(seen):
    assert set(seen.processes.environments) >= {"run", "worker", "endpoint", "report"}, (
        "all were seen"
    )
    assert [line for _, line in seen.processes.lines if CANARY in line] == []


@pytest.mark.parametrize("role", ["endpoint", "report"])
def test_a_child_that_sends_no_request_has_no_secret_in_its_environment(seen, role):
    summary = seen.processes.environments[role]

    assert all("PATH=" in text for text in summary), "they were read"
    assert [text for text in summary if CANARY in text] == []


# --- a target that repeats its key ------------------------------------------------------------------------------

RATE = 40
ECHOING = """
[target]
url = "{url}/{protocol}"
protocol = "{protocol}"
{table}
[arrival]
process = "constant"
rate_per_s = {rate}
[stages]
duration_s = {seconds}
warmup_s = 0
[traffic.chat]
prompt_tokens = 20
output_tokens = 20
[limits]
attempt_deadline_s = 5
[stop]
rejections = 0
"""
KEY_OF_TARGET = 'api_key_env = "MY_ENGINE"'
ADDED = """
headers = {x-api-key = {env = "MY_ENGINE"}, x-model = "{model}"}
body = {more = {pass = {env = "MY_ENGINE"}}}
"""
SSE = """
[target.sse]
body = {q = "{prompt}", options = [{auth = {pass = {env = "MY_ENGINE"}}}]}
path = "/chat/completions"
content = { text = "/choices/0/delta/content" }
phase = { event = "status" }
output_tokens = "/usage/completion_tokens"
"""
PAGES = (
    "/",
    "/metrics",
    "/stats/requests",
    "/exceptions",
    "/logs",
    "/tailgauge",
    "/tailgauge/live.json",
)


def _drawn(alphabet: str, length: int = 40) -> str:
    return "".join(SystemRandom().choices(alphabet, k=length))


# A key is new in each run of the tests; none has a prefix by which it could be known.
KEYS_BY_SHAPE = {
    "mixed": "7" + _drawn(ascii_letters + digits + "-_"),
    "path": "/" + "/".join(_drawn(ascii_lowercase, 9) for _ in range(4)),
    "path from home": "~/." + "/".join(_drawn(ascii_letters, 9) for _ in range(4)),
    "digits": _drawn(digits),
    "letters": _drawn(ascii_lowercase),
    "hexadecimal": _drawn(hexdigits[:16]),
}


@dataclass(frozen=True)
class Echoed:
    """Runs against every echo, those that the target refuses, and a dry run: all that is left, and what the page showed."""

    key: str
    runs: dict[str, Finished]
    others: dict[str, Finished]
    pages: list[str]
    served: dict[str, int]
    temporary: Path


def watch(running: Running, port: int, pages: dict[str, str]) -> Finished:
    """Read every page again and again until the command ends."""
    while running.process.poll() is None:
        for page in PAGES:
            try:
                with urllib.request.urlopen(f"http://127.0.0.1:{port}{page}", timeout=5) as answer:
                    pages[page] = pages.get(page, "") + answer.read().decode()
            except OSError:
                break  # it is not there yet, or no longer
        time.sleep(0.3)
    return running.finish(60)


@pytest.fixture(scope="module", params=list(KEYS_BY_SHAPE))
def echoed(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> Echoed:
    """Every shape of a key, and every protocol with one of them."""
    shape: str = request.param
    folder = tmp_path_factory.mktemp("echoes")
    key = KEYS_BY_SHAPE[shape]
    temporary = folder / "tmp"
    temporary.mkdir()
    env = {"MY_ENGINE": key, "TMPDIR": str(temporary)}
    target = subprocess.Popen(
        [sys.executable, echoes.__file__, str(folder / "port")], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        env={**scripts_path(), "PYTHONDONTWRITEBYTECODE": "1"},
    )  # fmt: skip
    try:
        while not ((folder / "port").exists() and (folder / "port").read_text()):
            assert target.poll() is None
            time.sleep(0.02)
        url = f"http://127.0.0.1:{(folder / 'port').read_text()}"
        pages: dict[str, str] = {}

        def run(name: str, protocol: str, base: str) -> Finished:
            table = ADDED + (SSE if protocol == "sse" else KEY_OF_TARGET)
            seconds = (len(echoes.ECHOES) - 0.5) / RATE
            text = ECHOING.format(
                url=base, protocol=protocol, table=table, rate=RATE, seconds=seconds
            )
            (folder / f"{name}.toml").write_text(text)
            port, out = free_port(), folder / f"out-{name}"
            options = f"--workers=1 --web={port} --metrics --out".split()
            line = [TAILGAUGE, "run", str(folder / f"{name}.toml"), *options, str(out)]
            return watch(Running(line, out, env, folder), port, pages)

        protocols = ("anthropic", "openai", "sse") if shape == "mixed" else ("anthropic",)
        runs = {protocol: run(protocol, protocol, url) for protocol in protocols}
        refused = run("refused", "openai", f"{url}/refused")
        named = run("named", "sse", f"{url}/refused")
        options = ("--dry-run", "--json", "--out", str(folder / "dry"))
        line = [TAILGAUGE, "run", str(folder / "named.toml"), *options]
        dry = Running(line, folder / "dry", env, folder).finish(60)
        served, _ = target.communicate(timeout=30)
    finally:
        target.kill()
    others = {"refused": refused, "named": named, "dry": dry}
    return Echoed(key, runs, others, list(pages.values()), json.loads(served), temporary)


def test_every_echo_was_met_and_is_a_row(echoed):
    for protocol, done in echoed.runs.items():
        rows = done.run.attempts()

        assert len(rows) >= len(echoes.ECHOES) - 1, done.stderr
        assert rows.error_body.fillna("").str.contains("[redacted]", regex=False).sum() > len(
            echoes.FORMS
        )
        for column in ("model", "stop_reason", "server_request_id", "rate_limit_headers", "phases"):
            if protocol == "anthropic":
                assert rows[column].str.contains("[redacted]", regex=False).any(), column
    counts = [
        count
        for path, count in echoed.served.items()
        if path.startswith("/") and "refused" not in path and path != "/metrics"
    ]
    assert len(counts) == len(echoed.runs)
    assert min(counts) > len(echoes.ECHOES)
    for name in ("refused", "named"):
        assert echoed.others[name].code == 4
        assert "[redacted]" in echoed.others[name].stderr


def test_a_secret_that_a_scenario_names_reaches_the_target_and_no_run_file(echoed):
    """In a header, which the target repeats, and in a field within the body."""
    assert echoed.served["with the key in the body"] > 0
    assert echoed.others["dry"].code == 0, echoed.others["dry"].stderr
    scenario = echoed.others["dry"].run.facts["scenario"]
    assert scenario["target"]["headers"]["x-api-key"] == {"env": "MY_ENGINE"}


def test_no_8_characters_of_a_key_that_a_target_repeats_are_anywhere(echoed):
    """In no file, table, page or output, however it is decoded."""
    assert len(echoed.pages) == len(PAGES)
    texts = [*echoed.pages]
    for done in (*echoed.runs.values(), *echoed.others.values()):
        texts += everything(done)
    texts += [
        path.read_text(errors="replace") for path in echoed.temporary.rglob("*") if path.is_file()
    ]

    assert len(texts) > 20
    for text in texts:
        found = echoes.kept(echoed.key, text.partition("* plotly.js (")[0])
        assert found == [], text[:200]
