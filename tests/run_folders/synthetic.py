"""Run folders with known numbers, written as the workers would write them.

Every time is first laid out on the run clock in nanoseconds, then moved to the clock of the worker that stamps it, so
that a loader which forgets an offset is found out.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from tailgauge.rows import schema

START_AT_NS = 81_234_567_890_123
MS = 1_000_000
AHEAD_S = 10  # arrivals are handed out so long before they are due
ARROW = {
    "int16": pa.int16(), "int32": pa.int32(), "int64": pa.int64(), "float64": pa.float64(), "bool": pa.bool_(),
    "string": pa.string(), "list<int64>": pa.list_(pa.int64()),
}  # fmt: skip

# What the record of a worker has of the run.
SHARED = ("run_id", "scenario", "start_at_ns", "started_at", "seed", "arrival", "target")
# What stands in a column without a value that may not be empty.
ZEROS: dict[str, Any] = {"float64": 0.0, "bool": False, "string": "", "list<int64>": []}

PATTERNS = {
    "fan_out": {"answer": "join"}, "progressive": {"answer": "earliest_leg"},
    "batch": {"answer": "turnaround", "price_share": 0.5}, "hedged": {"like": "streaming"},
}  # fmt: skip


@dataclass
class Spec:
    """What the run shall look like; arrays have one entry per request."""

    n: int = 400
    rate_per_s: float = 50.0
    warmup_s: float = 1.0
    ttft_ms: Any = 200.0
    delay_ms: Any = 0.05  # sent - scheduled
    gap_ms: float = 10.0
    chunks: int = 20
    tokens_per_chunk: int = 1
    ended: dict[int, str] = field(
        default_factory=dict
    )  # request number -> class, the others are ok
    error: dict[str, Any] = field(
        default_factory=dict
    )  # status, error_type, error_body of those that failed
    model: str = "tiny"
    offsets_ns: tuple[int, ...] = (0, -5_000_000_000)  # one a worker
    error_ns: int = 20_000
    stamps: str = "kernel"
    interval_every: int = 0  # every so manieth answer has an interval-stamped first chunk
    parts: int = 2
    state: str = "complete"
    lost: int = 0
    not_reached: int = 0
    loop_lag_ms: float = 0.4
    read_lag_ms: float = 0.03
    cpu_share: Any = 0.2
    clock_step_ns: int = 1_000
    pool_wait_ms: Any = 0.03
    is_new: Any = (
        None  # which requests opened a connection; None: the first two, and those that waited 1 ms
    )
    health: dict[str, Any] = field(
        default_factory=dict
    )  # columns of health rows: a value, or one a second
    server_log: bool = True
    endpoint_late_ms: Any = 0.0  # chunks sent there - due
    run_id: str = "20261121T074722Z-synthetic-1a2b"
    slo: dict[str, Any] = field(default_factory=dict)
    scenario: dict[str, Any] = field(default_factory=dict)

    @property
    def duration_s(self) -> float:
        return self.n / self.rate_per_s


def write(folder: Path, spec: Spec | None = None, **changes: Any) -> Path:
    """Write a run folder and return it."""
    spec = spec or Spec(**changes)
    folder.mkdir(parents=True, exist_ok=True)
    tables = rows_of(spec)
    written: dict[tuple[str, int], int] = {}
    for table, (columns, master) in tables.items():
        # The endpoint's log is in the clock of the run, and in no worker's folder.
        offsets_ns = (0,) if table == "target" else spec.offsets_ns
        for worker, offset_ns in enumerate(offsets_ns):
            mine = np.flatnonzero(master == worker)
            written[table, worker] = len(mine)
            for number, piece in enumerate(np.array_split(mine, spec.parts)):
                name = f"part-{worker}-{number}"
                if len(piece):
                    write_part(folder, table, name, columns, piece, START_AT_NS - offset_ns)
    return write_records(folder, run_json(spec, tables, written))


def write_records(folder: Path, run: dict[str, Any]) -> Path:
    """Write run.json and the record of each worker; return the folder."""
    (folder / "run.json").write_text(json.dumps(run, indent=1))
    (folder / "workers").mkdir(exist_ok=True)
    about = {key: run[key] for key in SHARED}
    for worker in run["workers"]:
        record = {**worker, "run": about}
        (folder / "workers" / f"{worker['worker']}.json").write_text(json.dumps(record))
    return folder


def write_part(
    folder: Path, table: str, name: str, columns: dict[str, Any], rows: Any, shift_ns: int,
    metadata: dict[str, str] | None = None,
) -> Path:  # fmt: skip
    """One Parquet part with the record's columns; the ones not given are null or zero."""
    arrays = []
    for column in schema.columns(table):
        values = columns.get(column.name)
        kind = ARROW[column.kind]
        if values is None:
            zero = None if column.nullable else ZEROS.get(column.kind, 0)
            arrays.append(pa.array([zero] * len(rows), kind))
            continue
        values = np.asarray(values, dtype=object if column.kind == "string" else None)[rows]
        mask = None
        if values.dtype.kind == "f" and column.kind != "float64":
            mask = np.isnan(values)
            values = np.where(mask, 0, values).astype(np.int64)
        if column.name == "at_ns" or column.name.endswith("_at_ns"):
            values = values + shift_ns
        if column.kind == "list<int64>":
            arrays.append(pa.array(list(values), kind))
        else:
            arrays.append(pa.array(values, mask=mask, from_pandas=False).cast(kind))
    meta = {"tailgauge.schema_version": str(schema.SCHEMA_VERSION), **(metadata or {})}
    out = pa.table(
        dict(zip([c.name for c in schema.columns(table)], arrays, strict=True))
    ).replace_schema_metadata(meta)
    path = folder / table / f"{name}.parquet"
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(out, path, compression="none")  # half the time of a small part
    return path


