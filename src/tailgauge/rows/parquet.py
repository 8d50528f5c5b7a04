"""Rows as Arrow tables, and tables as Parquet parts.

Rule: no thread, no greenlet and no buffer here: what is given is built and written at once. A part is written under
another name and renamed when whole, so what is named `part-*` is readable, whatever kills the process.

Chunks come by the million, and nearly all that they take is their two times. So rows of one attempt stand together, and
these two are kept as what is new in them: the gap from the chunk before, and our own lag, once a read. Both are stored as
streams of bytes: packed deltas would be widened, 32 at a time, by a single one that is far off. Parts wait for that until
they are compacted: while load is on, the cheapest form is the best.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Iterator
from operator import itemgetter
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from tailgauge.rows.arrow import settle
from tailgauge.rows.chunk_encoding import KEY, brief, goes_on, numbers, plain
from tailgauge.rows.chunks import Chunks
from tailgauge.rows.run_folder import MARK
from tailgauge.rows.schema import CHUNK_KINDS, SCHEMA_VERSION, columns

_TYPES = {
    "int16": pa.int16(), "int32": pa.int32(), "int64": pa.int64(), "float64": pa.float64(), "bool": pa.bool_(),
    "string": pa.string(), "list<int64>": pa.list_(pa.int64()),
}  # fmt: skip

GROUP = 200_000  # rows that are put in order and stored together
LARGEST = 256 * 2**20  # bytes of a transferred part
PIECE = 128 * 1024  # bytes of it in one message
MOST_ROWS = 10_000_000  # of such a part
_FOOTER = 2**20  # bytes of its footer, at most: one of 70 columns and one row group has 12 kB
_UNPACKED = 2**30  # bytes that one of its row groups may say that it has unpacked

Segment = tuple[int, int, int, int, Chunks]  # request, leg, attempt, index of the first chunk, chunks


settle()


def schema(table: str, **metadata: str) -> pa.Schema:
    """Arrow schema of a table, with the schema version in its metadata."""
    named = {f"{MARK}.schema_version": str(SCHEMA_VERSION)} | {f"{MARK}.{k}": v for k, v in metadata.items()}
    return pa.schema([pa.field(c.name, _TYPES[c.kind], c.nullable) for c in columns(table)], named)


def encoding(kept: pa.Schema) -> dict[str, Any]:
    """How every part is stored: zstd, dictionaries for text, deltas for integers but those that are differences already."""
    wide = [f.name for f in kept if pa.types.is_integer(f.type) and f.type != pa.int16()]
    text = [f.name for f in kept if pa.types.is_string(f.type)]
    deltas = dict.fromkeys(wide, "DELTA_BINARY_PACKED")
    streams = {name: "BYTE_STREAM_SPLIT" for name in wide if name in ("gap_ns", "lag_ns")}
    return {"compression": "zstd", "use_dictionary": text, "column_encoding": deltas | streams}


def write_part(path: Path, table: pa.Table) -> None:
    """One part, renamed into place when whole."""
    temporary = path.with_suffix(".tmp")
    with _removed_on_failure(temporary):
        pq.write_table(table, temporary, row_group_size=GROUP, **encoding(table.schema))
        temporary.rename(path)


@contextlib.contextmanager
def _removed_on_failure(temporary: Path) -> Iterator[None]:
    """Half a file takes room on a full disk, and says nothing that the error does not say."""
    try:
        yield
    except Exception:
        with contextlib.suppress(OSError):
            temporary.unlink()
        raise


def compact(table: str, parts: list[Path], whole: Path) -> None:
    """Fold parts into `whole`; its metadata names them, so that a kill before they are removed doubles nothing.

    A stretch of rows at a time, in memory that does not grow with the run.
    """
    target = schema(table, replaces=",".join(p.name for p in parts))
    temporary = whole.with_suffix(".tmp")
    with _removed_on_failure(temporary):
        with pq.ParquetWriter(temporary, target, **encoding(target)) as writer:
            for rows in _groups(parts, target):
                writer.write_table(
                    by_attempt(rows) if table == "chunks" else rows, row_group_size=rows.num_rows
                )
        temporary.rename(whole)
    for part in parts:
        part.unlink()


def checked_rows(path: Path, table: str) -> int:
    """Rows of a part that comes from elsewhere, by its footer. ValueError where it is not a part as written here.

    The pages are not read: what they hold is told by those who read them.
    """
    if not _has_plain_footer(path):
        raise ValueError("it is not a Parquet file, or has an enormous footer")
    try:
        footer = pq.read_metadata(path)
        kept, told = footer.schema.to_arrow_schema(), footer.metadata or {}
        groups = [footer.row_group(number) for number in range(footer.num_row_groups)]
        rows, sizes = [group.num_rows for group in groups], [group.total_byte_size for group in groups]
    except Exception as error:
        raise ValueError("its footer cannot be read") from error
    if told.get(f"{MARK}.schema_version".encode()) != str(SCHEMA_VERSION).encode():
        raise ValueError(f"its schema version is not {SCHEMA_VERSION}")
    if not kept.equals(_expected(table)):
        raise ValueError(f"its columns are not those of {table}")
    if sum(rows) != footer.num_rows or not 1 <= footer.num_rows <= MOST_ROWS:
        raise ValueError("it has no rows, or too many, or its footer contradicts itself")
    if any(not 0 < count <= GROUP for count in rows) or any(not 0 < size <= _UNPACKED for size in sizes):
        raise ValueError("it has a row group as is never written")
    return int(footer.num_rows)


def _has_plain_footer(path: Path) -> bool:
    """Whether a file ends like Parquet, and its footer is small enough to be read."""
    with path.open("rb") as file:
        if file.seek(0, 2) < 12:
            return False
        file.seek(-8, 2)
        length, magic = int.from_bytes(file.read(4), "little"), file.read(4)
    return magic == b"PAR1" and length <= _FOOTER


@functools.cache
def _expected(table: str) -> pa.Schema:
    return schema(table)


def _groups(parts: list[Path], target: pa.Schema) -> Iterator[pa.Table]:
    """Rows of all parts, in their order, about GROUP at a time."""
    held: list[pa.Table] = []
    for part in parts:
        with pq.ParquetFile(part) as file:
            for number in range(file.num_row_groups):
                group = file.read_row_group(number, use_threads=False)
                held.append(pa.Table.from_arrays(group.columns, schema=target))
                if sum(rows.num_rows for rows in held) >= GROUP:
                    yield pa.concat_tables(held)
                    held = []
    if held:
        yield pa.concat_tables(held)


def by_attempt(rows: pa.Table) -> pa.Table:
    """Chunks as they are stored, those of an attempt together and by number. Runs of rows are moved, not single ones."""
    keys = [numbers(rows[name]) for name in KEY]
    begin = np.flatnonzero(~goes_on(*keys))
    size = np.diff(begin, append=rows.num_rows)
    order = np.lexsort([key[begin] for key in reversed(keys)])
    begin, size = begin[order], size[order]
    place = np.repeat(begin - (np.cumsum(size) - size), size) + np.arange(rows.num_rows)
    return brief(plain(rows).take(pa.array(place, pa.int64())), schema("chunks"), GROUP)


def row_table(name: str, rows: list[Any]) -> pa.Table:
    """Arrow table of row objects."""
    target = schema(name)
    cells = [_column([getattr(row, f.name) for row in rows], f.type) for f in target]
    return pa.Table.from_arrays(cells, schema=target)


def _column(values: list[Any], kind: pa.DataType) -> pa.Array:
    """An array; half a character, which a target's JSON can escape and no file can hold, stands there as its escape."""
    try:
        return pa.array(values, kind)
    except UnicodeEncodeError:
        return pa.array([v and v.encode("utf-8", "backslashreplace").decode() for v in values], kind)


