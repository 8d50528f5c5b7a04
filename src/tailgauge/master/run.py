"""The master's side of a run: plan, leases, losses, drain, run.json.

The schedule is drawn once and leased in slices: a slice leased to one worker never goes to another. The master sends no
traffic and writes no rows; the run folder, run.json and the embedded simulated endpoint are its own.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import gevent
from gevent.event import Event

from tailgauge.channel.messages import Link
from tailgauge.errors import TailgaugeError
from tailgauge.master.admission import Admission
from tailgauge.master.drain import Drain
from tailgauge.master.engine_metrics import EngineMetrics
from tailgauge.master.objectives import LiveObjectives
from tailgauge.master.preflight import Preflight
from tailgauge.master.progress import Progress
from tailgauge.master.run_record import RunRecord
from tailgauge.master.run_state import RunState
from tailgauge.master.targets import RunTargets
from tailgauge.master.worker_messages import WorkerMessages
from tailgauge.master.worker_start import WorkerStart
from tailgauge.plan.resolve import Settings


class Run:
    """One run, from Locust's test_start to the end of its drain."""

    def __init__(
        self,
        link: Link,
        settings: Settings,
        expected_workers: Callable[[], int],
        is_alive: Callable[[str], bool],
        end_worker: Callable[[str], None],
    ) -> None:
        """Make the parts of a run, which share one RunState; `begin` starts it.

        `expected_workers`: with how many it begins; `is_alive`: whether one is still connected; `end_worker` ends the
        process of one that was given up, if it is a child of this process. The last two take Locust's name of a worker.
        """
        state = RunState(link, settings, is_alive)
        targets = RunTargets(state.scenario, state.folder)
        self._state = state
        self._targets = targets
        self._preflight = Preflight(state, targets)
        self._admission = Admission(state)
        self._engine_metrics = EngineMetrics(state.scenario, gevent.sleep)
        self._record = RunRecord(
            state, targets, self._preflight, self._admission, self._engine_metrics
        )
        self._start = WorkerStart(
            state, self._preflight, self._record, self._engine_metrics, expected_workers
        )
        self._messages = WorkerMessages(state, self._preflight, self._start)
        self._drain = Drain(
            state,
            targets=targets,
            admission=self._admission,
            part_receiver=self._messages.part_receiver,
            record=self._record,
            engine_metrics=self._engine_metrics,
            end_worker=end_worker,
        )
        self._objectives = LiveObjectives(state.scenario)
        self.settings = settings
        self.scenario = state.scenario
        self.run_id = state.run_id
        self.folder = state.folder
        self.workers = state.workers
        self.target_urls = targets.urls
        self.notes = state.notes
        self.admitted = state.admitted
        self.over = Event()  # drained and written

    @property
    def state(self) -> str:
        """The `state` of run.json."""
        return self._state.state

    @property
    def failure(self) -> TailgaugeError | None:
        """What ended the run, if something did."""
        return self._state.failure

    @property
    def start_at_ns(self) -> int | None:
        """When the first arrival is due; None before the workers got their `go`."""
        return self._state.start_at_ns

    @property
    def finishing(self) -> bool:
        """Whether its end has begun."""
        return self._state.is_finishing

    @property
    def called(self) -> list[str]:
        """The full URLs of calls, from the preflight on."""
        return self._preflight.called_urls

    @property
    def has_lost_rows(self) -> bool:
        """Whether a worker could not write or deliver some."""
        return any(
            worker.lacks_rows or worker.state in {"lost", "failed"} for worker in self.workers
        )

    def on_hello(self, node: str, data: dict[str, Any]) -> None:
        """Take the first message of a worker."""
        self._start.receive_hello(node, data)

    def on_message(self, kind: str, node: str, data: dict[str, Any]) -> None:
        """Take a message of a worker that takes part; one about another run is ignored."""
        self._messages.receive(kind, node, data)

    def notice_life(self, node: str) -> None:
        """Note a sign of life of a worker."""
        self._messages.notice_life(node)

    def look_for_workers(self) -> None:
        """Fail the run if no worker is left."""
        self._state.check_workers()

    def begin(self) -> None:
        """Folder, plan, endpoint, workers, preflight, start; then lease slices until the schedule has ended."""
        try:
            self.notes.extend(self.settings.schedule.notes)
            self._record.open()
            self._targets.start_endpoint()
            self._record.write()
            self._start.send_plans()
            self._preflight.make()
            self._start.open_connections()
            self._start.go()
            self._admission.lease_slices()
        except Exception as error:  # noqa: BLE001 - a plugin's or a fault of ours, whatever it is
            self._state.fail(error)
        finally:
            self.admitted.set()

    def cut_short(self, state: str) -> None:
        """Admit no more: Ctrl-C, Locust's -t, a failed worker. `state` goes to run.json."""
        self._state.cut_short(state)

    def interrupt(self) -> None:
        """Admit no more after Ctrl-C; a run that is only waiting for open requests was interrupted too."""
        self._state.cut_short("interrupted")
        if self._state.state == "running":
            self._state.state = "interrupted"

    def hurry(self) -> None:
        """Close open requests instead of waiting for them."""
        self._engine_metrics.hurry()
        for worker in self.workers.living():
            self._state.send("hurry", worker)

    def finish(self) -> None:
        """Drain every worker, write run.json, fetch the server log. Runs once."""
        if self.finishing:
            self.over.wait()
            return
        self._state.is_finishing = True
        self._state.is_draining = True
        try:
            self._drain.finish()
        finally:
            self.over.set()

    def note_at_end(self, text: str) -> None:
        """Add a note to the run.json of a run that has ended."""
        self._record.note_at_end(text)

    def snapshot(self) -> Progress:
        """Return the run up to now, for the live display."""
        progress = self._state.progress()
        progress.objectives = self._objectives.judge(progress.passed_s, progress.traffic)
        return progress
