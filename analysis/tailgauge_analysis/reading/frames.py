"""Loading: run folders in, pandas frames on the run's clock out.

Every time in a frame is nanoseconds since the run's start on its master's clock, whichever worker stamped it:
run clock = worker clock + the worker's offset - start_at_ns. Nullable whole numbers become float64 with NaN, exact
because the run clock stays below 2^53 ns (104 days). Bad data becomes a `Problem`; RunDataError is raised where no
single run can be read, see `load`.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc

from tailgauge.errors import RunDataError
from tailgauge.rows.parquet import schema
from tailgauge.rows.schema import COOLDOWN, ORIGIN, SINGLE, STEADY, TABLES, TURNS, columns
from tailgauge_analysis.reading import chunks, parquet, rate_limit_headers, run_record
from tailgauge_analysis.reading.budget import Budget
from tailgauge_analysis.reading.chunks import Chunks, Fold
from tailgauge_analysis.reading.run_record import Problem

# Columns that nothing here reads; those of chunks, which come by the million, are in chunks.py.
UNREAD = {
    "requests": {"session_id"},
    "attempts": {
        "protocol",
        "first_byte_at_ns",
        "first_content_read_at_ns",
        "stopped_at_ns",
        "cancelled_at_ns",
        "server_request_id",
        "connection",
        "reads",
    },
    "health": {"dispatched", "ended", "chunks", "queued_rows"},
    "target": {
        "client_request_id",
        "protocol",
        "headers_at_ns",
        "input_tokens",
        "admitted_at_ns",
        "replica",
        "cache_reason",
        "cache_read_tokens",
        "cache_created_tokens",
        "limit_kind",
        "bucket_levels",
        "error_status",
        "stop_reason",
    },
}
VALID_JSON = "valid_json"
SHARED = ("error_body",)  # texts that are long and often the same
CALL = ("request_id", "leg", "attempt")
KEYS = {"requests": ("request_id",), "attempts": CALL, "chunks": (*CALL, "chunk_index")}
MARKED = {  # the counts that each of the usage_marks is about
    "input": (
        "input_tokens",
        "cache_read_input_tokens",
        "cache_creation_input_tokens",
        "cache_creation_5m_input_tokens",
        "cache_creation_1h_input_tokens",
    ),
    "output": ("output_tokens", "thinking_tokens"),
}


def _wanted(table: str, unread: Collection[str]) -> tuple[str, ...]:
    names = [column.name for column in columns(table)]
    return tuple(name for name in names if name not in unread and name not in ORIGIN)


WANTED = {table: _wanted(table, unread) for table, unread in UNREAD.items()}
Reduces = Callable[[str, pa.Table], pa.Table]
Counts = Counter[tuple[str, int]]  # of rows, by table and worker


@dataclass(frozen=True, slots=True)
class Frames:
    """One run, loaded. `run` has every key of RunJson; `rows` counts what was read, by table and worker."""

    run: dict[str, Any]
    requests: pd.DataFrame
    attempts: pd.DataFrame
    chunks: Chunks
    health: pd.DataFrame
    server_log: pd.DataFrame
    rows: Counts
    problems: tuple[Problem, ...]


def load(run_dirs: Sequence[Path], look: dict[str, Any] | None = None) -> Frames:
    """Return one run from its folder, or from the local folders of its workers, every time in ns of the run clock.

    What cannot be read is among the problems. RunDataError without a run, with several, while it goes on (without `look`), of a
    newer schema, or where it does not fit into memory. `look`: values that replace those of run.json, so that a run may be read
    while it goes on.
    """
    opened = _Opened.of(run_dirs, look)
    run = opened.run
    problems = opened.problems
    rows = Counts()
    tables = {}
    for name, wanted in WANTED.items():
        tables[name] = _table(opened, name, wanted, rows, _reduced, shared=SHARED)
    start = opened.start_at_ns(lambda: tables["requests"])
    # Chunks are summed up by attempt while they are read.
    folded = _chunks(opened, start, rows)
    if run["rebuilt"] and not sum(rows.values()):
        problem = "neither run.json nor any readable row: there is no run to analyse"
        raise RunDataError(f"{opened.folders[0]}: {problem}")
    # Each Arrow table is let go before the next one is converted.
    requests = _frame(tables.pop("requests"), start)
    attempts = _frame(tables.pop("attempts"), start)
    health = _frame(tables.pop("health"), start)
    server_log = _frame(tables.pop("target"), start)
    requests["answer"] = kinds_of_answers(run, requests["pattern"])
    attempts = without_impossible_counts(attempts)
    # What was due after the look that ended the run moves from the steady stage to the cool-down, in place.
    _end(run, requests, attempts)
    return Frames(
        run=run,
        requests=requests,
        attempts=attempts,
        chunks=folded,
        health=health,
        server_log=server_log,
        rows=rows,
        problems=tuple(problems),
    )


def _end(run: dict[str, Any], *tables: pd.DataFrame) -> None:
    """Put what was due after the look with which a run ended into its cool-down."""
    requests = run["precision"]["requests"]
    if not requests:
        return
    for rows in tables:
        later = (rows["stage"] == STEADY) & (rows["request_id"] >= requests * TURNS)
        rows.loc[later, "stage"] = COOLDOWN


def without_impossible_counts(attempts: pd.DataFrame) -> pd.DataFrame:
    """Return the attempts with NaN for token counts beyond what was requested, as if the target had not reported them."""
    marks = attempts["usage_marks"]
    if not marks.notna().any():
        return attempts
    trusted = attempts.copy()
    for mark, names in MARKED.items():
        is_marked = marks.str.contains(mark, na=False).to_numpy(np.bool_)
        trusted.loc[is_marked, list(names)] = np.nan
    return trusted


def whole(run_dirs: Sequence[Path], name: str) -> pd.DataFrame:
    """Return every column of a table, ordered by its keys. Integers stay integers, `Int64` where some are null.

    Times are those of the run's clock, and `wall_offset_ns` leads from there to Unix time.
    """
    # A notebook may hold what its machine can.
    opened = replace(_Opened.of(run_dirs), budget=Budget(math.inf))
    # The worker is in each part's name.
    wanted = tuple(column.name for column in columns(name) if column.name != "worker")
    table = _table(opened, name, wanted, Counts(), _as_read)
    start = opened.start_at_ns(
        lambda: _table(opened, "requests", WANTED["requests"], Counts(), _as_read)
    )
    table = parquet.shifted(table.drop_columns("folder"), -start)
    table = table.select([column.name for column in columns(name)])
    table = table.sort_by([(key, "ascending") for key in KEYS[name]])
    frame: pd.DataFrame = table.replace_schema_metadata(schema(name).metadata).to_pandas()
    return frame


@dataclass(frozen=True, slots=True)
class _Opened:
    """The folders of a run, the master's first, its record, and what was wrong until now."""

    folders: list[Path]
    run: dict[str, Any]
    problems: list[Problem]
    budget: Budget

    @classmethod
    def of(cls, run_dirs: Sequence[Path], look: dict[str, Any] | None = None) -> _Opened:
        folders = list(dict.fromkeys(Path(folder).resolve() for folder in run_dirs))
        if not folders:
            raise RunDataError("no run folder given")
        for folder in folders:
            run_record.check(folder, *TABLES)
        run, problems = run_record.read(folders, look)
        # The rows of the master's folder count before copies.
        folders.sort(key=lambda folder: folder != run["master_folder"])
        return cls(folders, run, problems, Budget.of(folders))

    def offset_ns(self, worker: int) -> int:
        """Return what leads from the clock of a worker to the master's; 0 where it is unknown."""
        for entry in self.run["workers"]:
            if entry["worker"] == worker:
                return entry["offset_ns"] or 0
        return 0

    def start_at_ns(self, requests: Callable[[], pa.Table]) -> int:
        """Start of the run; without its record its clock starts at the first arrival."""
        start: int | None = self.run["start_at_ns"]
        if start is None:
            start = pc.min(requests()["scheduled_at_ns"]).as_py()
        return start or 0