def rows_of(spec: Spec) -> dict[str, tuple[dict[str, Any], Any]]:
    """Columns of every table on the run clock, and which worker holds each row."""
    n = spec.n
    index = np.arange(n)
    scheduled = np.round(index / spec.rate_per_s * 1e9).astype(np.int64)
    ended = np.array([spec.ended.get(i, schema.OK) for i in range(n)], dtype=object)
    ok = ended == schema.OK
    dropped = ended == schema.CLIENT_DROP
    never_over = dropped | (ended == schema.CENSORED)
    sent = scheduled + _ns(spec.delay_ms)
    first = scheduled + _ns(spec.ttft_ms)
    last = first + round((spec.chunks - 1) * spec.gap_ms * MS)
    over = np.where(never_over, np.nan, np.where(ok, last + MS, sent + 20 * MS))
    stage = np.where(scheduled < spec.warmup_s * 1e9, schema.WARMUP, schema.STEADY)
    is_new = spec.is_new
    if is_new is None:
        is_new = (index < 2) | (np.broadcast_to(spec.pool_wait_ms, n) >= 1.0)
    is_interval = ok & (spec.interval_every > 0) & (index % max(1, spec.interval_every) == 0)
    ids = index * schema.TURNS
    worker = index % len(spec.offsets_ns)
    requests = _filled(n, {
        "request_id": ids, "stage": stage, "traffic": "chat", "pattern": "streaming", "scheduled_at_ns": scheduled,
        "dispatched_at_ns": np.where(dropped, np.nan, scheduled + 10_000), "ended_at_ns": over, "ended": ended,
        "legs": np.where(dropped, 0, 1), "attempts": np.where(dropped, 0, 1),
    })  # fmt: skip
    attempts = _filled(n, {
        "request_id": ids, "cause": "primary", "stage": stage, "traffic": "chat", "protocol": "anthropic",
        "asked_model": spec.model, "scheduled_at_ns": scheduled, "dispatched_at_ns": scheduled + 10_000, "sent_at_ns": sent,
        "first_content_at_ns": np.where(ok, first, np.nan), "first_text_at_ns": np.where(ok, first, np.nan),
        "first_content_low_at_ns": np.where(is_interval, first - 1e6, np.nan), "last_content_at_ns": np.where(ok, last, np.nan),
        "ended_at_ns": over, "ended": ended, "model": spec.model,
        "status": np.where(ok, 200.0, spec.error.get("status", 500)),
        "error_type": np.where(ok, None, spec.error.get("error_type")),
        "error_body": np.where(ok, None, spec.error.get("error_body")),
        "output_tokens": np.where(ok, float(spec.chunks * spec.tokens_per_chunk), np.nan), "connection_is_new": is_new,
        "dns_ns": np.where(index < 2, 20_000, np.nan), "connect_ns": np.where(index < 2, 60_000, np.nan), "tls_ns": np.nan,
        "pool_wait_ns": _ns(spec.pool_wait_ms), "chunks": np.where(ok, spec.chunks, 0), "receive_lag_max_ns": 90_000,
        "stamps": spec.stamps, "streamed": True, "target": "main",
    })  # fmt: skip
    kept = np.flatnonzero(~dropped)
    attempts = {name: values[kept] for name, values in attempts.items()}
    health = _health(spec, int(dropped.sum()), attempts, worker[kept], (worker, scheduled))
    return {
        "requests": (requests, worker),
        "attempts": (attempts, worker[kept]),
        "chunks": _chunks(spec, ids, first, np.flatnonzero(ok), worker),
        "health": health,
        "target": _target(spec, ids, first, np.flatnonzero(ok & spec.server_log)),
    }


