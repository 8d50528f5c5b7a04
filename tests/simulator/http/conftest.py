"""Endpoints with the settings of the command line, one process each, and the official SDKs in front of them."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import anthropic
import openai
import pytest
from starting.simulator import SDK_OPTIONS, Served

TAILGAUGE = str(Path(sys.executable).with_name("tailgauge"))
FORKING = """
import json, os, signal, sys
import pyarrow.parquet
from tailgauge.cli.main import simulated as settings
from tailgauge.simulator.http.routes import application
from tailgauge.simulator.http.server import serve
signal.signal(signal.SIGCHLD, signal.SIG_IGN)
options = dict.fromkeys(("api_key_env", "certfile", "keyfile"))
received = lambda url: print(url, os.getpid(), flush=True)
while line := sys.stdin.readline():
    if os.fork() == 0:
        table, server = settings(json.loads(line), None, options)
        serve(application(table, 1, server), server, "127.0.0.1", 0, on_listening=received, lifeline=False)
        os._exit(0)
"""
QUICK = ("ttft_ms=2", "chunk_gap_ms=1")
HELLO = [{"role": "user", "content": "hello world"}]


Sdks = tuple[anthropic.Anthropic, openai.OpenAI]


class ServedForked(Served):
    """A running endpoint, and clients that all such endpoints share."""

    def __init__(self, url: str, sdks: Sdks) -> None:
        super().__init__(url)
        self.claude = sdks[0].with_options(base_url=url)
        self.chat = sdks[1].with_options(base_url=f"{url}/v1")


class Nursery:
    """A process that has loaded everything and forks an endpoint for each line it is given: no test waits for imports."""

    def __init__(self, process: subprocess.Popen[str], sdks: Sdks) -> None:
        self._process, self._sdks = process, sdks

    @contextmanager
    def served(self, *sets: str) -> Iterator[ServedForked]:
        quick = () if any(one.startswith("profile=") for one in sets) else QUICK
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps([*quick, *sets]) + "\n")
        self._process.stdin.flush()
        url, pid = self._process.stdout.readline().split()
        try:
            yield ServedForked(url, self._sdks)
        finally:
            os.kill(int(pid), signal.SIGTERM)


@pytest.fixture(scope="session")
def nursery() -> Iterator[Nursery]:
    with (
        anthropic.Anthropic(**SDK_OPTIONS) as claude,
        openai.OpenAI(**SDK_OPTIONS) as chat,
        subprocess.Popen(
            [sys.executable, "-c", FORKING],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        ) as process,
    ):
        assert process.stdin is not None
        yield Nursery(process, (claude, chat))
        process.stdin.close()
        process.wait(15)


Serve = Callable[..., ServedForked]


@pytest.fixture
def serve(nursery: Nursery) -> Iterator[Serve]:
    """`serve("limits.rpm=60", ...)`: an endpoint with these settings, quick where they say nothing else."""
    with ExitStack() as stack:
        yield lambda *sets: stack.enter_context(nursery.served(*sets))


def named(run: str, call: int = 1) -> dict[str, dict[str, str]]:
    """What gives a call a row of its own in the server log."""
    return {"extra_headers": {"x-client-request-id": f"{run}/{call}/0/0"}}
