"""The rows of a request and of its calls, the latter copied from exchange and decoder.

Nothing is computed here that the analysis could compute. A target's text is bounded and redacted before it is in a row,
even where the target repeats its key.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING
from urllib.parse import urlsplit, urlunsplit

from tailgauge import protocol_violations as violations
from tailgauge.protocols.decoder import MAX_NAME, MAX_PHASES, Stamp, StreamDecoder
from tailgauge.protocols.usage import Counts
from tailgauge.redaction import shown
from tailgauge.rows.schema import CENSORED, REDIRECT, AttemptRow, RequestRow
from tailgauge.worker.outcome import (
    MAX_HEADER,
    Outcome,
    header,
    limit_headers,
    not_understood,
    rate_limit_headers,
    retry_after,
)


@dataclass(slots=True)
class RequestRef:
    """The request that an attempt serves."""

    request_id: int
    stage: str
    traffic: str
    scheduled_at_ns: int
    # When its pattern began, or it came to wait for a slot; None for a preflight request.
    dispatched_at_ns: int | None = None
    acts: bool = True  # something waits for what its calls bring, at once
    departure: Departure | None = None  # how its first call has left, where that was prepared


def request_row(
    scenario: Scenario,
    turn: Turn,
    ended: str,
    *,
    stage: str,
    scheduled_at_ns: int,
    dispatched_at_ns: int | None,
) -> RequestRow:
    """Return the row of a request before what is known of its calls; `dispatched_at_ns` is None for a drop."""
    planned = turn.asked
    traffic = scenario.traffic[planned.traffic]
    source = planned.source or {}
    tags = {**traffic.tags, **source.get("tags", {})}
    in_session = turn.is_closed or traffic.session.turns_mean > 1
    return RequestRow(
        request_id=turn.request_id,
        stage=stage,
        traffic=planned.traffic,
        pattern=traffic.pattern,
        session_id=turn.planned.request_id if in_session else None,
        scheduled_at_ns=scheduled_at_ns,
        dispatched_at_ns=dispatched_at_ns,
        ended_at_ns=None,
        ended=ended,
        legs=0,
        attempts=0,
        asked_prompt_tokens=planned.prompt_tokens,
        asked_output_tokens=planned.output_tokens,
        name=source.get("name"),
        tags=json.dumps(tags) if tags else None,
        slot_wait_ns=turn.slot_wait_ns,
    )


# The metrics of Server-Timing, and the parts of one: a name and parameters, whose values may be quoted.
_METRIC = re.compile(r'(?:[^,"]|"[^"]*")+')
_PART = re.compile(r'(?:[^;"]|"[^"]*")+')
_NUMBER = re.compile(r"\d{1,12}(\.\d{1,9})?")  # milliseconds
_REDIRECTS = frozenset({301, 302, 303, 307, 308})

if TYPE_CHECKING:
    from tailgauge.patterns.events import Send
    from tailgauge.scenario.model import Scenario
    from tailgauge.schedule.sessions import Turn
    from tailgauge.transport.exchange import Exchange
    from tailgauge.transport.reader import Departure


def begun(
    origin: RequestRef, send: Send, attempt: int, *, protocol: str, model: str, at_ns: int
) -> AttemptRow:
    """Return the row of an attempt that begins; `model` is the target's, where the call names none."""
    return AttemptRow(
        request_id=origin.request_id,
        leg=send.leg,
        attempt=attempt,
        cause=send.cause,
        of_attempt=send.of_attempt,
        stage=origin.stage,
        traffic=origin.traffic,
        protocol=protocol,
        asked_model=send.call.model or model,
        scheduled_at_ns=origin.scheduled_at_ns,
        dispatched_at_ns=at_ns,
        target=send.call.target,
    )


