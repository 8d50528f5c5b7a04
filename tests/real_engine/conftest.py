"""A real llama.cpp with a tiny model, started by the tests that ask for it.

Rule: the engine is the witness. What it counts and times itself is taken from its `/metrics` page and its log, never
through the code under test. Each test gets its own engine, with empty caches and counters at zero; it starts
in a fifth of a second. Times are compared with the engine's own, never with a number of milliseconds alone.
"""

from __future__ import annotations

import importlib.util
import json
import os
import re
import selectors
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

HERE = Path(__file__).parent
START_S = 30
TIMING = re.compile(r"task (\d+) \|\s+(prompt eval|eval) time =\s+([\d.]+) ms /\s+(\d+) tokens")


@dataclass(frozen=True)
class Need:
    """What a test needs of its engine: `@pytest.mark.parametrize("engine", [{"parallel": 2}], indirect=True)`."""

    parallel: int = 4
    ctx: int = 16384
    threads: int = 1  # the other core is the client's
    shape: str = "small"  # of the model
    cache: bool = True  # of prefixes


@dataclass(frozen=True)
class Served:
    """One request as the engine timed it."""

    prompt_ms: float
    prompt_tokens: int
    predicted_ms: float
    predicted_tokens: int

    @property
    def ms_per_token(self) -> float:
        return self.predicted_ms / self.predicted_tokens


@dataclass(frozen=True)
class Engine:
    """A running engine: its address, its counters, its log."""

    url: str
    log: Path

    def get(self, path: str) -> str:
        """A page of the engine."""
        with urllib.request.urlopen(self.url + path, timeout=10) as response:
            return str(response.read().decode())

    def counters(self) -> dict[str, float]:
        """The `/metrics` page, without the `llamacpp:` prefix."""
        return parse_metrics(self.get("/metrics"))

    def served(self, count: int) -> list[Served]:
        """At least `count` requests, in the order they came; the log is written by a thread of its own, so wait for it.

        The same numbers as the `timings` object of the last chunk, rounded to 10 us.
        """
        deadline = time.monotonic() + 5
        while len(done := self._logged()) < count:
            assert time.monotonic() < deadline, (
                f"the engine's log has {len(done)} requests, not {count}"
            )
            time.sleep(0.02)
        return done

    def _logged(self) -> list[Served]:
        found: dict[int, dict[str, tuple[float, int]]] = {}
        for task, kind, ms, tokens in TIMING.findall(
            self.log.read_text(encoding="utf-8", errors="replace")
        ):
            found.setdefault(int(task), {})[kind] = (float(ms), int(tokens))
        whole = [found[task] for task in sorted(found) if len(found[task]) == 2]
        return [Served(*both["prompt eval"], *both["eval"]) for both in whole]

    def post(self, path: str, body: dict[str, object]) -> str:
        """Send one request past the harness; the whole response body."""
        request = urllib.request.Request(
            self.url + path, json.dumps(body).encode(), {"content-type": "application/json"}
        )
        with urllib.request.urlopen(request, timeout=60) as response:
            return str(response.read().decode())

    def seconds_until_idle(self, limit_s: float) -> float:
        """Time until no request is being processed, asked every 10 ms; `limit_s` if it is still busy then."""
        start = time.monotonic()
        while (waited := time.monotonic() - start) < limit_s:
            if self.counters()["requests_processing"] == 0:
                return waited
            time.sleep(0.01)
        return limit_s


def parse_metrics(page: str) -> dict[str, float]:
    """Name and value of every line of a Prometheus page that has no labels."""
    return {
        name.removeprefix("llamacpp:"): float(value)
        for name, value in re.findall(r"^([\w:]+) ([\d.eE+-]+)$", page, re.MULTILINE)
    }


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory):
    """The model file of a shape, made on the spot."""
    for module in ("xllamacpp", "gguf"):
        if importlib.util.find_spec(module) is None:
            pytest.skip(f"{module} is not installed: it comes with the extra `engine`")
    folder = tmp_path_factory.mktemp("model")

    def made(shape: str) -> Path:
        path = folder / f"{shape}.gguf"
        if not path.exists():
            line = [sys.executable, HERE / "make_tiny_gguf.py", path, shape]
            subprocess.run(line, check=True, timeout=60)
        return path

    return made


@pytest.fixture
def engine(request, tiny_model, tmp_path):
    """A fresh engine, as the test's `Need` asks."""
    with serving(
        tiny_model, Need(**getattr(request, "param", {})), tmp_path / "engine.log"
    ) as engine:
        yield engine


@pytest.fixture(scope="session")
def fresh_engine(tiny_model):
    """`with fresh_engine(log, parallel=1) as engine`: for a run that several tests look at."""
    return lambda log, **need: serving(tiny_model, Need(**need), log)


@contextmanager
def serving(model: Callable[[str], Path], need: Need, log: Path) -> Iterator[Engine]:
    """A fresh engine, ended at the end."""
    line: list[str | Path] = [
        *(sys.executable, HERE / "serve_engine.py", model(need.shape)),
        *("--parallel", str(need.parallel), "--ctx", str(need.ctx), "--threads", str(need.threads)),
        *(() if need.cache else ("--no-cache",)),
    ]
    with (
        log.open("wb") as stderr,
        subprocess.Popen(
            line, stdout=subprocess.PIPE, stderr=stderr, start_new_session=True
        ) as process,
    ):
        try:
            url = _address(process, log)
            _await_health(url)
            yield Engine(url, log)
        finally:
            _end(process)


def _address(process: subprocess.Popen[bytes], log: Path) -> str:
    assert process.stdout is not None
    with selectors.DefaultSelector() as selector:
        selector.register(process.stdout, selectors.EVENT_READ)
        ready = selector.select(START_S)
    figures = process.stdout.readline().decode().split() if ready else []
    if len(figures) != 2 or figures[0] != "LISTENING":
        pytest.fail(f"the engine did not start: {log.read_text(errors='replace')[-2000:]}")
    return figures[1]


def _await_health(url):
    """Wait until the engine takes calls: on a busy machine it answers 503, "Loading model", for a while after it listens."""
    deadline_s = time.monotonic() + START_S
    while not _is_healthy(url):
        assert time.monotonic() < deadline_s, f"{url}/health is not 200 within {START_S} s"
        time.sleep(0.02)


def _is_healthy(url: str) -> bool:
    try:
        urllib.request.urlopen(f"{url}/health", timeout=5).close()
    except OSError:
        return False
    return True


def _end(process):
    process.terminate()
    try:
        process.wait(timeout=5)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait(timeout=10)
