"""Run folders whose parts are small as files and huge as rows: each is one function that adds a part to a sound run.

`lie` changes a number in a footer, which a reader may believe. `python bombs.py NAME FOLDER` adds one in a process of its own:
what measures a reader must be small itself, because a child begins with the most memory that its parent has ever had.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from tailgauge.rows.parquet import schema

MIB = 1 << 20


def _zeros(table: str, rows: int) -> pa.Table:
    """Rows of nothing: zeros, empty texts, nulls."""
    arrays = []
    for column in schema(table):
        if column.nullable:
            arrays.append(pa.nulls(rows, column.type))
        elif pa.types.is_string(column.type):
            arrays.append(pa.repeat(pa.scalar("text"), rows))
        elif pa.types.is_list(column.type):
            arrays.append(
                pa.ListArray.from_arrays(
                    pa.array(np.zeros(rows + 1, np.int32)), pa.array([], pa.int64())
                )
            )
        else:
            arrays.append(pa.repeat(pa.scalar(0).cast(column.type), rows))
    return pa.table(arrays, schema=schema(table))


def _put(rows: pa.Table, name: str, values: pa.Array) -> pa.Table:
    place = rows.schema.get_field_index(name)
    return rows.set_column(place, rows.schema.field(place).with_type(values.type), values)


def _repeated(table: str, rows: int, name: str, text: str) -> pa.Table:
    """Rows whose column is the same text, which a dictionary holds once."""
    values = pa.DictionaryArray.from_arrays(pa.array(np.zeros(rows, np.int32)), pa.array([text]))
    return _put(_zeros(table, rows), name, values)


def _write(folder: Path, table: str, rows: pa.Table, **encoding: Any) -> Path:
    path = folder / table / "part-0-9.parquet"
    path.parent.mkdir(exist_ok=True)
    pq.write_table(rows, path, compression="zstd", **encoding)
    return path


def repeated_text(folder: Path) -> Path:
    """200,000 errors of 20 kB, which a dictionary holds once."""
    return _write(folder, "attempts", _repeated("attempts", 200_000, "error_body", "y" * 20_000))


def repeated_kinds(folder: Path) -> Path:
    """The same in a table of chunks, which have one text."""
    return _write(folder, "chunks", _repeated("chunks", 200_000, "kind", "y" * 20_000))


def prefixed_text(folder: Path) -> Path:
    """Texts of which each has the one before as its beginning (DELTA_BYTE_ARRAY)."""
    rows = _put(_zeros("attempts", 50_000), "error_body", pa.array(["y" * 40_000] * 50_000))
    return _write(
        folder,
        "attempts",
        rows,
        use_dictionary=False,
        column_encoding={"error_body": "DELTA_BYTE_ARRAY"},
    )


def one_huge_text(folder: Path, mib: int = 1500) -> Path:
    """One error of so many MiB, of which zstd makes a few kB; writing it takes ten times its size in memory."""
    rows = _put(_zeros("attempts", 1), "error_body", pa.array(["y" * mib * MIB]))
    return _write(folder, "attempts", rows, use_dictionary=False)


def packed_limits(folder: Path) -> Path:
    """Headers that are a huge JSON text in each row."""
    text = '{"x-ratelimit-limit-requests": ' + "1" * 30_000 + "}"
    return _write(folder, "attempts", _repeated("attempts", 100_000, "rate_limit_headers", text))


def many_rows(table: str, rows: int) -> Callable[[Path], Path]:
    """So many rows of nothing."""

    def bomb(folder: Path) -> Path:
        path = folder / table / "part-0-9.parquet"
        path.parent.mkdir(exist_ok=True)
        portion = _zeros(table, 1_000_000)
        with pq.ParquetWriter(path, portion.schema, compression="zstd") as writer:
            for _ in range(rows // 1_000_000):
                writer.write_table(portion, row_group_size=1_000_000)
        return path

    return bomb


def many_numbers(folder: Path) -> Path:
    """One row with a list of 100 million times."""
    rows = _zeros("target", 1)
    numbers = pa.repeat(pa.scalar(0, pa.int64()), 100_000_000)
    rows = _put(
        rows,
        "chunk_sent_at_ns",
        pa.ListArray.from_arrays(pa.array([0, 100_000_000], pa.int32()), numbers),
    )
    return _write(folder, "target", rows)


def many_columns(folder: Path) -> Path:
    """20,000 columns that nothing reads."""
    rows = _zeros("requests", 10)
    names = {f"x{number}": pa.array([0] * 10) for number in range(20_000)}
    return _write(
        folder,
        "requests",
        pa.table(
            {**dict(zip(rows.column_names, rows.columns, strict=True)), **names}
        ).replace_schema_metadata(rows.schema.metadata),
    )


def many_groups(folder: Path) -> Path:
    """A row group for each of 20,000 rows."""
    return _write(folder, "attempts", _zeros("attempts", 20_000), row_group_size=1)


def many_parts(folder: Path) -> Path:
    """30,000 parts of one row."""
    path = _write(folder, "requests", _zeros("requests", 1))
    for number in range(10, 30_010):
        path.with_name(f"part-0-{number}.parquet").hardlink_to(path)
    return path


def varint(number: int) -> bytes:
    """A number as thrift's compact protocol writes it."""
    left = number << 1
    data = bytearray()
    while left > 127:
        data.append(left & 127 | 128)
        left >>= 7
    data.append(left)
    return bytes(data)


