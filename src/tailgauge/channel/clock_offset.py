"""The offset of a worker's clock to the master's: one value for a whole run, from pings.

A ping bounds the offset by half its round trip (clock.offset_from_ping). Delays only add, so the tightest of every WINDOW
pings is kept. All rows of a worker are moved by one offset, so intervals between them do not change. The offset is the
middle of the range that all kept pings allow; its error holds at each of them. With pings p of offset o and error e:

    offset   (min(o - e) + max(o + e)) / 2        error   (max(o + e) - min(o - e)) / 2
    drift    slope of the kept offsets over time, least squares
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from statistics import linear_regression

from gevent.event import Event

from tailgauge.clock import Offset, boot_id, monotonic_ns, offset_from_ping

WINDOW = 8
EVERY_S = 5
DRIFT_FROM_NS = 10_000_000_000  # over less time the errors of the pings hide a drift
_ANSWER_S = 2.0

ClockFacts = dict[str, int | None]


@dataclass(frozen=True, slots=True)
class Ping:
    """The offset from one ping, and when its answer arrived on the worker's clock."""

    at_ns: int
    offset: Offset


@dataclass(frozen=True, slots=True)
class RunOffset:
    """master clock = worker clock + offset_ns, within error_ns during the pings; `drift_ppb`, parts in 10^9, where known."""

    offset_ns: int
    error_ns: int
    drift_ppb: int | None


def tightest(pings: Sequence[Ping], window: int = WINDOW) -> list[Ping]:
    """The ping with the smallest error of every `window`; the last window ends with the last ping, and what is left
    over belongs to the one before it.
    """
    windows = len(pings) // window
    starts = (
        [window * i for i in range(windows - 1)] + [len(pings) - window] if windows > 1 else [0]
    )
    held = [pings[a:b] for a, b in zip(starts, [*starts[1:], len(pings)], strict=True)]
    return [min(some, key=lambda p: p.offset.error_ns) for some in held if some]


def over_run(pings: Sequence[Ping]) -> RunOffset:
    """The offset of a run with these pings, of which there is one at least."""
    kept = tightest(pings)
    low = min(p.offset.offset_ns - p.offset.error_ns for p in kept)
    high = max(p.offset.offset_ns + p.offset.error_ns for p in kept)
    return RunOffset((low + high) // 2, (high - low + 1) // 2, _drift_ppb(kept))


def _drift_ppb(kept: Sequence[Ping]) -> int | None:
    first = kept[0]
    at = [p.at_ns - first.at_ns for p in kept]
    if at[-1] < DRIFT_FROM_NS:
        return None
    by = [p.offset.offset_ns - first.offset.offset_ns for p in kept]
    return round(1e9 * linear_regression(at, by).slope)


class MasterClock:
    """The master's clock from the worker's side; `send` sends a ping, `its_boot_id` identifies the master's kernel."""

    def __init__(self, send: Callable[[int], object], its_boot_id: str) -> None:
        self._send = send
        self._its_boot_id = its_boot_id
        self._pings: list[Ping] = []
        self._answered = Event()

    def ping(self) -> None:
        """Request the master's time."""
        self._send(monotonic_ns())

    def answer(self, t0: int, t1: int, t2: int) -> None:
        """The master's answer: sent at `t0` of this clock, received and answered at `t1` and `t2` of its own."""
        now = monotonic_ns()
        self._pings.append(Ping(now, offset_from_ping(t0, t1, t2, now)))
        self._answered.set()

    def measure(self) -> None:
        """Send pings one after the other; stop if the master no longer answers."""
        for _ in range(WINDOW):
            self._answered.clear()
            self.ping()
            if not self._answered.wait(timeout=_ANSWER_S) and self._pings:
                return

    @property
    def is_same_clock(self) -> bool:
        """Whether master and worker run on one kernel and so share one clock."""
        if not boot_id() or boot_id() != self._its_boot_id:
            return False
        return all(
            abs(p.offset.offset_ns) <= p.offset.error_ns for p in tightest(self._pings[:WINDOW])
        )

    def offset(self) -> ClockFacts:
        """Offset to the master's clock: 0 on one kernel, null without an answered ping."""
        if self.is_same_clock:
            return asdict(RunOffset(0, 0, None))
        if not self._pings:
            return {"offset_ns": None, "error_ns": None, "drift_ppb": None}
        return asdict(over_run(self._pings))
