"""The outcome of an attempt, from its exchange and decoder.

No failure is an exception here. The first that holds is the class: we ended it; no response; the status; the body is not
the protocol; an error inside the answer; no end mark; what the answer says of its end (see `ends`). A protocol violation is
the error's type, by the names of `protocol_violations`. Texts are without secrets.

Also the headers of limits and of retries, as a row has them; `tailgauge.limits` reads their values.
"""

from __future__ import annotations

import codecs
import json
from dataclasses import dataclass, replace
from datetime import datetime
from typing import TYPE_CHECKING

from tailgauge import limits, vendors
from tailgauge import protocol_violations as violations
from tailgauge.call import MESSAGE
from tailgauge.ends import End, class_of_end
from tailgauge.protocols.decoder import StreamDecoder
from tailgauge.protocols.errors import (
    MAX_ERROR_TEXT,
    class_of_error,
    error_of,
    looks_like_error,
    retry_delay_of,
)
from tailgauge.redaction import shown
from tailgauge.rows import schema
from tailgauge.transport.http1 import is_event_stream

if TYPE_CHECKING:
    from tailgauge.transport.exchange import Exchange

MAX_TYPE = 100
MAX_HEADER = 200  # characters of a name, and of a value
MAX_HEADERS = 40  # rate-limit headers that are kept
_FIELDS = (b"data:", b"event:", b"id:", b"retry:", b":")  # how lines of an event stream begin
_ERROR_FIELD = b"error:"  # of llama.cpp; elsewhere a line of text may begin so
RETRY_HEADERS = (limits.RETRY_AFTER_MS, limits.RETRY_AFTER)  # that the SDKs read


@dataclass(slots=True)
class Outcome:
    """Class, and for failures the error's type and text with secrets removed."""

    ended: str
    error_type: str | None = None
    error_body: str | None = None
    limit_kind: str | None = None
    error_class: str | None = None  # of an error inside the answer: what its status would have been


def outcome(exchange: Exchange, decoder: StreamDecoder) -> Outcome:
    """Return the outcome of a finished exchange."""
    result = _outcome(exchange, decoder)
    if result.error_type is None:
        return result
    text = None
    if result.error_body is not None:
        text = shown(result.error_body, MAX_ERROR_TEXT)
    return replace(result, error_type=shown(result.error_type, MAX_TYPE), error_body=text)


def _outcome(exchange: Exchange, decoder: StreamDecoder) -> Outcome:
    if exchange.aborted:
        return Outcome(exchange.aborted)
    if exchange.status is None:
        kind, message = exchange.failure or ("unknown", "no response")
        is_malformed = kind in {violations.NOT_HTTP, violations.HEAD_TOO_LARGE}
        return Outcome(schema.CLIENT_ERROR if is_malformed else schema.CONNECT_ERROR, kind, message)
    if exchange.status >= 300 or exchange.status not in decoder.statuses:
        return _refused(exchange)
    return _streamed(exchange, decoder)


def _streamed(exchange: Exchange, decoder: StreamDecoder) -> Outcome:
    """Return the outcome of a response whose status is no error, be it a stream or not; the first rule that holds counts.

    Deviations from the protocol that do not end the call are noted in the decoder. `cut`: how the body
    ended before its end, or which violation is in it.
    """
    cut = exchange.cut
    has_events = decoder.events > 0 or decoder.error is not None
    if decoder.streams and not has_events and _is_no_stream(exchange):
        return _no_stream(exchange)
    if decoder.error is not None:
        return _failed(exchange, decoder)
    if cut in violations.VIOLATIONS:
        return Outcome(schema.STREAM_ERROR, cut, exchange.cut_text)
    if cut and decoder.streams and decoder.ends_at_mark and decoder.stopped is not None:
        decoder.tolerate(violations.CLOSED_BEHIND_END)
        cut = None
    if decoder.streams and not cut:
        # The last event counts, even if the blank line after it is missing.
        decoder.end_of_body()
    if not decoder.finished or cut:
        return Outcome(schema.TRUNCATED, cut or "no_end_mark")
    if decoder.streams and decoder.stopped is None:
        decoder.tolerate(violations.NO_DONE)
    if decoder.streams and not is_event_stream(exchange.header(b"content-type")):
        decoder.tolerate(violations.OTHER_CONTENT_TYPE)
    return _ended(decoder)


def _is_no_stream(exchange: Exchange) -> bool:
    """Return whether a body without events is none of a stream. SDKs and gateways do not look at the content type."""
    if exchange.cut == violations.COMPRESSED:
        return False
    may_be_cut = bool(exchange.cut) or is_event_stream(exchange.header(b"content-type"))
    body = exchange.plain_body.removeprefix(codecs.BOM_UTF8)
    if not body.strip():
        return not may_be_cut
    lines = body.splitlines()
    if may_be_cut and _may_begin_a_field(lines[-1]):
        return False
    return not any(line.startswith(_FIELDS) for line in lines)


def _may_begin_a_field(line: bytes) -> bool:
    """Return whether a line that may lack its end can be one of an event stream."""
    fields = (*_FIELDS, _ERROR_FIELD)
    return line.startswith(fields) or any(field.startswith(line) for field in fields)


def _no_stream(exchange: Exchange) -> Outcome:
    """Return the outcome of a 200 that is no event stream: an error of a gateway, or something else."""
    body = exchange.plain_body
    try:
        tree = json.loads(body)
    except (ValueError, RecursionError):
        tree = None
    if looks_like_error(tree, any_code=True):
        kind, text = error_of(tree)
        error_class = class_of_error(tree)
        return Outcome(error_class or schema.CLIENT_ERROR, kind, text, error_class=error_class)
    content_type = shown(exchange.header(b"content-type"), MAX_HEADER)
    page = _text(body) or f"content-type {content_type!r}"
    return Outcome(schema.CLIENT_ERROR, violations.NOT_AN_EVENT_STREAM, page)


