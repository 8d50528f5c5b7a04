"""The run folder: where what lies. runs/<run_id>/ with run.json, workers/<n>.json and a folder a table.

Rule: paths and JSON files only. A JSON file is replaced whole or not at all.
"""

from __future__ import annotations

import json
import os
import re
import secrets
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from tailgauge.errors import UsageError
from tailgauge.rows.schema import TABLES

MARK = "tailgauge"  # prefix of our keys in Parquet metadata
_SAFE = re.compile(r"[^a-z0-9_-]+")


def new_run_id(scenario: str) -> str:
    """`<UTC>-<scenario>-<4 hex>`: sorts by time, names the scenario, does not collide."""
    stamp = datetime.now(UTC).strftime("%Y%m%dT%H%M%SZ")
    return f"{stamp}-{_SAFE.sub('-', scenario.lower())}-{secrets.token_hex(2)}"


@dataclass(frozen=True, slots=True)
class RunFolder:
    """Paths inside one run folder."""

    path: Path

    @property
    def run_json(self) -> Path:
        """What the master says of the run."""
        return self.path / "run.json"

    @property
    def mark(self) -> Path:
        """A file by which a worker recognises that it shares this folder with the master."""
        return self.path / ".master"

    def worker_json(self, worker: int) -> Path:
        """What a worker says of itself, so that its rows can be read without the master's word."""
        return self.path / "workers" / f"{worker}.json"

    def part(self, table: str, worker: int, number: int | str) -> Path:
        """One part; `all` is the compacted one."""
        return self.path / table / f"part-{worker}-{number}.parquet"

    def create(self) -> None:
        """Make the folder and its rooms. Raises UsageError where that is not possible."""
        try:
            for name in (*TABLES, "workers"):
                (self.path / name).mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise UsageError(
                f"{self.path}: the run folder cannot be written: {error.strerror}. Choose another --out"
            ) from error


def write_json(path: Path, value: Any) -> None:
    """Replace a JSON file in one step."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        temporary.write_text(json.dumps(value, indent=1, allow_nan=False) + "\n", encoding="utf-8")
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)
