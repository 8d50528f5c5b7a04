"""The action that a report names is the right one for targets that fail on real sockets, and its command reaches them.

Rule: what is right stands in failing_targets.py, beside what each target does.
"""

from __future__ import annotations

import json
import re
import shlex
import signal
import subprocess
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import pytest
from end_to_end.failing_targets import CASES, KEY, Server
from starting.command import run_command, until
from starting.programs import TAILGAUGE, environment

pytestmark = pytest.mark.slow

AT_ONCE = 3  # commands
SCENARIO = """
[target]
url = "{url}"
protocol = "{protocol}"
[arrival]
rate_per_s = 15
[stages]
duration_s = 3
warmup_s = 0
[traffic.chat]
pattern = "streaming"
prompt_tokens = 20
output_tokens = 20
[limits]
attempt_deadline_s = 2
drain_s = 3
"""
VARIABLES = {KEY: "k-0123456789abcdef"}


@dataclass(frozen=True)
class Advised:
    """What a run says to do next, where it was started, and its target, which still answers."""

    advice: str
    folder: Path
    server: Server


def advised(name: str, folder: Path, certificate: str) -> Advised:
    case = CASES[name]
    server = Server(case, certificate)
    place = folder / name / "my runs"
    place.mkdir(parents=True)
    (place / "chat.toml").write_text(SCENARIO.format(url=server.url, protocol=case.protocol))
    sets = [f"--set={text}" for text in case.sets]
    options = ("--json", "--out=out", f"--target={server.url}", *sets)
    line = [TAILGAUGE, "run", "my runs/chat.toml", *options]
    done = run_command(line, 120, cwd=place.parent, env=VARIABLES)
    printed = json.loads(done.stdout)
    if "result" in printed:
        return Advised(printed["result"]["advice"], place.parent, server)
    messages = [text for text in done.stderr.splitlines() if text.startswith("tailgauge: ")]
    return Advised(messages[-1], place.parent, server)


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Advised]]:
    """Each of the targets, some at the same time."""
    folder = tmp_path_factory.mktemp("failing")
    certificate = folder / "certificate.pem"
    names = ("-keyout", str(certificate), "-out", str(folder / "c.pem"), "-subj", "/CN=localhost")
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", *names],
        check=True,
        capture_output=True,
    )
    certificate.write_text(certificate.read_text() + (folder / "c.pem").read_text())
    with ThreadPoolExecutor(AT_ONCE) as pool:
        results = pool.map(partial(advised, folder=folder, certificate=str(certificate)), CASES)
        found = dict(zip(CASES, results, strict=True))
    yield found
    for one in found.values():
        one.server.close()


@pytest.mark.parametrize("name", CASES)
def test_the_action_is_the_right_one(runs, name):
    case = CASES[name]
    advice = runs[name].advice

    assert re.search(case.must, advice) if case.must else advice == "", advice
    assert not re.search(case.must_not, advice), advice


LIMITED = [name for name in CASES if "kind=" in CASES[name].must]


@pytest.mark.parametrize("name", LIMITED)
def test_its_command_starts_and_reaches_the_same_target(runs, name):
    one = runs[name]
    command = one.advice[one.advice.index("tailgauge run") :]
    before = len(one.server.paths)
    short = "--out again --set experiment.minutes=1.5"  # its dry run comes first
    line = f"exec {command.replace('tailgauge', shlex.quote(TAILGAUGE), 1)} {short}"
    process = subprocess.Popen(
        ["bash", "-c", line], cwd=one.folder, env=environment(VARIABLES), start_new_session=True,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    try:
        until(lambda: len(one.server.paths) > before or process.poll() is not None, 120)
    finally:
        time.sleep(0.1)
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=60)

    assert len(one.server.paths) > before, errors
    assert {path.rpartition("/")[2] for path in one.server.paths} <= {
        "completions",
        "messages",
        "models",
        "metrics",
    }
