"""The schema of a run: its tables, their columns with unit and meaning. Workers append these rows, the analysis reads them.

A row class is the one place where a column is named; `columns()` reads it for the writer, the reader and the docs.

Times are `<event>_at_ns`: int64 nanoseconds of the worker's CLOCK_MONOTONIC (the loader maps them to the run clock).
`<event>_low_at_ns` marks a time that is only known to lie in (low, at]: several events shared one socket read, and the
kernel timestamps its last byte. Null: did not happen, or the target does not report it.

Nothing is released: version 1 is today's schema, and the first release begins a history.
"""

from __future__ import annotations

from array import array
from dataclasses import dataclass, field, fields
from functools import cache, partial
from typing import Annotated, get_args, get_type_hints

SCHEMA_VERSION = 1

# How an attempt, a leg or a request ended. `client_drop` is a request only: it was never sent.
OK = "ok"
EMPTY = "empty"  # complete, without content: TTFT is null
CUT = "cut"  # ended by a limit before the plan's output_tokens, or although its answers end by themselves
REFUSED = "refused"  # the model refused
FILTERED = "filtered"  # a content filter took the answer, or the rest of it
# The engine gave up: it says so, or names no finish reason, or one that nobody knows.
ABORTED = "aborted"
CANCELLED = "cancelled"  # by the traffic pattern: a hedge's loser, a user who left
# These four by the status, or by an error inside the answer before any content.
RATE_LIMITED = "rate_limited"  # 429
OVERLOADED = "overloaded"  # 529 or 503
SERVER_ERROR = "server_error"  # other 5xx
CLIENT_ERROR = "client_error"  # other 4xx, or a reply that is not the protocol
# No response: DNS, TCP, TLS, or the connection lost before the headers.
CONNECT_ERROR = "connect_error"
TIMEOUT = "timeout"  # the attempt's deadline
STREAM_ERROR = "stream_error"  # an error after content, or a stream that is not what it says
TRUNCATED = "truncated"  # the body ended without the protocol's end mark
INTERNAL_ERROR = "internal_error"  # an error type only: our own code could not prepare the call
REDIRECT = "redirect"  # an error type only: 3xx; the text is where to
# A request only: the code of its pattern or prompt, a plugin's, raised.
PLUGIN_ERROR = "plugin_error"
# A request only: its task found the answer wrong, by `response.failure()`.
CHECK_FAILED = "check_failed"
CENSORED = "censored"  # still in flight when the drain ended
CLIENT_DROP = "client_drop"  # arrived at the in-flight cap and was not sent
ENDED_CLASSES = (
    OK,
    EMPTY,
    CUT,
    REFUSED,
    FILTERED,
    ABORTED,
    CANCELLED,
    RATE_LIMITED,
    OVERLOADED,
    SERVER_ERROR,
    CLIENT_ERROR,
    CONNECT_ERROR,
    TIMEOUT,
    STREAM_ERROR,
    TRUNCATED,
    PLUGIN_ERROR,
    CHECK_FAILED,
)
WITH_ANSWER = frozenset({OK, EMPTY, CUT})  # an answer, maybe without content; what joins wait for
COMPLETE = frozenset({OK, CUT})  # the user got an answer, whole or as far as a limit allowed
# The target ended it: it is billed, and never sent again.
SERVED = frozenset({OK, EMPTY, CUT, REFUSED, FILTERED})
# A request that was cancelled ended as its user wanted.
NOT_FAILED = frozenset({OK, CUT, CANCELLED})

# Stages of a run. Preflight stands outside every statistic.
PREFLIGHT = "preflight"
WARMUP = "warmup"
STEADY = "steady"
COOLDOWN = "cooldown"

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
POLL = "poll"  # asking whether a job has ended, and fetching it
RESUME = "resume"  # what is missing of a stream that was cut
CANCEL = "cancel"  # asking the target to stop a job
CAUSES = (PRIMARY, RETRY, HEDGE, FALLBACK, RESUBMIT, POLL, CANCEL, RESUME)

