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
from tailgauge.simulator.batches import BatchSettings
from tailgauge.simulator.latency import Latency
from tailgauge.simulator.server import serve
from tailgauge.simulator.settings import Settings
def census(*_):  # what the collector knows of since the start, by type
    gc.collect()
    print(json.dumps(collections.Counter(type(one).__name__ for one in gc.get_objects())), flush=True)
signal.signal(signal.SIGUSR1, census)
latency, batches, settings = json.loads(sys.argv[1])
settings = {k: tuple(v) if isinstance(v, list) else v for k, v in settings.items()}
serve(
    Settings(Latency(*latency), batches=BatchSettings(**batches), **settings), "127.0.0.1", 0,
    on_listening=lambda url: print(url, flush=True), lifeline=True,
)
"""
QUICK = [1.0, 0.0, 0.2, 0.0, 1, 1]  # ttft_ms, its sigma, chunk_gap_ms, its sigma, tokens_per_chunk, seed


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
def served(latency: list[float], batches: dict[str, Any], settings: dict[str, Any]) -> Iterator[Served]:
    command = [sys.executable, "-c", PROGRAM, json.dumps([latency, batches, settings])]
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
    """Start an endpoint with some values of one's own."""
    with ExitStack() as stack:
        yield lambda latency=None, batches=None, **settings: stack.enter_context(
            served(latency or QUICK, batches or {}, settings)
        )


@pytest.fixture(scope="session")
def quick() -> Iterator[Served]:
    """A quick endpoint, shared."""
    with served(QUICK, {"turnaround_s": 0.1}, {}) as started:
        yield started