def _ns(ms: Any) -> Any:
    return np.round(np.asarray(ms) * MS).astype(np.int64)


def _filled(n: int, columns: dict[str, Any]) -> dict[str, Any]:
    """Columns of n rows; a single value stands in each of them."""
    return {name: np.broadcast_to(np.asarray(values), n) for name, values in columns.items()}


def _chunks(spec: Spec, ids: Any, first: Any, ok: Any, worker: Any) -> tuple[dict[str, Any], Any]:
    number = np.tile(np.arange(spec.chunks), len(ok))
    arrived = np.repeat(first[ok], spec.chunks) + _ns(number * spec.gap_ms)
    rows = _filled(len(number), {
        "request_id": np.repeat(ids[ok], spec.chunks), "chunk_index": number, "kind": "text", "arrived_at_ns": arrived,
        "lag_ns": int(spec.read_lag_ms * MS), "exact": True, "read_index": number, "chars": 4,
    })  # fmt: skip
    # Parts hold the chunks of many requests, interleaved.
    order = np.argsort(arrived, kind="stable")
    of_worker = np.repeat(worker[ok], spec.chunks)
    return {name: values[order] for name, values in rows.items()}, of_worker[order]


def _health(
    spec: Spec, drops: int, attempts: dict[str, Any], of_worker: Any, arrivals: tuple[Any, Any]
) -> tuple[dict[str, Any], Any]:
    """`arrivals`: of each its worker and when it was due."""
    seconds = int(np.ceil(spec.duration_s)) + 1
    workers = len(spec.offsets_ns)
    at_s = np.tile(np.arange(1, seconds + 1), workers)
    by = np.repeat(np.arange(workers), seconds)
    begun = attempts["dispatched_at_ns"]
    over = np.nan_to_num(attempts["ended_at_ns"], nan=np.inf)
    in_flight = []
    handed = []
    for at, worker in zip(at_s, by, strict=True):
        is_open = (begun <= at * 1e9) & (over > at * 1e9) & (of_worker == worker)
        is_handed = (arrivals[0] == worker) & (arrivals[1] <= (at + AHEAD_S) * 1e9)
        in_flight.append(int(is_open.sum()))
        handed.append(int(is_handed.sum()))
    n = len(at_s)
    given = {name: np.resize(values, n) for name, values in spec.health.items()}
    return _filled(n, {
        "at_ns": at_s * 10**9, "in_flight": in_flight, "scheduled": handed, "client_drops": drops,
        "loop_lag_max_ns": int(spec.loop_lag_ms * MS), "receive_lag_max_ns": 150_000, "dispatch_late_max_ns": 300_000,
        "cpu_share": np.resize(spec.cpu_share, n).astype(float), "gc_pause_ns": 0, "rss_bytes": 90_000_000,
        "clock_step_ns": spec.clock_step_ns, "chunk_intervals": 0, **given,
    }), by  # fmt: skip