def _failed(exchange: Exchange, decoder: StreamDecoder) -> Outcome:
    """Return the outcome of an answer with an error in it."""
    error = decoder.error
    assert error is not None
    ended = error.ended
    text = error.text
    if not decoder.streams and error.error_class is None:
        ended = schema.CLIENT_ERROR
        text = _text(exchange.plain_body) or text
    limit = None
    if ended == schema.RATE_LIMITED:
        limit = _limit_kind(exchange)
    return Outcome(ended, error.kind, text, limit, error.error_class)


def _ended(decoder: StreamDecoder) -> Outcome:
    """Return the outcome of an answer whose end mark has come."""
    counts = decoder.usage.live()
    end = End(
        protocol=decoder.protocol,
        stop_reason=decoder.stop_reason,
        needs_reason=decoder.kind == MESSAGE and decoder.protocol in vendors.TABLE["ends"],
        # A call of a tool is an answer, also where the tool takes no input.
        has_content=decoder.has_content or decoder.tools.count > 0 or decoder.answer is not None,
        is_refusal=decoder.is_refusal,
        output_tokens=counts.get("output_tokens") or None,
        characters=decoder.characters,
        has_hidden_tokens=decoder.last_thinking is not None,
        max_tokens=decoder.max_tokens or 0,
        ends_naturally=decoder.ends_naturally,
    )
    ended = class_of_end(end)
    return Outcome(ended.ended, ended.error_type)


def _refused(exchange: Exchange) -> Outcome:
    """Return the outcome of a response whose status is an error."""
    status = exchange.status or 0
    ended = vendors.class_of_status(status)
    limit = None
    if status == 429:
        limit = _limit_kind(exchange)
    return Outcome(ended, _error_type(exchange), _text(exchange.plain_body), limit)


def _error_type(exchange: Exchange) -> str:
    """Return the target's name of its error, or the violation in its body."""
    if exchange.cut in violations.VIOLATIONS:
        return str(exchange.cut)
    if exchange.header(b"content-encoding").lower() not in {b"", b"identity"}:
        return violations.COMPRESSED
    try:
        return error_of(json.loads(exchange.plain_body))[0]
    except (ValueError, RecursionError):
        return "not_json"


def _text(body: bytes) -> str:
    """Return as much of a body as is redacted: more than is shown of it."""
    return body[: 4 * MAX_ERROR_TEXT].decode("utf-8", "replace")


def limit_headers(exchange: Exchange) -> list[tuple[str, str]]:
    """Return the headers of limits and those that look like one, as text, their names in lower case."""
    headers = []
    for raw_name, value in exchange.headers:
        name = raw_name.lower().decode("latin-1")
        if limits.is_of_a_limit(name):
            headers.append((name, value.decode("latin-1").strip()))
    return headers


def _limit_kind(exchange: Exchange) -> str:
    """Return the empty bucket of a 429 by its headers."""
    return limits.limit_kind(limit_headers(exchange))


def rate_limit_headers(headers: limits.Headers) -> str | None:
    """Return every header of a limit as a JSON object, or None."""
    if not headers:
        return None
    first_headers = headers[:MAX_HEADERS]
    return json.dumps(
        {shown(name, MAX_HEADER): shown(value, MAX_HEADER) for name, value in first_headers}
    )


def header(value: bytes) -> str:
    """Return a header's name or value for a row."""
    return shown(value.decode("latin-1"), MAX_HEADER)


def should_retry(exchange: Exchange) -> bool | None:
    """Return what the target's x-should-retry header says; None without it."""
    advice = exchange.header(b"x-should-retry").strip().lower()
    return {b"true": True, b"false": False}.get(advice)


def retry_after(
    exchange: Exchange, ended: str, received_at: datetime | None = None
) -> tuple[float | None, str | None]:
    """Return how many seconds to wait before a retry, and which header or field says so; nothing of an answer.

    `received_at`: for headers with a date, by default the present time. The reset of a limit says when to come back from
    that limit, and nothing of an overload.
    """
    if ended in schema.SERVED or not exchange.headers:
        return None, None
    waits = [(name, exchange.header(name.encode()).decode("latin-1")) for name in limits.WAITS]
    headers = [(name, value) for name, value in waits if value]
    if ended == schema.RATE_LIMITED:
        headers += limit_headers(exchange)
    advice = limits.retry_after(headers, received_at) or _retry_delay(exchange)
    if advice is None:
        return None, None
    seconds, source = advice
    return seconds, shown(source, MAX_HEADER)


def _retry_delay(exchange: Exchange) -> tuple[float, str] | None:
    """Return the wait that the body of an error names, and the field."""
    if b"retryDelay" not in exchange.plain_body:
        return None
    try:
        delay = retry_delay_of(json.loads(exchange.plain_body))
    except (ValueError, RecursionError):
        return None
    if not isinstance(delay, str):
        return None
    seconds = limits.duration_of(delay)
    if seconds is None:
        return None
    return seconds, "retryDelay"


def not_understood(headers: limits.Headers) -> str | None:
    """Return the headers that look like a limit and that nobody knows."""
    names = limits.not_understood(headers)[:MAX_HEADERS]
    return ", ".join(f"header {shown(name, MAX_HEADER)}" for name in names) or None