# What counts as the answer of a request, by its pattern.
SINGLE = "single"  # the answer that leg 0 got
PIECES = "pieces"  # what the attempts of leg 0 got one after the other
EARLIEST_LEG = "earliest_leg"  # the same, but the user sees first whichever leg comes first
JOIN = "join"  # the moment at which its legs are joined; it has no answer of its own
TURNAROUND = "turnaround"  # its end: results that nobody waits for as they come
ANSWERS = (SINGLE, PIECES, EARLIEST_LEG, JOIN, TURNAROUND)

# Why no hedge was sent although it was due.
HEDGE_HELD = ("budget", "throttle", "pushback", "retry")

# What the client expects of a prompt cache.
COLD = "cold"
WARM = "warm"
UNKNOWN = "unknown"

FAILURE = "failure"  # tag of a request that ended as `check_failed`: what its task found wrong
TURNS = 65536  # request_id = arrival index * TURNS + session turn


@dataclass(frozen=True, slots=True)
class Column:
    """One column of a table: Arrow type name, whether null is allowed, meaning with unit."""

    name: str
    kind: str
    nullable: bool
    meaning: str


# Python types of the rows with their Arrow types.
Int64 = Annotated[int, "int64"]
Int32 = Annotated[int, "int32"]
Int16 = Annotated[int, "int16"]
Float64 = Annotated[float, "float64"]
String = Annotated[str, "string"]
Bool = Annotated[bool, "bool"]
ListOfInt64 = Annotated[list[int], "list<int64>"]


# fmt: off
@dataclass(slots=True)
class RequestRow:
    """What the user wanted: one prompt, one fan-out, one session turn."""

    request_id: Annotated[Int64, "arrival index * 65536 + session turn; negative for preflight"]
    stage: Annotated[String, "preflight, warmup, steady or cooldown, by scheduled time"]
    traffic: Annotated[String, "traffic table"]
    pattern: Annotated[String, "traffic pattern"]
    session_id: Annotated[Int64 | None, "request_id of the first turn of the session or user"]
    scheduled_at_ns: Annotated[Int64, "planned arrival; user-visible latency starts here"]
    dispatched_at_ns: Annotated[Int64 | None, "pattern started, or wait for a slot; null for client_drop"]
    ended_at_ns: Annotated[Int64 | None, "outcome known; null if censored or dropped"]
    ended: Annotated[String, "outcome class, censored or client_drop"]
    legs: Annotated[Int16, "number of legs; 0 for client_drop"]
    attempts: Annotated[Int16, "HTTP calls, retries and hedges included"]
    asked_prompt_tokens: Annotated[Int32, "scheduled prompt size"]
    asked_output_tokens: Annotated[Int32, "scheduled max_tokens"]
    name: Annotated[String | None, "name of the prompt in its file"] = None
    tags: Annotated[String | None, "tags of table and prompt, as JSON"] = None
    winner: Annotated[Int16 | None, "attempt of leg 0 whose answer was used"] = None
    joined_at_ns: Annotated[Int64 | None, "the join condition was met"] = None
    hedge_held: Annotated[String | None, "why a due hedge was not sent: budget, throttle, pushback, retry"] = None
    slot_wait_ns: Annotated[Int64 | None, "wait for a slot; null without arrival.max_concurrency"] = None


