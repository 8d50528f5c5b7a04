"""Rows as Arrow tables, and tables as Parquet parts.

Rule: no thread, no greenlet and no buffer here: what is given is built and written at once. A part is written under
another name and renamed when whole, so what is named `part-*` is readable, whatever kills the process.
"""

from __future__ import annotations

import contextlib
import sys
from importlib.abc import MetaPathFinder
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from tailgauge.endpoints.decoder import Chunks
from tailgauge.folder import MARK
from tailgauge.records import CHUNK_KINDS, SCHEMA_VERSION, columns

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