def kinds_of_answers(run: dict[str, Any], pattern: pd.Series[str]) -> pd.Series[str]:
    """Return what counts as the answer of each request, by its pattern; see rows.schema."""
    by_pattern = {name: facts["answer"] for name, facts in run["patterns"].items()}
    return pattern.map(lambda name: by_pattern.get(name, SINGLE))


def ended_as(attempts: pd.DataFrame, *classes: str) -> np.ndarray:
    """Return which attempts ended as one of these classes, also by an error behind content."""
    ended = attempts["ended"].isin(classes) | attempts["error_class"].isin(classes)
    return ended.to_numpy(np.bool_)


def _table(
    opened: _Opened,
    name: str,
    wanted: Sequence[str],
    rows: Counts,
    reduce: Reduces,
    *,
    shared: Collection[str] = (),
) -> pa.Table:
    """Return all parts of a table on the master's clock, each row with its worker and folder."""
    pieces = []
    for part in parquet.listed(opened.folders, name, opened.problems):
        # The endpoint is on the master's host.
        offset = 0 if name == "target" else opened.offset_ns(part.worker)
        for piece in parquet.pieces(part, wanted, opened.problems, shared):
            rows[name, part.worker] += piece.num_rows
            table = parquet.shifted(reduce(name, piece), offset)
            opened.budget.spend(table.nbytes, part.path)
            pieces.append(_marked(table, part.worker, part.folder))
    if pieces:
        # Not every part has rate-limit headers.
        return pa.concat_tables(pieces, promote_options="default")
    return _marked(reduce(name, parquet.empty(name, wanted)), 0, 0)


