"""Rows to Parquet parts, without ever holding up the hub.

Rule: greenlets append; building and writing a part happens on an OS thread of the hub's pool. A part is written under
another name and renamed when whole, so what is named `part-*` is readable, whatever kills the process. A failure to
write is fatal for the run and is raised at the next `check`: rows are never dropped in silence.
"""

from __future__ import annotations

import contextlib
import sys
from array import array
from importlib.abc import MetaPathFinder
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from gevent import get_hub

from tailgauge.endpoints.decoder import Chunks
from tailgauge.folder import MARK, RunFolder
from tailgauge.records import CHUNK_KINDS, SCHEMA_VERSION, AttemptRow, HealthRow, RequestRow, columns

MAX_WAITING_ROWS = 5_000_000
_ARROW = {
    "int16": pa.int16(), "int32": pa.int32(), "int64": pa.int64(), "float64": pa.float64(), "bool": pa.bool_(),
    "string": pa.string(), "list<int64>": pa.list_(pa.int64()),
}  # fmt: skip

Segment = tuple[int, int, int, int, Chunks]  # request, leg, attempt, index of the first chunk, chunks


class _NoPandas(MetaPathFinder):
    """Makes `import pandas` fail."""

    def find_spec(self, fullname: str, path: Any, target: Any = None) -> None:  # noqa: ARG002 - the protocol's names
        """Refuse pandas, know nothing of the rest."""
        if fullname == "pandas":
            raise ModuleNotFoundError("pandas is not for workers")


def _settle_pyarrow() -> None:
    """Let pyarrow look for pandas once, in vain; it asks at its first array and remembers the answer.

    Found, it would load 60,000 objects and hold the worker up for 0.1 s in the middle of a run. (It forgets where it
    has to guess a type: every array here names its own.)
    """
    if "pandas" not in sys.modules:
        finder = _NoPandas()
        sys.meta_path.insert(0, finder)
        pa.array(np.zeros(1))
        sys.meta_path.remove(finder)


_settle_pyarrow()


class RecorderError(Exception):
    """Rows could not be written: disk full, folder gone, or writing slower than recording."""


def schema(table: str, **metadata: str) -> pa.Schema:
    """Arrow schema of a table, with the schema version in its metadata."""
    named = {f"{MARK}.schema_version": str(SCHEMA_VERSION)} | {f"{MARK}.{k}": v for k, v in metadata.items()}
    return pa.schema([pa.field(c.name, _ARROW[c.kind], c.nullable) for c in columns(table)], named)


def encoding(kept: pa.Schema) -> dict[str, Any]:
    """How every part is stored: zstd, deltas for integers, dictionaries for text."""
    wide = [f.name for f in kept if pa.types.is_integer(f.type) and f.type != pa.int16()]
    text = [f.name for f in kept if pa.types.is_string(f.type)]
    deltas = dict.fromkeys(wide, "DELTA_BINARY_PACKED")
    return {"compression": "zstd", "use_dictionary": text, "column_encoding": deltas}


def write_part(path: Path, table: pa.Table) -> None:
    """One part, renamed into place when whole."""
    temporary = path.with_suffix(".tmp")
    try:
        pq.write_table(table, temporary, **encoding(table.schema))
        temporary.rename(path)
    except OSError:
        with contextlib.suppress(OSError):
            temporary.unlink()
        raise


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
        try:
            for name, items in rows.items():
                if items:
                    self._write_table(name, row_table(name, items))
            if segments:
                self._write_table("chunks", chunk_table(segments))
        except Exception as error:  # noqa: BLE001 - whatever it is, the rows are not on disk, and the run must know
            self._error = RecorderError(f"a part could not be written under {self._folder.path}: {error}")

    def _write_table(self, name: str, table: pa.Table) -> None:
        write_part(self._folder.part(name, self._worker, self._numbers[name]), table)
        self._numbers[name] += 1
        self.written[name] += table.num_rows

    def _compact(self) -> None:
        for name, count in self._numbers.items():
            parts = [self._folder.part(name, self._worker, n) for n in range(count)]
            try:
                if len(parts) > 1:
                    compact(name, parts, self._folder.part(name, self._worker, "all"))
            except Exception as error:  # noqa: BLE001 - as above, but
                # the parts are all still there and readable: nothing is lost, the folder is only less tidy
                self._error = RecorderError(f"{name}: the parts could not be compacted: {error}")


def _rehearse() -> None:
    kind, numbers, few = bytearray(1), array("q", [1]), array("i", [1])
    chunks = Chunks(kind, numbers, numbers, numbers, few, few)
    for table in (chunk_table([(0, 0, 0, 0, chunks)]), row_table("health", [HealthRow(*[0] * 16)])):
        pq.write_table(table, pa.BufferOutputStream(), compression="zstd")


def compact(table: str, parts: list[Path], whole: Path) -> None:
    """Fold parts into `whole`; its metadata names them, so that a kill before they are removed doubles nothing."""
    target = schema(table, replaces=",".join(p.name for p in parts))
    temporary = whole.with_suffix(".tmp")
    with pq.ParquetWriter(temporary, target, **encoding(target)) as writer:
        for part in parts:
            for batch in pq.ParquetFile(part).iter_batches(batch_size=1_000_000):
                writer.write_batch(pa.RecordBatch.from_arrays(batch.columns, schema=target))
    temporary.rename(whole)
    for part in parts:
        part.unlink()


def row_table(name: str, rows: list[Any]) -> pa.Table:
    """Arrow table of row objects."""
    target = schema(name)
    cells = [pa.array([getattr(row, f.name) for row in rows], f.type) for f in target]
    return pa.Table.from_arrays(cells, schema=target)


def chunk_table(segments: list[Segment]) -> pa.Table:
    """Arrow table of chunk segments, without an object a chunk."""
    sizes = [len(segment[4]) for segment in segments]

    def spread(position: int, kind: type[np.generic]) -> Any:
        return np.repeat(np.array([segment[position] for segment in segments], dtype=kind), sizes)

    def joined(name: str, kind: type[np.generic]) -> Any:
        return np.concatenate([np.frombuffer(getattr(segment[4], name), dtype=kind) for segment in segments])

    low = joined("low", np.int64)
    index = np.concatenate(
        [np.arange(first, first + size) for (*_, first, _), size in zip(segments, sizes, strict=True)]
    )
    kinds = pa.array(CHUNK_KINDS, pa.string()).take(pa.array(joined("kind", np.uint8)))
    cells = {
        "request_id": spread(0, np.int64),
        "leg": spread(1, np.int16),
        "attempt": spread(2, np.int16),
        "chunk_index": index.astype(np.int32),
        "kind": kinds,
        "arrived_at_ns": joined("arrived", np.int64),
        "low_at_ns": pa.array(low, mask=low == 0),
        "read_at_ns": joined("read_at", np.int64),
        "read_index": joined("read_index", np.int32),
        "chars": joined("chars", np.int32),
    }
    target = schema("chunks")
    return pa.Table.from_arrays([pa.array(cells[f.name], f.type) for f in target], schema=target)
