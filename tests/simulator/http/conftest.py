"""Endpoints with the settings of the command line, one process each, and the official SDKs in front of them."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import anthropic
import openai
import pytest
from starting.simulator import SDK_OPTIONS, Served

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
REQUEST = {"model": "m", "max_tokens": 20, "messages": HELLO}


def named(run, call=1):
    """What gives a call a row of its own in the server log."""
    return {"extra_headers": {"x-client-request-id": f"{run}/{call}/0/0"}}


class ServedForked(Served):
    """A running endpoint, and the official SDKs as clients that all such endpoints share.

    A call that names its run has a row of its own in the server log.
    """

    def __init__(self, url, sdks):
        super().__init__(url)
        self.claude = sdks[0].with_options(base_url=url)
        self.chat = sdks[1].with_options(base_url=f"{url}/v1")

    def message(self, run="", call=1, **fields):
        names = named(run, call) if run else {}
        return self.claude.messages.create(**REQUEST | fields, **names)

    def events(self, run="", **fields):
        """The events of a streamed message, read to its end."""
        with self.message(run, **fields, stream=True) as stream:
            return list(stream)

    def completion(self, run="", call=1, **fields):
        names = named(run, call) if run else {}
        return self.chat.chat.completions.create(**REQUEST | fields, **names)

    def rows(self, run):
        """The run's rows of the server log, by the number of the call."""
        return {row["request_id"]: row for row in self.server_log(run)}


class Nursery:
    """A process that has loaded everything and forks an endpoint for each line it is given: no test waits for imports."""

    def __init__(self, process, sdks):
        self._process, self._sdks = process, sdks

    @contextmanager
    def served(self, *sets: str) -> Iterator[ServedForked]:
        quick = () if any(one.startswith("profile=") for one in sets) else QUICK
        self._process.stdin.write(json.dumps([*quick, *sets]) + "\n")
        self._process.stdin.flush()
        url, pid = self._process.stdout.readline().split()
        try:
            yield ServedForked(url, self._sdks)
        finally:
            os.kill(int(pid), signal.SIGTERM)


@pytest.fixture(scope="session")
def nursery():
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
        yield Nursery(process, (claude, chat))
        process.stdin.close()
        process.wait(15)


@pytest.fixture
def serve(nursery):
    """`serve("limits.rpm=60", ...)`: an endpoint with these settings, quick where they say nothing else."""
    with ExitStack() as stack:
        yield lambda *sets: stack.enter_context(nursery.served(*sets))