def _marked(table: pa.Table, worker: int, folder: int) -> pa.Table:
    n = table.num_rows
    table = table.append_column("worker", pa.repeat(pa.scalar(worker, pa.int32()), n))
    return table.append_column("folder", pa.repeat(pa.scalar(folder, pa.int16()), n))


def _chunks(opened: _Opened, start_at_ns: int, rows: Counts) -> Chunks:
    """Return all parts with chunks, folded as they are read."""
    listed = parquet.listed(opened.folders, "chunks", opened.problems)
    for part in listed:
        opened.budget.spend(part.rows * chunks.ARRIVAL, part.path)
    fold = Fold(sum(part.rows for part in listed))
    for part in listed:
        for piece in parquet.pieces(part, chunks.WANTED, opened.problems):
            size = fold.add(piece, opened.offset_ns(part.worker) - start_at_ns)
            opened.budget.spend(size, part.path)
            rows["chunks", part.worker] += piece.num_rows
    return fold.chunks()


def _as_read(_: str, rows: pa.Table) -> pa.Table:
    return rows


def _reduced(name: str, rows: pa.Table) -> pa.Table:
    """Rows of a table without lists and texts of which only numbers are wanted."""
    if name == "target":
        return _lean_log(rows)
    if name == "attempts":
        return rate_limit_headers.lean(rows)
    return rows


def _lean_log(log: pa.Table) -> pa.Table:
    """Replace the list of chunk times by their number, the first and the last."""
    lists = log["chunk_sent_at_ns"].combine_chunks()
    lengths = pc.fill_null(pc.list_value_length(lists), 0)
    first = last = pa.array([], pa.int64())
    if len(lists):
        ends = np.asarray(lists.offsets)
        empty = np.asarray(lengths) == 0
        first = lists.values.take(pa.array(ends[:-1], mask=empty))
        last = lists.values.take(pa.array(ends[1:] - 1, mask=empty))
    table = log.drop_columns(["chunk_sent_at_ns"])
    table = table.append_column("first_chunk_sent_at_ns", first).append_column(
        "last_chunk_sent_at_ns", last
    )
    return table.append_column("chunks_sent", lengths)


def _frame(table: pa.Table, start_at_ns: int) -> pd.DataFrame:
    """Return the table in pandas, its times since the start of the run."""
    table = parquet.shifted(table, -start_at_ns)
    for i, name in enumerate(table.column_names):
        if name == VALID_JSON:  # no answer is not an answer that is no JSON
            table = table.set_column(i, name, pc.if_else(table[name], 1.0, 0.0))
        elif pa.types.is_boolean(table[name].type):
            table = table.set_column(i, name, pc.fill_null(table[name], False))
    # Ignoring metadata keeps its types, also where a table has no row.
    frame: pd.DataFrame = table.to_pandas(
        split_blocks=True, self_destruct=True, ignore_metadata=True
    )
    for name in frame.columns.intersection(list(SHARED)):
        frame[name] = frame[name].astype(object)
    return frame