def chunk_table(segments: list[Segment]) -> pa.Table:
    """Arrow table of chunk segments, those of an attempt together, every time in full; without an object a chunk."""
    segments = sorted(segments, key=itemgetter(0, 1, 2, 3))
    sizes = [len(segment[4]) for segment in segments]

    def spread(position: int, kind: type[np.generic]) -> Any:
        return np.repeat(np.array([segment[position] for segment in segments], dtype=kind), sizes)

    def joined(name: str, kind: type[np.generic]) -> Any:
        return np.frombuffer(b"".join([getattr(segment[4], name) for segment in segments]), dtype=kind)

    low, arrived = joined("low", np.int64), joined("arrived", np.int64)
    exact = low == 0
    rows = np.arange(sum(sizes)) - np.repeat(np.cumsum(sizes) - sizes, sizes)
    kinds = pa.array(CHUNK_KINDS, pa.string()).take(pa.array(joined("kind", np.uint8), pa.uint8()))
    cells = {
        "request_id": pa.array(spread(0, np.int64), pa.int64()),
        "leg": pa.array(spread(1, np.int16), pa.int16()),
        "attempt": pa.array(spread(2, np.int16), pa.int16()),
        "chunk_index": pa.array((spread(3, np.int64) + rows).astype(np.int32), pa.int32()),
        "kind": kinds,
        "arrived_at_ns": pa.array(arrived, pa.int64()),
        "low_at_ns": pa.array(low, pa.int64(), mask=exact),
        "lag_ns": pa.array(joined("read_at", np.int64) - arrived, pa.int64()),
        "read_index": pa.array(joined("read_index", np.int32), pa.int32()),
        "chars": pa.array(joined("chars", np.int32), pa.int32()),
        "exact": pa.array(exact, pa.bool_()),
        "gap_ns": pa.nulls(len(low), pa.int64()),
    }
    target = schema("chunks")
    return pa.Table.from_arrays([cells[f.name] for f in target], schema=target)
