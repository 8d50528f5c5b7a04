"""Work that can wait a moment, such as rows: done together, because one by one it costs about twice as much.

A processor that wakes up for one event has little of the code at hand. In slices, so that sockets are read meanwhile.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

import gevent

from tailgauge.clock import monotonic_ns
from tailgauge.worker.timers import yield_to_hub

DELAY_S = 0.05
SLICE_NS = 500_000


class Later:
    """Runs jobs in their order, on a greenlet, `DELAY_S` after the first of them was added."""

    def __init__(self) -> None:
        self._jobs: deque[Callable[[], object]] = deque()

    def add(self, job: Callable[[], object]) -> None:
        """Run it soon."""
        self._jobs.append(job)
        if len(self._jobs) == 1:
            gevent.spawn_later(DELAY_S, self._run)

    def finish(self) -> None:
        """Run all now."""
        while self._jobs:
            self._jobs.popleft()()

    def _run(self) -> None:
        began_ns = monotonic_ns()
        try:
            while self._jobs:
                self._jobs.popleft()()
                if monotonic_ns() - began_ns > SLICE_NS:
                    yield_to_hub()
                    began_ns = monotonic_ns()
        finally:
            if self._jobs:  # one of them failed
                gevent.spawn_later(DELAY_S, self._run)
