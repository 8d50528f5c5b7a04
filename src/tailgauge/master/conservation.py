"""Where every scheduled request went, counted by the master.

    scheduled  = dispatched + client_drop + not_reached + lost
    dispatched = sum of ended classes + censored

The counts of a drained worker are taken as reported. For a lost worker only its rows count, and the rest of its leases is
`lost`. The analysis repeats the sum from Parquet.
"""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from tailgauge.rows.parquet import schema
from tailgauge.rows.run_folder import MARK, RunFolder
from tailgauge.rows.schema import CENSORED


@dataclass(slots=True)
class Share:
    """One worker's part of the counts."""

    leased: int
    counts: dict[str, Any] | None
    lost: int = 0  # leased requests without a count or a row


def conserve(scheduled: int, shares: Sequence[Share]) -> dict[str, Any]:
    """Return the conservation counts of run.json."""
    totals = Counter[str]()
    ended = Counter[str]()
    for share in shares:
        counts = share.counts or {}
        for name in ("dispatched", "client_drop", "censored"):
            totals[name] += counts.get(name, 0)
        totals["lost"] += share.lost
        ended.update(counts.get("ended", {}))
    placed = totals["dispatched"] + totals["client_drop"] + totals["lost"]
    return {
        "scheduled": scheduled,
        "dispatched": totals["dispatched"],
        "client_drop": totals["client_drop"],
        "not_reached": scheduled - placed,
        "lost": totals["lost"],
        "ended": dict(ended),
        "censored": totals["censored"],
    }


def count_rows(folder: RunFolder, worker: int, drop: str) -> dict[str, Any]:
    """Return the counts of a lost worker, from its request rows; unreadable parts count nothing."""
    ended = Counter[str]()
    for table in _read_column(folder, worker, "ended"):
        ended.update(table["ended"].to_pylist())
    dropped = ended.pop(drop, 0)
    censored = ended.pop(CENSORED, 0)
    dispatched = ended.total() + censored
    return {
        "dispatched": dispatched,
        "client_drop": dropped,
        "ended": dict(ended),
        "censored": censored,
    }


def request_ids(folder: RunFolder, worker: int) -> set[int]:
    """Return the requests of which a worker wrote a row."""
    numbers: set[int] = set()
    for table in _read_column(folder, worker, "request_id"):
        numbers.update(table["request_id"].to_pylist())
    return numbers


def _read_column(folder: RunFolder, worker: int, column: str) -> list[pa.Table]:
    """Return a column of a worker's request rows, without the preflight's; unreadable parts are left out."""
    tables: dict[str, pa.Table] = {}
    columns = pa.schema([schema("requests").field(name) for name in ("stage", column)])
    for part in sorted((folder.path / "requests").glob(f"part-{worker}-*.parquet")):
        # The analysis reports a part that cannot be read.
        with contextlib.suppress(OSError, KeyError, ValueError, pa.ArrowException):
            table = pq.read_table(part, columns=columns.names, page_checksum_verification=True)
            typed = columns.with_metadata(table.schema.metadata)
            tables[part.name] = table.select(columns.names).cast(typed)
    replaced: set[str] = set()
    for table in tables.values():
        replaced.update(_replaced_parts(table))
    current = [table for name, table in tables.items() if name not in replaced]
    return [table.filter(pc.not_equal(table["stage"], "preflight")) for table in current]


def _replaced_parts(table: pa.Table) -> list[str]:
    """Return the names of the parts that a compacted one replaces: a kill may have left both."""
    names: bytes = (table.schema.metadata or {}).get(f"{MARK}.replaces".encode(), b"")
    return names.decode("utf-8", "replace").split(",")
