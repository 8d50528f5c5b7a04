"""Rows to Parquet parts, without ever holding up the hub.

Rule: greenlets append; building and writing a part happens on an OS thread of the hub's pool (see parts). A failure to
write is fatal for the run and is raised at the next `check`: rows are never dropped in silence.
"""

from __future__ import annotations

import os
import sys
import time
from array import array
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from gevent import get_hub

from tailgauge.endpoints.decoder import Chunks
from tailgauge.folder import RunFolder
from tailgauge.health_row import HealthRow
from tailgauge.parts import Segment, chunk_table, compact, row_table, write_part
from tailgauge.records import AttemptRow, RequestRow

MAX_WAITING_ROWS = 5_000_000
_NICE = 10  # of the writer's thread: where it shares a core with the hub's, the hub does not wait for it


class RecorderError(Exception):
    """Rows could not be written: disk full, folder gone, or writing slower than recording."""


class Recorder:
    """Buffers of one worker's rows and their way into parts."""

    def __init__(self, folder: RunFolder, worker: int) -> None:
        self._folder, self._worker = folder, worker
        self._rows: dict[str, list[Any]] = {"requests": [], "attempts": [], "health": []}
        self._segments: list[Segment] = []
        self._chunk_count = 0
        self._numbers = dict.fromkeys(("requests", "attempts", "chunks", "health"), 0)
        self._writing: Any = None
        self.written = dict.fromkeys(self._numbers, 0)
        self.cpu_s = 0.0  # CPU time of the writer's threads
        self._error: RecorderError | None = None

    def request(self, row: RequestRow) -> None:
        """Append a request row."""
        self._rows["requests"].append(row)

    def attempt(self, row: AttemptRow) -> None:
        """Append an attempt row."""
        self._rows["attempts"].append(row)

    def health(self, row: HealthRow) -> None:
        """Append a health row."""
        self._rows["health"].append(row)

    def chunks(self, request_id: int, leg: int, attempt: int, first: int, chunks: Chunks) -> None:
        """Append the chunks of an attempt from number `first` on."""
        if chunks:
            self._segments.append((request_id, leg, attempt, first, chunks))
            self._chunk_count += len(chunks)

    def warm_up(self) -> None:
        """Build and write parts once, on the writer's thread and into memory: no first time falls into the run."""
        get_hub().threadpool.apply(_rehearse)

    @property
    def waiting_rows(self) -> int:
        """Rows not yet handed to a writer."""
        return self._chunk_count + sum(len(rows) for rows in self._rows.values())

    def check(self) -> None:
        """Raise RecorderError if rows could not be written."""
        if self._writing is not None and self._writing.ready():
            self._finish_writing()
        if self._error:
            raise self._error
        if self.waiting_rows > MAX_WAITING_ROWS:
            self._error = RecorderError("the disk is slower than the recording: rows pile up in memory")
            raise self._error

    def flush(self, *, wait: bool = False) -> None:
        """Hand all rows to a writer thread; if the last one is still at work, they stay for the next flush."""
        if self._writing is not None:
            if not wait and not self._writing.ready():
                return
            self._finish_writing()
        rows, segments = self._rows, self._segments
        self._rows = {name: [] for name in rows}
        self._segments, self._chunk_count = [], 0
        if segments or any(rows.values()):
            self._writing = get_hub().threadpool.spawn(self._write, rows, segments)
        if wait:
            self._finish_writing()

    def close(self) -> None:
        """Write what is left, then fold each table's parts into one file."""
        self.flush(wait=True)
        self.check()
        get_hub().threadpool.apply(self._compact)
        self.check()

    def _finish_writing(self) -> None:
        if self._writing is not None:
            writing, self._writing = self._writing, None
            writing.get()  # errors were caught on the thread; this only joins it

    def _write(self, rows: dict[str, list[Any]], segments: list[Segment]) -> None:
        began_s = time.thread_time()
        _step_back()
        try:
            for name, items in rows.items():
                if items:
                    self._write_table(name, row_table(name, items))
            if segments:
                self._write_table("chunks", chunk_table(segments))
        except Exception as error:  # noqa: BLE001 - whatever it is, the rows are not on disk, and the run must know
            self._error = RecorderError(f"a part could not be written under {self._folder.path}: {error}")
        finally:
            self.cpu_s += time.thread_time() - began_s

    def _write_table(self, name: str, table: pa.Table) -> None:
        write_part(self._folder.part(name, self._worker, self._numbers[name]), table)
        self._numbers[name] += 1
        self.written[name] += table.num_rows

    def _compact(self) -> None:
        began_s = time.thread_time()
        for name, count in self._numbers.items():
            parts = [self._folder.part(name, self._worker, n) for n in range(count)]
            try:
                if len(parts) > 1:
                    compact(name, parts, self._folder.part(name, self._worker, "all"))
            except Exception as error:  # noqa: BLE001 - as above, but
                # the parts are all still there and readable: nothing is lost, the folder is only less tidy
                self._error = RecorderError(f"{name}: the parts could not be compacted: {error}")
        self.cpu_s += time.thread_time() - began_s


def _step_back() -> None:
    """Lower this thread's priority; elsewhere than on Linux it would be the whole process's."""
    if sys.platform == "linux" and os.getpriority(os.PRIO_PROCESS, 0) < _NICE:
        os.setpriority(os.PRIO_PROCESS, 0, _NICE)


def _rehearse() -> None:
    kind, numbers, few = bytearray(1), array("q", [1]), array("i", [1])
    chunks = Chunks(kind, numbers, numbers, numbers, few, few)
    for table in (chunk_table([(0, 0, 0, 0, chunks)]), row_table("health", [HealthRow(*[0] * 16)])):
        pq.write_table(table, pa.BufferOutputStream(), compression="zstd")
