"""What a worker tells of itself while it runs, so that the verdict so far can be shown.

Rule: counts of the steady stage only, as in the report; the master judges (see `so_far`).
"""

from __future__ import annotations

from typing import Any

from tailgauge import quantile_sketch
from tailgauge.rows.health import HealthRow
from tailgauge.thresholds import USER_CPU, USER_LAG_NS, is_stall
from tailgauge.worker.health.counters import Counters


class Watch:
    """Folds health rows from `from_ns` to `to_ns` of the worker's clock."""

    def __init__(self, counters: Counters, from_ns: int, to_ns: int, *, user_clock: bool) -> None:
        self._counters = counters
        self._from_ns, self._to_ns = from_ns, to_ns
        self._user_clock = user_clock
        self._before_ns = self._intervals = 0
        self._seconds = self._bad = self._lagging = 0.0
        self._cpu_share = 0.0

    def second(self, row: HealthRow) -> None:
        """One more health row."""
        lasted = (row.at_ns - self._before_ns) / 1e9 if self._before_ns else 1.0
        self._before_ns = row.at_ns
        self._cpu_share = row.cpu_share
        blurred = self._user_clock or (row.chunk_intervals or 0) > self._intervals
        self._intervals = row.chunk_intervals or 0
        if not self._from_ns < row.at_ns - int(lasted * 5e8) <= self._to_ns:
            return
        self._seconds += lasted
        if is_stall(row.loop_lag_max_ns, row.receive_lag_max_ns, row.dispatch_late_max_ns, blurred=blurred):
            self._bad += lasted
        if row.loop_lag_max_ns > USER_LAG_NS or row.cpu_share > USER_CPU:
            self._lagging += lasted

    def summary(self) -> dict[str, Any]:
        """Plain values for the link."""
        counters = self._counters
        return {
            "first": counters.steady_first,
            "intervals": counters.steady_intervals,
            "delays": quantile_sketch.packed(counters.delays),
            "seconds": self._seconds,
            "bad": self._bad,
            "lagging": self._lagging if self._user_clock else 0.0,
            "cpu": self._cpu_share,
        }
