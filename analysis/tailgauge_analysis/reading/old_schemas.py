"""What older schemas had in another form: names, and times of chunks that followed from the previous row."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tailgauge_analysis.text.json_values import Json

NEW_SINCE = 5  # the schema version from which the names are those of today
# Keys of run.json and workers/<n>.json by their old name; the old name of each column that had another one.
GAP = "gap_ns"  # of chunks in schemas 4 to 7: the time since the previous row, where arrived_at_ns is null
KEYS = {"owner": "master", "virtual": "dry_run"}
COLUMNS = {
    "attempts": {"receive_lag_max_ns": "handover_max_ns"},
    "health": {f"receive_lag_{of}_ns": f"handover_{of}_ns" for of in ("max", "p50", "p99")},
}


def renamed(tree: Json) -> Json:
    """The table of a JSON file, under the names of today; a worker's file repeats the run's in `run`."""
    now = {KEYS.get(key, key): value for key, value in tree.items()}
    if isinstance(now.get("run"), dict):
        now["run"] = {KEYS.get(key, key): value for key, value in now["run"].items()}
    return now


def with_times(rows: pa.Table) -> pa.Table:
    """A row group of chunks with its times in every row; needs arrived_at_ns and gap_ns, others may be absent.

    Values that followed from the previous row were null: the lag of the same read, the lower end that is the attempt's
    arrival before. Raises ValueError if the first row has no time.
    """
    begins, given = _column(rows, "arrived_at_ns")
    gaps = _column(rows, GAP)[1]
    since = np.cumsum(np.where(begins, 0, gaps))
    arrived = _repeated(given - since, begins) + since
    cells = {"arrived_at_ns": pa.array(arrived, pa.int64())}
    if "lag_ns" in rows.column_names:
        is_given, lags = _column(rows, "lag_ns")
        cells["lag_ns"] = pa.array(_repeated(lags, is_given), pa.int64())
    if "low_at_ns" in rows.column_names:
        is_given, low = _column(rows, "low_at_ns")
        first = begins.copy()
        first[1:] |= np.diff(arrived) != 0
        before = _repeated(np.concatenate((arrived[:1], arrived[:-1])), first)
        exact = rows["exact"].to_numpy()
        cells["low_at_ns"] = pa.array(np.where(is_given, low, before), pa.int64(), mask=exact)
    kept = [name for name in rows.column_names if name != GAP]
    return pa.table({name: cells.get(name, rows[name]) for name in kept})


def _column(rows: pa.Table, name: str) -> tuple[npt.NDArray[np.bool_], npt.NDArray[Any]]:
    """Where a column of integers has a value, and the values, with 0 for null."""
    column = rows[name]
    return column.is_valid().to_numpy(), column.fill_null(pa.scalar(0, pa.int64())).to_numpy()


def _repeated(values: npt.NDArray[Any], is_given: npt.NDArray[np.bool_]) -> npt.NDArray[Any]:
    """Each given value repeated until the next."""
    if len(values) and not is_given[0]:
        raise ValueError("the first row has no time to begin with")
    kept: npt.NDArray[Any] = values[np.flatnonzero(is_given)][np.cumsum(is_given) - 1]
    return kept
