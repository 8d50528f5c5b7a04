"""The live view of a run: the master's figures, folded once a second into a series of bounded length.

Counters are cumulative: dropping a point loses detail but no count. At MAX_POINTS every second point is dropped, and
points are twice as far apart from then on. Live TTFT covers the shortest of WINDOWS_S, none shorter than the time between
points, with enough first contents for the percentile; the maximum covers the first of them:

    bins of the window = bins now - bins then        (DDSketch bins, within 1%)
"""

from __future__ import annotations

from bisect import bisect_right
from collections import deque
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from tailgauge import quantile_sketch
from tailgauge.master.progress import Progress
from tailgauge.thresholds import fewest_for

WINDOWS_S = (10.0, 30.0, 60.0)
MAX_POINTS = 1200
WORKERS_SHOWN = 100
NOTES_SHOWN = 20
_HEALTHY = ("running", "drained")
_JITTER_S = 0.5  # a fold may be so much early or late


@dataclass(frozen=True, slots=True)
class WorkerView:
    """One worker. `cpu` 1 = one core; `clock_error_ms` is None if its offset is unknown."""

    worker: int
    name: str
    host: str
    state: str
    sent: int
    in_flight: int
    cpu: float | None
    clock_error_ms: float | None
    silent_s: float


@dataclass(frozen=True, slots=True)
class RunView:
    """A run as the master knows it now, with all or some of its workers."""

    run_id: str
    scenario: str
    scenario_file: str
    targets: tuple[str, ...]
    folder: str
    state: str
    progress: Progress
    notes: tuple[str, ...] = ()
    workers: tuple[WorkerView, ...] = ()
    workers_total: int = 0


@dataclass(frozen=True, slots=True)
class Point:
    """The run's counters at one moment: all from `in_flight` on may fall. `failed`: requests; `limited`: attempts with a 429."""

    at_s: float
    sent: int = 0
    failed: int = 0
    limited: int = 0
    chunks: int = 0
    in_flight: int = 0
    ttft_p50_ms: float | None = None
    ttft_p99_ms: float | None = None
    ttft_max_ms: float | None = None


_ORIGIN = Point(0.0)
_RATES = ("sent", "failed", "limited", "chunks")
_LEVELS = ("in_flight", "ttft_p50_ms", "ttft_p99_ms", "ttft_max_ms")


@dataclass(slots=True)
class Live:
    """One run over time. `last` is the latest fold, `rates` are those since the one before."""

    every_s: float = 1.0
    points: list[Point] = field(default_factory=list)
    last: Point = _ORIGIN
    rates: dict[str, float] = field(default_factory=dict)
    windows_s: dict[str, float | None] = field(default_factory=dict)  # of the last TTFTs: p50, p99, max
    _recent: deque[tuple[float, quantile_sketch.Bins]] = field(default_factory=lambda: deque([(0.0, {})]))

    def fold(self, progress: Progress) -> None:
        """Add the state at `progress.passed_s`, which must be later than the last one."""
        p50_ms, p99_ms, max_ms = self._ttft(progress.passed_s, progress.ttft)
        point = Point(
            at_s=round(progress.passed_s, 2),
            sent=progress.sent,
            failed=progress.failed,
            limited=progress.limited,
            chunks=progress.chunks,
            in_flight=progress.in_flight,
            ttft_p50_ms=p50_ms,
            ttft_p99_ms=p99_ms,
            ttft_max_ms=max_ms,
        )
        self.rates = _rates(self.last, point)
        self.last = point
        if not self.points or point.at_s - self.points[-1].at_s >= self.every_s - _JITTER_S:
            self.points.append(point)
        if len(self.points) == MAX_POINTS:
            self.points = self.points[1::2]
            self.every_s *= 2

    def _ttft(self, at_s: float, bins: quantile_sketch.Bins) -> list[float | None]:
        """p50, p99 and maximum in ms of the first chunks of the windows that end now."""
        self._recent.append((at_s, bins))
        windows = sorted({max(window_s, self.every_s) for window_s in WINDOWS_S})
        while self._recent[1][0] <= at_s - windows[-1] + _JITTER_S:
            self._recent.popleft()
        within = [self._since(at_s - window_s + _JITTER_S) for window_s in windows]
        held = [sum(counts.values()) for counts in within]
        values = [quantile_sketch.quantile(within[0], 1.0)]
        self.windows_s = {"max": windows[0]}
        for name, p in (("p99", 0.99), ("p50", 0.5)):
            place = next((i for i, n in enumerate(held) if n >= fewest_for(p)), None)
            self.windows_s[name] = None if place is None else windows[place]
            values.insert(0, None if place is None else quantile_sketch.quantile(within[place], p))
        return values

    def _since(self, at_s: float) -> quantile_sketch.Bins:
        """Counts of the latest bins without those of the last fold until `at_s`."""
        then = next((bins for when, bins in reversed(self._recent) if when <= at_s), self._recent[0][1])
        latest = self._recent[-1][1]
        return {key: new for key, count in latest.items() if (new := count - then.get(key, 0)) > 0}

    def since(self, at_s: float) -> dict[str, list[float | None]]:
        """The points after `at_s` as columns, counters as rates per second since the point before."""
        first = bisect_right(self.points, at_s, key=lambda point: point.at_s)
        before = [self.points[first - 1] if first else _ORIGIN, *self.points[first:-1]]
        points = self.points[first:]
        rates = [_rates(one, point) for one, point in zip(before, points, strict=False)]
        columns: dict[str, list[float | None]] = {"at_s": [point.at_s for point in points]}
        columns |= {name: [getattr(point, name) for point in points] for name in _LEVELS}
        return columns | {f"{name}_per_s": [rate[name] for rate in rates] for name in _RATES}


def _rates(before: Point, point: Point) -> dict[str, float]:
    passed_s = point.at_s - before.at_s
    if passed_s <= 0:
        return dict.fromkeys(_RATES, 0.0)
    return {name: round((getattr(point, name) - getattr(before, name)) / passed_s, 2) for name in _RATES}


def document(view: RunView | None, live: Live, since_s: float) -> dict[str, Any]:
    """The page's data as plain values: points after `since_s`; `run` is None before the first run."""
    if view is None:
        return {"run": None}
    progress = view.progress
    run = {name: getattr(view, name) for name in ("run_id", "scenario", "scenario_file", "folder", "state")}
    run |= {"targets": list(view.targets), "notes": list(view.notes[-NOTES_SHOWN:])}
    verdict = progress.verdict if live.points else None  # there is no verdict before the start
    run |= {"duration_s": progress.duration_s, "verdict": verdict, "reason": progress.reason}
    attempts = sum(progress.attempts.values())
    return {
        "run": run,
        "now": {**asdict(live.last), "dropped": progress.dropped, "attempts": attempts, "per_s": live.rates},
        "windows_s": live.windows_s,
        "every_s": live.every_s,
        "points": live.since(since_s),
        "workers": [asdict(worker) for worker in view.workers],
        "workers_total": view.workers_total,
    }


def chosen(workers: Sequence[tuple[str, float]], most: int = WORKERS_SHOWN) -> list[int]:
    """Which workers to show, by state and CPU: all, or of many those with problems first, then the busiest."""
    places = range(len(workers))
    if len(workers) <= most:
        return list(places)
    return sorted(sorted(places, key=lambda i: (workers[i][0] in _HEALTHY, -workers[i][1]))[:most])
