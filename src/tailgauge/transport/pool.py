"""The pool of idle connections, last in, first out.

A request is never sent twice. A server that closes after a response without announcing it would break the next request, so
a connection rests for a moment before reuse: the close arrives in that time. If a server closes later, the rest grows.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from tailgauge.clock import monotonic_ns
from tailgauge.transport.connection import Connection

Origin = tuple[str, str, int]  # scheme, host, port

FIRST_REST_NS = 5_000_000
LONGEST_REST_NS = 1_000_000_000
SOON_NS = 2_000_000_000  # a close within it follows the response; a later one is an idle time-out
LONG_NS = 3_600_000_000_000
MARGIN_S = 1.0


@dataclass(slots=True, eq=False)
class Idle:
    """An idle connection, since when, and until when its peer promised to keep it."""

    connection: Connection
    since_ns: int
    until_ns: int
    answered: bool  # false: opened beforehand and not used yet


@dataclass(slots=True)
class OriginPool:
    """The idle connections of one origin."""

    rest_ns: int = FIRST_REST_NS
    idle: list[Idle] = field(default_factory=list)


class Pool:
    """Idle connections by origin, at most `limit` each."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._pools: dict[Origin, OriginPool] = {}

    def take(self, origin: Origin) -> Connection | None:
        """The last released connection that has rested and is alive; None if a new one is needed."""
        origin_pool = self._pools.get(origin)
        if origin_pool is None:
            return None
        now = monotonic_ns()
        for place in range(len(origin_pool.idle) - 1, -1, -1):
            item = origin_pool.idle[place]
            if now - item.since_ns < origin_pool.rest_ns:
                continue
            del origin_pool.idle[place]
            if now < item.until_ns and item.connection.alive():
                return item.connection
            item.connection.close()
        return None

    def give(
        self, origin: Origin, connection: Connection, keep_alive_hint: bytes, *, answered: bool = True
    ) -> None:
        """Keep a connection for later; `keep_alive_hint` is the response's Keep-Alive header."""
        origin_pool = self._pools.setdefault(origin, OriginPool())
        if connection.closed or len(origin_pool.idle) >= self._limit:
            connection.close()
            return
        now = monotonic_ns()
        item = Idle(connection, now, now + _kept_ns(keep_alive_hint), answered)
        origin_pool.idle.append(item)
        connection.on_idle_end = lambda: self._closed_by_peer(origin_pool, item)

    def resting(self, origin: Origin) -> int:
        """How many idle connections there are."""
        origin_pool = self._pools.get(origin)
        return len(origin_pool.idle) if origin_pool else 0

    def close(self) -> None:
        """Close every idle connection."""
        for origin_pool in self._pools.values():
            for item in origin_pool.idle:
                item.connection.close()
        self._pools.clear()

    def _closed_by_peer(self, origin_pool: OriginPool, item: Idle) -> None:
        if item in origin_pool.idle:
            origin_pool.idle.remove(item)
            rested = monotonic_ns() - item.since_ns
            if item.answered and rested < SOON_NS:
                origin_pool.rest_ns = min(LONGEST_REST_NS, max(origin_pool.rest_ns, 4 * rested))


def _kept_ns(hint: bytes) -> int:
    """The peer's keep-alive time less a margin; else a long time."""
    for part in hint.split(b","):
        name, _, value = part.strip().partition(b"=")
        if name.lower() == b"timeout" and value.isdigit() and len(value) < 10:
            return int(max(0.0, int(value) - MARGIN_S) * 1e9)
    return LONG_NS
