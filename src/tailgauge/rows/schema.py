"""The schema of a run: its tables, their columns with unit and meaning. Workers append these rows, the analysis reads them.

A row class is the one place where a column is named; `columns()` reads it for the writer, the reader and the docs.

Times are `<event>_at_ns`: int64 nanoseconds of the worker's CLOCK_MONOTONIC (the loader maps them to the run clock).
`<event>_low_at_ns` marks a time that is only known to lie in (low, at]: several events shared one socket read, and the
kernel timestamps its last byte. Null: did not happen, or the target does not report it.

Schema history (docs/data-format.md repeats it; every version has a fixture that must still load):
  1  0.1.0  first version
  2  0.1.0  target: engine, cancellation, bill, cache, limits and faults of the simulated endpoint
  3  0.1.0  requests: name, tags, winner, join, suppressed hedges; attempts: target, streaming, thinking, tools, fields,
            phases, slow readers, and what the client expected of the prompt cache
  4  0.1.0  health: interval timestamps, quantiles of receive lag and dispatch delay, waits for connections, TCP
            losses; attempts: the wait for a connection; chunks: exact, gap_ns and lag_ns, which are null where
            they follow from the previous row
  5  0.1.0  names only: handover_* -> receive_lag_*; run.json: owner -> master, virtual -> dry_run
"""

from __future__ import annotations

from array import array
from dataclasses import dataclass, field, fields
from functools import cache
from typing import Annotated, get_type_hints

SCHEMA_VERSION = 5

# How an attempt, a leg or a request ended. `client_drop` is a request only: it was never sent.
OK = "ok"
EMPTY = "empty"  # complete, without content: TTFT is null
CANCELLED = "cancelled"  # by the traffic pattern: a hedge's loser, a user who left
RATE_LIMITED = "rate_limited"  # 429
OVERLOADED = "overloaded"  # 529 or 503
SERVER_ERROR = "server_error"  # other 5xx
CLIENT_ERROR = "client_error"  # other 4xx, or a reply that is not the protocol
CONNECT_ERROR = "connect_error"  # no response: DNS, TCP, TLS, or the connection lost before the headers
TIMEOUT = "timeout"  # the attempt's deadline
STREAM_ERROR = "stream_error"  # an error event after HTTP 200, or a stream that is not what it says
TRUNCATED = "truncated"  # the body ended without the protocol's end mark
CENSORED = "censored"  # still in flight when the drain ended
CLIENT_DROP = "client_drop"  # arrived at the in-flight cap and was not sent
ENDED_CLASSES = (
    OK, EMPTY, CANCELLED, RATE_LIMITED, OVERLOADED, SERVER_ERROR, CLIENT_ERROR, CONNECT_ERROR, TIMEOUT, STREAM_ERROR,
    TRUNCATED,
)  # fmt: skip

# Stages of a run. Preflight stands outside every statistic.
PREFLIGHT = "preflight"
WARMUP = "warmup"
STEADY = "steady"
COOLDOWN = "cooldown"
STAGES = (PREFLIGHT, WARMUP, STEADY, COOLDOWN)

# Kinds of content chunk.
TEXT = "text"
THINKING = "thinking"
TOOL_JSON = "tool_json"
CHUNK_KINDS = (TEXT, THINKING, TOOL_JSON)

# Causes of an attempt.
PRIMARY = "primary"
RETRY = "retry"
HEDGE = "hedge"
FALLBACK = "fallback"  # another model, because the first was late or failed
RESUBMIT = "resubmit"  # the user left and asked again
POLL = "poll"  # asking whether a batch has ended, and fetching it
CAUSES = (PRIMARY, RETRY, HEDGE, FALLBACK, RESUBMIT, POLL)

