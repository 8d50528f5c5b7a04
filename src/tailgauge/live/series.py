"""The live view of a run: the master's figures, folded once a second into a series of bounded length.

Counters are cumulative: dropping a point loses detail but no count. At MAX_POINTS each two points become one, and
points are twice as far apart from then on. A live percentile covers the shortest of WINDOWS_S, none shorter than the time
between points, with enough values for it; the maximum covers the first of them:

    bins of the window = bins now - bins then        (DDSketch bins, within 1%)
"""

from __future__ import annotations

from bisect import bisect_right
from collections import deque
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from itertools import pairwise, starmap
from typing import Any

from tailgauge import quantile_sketch
from tailgauge.master.progress import Progress
from tailgauge.thresholds import ENDLESS_S, fewest_for

WINDOWS_S = (10.0, 30.0, 60.0)
MAX_POINTS = 1200
WORKERS_SHOWN = 100
_HEALTHY = ("running", "drained")
_JITTER_S = 0.5  # a fold may be so much early or late


@dataclass(frozen=True, slots=True)
class RunView:
    """A run as the master knows it now, with all or some of its workers; `run` and `workers` as the page gets them."""

    run: dict[str, Any]
    progress: Progress
    workers: list[dict[str, Any]]
    workers_total: int


@dataclass(frozen=True, slots=True)
class Point:
    """The run's counters at one moment: those from `in_flight` on may also fall. `failed`: requests; `limited`: attempts with a 429."""

    at_s: float
    sent: int = 0
    ended: int = 0
    failed: int = 0
    limited: int = 0
    output_tokens: int = 0
    in_flight: int = 0
    waiting: int = 0
    slot_wait_s: float = 0.0
    stalled_s: float = 0.0
    ttft_p50_ms: float | None = None
    ttft_p95_ms: float | None = None
    ttft_p99_ms: float | None = None
    ttft_max_ms: float | None = None
    e2e_p50_ms: float | None = None
    e2e_p95_ms: float | None = None


_ORIGIN = Point(0.0)
_RATES = ("sent", "ended", "failed", "limited", "output_tokens")
_QUANTILES = {"ttft": {"p50": 0.5, "p95": 0.95, "p99": 0.99}, "e2e": {"p50": 0.5, "p95": 0.95}}
_COUNTERS = {"at_s", *_RATES}
_LEVELS = tuple(name for name in Point.__dataclass_fields__ if name not in _COUNTERS)


@dataclass(slots=True)
class Recent:
    """Cumulative bins of the last minute."""

    folds: deque[tuple[float, quantile_sketch.Bins]] = field(
        default_factory=lambda: deque([(0.0, {})])
    )
    # New bins by window in s.
    within: list[tuple[float, quantile_sketch.Bins]] = field(default_factory=list)

    def add(self, at_s: float, bins: quantile_sketch.Bins, every_s: float) -> None:
        """The bins now; `every_s`: time between points."""
        self.folds.append((at_s, bins))
        windows = sorted({max(window_s, every_s) for window_s in WINDOWS_S})
        while self.folds[1][0] <= at_s - windows[-1] + _JITTER_S:
            self.folds.popleft()
        self.within = []
        for window_s in windows:
            since_s = at_s - window_s + _JITTER_S
            self.within.append((window_s, self._bins_since(since_s)))

    def _bins_since(self, at_s: float) -> quantile_sketch.Bins:
        """Counts of the latest bins without those of the last fold until `at_s`."""
        earlier = self.folds[0][1]
        for fold_s, bins in reversed(self.folds):
            if fold_s <= at_s:
                earlier = bins
                break
        latest = self.folds[-1][1]
        recent = {}
        for key, count in latest.items():
            increase = count - earlier.get(key, 0)
            if increase > 0:
                recent[key] = increase
        return recent

    def quantile(self, p: float) -> tuple[float | None, float | None]:
        """Its value in ms and its window in s; None with too few values in each."""
        for window_s, bins in self.within:
            if sum(bins.values()) >= fewest_for(p):
                return quantile_sketch.quantile(bins, p), window_s
        return None, None

    def maximum(self) -> tuple[float | None, float]:
        """Of the first window."""
        window_s, bins = self.within[0]
        return quantile_sketch.quantile(bins, 1.0), window_s


