"""Whether a worker still takes part in its run, and why not."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import gevent

from tailgauge.errors import InternalError
from tailgauge.machine import NO_DESCRIPTORS
from tailgauge.plugins import plugin
from tailgauge.rows.disk import advice
from tailgauge.scenario.model import Scenario
from tailgauge.worker.health import ProcessLimits

RUNNING = "running"
FAILED = "failed"
DRAINED = "drained"


class RunState:
    """State of one worker's part of a run. A failure is reported to the master at once, and ends it.

    `name`: running, failed or drained; `reason`: why it failed or was left. `stop` admits no more requests, `hurry` closes
    the open ones too; both are set once there is a dispatcher.
    """

    def __init__(
        self, scenario: Scenario, folder: Path, send: Callable[[str, dict[str, Any]], None]
    ) -> None:
        self.name = RUNNING
        self.reason: str | None = None
        self.limits = ProcessLimits()
        self.stop: Callable[[], object] = _nothing
        self.hurry: Callable[[], object] = _nothing
        self._folder = folder
        self._most_in_flight = scenario.limits.in_flight_per_worker
        self._send = send

    def fail(self, reason: str, *, is_internal: bool = False) -> None:
        """End this worker's part of a run that goes on; a later failure changes nothing."""
        if self.name != RUNNING:
            return
        self.name = FAILED
        self.reason = reason
        self.stop()
        self._send("failed", {"why": reason, "target": False, "internal": is_internal})

    def lose_rows(self, reason: str) -> None:
        """Count the run as failed at its end: something could not be written. The last message tells the master."""
        self.name = FAILED
        # A recorder that failed before repeats its reason, and adds what is lost.
        if self.reason and not reason.startswith(self.reason):
            reason = f"{self.reason}; {reason}"
        self.reason = reason

    def end(self) -> None:
        """Count the run as drained, unless it has failed."""
        if self.name == RUNNING:
            self.name = DRAINED

    def on_error(self, error: BaseException) -> None:
        """End the run: a fault of ours, or no memory."""
        if isinstance(error, MemoryError):
            self.fail(self.limits.no_memory())
            self.hurry()  # whoever lost an event would be waited for
        elif isinstance(error, OSError) and error.errno in NO_DESCRIPTORS:
            self.fail(advice(error, self._folder))
        elif isinstance(error, Exception) and self.name == RUNNING:
            failure = plugin.failure(error)
            self.fail(str(failure), is_internal=isinstance(failure, InternalError))
            self.hurry()  # a request may never end

    def on_bug(self, error: Exception) -> None:
        """End the run soon, because a call could not be prepared: that is our fault and not the target's."""
        gevent.spawn(self.on_error, error)

    def on_exhausted(self, reason: str) -> None:
        """End the run soon, because no descriptor or thread was left for a call."""
        advised = f"{reason}, or lower limits.in_flight_per_worker ({self._most_in_flight:,})"
        gevent.spawn(self.fail, advised)


def _nothing() -> None:
    """Do nothing: no request is open yet."""
