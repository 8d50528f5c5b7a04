"""A worker's counters, for health rows, the live view and the conservation of requests.

They only grow, from the start of the run; the preflight is not counted.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from tailgauge.quantile_sketch import Bins

Quantiles = tuple[int | None, int | None, int]  # p50, p99, largest


class Second:
    """Timestamps of the current second, kept as arrays and evaluated once at its end."""

    def __init__(self) -> None:
        self._arrived: list[array[int]] = []
        self._read_at: list[array[int]] = []
        self._late = array("q")

    def reads(self, arrived: array[int], read_at: array[int]) -> None:
        """Some reads were decoded; the arrays do not change any more."""
        self._arrived.append(arrived)
        self._read_at.append(read_at)

    def dispatched(self, late_ns: int) -> None:
        """A request was dispatched `late_ns` after its scheduled time."""
        self._late.append(late_ns)

    def close(self) -> tuple[Quantiles, Quantiles]:
        """Receive lag and late dispatch in ns; the next second begins."""
        lags = _joined(self._read_at) - _joined(self._arrived)
        late = _joined([self._late])
        self._arrived, self._read_at, self._late = [], [], array("q")
        return _quantiles(lags), _quantiles(late)


def _joined(pieces: Sequence[array[int]]) -> npt.NDArray[np.int64]:
    return np.frombuffer(b"".join(pieces), np.int64)


def _quantiles(values: npt.NDArray[np.int64]) -> Quantiles:
    """The smallest value that a share of all does not exceed."""
    n = len(values)
    if not n:
        return None, None, 0
    at = [-(-n // 2) - 1, -(-99 * n // 100) - 1, n - 1]
    middle, high, most = np.partition(values, at)[at].tolist()
    return middle, high, most


@dataclass(slots=True)
class Counters:
    """scheduled = dispatched + client_drop + not_reached; dispatched = ended + censored, once drained."""

    leased: int = 0  # arrivals
    dispatched: int = 0
    client_drop: int = 0
    not_reached: int = 0
    not_due: int = 0  # of these, turns whose session was over, or still thinking, at the end of the run
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
        """Plain values for the channel and run.json."""
        return {
            "leased": self.leased,
            "dispatched": self.dispatched,
            "client_drop": self.client_drop,
            "not_reached": self.not_reached,
            "not_due": self.not_due,
            "censored": self.censored,
            "ended": dict(self.ended),
        }
