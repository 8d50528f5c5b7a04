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

from tailgauge.rows.run_folder import MARK, RunFolder
from tailgauge.rows.schema import CENSORED


@dataclass(slots=True)
class Share:
    """One worker's part of the counts."""

    leased: int
    counts: dict[str, Any] | None
    lost: int = 0  # leased requests without a count or a row


def conserve(scheduled: int, shares: Sequence[Share]) -> dict[str, Any]:
    """The conservation counts of run.json."""
    every, names = [share.counts or {} for share in shares], ("dispatched", "client_drop", "censored")
    dispatched, dropped, censored = (sum(counts.get(name, 0) for counts in every) for name in names)
    lost, ended = sum(share.lost for share in shares), Counter[str]()
    for counts in every:
        ended.update(counts.get("ended", {}))
    return {
        "scheduled": scheduled, "dispatched": dispatched, "client_drop": dropped,
        "not_reached": scheduled - dispatched - dropped - lost, "lost": lost, "ended": dict(ended), "censored": censored,
    }  # fmt: skip


def count_rows(folder: RunFolder, worker: int, drop: str) -> dict[str, Any]:
    """Counts of a lost worker, from its request rows; unreadable parts count nothing."""
    ended = Counter(name for table in _left(folder, worker, "ended") for name in table["ended"].to_pylist())
    dropped, censored = ended.pop(drop, 0), ended.pop(CENSORED, 0)
    dispatched = ended.total() + censored
    return {"dispatched": dispatched, "client_drop": dropped, "ended": dict(ended), "censored": censored}


def request_ids(folder: RunFolder, worker: int) -> set[int]:
    """Requests of which a worker wrote a row."""
    tables = _left(folder, worker, "request_id")
    return {number for table in tables for number in table["request_id"].to_pylist()}


def _left(folder: RunFolder, worker: int, column: str) -> list[pa.Table]:
    """A column of a worker's request rows, without the preflight's."""
    tables: dict[str, pa.Table] = {}
    for part in sorted((folder.path / "requests").glob(f"part-{worker}-*.parquet")):
        with contextlib.suppress(OSError, pa.ArrowException):  # the analysis reports it
            wanted = ["stage", column]
            tables[part.name] = pq.read_table(part, columns=wanted, page_checksum_verification=True)
    replaced = {name for table in tables.values() for name in _replaced_by(table)}
    counted = [table for name, table in tables.items() if name not in replaced]
    return [table.filter(pc.not_equal(table["stage"], "preflight")) for table in counted]


def _replaced_by(table: pa.Table) -> list[str]:
    """Names of the parts that a compacted one replaces: a kill may have left both."""
    named: bytes = (table.schema.metadata or {}).get(f"{MARK}.replaces".encode(), b"")
    return named.decode().split(",")
