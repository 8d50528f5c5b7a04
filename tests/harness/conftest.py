"""Exercises: scripts that load what pytest must not (gevent), each in a process of its own and bounded in time.

Rule: an exercise prints one JSON object, case -> facts. A case that raised says so under `raised`.
"""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings

# The same examples each time, and no verdict by the clock of a busy machine.
settings.register_profile("harness", derandomize=True, deadline=None, database=None, max_examples=60)
settings.load_profile("harness")

HERE = Path(__file__).parent
Facts = dict[str, Any]


@pytest.fixture(scope="session")
def exercise(command) -> Callable[..., Facts]:
    """`exercise("transport/exercises/x.py", *arguments)` returns what the script printed."""

    def run(script: str, *arguments: str | Path, timeout_s: float = 60, **env: str) -> Facts:
        done = command(["python", "-W", "error", HERE / script, *arguments], timeout_s, env=env)
        assert done.returncode == 0, f"{script} failed\n{done.stdout[-4000:]}\n{done.stderr[-4000:]}"
        facts: Facts = json.loads(done.stdout.splitlines()[-1])
        facts["stderr"] = done.stderr
        return facts

    return run


@pytest.fixture(scope="session")
def small_disk(tmp_path_factory) -> Iterator[Callable[[int], Path]]:
    """`small_disk(1_000_000)` mounts a file system of that many bytes; skips where that is not permitted."""
    if os.geteuid() != 0:
        pytest.skip("a small file system can be mounted by root only")
    mounted: list[Path] = []

    def mount(size: int) -> Path:
        path = tmp_path_factory.mktemp("disk")
        done = subprocess.run(
            ["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", path],
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode:
            pytest.skip(f"no small file system can be mounted here: {done.stderr.strip()}")
        mounted.append(path)
        return path

    yield mount
    for path in mounted:
        subprocess.run(["umount", path], check=True)
