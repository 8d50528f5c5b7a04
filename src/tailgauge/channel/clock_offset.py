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
    """Return the ping with the smallest error of every `window`.

    The last window ends with the last ping; the pings between it and the full windows belong to the window before it.
    """
    starts = [0]
    windows = len(pings) // window
    if windows > 1:
        starts = [window * index for index in range(windows - 1)] + [len(pings) - window]
    ends = [*starts[1:], len(pings)]
    best = []
    for start, end in zip(starts, ends, strict=True):
        if start < end:
            best.append(min(pings[start:end], key=lambda ping: ping.offset.error_ns))
    return best


def over_run(pings: Sequence[Ping]) -> RunOffset:
    """Return the offset of a run with these pings, of which there is one at least."""
    best = tightest(pings)
    low = min(ping.offset.offset_ns - ping.offset.error_ns for ping in best)
    high = max(ping.offset.offset_ns + ping.offset.error_ns for ping in best)
    return RunOffset((low + high) // 2, (high - low + 1) // 2, _drift_ppb(best))


def _drift_ppb(pings: Sequence[Ping]) -> int | None:
    """Return the slope of the offsets over time, in parts in 10^9; None over too short a time."""
    begin = pings[0]
    times_ns = [ping.at_ns - begin.at_ns for ping in pings]
    if times_ns[-1] < DRIFT_FROM_NS:
        return None
    changes_ns = [ping.offset.offset_ns - begin.offset.offset_ns for ping in pings]
    return round(1e9 * linear_regression(times_ns, changes_ns).slope)


class MasterClock:
    """The master's clock from the worker's side; `send` sends a ping, `master_boot_id` identifies the master's kernel."""

    def __init__(self, send: Callable[[int], object], master_boot_id: str) -> None:
        self._send = send
        self._master_boot_id = master_boot_id
        self._pings: list[Ping] = []
        self._answered = Event()

    def ping(self) -> None:
        """Request the master's time."""
        self._send(monotonic_ns())

    def answer(self, t0: int, t1: int, t2: int) -> None:
        """Take the master's answer: sent at `t0` of this clock, received and answered at `t1` and `t2` of its own."""
        now_ns = monotonic_ns()
        self._pings.append(Ping(now_ns, offset_from_ping(t0, t1, t2, now_ns)))
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
        if not boot_id() or boot_id() != self._master_boot_id:
            return False
        offsets = [ping.offset for ping in tightest(self._pings[:WINDOW])]
        return all(abs(offset.offset_ns) <= offset.error_ns for offset in offsets)

    def offset(self) -> ClockFacts:
        """Return the offset to the master's clock: 0 on one kernel, null without an answered ping."""
        if self.is_same_clock:
            return asdict(RunOffset(0, 0, None))
        if not self._pings:
            return {"offset_ns": None, "error_ns": None, "drift_ppb": None}
        return asdict(over_run(self._pings))