# What counts as the answer of a request, by its pattern.
SINGLE = "single"  # the answer that leg 0 got
EARLIEST_LEG = "earliest_leg"  # the same, but the user sees first whichever leg comes first
JOIN = "join"  # the moment at which its legs are joined; it has no answer of its own
TURNAROUND = "turnaround"  # its end: results that nobody waits for as they come
ANSWERS = (SINGLE, EARLIEST_LEG, JOIN, TURNAROUND)

# Why no hedge was sent although it was due.
HEDGE_HELD = ("budget", "throttle", "pushback", "retry")

# What the client expects of a prompt cache.
COLD, WARM, UNKNOWN = "cold", "warm", "unknown"
CACHE_STATES = (COLD, WARM, UNKNOWN)

TURNS = 65536  # request_id = arrival index * TURNS + session turn


@dataclass(frozen=True, slots=True)
class Column:
    """One column of a table: Arrow type name, whether null is allowed, meaning with unit."""

    name: str
    kind: str
    nullable: bool
    meaning: str


def _c(kind: str, meaning: str) -> tuple[str, str]:
    return (kind, meaning)


@dataclass(slots=True)
class RequestRow:
    """What the user wanted: one prompt, one fan-out, one session turn."""

    request_id: Annotated[int, _c("int64", "arrival index * 65536 + session turn; negative for preflight")]
    stage: Annotated[str, _c("string", "preflight, warmup, steady or cooldown, by scheduled time")]
    traffic: Annotated[str, _c("string", "name of the scenario's traffic table")]
    pattern: Annotated[str, _c("string", "traffic pattern: streaming, cached, fan_out, ...")]
    session_id: Annotated[
        int | None,
        _c("int64", "request_id of the session's or the user's first turn; null for single requests"),
    ]
    scheduled_at_ns: Annotated[int, _c("int64", "planned arrival; user-visible latency starts here")]
    dispatched_at_ns: Annotated[int | None, _c("int64", "its pattern started; null for client_drop")]
    ended_at_ns: Annotated[int | None, _c("int64", "outcome known; null if censored or dropped")]
    ended: Annotated[str, _c("string", "class of the outcome, censored, or client_drop")]
    legs: Annotated[int, _c("int16", "number of legs; 0 for client_drop")]
    attempts: Annotated[int, _c("int16", "HTTP calls made, retries and hedges included")]
    asked_prompt_tokens: Annotated[int, _c("int32", "scheduled prompt size")]
    asked_output_tokens: Annotated[int, _c("int32", "scheduled max_tokens")]
    name: Annotated[str | None, _c("string", "name of the prompt in its file, null without one")] = None
    tags: Annotated[str | None, _c("string", "tags of the traffic table and of the prompt, as JSON")] = None
    winner: Annotated[int | None, _c("int16", "attempt of leg 0 whose answer was used")] = None
    joined_at_ns: Annotated[int | None, _c("int64", "with several legs: the join condition was met")] = None
    hedge_held: Annotated[
        str | None, _c("string", "why a due hedge was not sent: budget, throttle, pushback or retry")
    ] = None


