"""Commands as a user types them, bounded in time: none outlives its test."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import time
import tomllib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from run_folders.run_data import RunData
from starting.programs import TAILGAUGE, environment

from tailgauge.scenario.model import override, put
from tailgauge.scenario.packaged import packaged

# Chat completions where the protocol is not what is tested: a process without an SDK starts in two thirds of the time.
NO_SDK = (
    "--set=target.protocol=sse",
    "--set=target.sse.path=/v1/chat/completions",
    "--set=target.sse.content.text=/choices/0/delta/content",
    "--set=target.sse.input_tokens=/usage/prompt_tokens",
    "--set=target.sse.output_tokens=/usage/completion_tokens",
    '--set=target.sse.body={model="{model}", max_tokens="{max_tokens}", stream=true, stream_options={include_usage=true}, messages=[{role="user", content="{prompt}"}]}',
)
QUICK = (
    "--set=simulated.ttft_ms=60",
    "--set=simulated.chunk_gap_ms=5",
    "--set=traffic.chat.output_tokens=20",
    *NO_SDK,
)


@dataclass(frozen=True)
class Finished:
    """What a command left behind."""

    code: int
    stdout: str
    stderr: str
    out: Path

    @property
    def run(self) -> RunData:
        (folder,) = sorted((self.out / "runs").iterdir())
        return RunData(folder)

    def run_of(self, scenario: str) -> RunData:
        """The run of one scenario of several."""
        (folder,) = (self.out / "runs").glob(f"*-{scenario}-*")
        return RunData(folder)

    @property
    def report(self) -> Path:
        (folder,) = sorted((self.out / "reports").iterdir())
        return folder

    @property
    def report_data(self) -> Any:
        """What report.json holds."""
        return json.loads((self.report / "report.json").read_text())

    @property
    def report_text(self) -> str:
        """The report in Markdown."""
        return (self.report / "report.md").read_text()


class Running:
    """A command at work."""

    def __init__(
        self, line: list[str], out: Path, env: Mapping[str, str], cwd: Path | None
    ) -> None:
        self.out = out
        self.process = subprocess.Popen(
            line,
            cwd=cwd,
            env=environment(env),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )

    def signal(self, number: int) -> None:
        self.process.send_signal(number)

    def wait_for_start(self, passed_s: float, timeout_s: float = 40, scenario: str = "") -> RunData:
        """Until the clock of the run, that of `scenario` where there are several, has passed `passed_s`."""
        deadline = time.monotonic() + timeout_s
        while time.monotonic() < deadline and self.process.poll() is None:
            for folder in (self.out / "runs").glob(f"*{scenario}*/run.json"):
                start = json.loads(folder.read_text())["start_at_ns"]
                if start and time.monotonic_ns() > start + passed_s * 1e9:
                    return RunData(folder.parent)
            time.sleep(0.05)
        raise AssertionError(f"the run did not start: {self.finish(1).stderr}")

    def finish(self, timeout_s: float = 90) -> Finished:
        try:
            stdout, stderr = self.process.communicate(timeout=timeout_s)
        except BaseException as error:
            stdout, stderr = self.kill()
            error.add_note(f"stdout: {stdout[-2000:]}\nstderr: {stderr[-2000:]}")
            raise
        return Finished(self.process.returncode, stdout, stderr, self.out)

    def kill(self) -> tuple[str, str]:
        """End it and all its children; what it had printed."""
        os.killpg(self.process.pid, signal.SIGKILL)
        return self.process.communicate(timeout=10)


Start = Callable[..., Running]


@contextlib.contextmanager
def commands() -> Iterator[Start]:
    """`start(line, out, env, cwd)`; those still at work in the end are killed."""
    running: list[Running] = []

    def start(*arguments: Any) -> Running:
        running.append(Running(*arguments))
        return running[-1]

    yield start
    for each in running:
        if each.process.poll() is None:
            each.kill()


def run_command(
    arguments: Sequence[str | Path],
    timeout_s: float = 180,
    cwd: Path | None = None,
    env: Mapping[str, str] | None = None,
) -> subprocess.CompletedProcess[str]:
    """Run a command to its end, or kill it. Programs named `tailgauge` and `python` are those of this environment."""
    program = {"python": sys.executable, "tailgauge": TAILGAUGE}
    line = [program.get(str(arguments[0]), str(arguments[0])), *map(str, arguments[1:])]
    done = Running(line, Path(), env or {}, cwd).finish(timeout_s)
    return subprocess.CompletedProcess(line, done.code, done.stdout, done.stderr)


def run_scenarios(
    files: Sequence[str], *options: str, out: Path, timeout_s: float
) -> tuple[list[dict[str, Any]], str]:
    """`tailgauge run FILES OPTIONS --json`: what is printed of each run, and standard error."""
    done = run_command([TAILGAUGE, "run", *files, *options, "--json", f"--out={out}"], timeout_s)
    reports = [json.loads(line) for line in done.stdout.splitlines()]
    assert len(reports) == len(files), done.stderr
    return reports, done.stderr


def run_in(
    folder: Path, *arguments: str, env: Mapping[str, str] | None = None, timeout_s: float = 120
) -> Finished:
    """`tailgauge run ARGUMENTS` in a folder, with --out in `out` there."""
    out = folder / "out"
    line = [TAILGAUGE, "run", *arguments, "--out", str(out)]
    return Running(line, out, env or {}, folder).finish(timeout_s)


def variant(folder: Path, scenario: str, *sets: str, name: str = "") -> str:
    """A packaged scenario with some of its keys set otherwise, as a file: a command runs several such."""
    tree = tomllib.loads((packaged("scenarios") / f"{scenario}.toml").read_text(encoding="utf-8"))
    for text in sets:
        put(tree, *override(text))
    path = folder / f"{name or scenario}.toml"
    path.write_text(
        "".join(f"{key} = {json.dumps(value)}\n" for key, value in _leaves(tree)), encoding="utf-8"
    )
    return str(path)


def _leaves(tree: dict[str, Any], before: str = "") -> Iterator[tuple[str, Any]]:
    """Values by their dotted keys."""
    for key, value in tree.items():
        if isinstance(value, dict):
            yield from _leaves(value, f"{before}{key}.")
        else:
            yield f"{before}{key}", value


def free_port() -> int:
    """A port of 127.0.0.1 that nothing listens on."""
    with socket.create_server(("127.0.0.1", 0)) as probe:
        return int(probe.getsockname()[1])


def until(done: Callable[[], object], timeout_s: float = 40) -> None:
    """Wait until that is true; a server that does not answer yet is waited for."""
    deadline = time.monotonic() + timeout_s
    while time.monotonic() < deadline:
        with contextlib.suppress(OSError):
            if done():
                return
        time.sleep(0.1)
    raise AssertionError("did not happen in time")
