"""The state of a run, which the parts of the master share: its workers, notes, start and failure.

The parts themselves are made in run.py; what goes to run.json is gathered in run_record.py.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from gevent.event import Event

from tailgauge.channel.messages import Link
from tailgauge.clock import monotonic_ns
from tailgauge.errors import (
    InternalError,
    InterruptedRunError,
    LostError,
    TailgaugeError,
    TargetError,
)
from tailgauge.master.progress import Progress
from tailgauge.master.workers import RunWorker, RunWorkers
from tailgauge.plan.resolve import Settings
from tailgauge.plugins import plugin
from tailgauge.rows.run_folder import RunFolder, new_run_id

STATES: dict[type, str] = {TargetError: "unusable", InternalError: "error"}


class RunState:
    """Where a run is between its plan and the end of its drain."""

    def __init__(self, link: Link, settings: Settings, is_alive: Callable[[str], bool]) -> None:
        """Take the plan of a run, and name its folder; nothing is created yet. `is_alive`: whether a worker is connected,
        by its name.
        """
        self.link = link
        self.settings = settings
        self.scenario = settings.scenario
        self.run_id = new_run_id(self.scenario.name)
        self.folder = RunFolder((settings.out / "runs" / self.run_id).resolve())
        self.workers = RunWorkers(is_alive)
        self.notes: list[str] = []
        self.state = "running"  # goes to run.json
        self.failure: TailgaugeError | None = None
        # When the first arrival is due; None before the workers got their `go`.
        self.start_at_ns: int | None = None
        self.admission_end_at_ns: int | None = None
        self.changed = Event()  # a message of a worker arrived, or the drain began
        self.admitted = Event()  # the schedule has ended or was cut short
        # Every request of a closed loop with a fixed number of requests has ended.
        self.has_sent_all = False
        self.is_draining = False  # no more requests are admitted
        self.is_finishing = False  # workers drain, and the last run.json is written

    def send(self, kind: str, worker: RunWorker, **data: Any) -> bool:
        """Send a message about this run. Return whether it could be sent."""
        return self.link.send(kind, {"run": self.run_id, **data}, worker.node)

    def passed_ns(self) -> int:
        """Return the time since the first arrival was due; 0 before the start is known."""
        now_ns = monotonic_ns()
        return now_ns - (self.start_at_ns or now_ns)

    def passed_text(self) -> str:
        """Return the time of now for a note."""
        return f"{self.passed_ns() / 1e9:.0f} s into the run"

    def progress(self) -> Progress:
        """Return the sums over the last counters of the workers."""
        progress = self.workers.progress(self.passed_ns() / 1e9, self.scenario.stages.duration_s)
        schedule = self.settings.schedule
        if schedule.users is not None:
            progress.planned = schedule.requests
        progress.slots = self.scenario.arrival.max_concurrency
        return progress

    def wait_until(self, is_done: Callable[[], bool], patience_s: float, complaint: str) -> None:
        """Wait before the start; the run fails if it is stopped, a worker leaves or time is up."""
        deadline_ns = monotonic_ns() + int(patience_s * 1e9)
        while not is_done():
            if self.is_draining:
                raise self.failure or InterruptedRunError(
                    "the run was stopped before its first request"
                )
            for worker in self.workers:
                if self.workers.is_gone(worker):
                    raise TailgaugeError(
                        f"worker {worker.number} on {worker.hello['host']} ended before the start"
                    )
            if monotonic_ns() > deadline_ns:
                raise TailgaugeError(f"{complaint} within {patience_s:.0f} s")
            self.changed.clear()
            self.changed.wait(timeout=0.2)

    def cut_short(self, state: str) -> None:
        """Admit no more. `state` goes to run.json, unless the schedule was over already."""
        duration_ns = self.scenario.stages.duration_s * 1e9
        is_early = self.passed_ns() < duration_ns and not self.has_sent_all
        if is_early and self.state == "running":
            self.state = state
        self.is_draining = True
        self.changed.set()
        self.admitted.set()

    def fail(self, error: Exception) -> None:
        """End with an error of ours, a plugin's or the target's. An interrupted run keeps its state."""
        self.failure = plugin.failure(error)
        if not isinstance(self.failure, InterruptedRunError):
            self.state = STATES.get(type(self.failure), "failed")
        self.note_failure()

    def fail_without_workers(self) -> None:
        """Fail because no worker is left; an earlier failure stays."""
        if self.failure is None:
            self.failure = LostError("lost connection to every worker: the run has ended")
            self.note_failure()

    def note_failure(self) -> None:
        """Add the failure to the notes, once."""
        if str(self.failure) not in self.notes:
            self.notes.append(str(self.failure))

    def check_workers(self) -> None:
        """Fail the run if no worker is left."""
        if len(self.workers) and all(self.workers.is_gone(worker) for worker in self.workers):
            self.fail_without_workers()
            self.cut_short("failed")