@dataclass(slots=True)
class AttemptRow:
    """One HTTP call of a leg: primary, retry or hedge."""

    request_id: Annotated[int, _c("int64", "its request")]
    leg: Annotated[int, _c("int16", "leg of the request; 0 if there is only one")]
    attempt: Annotated[int, _c("int16", "number within the leg, from 0")]
    cause: Annotated[str, _c("string", "primary, retry, hedge, fallback, resubmit or poll")]
    of_attempt: Annotated[
        int | None, _c("int16", "the attempt that it repeats or hedges; null for a primary")
    ]
    stage: Annotated[str, _c("string", "the request's stage")]
    traffic: Annotated[str, _c("string", "the request's traffic table")]
    protocol: Annotated[str, _c("string", "anthropic, openai or sse")]
    asked_model: Annotated[str, _c("string", "model named in the request")]
    scheduled_at_ns: Annotated[int, _c("int64", "the request's planned arrival")]
    dispatched_at_ns: Annotated[int, _c("int64", "the attempt was started")]
    sent_at_ns: Annotated[int | None, _c("int64", "first request byte passed to the kernel")] = None
    headers_at_ns: Annotated[int | None, _c("int64", "response headers complete")] = None
    first_byte_at_ns: Annotated[int | None, _c("int64", "first byte of the response")] = None
    first_event_at_ns: Annotated[int | None, _c("int64", "first SSE event of any kind, pings excepted")] = (
        None
    )
    first_content_at_ns: Annotated[int | None, _c("int64", "first non-empty content delta of any kind")] = (
        None
    )
    first_content_low_at_ns: Annotated[
        int | None, _c("int64", "lower end of first_content, null if exact")
    ] = None
    first_content_read_at_ns: Annotated[int | None, _c("int64", "the worker's clock at that read")] = None
    first_text_at_ns: Annotated[int | None, _c("int64", "first non-empty text delta")] = None
    first_text_low_at_ns: Annotated[int | None, _c("int64", "lower end of first_text, null if exact")] = None
    last_content_at_ns: Annotated[int | None, _c("int64", "last non-empty content delta")] = None
    last_content_low_at_ns: Annotated[int | None, _c("int64", "lower end of last_content, null if exact")] = (
        None
    )
    stopped_at_ns: Annotated[int | None, _c("int64", "the protocol's end mark: message_stop or [DONE]")] = (
        None
    )
    ended_at_ns: Annotated[int | None, _c("int64", "last byte, or the failure; null when censored")] = None
    cancelled_at_ns: Annotated[int | None, _c("int64", "the client closed the connection")] = None
    ended: Annotated[str, _c("string", "class of the outcome, or censored")] = CENSORED
    limit_kind: Annotated[
        str | None, _c("string", "of a 429: requests, input_tokens, output_tokens, ...")
    ] = None
    status: Annotated[int | None, _c("int16", "HTTP status")] = None
    error_type: Annotated[
        str | None,
        _c(
            "string",
            "error name of the target or the system, or a protocol violation: see docs/security.md",
        ),
    ] = None
    error_body: Annotated[str | None, _c("string", "first 2 kB of the error, secrets removed")] = None
    retry_after_s: Annotated[float | None, _c("float64", "retry-after header, in seconds")] = None
    rate_limit_headers: Annotated[str | None, _c("string", "every rate-limit header, as a JSON object")] = (
        None
    )
    server_request_id: Annotated[str | None, _c("string", "the server's id of the call")] = None
    connection: Annotated[int | None, _c("int32", "number of the connection within the worker")] = None
    connection_is_new: Annotated[bool | None, _c("bool", "this attempt opened the connection")] = None
    dns_ns: Annotated[int | None, _c("int64", "name look-up, new connections only")] = None
    connect_ns: Annotated[int | None, _c("int64", "TCP connect, new connections only")] = None
    tls_ns: Annotated[int | None, _c("int64", "TLS handshake, new connections only")] = None
    stop_reason: Annotated[str | None, _c("string", "in the protocol's terms")] = None
    model: Annotated[str | None, _c("string", "model named by the response")] = None
    input_tokens: Annotated[
        int | None, _c("int64", "uncached remainder of the prompt, for every protocol")
    ] = None
    cache_read_input_tokens: Annotated[int | None, _c("int64", "prompt tokens read from a cache")] = None
    cache_creation_input_tokens: Annotated[int | None, _c("int64", "prompt tokens written to a cache")] = None
    cache_creation_5m_input_tokens: Annotated[int | None, _c("int64", "of these, with a 5-minute TTL")] = None
    cache_creation_1h_input_tokens: Annotated[int | None, _c("int64", "of these, with a 1-hour TTL")] = None
    output_tokens: Annotated[
        int | None, _c("int64", "tokens generated, thinking included; from the last usage")
    ] = None
    thinking_tokens: Annotated[int | None, _c("int64", "of these, thinking")] = None
    chunks: Annotated[int, _c("int32", "content chunks received")] = 0
    events: Annotated[int, _c("int32", "SSE events received, of any kind")] = 0
    reads: Annotated[int, _c("int32", "socket reads that returned data")] = 0
    body_bytes: Annotated[int, _c("int64", "bytes received after the headers, on the wire")] = 0
    receive_lag_max_ns: Annotated[
        int | None, _c("int64", "largest receive lag of its reads: read time - arrival")
    ] = None
    stamps: Annotated[str, _c("string", "timestamp source: kernel or user")] = "kernel"
    target: Annotated[str, _c("string", "main or second")] = "main"
    streamed: Annotated[bool, _c("bool", "false: a non-streamed answer")] = True
    first_thinking_at_ns: Annotated[int | None, _c("int64", "first non-empty thinking delta")] = None
    first_tool_json_at_ns: Annotated[int | None, _c("int64", "first non-empty piece of a tool's input")] = (
        None
    )
    tool_ready_at_ns: Annotated[int | None, _c("int64", "first tool block complete: its input is usable")] = (
        None
    )
    first_field_at_ns: Annotated[
        int | None, _c("int64", "first field of a JSON answer complete, with a schema only")
    ] = None
    citations: Annotated[int | None, _c("int32", "citation events, of protocols that have them")] = None
    phases: Annotated[
        str | None,
        _c("string", "JSON: start of each phase, ns since sent; NAME;dur: duration from Server-Timing, ns"),
    ] = None
    reader_paused_ns: Annotated[int | None, _c("int64", "total pause of a slow reader; null for others")] = (
        None
    )
    prefix: Annotated[int | None, _c("int32", "number of the shared prefix in the traffic table")] = None
    prefix_hash: Annotated[
        str | None, _c("string", "hash of the prompt up to its last mark, or of its prefix")
    ] = None
    cache_expected: Annotated[
        str | None, _c("string", "expectation of this worker: cold, warm or unknown")
    ] = None
    cache_since_use_ns: Annotated[
        int | None,
        _c(
            "int64",
            "time since this worker last saw a response start that used the readable part of the prompt, or its longest known part",
        ),
    ] = None
    cache_writers: Annotated[
        int | None, _c("int32", "calls of this worker in flight that write one of its marks")
    ] = None
    cache_marks: Annotated[int | None, _c("int16", "cache marks in the prompt")] = None
    cache_ttl: Annotated[str | None, _c("string", "lifetime of the marks: 5m or 1h")] = None
    cache_blocks: Annotated[
        int | None,
        _c("int32", "blocks from the end of that part to the mark; 20 or more: beyond the lookback"),
    ] = None
    params_hash: Annotated[
        str | None, _c("string", "hash of model, thinking and tool choice, which are part of the cache key")
    ] = None
    first_difference: Annotated[
        int | None,
        _c(
            "int64",
            "first byte in which the shared part differs from the last one of its number; null if equal or unknown",
        ),
    ] = None
    pool_wait_ns: Annotated[
        int | None,
        _c("int64", "wait for a connection, including the time to open one; null if there was none"),
    ] = None


