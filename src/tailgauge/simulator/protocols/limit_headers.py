"""The families of limit headers, for the same limits: a row each.

    provider   those of the protocol's own provider
    groq       as OpenAI's
    azure      x-ratelimit-{limit,remaining}-*, x-ratelimit-reset-tokens in seconds
    mistral    x-ratelimit-{limit,remaining}-{req,tokens}-minute, no reset
    litellm    those of the protocol's own provider, with `llm_provider-` before each name
    ietf       ratelimit-policy and ratelimit, in seconds
    epoch      x-ratelimit-{limit,remaining,reset}-{requests,tokens}, `reset` in seconds since 1970; `epoch_ms` in milliseconds

Sources: the providers' pages on rate limits, LiteLLM's, and the IETF draft on RateLimit fields (2026-11).
"""

from __future__ import annotations

from collections.abc import Sequence
from email.utils import formatdate

from tailgauge.simulator.behaviours.limits import MINUTE_S, NS_PER_S, Reading, tightest_tokens
from tailgauge.simulator.protocols import anthropic, openai
from tailgauge.simulator.protocols.wire import Wire

_MISTRAL = {"requests": "req-minute", "tokens": "tokens-minute"}


def limit_headers(
    family: str, wire: Wire, readings: Sequence[Reading], wall_ns: int
) -> dict[str, str]:
    """Return the limit headers of a response at `wall_ns`, nanoseconds since 1970."""
    match family:
        case "provider":
            return wire.limit_headers(readings, wall_ns)
        case "litellm":
            headers = wire.limit_headers(readings, wall_ns)
            return {f"llm_provider-{name}": value for name, value in headers.items()}
        case "anthropic":
            return anthropic.limit_headers(readings, wall_ns)
        case "openai" | "groq":
            return openai.limit_headers(readings, wall_ns)
    all_readings = tightest_tokens(readings)
    by_name = {name: all_readings[name] for name in ("requests", "tokens") if name in all_readings}
    if family == "ietf":
        return _fields(by_name)
    return _of_gateway(family, by_name, wall_ns)


def retry_headers(form: str, seconds: int, wall_ns: int) -> dict[str, str]:
    """Return the headers of a rejection that say when to retry, in one of their forms."""
    if form == "none":
        return {}
    if form == "milliseconds":
        return {"retry-after-ms": str(seconds * 1000)}
    if form == "date":
        at_s = -(-wall_ns // NS_PER_S) + seconds
        return {"retry-after": formatdate(at_s, usegmt=True)}
    return {"retry-after": str(seconds)}


def _of_gateway(family: str, readings: dict[str, Reading], wall_ns: int) -> dict[str, str]:
    """Return the headers of a gateway's family, whose resets have different forms."""
    headers = {}
    for name, reading in readings.items():
        header_name = _MISTRAL[name] if family == "mistral" else name
        headers[f"x-ratelimit-limit-{header_name}"] = str(reading.limit)
        headers[f"x-ratelimit-remaining-{header_name}"] = str(reading.remaining)
        full_at_ns = wall_ns + reading.full_in_ns
        resets = {
            "azure": _seconds(reading),
            "epoch": -(-full_at_ns // NS_PER_S),
            "epoch_ms": -(-full_at_ns // 1_000_000),
        }
        if family in resets:
            headers[f"x-ratelimit-reset-{name}"] = str(resets[family])
    return headers


def _fields(readings: dict[str, Reading]) -> dict[str, str]:
    """Return the headers of the IETF draft."""
    policies = []
    states = []
    for name, reading in readings.items():
        policies.append(f'"{name}";q={reading.limit};w={MINUTE_S}')
        states.append(f'"{name}";r={reading.remaining};t={_seconds(reading)}')
    return {"ratelimit-policy": ", ".join(policies), "ratelimit": ", ".join(states)}


def _seconds(reading: Reading) -> int:
    return -(-reading.full_in_ns // NS_PER_S)
