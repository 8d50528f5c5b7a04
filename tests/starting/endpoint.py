"""A simulated endpoint as a user starts it, in a process of its own."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from starting.programs import TAILGAUGE, environment


@dataclass(frozen=True)
class Endpoint:
    """Where it listens, and its process."""

    url: str
    pid: int


@contextmanager
def endpoint(
    *arguments: str, cwd: Path | None = None, env: Mapping[str, str] | None = None
) -> Iterator[Endpoint]:
    """`tailgauge endpoint ARGUMENTS` on a free port, until the end of the context or of this process."""
    process = subprocess.Popen(
        [TAILGAUGE, "endpoint", "--port=0", "--lifeline", *arguments],
        env=environment(env),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        cwd=cwd,
    )
    assert process.stdout is not None
    yield Endpoint(process.stdout.readline().split()[-1], process.pid)
    process.communicate(timeout=15)  # closes its standard input: the lifeline
    assert process.returncode == 0