@dataclass(slots=True)
class ChunkRow:
    """One SSE content delta as it arrived. A chunk is not a token."""

    request_id: Annotated[int, _c("int64", "the request")]
    leg: Annotated[int, _c("int16", "its leg")]
    attempt: Annotated[int, _c("int16", "its attempt")]
    chunk_index: Annotated[int, _c("int32", "number of the content chunk within the attempt, from 0")]
    kind: Annotated[str, _c("string", "text, thinking or tool_json")]
    arrived_at_ns: Annotated[
        int | None,
        _c(
            "int64",
            "kernel timestamp of the read that completed the chunk; null: the previous row's plus gap_ns",
        ),
    ]
    low_at_ns: Annotated[
        int | None, _c("int64", "lower bound if not exact; null: the previous other arrival")
    ]
    lag_ns: Annotated[
        int | None,
        _c("int64", "receive lag: read time - arrived_at_ns; null: as in the previous row"),
    ]
    read_index: Annotated[int, _c("int32", "number of the read within the attempt, from 0")]
    chars: Annotated[int, _c("int32", "characters of content in the chunk")]
    exact: Annotated[
        bool, _c("bool", "true: arrived at arrived_at_ns; false: between low_at_ns and arrived_at_ns")
    ]
    gap_ns: Annotated[
        int | None,
        _c(
            "int64",
            "time since the attempt's previous chunk, in the previous row; null: none, or arrived_at_ns is set",
        ),
    ] = None


