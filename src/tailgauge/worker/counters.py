"""A worker's counters, for health rows, the live view and the conservation of requests.

All but `in_flight`, `waiting` and `conversations` only grow, from the start of the run; the preflight is not counted. A call costs a
few additions and at most two bins of a sketch, a request one.
"""

from __future__ import annotations

from array import array
from collections import Counter, defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from tailgauge.channel.traffic_counters import Key, TrafficCounters
from tailgauge.protocols.decoder import StreamDecoder
from tailgauge.quantile_sketch import Bins
from tailgauge.rows.schema import (
    CANCELLED,
    CENSORED,
    CLIENT_ERROR,
    NOT_FAILED,
    RATE_LIMITED,
    AttemptRow,
)

Quantiles = tuple[int | None, int | None, int]  # p50, p99, largest
_COUNTS = ("leased", "dispatched", "client_drop", "not_reached", "not_due", "came_late", "censored")


class Second:
    """How late the requests of the current second were dispatched; evaluated once at its end."""

    def __init__(self) -> None:
        self._late = array("q")

    def dispatched(self, late_ns: int) -> None:
        """A request was dispatched `late_ns` after its scheduled time."""
        self._late.append(late_ns)

    def close(self, lags: array[int]) -> tuple[Quantiles, Quantiles]:
        """Receive lag, of these reads, and late dispatch in ns; the next second begins."""
        late = self._late
        self._late = array("q")
        return _quantiles(np.array(lags, np.int64)), _quantiles(np.array(late, np.int64))


def _quantiles(values: npt.NDArray[np.int64]) -> Quantiles:
    """The smallest value that a share of all does not exceed."""
    n = len(values)
    if not n:
        return None, None, 0
    at = [-(-n // 2) - 1, -(-99 * n // 100) - 1, n - 1]
    middle, high, most = np.partition(values, at)[at].tolist()
    return middle, high, most


def pace_ms(decoder: StreamDecoder, tokens: Mapping[str, int], *, thinks: bool) -> float | None:
    """TPOT of a streamed answer in ms; None where its tokens and their time are not known to cover the same span."""
    first = decoder.first_content
    last = decoder.last_content
    output = tokens.get("output_tokens") or 0
    thinking = tokens.get("thinking_tokens")
    if decoder.first_thinking is not None or thinking or (thinks and thinking is None):
        first = decoder.first_text or decoder.first_tool_json
        output -= thinking or output  # not counted: nothing is known
    if not decoder.streams or first is None or last is None or output < 2 or last.at <= first.at:
        return None
    return (last.at - first.at) / 1e6 / (output - 1)


@dataclass(slots=True)
class Rejections:
    """Calls that ended last, all of them with the same 4xx of the same target; 429 is none of them."""

    in_a_row: int = 0
    target: str = ""
    status: int = 0
    url: str = ""
    error_type: str | None = None
    message: str | None = None
    model: str = ""

    def note(self, row: AttemptRow, url: str) -> None:
        """One more call has ended; one that the client closed says nothing."""
        if row.ended in {CANCELLED, CENSORED}:
            return
        status = row.status or 0
        if row.ended != CLIENT_ERROR or not 400 <= status < 500:
            self.in_a_row = 0
            return
        if not self.in_a_row or (self.target, self.status) != (row.target, status):
            self.in_a_row = 0
            self.target = row.target
            self.status = status
            self.url = url
            self.error_type = row.error_type
            self.message = row.error_body
            self.model = row.asked_model
        self.in_a_row += 1


@dataclass(slots=True)
class Counters:
    """scheduled = dispatched + client_drop + not_reached; dispatched = ended + censored, once drained."""

    leased: int = 0  # arrivals
    dispatched: int = 0
    client_drop: int = 0
    not_reached: int = 0
    not_due: int = (
        0  # of these, turns whose session was over, or still thinking, at the end of the run
    )
    came_late: int = 0  # of these, what was overdue when its slice arrived
    censored: int = 0
    ended: Counter[str] = field(default_factory=Counter)
    in_flight: int = 0
    waiting: int = 0  # for a slot
    chunks: int = 0
    reads: int = 0
    first_chunks: int = 0
    first_intervals: int = 0  # of these, interval-stamped
    chunk_intervals: int = 0  # of the chunks, interval-stamped
    conversations: int = 0  # bytes of answers that the turns to come will repeat
    receive_lag_max_ns: int = 0  # of the current second
    second: Second = field(default_factory=Second)
    rejections: Rejections = field(default_factory=Rejections)
    traffic: defaultdict[Key, TrafficCounters] = field(
        default_factory=lambda: defaultdict(TrafficCounters)
    )
    delays: Bins = field(
        default_factory=dict
    )  # ms from scheduled to sent, of the steady stage's first calls

    def text(self) -> str:
        """What was sent and what became of it, for this worker's log."""
        failed = sum(n for ended, n in self.ended.items() if ended not in NOT_FAILED)
        limited = sum(of.attempts.get(RATE_LIMITED, 0) for of in self.traffic.values())
        return f"{self.dispatched:,} sent, {self.in_flight:,} open, {failed:,} errors, {limited:,} 429s"

    def as_message(self) -> dict[str, Any]:
        """Plain values for the channel and run.json."""
        return {name: getattr(self, name) for name in _COUNTS} | {"ended": dict(self.ended)}