@dataclass(slots=True)
class AttemptRow:
    """One HTTP call of a leg: primary, retry or hedge."""

    request_id: Annotated[Int64, "its request"]
    leg: Annotated[Int16, "leg of the request, from 0"]
    attempt: Annotated[Int16, "number within the leg, from 0"]
    cause: Annotated[String, "primary, retry, hedge, fallback, resubmit, poll, cancel or resume"]
    of_attempt: Annotated[Int16 | None, "attempt that it repeats or hedges"]
    stage: Annotated[String, "of the request"]
    traffic: Annotated[String, "of the request"]
    protocol: Annotated[String, "anthropic, openai or sse"]
    asked_model: Annotated[String, "requested model"]
    scheduled_at_ns: Annotated[Int64, "the request's planned arrival"]
    dispatched_at_ns: Annotated[Int64, "attempt started"]
    sent_at_ns: Annotated[Int64 | None, "first request byte passed to the kernel"] = None
    headers_at_ns: Annotated[Int64 | None, "response headers complete"] = None
    first_byte_at_ns: Annotated[Int64 | None, "first byte of the response"] = None
    first_event_at_ns: Annotated[Int64 | None, "first SSE event, pings excepted"] = None
    first_content_at_ns: Annotated[Int64 | None, "first non-empty content of any kind"] = None
    first_content_low_at_ns: Annotated[Int64 | None, "its lower end, null if exact"] = None
    first_content_read_at_ns: Annotated[Int64 | None, "the worker's clock at that read"] = None
    first_text_at_ns: Annotated[Int64 | None, "first non-empty text"] = None
    first_text_low_at_ns: Annotated[Int64 | None, "its lower end, null if exact"] = None
    last_content_at_ns: Annotated[Int64 | None, "last non-empty content"] = None
    last_content_low_at_ns: Annotated[Int64 | None, "its lower end, null if exact"] = None
    stopped_at_ns: Annotated[Int64 | None, "end mark: message_stop or [DONE]"] = None
    ended_at_ns: Annotated[Int64 | None, "last byte or failure; null if censored"] = None
    cancelled_at_ns: Annotated[Int64 | None, "the client closed the connection"] = None
    ended: Annotated[String, "outcome class, or censored"] = CENSORED
    limit_kind: Annotated[String | None, "rate limit: requests, input_tokens, output_tokens, ..."] = None
    status: Annotated[Int16 | None, "HTTP status"] = None
    error_type: Annotated[String | None, "error name, or a protocol violation (`tailgauge docs security`)"] = None
    error_body: Annotated[String | None, "first 2 kB of the error, secrets removed"] = None
    retry_after_s: Annotated[Float64 | None, "wait that the target asks for"] = None
    rate_limit_headers: Annotated[String | None, "rate-limit headers, as JSON"] = None
    server_request_id: Annotated[String | None, "the server's id"] = None
    connection: Annotated[Int32 | None, "connection number within the worker"] = None
    connection_is_new: Annotated[Bool | None, "this attempt opened the connection"] = None
    dns_ns: Annotated[Int64 | None, "name look-up, TCP connect, TLS handshake; new connections only"] = None
    connect_ns: Annotated[Int64 | None, "name look-up, TCP connect, TLS handshake; new connections only"] = None
    tls_ns: Annotated[Int64 | None, "name look-up, TCP connect, TLS handshake; new connections only"] = None
    stop_reason: Annotated[String | None, "in the protocol's terms"] = None
    model: Annotated[String | None, "model in the response"] = None
    input_tokens: Annotated[Int64 | None, "uncached remainder of the prompt, for every protocol"] = None
    cache_read_input_tokens: Annotated[Int64 | None, "prompt tokens read from a cache"] = None
    cache_creation_input_tokens: Annotated[Int64 | None, "prompt tokens written to a cache"] = None
    cache_creation_5m_input_tokens: Annotated[Int64 | None, "of these, by TTL"] = None
    cache_creation_1h_input_tokens: Annotated[Int64 | None, "of these, by TTL"] = None
    output_tokens: Annotated[Int64 | None, "tokens generated, thinking included; from the last usage"] = None
    thinking_tokens: Annotated[Int64 | None, "of these, thinking"] = None
    chunks: Annotated[Int32, "content chunks received"] = 0
    events: Annotated[Int32, "SSE events with data, of any kind"] = 0
    reads: Annotated[Int32, "socket reads that returned data"] = 0
    body_bytes: Annotated[Int64, "bytes on the wire after the headers"] = 0
    receive_lag_max_ns: Annotated[Int64 | None, "largest receive lag: read time - arrival"] = None
    stamps: Annotated[String, "timestamp source: kernel or user"] = "kernel"
    target: Annotated[String, "main or second"] = "main"
    streamed: Annotated[Bool, "false: a non-streamed answer"] = True
    first_thinking_at_ns: Annotated[Int64 | None, "first non-empty thinking"] = None
    first_tool_json_at_ns: Annotated[Int64 | None, "first non-empty tool input"] = None
    tool_ready_at_ns: Annotated[Int64 | None, "first tool block complete"] = None
    first_field_at_ns: Annotated[Int64 | None, "first JSON field complete; with a schema only"] = None
    citations: Annotated[Int32 | None, "citation events"] = None
    phases: Annotated[String | None, "JSON: start of each phase, ns since sent; NAME;dur: duration by Server-Timing"] = None
    reader_paused_ns: Annotated[Int64 | None, "total pause of a slow reader"] = None
    prefix: Annotated[Int32 | None, "number of the shared prefix"] = None
    prefix_hash: Annotated[String | None, "hash of the prompt to its last mark, or of its prefix"] = None
    cache_expected: Annotated[String | None, "the worker's expectation: cold, warm or unknown"] = None
    cache_since_use_ns: Annotated[Int64 | None, "since the worker's last response that used the readable part"] = None
    cache_writers: Annotated[Int32 | None, "the worker's calls in flight that write one of its marks"] = None
    cache_marks: Annotated[Int16 | None, "cache marks in the prompt"] = None
    cache_ttl: Annotated[String | None, "lifetime of marks, such as 5m"] = None
    cache_blocks: Annotated[Int32 | None, "blocks from the readable part to the mark"] = None
    params_hash: Annotated[String | None, "hash of model, thinking, tool choice, schema and effort"] = None
    first_difference: Annotated[Int64 | None, "first byte that differs from the last shared part of this prefix"] = None
    pool_wait_ns: Annotated[Int64 | None, "wait for a connection, opening included"] = None
    last_thinking_at_ns: Annotated[Int64 | None, "last thinking delta, or start of a thinking block"] = None
    error_class: Annotated[String | None, "class of an error inside the answer"] = None
    service_tier: Annotated[String | None, "as named by the response"] = None
    speed: Annotated[String | None, "as named by the response"] = None
    inference_geo: Annotated[String | None, "as named by the response"] = None
    fallback: Annotated[String | None, "model that `model` replaced within the answer"] = None
    iterations: Annotated[String | None, "JSON: type, model and token counts of each billed iteration"] = None
    server_tool_calls: Annotated[Int32 | None, "server tool calls, such as web searches"] = None
    tool_ready: Annotated[String | None, "JSON by call id: tool input complete, ns since sent"] = None
    cache_miss_reason: Annotated[String | None, "the target's reason of the cache miss"] = None
    cache_missed_input_tokens: Annotated[Int64 | None, "prompt tokens of that miss"] = None
    stop_details: Annotated[String | None, "such as the category of a refusal"] = None
    usage_marks: Annotated[String | None, "token counts beyond the request, unused in figures: input, output"] = None
    tolerated: Annotated[String | None, "protocol deviations that the SDK accepts, comma-separated"] = None
    not_understood: Annotated[String | None, "unknown limit headers and usage fields, comma-separated"] = None
    valid_json: Annotated[Bool | None, "with a schema: the answer is JSON"] = None
    retry_after_from: Annotated[String | None, "its source: retry-after-ms, retry-after, or a reset header"] = None


