"""Parquet parts of a run folder: which count, and how one is read.

This module knows file names, footers and column types, not what the columns mean. A part or row group that cannot be read,
or whose pages do not match their checksums, is a problem and left out; only a newer schema version is raised.

A compacted file names in its footer (`tailgauge.replaces`) the parts that it contains: if a crash left them behind,
they are not read a second time. A part name counts once, in whichever of several folders it is found first.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from tailgauge.errors import MachineError
from tailgauge.machine import OF_THE_PROCESS, shortage
from tailgauge.rows.parquet import has_plain_footer, schema
from tailgauge.rows.text_file import refusal
from tailgauge_analysis.reading.run_record import (
    DAMAGED,
    NOTE,
    UNFINISHED,
    Problem,
    check_version,
    files_in,
)

_NAME = re.compile(r"part-(\d{1,6})-(\d{1,9}|all)\.parquet")
_UNREADABLE = (OSError, ValueError, KeyError, pa.ArrowException)
_MOST_ROWS = 1 << 20  # of a row group, which is read at once; the recorder writes 200,000
_PORTION = 50_000  # rows of it that are decoded at once
_UNPACKED = 512 << 20  # bytes of one of its columns; a recorded text has 2,000 characters at most
_NUMBER = 8  # bytes of a decoded value
_FOOTER = 16 << 20  # bytes
_LARGEST = 1e15  # of a number with a fraction; a larger one, or NaN, was not measured
_WHOLE = 1 << 62  # of a whole number, to which two offsets of clocks may be added
_VERSION = b"tailgauge.schema_version"
_REPLACES = b"tailgauge.replaces"
WALL_OFFSET = "wall_offset_ns"
_ADDED = {WALL_OFFSET, "slot_wait_ns", "valid_json"}  # columns that parts of earlier versions lack


@dataclass(frozen=True, slots=True)
class Part:
    """One readable Parquet file of one worker; `folder`: in which of the given ones."""

    table: str
    folder: int
    worker: int
    path: Path
    replaces: frozenset[str]
    rows: int


def listed(folders: Sequence[Path], table: str, problems: list[Problem]) -> list[Part]:
    """Return the parts of a table that count, in order of worker, folder and sequence; all that is wrong goes into `problems`.

    A part counts from the first folder in which it can be read, and not at all if a compacted file names it as replaced.
    """
    parts: dict[str, Part] = {}
    bad: dict[str, Problem] = {}
    for number, folder in enumerate(folders):
        for path in files_in(folder / table, problems):
            if path.name.endswith(".tmp"):
                problems.append(
                    Problem(UNFINISHED, f"{table}/{path.name} was never finished and is ignored")
                )
            elif not _NAME.fullmatch(path.name):
                problems.append(Problem(NOTE, f"{table}/{path.name} is not a part and is ignored"))
            elif path.name not in parts:
                part = _opened(table, number, path)
                if isinstance(part, Part):
                    parts[path.name] = part
                else:
                    bad[path.name] = part
    for name, problem in bad.items():
        if name in parts:
            text = f"{table}/{name} cannot be read in one folder; its copy in another one is"
            problems.append(Problem(NOTE, text))
        else:
            problems.append(problem)
    replaced: set[str] = set()
    for part in parts.values():
        replaced |= part.replaces
    return sorted((part for name, part in parts.items() if name not in replaced), key=_order)


def _order(part: Part) -> tuple[int, int, int]:
    """Return what parts are sorted by; `part-3-all`, into which others were folded, comes first."""
    text = part.path.stem.rpartition("-")[2]
    sequence = -1 if text == "all" else int(text)
    return part.worker, part.folder, sequence


def _opened(table: str, folder: int, path: Path) -> Part | Problem:
    """Return the part; a problem instead where its footer cannot be read, or names a row group that is too large to read.

    `folder`: the number of the given folder that it is in. A newer schema version raises RunDataError.
    """
    match = _NAME.fullmatch(path.name)
    assert match is not None
    reason = refusal(path)
    if reason:
        return _left_out(table, path, f"is left out: {reason}")
    try:
        if not has_plain_footer(path, _FOOTER):
            raise pa.ArrowInvalid(
                f"it is no Parquet file, or its footer has more than {_FOOTER >> 20} MiB"
            )
        footer = pq.read_metadata(path)
        metadata = footer.metadata or {}
        check_version(path, int(metadata.get(_VERSION, b"0")))
        rows = [footer.row_group(number).num_rows for number in range(footer.num_row_groups)]
        if max(rows, default=0) > _MOST_ROWS:
            raise pa.ArrowInvalid(f"a row group has more than {_MOST_ROWS:,} rows")
    except _UNREADABLE as error:
        return _left_out(table, path, f"cannot be read and is left out: {_reason(error)}")
    names = metadata.get(_REPLACES, b"").decode("utf-8", "replace").split(",")
    replaces = frozenset(name.strip() for name in names) - {"", path.name}
    return Part(
        table=table,
        folder=folder,
        worker=int(match[1]),
        path=path,
        replaces=replaces,
        rows=sum(rows),
    )


def read(part: Part, wanted: Sequence[str], problems: list[Problem]) -> pa.Table:
    """Columns `wanted` of a part with the record's types, without the row groups that cannot be read."""
    groups = list(pieces(part, wanted, problems))
    if not groups:
        return empty(part.table, wanted)
    return pa.concat_tables(groups)