@dataclass(slots=True)
class Live:
    """One run over time. `last` is the latest fold, `rates` are those since the one before."""

    every_s: float = 1.0
    points: list[Point] = field(default_factory=list)
    last: Point = _ORIGIN
    rates: dict[str, float] = field(default_factory=dict)
    # The windows of the last percentiles and maximum.
    windows_s: dict[str, float | None] = field(default_factory=dict)
    _recent: dict[str, Recent] = field(
        default_factory=lambda: {name: Recent() for name in _QUANTILES}
    )
    _stalled_s: float = 0.0  # longest stall since the last point

    def fold(self, progress: Progress) -> None:
        """Add the state at `progress.passed_s`, which must be later than the last one.

        Keeps it as `last` with the rates since the fold before; it becomes a point once `every_s` has passed since the
        last point. A point has the longest stall since the one before. When there are MAX_POINTS, each two become one.
        """
        latencies = {}
        self.windows_s = {}
        for name, (value, window_s) in self._add_latencies(progress).items():
            latencies[name] = value
            self.windows_s[name] = window_s
        point = Point(
            at_s=round(progress.passed_s, 2),
            sent=progress.sent,
            ended=sum(progress.all.requests.values()),
            failed=progress.failed,
            limited=progress.limited,
            output_tokens=progress.all.output_tokens,
            in_flight=progress.in_flight,
            waiting=progress.waiting,
            slot_wait_s=round(progress.slot_wait_s, 2),
            stalled_s=round(progress.stalled_s, 2),
            **latencies,
        )
        self.rates = _rates(self.last, point)
        self.last = point
        self._stalled_s = max(self._stalled_s, progress.stalled_s)
        if not self.points or point.at_s - self.points[-1].at_s >= self.every_s - _JITTER_S:
            self.points.append(replace(point, stalled_s=round(self._stalled_s, 2)))
            self._stalled_s = 0.0
        if len(self.points) == MAX_POINTS:
            pairs = zip(self.points[::2], self.points[1::2], strict=True)
            self.points = list(starmap(_merged, pairs))
            self.every_s *= 2

    def _add_latencies(self, progress: Progress) -> dict[str, tuple[float | None, float | None]]:
        """Add the bins of each latency to `_recent`, and return percentiles and the maximum in ms, each with its window in s, by column."""
        columns: dict[str, tuple[float | None, float | None]] = {}
        for name, quantiles in _QUANTILES.items():
            recent = self._recent[name]
            recent.add(progress.passed_s, getattr(progress.all, name), self.every_s)
            for label, p in quantiles.items():
                columns[f"{name}_{label}_ms"] = recent.quantile(p)
        return columns | {"ttft_max_ms": self._recent["ttft"].maximum()}

    def since(self, at_s: float) -> dict[str, list[float | None]]:
        """Return the points after `at_s` as columns, counters as rates per second since the point before."""
        start = bisect_right(self.points, at_s, key=lambda point: point.at_s)
        points = self.points[start:]
        previous = _ORIGIN
        if start:
            previous = self.points[start - 1]
        rates = list(starmap(_rates, pairwise([previous, *points])))
        columns: dict[str, list[float | None]] = {"at_s": [point.at_s for point in points]}
        for name in _LEVELS:
            columns[name] = [getattr(point, name) for point in points]
        for name in _RATES:
            columns[f"{name}_per_s"] = [rate[name] for rate in rates]
        return columns


def _merged(earlier: Point, later: Point) -> Point:
    """Return the second of two points, with the longer stall of both."""
    return replace(later, stalled_s=max(earlier.stalled_s, later.stalled_s))


def _rates(previous: Point, point: Point) -> dict[str, float]:
    passed_s = point.at_s - previous.at_s
    if passed_s <= 0:
        return dict.fromkeys(_RATES, 0.0)
    rates = {}
    for name in _RATES:
        increase = getattr(point, name) - getattr(previous, name)
        rates[name] = round(increase / passed_s, 2)
    return rates


def document(view: RunView | None, live: Live, since_s: float) -> dict[str, Any]:
    """Return the page's data as plain values: points after `since_s`; `run` is None before the first run."""
    if view is None:
        return {"run": None}
    progress = view.progress
    run = view.run | {
        "duration_s": None if progress.duration_s == ENDLESS_S else progress.duration_s,
        "verdict": progress.verdict if live.points else None,  # there is none before the start
        "reason": progress.reason,
        "slots": progress.slots,
        "objectives": [asdict(objective) for objective in progress.objectives],
    }
    attempts = sum(progress.all.attempts.values())
    current = {
        **asdict(live.last),
        "dropped": progress.dropped,
        "attempts": attempts,
        "per_s": live.rates,
    }
    return {
        "run": run,
        "now": current,
        "windows_s": live.windows_s,
        "every_s": live.every_s,
        "points": live.since(since_s),
        "workers": view.workers,
        "workers_total": view.workers_total,
    }


def chosen(workers: Sequence[tuple[str, float]], limit: int = WORKERS_SHOWN) -> list[int]:
    """Return which workers to show, by state and CPU: all, or of many those with problems first, then the busiest."""
    places = range(len(workers))
    if len(workers) <= limit:
        return list(places)
    return sorted(sorted(places, key=lambda i: (workers[i][0] in _HEALTHY, -workers[i][1]))[:limit])
