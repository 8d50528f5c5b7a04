"""Rows as Arrow tables, and tables as Parquet parts.

No threads, greenlets or buffers here. A part is written under another name and renamed when complete, so any `part-*` is
readable, however the process ends.

Chunks are stored by attempt, their times in byte streams: one outlier would widen 32 packed deltas. They are brought into
that order at compaction; during load parts are written in the order of arrival.
"""

from __future__ import annotations

import contextlib
import functools
import json
import os
import sys
from array import array
from collections.abc import Iterator, Sequence
from importlib.abc import MetaPathFinder
from operator import attrgetter
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from tailgauge.rows.run_folder import MARK
from tailgauge.rows.schema import (
    CHUNK_KINDS,
    ORIGIN,
    RECORDED,
    SCHEMA_VERSION,
    Chunks,
    Origin,
    columns,
)

_TYPES = {
    "int16": pa.int16(),
    "int32": pa.int32(),
    "int64": pa.int64(),
    "float64": pa.float64(),
    "bool": pa.bool_(),
    "string": pa.string(),
    "list<int64>": pa.list_(pa.int64()),
}

GROUP = 200_000  # rows that are sorted and stored together
LARGEST = 256 * 2**20  # bytes of a transferred part
PIECE = 128 * 1024  # bytes of it in one message
MAX_ROWS = 10_000_000  # of such a part
_KEY = ("request_id", "leg", "attempt", "chunk_index")
_STREAMS = ("arrived_at_ns", "lag_ns")
_FOOTER = 2**20  # bytes of its footer, at most; 70 columns and one row group have 12 kB
_UNPACKED = 2**30  # uncompressed bytes of one of its row groups, at most


class Segments:
    """Chunks of many calls, without an object for each that the garbage collector would look at.

    `keys` of a segment: request, leg, attempt, index of its first chunk, number of chunks; `chunks`: those of all.
    """

    def __init__(self) -> None:
        self.keys = array("q")
        self.chunks = Chunks()

    def __len__(self) -> int:
        return len(self.chunks)

    def add(
        self, request_id: int, leg: int, attempt: int, chunk_index: int, chunks: Chunks
    ) -> None:
        """Append chunks of a call; `chunk_index`: the number of the first of them."""
        columns = self.chunks
        columns.kind += chunks.kind
        columns.arrived += chunks.arrived
        columns.low += chunks.low
        columns.read_at += chunks.read_at
        columns.read_index += chunks.read_index
        columns.chars += chunks.chars
        self.keys.extend((request_id, leg, attempt, chunk_index, len(chunks)))


class _NoPandas(MetaPathFinder):
    """Makes `import pandas` fail."""

    def find_spec(self, fullname: str, path: Any, target: Any = None) -> None:  # noqa: ARG002 - the protocol's names
        """Refuse pandas, know nothing of the rest."""
        if fullname == "pandas":
            raise ModuleNotFoundError("pandas is not loaded into processes that measure time")


def hide_pandas() -> None:
    """Let pyarrow look for pandas once, in vain: it does so at its first array and remembers the result.

    Otherwise it would import 60,000 objects and block the process for 0.1 s in the middle of a run. (It looks again if it
    has to guess a type: every array here names its type.)
    """
    if "pandas" not in sys.modules:
        finder = _NoPandas()
        sys.meta_path.insert(0, finder)
        pa.array(np.zeros(1))
        sys.meta_path.remove(finder)


hide_pandas()


def schema(table: str, **metadata: str) -> pa.Schema:
    """Arrow schema of a table, with the schema version in its metadata."""
    facts = {f"{MARK}.schema_version": str(SCHEMA_VERSION)}
    for key, value in metadata.items():
        facts[f"{MARK}.{key}"] = value
    facts["pandas"] = _for_pandas(table)
    fields = []
    for column in columns(table):
        fields.append(pa.field(column.name, _TYPES[column.kind], column.nullable))
    return pa.schema(fields, facts)


@functools.cache
def _for_pandas(table: str) -> str:
    """Return what pandas reads beside a schema: integers stay integers where some are null, instead of becoming floats."""
    descriptions = []
    for column in columns(table):
        if column.nullable and column.kind.startswith("int"):
            description = {
                "name": column.name,
                "field_name": column.name,
                "pandas_type": column.kind,
                "numpy_type": column.kind.capitalize(),
                "metadata": None,
            }
            descriptions.append(description)
    facts = {
        "index_columns": [],
        "column_indexes": [],
        "columns": descriptions,
        "pandas_version": "2.0.0",
    }
    return json.dumps(facts)


