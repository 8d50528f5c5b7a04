"""The run folder: runs/<run_id>/ with run.json, workers/<n>.json and a folder per table.

Its paths and JSON files, which are replaced as a whole or not at all; the lock while a run is recorded; and the disk space
that is kept for the end of the run.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import re
import secrets
import time
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from tailgauge.errors import UsageError
from tailgauge.rows.disk import free_space
from tailgauge.rows.schema import TABLES
from tailgauge.rows.text_file import refusal

MARK = "tailgauge"  # prefix of our keys in Parquet metadata
RESERVE = 4 << 20  # bytes
_MORE_TRIES = 2  # to replace a file
_PAUSE_S = 0.1  # before each
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
        """The master's record of the run."""
        return self.path / "run.json"

    @property
    def mark(self) -> Path:
        """A file that shows a worker whether it shares this folder with the master."""
        return self.path / ".master"

    def hold(self, mark: str) -> int:
        """Write the mark, and return its descriptor: while a process has it open, the run is being recorded."""
        handle = os.open(self.mark, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        os.write(handle, mark.encode())
        with contextlib.suppress(OSError):  # a file system without locks
            fcntl.flock(handle, fcntl.LOCK_EX)
        return handle

    @property
    def reserve(self) -> Path:
        """A file that takes up what run.json and the report need at the end, should the disk be full by then."""
        return self.path / ".reserve"

    def take_reserve(self) -> None:
        """Take it up; less on a small disk, and nothing on a full one, which says so by itself."""
        free = free_space(self.path)
        size = RESERVE if free is None else min(RESERVE, free.free // 4)
        with contextlib.suppress(OSError), self.reserve.open("wb") as file:
            os.posix_fallocate(file.fileno(), 0, max(1, size))

    def release_reserve(self) -> None:
        """Give it back."""
        with contextlib.suppress(OSError):  # what is written next says whether there is space
            self.reserve.unlink(missing_ok=True)

    @property
    def is_recorded(self) -> bool:
        """Whether a process on this machine still writes here."""
        if refusal(self.mark) is not None:
            return False
        try:
            with self.mark.open("rb") as file:
                fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        except OSError:  # not ours to read, or a file system without locks
            return False
        return False

    def worker_json(self, worker: int) -> Path:
        """Return a worker's record, so that its rows can be read without run.json."""
        return self.path / "workers" / f"{worker}.json"

    def answers(self, worker: int) -> Path:
        """Return the raw answers that a worker keeps where `keep_answers` asks for some."""
        return self.path / "answers" / f"{worker}.jsonl"

    def part(self, table: str, worker: int, number: int | str) -> Path:
        """Return one part; `all` is the compacted one."""
        return self.path / table / f"part-{worker}-{number}.parquet"

    def create(self) -> None:
        """Create the folder and its subfolders; UsageError if that fails."""
        try:
            for name in (*TABLES, "workers"):
                (self.path / name).mkdir(parents=True, exist_ok=True)
        except OSError as error:
            problem = f"the run folder cannot be written: {error.strerror}"
            raise UsageError(f"{self.path}: {problem}. Choose another --out") from error


def write_json(path: Path, value: Any) -> None:
    """Replace a JSON file in one step."""
    replace_text(path, json.dumps(value, indent=1, allow_nan=False) + "\n")


def replace_text(path: Path, text: str) -> None:
    """Replace a file in one step. Text of others may hold surrogates, which no file can: they become question marks.

    A failure that passes, as of a network disk or while all descriptors are in use, is no failure.
    """
    for _ in range(_MORE_TRIES):
        try:
            _replace(path, text)
        except OSError:
            time.sleep(_PAUSE_S)
        else:
            return
    _replace(path, text)


def _replace(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        temporary.write_text(text, encoding="utf-8", errors="replace")
        temporary.replace(path)
    except BaseException:
        with contextlib.suppress(OSError):
            temporary.unlink(missing_ok=True)
        raise
