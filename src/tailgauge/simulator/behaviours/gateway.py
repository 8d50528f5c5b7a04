"""A gateway in front of the endpoint: calls reach the endpoint later, and an answer may leave in one piece.

The delay comes before the endpoint gets the call, so its server log shows what it would show behind any gateway.

Also here: a buffering proxy between the endpoint and its client: many writes arrive as one.

It sees times and sizes, and decides which writes leave together and when. Bytes are never split, lost or reordered. A group
leaves

    buffer_bytes   with the write that fills it to as many bytes
    buffer_ms      that long after its first write
    buffer_all     when the response ends

whichever of the first two comes first; at the end of the response whatever is left.

Sources: nginx's `proxy_buffering` and its time-outs; a gateway that collects a whole stream is the commonest cause of a
TTFT that equals the total latency.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from tailgauge.scenario.simulated import GatewayTable, ProxyTable
from tailgauge.simulator.behaviours.draws import draws

PATH = "/gateway"  # of its base URL, below that of the endpoint


def delay_ns(table: GatewayTable, seed: int, call_key: str) -> int:
    """How long the gateway keeps a call."""
    sigma = table.delay_sigma
    factor = math.exp(draws(seed, "gateway", call_key).gauss(0.0, sigma)) if sigma else 1.0
    return round(table.delay_ms * factor * 1e6)


def proxy(table: GatewayTable) -> ProxyTable:
    """What it does to an answer."""
    return ProxyTable(buffer_all=table.holds)


# --- a buffering proxy --------------------------------------------------------------------------------------------


def passes(table: ProxyTable) -> bool:
    """Whether each write leaves at once."""
    return not (table.buffer_bytes or table.buffer_ms or table.buffer_all)


@dataclass(frozen=True, slots=True)
class Flush:
    """Writes `first` to `behind` - 1, which leave in one piece."""

    at_ns: int
    first: int
    behind: int


class Buffer:
    """The writes of one response that are held back: call `write` for each, `due` at `due_at_ns`, and `end`."""

    def __init__(self, table: ProxyTable) -> None:
        self._table = table
        self._hold_ns = round(table.buffer_ms * 1e6)
        self._first = self._behind = self._bytes = 0
        self.due_at_ns: int | None = None  # when to call `due`; None: not before the next write

    def write(self, at_ns: int, size: int) -> list[Flush]:
        """One more write; returns what leaves by now, a group that was due before included."""
        left = self.due(at_ns)
        self._behind += 1
        self._bytes += size
        table = self._table
        is_full = 0 < table.buffer_bytes <= self._bytes and not table.buffer_all
        if passes(table) or is_full:
            return [*left, *self._flush(at_ns)]
        if self._hold_ns and not table.buffer_all and self.due_at_ns is None:
            self.due_at_ns = at_ns + self._hold_ns
        return left

    def due(self, now_ns: int) -> list[Flush]:
        """What left by its time, at the time it was due."""
        if self.due_at_ns is None or now_ns < self.due_at_ns:
            return []
        return self._flush(self.due_at_ns)

    def end(self, at_ns: int) -> list[Flush]:
        """The response is over: nothing stays."""
        return [*self.due(at_ns), *self._flush(at_ns)]

    def _flush(self, at_ns: int) -> list[Flush]:
        first = self._first
        self._first = self._behind
        self._bytes = 0
        self.due_at_ns = None
        return [Flush(at_ns, first, self._behind)] if first < self._behind else []