@dataclass(slots=True)
class ChunkRow:
    """One SSE content delta as it arrived. A chunk is not a token."""

    request_id: Annotated[Int64, "the request"]
    leg: Annotated[Int16, "as in attempts"]
    attempt: Annotated[Int16, "as in attempts"]
    chunk_index: Annotated[Int32, "number within the attempt, from 0"]
    kind: Annotated[String, "text, thinking or tool_json"]
    arrived_at_ns: Annotated[Int64, "kernel timestamp of the read that completed the chunk"]
    low_at_ns: Annotated[Int64 | None, "its lower end, null if exact"]
    lag_ns: Annotated[Int64, "receive lag: read time - arrived_at_ns"]
    read_index: Annotated[Int32, "read within the attempt, from 0"]
    chars: Annotated[Int32, "characters of content"]
    exact: Annotated[Bool, "false: arrived between low_at_ns and arrived_at_ns"]


@dataclass(slots=True)
class Chunks:
    """Content chunks as columns, in order of arrival, without an object per chunk."""

    kind: bytearray = field(default_factory=bytearray)
    arrived: array[int] = field(default_factory=partial(array, "q"))
    low: array[int] = field(default_factory=partial(array, "q"))  # 0 = exact
    read_at: array[int] = field(default_factory=partial(array, "q"))
    read_index: array[int] = field(default_factory=partial(array, "i"))
    chars: array[int] = field(default_factory=partial(array, "i"))

    def __len__(self) -> int:
        return len(self.kind)


