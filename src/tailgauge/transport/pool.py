"""The pool of idle HTTP connections, which also lends them to the compiled reader. connection.py opens them."""

from __future__ import annotations

from collections import defaultdict
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
    """The idle connections of one origin. `lent_to`: the compiled reader's pool of prepared requests, without TLS."""

    rest_ns: int = FIRST_REST_NS
    lent_to: int | None = None
    idle: list[Idle] = field(default_factory=list)


class Pool:
    """Idle connections by origin, at most `limit` each; last in, first out.

    A request is never sent twice. A server that closes after a response without announcing it would break the next
    request, so a connection rests for a moment before reuse: the close arrives in that time. If a server closes later,
    the rest grows.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._pools: defaultdict[Origin, OriginPool] = defaultdict(OriginPool)

    def take(self, origin: Origin) -> Connection | None:
        """Return the last released connection that has rested and is alive; None if a new one is needed."""
        origin_pool = self._pools[origin]
        now_ns = monotonic_ns()
        for place in range(len(origin_pool.idle) - 1, -1, -1):
            item = origin_pool.idle[place]
            if now_ns - item.since_ns < origin_pool.rest_ns:
                continue
            del origin_pool.idle[place]
            if not item.connection.take_back():
                continue  # a prepared request has left on it
            if now_ns < item.until_ns and item.connection.alive():
                return item.connection
            item.connection.close()
        return None

    def lend_to(self, origin: Origin, pool: int) -> None:
        """Let prepared requests take idle connections, by a pool of the compiled reader."""
        origin_pool = self._pools[origin]
        origin_pool.lent_to = pool
        for item in origin_pool.idle:
            _lend(item, origin_pool)

    def was_taken(self, origin: Origin, connection: Connection) -> None:
        """Give up an idle connection on which a prepared request has left."""
        origin_pool = self._pools[origin]
        origin_pool.idle = [item for item in origin_pool.idle if item.connection is not connection]

    def give(
        self,
        origin: Origin,
        connection: Connection,
        hint: bytes,
        since_ns: int | None = None,
        *,
        answered: bool = True,
    ) -> None:
        """Keep a connection for later; `hint` is the response's Keep-Alive header, `since_ns` when it ended."""
        origin_pool = self._pools[origin]
        now_ns = monotonic_ns()
        if connection.closed or len(origin_pool.idle) >= self._limit:
            connection.close()
            return
        since_ns = min(since_ns or now_ns, now_ns)  # the clock of arrivals may have been set
        item = Idle(connection, since_ns, since_ns + _keep_alive_ns(hint), answered)
        origin_pool.idle.append(item)
        _lend(item, origin_pool)
        connection.on_idle_end = lambda: self._closed_by_peer(origin_pool, item)

    def resting(self, origin: Origin) -> int:
        """Return how many idle connections there are."""
        return len(self._pools[origin].idle)

    def close(self) -> None:
        """Close every idle connection, but those on which a prepared request has left."""
        for origin_pool in self._pools.values():
            for item in origin_pool.idle:
                if item.connection.take_back():
                    item.connection.close()
        self._pools.clear()

    def _closed_by_peer(self, origin_pool: OriginPool, item: Idle) -> None:
        """Drop an idle connection; where it was closed right after a response, let others rest longer."""
        if item not in origin_pool.idle:
            return
        origin_pool.idle.remove(item)
        rested_ns = monotonic_ns() - item.since_ns
        if item.answered and rested_ns < SOON_NS:
            rest_ns = max(origin_pool.rest_ns, 4 * rested_ns)
            origin_pool.rest_ns = min(LONGEST_REST_NS, rest_ns)


def _lend(item: Idle, origin_pool: OriginPool) -> None:
    """Let prepared requests take an idle connection, once it has rested."""
    if origin_pool.lent_to is not None:
        usable_from_ns = item.since_ns + origin_pool.rest_ns
        item.connection.lend(origin_pool.lent_to, usable_from_ns, item.until_ns)


def _keep_alive_ns(hint: bytes) -> int:
    """Return the peer's keep-alive time less a margin; without one a long time."""
    if not hint:
        return LONG_NS
    for part in hint.split(b","):
        name, _, value = part.strip().partition(b"=")
        if name.lower() == b"timeout" and value.isdigit() and len(value) < 10:
            return int(max(0.0, int(value) - MARGIN_S) * 1e9)
    return LONG_NS
