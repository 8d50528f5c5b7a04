"""Real endpoints, each in its own process, on a free port."""

from __future__ import annotations

import io
import json
import subprocess
import sys
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import pyarrow.parquet as pq
import pytest

PROGRAM = """
import json, sys
from tailgauge.scenario.simulated import Simulated
from tailgauge.simulator.http.options import ServerOptions
from tailgauge.simulator.http.server import serve
table, options = json.loads(sys.argv[1])
serve(
    Simulated(**table), 1, ServerOptions(**options), "127.0.0.1", 0,
    on_listening=lambda url: print(url, flush=True), lifeline=True,
)
"""
QUICK = {"ttft_ms": 2.0, "chunk_gap_ms": 0.5}


class Endpoint:
    """A running endpoint."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        assert process.stdout is not None
        self.process = process
        self.url = process.stdout.readline().strip()
        self.port = int(self.url.rpartition(":")[2])

    def truth(self, run: str) -> list[dict[str, Any]]:
        with urllib.request.urlopen(f"{self.url}/tailgauge/server-log?run={run}", timeout=10) as response:
            return pq.read_table(io.BytesIO(response.read())).to_pylist()


Start = Callable[..., Endpoint]


@contextmanager
def running(table: dict[str, Any], options: dict[str, Any]) -> Iterator[Endpoint]:
    command = [sys.executable, "-c", PROGRAM, json.dumps([QUICK | table, options])]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdin is not None
        try:
            yield Endpoint(process)
        finally:
            process.stdin.close()
            process.wait(10)


@pytest.fixture
def start() -> Iterator[Start]:
    """Start an endpoint with some values of `[simulated]` other than the quick ones, and options of the server."""
    with ExitStack() as stack:
        yield lambda table=None, **options: stack.enter_context(running(table or {}, options))


@pytest.fixture(scope="session")
def endpoint() -> Iterator[Endpoint]:
    """A quick endpoint, shared: use a run name of your own."""
    with running({}, {}) as started:
        yield started
