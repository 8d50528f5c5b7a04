"""Endpoints with the settings of the command line, one process each, and the official SDKs in front of them."""

from __future__ import annotations

import io
import json
import os
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import anthropic
import openai
import pyarrow.parquet as pq
import pytest

TAILGAUGE = str(Path(sys.executable).with_name("tailgauge"))
FORKING = """
import json, os, signal, sys
import pyarrow.parquet
from tailgauge.cli.endpoint import serve_command
signal.signal(signal.SIGCHLD, signal.SIG_IGN)
options = dict.fromkeys(("api_key_env", "certfile", "keyfile", "embed_clock", "lifeline"))
told = lambda url: print(url, os.getpid(), flush=True)
while line := sys.stdin.readline():
    if os.fork() == 0:
        serve_command("127.0.0.1", 0, None, json.loads(line), 1, options, told)
        os._exit(0)
"""
QUICK = ("ttft_ms=2", "chunk_gap_ms=1")
HELLO = [{"role": "user", "content": "hello world"}]


Sdks = tuple[anthropic.Anthropic, openai.OpenAI]


class Served:
    """A running endpoint and its clients."""

    def __init__(self, url: str, sdks: Sdks) -> None:
        self.url = url
        self.claude = sdks[0].with_options(base_url=url)
        self.chat = sdks[1].with_options(base_url=f"{url}/v1")

    def truth(self, run: str = "") -> list[dict[str, Any]]:
        with urllib.request.urlopen(f"{self.url}/tailgauge/server-log?run={run}", timeout=10) as response:
            return pq.read_table(io.BytesIO(response.read())).to_pylist()

    def row(self, run: str, column: str | None = None) -> dict[str, Any]:
        """The run's only row, once it has a value in that column."""
        for _ in range(500):
            rows = self.truth(run)
            if rows and (column is None or rows[0][column] is not None):
                break
            time.sleep(0.02)
        [row] = rows
        return row


class Nursery:
    """A process that has loaded everything and forks an endpoint for each line it is given: no test waits for imports."""

    def __init__(self, process: subprocess.Popen[str], sdks: Sdks) -> None:
        self._process, self._sdks = process, sdks

    @contextmanager
    def served(self, *sets: str) -> Iterator[Served]:
        quick = () if any(one.startswith("profile=") for one in sets) else QUICK
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps([*quick, *sets]) + "\n")
        self._process.stdin.flush()
        url, pid = self._process.stdout.readline().split()
        try:
            yield Served(url, self._sdks)
        finally:
            os.kill(int(pid), signal.SIGTERM)


@pytest.fixture(scope="session")
def nursery() -> Iterator[Nursery]:
    options: dict[str, Any] = {"api_key": "x", "max_retries": 0, "timeout": 20}
    with (
        anthropic.Anthropic(**options) as claude,
        openai.OpenAI(**options) as chat,
        subprocess.Popen(
            [sys.executable, "-c", FORKING], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        ) as process,
    ):
        assert process.stdin is not None
        yield Nursery(process, (claude, chat))
        process.stdin.close()
        process.wait(15)


Serve = Callable[..., Served]


@pytest.fixture
def serve(nursery: Nursery) -> Iterator[Serve]:
    """`serve("limits.rpm=60", ...)`: an endpoint with these settings, quick where they say nothing else."""
    with ExitStack() as stack:
        yield lambda *sets: stack.enter_context(nursery.served(*sets))


def named(run: str, call: int = 1) -> dict[str, dict[str, str]]:
    """What gives a call a row of its own in the truth."""
    return {"extra_headers": {"x-client-request-id": f"{run}/{call}/0/0"}}
