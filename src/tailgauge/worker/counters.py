"""A worker's counters, for health rows, the live view and the conservation of requests.

Those of each traffic table at each target are in `channel.traffic_counters`.

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
        self._late_ns = array("q")

    def dispatched(self, late_ns: int) -> None:
        """Count a request that was dispatched `late_ns` after its scheduled time."""
        self._late_ns.append(late_ns)

    def close(self, lags: array[int]) -> tuple[Quantiles, Quantiles]:
        """Return the receive lag, of these reads, and late dispatch in ns; the next second begins."""
        late_ns = self._late_ns
        self._late_ns = array("q")
        return _quantiles(np.array(lags, np.int64)), _quantiles(np.array(late_ns, np.int64))


def _quantiles(values: npt.NDArray[np.int64]) -> Quantiles:
    """Return p50, p99 and the largest value; a quantile is the smallest value that this share of all does not exceed."""
    n = len(values)
    if not n:
        return None, None, 0
    ranks = [-(-n // 2) - 1, -(-99 * n // 100) - 1, n - 1]
    p50, p99, largest = np.partition(values, ranks)[ranks].tolist()
    return p50, p99, largest


def pace_ms(decoder: StreamDecoder, tokens: Mapping[str, int], *, thinks: bool) -> float | None:
    """Return the TPOT of a streamed answer in ms; None where its tokens and their time are not known to cover the same span."""
    begin = decoder.first_content
    end = decoder.last_content
    output_tokens = tokens.get("output_tokens") or 0
    thinking_tokens = tokens.get("thinking_tokens")
    # Thinking counts as output: only the text behind it is timed. Where it is not counted, nothing is known.
    is_counted_apart = thinking_tokens is not None
    if decoder.first_thinking is not None or thinking_tokens or (thinks and not is_counted_apart):
        begin = decoder.first_text or decoder.first_tool_json
        output_tokens -= thinking_tokens or output_tokens
    if not decoder.streams or begin is None or end is None:
        return None
    if output_tokens < 2 or end.at <= begin.at:
        return None
    return (end.at - begin.at) / 1e6 / (output_tokens - 1)


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
        """Count a call that ended with the same 4xx as those before it; any other answer begins again from 0.

        A call that the client closed changes nothing. 429 is not among them: its outcome is not
        `CLIENT_ERROR`. `url`: of the call, for the message to the user.
        """
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
    # Of these, turns whose session was over, or still thinking, at the end of the run.
    not_due: int = 0
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
    # Milliseconds from scheduled to sent, of the steady stage's first calls.
    delays: Bins = field(default_factory=dict)

    def text(self) -> str:
        """Return what was sent and what became of it, for this worker's log."""
        failed = sum(count for ended, count in self.ended.items() if ended not in NOT_FAILED)
        tables = self.traffic.values()
        limited = sum(counts.attempts.get(RATE_LIMITED, 0) for counts in tables)
        return f"{self.dispatched:,} sent, {self.in_flight:,} open, {failed:,} errors, {limited:,} 429s"

    def as_message(self) -> dict[str, Any]:
        """Return plain values for the channel and run.json."""
        return {name: getattr(self, name) for name in _COUNTS} | {"ended": dict(self.ended)}
