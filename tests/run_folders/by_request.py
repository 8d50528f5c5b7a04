"""Runs told request by request, for what one array a column cannot say: several attempts, legs, traffic tables.

Times of a request are milliseconds since it was scheduled.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tailgauge.rows import schema

MS = 1_000_000
START_AT_NS = 81_234_567_890_123


@dataclass
class Mixed:
    """A run in the making."""

    synthetic: Any
    duration_s: float = 10.0
    warmup_s: float = 0.0
    run_id: str = "20261121T074722Z-mixed-1a2b"
    run: dict[str, Any] = field(default_factory=dict)  # changes of run.json
    requests: list[dict[str, Any]] = field(default_factory=list)
    attempts: list[dict[str, Any]] = field(default_factory=list)
    chunks: list[dict[str, Any]] = field(default_factory=list)

    def request(
        self, at_ms: float, attempts: list[dict[str, Any]], traffic: str = "chat", pattern: str = "streaming",
        ended: str = "ok", winner: int | None = 0, joined_ms: float | None = None, end_ms: float | None = None, **more: Any,
    ) -> int:  # fmt: skip
        """One request; each attempt is the arguments of `_attempt`."""
        number = len(self.requests)
        request_id, scheduled = number * schema.TURNS, round(at_ms * MS)
        stage = schema.WARMUP if at_ms < self.warmup_s * 1000 else schema.STEADY
        shared = {
            "request_id": request_id,
            "stage": stage,
            "traffic": traffic,
            "scheduled_at_ns": START_AT_NS + scheduled,
        }
        ends = [self._attempt(shared, **attempt) for attempt in attempts]
        dropped = ended == schema.CLIENT_DROP
        last = (
            end_ms
            if end_ms is not None
            else max([end for end in ends if end is not None], default=0.0)
        )
        at = shared["scheduled_at_ns"]
        self.requests.append({
            **shared, "pattern": pattern, "ended": ended, "winner": winner if ended == schema.OK else None,
            "dispatched_at_ns": None if dropped else at + 10_000,
            "ended_at_ns": None if dropped or ended == schema.CENSORED else at + round(last * MS),
            "joined_at_ns": None if joined_ms is None else at + round(joined_ms * MS),
            "legs": len({attempt.get("leg", 0) for attempt in attempts}), "attempts": len(attempts), **more,
        })  # fmt: skip
        return request_id

    def _attempt(
        self, shared: dict[str, Any], sent: float | None = 0.05, first: float | None = None, gap: float = 10.0,
        kinds: str = "xxx", leg: int = 0, attempt: int = 0, cause: str = "primary", ended: str = "ok",
        end: float | None = None, chars: int = 4, **more: Any,
    ) -> float | None:  # fmt: skip
        """One attempt; `kinds` has a letter a chunk of so many `chars`: x text, t thinking, j tool JSON. Returns its end in ms."""
        scheduled = shared["scheduled_at_ns"]
        names = {"x": schema.TEXT, "t": schema.THINKING, "j": schema.TOOL_JSON}
        arrived = [] if first is None else [first + i * gap for i in range(len(kinds))]
        at = [scheduled + round(t * MS) for t in arrived]
        firsts = {
            f"first_{names[k]}_at_ns": at[kinds.index(k)]
            for k in names
            if k in kinds and first is not None
        }
        if at and "t" in kinds:
            firsts["last_thinking_at_ns"] = at[kinds.rindex("t")]
        keys = {"leg": leg, "attempt": attempt}
        end = end if end is not None else arrived[-1] + 1 if arrived else (sent or 0.0) + 20
        self.attempts.append({
            **shared, **keys, "cause": cause, "protocol": "anthropic", "asked_model": "tiny", "model": "tiny",
            "dispatched_at_ns": scheduled + 10_000, "sent_at_ns": None if sent is None else scheduled + round(sent * MS),
            "first_content_at_ns": at[0] if at else None, "last_content_at_ns": at[-1] if at else None, **firsts,
            "ended_at_ns": None if ended == schema.CENSORED else scheduled + round(end * MS), "ended": ended,
            "status": 200 if at else 500, "output_tokens": len(kinds) if ended == schema.OK and at else None,
            "chunks": len(at), "receive_lag_max_ns": 90_000, "stamps": "kernel", "target": "main", "streamed": True, **more,
        })  # fmt: skip
        for i, t in enumerate(at):
            self.chunks.append({
                "request_id": shared["request_id"], **keys, "chunk_index": i, "kind": names[kinds[i]], "arrived_at_ns": t,
                "lag_ns": 30_000, "read_index": i, "chars": chars, "exact": True,
            })  # fmt: skip
        return end

    def write(self, folder: Path) -> Path:
        """The run folder."""
        folder.mkdir(parents=True, exist_ok=True)
        seconds = int(self.duration_s) + 1
        health = [
            {"at_ns": t, "cpu_share": 0.2, "loop_lag_max_ns": 400_000, "in_flight": self._open(t)}
            for t in (START_AT_NS + (i + 1) * 10**9 for i in range(seconds))
        ]
        rows = {
            "requests": self.requests,
            "attempts": self.attempts,
            "chunks": self.chunks,
            "health": health,
        }
        for table, listed in rows.items():
            self._part(folder, table, listed)
        spec = self.synthetic.Spec(
            n=len(self.requests), offsets_ns=(0,), warmup_s=self.warmup_s, run_id=self.run_id,
            ended={i: r["ended"] for i, r in enumerate(self.requests)},
        )  # fmt: skip
        counted = {
            "requests": ({"ended": [r["ended"] for r in self.requests]}, [0] * len(self.requests))
        }
        run = self.synthetic.run_json(
            spec, counted, {(t, 0): len(listed) for t, listed in rows.items()}
        )
        run["scenario"]["stages"]["duration_s"] = self.duration_s
        run["admission_end_at_ns"] = START_AT_NS + round(self.duration_s * 1e9)
        run["ended_at_ns"] = run["admission_end_at_ns"] + 10**9
        run.update({**self.run, "schema_version": schema.SCHEMA_VERSION})
        written: Path = self.synthetic.write_records(folder, run)
        return written

    def _open(self, at_ns: int) -> int:
        """Attempts in flight."""
        return sum(
            a["dispatched_at_ns"] <= at_ns and (a["ended_at_ns"] or at_ns + 1) > at_ns
            for a in self.attempts
        )

    def _part(self, folder: Path, table: str, listed: list[dict[str, Any]]) -> None:
        import pyarrow as pa
        import pyarrow.parquet as pq

        arrays = {}
        for column in schema.columns(table):
            absent = None if column.nullable else self.synthetic.ZEROS.get(column.kind, 0)
            values = [row.get(column.name, absent) for row in listed]
            arrays[column.name] = pa.array(values, self.synthetic.ARROW[column.kind])
        out = pa.table(arrays).replace_schema_metadata(
            {"tailgauge.schema_version": str(schema.SCHEMA_VERSION)}
        )
        path = folder / table / "part-0-0.parquet"
        path.parent.mkdir(parents=True, exist_ok=True)
        pq.write_table(out, path, compression="zstd")