def lie(path: Path, number: int, other: int) -> None:
    """Let the footer say `other` wherever it says `number`."""
    data = path.read_bytes()
    length = int.from_bytes(data[-8:-4], "little")
    pages, footer = data[: -8 - length], data[-8 - length : -8]
    assert varint(number) in footer
    footer = footer.replace(varint(number), varint(other))
    path.write_bytes(pages + footer + len(footer).to_bytes(4, "little") + b"PAR1")


def more_rows_than_there_are(folder: Path) -> Path:
    """123,457 rows that the footer calls 2^40."""
    path = _write(folder, "chunks", _zeros("chunks", 123_457))
    lie(path, 123_457, 1 << 40)
    return path


def fewer_rows_than_there_are(folder: Path) -> Path:
    """A page of 5 million rows that the footer calls 123."""
    path = _write(folder, "requests", _zeros("requests", 5_000_001), row_group_size=6_000_000)
    lie(path, 5_000_001, 123)
    return path


def smaller_than_it_is(folder: Path) -> Path:
    """A large text, of whose size the footer says 123 bytes."""
    path = one_huge_text(folder, 300)
    footer = pq.read_metadata(path)
    group = footer.row_group(0)
    place = next(
        number
        for number in range(group.num_columns)
        if group.column(number).path_in_schema == "error_body"
    )
    lie(path, group.column(place).total_uncompressed_size, 123)
    lie(path, group.total_byte_size, 123)
    return path


BOMBS: dict[str, Callable[[Path], Path]] = {
    "repeated text": repeated_text,
    "repeated kinds": repeated_kinds,
    "prefixed text": prefixed_text,
    "one huge text": one_huge_text,
    "packed limits": packed_limits,
    "rows of requests": many_rows("requests", 10_000_000),
    "rows of attempts": many_rows("attempts", 5_000_000),
    "rows of chunks": many_rows("chunks", 200_000_000),
    "rows of health": many_rows("health", 10_000_000),
    "rows of the target": many_rows("target", 10_000_000),
    "a list": many_numbers,
    "columns": many_columns,
    "row groups": many_groups,
    "parts": many_parts,
    "more rows than there are": more_rows_than_there_are,
    "fewer rows than there are": fewer_rows_than_there_are,
    "smaller than it is": smaller_than_it_is,
}

if __name__ == "__main__":
    print(BOMBS[sys.argv[1]](Path(sys.argv[2])))
