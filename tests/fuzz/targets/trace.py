"""Traces: each is a plan, or a refusal that names file, line and what was expected."""

from __future__ import annotations

from fuzz.targets.prices import STREAMING
from fuzz.targets.scenario import FOLDER, SCENARIOS
from scenario.defects import defect

MOST = 20_000  # bytes of a packaged trace: its beginning has what the rest has


def corpus() -> list[bytes]:
    return [path.read_bytes()[:MOST] for path in sorted((SCENARIOS / "traces").iterdir())]


def check(data: bytes) -> None:
    name = "mine.csv" if b"{" not in data[:1] else "mine.jsonl"
    (FOLDER / name).write_bytes(data)
    pairs = [("arrival.process", "trace"), ("arrival.trace.file", name)]
    _, wrong = defect(STREAMING, pairs, FOLDER)
    assert not wrong, wrong