@dataclass(slots=True)
class HealthRow:
    """One row per second and worker: client health, and counters since the start of the run."""

    at_ns: Annotated[Int64, "end of the second"]
    in_flight: Annotated[Int32, "attempts open"]
    scheduled: Annotated[Int64, "arrivals leased so far"]
    dispatched: Annotated[Int64, "requests started so far"]
    ended: Annotated[Int64, "requests ended so far"]
    client_drops: Annotated[Int64, "dropped at the in-flight cap so far"]
    chunks: Annotated[Int64, "content chunks decoded so far"]
    reads: Annotated[Int64, "socket reads so far"]
    loop_lag_max_ns: Annotated[Int64, "largest delay of a 50 ms timer in the second"]
    receive_lag_max_ns: Annotated[Int64, "largest receive lag in the second"]
    dispatch_late_max_ns: Annotated[Int64, "largest dispatched_at - scheduled_at in the second"]
    cpu_share: Annotated[Float64, "CPU time of the process, 1 = one core"]
    gc_pause_ns: Annotated[Int64, "longest garbage collection in the second"]
    rss_bytes: Annotated[Int64, "resident memory"]
    queued_rows: Annotated[Int64, "rows not yet written"]
    clock_step_ns: Annotated[Int64, "change of wall minus monotonic clock in the second"]
    first_chunks: Annotated[Int64 | None, "first chunks so far, preflight excluded"] = None
    first_intervals: Annotated[Int64 | None, "of these, with an interval timestamp"] = None
    chunk_intervals: Annotated[Int64 | None, "chunks so far with an interval timestamp"] = None
    receive_lag_p50_ns: Annotated[Int64 | None, "median receive lag of the second"] = None
    receive_lag_p99_ns: Annotated[Int64 | None, "99th percentile of the same"] = None
    dispatch_late_p99_ns: Annotated[Int64 | None, "99th percentile of dispatch delays"] = None
    pool_waits: Annotated[Int64 | None, "calls so far that waited for a new connection"] = None
    pool_wait_max_ns: Annotated[Int64 | None, "longest such wait that ended in the second"] = None
    retransmits: Annotated[Int64 | None, "TCP segments retransmitted so far"] = None
    out_of_order: Annotated[Int64 | None, "TCP packets received out of order so far"] = None
    core_wait_ns: Annotated[Int64 | None, "main thread's wait for a core in the second"] = None
    read_wait_max_ns: Annotated[Int64 | None, "longest wait of read bytes for the event loop"] = None


