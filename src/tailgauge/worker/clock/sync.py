"""What a worker knows of the master's clock, from the pings between them.

Rule: pings go out here and their answers come back here; what follows from them is in `offsets`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict

from gevent.event import Event

from tailgauge.clock import boot_id, monotonic_ns, offset_from_ping
from tailgauge.worker.clock.offset import WINDOW, Ping, RunOffset, over_run, tightest

_ANSWER_S = 2.0
ClockFacts = dict[str, int | None]


class MasterClock:
    """The master's clock as seen from here; `send` sends a ping with its time, `its_boot_id` names the master's kernel."""

    def __init__(self, send: Callable[[int], object], its_boot_id: str) -> None:
        self._send, self._its_boot_id = send, its_boot_id
        self._pings: list[Ping] = []
        self._answered = Event()

    def ping(self) -> None:
        """Ask for the master's time."""
        self._send(monotonic_ns())

    def answer(self, t0: int, t1: int, t2: int) -> None:
        """The master's answer: sent at `t0` of this clock, received and answered at `t1` and `t2` of its own."""
        now = monotonic_ns()
        self._pings.append(Ping(now, offset_from_ping(t0, t1, t2, now)))
        self._answered.set()

    def measure(self) -> None:
        """Pings one after the other; a master that did answer and no longer does is gone."""
        for _ in range(WINDOW):
            self._answered.clear()
            self.ping()
            if not self._answered.wait(timeout=_ANSWER_S) and self._pings:
                return

    @property
    def is_same_clock(self) -> bool:
        """Whether master and worker run on one kernel, which has one clock."""
        if not boot_id() or boot_id() != self._its_boot_id:
            return False
        return all(abs(p.offset.offset_ns) <= p.offset.error_ns for p in tightest(self._pings[:WINDOW]))

    def offset(self) -> ClockFacts:
        """Offset to the master's clock; exactly 0 where both have one, null where no ping came back."""
        if self.is_same_clock:
            return asdict(RunOffset(0, 0, None))
        if not self._pings:
            return {"offset_ns": None, "error_ns": None, "drift_ppb": None}
        return asdict(over_run(self._pings))
