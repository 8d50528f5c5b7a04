"""What one traffic table got of one target: kept by a worker, sent once a second, added up by the master.

Counts only grow, and the sketches can be added and subtracted, so a lost message loses no count. A request counts where
its first call went.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

from tailgauge import quantile_sketch

_INPUT = ("input_tokens", "cache_read_input_tokens", "cache_creation_input_tokens")
K = TypeVar("K")
Key = tuple[str, str]  # traffic table, target
SKETCHES = ("ttft", "tpot", "e2e")
TOKENS = ("input_tokens", "cached_tokens", "output_tokens")


@dataclass(slots=True)
class TrafficCounters:
    """Counts since the start of the run, without the preflight."""

    requests: dict[str, int] = field(default_factory=dict)  # ended, by outcome
    attempts: dict[str, int] = field(default_factory=dict)  # ended calls, by outcome
    input_tokens: int = 0  # those of a cache included
    cached_tokens: int = 0  # of these, read from a cache
    output_tokens: int = 0
    # In ms: TTFT of calls with content, since scheduled; TPOT of complete calls; E2E of complete requests, since scheduled.
    ttft: quantile_sketch.Bins = field(default_factory=dict)
    tpot: quantile_sketch.Bins = field(default_factory=dict)
    e2e: quantile_sketch.Bins = field(default_factory=dict)

    def end_attempt(
        self, ended: str, usage: Mapping[str, int | None], tpot_ms: float | None
    ) -> None:
        """Count an ended call."""
        self.attempts[ended] = self.attempts.get(ended, 0) + 1
        if usage:
            self.input_tokens += sum(usage.get(name) or 0 for name in _INPUT)
            self.cached_tokens += usage.get("cache_read_input_tokens") or 0
            self.output_tokens += usage.get("output_tokens") or 0
        if tpot_ms is not None:
            quantile_sketch.add(self.tpot, tpot_ms)

    def end_request(self, ended: str, e2e_ms: float | None) -> None:
        """Count an ended request; `e2e_ms` if it is complete."""
        self.requests[ended] = self.requests.get(ended, 0) + 1
        if e2e_ms is not None:
            quantile_sketch.add(self.e2e, e2e_ms)

    def as_message(self) -> dict[str, Any]:
        """Return plain values for the channel."""
        return {
            "requests": dict(self.requests),
            "attempts": dict(self.attempts),
            "tokens": (self.input_tokens, self.cached_tokens, self.output_tokens),
            "ttft": quantile_sketch.packed(self.ttft),
            "tpot": quantile_sketch.packed(self.tpot),
            "e2e": quantile_sketch.packed(self.e2e),
        }


def total(messages: Sequence[dict[str, Any]]) -> TrafficCounters:
    """Return the sum of messages."""
    counters = combined(
        TrafficCounters(message["requests"], message["attempts"], *message["tokens"])
        for message in messages
    )
    counters.ttft = quantile_sketch.total(message["ttft"] for message in messages)
    counters.tpot = quantile_sketch.total(message["tpot"] for message in messages)
    counters.e2e = quantile_sketch.total(message["e2e"] for message in messages)
    return counters


def combined(parts: Iterable[TrafficCounters]) -> TrafficCounters:
    """Return the sum of counters."""
    counters = TrafficCounters()
    for part in parts:
        quantile_sketch.merge(counters.requests, part.requests)
        quantile_sketch.merge(counters.attempts, part.attempts)
        quantile_sketch.merge(counters.ttft, part.ttft)
        quantile_sketch.merge(counters.tpot, part.tpot)
        quantile_sketch.merge(counters.e2e, part.e2e)
        counters.input_tokens += part.input_tokens
        counters.cached_tokens += part.cached_tokens
        counters.output_tokens += part.output_tokens
    return counters


def difference(end: TrafficCounters, begin: TrafficCounters) -> TrafficCounters:
    """Return what was added between the two."""
    return TrafficCounters(
        requests=_subtract(end.requests, begin.requests),
        attempts=_subtract(end.attempts, begin.attempts),
        input_tokens=end.input_tokens - begin.input_tokens,
        cached_tokens=end.cached_tokens - begin.cached_tokens,
        output_tokens=end.output_tokens - begin.output_tokens,
        ttft=_subtract(end.ttft, begin.ttft),
        tpot=_subtract(end.tpot, begin.tpot),
        e2e=_subtract(end.e2e, begin.e2e),
    )


def _subtract(end: dict[K, int], begin: Mapping[K, int]) -> dict[K, int]:
    return {key: count - begin.get(key, 0) for key, count in end.items()}
