"""Admission: the schedule is leased in slices until it has ended, or a stop rule or a look at the objectives ends it."""

from __future__ import annotations

import gevent

from tailgauge.channel.messages import TooLargeError
from tailgauge.master.leases import Leases
from tailgauge.master.looks import KNOWN, InterimLooks
from tailgauge.master.run_state import RunState
from tailgauge.master.stop_rules import StopRules
from tailgauge.master.workers import RunWorker
from tailgauge.plan.looks import looks
from tailgauge.schedule.schedule import Planned

POLL_S = 0.25
CHECK_NS = 1_000_000_000  # between checks of the stop rules: workers report once a second
STOPPED = "stopped"  # a stop rule protects the target


class Admission:
    """Admits the requests of one run. `stopped` says when and why a stop rule ended it."""

    def __init__(self, run: RunState) -> None:
        self._run = run
        self._schedule = run.settings.schedule
        self._duration_ns = int(run.scenario.stages.duration_s * 1e9)
        self.leases = Leases(self._schedule, self._duration_ns, run.workers, self._send_slice)
        self._stop_rules = StopRules(run.scenario)
        self.looks = InterimLooks(looks(run.scenario, self._schedule), run.folder)
        self._look: gevent.Greenlet | None = None  # in progress
        self._next_check_ns = 0
        self.stopped = ""

    def lease_slices(self) -> None:
        """Lease slices until the schedule has ended, or the run was cut short; check losses, stop rules and objectives
        meanwhile.

        A closed loop with a number of requests has no arrival times: it ends when all were sent and have ended.
        """
        run = self._run
        has_times = self._schedule.users is None
        while run.passed_ns() < self._duration_ns and not run.is_draining:
            self.leases.up_to(run.passed_ns())  # 5 s ahead of now
            self.note_losses()
            if not has_times and run.workers.have_sent_all():
                run.has_sent_all = True
                return
            self._check()
            run.changed.clear()
            pause_s = max(0.01, (self._duration_ns - run.passed_ns()) / 1e9)
            pause_s = min(POLL_S, pause_s)
            if has_times:
                gevent.sleep(pause_s)
            else:
                # Without times, the end comes with a message.
                run.changed.wait(timeout=pause_s)

    def note_losses(self) -> None:
        """Note the workers that were lost since the last time."""
        run = self._run
        for worker in run.workers.newly_lost(run.start_at_ns or 0):
            run.notes.append(f"worker {worker.number} was lost {run.passed_text()}")
        run.check_workers()

    def protect_target(self) -> None:
        """Stop if a rule of the scenario says so: nothing more is sent."""
        run = self._run
        reason = self._stop_rules.broken(run.progress())
        if reason is not None and run.state == "running":
            self.stopped = f"{run.passed_text()}: {reason}"
            run.notes.append(f"stopped {self.stopped}; {self._stop_rules.how_to_go_on}")
            run.cut_short(STOPPED)

    def stop_looks(self, *, is_whole: bool) -> None:
        """End a look in progress, and look no more. `is_whole`: the schedule has ended."""
        if self._look is not None:
            self._look.kill()
        self.looks.stop(is_whole=is_whole)

    def _check(self) -> None:
        """Check the stop rules once a second, and begin the look at the objectives that is due."""
        run = self._run
        if run.passed_ns() < self._next_check_ns:
            return
        self._next_check_ns = (run.passed_ns() // CHECK_NS + 1) * CHECK_NS
        self.protect_target()
        is_free = self._look is None or self._look.ready()
        if is_free and self.looks.is_due(run.passed_ns() / 1e9):
            self._look = gevent.spawn(self._look_at_objectives)  # beside the loop

    def _look_at_objectives(self) -> None:
        """Look whether the objectives are known, and end the run if they are."""
        run = self._run
        texts = self.looks.look(run.start_at_ns)
        if run.state == "running" and not run.is_draining:
            run.notes.extend(texts)
            if self.looks.is_known:
                run.cut_short(KNOWN)

    def _send_slice(self, worker: RunWorker, rows: list[Planned]) -> None:
        """Send a worker its share of a slice, in halves if it is too large for a message."""
        try:
            self._run.send("slice", worker, rows=rows)
        except TooLargeError:
            if len(rows) < 2:
                raise
            middle = len(rows) // 2
            self._send_slice(worker, rows[:middle])
            self._send_slice(worker, rows[middle:])
