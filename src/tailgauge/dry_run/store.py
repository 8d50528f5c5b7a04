"""The rows of a dry run on their way to Parquet parts. Rows of a real run: rows/recorder.py.

Memory is bounded: when enough rows wait, a part is written at once.
"""

from __future__ import annotations

from typing import Any

from tailgauge.plan.guard import Spending
from tailgauge.rows.parquet import Segments, chunk_table, compact, row_table, write_part
from tailgauge.rows.run_folder import RunFolder
from tailgauge.rows.schema import AttemptRow, Chunks, RequestRow, ServerLogRow

ROWS_AT_ONCE = 300_000
_WORKER_TABLES = ("requests", "attempts", "chunks", "health")


class Store:
    """Parts of one run folder; `written` are the rows of each table. `spending` counts what the calls use."""

    def __init__(self, folder: RunFolder, spending: Spending | None = None) -> None:
        self._spending = spending
        self._folder = folder
        self._rows: dict[str, list[Any]] = {"requests": [], "attempts": [], "target": []}
        self._segments = Segments()
        self._waiting = 0
        self._numbers = dict.fromkeys((*_WORKER_TABLES, "target"), 0)
        self.written = dict.fromkeys(_WORKER_TABLES, 0)

    def request(self, row: RequestRow) -> None:
        """Append a request row."""
        self._append("requests", row)

    def attempt(self, row: AttemptRow) -> None:
        """Append an attempt row."""
        if self._spending is not None:
            self._spending.add(row)
        self._append("attempts", row)

    def server_log(self, row: ServerLogRow) -> None:
        """Append a row of the server log."""
        self._append("target", row)

    def chunks(self, key: tuple[int, int, int], chunks: Chunks) -> None:
        """Append the chunks of a call."""
        if chunks:
            self._segments.add(*key, 0, chunks)
            self._waiting += len(chunks)

    def close(self) -> None:
        """Write the last rows, and fold each table's parts into one."""
        self.flush()
        for name, count in self._numbers.items():
            if count > 1:
                parts = [self._folder.part(name, 0, number) for number in range(count)]
                compact(name, parts, self._folder.part(name, 0, "all"))

    def _append(self, name: str, row: Any) -> None:
        self._rows[name].append(row)
        self._waiting += 1
        if self._waiting > ROWS_AT_ONCE:
            self.flush()

    def flush(self) -> None:
        """Write the rows that wait, and begin anew."""
        for name, rows in self._rows.items():
            if rows:
                self._write(name, row_table(name, rows))
                rows.clear()
        if self._segments:
            self._write("chunks", chunk_table(self._segments))
            self._segments = Segments()
        self._waiting = 0

    def _write(self, name: str, table: Any) -> None:
        write_part(self._folder.part(name, 0, self._numbers[name]), table)
        self._numbers[name] += 1
        if name in self.written:
            self.written[name] += table.num_rows
