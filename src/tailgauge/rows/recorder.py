"""Rows to Parquet parts without blocking the hub.

Greenlets append; parts are built and written on an OS thread of the hub's pool. A failure to write ends the run and is
raised at the next `check`: rows are never dropped silently.

Rows that could not be written stay in memory in order and are retried once at `close`, when the disk may have space again;
what then fails is `unwritten`. The backlog is bounded in rows and time: a slow disk ends the run before memory runs out.
"""

from __future__ import annotations

import os
import sys
import time
from array import array
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from gevent import get_hub

from tailgauge.machine import NO_DESCRIPTORS
from tailgauge.rows.disk import advice
from tailgauge.rows.parquet import Segments, chunk_table, compact, row_table, write_part
from tailgauge.rows.run_folder import RunFolder
from tailgauge.rows.schema import RECORDED, AttemptRow, Chunks, HealthRow, Origin, RequestRow

MAX_WAITING_CHUNKS = 5_000_000  # some 40 bytes each
MAX_WAITING_ROWS = 200_000  # of the other tables: some 2 kB each
MAX_WRITING_S = 30.0  # for one part
_NICE = 10  # of the writer's thread, so that the hub does not wait for it on a shared core

OnPart = Callable[[str, Path], None]
Rows = dict[str, Any]  # of each table a list, of chunks `Segments`


class RecorderError(Exception):
    """Rows could not be written: disk full, folder gone, or writing slower than recording."""


class Batch:
    """Rows that were flushed together. `left`: rows of each table that are in no part yet.

    Rows leave when they are in a part and stay otherwise: nothing is written twice or lost. One thread at a time takes
    from a batch; any thread may count.
    """

    def __init__(self, rows: Rows) -> None:
        self._rows = rows
        self.left = {name: len(items) for name, items in rows.items()}

    def __len__(self) -> int:
        return sum(self.left.values())

    def table(self, name: str, origin: Origin) -> pa.Table:
        """Return the rows of a table as they go into a part."""
        rows = self._rows[name]
        if name == "chunks":
            return chunk_table(rows, origin)
        return row_table(name, rows, origin)

    def written(self, name: str) -> None:
        """Drop the rows of this table: they are in a part."""
        self._rows[name] = _no_rows_of(name)
        self.left[name] = 0


