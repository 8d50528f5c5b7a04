"""Rate-limit headers, as each provider writes them.

Rule: pure: readings of the limits and the wall time in, header names and values out. No limit, no header.

    anthropic-ratelimit-{requests,tokens,input-tokens,output-tokens}-{limit,remaining,reset}
        `remaining` of tokens is rounded to the nearest 1,000; `reset` is the RFC 3339 instant of the FULL refill, whole
        seconds, rounded up; `tokens` repeats the more restrictive of input and output: the smaller share remaining
    x-ratelimit-{limit,remaining,reset}-{requests,tokens}
        `reset` is a duration as Go writes it: 120ms, 1.5s, 6m0s

Sources: Anthropic's rate-limit page (2026-08), checked on a recorded response: limit 16000, remaining 12000, reset 15 s
later = 4000 / (16000 / 60). OpenAI's rate-limit guide for the second.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime

from tailgauge.simulator.limits import INPUT_TOKENS, OUTPUT_TOKENS, REQUESTS, Decision, Reading
from tailgauge.simulator.token_bucket import NS_PER_S

_NS_PER_MS = 1_000_000


def anthropic_headers(readings: Sequence[Reading], wall_ns: int) -> dict[str, str]:
    """Headers of a response at `wall_ns`, nanoseconds since 1970 UTC."""
    headers = {}
    for name, reading in _by_header(readings).items():
        remaining = reading.remaining
        if reading.kind != REQUESTS:
            remaining = (remaining + 500) // 1000 * 1000
        prefix = f"anthropic-ratelimit-{name.replace('_', '-')}"
        headers[f"{prefix}-limit"] = str(reading.limit)
        headers[f"{prefix}-remaining"] = str(remaining)
        headers[f"{prefix}-reset"] = _instant(wall_ns + reading.full_in_ns)
    return headers


def openai_headers(readings: Sequence[Reading]) -> dict[str, str]:
    """Headers of a response; the tokens are those of the more restrictive limit."""
    headers = {}
    for name, reading in _by_header(readings).items():
        if name in {"requests", "tokens"}:
            headers[f"x-ratelimit-limit-{name}"] = str(reading.limit)
            headers[f"x-ratelimit-remaining-{name}"] = str(reading.remaining)
            headers[f"x-ratelimit-reset-{name}"] = duration(reading.full_in_ns)
    return headers


def retry_after(decision: Decision) -> dict[str, str]:
    """The header of a refusal, where waiting helps."""
    return {} if decision.retry_after_s is None else {"retry-after": str(decision.retry_after_s)}


def duration(ns: int) -> str:
    """Text of a duration, to the millisecond, rounded up: 0s, 120ms, 1.5s, 6m0s, 1h0m0s."""
    ms = -(-ns // _NS_PER_MS)
    if 0 < ms < 1000:
        return f"{ms}ms"
    minutes, rest_ms = divmod(ms, 60_000)
    hours, minutes = divmod(minutes, 60)
    seconds = f"{rest_ms // 1000}.{rest_ms % 1000:03d}".rstrip("0").rstrip(".") + "s"
    if hours:
        return f"{hours}h{minutes}m{seconds}"
    return f"{minutes}m{seconds}" if minutes else seconds


def _by_header(readings: Sequence[Reading]) -> Mapping[str, Reading]:
    named = {reading.kind: reading for reading in readings}
    tokens = [named[kind] for kind in (INPUT_TOKENS, OUTPUT_TOKENS) if kind in named]
    if tokens:
        named["tokens"] = min(tokens, key=lambda one: one.remaining / one.limit)
    return named


def _instant(wall_ns: int) -> str:
    seconds = -(-wall_ns // NS_PER_S)
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
