"""Chunk times as stored: one time, then gaps; values that repeat within a read are stored once.

Integers only, without rounding. A run of rows of one attempt with consecutive chunks starts with an arrival time; each
later row has the gap to the previous one, so that a file can be read without any other.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

Ints = npt.NDArray[Any]
Flags = npt.NDArray[np.bool_]
KEY = ("request_id", "leg", "attempt", "chunk_index")


def goes_on(request_id: Ints, leg: Ints, attempt: Ints, chunk_index: Ints) -> Flags:
    """Whether a row continues the attempt of the previous row with its next chunk."""
    same = np.zeros(len(request_id), np.bool_)
    same[1:] = np.diff(chunk_index) == 1
    for name in (request_id, leg, attempt):
        same[1:] &= name[1:] == name[:-1]
    return same


def plain(rows: pa.Table) -> pa.Table:
    """Stored chunks, from the start of a row group on, with full times in every row; `low_at_ns` is null if exact.

    Needs arrived_at_ns and gap_ns; other columns may be absent.
    """
    if not rows["arrived_at_ns"].null_count:  # every row has its time
        return rows.drop_columns("gap_ns")
    begins = numbers(rows["arrived_at_ns"].is_valid())
    given, gaps = (_filled(rows[name]) for name in ("arrived_at_ns", "gap_ns"))
    arrived = _arrivals(given, begins, gaps)
    cells = {"arrived_at_ns": pa.array(arrived, pa.int64())}
    if "lag_ns" in rows.column_names and rows["lag_ns"].null_count:
        lags = _repeated(_filled(rows["lag_ns"]), numbers(rows["lag_ns"].is_valid()))
        cells["lag_ns"] = pa.array(lags, pa.int64())
    if "low_at_ns" in rows.column_names and not (exact := numbers(rows["exact"])).all():
        low, given_low = _filled(rows["low_at_ns"]), numbers(rows["low_at_ns"].is_valid())
        before, _ = _arrivals_before(arrived, begins)
        cells["low_at_ns"] = pa.array(np.where(given_low, low, before), pa.int64(), mask=exact)
    kept = rows.drop_columns("gap_ns")
    return pa.Table.from_arrays(
        [cells.get(name, kept[name]) for name in kept.column_names], kept.column_names
    )


def brief(rows: pa.Table, target: pa.Schema, group: int) -> pa.Table:
    """Chunks in stored form: values that follow from the previous row are null, except in every `group`-th row."""
    begins = ~goes_on(*(numbers(rows[name]) for name in KEY))
    begins[::group] = True  # a row group can be read alone
    arrived, lags = numbers(rows["arrived_at_ns"]), numbers(rows["lag_ns"])
    gaps = np.diff(arrived, prepend=arrived[:1])
    same = ~begins & (gaps == 0)
    low, exact = rows["low_at_ns"], numbers(rows["low_at_ns"].is_null())
    if not exact.all():
        values = _filled(low)
        before, is_given = _arrivals_before(arrived, begins)
        low = pa.array(values, pa.int64(), mask=exact | (is_given & (values == before)))
    cells = {
        "arrived_at_ns": pa.array(arrived, pa.int64(), mask=~begins),
        "low_at_ns": low,
        "lag_ns": pa.array(lags, pa.int64(), mask=same & (np.diff(lags, prepend=lags[:1]) == 0)),
        "exact": pa.array(exact, pa.bool_()),
        "gap_ns": pa.array(gaps, pa.int64(), mask=begins | same),
    }
    return pa.Table.from_arrays(
        [cells[f.name] if f.name in cells else rows[f.name] for f in target], schema=target
    )


def _filled(column: Any) -> Ints:
    """Integers, with 0 for null."""
    return numbers(column.fill_null(pa.scalar(0, pa.int64())))


def numbers(column: pa.ChunkedArray) -> Ints:
    """A column without nulls as numpy, from its buffer: pyarrow's conversion would load pandas."""
    whole = column.combine_chunks()
    is_flags = pa.types.is_boolean(whole.type)
    if is_flags:
        whole = whole.cast(pa.uint8())  # a byte each
    kind = np.dtype(str(whole.type))
    held = np.frombuffer(whole.buffers()[1], kind) if len(whole) else np.empty(0, kind)
    values: Ints = held[whole.offset : whole.offset + len(whole)]
    return values.view(np.bool_) if is_flags else values


def _arrivals(given: Ints, is_given: Flags, gaps: Ints) -> Ints:
    """Arrival of each row: `given` where `is_given` (always in the first row), else by `gaps`."""
    since = np.cumsum(np.where(is_given, 0, gaps))
    times: Ints = _repeated(given - since, is_given) + since
    return times


def _repeated(values: Ints, is_given: Flags) -> Ints:
    """Each given value repeated until the next; the first must be given."""
    kept: Ints = values[np.flatnonzero(is_given)][np.cumsum(is_given) - 1]
    return kept


def _arrivals_before(arrived: Ints, begins: Flags) -> tuple[Ints, Flags]:
    """Arrival of the previous read for each row, and whether it is known within the run of rows."""
    first = begins.copy()
    first[1:] |= np.diff(arrived) != 0
    before = np.concatenate((arrived[:1], arrived[:-1]))
    return _repeated(before, first), _repeated(~begins, first)
