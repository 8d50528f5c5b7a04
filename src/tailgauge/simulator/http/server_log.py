"""The server log: a row for each call of the endpoint, in memory and as Parquet.

A row is opened when its call is received, and the call writes it until it is closed; the log only counts, drops and copies
rows.
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
    """Return request, leg and attempt of `run/request/leg/attempt`; None for any other id."""
    match = _CALL.fullmatch(client_request_id)
    if match is None:
        return None
    request, leg, attempt = map(int, match.groups())
    if not -_INT64 <= request < _INT64 or leg >= _INT16 or attempt >= _INT16:
        return None
    return request, leg, attempt


class ServerLog:
    """Rows of open calls, and of the latest closed ones: the oldest of these are dropped when there are too many stamps."""

    def __init__(self, max_stamps: int = MAX_STAMPS) -> None:
        self.dropped = 0
        self._stamps = 0
        self._max_stamps = max_stamps
        self._has_closed = asyncio.Event()
        self._open: dict[int, ServerLogRow] = {}
        self._closed: deque[ServerLogRow] = deque()

    def open(self, client_request_id: str, protocol: str, received_at_ns: int) -> ServerLogRow:
        """Return a new row, which the call fills in."""
        request, leg, attempt = parse_call(client_request_id) or (None, None, None)
        row = ServerLogRow(
            client_request_id=client_request_id,
            request_id=request,
            leg=leg,
            attempt=attempt,
            protocol=protocol,
            status=200,
            received_at_ns=received_at_ns,
            headers_at_ns=None,
            planned_ttft_ns=None,
            chunk_sent_at_ns=[],
            ended_at_ns=None,
            cancelled_at_ns=None,
            input_tokens=0,
            output_tokens=0,
        )
        self._open[id(row)] = row
        return row

    def close(self, row: ServerLogRow) -> None:
        """Close the row of a call that is over: it will not change any more."""
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
        """Return how many rows of a run may still change: an engine may go on after its clients have left."""
        return sum(_of_run(row, run) for row in self._open.values())

    def rows(self, run: str) -> list[ServerLogRow]:
        """Return the rows of a run, in the order of their end, then copies of its open rows. No run: all rows."""
        rows = [row for row in self._closed if _of_run(row, run)]
        for row in self._open.values():
            if _of_run(row, run):
                rows.append(replace(row, chunk_sent_at_ns=list(row.chunk_sent_at_ns)))
        return rows


def to_parquet(rows: list[ServerLogRow]) -> bytes:
    """Return the rows as a Parquet file of the table `target`."""
    import pyarrow.parquet as pq  # takes a third of a second, which the server's start does not need

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
