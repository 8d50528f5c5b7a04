"""One row a second of the worker's own state: could it have been the bottleneck?

Rule: what is measured here explains a number, it never changes one. Garbage is collected here too: the collector is
off during the run, because its automatic pauses reach tens of milliseconds.
"""

from __future__ import annotations

import gc
import time

import gevent
import psutil

from tailgauge.clock import WALL, monotonic_ns
from tailgauge.dispatch.counters import Counters
from tailgauge.records import HealthRow

_PROBE_S = 0.05
_OLDER_EVERY = 15  # seconds between collections of the middle generation


class Health:
    """Samples a worker; `row` closes the current second."""

    def __init__(self, counters: Counters) -> None:
        self._counters = counters
        self._process = psutil.Process()
        self._lag_max_ns = 0
        self._rows = 0
        self._cpu_s, self._at_ns = time.process_time(), monotonic_ns()
        self._probe = gevent.spawn(self._watch_loop)

    def freeze(self) -> None:
        """From here on, collect garbage only when told."""
        gc.collect()
        gc.freeze()
        gc.disable()

    def row(self, queued_rows: int) -> HealthRow:
        """The second that ends now."""
        counters = self._counters
        step_ns = WALL.refresh()
        gc_started = monotonic_ns()
        gc.collect(1 if self._rows % _OLDER_EVERY == _OLDER_EVERY - 1 else 0)
        now, cpu_s = monotonic_ns(), time.process_time()
        row = HealthRow(
            at_ns=now,
            in_flight=counters.attempts_open,
            scheduled=counters.leased,
            dispatched=counters.dispatched,
            ended=counters.ended_total,
            client_drops=counters.client_drop,
            chunks=counters.chunks,
            reads=counters.reads,
            loop_lag_max_ns=self._lag_max_ns,
            handover_max_ns=counters.handover_max_ns,
            dispatch_late_max_ns=counters.dispatch_late_max_ns,
            cpu_share=(cpu_s - self._cpu_s) / max(1e-9, (now - self._at_ns) / 1e9),
            gc_pause_ns=now - gc_started,
            rss_bytes=self._process.memory_info().rss,
            queued_rows=queued_rows,
            clock_step_ns=step_ns,
        )
        self._cpu_s, self._at_ns = cpu_s, now
        self._lag_max_ns = counters.handover_max_ns = counters.dispatch_late_max_ns = 0
        self._rows += 1
        return row

    def close(self) -> None:
        """Stop sampling and give the collector back to Python."""
        self._probe.kill()
        gc.enable()
        gc.unfreeze()

    def _watch_loop(self) -> None:
        while True:
            due = monotonic_ns() + int(_PROBE_S * 1e9)
            gevent.sleep(_PROBE_S)
            self._lag_max_ns = max(self._lag_max_ns, monotonic_ns() - due)
