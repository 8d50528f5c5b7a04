"""What a worker counts as it goes: for its health rows, the live display, and the conservation of requests.

Rule: numbers only grow, from the start of the run; preflight is not counted.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from tailgauge.quantile_sketch import Bins
from tailgauge.worker.health.per_second import Second


@dataclass(slots=True)
class Counters:
    """scheduled = dispatched + client_drop + not_reached; dispatched = ended + censored, once drained."""

    leased: int = 0  # arrivals handed to this worker
    dispatched: int = 0
    client_drop: int = 0
    not_reached: int = 0
    censored: int = 0
    ended: dict[str, int] = field(default_factory=dict)
    attempts: dict[str, int] = field(default_factory=dict)  # ended calls by outcome
    in_flight: int = 0
    attempts_open: int = 0
    chunks: int = 0
    reads: int = 0
    first_chunks: int = 0
    first_intervals: int = 0  # of these, interval-stamped
    chunk_intervals: int = 0  # of the chunks, interval-stamped
    receive_lag_max_ns: int = 0  # of the current second
    second: Second = field(default_factory=Second)
    ttft: Bins = field(default_factory=dict)  # ms since scheduled
    steady_first: int = 0  # first chunks of the steady stage
    steady_intervals: int = 0  # of these, interval-stamped
    delays: Bins = field(default_factory=dict)  # ms from scheduled to sent, of the steady stage's first calls

    def end(self, ended: str) -> None:
        """One more request with this outcome."""
        self.ended[ended] = self.ended.get(ended, 0) + 1

    def end_attempt(self, ended: str) -> None:
        """One more call with this outcome."""
        self.attempts[ended] = self.attempts.get(ended, 0) + 1

    @property
    def ended_total(self) -> int:
        """Requests with a known outcome."""
        return sum(self.ended.values())

    def as_message(self) -> dict[str, Any]:
        """Plain values for the link and for run.json."""
        return {
            "leased": self.leased,
            "dispatched": self.dispatched,
            "client_drop": self.client_drop,
            "not_reached": self.not_reached,
            "censored": self.censored,
            "ended": dict(self.ended),
        }