@dataclass(slots=True)
class ServerLogRow:
    """What the simulated endpoint did, one row per call; joined by x-client-request-id."""

    client_request_id: Annotated[String, "run/request/leg/attempt as sent by the client"]
    request_id: Annotated[Int64 | None, "parsed from client_request_id"]
    leg: Annotated[Int16 | None, "parsed from client_request_id"]
    attempt: Annotated[Int16 | None, "parsed from client_request_id"]
    protocol: Annotated[String, "anthropic or openai"]
    status: Annotated[Int16, "HTTP status"]
    received_at_ns: Annotated[Int64, "request's last byte; the endpoint's CLOCK_MONOTONIC"]
    headers_at_ns: Annotated[Int64 | None, "response headers written"]
    planned_ttft_ns: Annotated[Int64 | None, "planned delay of the first chunk"]
    chunk_sent_at_ns: Annotated[ListOfInt64, "just before each content chunk"]
    ended_at_ns: Annotated[Int64 | None, "end mark written"]
    cancelled_at_ns: Annotated[Int64 | None, "the client disconnected"]
    input_tokens: Annotated[Int64, "prompt tokens"]
    output_tokens: Annotated[Int64, "tokens sent"]
    admitted_at_ns: Annotated[Int64 | None, "the engine admitted it"] = None
    prefill_started_at_ns: Annotated[Int64 | None, "first step with a part of its prompt"] = None
    prefill_ended_at_ns: Annotated[Int64 | None, "the engine generated its first token"] = None
    replica: Annotated[Int16 | None, "replica of the engine"] = None
    tokens_after_cancel: Annotated[Int64 | None, "tokens generated after the disconnect"] = None
    billed_output_tokens: Annotated[Int64 | None, "billed output tokens; null if not billed"] = None
    cache_reason: Annotated[String | None, "hit, cold, expired, race, ..."] = None
    cache_read_tokens: Annotated[Int64 | None, "prompt tokens read from the cache"] = None
    cache_created_tokens: Annotated[Int64 | None, "prompt tokens written to the cache"] = None
    limit_kind: Annotated[String | None, "limit that rejected it"] = None
    bucket_levels: Annotated[String | None, "JSON: lowest level of each limit after this call"] = None
    fault: Annotated[String | None, "its fault"] = None
    first_due_at_ns: Annotated[Int64 | None, "when the first or last chunk sent was due"] = None
    last_due_at_ns: Annotated[Int64 | None, "when the first or last chunk sent was due"] = None
    error_status: Annotated[Int16 | None, "status of its error, also inside a 200"] = None
    stop_reason: Annotated[String | None, "stop reason sent"] = None
# fmt: on


@dataclass(slots=True)
class Origin:
    """Where the rows of a part come from: the last columns of every table that workers record."""

    worker: Annotated[Int32, "number of the worker that recorded the row"] = 0
    wall_offset_ns: Annotated[
        Int64 | None,
        "added to a time: Unix time by the master's clock; null in a dry run",
    ] = None


TABLES: dict[str, type] = {
    "requests": RequestRow,
    "attempts": AttemptRow,
    "chunks": ChunkRow,
    "health": HealthRow,
    "target": ServerLogRow,
}
RECORDED = ("requests", "attempts", "chunks", "health")  # by workers
ORIGIN = tuple(cell.name for cell in fields(Origin))


@cache
def columns(table: str) -> tuple[Column, ...]:
    """Columns of a table in the order of its row class, then those of `Origin`; read from the hints once."""
    described = _described(TABLES[table])
    if table in RECORDED:
        described += _described(Origin)
    return tuple(described)


def _described(row_class: type) -> list[Column]:
    hints = get_type_hints(row_class, include_extras=True)
    out = []
    for cell in fields(row_class):
        *arrow_types, meaning = hints[cell.name].__metadata__
        # Annotated[Int64 | None, ...]: the Arrow type is inside the union.
        nullable = not arrow_types
        if nullable:
            arrow_types = get_args(get_args(hints[cell.name])[0])[0].__metadata__
        out.append(Column(cell.name, arrow_types[0], nullable, meaning))
    return out