def encoding(schema: pa.Schema) -> dict[str, Any]:
    """Encoding of parts: checksums, zstd, byte streams for chunk times, deltas for other integers.

    Text has dictionaries, and so has the origin, which is one value in a part: it takes no space.
    """
    dictionaries = []
    encodings = {}
    for field in schema:
        if pa.types.is_string(field.type) or field.name in ORIGIN:
            dictionaries.append(field.name)
        elif field.name in _STREAMS:
            encodings[field.name] = "BYTE_STREAM_SPLIT"
        elif pa.types.is_integer(field.type) and field.type != pa.int16():
            encodings[field.name] = "DELTA_BINARY_PACKED"
    return {
        "compression": "zstd",
        "write_page_checksum": True,
        "use_dictionary": dictionaries,
        "column_encoding": encodings,
    }


def write_part(path: Path, table: pa.Table) -> None:
    """Write one part, renamed into place when complete."""
    temporary = path.with_suffix(".tmp")
    with _removed_on_failure(temporary):
        pq.write_table(table, temporary, row_group_size=GROUP, **encoding(table.schema))
        temporary.rename(path)


@contextlib.contextmanager
def _removed_on_failure(temporary: Path) -> Iterator[None]:
    """Remove an incomplete file, which takes space on a full disk."""
    try:
        yield
    except Exception:
        with contextlib.suppress(OSError):
            temporary.unlink()
        raise


def compact(table: str, parts: list[Path], whole: Path) -> None:
    """Fold parts into `whole`, in bounded memory, and remove them.

    The metadata of `whole` names the parts, so that a kill before their removal duplicates no row. Raises
    OSError if a part could not be removed; its rows are in `whole`.
    """
    target = schema(table, replaces=",".join(p.name for p in parts))
    temporary = whole.with_suffix(".tmp")
    with _removed_on_failure(temporary):
        with pq.ParquetWriter(temporary, target, **encoding(target)) as writer:
            for group in _groups(parts, target):
                rows = pa.concat_tables(group).combine_chunks()
                group.clear()  # frees its memory: `_groups` holds the list too
                pa.default_memory_pool().release_unused()
                if table == "chunks":
                    rows = by_attempt(rows)
                writer.write_table(rows, row_group_size=rows.num_rows)
        # The parts are removed next: after a power failure their rows must be here.
        with temporary.open("rb") as file:
            os.fsync(file.fileno())
        temporary.rename(whole)
    present = [part for part in parts if not _try_to_remove(part)]
    if present:
        names = ", ".join(part.name for part in present)
        raise OSError(f"{names} could not be removed: the same rows are in {whole.name}")


def _try_to_remove(part: Path) -> bool:
    try:
        part.unlink()
    except OSError:
        return False
    return True


def checked_rows(path: Path, table: str) -> int:
    """Return the number of rows of a transferred part, by its footer; raise ValueError unless it is a part as written here.

    Pages are not read: the bounds keep what they may unpack to small enough for memory.
    """
    if not has_plain_footer(path):
        raise ValueError("it is not a Parquet file, or has an enormous footer")
    try:
        footer = pq.read_metadata(path)
        schema = footer.schema.to_arrow_schema()
        metadata = footer.metadata or {}
        groups = [footer.row_group(number) for number in range(footer.num_row_groups)]
    except Exception as error:
        raise ValueError("its footer cannot be read") from error
    if metadata.get(f"{MARK}.schema_version".encode()) != str(SCHEMA_VERSION).encode():
        raise ValueError(f"its schema version is not {SCHEMA_VERSION}")
    if not schema.equals(_expected(table)):
        raise ValueError(f"its columns are not those of {table}")
    rows = sum(group.num_rows for group in groups)
    if rows != footer.num_rows or not 1 <= rows <= MAX_ROWS:
        raise ValueError("no rows, too many rows, or a contradictory footer")
    for group in groups:
        if not 0 < group.num_rows <= GROUP or not 0 < group.total_byte_size <= _UNPACKED:
            raise ValueError("it has an impossible row group")
    return int(rows)


def has_plain_footer(path: Path, largest: int = _FOOTER) -> bool:
    """Return whether a file ends like Parquet, and its footer is small enough to be read."""
    with path.open("rb") as file:
        if file.seek(0, 2) < 12:
            return False
        file.seek(-8, 2)
        length = int.from_bytes(file.read(4), "little")
        magic = file.read(4)
    return magic == b"PAR1" and length <= largest


@functools.cache
def _expected(table: str) -> pa.Schema:
    return schema(table)


def _groups(parts: list[Path], target: pa.Schema) -> Iterator[list[pa.Table]]:
    """Rows of all parts, in their order, about GROUP at a time."""
    tables: list[pa.Table] = []
    for part in parts:
        with pq.ParquetFile(part, page_checksum_verification=True) as file:
            for number in range(file.num_row_groups):
                tables.append(file.read_row_group(number, use_threads=False).cast(target))
                if sum(rows.num_rows for rows in tables) >= GROUP:
                    yield tables
                    tables = []
    if tables:
        yield tables


