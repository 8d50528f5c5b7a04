"""Whole runs on loopback: the command as a user types it, real master, workers, sockets and Parquet.

Rule: every process is a child that is bounded in time; nothing of the harness is imported that would patch pytest.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path

import pytest
from hostile.target import malicious
from starting.command import Running, Start, commands
from starting.endpoint import endpoint as simulated_endpoint
from starting.programs import LOCUST, TAILGAUGE

__all__ = ["malicious"]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """`start("run", "streaming", ...)` with --out in a folder of the test's own, `into`; `program` may be locust."""

    def start_command(
        *arguments: str,
        env: Mapping[str, str] | None = None,
        program: str = TAILGAUGE,
        into: str = "out",
    ) -> Running:
        out = tmp_path / into
        with_out = arguments[:1] == ("run",) or (program == LOCUST and "--worker" not in arguments)
        line = [program, *arguments, *(["--out", str(out)] if with_out else [])]
        return run(line, out, env or {}, tmp_path)

    with commands() as run:
        yield start_command


@pytest.fixture(scope="module")
def endpoint(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[..., str]]:
    """`endpoint("--api-key-env=X")` starts a simulated endpoint and returns its address."""
    folder = tmp_path_factory.mktemp("endpoint")
    with ExitStack() as stack:

        def start_endpoint(*arguments: str, env: Mapping[str, str] | None = None) -> str:
            return stack.enter_context(simulated_endpoint(*arguments, cwd=folder, env=env)).url

        yield start_endpoint
