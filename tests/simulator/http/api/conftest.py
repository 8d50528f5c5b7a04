"""Endpoints in processes of their own, with any settings, and the SDKs pointed at them."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import anthropic
import openai
import psutil
import pytest

PROGRAM = """
import collections, gc, json, signal, sys
from tailgauge.scenario.simulated import Simulated
from tailgauge.simulator.http.batches import BatchSettings
from tailgauge.simulator.http.options import ServerOptions
from tailgauge.simulator.http.server import serve
def census(*_):  # what the collector knows of since the start, by type
    gc.collect()
    print(json.dumps(collections.Counter(type(one).__name__ for one in gc.get_objects())), flush=True)
signal.signal(signal.SIGUSR1, census)
table, batches, options = json.loads(sys.argv[1])
options = {k: tuple(v) if isinstance(v, list) else v for k, v in options.items()}
serve(
    Simulated(**table), 1, ServerOptions(batches=BatchSettings(**batches), **options), "127.0.0.1", 0,
    on_listening=lambda url: print(url, flush=True), lifeline=True,
)
"""
QUICK = {"ttft_ms": 1.0, "chunk_gap_ms": 0.2}


class Served:
    """A running endpoint and its process."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        assert process.stdout is not None
        self._said = process.stdout
        self.url = process.stdout.readline().strip()
        self.port = int(self.url.rpartition(":")[2])
        self.process = psutil.Process(process.pid)

    def objects(self) -> Counter[str]:
        """Objects that live in the process after a collection, by type."""
        self.process.send_signal(signal.SIGUSR1)
        return Counter(json.loads(self._said.readline()))

    def anthropic(self, **options: Any) -> anthropic.Anthropic:
        return anthropic.Anthropic(
            base_url=self.url, **{"api_key": "unused", "max_retries": 0, "timeout": 20} | options
        )

    def openai(self, **options: Any) -> openai.OpenAI:
        return openai.OpenAI(
            base_url=f"{self.url}/v1", **{"api_key": "unused", "max_retries": 0, "timeout": 20} | options
        )


Serve = Callable[..., Served]


@contextmanager
def served(table: dict[str, Any], batches: dict[str, Any], options: dict[str, Any]) -> Iterator[Served]:
    command = [sys.executable, "-c", PROGRAM, json.dumps([table, batches, options])]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    ) as process:
        assert process.stdin is not None
        try:
            yield Served(process)
        finally:
            process.stdin.close()
            process.wait(10)


@pytest.fixture
def serve() -> Iterator[Serve]:
    """Start an endpoint with some values of `[simulated]`, of batches, and options of the server."""
    with ExitStack() as stack:
        yield lambda table=None, batches=None, **options: stack.enter_context(
            served(table or QUICK, batches or {}, options)
        )


@pytest.fixture(scope="session")
def quick() -> Iterator[Served]:
    """A quick endpoint, shared."""
    with served(QUICK, {"turnaround_s": 0.1}, {}) as started:
        yield started
