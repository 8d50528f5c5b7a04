"""Rows that lie in two of several folders count once.

A worker's rows may lie in its folder and, transferred, in the master's. Parts of one name count once (parquet.py); parts
of other names are compared row by row. A worker's row is dropped if an earlier folder has it; rows repeated within a folder,
or written by two workers, are left for the checks to find.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import pandas as pd
import pyarrow as pa

from tailgauge_analysis.reading.chunks import Fold, Runs
from tailgauge_analysis.reading.parquet import Part

Mask = npt.NDArray[np.bool_]
CALL = ("request_id", "leg", "attempt")
KEYS = {"requests": ("request_id",), "attempts": CALL, "chunks": (*CALL, "chunk_index"), "health": ("at_ns",)}


class Rows:
    """The rows of one table that earlier folders have, while its parts are read in order of their folders."""

    def __init__(self, table: str, parts: Sequence[Part]) -> None:
        self._names = KEYS.get(table, ())
        places = {(part.worker, part.folder) for part in parts}
        workers = [worker for worker, _ in places]
        self._scattered = {worker for worker in workers if workers.count(worker) > 1}
        self._read: dict[tuple[int, int], list[pd.DataFrame]] = {}  # keys, by worker and folder

    def without(self, part: Part, rows: pa.Table) -> pa.Table:
        """Rows of a part that no earlier folder has."""
        if part.worker not in self._scattered or not self._names:
            return rows
        keys = rows.select(self._names).to_pandas()
        self._read.setdefault((part.worker, part.folder), []).append(keys)
        earlier = [
            one for (worker, folder), some in self._read.items() for one in some
            if worker == part.worker and folder < part.folder
        ]  # fmt: skip
        if not earlier:
            return rows
        known = pd.MultiIndex.from_frame(pd.concat(earlier))
        return rows.filter(pa.array(~pd.MultiIndex.from_frame(keys).isin(known)))


class Pieces:
    """Duplicates among chunks, which are combined as they are read."""

    def __init__(self, fold: Fold) -> None:
        self._fold = fold
        self._of = (-1, -1)  # worker and folder
        self._begin = fold.mark()
        self._runs: Runs | None = None

    def without(self, part: Part, rows: pa.Table) -> pa.Table:
        """Rows of a part that no earlier folder has."""
        if part.worker != self._of[0]:
            self._begin, self._runs = self._fold.mark(), None
        elif part.folder != self._of[1]:
            self._runs = self._fold.since(self._begin)
        self._of = (part.worker, part.folder)
        if self._runs is None or not len(self._runs.request_id) or not rows.num_rows:
            return rows
        return rows.filter(pa.array(~_covered(self._runs, rows)))


def _covered(runs: Runs, rows: pa.Table) -> Mask:
    """Which chunks lie within a run."""
    every = pd.MultiIndex.from_arrays([runs.request_id, runs.leg, runs.attempt])
    calls = every.unique()
    begin = (calls.get_indexer(every).astype(np.int64) << 32) + runs.first
    order = np.argsort(begin, kind="stable")
    begin, until = begin[order], (begin + runs.length)[order]
    until = np.maximum.accumulate(until)  # one that begins later may end sooner
    *wanted, index = (rows[name].to_numpy().astype(np.int64) for name in (*CALL, "chunk_index"))
    place = calls.get_indexer(pd.MultiIndex.from_arrays(wanted)).astype(np.int64)
    at = (place << 32) + index
    before = np.searchsorted(begin, at, "right") - 1
    covered: Mask = (place >= 0) & (before >= 0) & (at < until[np.maximum(before, 0)])
    return covered