def fill(
    row: AttemptRow, exchange: Exchange, decoder: StreamDecoder, result: Outcome, counts: Counts
) -> None:
    """Complete the row of an ended attempt, which `begun` has made.

    `result`: its outcome. `counts`: the tokens that the target reported, checked against the request. The
    order of the steps counts: `_fill_counts` reads what stands in the row, and `_fill_tool_times` replaces
    a time of the decoder.
    """
    row.ended = result.ended
    # A censored call was closed by the end of the run, which is no end of its own.
    row.ended_at_ns = None if result.ended == CENSORED else exchange.ended_at_ns
    row.error_type = result.error_type
    row.error_body = result.error_body
    row.limit_kind = result.limit_kind
    row.status = exchange.status
    # Seconds to wait before a retry, and the header or field that says so.
    row.retry_after_s, row.retry_after_from = retry_after(exchange, result.ended)
    headers = limit_headers(exchange)
    row.rate_limit_headers = rate_limit_headers(headers)
    row.not_understood = not_understood(headers)
    row.phases = _phases(exchange, decoder)
    server_id = header(exchange.header(b"request-id") or exchange.header(b"x-request-id"))
    row.server_request_id = server_id or decoder.message_id
    row.error_class = result.error_class
    _fill_redirect(row, exchange)
    _fill_from_exchange(row, exchange)
    _fill_from_decoder(row, decoder)
    _fill_counts(row, decoder, counts)
    _fill_served(row, decoder)
    _fill_tool_times(row, exchange, decoder)


def _fill_redirect(row: AttemptRow, exchange: Exchange) -> None:
    """Keep where a target redirects to: no call follows, because latency is that of one call."""
    location = exchange.header(b"location").decode("latin-1").strip()
    if row.status in _REDIRECTS and location:
        row.error_type = REDIRECT
        row.error_body = shown(_without_secrets(location), MAX_HEADER)


def _without_secrets(location: str) -> str:
    """Return a URL without user name, password, query and fragment."""
    try:
        parts = urlsplit(location)
    except ValueError:
        return "no URL"
    host = parts.netloc.rpartition("@")[2]
    return urlunsplit((parts.scheme, host, parts.path, "", ""))


def _fill_from_exchange(row: AttemptRow, exchange: Exchange) -> None:
    """Copy the times of the exchange, its reads, and its connection into the row.

    Durations of DNS, connect and TLS are in the row of the call that opened the connection, and in no
    other.
    """
    row.sent_at_ns = exchange.sent_at_ns
    row.cancelled_at_ns = exchange.aborted_at_ns
    row.first_byte_at_ns = exchange.first_byte_at_ns
    row.headers_at_ns = exchange.headers_at_ns
    row.reads = exchange.reads
    row.body_bytes = exchange.body_bytes
    # A slow reader (`bytes_per_s`) is late on purpose: it has no receive lag.
    has_lag = exchange.reads and not exchange.bytes_per_s
    row.receive_lag_max_ns = exchange.receive_lag_max_ns if has_lag else None
    row.reader_paused_ns = exchange.paused_ns
    row.pool_wait_ns = exchange.pool_wait_ns
    row.stamps = "user" if exchange.user_stamps else "kernel"
    connection = exchange.connection
    if connection is None:
        return
    row.connection = connection.number
    row.connection_is_new = exchange.connection_is_new
    if exchange.connection_is_new:
        row.dns_ns = connection.dns_ns
        row.connect_ns = connection.connect_ns
        row.tls_ns = connection.tls_ns


def _fill_from_decoder(row: AttemptRow, decoder: StreamDecoder) -> None:
    """Copy what the decoder has found in the answer into the row: its events, and when which content arrived.

    A time is that of the read which brought the event; the column `_low_at_ns` is the earliest time at
    which it may have come, None where the first is exact. `read_at`: when this process read it. Without
    content all of them stay None.
    """
    row.stop_reason = decoder.stop_reason
    row.model = decoder.model
    row.streamed = decoder.streams
    row.chunks = decoder.chunks
    row.events = decoder.events
    row.citations = decoder.citations
    row.first_event_at_ns = _time(decoder.first_event)
    row.stopped_at_ns = _time(decoder.stopped)
    row.first_thinking_at_ns = _time(decoder.first_thinking)
    row.first_field_at_ns = _time(decoder.first_field)
    row.valid_json = decoder.valid_json
    row.last_thinking_at_ns = _time(decoder.last_thinking)
    row.first_tool_json_at_ns = _time(decoder.first_tool_json)
    row.tool_ready_at_ns = _time(decoder.tool_ready)
    content = decoder.first_content
    if content is not None:
        row.first_content_at_ns = content.at
        row.first_content_low_at_ns = content.low
        row.first_content_read_at_ns = content.read_at
    text = decoder.first_text
    if text is not None:
        row.first_text_at_ns = text.at
        row.first_text_low_at_ns = text.low
    final = decoder.last_content
    if final is not None:
        row.last_content_at_ns = final.at
        row.last_content_low_at_ns = final.low


