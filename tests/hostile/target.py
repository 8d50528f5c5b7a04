"""The malicious target as a test starts it: its address, and what it did."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

HERE = Path(__file__).parent


class Target:
    """A process of `server`."""

    def __init__(self, folder: Path) -> None:
        port = folder / "port"
        self._child = subprocess.Popen(
            [sys.executable, str(HERE / "server.py"), str(port)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": str(HERE.parent)},
        )
        while not (port.exists() and port.read_text()):
            assert self._child.poll() is None
            time.sleep(0.02)
        self.url = f"http://127.0.0.1:{port.read_text()}"

    def end(self) -> list[dict[str, Any]]:
        """End it; what it did, one entry per request."""
        output, _ = self._child.communicate(timeout=30)
        summary: list[dict[str, Any]] = json.loads(output)
        return summary

    def kill(self) -> None:
        """End it in any case."""
        if self._child.poll() is None:
            self._child.kill()
            self._child.communicate()


@pytest.fixture(scope="module")
def malicious(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[], Target]]:
    """`malicious()` starts a target that means harm; see server.py."""
    started: list[Target] = []

    def start_target() -> Target:
        started.append(Target(tmp_path_factory.mktemp("target")))
        return started[-1]

    yield start_target
    for each in started:
        each.kill()
