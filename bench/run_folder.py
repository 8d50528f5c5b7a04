"""Writes a run folder of any size, as workers would, without a run.

Schema, types and encoding are those of the recorder (`tailgauge.rows.parquet`). The values are drawn in numpy, a block of
answers at a time, so that a hundred million chunk rows need little memory. Four traffic tables fill every section of a
report: plain streaming with rejections and retries, cached prefixes, hedged calls, fan-outs.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from tailgauge.rows import schema as records
from tailgauge.rows.parquet import GROUP, by_attempt, encoding, schema
from tailgauge.scenario.model import parse

MS, SECOND = 1_000_000, 1_000_000_000
START_AT_NS = 81_234_567_890_123
CHUNKS = 200  # of an answer
RATE_PER_S = 100.0
LEGS = 4  # of a fan-out
BLOCK = 1_000_000  # chunk rows of a row group, as the recorder folds them
NOTHING: Any = None
ROW_SHARE = 0.985  # of the chunks that every leg in full would give: refusals and errors have none
CHAT, ASSISTANT, SEARCH, TEAM = range(4)
NAMES = np.array(["chat", "assistant", "search", "team"], object)
PATTERNS = np.array(["streaming", "cached", "hedged", "fan_out"], object)
WEIGHTS = np.array([0.5, 0.25, 0.15, 0.1])
PREFIX_TOKENS, PROMPT_TOKENS = 4096, 400
Columns = dict[str, Any]


def write(folder: Path, rows: int, workers: int = 4, seed: int = 1) -> int:
    """Write a run of about `rows` chunk rows into an empty folder; returns how many there are."""
    rng = np.random.default_rng(seed)
    n = max(200, round(rows / (CHUNKS * ROW_SHARE * (1 + (LEGS - 1) * WEIGHTS[TEAM]))))
    requests = _requests(rng, n)
    attempts = _attempts(rng, requests)
    counts: dict[tuple[str, int], int] = {}
    by = {"requests": requests["request_id"] // records.TURNS % workers}
    by["attempts"] = attempts["request_id"] // records.TURNS % workers
    for worker in range(workers):
        counts["chunks", worker] = _chunks(
            folder, worker, rng, attempts, np.flatnonzero(by["attempts"] == worker)
        )
    _settle(requests, attempts)
    health = _health(rng, requests, attempts, workers, by)
    by["health"] = health.pop("worker")
    for name, columns in (("requests", requests), ("attempts", attempts), ("health", health)):
        for worker in range(workers):
            mine = np.flatnonzero(by[name] == worker)
            counts[name, worker] = len(mine)
            with _writer(folder, name, worker) as writer:
                writer.write_table(_table(name, columns, mine))
    run = _run(requests, by["requests"], counts, workers)
    (folder / "run.json").write_text(json.dumps(run, indent=1))
    return held(folder)


def held(folder: Path) -> int:
    """Chunk rows of a run folder."""
    return sum(pq.read_metadata(part).num_rows for part in (folder / "chunks").glob("*.parquet"))


def _requests(rng: np.random.Generator, n: int) -> Columns:
    kind = rng.choice(4, n, p=WEIGHTS)
    scheduled = np.sort(rng.uniform(0, n / RATE_PER_S * 1e9, n)).astype(np.int64)
    warm = scheduled < n / RATE_PER_S * 1e8
    ended = np.full(n, records.OK, object)
    for share, name in (
        (0.004, records.SERVER_ERROR),
        (0.002, records.TIMEOUT),
        (0.001, records.CLIENT_DROP),
    ):
        ended[(rng.random(n) < share) & (kind != TEAM)] = name
    dropped = ended == records.CLIENT_DROP
    return {
        "request_id": np.arange(n) * records.TURNS, "stage": np.where(warm, records.WARMUP, records.STEADY),
        "traffic": NAMES[kind], "pattern": PATTERNS[kind], "scheduled_at_ns": scheduled, "ended": ended,
        "dispatched_at_ns": np.where(dropped, np.nan, scheduled + 20_000.0), "ended_at_ns": np.full(n, np.nan),
        "legs": np.where(dropped, 0, np.where(kind == TEAM, LEGS, 1)), "attempts": np.zeros(n, int),
        "asked_prompt_tokens": np.full(n, PROMPT_TOKENS), "asked_output_tokens": np.full(n, CHUNKS),
        "tags": np.where(kind == CHAT, '{"tier": "free"}', NOTHING), "winner": np.full(n, np.nan),
        "joined_at_ns": np.full(n, np.nan),
    }  # fmt: skip


def _attempts(rng: np.random.Generator, requests: Columns) -> Columns:
    """One row a call, in order of its request; what depends on the chunks is filled in with them."""
    of = np.repeat(np.arange(len(requests["legs"])), requests["legs"])
    leg = np.arange(len(of)) - np.searchsorted(of, of)
    refused = of[(rng.random(len(of)) < 0.03) & (requests["traffic"][of] == "chat")]
    hedged = of[(rng.random(len(of)) < 0.1) & (requests["traffic"][of] == "search")]
    second = np.concatenate((refused, hedged))  # these have an attempt more
    of, leg = np.concatenate((of, second)), np.concatenate((leg, np.zeros(len(second), int)))
    number = (np.arange(len(of)) >= len(of) - len(second)).astype(int)
    order = np.lexsort((number, leg, of))
    of, leg, number = of[order], leg[order], number[order]
    n, traffic = len(of), requests["traffic"][of]
    is_refused = np.isin(of, refused) & (number == 0)
    is_hedged = np.isin(of, hedged)
    won = is_hedged & (number == 1) & (of % 2 == 0)
    lost = is_hedged & ~won & ((number == 0) == (of % 2 == 0))
    ended = requests["ended"][of].copy()
    lost &= ended == records.OK
    ended[is_refused], ended[lost] = records.RATE_LIMITED, records.CANCELLED
    later = np.where(number == 0, 0, np.where(is_hedged, 400 * MS, 1_000 * MS))
    dispatched = requests["scheduled_at_ns"][of] + 20_000 + later
    sent = dispatched + rng.integers(20_000, 120_000, n)
    cached = traffic == "assistant"
    hit = cached & (rng.random(n) < 0.9)
    load = 1 + 0.5 * np.sin(dispatched / (60 * SECOND) * 2 * np.pi)
    ttft = np.exp(rng.normal(0, 0.5, n)) * 250 * MS * load + np.where(cached & ~hit, 120 * MS, 0)
    slow = (traffic == "search") & (rng.random(n) < 0.1)
    first = sent + np.where(slow, 4, 1) * ttft
    requests["attempts"] += np.bincount(of, minlength=len(requests["legs"]))
    requests["winner"][:] = np.where(
        (requests["ended"] == records.OK) & (requests["legs"] == 1), 0, np.nan
    )
    answered = np.isin(ended, (records.OK,))
    requests["winner"][of[answered & (leg == 0) & (requests["legs"][of] == 1)]] = number[
        answered & (leg == 0) & (requests["legs"][of] == 1)
    ]
    prefix = rng.choice(3, n, p=(0.55, 0.27, 0.18))
    new = rng.random(n) < 0.01
    return {
        "request_id": requests["request_id"][of], "leg": leg, "attempt": number,
        "cause": np.where(number == 0, records.PRIMARY, np.where(is_hedged, records.HEDGE, records.RETRY)),
        "of_attempt": np.where(number == 0, np.nan, 0), "stage": requests["stage"][of], "traffic": traffic,
        "protocol": np.full(n, "anthropic"), "asked_model": np.full(n, "tiny"), "model": np.full(n, "tiny"),
        "scheduled_at_ns": requests["scheduled_at_ns"][of], "dispatched_at_ns": dispatched, "sent_at_ns": sent,
        "headers_at_ns": np.where(answered, first - 5 * MS, sent + 30 * MS), "ended": ended,
        "first_content_at_ns": np.where(answered | lost, first, np.nan).round(),
        "ended_at_ns": (sent + 50 * MS).astype(float), "chunks": np.where(answered, CHUNKS, np.where(lost, CHUNKS // 4, 0)),
        "status": np.where(answered | lost, 200, np.where(is_refused, 429, 500)),
        "limit_kind": np.where(is_refused, "requests", NOTHING), "retry_after_s": np.where(is_refused, 1.0, np.nan),
        "error_type": np.where(is_refused, "rate_limit_error", np.where(answered | lost, NOTHING, "api_error")),
        "rate_limit_headers": _headers(n, dispatched), "connection_is_new": new, "connection": np.arange(n) % 500,
        "connect_ns": np.where(new, 80_000.0, np.nan), "dns_ns": np.where(new, 20_000.0, np.nan),
        "receive_lag_max_ns": np.full(n, 90_000), "stamps": np.full(n, "kernel"), "target": np.full(n, "main"),
        "streamed": np.full(n, True), "output_tokens": np.where(answered, float(CHUNKS), np.nan),
        "input_tokens": np.where(answered, float(PROMPT_TOKENS), np.nan),
        "cache_read_input_tokens": np.where(answered, np.where(hit, float(PREFIX_TOKENS), 0.0), np.nan),
        "cache_creation_input_tokens": np.where(answered, np.where(cached & ~hit, float(PREFIX_TOKENS), 0.0), np.nan),
        "cache_creation_5m_input_tokens": np.where(answered, np.where(cached & ~hit, float(PREFIX_TOKENS), 0.0), np.nan),
        "prefix": np.where(cached, prefix, np.nan), "prefix_hash": np.where(cached, NAMES[prefix], NOTHING),
        "params_hash": np.where(cached, "5f3a", NOTHING), "cache_expected": np.where(cached, records.WARM, NOTHING),
        "cache_marks": np.where(cached, 1.0, np.nan), "cache_ttl": np.where(cached, "5m", NOTHING),
        "cache_since_use_ns": np.where(cached, rng.uniform(0, 3e8, n).round(), np.nan),
        "cache_writers": np.where(cached, 0.0, np.nan), "cache_blocks": np.where(cached, 0.0, np.nan),
        "phases": np.where(cached, '{"queue;dur": 3000000, "model;dur": 180000000}', NOTHING),
    }  # fmt: skip


def _headers(n: int, at_ns: Any) -> Any:
    """What a provider says of one limit with every response."""
    left = 4000 - (np.arange(n) * 37) % 3900
    resets = np.datetime_as_string(
        np.datetime64("2026-11-21T07:47:22") + (at_ns // SECOND).astype("timedelta64[s]")
    )
    name = "anthropic-ratelimit-requests"
    texts = [
        f'{{"{name}-limit": "4000", "{name}-remaining": "{rest}", "{name}-reset": "{reset}Z"}}'
        for rest, reset in zip(left, resets, strict=True)
    ]
    return np.array(texts, object)


def _chunks(
    folder: Path, worker: int, rng: np.random.Generator, attempts: Columns, mine: Any
) -> int:
    """A worker's chunks, block by block; each block is sorted by the second in which it was flushed."""
    attempts.setdefault("last_content_at_ns", np.full(len(attempts["chunks"]), np.nan))
    mine = mine[attempts["chunks"][mine] > 0]
    written = 0
    with _writer(folder, "chunks", worker) as writer:
        for some in np.array_split(mine, max(1, int(attempts["chunks"][mine].sum()) // BLOCK)):
            sizes = attempts["chunks"][some]
            row, begin = np.repeat(some, sizes), np.cumsum(sizes) - sizes
            index = np.arange(len(row)) - np.repeat(begin, sizes)
            gaps = np.exp(rng.normal(0, 0.5, len(row))) * 20 * MS
            gaps[rng.random(len(row)) < 0.00002] = 2500 * MS
            together = rng.random(len(row)) < 0.05  # in one read with the chunk before
            gaps = np.where(
                index == 0,
                attempts["first_content_at_ns"][row],
                np.where(together, 0, gaps.round()),
            )
            arrived = _within(gaps, begin, sizes).astype(np.int64)
            attempts["last_content_at_ns"][some] = arrived[begin + sizes - 1]
            low = np.append(together[1:] & (index[1:] > 0), [False]) if len(row) else together
            order = np.lexsort((index, row, arrived // SECOND))
            columns = {
                "request_id": attempts["request_id"][row], "leg": attempts["leg"][row], "attempt": attempts["attempt"][row],
                "chunk_index": index, "arrived_at_ns": arrived, "low_at_ns": np.where(low, arrived - 1.0 * MS, np.nan),
                "exact": ~low, "lag_ns": rng.integers(15_000, 90_000, len(row)), "read_index": index,
                "chars": rng.integers(2, 9, len(row)),
            }  # fmt: skip
            columns["kind"] = pa.DictionaryArray.from_arrays(
                pa.array((index < 3) & (row % 10 == 0), pa.bool_()).cast(pa.int8()), pa.array([records.TEXT, records.THINKING])
            ).cast(pa.string()).take(pa.array(order))  # fmt: skip
            rows = _table("chunks", columns, order)
            for begin_at in range(0, len(rows), GROUP):  # as compaction leaves them
                writer.write_table(
                    by_attempt(rows[begin_at : begin_at + GROUP]), row_group_size=GROUP
                )
            written += len(row)
    return written


def _within(gaps: Any, begin: Any, sizes: Any) -> Any:
    """Running sums, begun anew with every answer."""
    firsts = gaps[begin]
    steps = gaps.copy()
    steps[begin] = 0
    total = np.cumsum(steps)
    return total - np.repeat(total[begin], sizes) + np.repeat(firsts, sizes)


def _settle(requests: Columns, attempts: Columns) -> None:
    """Ends that are known once the chunks are: of the calls, and of the requests."""
    has = attempts["chunks"] > 0
    last = attempts["last_content_at_ns"]
    attempts["ended_at_ns"] = np.where(has, last + MS, attempts["ended_at_ns"])
    for name in ("first_event_at_ns", "first_text_at_ns"):
        attempts[name] = attempts["first_content_at_ns"]
    place = attempts["request_id"] // records.TURNS
    end = np.full(len(requests["legs"]), -np.inf)
    answers = attempts["ended"] != records.CANCELLED
    np.maximum.at(end, place[answers], attempts["ended_at_ns"][answers])
    requests["ended_at_ns"] = np.where(np.isfinite(end), end, np.nan)
    requests["joined_at_ns"] = np.where(requests["pattern"] == "fan_out", end, np.nan)


def _health(
    rng: np.random.Generator, requests: Columns, attempts: Columns, workers: int, by: Columns
) -> Columns:
    seconds = int(np.nanmax(requests["ended_at_ns"]) // SECOND) + 1
    at = np.arange(1, seconds + 1) * SECOND
    entries: list[Any] = []
    for worker in range(workers):
        mine = by["attempts"] == worker
        begun, over = (np.sort(attempts[f"{name}_at_ns"][mine]) for name in ("dispatched", "ended"))
        entries.append(np.searchsorted(begun, at, "right") - np.searchsorted(over, at, "right"))
    n = seconds * workers
    return {
        "worker": np.repeat(np.arange(workers), seconds), "at_ns": np.tile(at, workers), "in_flight": np.concatenate(entries),
        "loop_lag_max_ns": rng.integers(100_000, 900_000, n), "receive_lag_max_ns": np.full(n, 150_000),
        "dispatch_late_max_ns": np.full(n, 300_000), "cpu_share": rng.uniform(0.1, 0.4, n),
        "rss_bytes": np.full(n, 90_000_000), "clock_step_ns": np.full(n, 1_000),
    }  # fmt: skip


def _writer(folder: Path, table: str, worker: int) -> pq.ParquetWriter:
    """The file that a worker's recorder leaves when it closes."""
    target = schema(table, replaces="")
    path = folder / table / f"part-{worker}-all.parquet"
    path.parent.mkdir(parents=True, exist_ok=True)
    return pq.ParquetWriter(path, target, **encoding(target))


def _table(name: str, columns: Columns, rows: Any) -> pa.Table:
    """Rows of the record's columns on the worker's clock; what is not given is null, or zero."""
    target, arrays = schema(name, replaces=""), []
    for field in target:
        values = columns.get(field.name)
        if values is None:
            nothing = (
                None
                if field.nullable
                else ""
                if pa.types.is_string(field.type)
                else False
                if pa.types.is_boolean(field.type)
                else 0
            )
            arrays.append(pa.repeat(pa.scalar(nothing, field.type), len(rows)))
        elif isinstance(values, pa.Array):
            arrays.append(values)
        else:
            values = values[rows]
            mask = np.isnan(values) if values.dtype.kind == "f" else None
            if mask is not None and pa.types.is_integer(field.type):
                values = np.where(mask, 0, values).astype(np.int64)
            if field.name == "at_ns" or field.name.endswith("_at_ns"):
                values = values + START_AT_NS
            arrays.append(pa.array(values, mask=mask).cast(field.type))
    return pa.Table.from_arrays(arrays, schema=target)


def _run(
    requests: Columns, worker_of: Any, counts: dict[tuple[str, int], int], workers: int
) -> Columns:
    """What the master would have written of it."""
    n = len(requests["ended"])
    duration = n / RATE_PER_S
    scenario = parse({
        "name": "bench", "arrival": {"rate_per_s": RATE_PER_S}, "stages": {"duration_s": duration, "warmup_s": duration / 10},
        "target": {"url": "http://127.0.0.1:8000", "protocol": "anthropic"},
        "slo": {"first": {"metric": "ttft_sched", "quantile": 0.99, "max_ms": 5000}, "gaps": {"metric": "chunk_gap", "max_ms": 100}},
        "traffic": {
            "chat": {"pattern": "streaming", "retry": {"policy": "polite"}, "tags": {"tier": "free"}},
            "assistant": {"pattern": "cached", "cache": {"prefixes": 3, "system_tokens": PREFIX_TOKENS, "breakpoints": ["system"], "ttl": "5m"}},
            "search": {"pattern": "hedged", "hedge": {"policy": "fixed", "delay_ms": 400}},
            "team": {"pattern": "fan_out", "fan_out": {"legs": LEGS}},
        },
    }, "bench").model_dump(mode="json")  # fmt: skip
    entries = []
    for worker in range(workers):
        kinds, number = np.unique(
            requests["ended"][worker_of == worker].astype(str), return_counts=True
        )
        ended = dict(zip(kinds.tolist(), number.tolist(), strict=True))
        drops = ended.pop(records.CLIENT_DROP, 0)
        whole = sum(ended.values())
        entries.append({
            "worker": worker, "name": f"worker-{worker}", "host": "bench", "pid": 1 + worker, "state": "drained", "stamps": "kernel",
            "leased": whole + drops, "clock": {"offset_ns": 0, "error_ns": 20_000},
            "counts": {"leased": whole + drops, "dispatched": whole, "client_drop": drops, "not_reached": 0, "ended": ended, "censored": 0},
            "rows": {name: count for (name, of), count in counts.items() if of == worker},
        })  # fmt: skip
    kinds, number = np.unique(requests["ended"].astype(str), return_counts=True)
    ended = dict(zip(kinds.tolist(), number.tolist(), strict=True))
    drops = ended.pop(records.CLIENT_DROP, 0)
    return {
        "schema_version": records.SCHEMA_VERSION, "run_id": "20261121T074722Z-bench-0001", "state": "complete", "scenario": scenario,
        "scenario_file": "bench.toml", "overrides": [], "started_at": "2026-11-21T07:47:22Z", "start_at_ns": START_AT_NS,
        "admission_end_at_ns": START_AT_NS + round(duration * 1e9), "seed": 1, "arrival": "open", "notes": [], "preflight": [],
        "ended_at_ns": START_AT_NS + round(float(np.nanmax(requests["ended_at_ns"]))) + SECOND,
        "target": {"url": "http://127.0.0.1:8000", "simulated": False, "protocol": "anthropic"},
        "versions": {"tailgauge": "0.1.0"}, "master": {"host": "bench", "pid": 1, "cpu_count": 2}, "workers": entries,
        "conservation": {
            "scheduled": n, "dispatched": n - drops, "client_drop": drops, "not_reached": 0, "lost": 0, "ended": ended, "censored": 0,
        },
    }  # fmt: skip