def by_attempt(rows: pa.Table) -> pa.Table:
    """Chunks sorted by attempt and number. Runs of rows are moved, not single rows."""
    request_id, leg, attempt, chunk_index = keys = [_numbers(rows[name]) for name in _KEY]
    begins = np.ones(rows.num_rows, np.bool_)
    begins[1:] = np.diff(chunk_index) != 1
    for key in (request_id, leg, attempt):
        begins[1:] |= key[1:] != key[:-1]
    begin = np.flatnonzero(begins)
    size = np.diff(begin, append=rows.num_rows)
    order = np.lexsort([key[begin] for key in reversed(keys)])
    place = _places(begin[order], size[order])
    return rows.take(pa.array(place, pa.int64()))


def _places(begin: npt.NDArray[Any], size: npt.NDArray[Any]) -> Any:
    """Return the numbers of the rows in runs that begin there and are so long."""
    return np.repeat(begin - (np.cumsum(size) - size), size) + np.arange(size.sum())


def _numbers(column: pa.ChunkedArray) -> npt.NDArray[Any]:
    """Return a column without nulls as numpy, from its buffer: pyarrow's conversion would load pandas."""
    whole = column.combine_chunks()
    kind = np.dtype(str(whole.type))
    if len(whole) == 0:
        return np.empty(0, kind)
    values: npt.NDArray[Any] = np.frombuffer(whole.buffers()[1], kind)
    return values[whole.offset : whole.offset + len(whole)]


def row_table(name: str, rows: list[Any], origin: Origin | None = None) -> pa.Table:
    """Arrow table of row objects, with their origin where workers record them."""
    target = schema(name)
    end_columns = []
    if name in RECORDED:
        end_columns = _origin_columns(origin or Origin(), len(rows))
    names = target.names[: len(target) - len(end_columns)]
    # One tuple of values a column; without rows zip gives no tuple at all.
    values = list(zip(*map(attrgetter(*names), rows), strict=True)) or [()] * len(names)
    arrays = list(map(_column, values, target.types[: len(names)]))
    return pa.Table.from_arrays([*arrays, *end_columns], schema=target)


def _origin_columns(origin: Origin, rows: int) -> list[pa.Array]:
    """Return the columns of an origin, the same value in each row."""
    worker = pa.scalar(origin.worker, pa.int32())
    wall_offset_ns = pa.scalar(origin.wall_offset_ns, pa.int64())
    return [pa.repeat(worker, rows), pa.repeat(wall_offset_ns, rows)]


def _column(values: Sequence[Any], kind: pa.DataType) -> pa.Array:
    """Return an array; lone surrogates, which a target's JSON may contain and no file can hold, are kept as escapes."""
    try:
        return pa.array(values, kind)
    except UnicodeEncodeError:
        return pa.array(list(map(_escaped, values)), kind)


def _escaped(text: str | None) -> str | None:
    if text is None:
        return None
    return text.encode("utf-8", "backslashreplace").decode()


def chunk_table(segments: Segments, origin: Origin | None = None) -> pa.Table:
    """Return the Arrow table of chunk segments, sorted by request, leg, attempt and chunk, without an object per chunk.

    The chunks of one segment stay together: segments are sorted, and rows moved with them. `origin`: of all
    rows.
    """
    keys = np.frombuffer(segments.keys, np.int64).reshape(-1, 5)
    sizes = keys[:, 4]
    begins = np.cumsum(sizes) - sizes
    # By request, leg, attempt and first chunk: lexsort takes the last key first.
    order = np.lexsort(keys[:, 3::-1].T)
    request_id, leg, attempt, first_index, size = keys[order].T
    begin = begins[order]
    # The number of the chunk, in the order of arrival, that becomes each row.
    place = _places(begin, size)

    def column(values: array[int] | bytearray, kind: type[np.generic]) -> Any:
        return np.frombuffer(values, kind)[place]

    chunks = segments.chunks
    low = column(chunks.low, np.int64)
    arrived = column(chunks.arrived, np.int64)
    exact = low == 0  # 0 marks an arrival whose time is exact
    codes = pa.array(column(chunks.kind, np.uint8), pa.uint8())
    kinds = pa.array(CHUNK_KINDS, pa.string()).take(codes)
    cells = {
        "request_id": np.repeat(request_id, size),
        "leg": np.repeat(leg, size).astype(np.int16),
        "attempt": np.repeat(attempt, size).astype(np.int16),
        "chunk_index": (place + np.repeat(first_index - begin, size)).astype(np.int32),
        "kind": kinds,
        "arrived_at_ns": arrived,
        "low_at_ns": pa.array(low, pa.int64(), mask=exact),
        "lag_ns": column(chunks.read_at, np.int64) - arrived,
        "read_index": column(chunks.read_index, np.int32),
        "chars": column(chunks.chars, np.int32),
        "exact": exact,
    }
    origin_columns = _origin_columns(origin or Origin(), len(place))
    cells |= dict(zip(ORIGIN, origin_columns, strict=True))
    target = schema("chunks")
    return pa.Table.from_arrays([cells[name] for name in target.names], schema=target)