class Recorder:
    """Buffers one worker's rows and writes them as parts.

    `on_part(table, path)` is called on the writer's thread for each finished part. Without `compacts` parts are not
    compacted: transferred parts are folded by the master.
    """

    def __init__(
        self,
        folder: RunFolder,
        worker: int,
        on_part: OnPart | None = None,
        *,
        compacts: bool = True,
    ) -> None:
        """Prepare to record; no file is written before `flush`. `worker`: its number, in names of parts and in rows."""
        self._folder = folder
        self._worker = worker
        self.origin = Origin(worker)  # of all rows
        self._on_part = on_part
        self._compacts = compacts
        self._rows = _no_rows()
        self.text_size = 0  # characters of the target's in rows that wait
        self._numbers = dict.fromkeys(RECORDED, 0)  # of the next part of each table
        self._writing: Any = None  # the writer on its thread, until its end was noticed
        self._batches: list[Batch] = []  # being written, or failed
        self._progress_s = 0.0  # when the writer began, or finished its last part
        self.written = dict.fromkeys(self._numbers, 0)
        self.cpu_s = 0.0  # CPU time of the writer's threads
        self.remarks: list[str] = []  # what failed at the end without a loss
        self._error: RecorderError | None = None
        # Held back for a part, when no other descriptor is left.
        self._spare = _spare_descriptor()

    def request(self, row: RequestRow) -> None:
        """Append a request row."""
        self._rows["requests"].append(row)

    def attempt(self, row: AttemptRow) -> None:
        """Append an attempt row."""
        self._rows["attempts"].append(row)
        self.text_size += len(row.error_body or "") + len(row.rate_limit_headers or "")

    def health(self, row: HealthRow) -> None:
        """Append a health row."""
        self._rows["health"].append(row)

    def chunks(
        self, request_id: int, leg: int, attempt: int, chunk_index: int, chunks: Chunks
    ) -> None:
        """Append chunks of an attempt; `chunk_index`: the number of the first of them."""
        if chunks:
            self._rows["chunks"].add(request_id, leg, attempt, chunk_index, chunks)

    def warm_up(self) -> None:
        """Build and write parts once into memory, on the writer's thread, so that first uses are not in the run."""
        get_hub().threadpool.apply(_write_once)

    @property
    def waiting_rows(self) -> int:
        """Rows that are in no part yet."""
        return sum(self._waiting())

    def _waiting(self) -> tuple[int, int]:
        """Return the same, chunks and other tables separately."""
        chunks = len(self._rows["chunks"]) + sum(batch.left["chunks"] for batch in self._batches)
        rows = sum(len(items) for name, items in self._rows.items() if name != "chunks")
        return chunks, rows + sum(len(batch) - batch.left["chunks"] for batch in self._batches)

    @property
    def unwritten(self) -> dict[str, int]:
        """Rows of each table that could not be written; final once closed."""
        unwritten = dict.fromkeys(self._numbers, 0)
        if self._error is not None:
            for batch in self._batches:
                for name, rows in batch.left.items():
                    unwritten[name] += rows
        return unwritten

    def check(self) -> None:
        """Raise RecorderError if rows could not be written, or not fast enough."""
        if self._writing is not None and self._writing.ready():
            self._finish_writing()
        if self._error is None:
            self._error = self._error_if_too_slow()
        if self._error is not None:
            raise self._error

    def _error_if_too_slow(self) -> RecorderError | None:
        chunks, rows = self._waiting()
        if chunks > MAX_WAITING_CHUNKS or rows > MAX_WAITING_ROWS:
            reason = f"{chunks + rows:,} rows wait in memory"
        elif self._is_stuck():
            reason = f"one part takes more than {MAX_WRITING_S:.0f} s"
        else:
            return None
        disk = f"the disk under {self._folder.path}"
        return RecorderError(f"{disk} is too slow: {reason}: choose a faster one (--out)")

    def _is_stuck(self) -> bool:
        return self._writing is not None and time.monotonic() - self._progress_s > MAX_WRITING_S

    def flush(self, *, wait: bool = False) -> None:
        """Pass all rows to a writer thread; if the last one is busy, they stay for the next flush.

        After a failure they stay until `close`.
        """
        if self._writing is not None:
            if not wait and not self._writing.ready():
                return
            self._finish_writing()
        if self._error is None:
            self._start_writing()
        if wait:
            self._finish_writing()

    def close(self) -> None:
        """Write the rest, retry what failed, then compact each table's parts into one file. Raises RecorderError.

        A part in progress gets MAX_WRITING_S once more.
        """
        try:
            self._write_the_rest()
        finally:
            if self._spare is not None:
                os.close(self._spare)
                self._spare = None

    def _write_the_rest(self) -> None:
        """Write all rows that are left, also those that failed before, then compact the parts.

        A part in progress gets its time once more. Raises RecorderError after any failure of the run, with
        the number of rows that are in no part.
        """
        self._progress_s = time.monotonic()
        self._finish_writing()
        if self._writing is None:
            # Also writes the batches that failed.
            self._start_writing()
            self._finish_writing()
        if self._writing is not None:  # stuck: its rows may still be written, later ones will not
            # A new list: the writer still goes through the old one, and must not write this batch. It
            # counts as lost.
            self._batches = [*self._batches, self._next_batch()]
            self._error = self._error or self._error_if_too_slow()
        if self._error is not None:
            lost = sum(self.unwritten.values())
            result = "no rows lost"
            if lost:
                result = f"rows lost: {lost:,}"
            self._error = RecorderError(f"{self._error}; after a retry at the end: {result}")
            raise self._error
        if self._compacts:
            get_hub().threadpool.apply(self._compact)

    def _next_batch(self) -> Batch:
        """Take all buffered rows."""
        batch = Batch(self._rows)
        self._rows = _no_rows()
        self.text_size = 0
        return batch

    def _start_writing(self) -> None:
        self._batches.append(self._next_batch())
        self._batches = [batch for batch in self._batches if len(batch)]
        if self._batches:
            self._progress_s = time.monotonic()
            self._writing = get_hub().threadpool.spawn(self._write, self._batches)

    def _finish_writing(self) -> None:
        """Wait for the writer, unless it is stuck."""
        while self._writing is not None:
            if self._writing.ready():
                writing = self._writing
                self._writing = None
                writing.get()  # errors were caught on the thread; this only joins it
                self._batches = [batch for batch in self._batches if len(batch)]
            elif self._is_stuck():
                return
            else:
                self._writing.wait(timeout=1)

    def _write(self, batches: list[Batch]) -> None:
        began_s = time.thread_time()
        _lower_priority()
        for batch in batches:
            for name in batch.left:
                if batch.left[name]:
                    self._write_table(batch, name)
        self.cpu_s += time.thread_time() - began_s

    def _write_table(self, batch: Batch, name: str) -> None:
        path = self._folder.part(name, self._worker, self._numbers[name])
        try:
            self._write_part(path, batch.table(name, self.origin))
        except Exception as error:  # noqa: BLE001 - any failure to write must end the run
            reason = advice(error, self._folder.path)
            self._error = RecorderError(
                f"a part could not be written under {self._folder.path}: {reason}"
            )
            return
        self._numbers[name] += 1
        self.written[name] += batch.left[name]
        batch.written(name)
        self._progress_s = time.monotonic()
        self._notify(name, path)

    def _write_part(self, path: Path, table: pa.Table) -> None:
        """Write a part, by the spare descriptor where no other one is left."""
        if self._spare is None:
            self._spare = _spare_descriptor()
        try:
            write_part(path, table)
        except OSError as error:
            if error.errno not in NO_DESCRIPTORS or self._spare is None:
                raise
            os.close(self._spare)
            self._spare = None
            write_part(path, table)

    def _notify(self, name: str, path: Path) -> None:
        try:
            if self._on_part is not None:
                self._on_part(name, path)
        except Exception as error:  # noqa: BLE001 - the part is written, but the run must know
            self._error = RecorderError(f"{path} could not be passed on: {error!r}")

    def _compact(self) -> None:
        began_s = time.thread_time()
        for name, count in self._numbers.items():
            parts = [self._folder.part(name, self._worker, n) for n in range(count)]
            try:
                if len(parts) > 1:
                    compact(name, parts, self._folder.part(name, self._worker, "all"))
            except Exception as error:  # noqa: BLE001 - all parts are still readable
                reason = advice(error, self._folder.path)
                self.remarks.append(
                    f"{name}: the parts could not be compacted; none is lost: {reason}"
                )
        self.cpu_s += time.thread_time() - began_s


def _no_rows() -> Rows:
    return {name: _no_rows_of(name) for name in RECORDED}


def _no_rows_of(table: str) -> Any:
    if table == "chunks":
        return Segments()
    return []


def _spare_descriptor() -> int | None:
    """Return a descriptor that is given back when a part needs one; None while there is none."""
    try:
        return os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return None


def _lower_priority() -> None:
    """Lower this thread's priority, on Linux only: elsewhere it would be that of the process."""
    if sys.platform == "linux" and os.getpriority(os.PRIO_PROCESS, 0) < _NICE:
        os.setpriority(os.PRIO_PROCESS, 0, _NICE)


def _write_once() -> None:
    kind = bytearray(1)
    numbers = array("q", [1])
    few = array("i", [1])
    segments = Segments()
    segments.add(0, 0, 0, 0, Chunks(kind, numbers, numbers, numbers, few, few))
    for table in (chunk_table(segments), row_table("health", [HealthRow(*[0] * 16)])):
        pq.write_table(table, pa.BufferOutputStream(), compression="zstd")