@dataclass(slots=True)
class Chunks:
    """Content chunks as columns, in order of arrival; no object a chunk."""

    kind: bytearray = field(default_factory=bytearray)
    arrived: array[int] = field(default_factory=lambda: array("q"))
    low: array[int] = field(default_factory=lambda: array("q"))  # 0 = exact
    read_at: array[int] = field(default_factory=lambda: array("q"))
    read_index: array[int] = field(default_factory=lambda: array("i"))
    chars: array[int] = field(default_factory=lambda: array("i"))

    def __len__(self) -> int:
        return len(self.kind)


@dataclass(slots=True)
class HealthRow:
    """One row per second and worker: client health, and counters since the start of the run."""

    at_ns: Annotated[int, _c("int64", "end of the second")]
    in_flight: Annotated[int, _c("int32", "attempts open")]
    scheduled: Annotated[int, _c("int64", "arrivals leased to this worker so far")]
    dispatched: Annotated[int, _c("int64", "requests started so far")]
    ended: Annotated[int, _c("int64", "requests with a known outcome so far")]
    client_drops: Annotated[int, _c("int64", "arrivals dropped at the in-flight cap so far")]
    chunks: Annotated[int, _c("int64", "content chunks decoded so far")]
    reads: Annotated[int, _c("int64", "socket reads so far")]
    loop_lag_max_ns: Annotated[int, _c("int64", "largest delay of a 50 ms timer in the second")]
    receive_lag_max_ns: Annotated[int, _c("int64", "largest receive lag in the second")]
    dispatch_late_max_ns: Annotated[int, _c("int64", "largest dispatched_at - scheduled_at in the second")]
    cpu_share: Annotated[float, _c("float64", "CPU time of the process over the second, 1 = one core")]
    gc_pause_ns: Annotated[int, _c("int64", "time spent in Python's garbage collector in the second")]
    rss_bytes: Annotated[int, _c("int64", "resident memory")]
    queued_rows: Annotated[int, _c("int64", "rows not yet written to a part")]
    clock_step_ns: Annotated[int, _c("int64", "change of wall minus monotonic clock in the second")]
    first_chunks: Annotated[int | None, _c("int64", "first chunks so far, preflight excluded")] = None
    first_intervals: Annotated[int | None, _c("int64", "of these, with an interval timestamp")] = None
    chunk_intervals: Annotated[int | None, _c("int64", "chunks so far with an interval timestamp")] = None
    receive_lag_p50_ns: Annotated[
        int | None,
        _c("int64", "median receive lag of the reads decoded in the second; null without reads"),
    ] = None
    receive_lag_p99_ns: Annotated[int | None, _c("int64", "99th percentile of the same")] = None
    dispatch_late_p99_ns: Annotated[
        int | None,
        _c("int64", "99th percentile of the second's dispatch delays; null without requests"),
    ] = None
    pool_waits: Annotated[
        int | None, _c("int64", "calls so far that waited for a connection to be opened")
    ] = None
    pool_wait_max_ns: Annotated[
        int | None, _c("int64", "longest wait for a connection that ended in the second")
    ] = None
    retransmits: Annotated[
        int | None,
        _c("int64", "TCP segments retransmitted so far; null if the system does not report it"),
    ] = None
    out_of_order: Annotated[
        int | None,
        _c("int64", "TCP packets received out of order so far: earlier ones were late or lost"),
    ] = None
    core_wait_ns: Annotated[
        int | None, _c("int64", "time of the second in which the main thread was runnable without a core")
    ] = None