def pieces(
    part: Part, wanted: Sequence[str], problems: list[Problem], shared: Collection[str] = ()
) -> Iterator[pa.Table]:
    """Yield the columns `wanted` of a part, one row group at a time, with the record's types.

    A row group that cannot be read is left out; at the end one problem tells how many rows are missing. Columns `shared` are
    dictionaries, in which a text that repeats is there once.
    """
    lost = 0
    reason = ""
    columns = schema(part.table).empty_table().select(list(wanted)).schema
    # Texts are read as dictionaries: however often one repeats, it is unpacked once.
    texts = {column.name for column in columns if pa.types.is_string(column.type)}
    try:
        footer = pq.read_metadata(part.path)
        paths = [footer.schema.column(number).path for number in range(len(footer.schema))]
        with pq.ParquetFile(
            part.path,
            metadata=footer,
            page_checksum_verification=True,
            read_dictionary=texts.intersection(paths),
        ) as file:
            names = file.schema_arrow.names
            _check_columns(columns.names, names)
            for number in range(file.num_row_groups):
                try:
                    _check_sizes(file.metadata.row_group(number), columns.names)
                    rows = _read_group(file, number, columns, shared)
                except _UNREADABLE as error:
                    lost += file.metadata.row_group(number).num_rows
                    reason = reason or _reason(error)
                else:
                    yield rows
    except _UNREADABLE as error:
        lost = part.rows
        reason = _reason(error)
    if reason:
        text = "cannot be read and is left out"
        if lost < part.rows:
            text = f"{lost:,} of its {part.rows:,} rows cannot be read and are left out"
        problems.append(_left_out(part.table, part.path, f"{text}: {reason}"))


def _check_columns(wanted: list[str], names: list[str]) -> None:
    for name in wanted:
        copies = names.count(name)
        if copies > 1:
            raise pa.ArrowInvalid(f"column {name} is there more than once")
        if copies == 0 and name not in _ADDED:
            raise pa.ArrowInvalid(f"column {name} is missing")


def _check_sizes(group: pq.RowGroupMetaData, wanted: Collection[str]) -> None:
    """Refuse what a column unpacks to, as the footer says: a page of gigabytes is decoded as a whole."""
    for number in range(group.num_columns):
        column = group.column(number)
        name = column.path_in_schema.partition(".")[0]
        size = max(column.total_uncompressed_size, column.num_values * _NUMBER)
        if name in wanted and not 0 <= size <= _UNPACKED:
            raise pa.ArrowInvalid(_too_large(name))


def _too_large(name: str) -> str:
    return f"column {name} unpacks to more than {_UNPACKED >> 20} MiB in a row group"


