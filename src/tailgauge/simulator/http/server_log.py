"""The server log: what the endpoint did, call by call, in memory and as Parquet.

A row is opened when its call is received and belongs to its call until it is closed; the log only counts, drops and hands out
copies.
"""

from __future__ import annotations

import asyncio
import io
import re
from collections import deque
from dataclasses import replace

from tailgauge.rows.schema import ServerLogRow

MAX_STAMPS = 2_000_000  # some 80 MB

_CALL = re.compile(r"[^/]+/(-?\d{1,19})/(\d{1,5})/(\d{1,5})")
_INT64 = 2**63
_INT16 = 2**15


def parse_call(client_request_id: str) -> tuple[int, int, int] | None:
    """Request, leg and attempt of `run/request/leg/attempt`; None where it is not that."""
    match = _CALL.fullmatch(client_request_id)
    if match is None:
        return None
    request, leg, attempt = (int(part) for part in match.groups())
    fits = -_INT64 <= request < _INT64 and leg < _INT16 and attempt < _INT16
    return (request, leg, attempt) if fits else None


class ServerLog:
    """Rows of open calls, and of the latest closed ones: of these the oldest go when there are too many stamps."""

    def __init__(self, max_stamps: int = MAX_STAMPS) -> None:
        self.dropped = self._stamps = 0
        self._max_stamps = max_stamps
        self._has_closed = asyncio.Event()
        self._open: dict[int, ServerLogRow] = {}
        self._closed: deque[ServerLogRow] = deque()

    def open(self, client_request_id: str, protocol: str, received_at_ns: int) -> ServerLogRow:
        """A new row, for the call to fill in."""
        request, leg, attempt = parse_call(client_request_id) or (None, None, None)
        row = ServerLogRow(
            client_request_id, request, leg, attempt, protocol, 200, received_at_ns, None, None, [], None, None, 0, 0
        )  # fmt: skip
        self._open[id(row)] = row
        return row

    def close(self, row: ServerLogRow) -> None:
        """The call is over and its row will not change."""
        del self._open[id(row)]
        self._closed.append(row)
        self._stamps += _weight(row)
        while self._stamps > self._max_stamps:
            self._stamps -= _weight(self._closed.popleft())
            self.dropped += 1
        self._has_closed.set()

    async def settled(self, run: str) -> None:
        """Return when the calls of a run are over."""
        while self.open_calls(run):
            self._has_closed.clear()
            await self._has_closed.wait()

    def open_calls(self, run: str) -> int:
        """Calls of a run whose rows may still change: an engine may go on after their clients have left."""
        return sum(_of_run(row, run) for row in self._open.values())

    def rows(self, run: str) -> list[ServerLogRow]:
        """Rows of a run, in the order of their end; open calls last and as they stand. No run: all rows."""
        closed = [row for row in self._closed if _of_run(row, run)]
        still = [row for row in self._open.values() if _of_run(row, run)]
        return closed + [replace(row, chunk_sent_at_ns=list(row.chunk_sent_at_ns)) for row in still]


def to_parquet(rows: list[ServerLogRow]) -> bytes:
    """The rows as a Parquet file of the table `target`."""
    import pyarrow.parquet as pq  # a third of a second, which the server's start need not wait for

    from tailgauge.rows.parquet import encoding, row_table

    table = row_table("target", rows)
    out = io.BytesIO()
    pq.write_table(table, out, **encoding(table.schema))
    return out.getvalue()


def _of_run(row: ServerLogRow, run: str) -> bool:
    name = row.client_request_id
    return not run or name == run or name.startswith(run + "/")


def _weight(row: ServerLogRow) -> int:
    # A row without a chunk takes room too.
    return len(row.chunk_sent_at_ns) + 1
