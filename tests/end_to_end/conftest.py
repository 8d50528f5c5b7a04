"""Whole runs on loopback: the command as a user types it, real master, workers, sockets and Parquet.

Rule: every process is a child that is bounded in time; nothing of the harness is imported that would patch pytest.
"""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import pytest
from end_to_end.malicious_target import Target
from starting.command import LOCUST, TAILGAUGE, Running, Start


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """`start("run", "streaming", ...)` with --out in a folder of the test's own, `into`; `program` may be locust."""
    running: list[Running] = []

    def start_command(
        *arguments: str, env: Mapping[str, str] | None = None, program: str = TAILGAUGE, into: str = "out"
    ) -> Running:
        out = tmp_path / into
        with_out = arguments[:1] == ("run",) or (program == LOCUST and "--worker" not in arguments)
        line = [program, *arguments, *(["--out", str(out)] if with_out else [])]
        running.append(Running(line, out, env or {}, tmp_path))
        return running[-1]

    yield start_command
    for each in running:
        if each.process.poll() is None:
            os.killpg(each.process.pid, signal.SIGKILL)
            each.process.communicate(timeout=10)


@pytest.fixture(scope="module")
def malicious(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[], Target]]:
    """`malicious()` starts a target that means harm; see malicious_server.py."""
    started: list[Target] = []

    def start_target() -> Target:
        started.append(Target(tmp_path_factory.mktemp("target")))
        return started[-1]

    yield start_target
    for each in started:
        each.kill()


@pytest.fixture(scope="module")
def endpoint(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[..., str]]:
    """`endpoint("--api-key-env=X")` starts a simulated endpoint of its own and returns its address."""
    running: list[subprocess.Popen[str]] = []
    folder = tmp_path_factory.mktemp("endpoint")

    def start_endpoint(*arguments: str, env: Mapping[str, str] | None = None) -> str:
        child = subprocess.Popen(
            [TAILGAUGE, "endpoint", "--port=0", "--lifeline", *arguments],
            env={**os.environ, **(env or {})},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=folder,
        )
        running.append(child)
        assert child.stdout is not None
        return child.stdout.readline().split()[-1]

    yield start_endpoint
    for child in running:
        child.communicate(timeout=15)  # closes its standard input: the lifeline
        assert child.returncode == 0
