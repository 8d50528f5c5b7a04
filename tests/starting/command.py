"""A run as a test sees it: the command at work, what it left behind, and the identities that must hold."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import time
import tomllib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow.parquet as pq

from tailgauge.rows.chunk_encoding import plain
from tailgauge.scenario.model import override, packaged, put

TAILGAUGE = str(Path(sys.executable).with_name("tailgauge"))
LOCUST = str(Path(sys.executable).with_name("locust"))
QUICK = (
    "--set=simulated.ttft_ms=60",
    "--set=simulated.chunk_gap_ms=5",
    "--set=traffic.chat.output_tokens=20",
)


@dataclass(frozen=True)
class RunData:
    """A run folder as a test reads it."""

    path: Path

    @property
    def facts(self) -> dict[str, Any]:
        loaded: dict[str, Any] = json.loads((self.path / "run.json").read_text())
        return loaded

    def table(self, name: str) -> pd.DataFrame:
        parts = [pq.read_table(p) for p in sorted((self.path / name).glob("part-*.parquet"))]
        if name == "chunks":
            parts = [plain(part) for part in parts]
        return pd.concat([part.to_pandas() for part in parts], ignore_index=True)

    def requests(self) -> pd.DataFrame:
        """Request rows without the preflight."""
        rows = self.table("requests")
        return rows[rows.stage != "preflight"]


@dataclass(frozen=True)
class Finished:
    """What a command left behind."""

    code: int
    stdout: str
    stderr: str
    out: Path

    @property
    def run(self) -> RunData:
        (folder,) = sorted((self.out / "runs").iterdir())
        return RunData(folder)

    def run_of(self, scenario: str) -> RunData:
        """The run of one scenario of several."""
        (folder,) = (self.out / "runs").glob(f"*-{scenario}-*")
        return RunData(folder)

    @property
    def report(self) -> Path:
        (folder,) = sorted((self.out / "reports").iterdir())
        return folder


class Running:
    """A command at work."""

    def __init__(self, line: list[str], out: Path, env: Mapping[str, str], cwd: Path) -> None:
        self.out = out
        self.process = subprocess.Popen(
            line,
            cwd=cwd,
            env={**os.environ, **env},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )

    def signal(self, number: int) -> None:
        self.process.send_signal(number)

    def wait_for_start(self, passed_s: float, timeout_s: float = 40, scenario: str = "") -> RunData:
        """Until the clock of the run, that of `scenario` where there are several, has passed `passed_s`."""
        deadline = time.monotonic() + timeout_s
        while time.monotonic() < deadline and self.process.poll() is None:
            for folder in (self.out / "runs").glob(f"*{scenario}*/run.json"):
                start = json.loads(folder.read_text())["start_at_ns"]
                if start and time.monotonic_ns() > start + passed_s * 1e9:
                    return RunData(folder.parent)
            time.sleep(0.05)
        raise AssertionError(f"the run did not start: {self.finish(1).stderr}")

    def finish(self, timeout_s: float = 90) -> Finished:
        try:
            stdout, stderr = self.process.communicate(timeout=timeout_s)
        except subprocess.TimeoutExpired as error:
            os.killpg(self.process.pid, signal.SIGKILL)
            stdout, stderr = self.process.communicate(timeout=10)
            error.add_note(f"stdout: {stdout[-2000:]}\nstderr: {stderr[-2000:]}")
            raise
        return Finished(self.process.returncode, stdout, stderr, self.out)


Start = Callable[..., Running]


def variant(folder: Path, scenario: str, *sets: str, name: str = "") -> str:
    """A packaged scenario with some of its keys set otherwise, as a file: a command runs several such."""
    tree = tomllib.loads((packaged("scenarios") / f"{scenario}.toml").read_text(encoding="utf-8"))
    for text in sets:
        put(tree, *override(text))
    path = folder / f"{name or scenario}.toml"
    path.write_text(
        "".join(f"{key} = {json.dumps(value)}\n" for key, value in _leaves(tree)), encoding="utf-8"
    )
    return str(path)


def _leaves(tree: dict[str, Any], before: str = "") -> Iterator[tuple[str, Any]]:
    """Values by their dotted keys."""
    for key, value in tree.items():
        if isinstance(value, dict):
            yield from _leaves(value, f"{before}{key}.")
        else:
            yield f"{before}{key}", value


def free_port() -> int:
    """A port of 127.0.0.1 that nothing listens on."""
    with socket.create_server(("127.0.0.1", 0)) as probe:
        return int(probe.getsockname()[1])


def until(done: Callable[[], object], timeout_s: float = 40) -> None:
    """Wait until that is true; a server that does not answer yet is waited for."""
    deadline = time.monotonic() + timeout_s
    while time.monotonic() < deadline:
        with contextlib.suppress(OSError):
            if done():
                return
        time.sleep(0.1)
    raise AssertionError("did not happen in time")


def assert_conserved(run: RunData) -> dict[str, Any]:
    """The two identities, in run.json and again in Parquet; returns the counts."""
    counts: dict[str, Any] = run.facts["conservation"]
    assert counts["scheduled"] == sum(counts[k] for k in ("dispatched", "client_drop", "not_reached", "lost"))
    assert counts["dispatched"] == sum(counts["ended"].values()) + counts["censored"]
    rows = run.requests()
    classes = rows.ended.value_counts().to_dict()
    expected = {**counts["ended"], "censored": counts["censored"], "client_drop": counts["client_drop"]}
    assert {k: v for k, v in expected.items() if v} == classes
    assert rows.request_id.is_unique
    return counts
