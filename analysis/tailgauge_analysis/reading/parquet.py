"""Parquet parts of a run folder: which count, and how one is read.

This module knows file names, footers and column types, not what the columns mean. A part or row group that cannot be read,
or whose pages do not match their checksums, is a problem and left out; only a newer schema version is raised.

A compacted file names in its footer (`tailgauge.replaces`) the parts that it contains: if a crash left them behind,
they are not read a second time. A part name counts once, in whichever of several folders it is found first.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from tailgauge.rows.parquet import schema
from tailgauge.rows.text_file import refusal
from tailgauge_analysis.reading.run_record import DAMAGED, NOTE, UNFINISHED, Problem, check_version

_NAME = re.compile(r"part-(\d{1,6})-(\d{1,9}|all)\.parquet")
_UNREADABLE = (OSError, ValueError, pa.ArrowException)
_MOST_ROWS = 10_000_000  # of a row group, which is read at once; the recorder writes 200,000
_LARGEST = 1e15  # of a number with a fraction; a larger one, or NaN, was not measured
_VERSION = b"tailgauge.schema_version"
_REPLACES = b"tailgauge.replaces"


@dataclass(frozen=True, slots=True)
class Part:
    """One readable Parquet file of one worker; `folder`: in which of the given ones."""

    table: str
    folder: int
    worker: int
    path: Path
    version: int
    replaces: frozenset[str]
    rows: int


def listed(folders: Sequence[Path], table: str, problems: list[Problem]) -> list[Part]:
    """Parts of a table that count, in order of worker, folder and sequence."""
    found: dict[str, Part] = {}
    bad: dict[str, Problem] = {}
    for number, folder in enumerate(folders):
        for path in sorted((folder / table).glob("*")):
            if path.name.endswith(".tmp"):
                problems.append(Problem(UNFINISHED, f"{table}/{path.name} was never finished and is ignored"))
            elif not _NAME.fullmatch(path.name):
                problems.append(Problem(NOTE, f"{table}/{path.name} is not a part and is ignored"))
            elif path.name not in found:
                part = _opened(table, number, path)
                if isinstance(part, Part):
                    found[path.name] = part
                else:
                    bad[path.name] = part
    for name, problem in bad.items():
        spared = Problem(NOTE, f"{table}/{name} cannot be read in one folder; its copy in another one is")
        problems.append(spared if name in found else problem)
    replaced = frozenset[str]().union(*(part.replaces for part in found.values()))
    return sorted((part for name, part in found.items() if name not in replaced), key=_order)


def _order(part: Part) -> tuple[int, int, int]:
    text = part.path.stem.rpartition("-")[2]
    return part.worker, part.folder, -1 if text == "all" else int(text)


def _opened(table: str, folder: int, path: Path) -> Part | Problem:
    """The part, if its footer can be read."""
    match = _NAME.fullmatch(path.name)
    assert match is not None
    if why := refusal(path):
        return _left_out(table, path, f"is left out: {why}")
    try:
        held = pq.read_metadata(path)
        footer = held.metadata or {}
        version = int(footer.get(_VERSION, b"0"))
        if any(held.row_group(i).num_rows > _MOST_ROWS for i in range(held.num_row_groups)):
            raise pa.ArrowInvalid(f"a row group has more than {_MOST_ROWS:,} rows")
        if held.num_rows != sum(held.row_group(i).num_rows for i in range(held.num_row_groups)):
            raise pa.ArrowInvalid("its footer contradicts itself")
    except _UNREADABLE as error:
        return _left_out(table, path, f"cannot be read and is left out: {_reason(error)}")
    check_version(path, version)
    if version < 1:
        return _left_out(table, path, "names no schema version and is left out")
    names = footer.get(_REPLACES, b"").decode("utf-8", "replace").split(",")
    replaces = frozenset(name.strip() for name in names) - {"", path.name}
    return Part(table, folder, int(match[1]), path, version, replaces, held.num_rows)


def read(part: Part, wanted: Sequence[str], problems: list[Problem]) -> pa.Table:
    """Columns `wanted` of a part with the record's types, without the row groups that cannot be read."""
    groups = list(pieces(part, wanted, problems))
    return pa.concat_tables(groups) if groups else empty(part.table, wanted)


def pieces(part: Part, wanted: Sequence[str], problems: list[Problem]) -> Iterator[pa.Table]:
    """The same, one row group at a time."""
    lost, why = 0, ""
    try:
        with pq.ParquetFile(part.path, page_checksum_verification=True) as file:
            columns_of = _Columns(part, wanted, file.schema_arrow.names)
            for number in range(file.num_row_groups):
                try:
                    rows = columns_of.read(file, number)
                except _UNREADABLE as error:
                    lost += file.metadata.row_group(number).num_rows
                    why = why or _reason(error)
                else:
                    yield rows
    except _UNREADABLE as error:
        lost, why = part.rows, _reason(error)
    if why:
        some = f"{lost:,} of its {part.rows:,} rows cannot be read and are left out"
        whole = "cannot be read and is left out"
        problems.append(_left_out(part.table, part.path, f"{some if lost < part.rows else whole}: {why}"))


class _Columns:
    """Reads the columns `wanted` of a part."""

    def __init__(self, part: Part, wanted: Sequence[str], names: list[str]) -> None:
        described = schema(part.table)
        self._wanted = wanted
        self._kinds = {field.name: field.type for field in described}
        self._never_empty = [field.name for field in described if not field.nullable and field.name in wanted]
        lacking = [name for name in wanted if name not in names]
        if lacking:
            raise pa.ArrowInvalid(f"column {lacking[0]} is missing")
        doubled = [name for name in wanted if names.count(name) > 1]
        if doubled:
            raise pa.ArrowInvalid(f"column {doubled[0]} is there more than once")

    def read(self, file: pq.ParquetFile, number: int) -> pa.Table:
        """A row group."""
        rows = file.read_row_group(number, columns=list(self._wanted))
        whole = pa.table({name: self._column(rows[name], self._kinds[name]) for name in self._wanted})
        hollow = [name for name in self._never_empty if whole[name].null_count]
        if hollow:
            raise pa.ArrowInvalid(f"column {hollow[0]} has empty values")
        return whole

    def _column(self, values: pa.ChunkedArray, kind: pa.DataType) -> Any:
        column = values.cast(kind)
        if not pa.types.is_floating(column.type):
            return column
        measured = pc.less_equal(pc.abs(column), _LARGEST)  # false for NaN
        return pc.if_else(measured, column, pa.scalar(None, column.type))


def shifted(rows: pa.Table, by_ns: int) -> pa.Table:
    """The table with every time moved by `by_ns`; in integers, because float64 loses nanoseconds after 104 days."""
    for i, name in enumerate(rows.column_names):
        is_time = name == "at_ns" or name.endswith("_at_ns")
        if is_time and pa.types.is_int64(rows[name].type):  # lists of times are reduced to their ends before
            rows = rows.set_column(i, name, pc.add(rows[name], pa.scalar(by_ns, pa.int64())))
    return rows


def empty(table: str, wanted: Sequence[str]) -> pa.Table:
    """A table without rows."""
    return schema(table).empty_table().select(list(wanted))


def _left_out(table: str, path: Path, why: str) -> Problem:
    """No statistic rests on the endpoint's log, so that one may be missing."""
    return Problem(NOTE if table == "target" else DAMAGED, f"{table}/{path.name} {why}")


def _reason(error: Exception) -> str:
    if "checksum" in str(error):
        return "a page does not match its checksum"
    return (str(error).strip().splitlines() or [type(error).__name__])[0][:200]
