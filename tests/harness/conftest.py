"""Exercises: scripts that load what pytest must not (gevent), each in a process of its own and bounded in time.

Rule: an exercise prints one JSON object, case -> facts. A case that raised says so under `raised`.
"""

from __future__ import annotations

import json
from collections.abc import Callable
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
