"""Gates: limits on concurrent calls of one traffic table in one worker, first come, first served.

A request that ends releases its places and leaves every queue.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

from tailgauge.clock import monotonic_ns
from tailgauge.patterns.events import Event, Taken


class Holder(Protocol):
    """A request that takes places."""

    def post(self, event: Event) -> None:
        """Receive a place."""


@dataclass(slots=True)
class _Gate:
    taken: int = 0
    held: dict[Holder, int] = field(default_factory=dict)
    waiting: deque[tuple[Holder, int, int]] = field(default_factory=deque)  # who, leg, limit
    granting: bool = False

    def hold(self, who: Holder) -> None:
        self.taken += 1
        self.held[who] = self.held.get(who, 0) + 1

    def free(self, who: Holder, places: int) -> None:
        self.taken -= places
        self.held[who] -= places
        if not self.held[who]:
            del self.held[who]


class Gates:
    """The gates of one traffic table, by name."""

    def __init__(self, now_ns: Callable[[], int] = monotonic_ns) -> None:
        self._now_ns = now_ns
        self._gates: dict[str, _Gate] = {}

    def take(self, name: str, limit: int, who: Holder, leg: int) -> bool:
        """True: a place is taken. False: `who` is queued and receives `Taken`."""
        gate = self._gates.setdefault(name, _Gate())
        if gate.waiting or gate.taken >= limit:
            gate.waiting.append((who, leg, limit))
            return False
        gate.hold(who)
        return True

    def give(self, name: str, who: Holder) -> None:
        """Return a place; `ValueError` if it was not taken."""
        gate = self._gates.get(name)
        if gate is None or who not in gate.held:
            raise ValueError(f"gate {name!r}: a place is returned that was not taken")
        gate.free(who, 1)
        self._grant(gate)

    def leave(self, who: Holder) -> None:
        """Return all places of `who`, and leave every queue."""
        for gate in self._gates.values():
            if any(waiter is who for waiter, _, _ in gate.waiting):
                gate.waiting = deque(entry for entry in gate.waiting if entry[0] is not who)
            if who in gate.held:
                gate.free(who, gate.held[who])
            self._grant(gate)

    def _grant(self, gate: _Gate) -> None:
        if gate.granting:
            return  # a holder returned its place inside the loop below, which continues
        gate.granting = True
        try:
            while gate.waiting and gate.taken < gate.waiting[0][2]:
                who, leg, _ = gate.waiting.popleft()
                gate.hold(who)
                who.post(Taken(leg, self._now_ns()))
        finally:
            gate.granting = False