def _read_group(
    file: pq.ParquetFile, number: int, columns: pa.Schema, shared: Collection[str]
) -> pa.Table:
    """Return the columns of a row group with the record's types; ArrowInvalid where its rows are not as recorded.

    A column that older files lack is null. A number with a fraction that is NaN or far too large becomes null, a whole number
    beyond what is recorded is an error.
    """
    names = [name for name in columns.names if name in file.schema_arrow.names]
    rows = _bounded_rows(file, number, names, shared)
    expected = file.metadata.row_group(number).num_rows
    if rows.num_rows != expected:
        raise pa.ArrowInvalid(f"it has {rows.num_rows:,} rows where its footer says {expected:,}")
    arrays = {}
    for column in columns:
        if column.name not in names:
            arrays[column.name] = pa.nulls(rows.num_rows, column.type)
        elif column.name in shared:
            arrays[column.name] = rows[column.name].cast(pa.dictionary(pa.int32(), column.type))
        else:
            arrays[column.name] = _measured(column.name, rows[column.name].cast(column.type))
    table = pa.table(arrays)
    for column in columns:
        if table[column.name].null_count and not column.nullable:
            raise pa.ArrowInvalid(f"column {column.name} has empty values")
    return table


def _bounded_rows(
    file: pq.ParquetFile, number: int, names: list[str], shared: Collection[str]
) -> pa.Table:
    """Read columns of a row group; ArrowInvalid as soon as one that is not shared has unpacked to too much."""
    sizes = dict.fromkeys(names, 0)
    portions = []
    for portion in file.iter_batches(
        _PORTION, row_groups=[number], columns=names, use_threads=False
    ):
        for name in names:
            sizes[name] += _decoded_size(portion[name])
            if sizes[name] > _UNPACKED and name not in shared:
                raise pa.ArrowInvalid(_too_large(name))
        portions.append(portion)
    if not portions:
        return file.schema_arrow.empty_table().select(names)
    return pa.Table.from_batches(portions)


def _decoded_size(values: pa.Array) -> int:
    """Bytes of these values without a dictionary."""
    if not pa.types.is_dictionary(values.type):
        return int(values.nbytes)
    lengths = pc.binary_length(values.dictionary).take(values.indices)
    return int(pc.sum(lengths).as_py() or 0)


def _measured(name: str, values: pa.ChunkedArray) -> pa.ChunkedArray:
    """Return the values, null where a fraction was not measured; ArrowInvalid where a whole number is none that we record."""
    if pa.types.is_floating(values.type):
        is_measured = pc.less_equal(pc.abs(values), _LARGEST)  # false for NaN
        return pc.if_else(is_measured, values, pa.scalar(None, values.type))
    if pa.types.is_int64(values.type):
        ends = pc.min_max(values).as_py()
        if not -_WHOLE <= (ends["min"] or 0) <= (ends["max"] or 0) <= _WHOLE:
            raise pa.ArrowInvalid(f"column {name} has numbers beyond {_WHOLE:,}")
    return values


def shifted(rows: pa.Table, by_ns: int) -> pa.Table:
    """Return the table with every time moved by `by_ns`; in integers, because float64 loses nanoseconds after 104 days.

    The offset to Unix time moves the other way.
    """
    for i, name in enumerate(rows.column_names):
        if name == WALL_OFFSET:
            rows = rows.set_column(i, name, pc.subtract(rows[name], pa.scalar(by_ns, pa.int64())))
        is_time = name == "at_ns" or name.endswith("_at_ns")
        if is_time and pa.types.is_int64(
            rows[name].type
        ):  # lists of times are reduced to their ends before
            rows = rows.set_column(i, name, pc.add(rows[name], pa.scalar(by_ns, pa.int64())))
    return rows


def empty(table: str, wanted: Sequence[str]) -> pa.Table:
    """Return a table without rows."""
    return schema(table).empty_table().select(list(wanted))


def _left_out(table: str, path: Path, reason: str) -> Problem:
    """No statistic rests on the endpoint's log, so that one may be missing."""
    return Problem(NOTE if table == "target" else DAMAGED, f"{table}/{path.name} {reason}")


def _reason(error: Exception) -> str:
    """Return what is wrong with a file; MachineError where the reader lacks something: its rows are not missing."""
    if getattr(error, "errno", None) in OF_THE_PROCESS:
        raise MachineError(shortage(error)) from error
    if isinstance(error, MemoryError):
        return "it unpacks to more than the memory of a report"
    if isinstance(error, KeyError):
        return "its schema and its pages name other columns"
    if "checksum" in str(error):
        return "a page does not match its checksum"
    return (str(error).strip().splitlines() or [type(error).__name__])[0][:200]
