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
KINDS = {"x": schema.TEXT, "t": schema.THINKING, "j": schema.TOOL_JSON}


def _after(due_ns: int, ms: float | None) -> int | None:
    return None if ms is None else due_ns + round(ms * MS)


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
        request_id = len(self.requests) * schema.TURNS
        due_ns = START_AT_NS + round(at_ms * MS)
        shared = {
            "request_id": request_id,
            "stage": schema.WARMUP if at_ms < self.warmup_s * 1000 else schema.STEADY,
            "traffic": traffic,
            "scheduled_at_ns": due_ns,
        }
        ends_ms = [self._attempt(shared, **attempt) for attempt in attempts]
        if end_ms is None:
            end_ms = max([end for end in ends_ms if end is not None], default=0.0)
        is_sent = ended != schema.CLIENT_DROP
        is_over = is_sent and ended != schema.CENSORED
        self.requests.append({
            **shared, "pattern": pattern, "ended": ended, "winner": winner if ended == schema.OK else None,
            "dispatched_at_ns": due_ns + 10_000 if is_sent else None,
            "ended_at_ns": due_ns + round(end_ms * MS) if is_over else None, "joined_at_ns": _after(due_ns, joined_ms),
            "legs": len({attempt.get("leg", 0) for attempt in attempts}), "attempts": len(attempts), **more,
        })  # fmt: skip
        return request_id

    def _attempt(
        self, shared: dict[str, Any], sent: float | None = 0.05, first: float | None = None, gap: float = 10.0,
        kinds: str = "xxx", leg: int = 0, attempt: int = 0, cause: str = "primary", ended: str = "ok",
        end: float | None = None, chars: int = 4, **more: Any,
    ) -> float | None:  # fmt: skip
        """One attempt; `kinds` has a letter a chunk of so many `chars`: x text, t thinking, j tool JSON. Returns its end in ms."""
        due_ns = shared["scheduled_at_ns"]
        if first is None:
            kinds = ""
        arrived_ms = [first + i * gap for i in range(len(kinds))]
        arrived_ns = [due_ns + round(ms * MS) for ms in arrived_ms]
        times = {}
        for kind, name in KINDS.items():
            if kind in kinds:
                times[f"first_{name}_at_ns"] = arrived_ns[kinds.index(kind)]
        if "t" in kinds:
            times["last_thinking_at_ns"] = arrived_ns[kinds.rindex("t")]
        if kinds:
            times |= {"first_content_at_ns": arrived_ns[0], "last_content_at_ns": arrived_ns[-1]}
        if end is None:
            end = arrived_ms[-1] + 1 if kinds else (sent or 0.0) + 20
        is_ok = ended == schema.OK and kinds
        keys = {"leg": leg, "attempt": attempt}
        self.attempts.append({
            **shared, **keys, "cause": cause, "protocol": "anthropic", "asked_model": "tiny", "model": "tiny",
            "dispatched_at_ns": due_ns + 10_000, "sent_at_ns": _after(due_ns, sent), **times,
            "ended_at_ns": None if ended == schema.CENSORED else due_ns + round(end * MS), "ended": ended,
            "status": 200 if kinds else 500, "output_tokens": len(kinds) if is_ok else None, "chunks": len(kinds),
            "receive_lag_max_ns": 90_000, "stamps": "kernel", "target": "main", "streamed": True, **more,
        })  # fmt: skip
        for i, at_ns in enumerate(arrived_ns):
            self.chunks.append({
                "request_id": shared["request_id"], **keys, "chunk_index": i, "kind": KINDS[kinds[i]], "arrived_at_ns": at_ns,
                "lag_ns": 30_000, "read_index": i, "chars": chars, "exact": True,
            })  # fmt: skip
        return end

    def write(self, folder: Path) -> Path:
        """The run folder."""
        health = []
        for second in range(1, int(self.duration_s) + 2):
            at_ns = START_AT_NS + second * 10**9
            in_flight = sum(
                a["dispatched_at_ns"] <= at_ns and (a["ended_at_ns"] or at_ns + 1) > at_ns
                for a in self.attempts
            )
            row = {"at_ns": at_ns, "cpu_share": 0.2, "loop_lag_max_ns": 400_000}
            health.append({**row, "in_flight": in_flight})
        rows = {
            "requests": self.requests,
            "attempts": self.attempts,
            "chunks": self.chunks,
            "health": health,
        }
        for table, listed in rows.items():
            self._part(folder, table, listed)
        ended = [request["ended"] for request in self.requests]
        spec = self.synthetic.Spec(
            n=len(ended), offsets_ns=(0,), warmup_s=self.warmup_s, run_id=self.run_id,
            ended=dict(enumerate(ended)),
        )  # fmt: skip
        counted = {"requests": ({"ended": ended}, [0] * len(ended))}
        written = {(table, 0): len(listed) for table, listed in rows.items()}
        run = self.synthetic.run_json(spec, counted, written)
        run["scenario"]["stages"]["duration_s"] = self.duration_s
        run["admission_end_at_ns"] = START_AT_NS + round(self.duration_s * 1e9)
        run["ended_at_ns"] = run["admission_end_at_ns"] + 10**9
        run.update({**self.run, "schema_version": schema.SCHEMA_VERSION})
        path: Path = self.synthetic.write_records(folder, run)
        return path

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
