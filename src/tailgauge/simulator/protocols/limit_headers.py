"""Whose limit headers a response has: a row each, for the same limits.

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

from collections.abc import Callable, Mapping, Sequence
from email.utils import formatdate

from tailgauge.simulator.behaviours.limits import MINUTE_S, NS_PER_S, Reading, tightest_tokens
from tailgauge.simulator.protocols import anthropic, openai
from tailgauge.simulator.protocols.wire import Wire

Family = Callable[[Wire, Sequence[Reading], int], dict[str, str]]
_MISTRAL = {"requests": "req-minute", "tokens": "tokens-minute"}


def limit_headers(family: str, wire: Wire, readings: Sequence[Reading], wall_ns: int) -> dict[str, str]:
    """Return the limit headers of a response at `wall_ns`, nanoseconds since 1970."""
    return FAMILIES[family](wire, readings, wall_ns)


def retry_headers(form: str, seconds: int, wall_ns: int) -> dict[str, str]:
    """Return what a rejection says of when to come back, in one of its forms."""
    if form == "none":
        return {}
    if form == "milliseconds":
        return {"retry-after-ms": str(seconds * 1000)}
    if form == "date":
        at_s = -(-wall_ns // NS_PER_S) + seconds
        return {"retry-after": formatdate(at_s, usegmt=True)}
    return {"retry-after": str(seconds)}


def _named(readings: Sequence[Reading]) -> dict[str, Reading]:
    """Return the readings of requests and of the tighter limit on tokens, by name."""
    by_name = tightest_tokens(readings)
    return {name: by_name[name] for name in ("requests", "tokens") if name in by_name}


def _provider(wire: Wire, readings: Sequence[Reading], wall_ns: int) -> dict[str, str]:
    return wire.limit_headers(readings, wall_ns)


def _anthropic(wire: Wire, readings: Sequence[Reading], wall_ns: int) -> dict[str, str]:  # noqa: ARG001 - a row's
    return anthropic.limit_headers(readings, wall_ns)


def _openai(wire: Wire, readings: Sequence[Reading], wall_ns: int) -> dict[str, str]:  # noqa: ARG001
    return openai.limit_headers(readings, wall_ns)


def _azure(wire: Wire, readings: Sequence[Reading], wall_ns: int) -> dict[str, str]:  # noqa: ARG001
    headers = {}
    for name, reading in _named(readings).items():
        headers[f"x-ratelimit-limit-{name}"] = str(reading.limit)
        headers[f"x-ratelimit-remaining-{name}"] = str(reading.remaining)
        headers[f"x-ratelimit-reset-{name}"] = str(_seconds(reading))
    return headers


def _mistral(wire: Wire, readings: Sequence[Reading], wall_ns: int) -> dict[str, str]:  # noqa: ARG001
    headers = {}
    for name, reading in _named(readings).items():
        headers[f"x-ratelimit-limit-{_MISTRAL[name]}"] = str(reading.limit)
        headers[f"x-ratelimit-remaining-{_MISTRAL[name]}"] = str(reading.remaining)
    return headers


def _litellm(wire: Wire, readings: Sequence[Reading], wall_ns: int) -> dict[str, str]:
    headers = wire.limit_headers(readings, wall_ns)
    return {f"llm_provider-{name}": value for name, value in headers.items()}


def _ietf(wire: Wire, readings: Sequence[Reading], wall_ns: int) -> dict[str, str]:  # noqa: ARG001
    policies = []
    states = []
    for name, reading in _named(readings).items():
        policies.append(f'"{name}";q={reading.limit};w={MINUTE_S}')
        states.append(f'"{name}";r={reading.remaining};t={_seconds(reading)}')
    return {"ratelimit-policy": ", ".join(policies), "ratelimit": ", ".join(states)}


def _epoch(wire: Wire, readings: Sequence[Reading], wall_ns: int) -> dict[str, str]:  # noqa: ARG001
    return _at_instants(readings, wall_ns, NS_PER_S)


def _epoch_ms(wire: Wire, readings: Sequence[Reading], wall_ns: int) -> dict[str, str]:  # noqa: ARG001
    return _at_instants(readings, wall_ns, 1_000_000)


def _at_instants(readings: Sequence[Reading], wall_ns: int, unit_ns: int) -> dict[str, str]:
    headers = {}
    for name, reading in _named(readings).items():
        headers[f"x-ratelimit-limit-{name}"] = str(reading.limit)
        headers[f"x-ratelimit-remaining-{name}"] = str(reading.remaining)
        headers[f"x-ratelimit-reset-{name}"] = str(-(-(wall_ns + reading.full_in_ns) // unit_ns))
    return headers


def _seconds(reading: Reading) -> int:
    return -(-reading.full_in_ns // NS_PER_S)


FAMILIES: Mapping[str, Family] = {
    "provider": _provider,
    "anthropic": _anthropic,
    "openai": _openai,
    "groq": _openai,
    "azure": _azure,
    "mistral": _mistral,
    "litellm": _litellm,
    "ietf": _ietf,
    "epoch": _epoch,
    "epoch_ms": _epoch_ms,
}
