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
    """The places of one gate. `waiting`: holder, leg and limit of each that waits, in their order."""

    in_use: int = 0
    places: dict[Holder, int] = field(default_factory=dict)  # of each holder
    waiting: deque[tuple[Holder, int, int]] = field(default_factory=deque)
    granting: bool = False

    def hold(self, holder: Holder) -> None:
        self.in_use += 1
        self.places[holder] = self.places.get(holder, 0) + 1

    def free(self, holder: Holder, places: int) -> None:
        self.in_use -= places
        self.places[holder] -= places
        if not self.places[holder]:
            del self.places[holder]


class Gates:
    """The gates of one traffic table, by name."""

    def __init__(self, now_ns: Callable[[], int] = monotonic_ns) -> None:
        self._now_ns = now_ns
        self._gates: dict[str, _Gate] = {}

    def take(self, name: str, limit: int, holder: Holder, leg: int) -> bool:
        """Take a place. False where the gate is full: `holder` is queued and receives `Taken` later."""
        gate = self._gates.setdefault(name, _Gate())
        if gate.waiting or gate.in_use >= limit:
            gate.waiting.append((holder, leg, limit))
            return False
        gate.hold(holder)
        return True

    def give(self, name: str, holder: Holder) -> None:
        """Return a place; raises ValueError if it was not taken."""
        gate = self._gates.get(name)
        if gate is None or holder not in gate.places:
            raise ValueError(f"gate {name!r}: a place is returned that was not taken")
        gate.free(holder, 1)
        self._grant(gate)

    def leave(self, holder: Holder) -> None:
        """Return all places of a holder, and leave every queue."""
        for gate in self._gates.values():
            if any(waiter is holder for waiter, _, _ in gate.waiting):
                gate.waiting = deque(entry for entry in gate.waiting if entry[0] is not holder)
            if holder in gate.places:
                gate.free(holder, gate.places[holder])
            self._grant(gate)

    def _grant(self, gate: _Gate) -> None:
        """Give free places to those that wait."""
        if gate.granting:
            return  # a holder returned its place inside the loop below, which continues
        gate.granting = True
        try:
            while gate.waiting and gate.in_use < gate.waiting[0][2]:
                holder, leg, _ = gate.waiting.popleft()
                gate.hold(holder)
                holder.post(Taken(leg, self._now_ns()))
        finally:
            gate.granting = False