@dataclass(slots=True)
class ServerLogRow:
    """What the simulated endpoint really did, one row a call; joined by x-client-request-id."""

    client_request_id: Annotated[str, _c("string", "run/request/leg/attempt as sent by the client")]
    request_id: Annotated[int | None, _c("int64", "parsed from client_request_id")]
    leg: Annotated[int | None, _c("int16", "parsed from client_request_id")]
    attempt: Annotated[int | None, _c("int16", "parsed from client_request_id")]
    protocol: Annotated[str, _c("string", "anthropic or openai")]
    status: Annotated[int, _c("int16", "HTTP status")]
    received_at_ns: Annotated[int, _c("int64", "request body complete; the endpoint's CLOCK_MONOTONIC")]
    headers_at_ns: Annotated[int | None, _c("int64", "response headers written")]
    planned_ttft_ns: Annotated[int | None, _c("int64", "planned delay of the first chunk")]
    chunk_sent_at_ns: Annotated[
        list[int], _c("list<int64>", "time just before each content chunk was written")
    ]
    ended_at_ns: Annotated[int | None, _c("int64", "end mark written")]
    cancelled_at_ns: Annotated[int | None, _c("int64", "the client disconnected")]
    input_tokens: Annotated[int, _c("int64", "prompt tokens")]
    output_tokens: Annotated[int, _c("int64", "tokens sent")]
    admitted_at_ns: Annotated[int | None, _c("int64", "the engine admitted it; null without an engine")] = (
        None
    )
    prefill_started_at_ns: Annotated[
        int | None, _c("int64", "first step with a part of its prompt; null without an engine")
    ] = None
    prefill_ended_at_ns: Annotated[
        int | None, _c("int64", "the engine generated its first token; null without an engine")
    ] = None
    replica: Annotated[int | None, _c("int16", "replica of the engine")] = None
    tokens_after_cancel: Annotated[
        int | None, _c("int64", "tokens generated after the client's disconnect; null without a disconnect")
    ] = None
    billed_output_tokens: Annotated[int | None, _c("int64", "billed output tokens; null if not billed")] = (
        None
    )
    cache_reason: Annotated[
        str | None,
        _c("string", "result of the prefix cache: hit, cold, expired, race, ...; null without a cache"),
    ] = None
    cache_read_tokens: Annotated[int | None, _c("int64", "prompt tokens read from the cache")] = None
    cache_created_tokens: Annotated[int | None, _c("int64", "prompt tokens written to the cache")] = None
    limit_kind: Annotated[str | None, _c("string", "the limit that rejected it; null if none")] = None
    bucket_levels: Annotated[
        str | None,
        _c("string", "lowest level of each limit after this call was decided, as a JSON object"),
    ] = None
    fault: Annotated[str | None, _c("string", "its fault")] = None


TABLES: dict[str, type] = {
    "requests": RequestRow,
    "attempts": AttemptRow,
    "chunks": ChunkRow,
    "health": HealthRow,
    "target": ServerLogRow,
}


@cache
def columns(table: str) -> tuple[Column, ...]:
    """Columns of a table in the order of its row class; read from its hints once."""
    row = TABLES[table]
    hints = get_type_hints(row, include_extras=True)
    out = []
    for cell in fields(row):
        hint = hints[cell.name]
        kind, meaning = hint.__metadata__[0]
        nullable = type(None) in getattr(hint.__origin__, "__args__", ())
        out.append(Column(cell.name, kind, nullable, meaning))
    return tuple(out)