def _target(spec: Spec, ids: Any, first: Any, ok: Any) -> tuple[dict[str, Any], Any]:
    gaps = _ns(np.arange(spec.chunks) * spec.gap_ms)
    sent = np.empty(len(ok), object)
    for row, i in enumerate(ok):
        sent[row] = first[i] - 50_000 + gaps
    late_ns = np.broadcast_to(_ns(spec.endpoint_late_ms), spec.n)[ok]
    due = first[ok] - 50_000 - late_ns
    called = np.array([f"run/{i}/0/0" for i in ids[ok]], object)
    return _filled(len(ok), {
        "client_request_id": called, "request_id": ids[ok], "leg": 0, "attempt": 0, "protocol": "anthropic", "status": 200,
        "received_at_ns": first[ok] - 100 * MS, "chunk_sent_at_ns": sent, "first_due_at_ns": due,
        "last_due_at_ns": due + round((spec.chunks - 1) * spec.gap_ms * MS),
    }), np.zeros(len(ok), int)  # fmt: skip


def run_json(
    spec: Spec, tables: dict[str, Any], written: dict[tuple[str, int], int]
) -> dict[str, Any]:
    """The master's record, counted from the spec."""
    requests, master = tables["requests"]
    classes = list(requests["ended"])
    drops, censored = classes.count(schema.CLIENT_DROP), classes.count(schema.CENSORED)
    ended = {c: classes.count(c) for c in schema.ENDED_CLASSES if c in classes}
    scenario = {
        "name": "synthetic", "description": "a run with known numbers", "seed": 1,
        "arrival": {"process": "constant", "rate_per_s": spec.rate_per_s},
        "stages": {"duration_s": spec.duration_s, "warmup_s": spec.warmup_s, "cooldown_s": 0.0},
        "report": {"first_token": "any"}, "slo": spec.slo, **spec.scenario,
    }  # fmt: skip
    workers = []
    for worker, offset in enumerate(spec.offsets_ns):
        mine = [c for c, w in zip(classes, master, strict=True) if w == worker]
        workers.append({
            "worker": worker, "name": f"worker-{worker}", "host": "loadgen", "pid": 4000 + worker, "state": "drained",
            "clock": {"offset_ns": offset, "error_ns": spec.error_ns}, "stamps": spec.stamps,
            "counts": {"leased": len(mine), "dispatched": len(mine) - mine.count(schema.CLIENT_DROP),
                       "client_drop": mine.count(schema.CLIENT_DROP), "not_reached": 0,
                       "ended": {c: mine.count(c) for c in ended}, "censored": mine.count(schema.CENSORED)},
            "rows": {t: written[t, worker] for t in ("requests", "attempts", "chunks", "health")},
        })  # fmt: skip
    return {
        "schema_version": 1, "run_id": spec.run_id, "state": spec.state, "scenario": scenario,
        "scenario_file": "synthetic.toml", "overrides": [], "started_at": "2026-11-21T07:47:22Z",
        "start_at_ns": START_AT_NS, "admission_end_at_ns": START_AT_NS + round(spec.duration_s * 1e9),
        "ended_at_ns": START_AT_NS + round((spec.duration_s + 1) * 1e9), "seed": 1, "arrival": "open",
        "dry_run": False, "trace": None, "estimate": None, "engine_tokens": None, "tokens_per_word": None, "overhead_tokens": None, "second_target": None,
        "target": {"url": "http://127.0.0.1:8000", "simulated": True, "protocol": "anthropic"}, "patterns": PATTERNS,
        "versions": {"tailgauge": "0.1.0", "python": "3.11.9"},
        "master": {"host": "loadgen", "pid": 3999, "kernel": "6.1.0", "cpu_count": 2, "python": "3.11.9"},
        "workers": workers,
        "conservation": {"scheduled": spec.n + spec.lost + spec.not_reached, "dispatched": spec.n - drops,
                         "client_drop": drops, "not_reached": spec.not_reached, "lost": spec.lost, "ended": ended,
                         "censored": censored},
        "notes": [], "preflight": [{"ended": "ok", "status": 200, "message": "first content after 201 ms"}], "verdict": None,
    }  # fmt: skip
