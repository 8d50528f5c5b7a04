"""Simulated endpoints with any settings, those that the command line lacks included, each in its own process."""

from __future__ import annotations

import io
import json
import signal
import subprocess
import sys
import time
import urllib.request
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import anthropic
import openai
import psutil
import pyarrow.parquet as pq

PROGRAM = """
import collections, gc, json, signal, sys
from tailgauge.scenario.simulated import Simulated
from tailgauge.simulator.http.requests import ServerOptions
from tailgauge.simulator.http.routes import application
from tailgauge.simulator.http.server import serve
def census(*_):  # what the collector knows of since the start, by type
    gc.collect()
    print(json.dumps(collections.Counter(type(one).__name__ for one in gc.get_objects())), flush=True)
signal.signal(signal.SIGUSR1, census)
table, options = json.loads(sys.argv[1])
options = ServerOptions(**options)
serve(
    application(Simulated(**table), 1, options), options, "127.0.0.1", 0,
    on_listening=lambda url: print(url, flush=True), lifeline=True,
)
"""
SDK_OPTIONS = {"api_key": "unused", "max_retries": 0, "timeout": 20}


class Served:
    """A running endpoint, and the SDKs in front of it."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.port = int(url.rpartition(":")[2])

    def anthropic(self, **options: Any) -> anthropic.Anthropic:
        return anthropic.Anthropic(base_url=self.url, **SDK_OPTIONS | options)

    def openai(self, **options: Any) -> openai.OpenAI:
        return openai.OpenAI(base_url=f"{self.url}/v1", **SDK_OPTIONS | options)

    def server_log(self, run: str = "") -> list[dict[str, Any]]:
        with urllib.request.urlopen(
            f"{self.url}/tailgauge/server-log?run={run}", timeout=10
        ) as response:
            return pq.read_table(io.BytesIO(response.read())).to_pylist()

    def row(self, run: str, column: str | None = None) -> dict[str, Any]:
        """The run's only row, once it has a value in that column."""
        for _ in range(500):
            rows = self.server_log(run)
            if rows and (column is None or rows[0][column] is not None):
                break
            time.sleep(0.02)
        [row] = rows
        return row


class ServedHere(Served):
    """An endpoint whose process the test may look into, and end."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        assert process.stdout is not None
        self._stdout = process.stdout
        self.child = process
        self.process = psutil.Process(process.pid)
        super().__init__(self._stdout.readline().strip())

    def objects(self) -> Counter[str]:
        """Objects that live in the process after a collection, by type."""
        self.process.send_signal(signal.SIGUSR1)
        return Counter(json.loads(self._stdout.readline()))


@contextmanager
def served(
    table: Mapping[str, Any],
    options: Mapping[str, Any] | None = None,
) -> Iterator[ServedHere]:
    """An endpoint with these values of `[simulated]` and these options of the server."""
    command = [sys.executable, "-c", PROGRAM, json.dumps([table, options or {}])]
    pipe, nowhere = subprocess.PIPE, subprocess.DEVNULL
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=nowhere, text=True) as process:
        assert process.stdin is not None
        try:
            yield ServedHere(process)
        finally:
            process.stdin.close()  # the lifeline
            process.wait(10)
