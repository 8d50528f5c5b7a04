"""What one traffic table got of one target: kept by a worker, sent once a second, added up by the master.

Counts only grow, and the sketches can be added and subtracted, so a lost message loses no count. A request counts where
its first call went.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar

from tailgauge import quantile_sketch

_INPUT = ("input_tokens", "cache_read_input_tokens", "cache_creation_input_tokens")
K = TypeVar("K")
Key = tuple[str, str]  # traffic table, target
SKETCHES = ("ttft", "tpot", "e2e")
COUNTS = ("requests", "attempts", *SKETCHES)
TOKENS = ("input_tokens", "cached_tokens", "output_tokens")


@dataclass(slots=True)
class TrafficCounters:
    """Counts since the start of the run, without the preflight."""

    requests: dict[str, int] = field(default_factory=dict)  # ended, by outcome
    attempts: dict[str, int] = field(default_factory=dict)  # ended calls, by outcome
    input_tokens: int = 0  # those of a cache included
    cached_tokens: int = 0  # of these, read from a cache
    output_tokens: int = 0
    ttft: quantile_sketch.Bins = field(
        default_factory=dict
    )  # ms since scheduled, of calls with content
    tpot: quantile_sketch.Bins = field(default_factory=dict)  # ms, of complete calls
    e2e: quantile_sketch.Bins = field(
        default_factory=dict
    )  # ms since scheduled, of complete requests

    def end_attempt(
        self, ended: str, usage: Mapping[str, int | None], tpot_ms: float | None
    ) -> None:
        """One more ended call."""
        self.attempts[ended] = self.attempts.get(ended, 0) + 1
        if usage:
            self.input_tokens += sum(usage.get(name) or 0 for name in _INPUT)
            self.cached_tokens += usage.get("cache_read_input_tokens") or 0
            self.output_tokens += usage.get("output_tokens") or 0
        if tpot_ms is not None:
            quantile_sketch.add(self.tpot, tpot_ms)

    def end_request(self, ended: str, e2e_ms: float | None) -> None:
        """One more ended request; `e2e_ms` if it is complete."""
        self.requests[ended] = self.requests.get(ended, 0) + 1
        if e2e_ms is not None:
            quantile_sketch.add(self.e2e, e2e_ms)

    def as_message(self) -> dict[str, Any]:
        """Plain values for the channel."""
        tokens = tuple(getattr(self, name) for name in TOKENS)
        counts = {
            "requests": dict(self.requests),
            "attempts": dict(self.attempts),
            "tokens": tokens,
        }
        return counts | {name: quantile_sketch.packed(getattr(self, name)) for name in SKETCHES}


def total(messages: Iterable[dict[str, Any]]) -> TrafficCounters:
    """The sum of messages."""
    every = list(messages)
    found = combined(
        TrafficCounters(one["requests"], one["attempts"], *one["tokens"]) for one in every
    )
    for name in SKETCHES:
        setattr(found, name, quantile_sketch.total(message[name] for message in every))
    return found


def combined(many: Iterable[TrafficCounters]) -> TrafficCounters:
    """The sum of counters."""
    found = TrafficCounters()
    for each in many:
        for name in COUNTS:
            quantile_sketch.merge(getattr(found, name), getattr(each, name))
        for name in TOKENS:
            setattr(found, name, getattr(found, name) + getattr(each, name))
    return found


def difference(now: TrafficCounters, then: TrafficCounters) -> TrafficCounters:
    """What was added since `then`."""
    found: dict[str, Any] = {
        name: _less(getattr(now, name), getattr(then, name)) for name in COUNTS
    }
    tokens = {name: getattr(now, name) - getattr(then, name) for name in TOKENS}
    return TrafficCounters(**found, **tokens)


def _less(now: dict[K, int], then: Mapping[K, int]) -> dict[K, int]:
    return {key: n - then.get(key, 0) for key, n in now.items()}
