"""What tests start: scripts in a process of their own, a small file system, a browser."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from starting.programs import scripts_path

TESTS = Path(__file__).parents[1]
Facts = dict[str, Any]


class Raised(Facts):
    """Facts of a case that raised, which say so to whoever looks for others."""

    def __missing__(self, key: str) -> None:
        raise AssertionError(f"no {key!r}, for the case raised:\n{self['raised']}")


@pytest.fixture(scope="session")
def run_script(command) -> Callable[..., Facts]:
    """`run_script("channel/scripts/sockets.py", *arguments)` returns the JSON object that the script printed.

    A script imports what pytest must not (gevent patches the process). It prints case -> facts; a case that raised
    has the key `raised`.
    """

    def run(script: str, *arguments: str | Path, timeout_s: float = 60, **env: str) -> Facts:
        line = ["python", "-W", "error", TESTS / script, *arguments]
        done = command(line, timeout_s, env={**scripts_path(), **env})
        assert done.returncode == 0, (
            f"{script} failed\n{done.stdout[-4000:]}\n{done.stderr[-4000:]}"
        )
        facts: Facts = {
            name: Raised(found) if isinstance(found, dict) and "raised" in found else found
            for name, found in json.loads(done.stdout.splitlines()[-1]).items()
        }
        facts["stderr"] = done.stderr
        return facts

    return run


@pytest.fixture(scope="session")
def small_disk(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[int], Path]]:
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


@pytest.fixture(scope="session")
def browser() -> ModuleType:
    """The module that drives a headless Chromium; skips where there is none."""
    from starting import browser

    if browser.CHROMIUM is None:
        pytest.skip("chromium is not installed")
    return browser


class TooLongError(BaseException):
    """A call took more CPU time than it may. No handler of the product takes this one."""


@pytest.fixture
def bounded() -> Iterator[Callable[[float], object]]:
    """`bounded(10)`: from now on at most 10 s of CPU, which a busy machine does not use up; 0 ends the bound."""

    def end(*_: object) -> None:
        raise TooLongError

    before = signal.signal(signal.SIGPROF, end)
    yield lambda seconds: signal.setitimer(signal.ITIMER_PROF, seconds)
    signal.setitimer(signal.ITIMER_PROF, 0)
    signal.signal(signal.SIGPROF, before)