def _fill_counts(row: AttemptRow, decoder: StreamDecoder, counts: Counts) -> None:
    """Copy the token counts that the target reported into the row; None for a count that did not come.

    `marks`: input or output, where the count is too large for the request. `tolerated`: protocol violations
    that did not end the call. `not_understood` has the headers of limits already, and gets the unknown
    names in the usage. A contradiction in the counts becomes the row's error, unless it has one.
    """
    tokens = counts.tokens
    row.input_tokens = tokens.get("input_tokens")
    row.cache_read_input_tokens = tokens.get("cache_read_input_tokens")
    row.cache_creation_input_tokens = tokens.get("cache_creation_input_tokens")
    row.cache_creation_5m_input_tokens = tokens.get("cache_creation_5m_input_tokens")
    row.cache_creation_1h_input_tokens = tokens.get("cache_creation_1h_input_tokens")
    row.output_tokens = tokens.get("output_tokens")
    row.thinking_tokens = tokens.get("thinking_tokens")
    row.usage_marks = ",".join(counts.marks) or None
    row.tolerated = ",".join(decoder.tolerated) or None
    names = (row.not_understood, *sorted(decoder.usage.unknown))
    row.not_understood = ", ".join(filter(None, names)) or None
    if counts.problem is not None and row.error_type is None:
        row.error_type = violations.MALFORMED_USAGE
        row.error_body = counts.problem


def _fill_served(row: AttemptRow, decoder: StreamDecoder) -> None:
    served = decoder.served
    row.service_tier = served.service_tier
    row.speed = served.speed
    row.inference_geo = served.inference_geo
    row.fallback = served.fallback
    row.iterations = served.iterations
    row.server_tool_calls = served.server_tool_calls
    row.cache_miss_reason = served.cache_miss_reason
    row.cache_missed_input_tokens = served.cache_missed_input_tokens
    row.stop_details = served.stop_details


def _fill_tool_times(row: AttemptRow, exchange: Exchange, decoder: StreamDecoder) -> None:
    sent_at_ns = exchange.sent_at_ns
    ready = decoder.tools.ready_at_ns
    if ready:
        row.tool_ready_at_ns = min(ready.values())
    if ready and sent_at_ns is not None:
        row.tool_ready = json.dumps(
            {call_id: at_ns - sent_at_ns for call_id, at_ns in ready.items()}
        )


def _phases(exchange: Exchange, decoder: StreamDecoder) -> str | None:
    """Return the begin of each phase since sent, and durations of Server-Timing as `NAME;dur`, in ns as JSON."""
    if not decoder.phases and not exchange.header(b"server-timing"):
        return None
    phases: dict[str, int] = {}
    if exchange.sent_at_ns is not None:
        for name, begin_ns in decoder.phases.items():
            phases[name] = begin_ns - exchange.sent_at_ns
    for header_name, value in exchange.headers:
        if header_name.lower() == b"server-timing":
            phases.update(_durations(value.decode("latin-1")))
    if not phases:
        return None
    return json.dumps(dict(islice(phases.items(), MAX_PHASES)))


def _durations(server_timing: str) -> Iterator[tuple[str, int]]:
    """Yield the metrics of a Server-Timing header that have a duration, in ns."""
    for metric in _METRIC.findall(server_timing):
        parts = [part.strip() for part in _PART.findall(metric)]
        for parameter in parts[1:]:
            key, _, value = parameter.partition("=")
            milliseconds = value.strip(' "')
            if key.strip().lower() == "dur" and _NUMBER.fullmatch(milliseconds):
                yield f"{shown(parts[0], MAX_NAME)};dur", round(float(milliseconds) * 1e6)


def _time(stamp: Stamp | None) -> int | None:
    return stamp.at if stamp else None
