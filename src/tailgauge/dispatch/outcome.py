"""How an attempt ended, told from what the exchange and its decoder saw.

Rule: no failure is an exception here. The first of these that holds is the class: we ended it; no response came; the
status says so; the body is not the protocol; an error came inside the stream; the end mark is missing; empty; ok.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import TYPE_CHECKING

from tailgauge import records
from tailgauge.endpoints.decoder import error_of
from tailgauge.endpoints.keys import redact

if TYPE_CHECKING:
    from tailgauge.endpoints.decoder import StreamDecoder
    from tailgauge.transport.exchange import Exchange

MAX_ERROR_TEXT = 2000
_LIMITS = ("requests", "input-tokens", "output-tokens", "tokens")


@dataclass(frozen=True, slots=True)
class Outcome:
    """Class, and for failures the error's type and text with secrets removed."""

    ended: str
    error_type: str | None = None
    error_body: str | None = None
    limit_kind: str | None = None


def outcome(exchange: Exchange, decoder: StreamDecoder) -> Outcome:
    """Outcome of a finished exchange."""
    if exchange.aborted:
        return Outcome(exchange.aborted)
    if exchange.status is None:
        kind, message = exchange.failure or ("unknown", "no response")
        ended = records.CLIENT_ERROR if kind == "not_http" else records.CONNECT_ERROR
        return Outcome(ended, kind, redact(message)[:MAX_ERROR_TEXT])
    if exchange.status != 200:
        return _refused(exchange)
    return _streamed(exchange, decoder)


def _streamed(exchange: Exchange, decoder: StreamDecoder) -> Outcome:
    """Of a response with status 200."""
    kind = exchange.header(b"content-type")
    if decoder.streams and not kind.lower().startswith(b"text/event-stream"):
        text = _text(exchange.plain_body) or f"content-type {kind.decode('latin-1')!r}"
        return Outcome(records.CLIENT_ERROR, "not_an_event_stream", text)
    if exchange.header(b"content-encoding").lower() not in {b"", b"identity"}:
        return Outcome(
            records.STREAM_ERROR, "compressed", "the target compresses although identity was asked for"
        )
    if decoder.error and not decoder.streams:
        text = _text(exchange.plain_body) or redact(decoder.error[1])[:MAX_ERROR_TEXT]
        return Outcome(records.CLIENT_ERROR, decoder.error[0], text)
    if decoder.error:
        return Outcome(records.STREAM_ERROR, decoder.error[0], redact(decoder.error[1])[:MAX_ERROR_TEXT])
    if not decoder.finished or exchange.cut:
        return Outcome(records.TRUNCATED, exchange.cut or "no_end_mark")
    return Outcome(records.OK if decoder.has_content or decoder.answer is not None else records.EMPTY)


def _refused(exchange: Exchange) -> Outcome:
    status, text = exchange.status or 0, _text(exchange.plain_body)
    try:
        error_type: str | None = error_of(json.loads(exchange.plain_body))[0]
    except (ValueError, RecursionError):
        error_type = "not_json"
    if status == 429:
        return Outcome(records.RATE_LIMITED, error_type, text, _limit_kind(exchange))
    if status in {503, 529}:
        return Outcome(records.OVERLOADED, error_type, text)
    ended = records.SERVER_ERROR if status >= 500 else records.CLIENT_ERROR
    return Outcome(ended, error_type, text)


def _text(body: bytes) -> str:
    return redact(body[: 4 * MAX_ERROR_TEXT].decode("utf-8", "replace"))[:MAX_ERROR_TEXT]


def _limit_kind(exchange: Exchange) -> str:
    """Which bucket of a 429 is empty, as far as its headers tell."""
    for kind in _LIMITS:
        if exchange.header(f"anthropic-ratelimit-{kind}-remaining".encode()) == b"0":
            return kind.replace("-", "_")
        if exchange.header(f"x-ratelimit-remaining-{kind}".encode()) == b"0":
            return kind.replace("-", "_")
    return "unknown"


def rate_limit_headers(exchange: Exchange) -> str | None:
    """Every rate-limit header as a JSON object, or None."""
    found = {
        name.decode("latin-1").lower(): value.decode("latin-1")
        for name, value in exchange.headers
        if b"ratelimit" in name.lower()
    }
    return json.dumps(found) if found else None


def should_retry(exchange: Exchange) -> bool | None:
    """What the target says of another try (x-should-retry), None where it says nothing."""
    return {b"true": True, b"false": False}.get(exchange.header(b"x-should-retry").strip().lower())


def retry_after_s(exchange: Exchange) -> float | None:
    """The retry-after header in seconds; it may be a number or a date."""
    text = exchange.header(b"retry-after").decode("latin-1")
    if not text:
        return None
    try:
        seconds = float(text)
    except ValueError:
        try:
            seconds = (parsedate_to_datetime(text) - datetime.now(UTC)).total_seconds()
        except (ValueError, TypeError):
            return None
    return seconds if 0 <= seconds < 1e9 else None
