"""Rows that were handed over together, and what of them is still to be written.

Rule: rows of a table leave when they are in a part, and stay when they are not: nothing is written twice, nothing is
forgotten. One thread at a time takes from a batch; any thread may count what is left.
"""

from __future__ import annotations

from typing import Any

import pyarrow as pa

from tailgauge.rows.parquet import Segment, chunk_table, row_table


class Batch:
    """Row objects by table, and segments of chunks. `left` are the rows of each table that are in no part yet."""

    def __init__(self, rows: dict[str, list[Any]], segments: list[Segment], chunks: int) -> None:
        self._rows, self._segments = rows, segments
        self.left = {name: len(items) for name, items in rows.items()} | {"chunks": chunks}

    def __len__(self) -> int:
        return sum(self.left.values())

    def table(self, name: str) -> pa.Table:
        """The rows of a table as they go into a part."""
        return chunk_table(self._segments) if name == "chunks" else row_table(name, self._rows[name])

    def written(self, name: str) -> None:
        """The rows of this table are in a part."""
        if name == "chunks":
            self._segments = []
        else:
            self._rows[name] = []
        self.left[name] = 0
