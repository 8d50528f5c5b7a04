"""The end of a run: workers drain and transfer their rows, parts are folded, and what is missing is recorded."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import gevent
from gevent.event import Event

from tailgauge.clock import monotonic_ns
from tailgauge.errors import LostError
from tailgauge.master.admission import STOPPED, Admission
from tailgauge.master.conservation import request_ids
from tailgauge.master.engine_metrics import EngineMetrics
from tailgauge.master.looks import KNOWN
from tailgauge.master.part_receiver import PartReceiver
from tailgauge.master.run_record import RunRecord
from tailgauge.master.run_state import RunState
from tailgauge.master.targets import RunTargets
from tailgauge.master.workers import RunWorker, RunWorkers
from tailgauge.rows.disk import advice

RETURN_S = 20.0  # a worker that sends nothing for so long is lost
WRITING_S = 120.0  # for compacting hours of parts; also without progress of a transfer


class Drain:
    """Ends a run in steps. What fails in one of them is noted, and the others follow: rows wait for them."""

    def __init__(
        self,
        run: RunState,
        *,
        targets: RunTargets,
        admission: Admission,
        part_receiver: PartReceiver,
        record: RunRecord,
        engine_metrics: EngineMetrics,
        end_worker: Callable[[str], None],
    ) -> None:
        self._run = run
        self._targets = targets
        self._admission = admission
        self._part_receiver = part_receiver
        self._record = record
        self._engine_metrics = engine_metrics
        self._end_worker = end_worker

    def finish(self) -> None:
        """Take every step, then write the last run.json; a disk that refuses it fails the run."""
        run = self._run
        path = run.folder.path
        try:
            self._take_steps()
            self._record.close()
        except OSError as error:
            run.failure = LostError(f"{path}: cannot be written: {advice(error, path)}")
            run.state = "failed"
            run.note_failure()

    def _take_steps(self) -> None:
        """End looks, workers, counters of the engine, parts and endpoint, in this order; then set the last state.

        What fails in a step is noted by `_try`, and the next one follows. A run that nothing cut short has failed if no
        worker has drained.
        """
        run = self._run
        if run.start_at_ns:
            run.admission_end_at_ns = monotonic_ns()
        is_whole = run.state == "running"  # nothing has cut the schedule short
        self._try(partial(self._admission.stop_looks, is_whole=is_whole))
        self._try(partial(self._drain_workers, is_whole=is_whole))
        for worker in run.workers:
            if worker.state == "lost":
                # A stopped process may go on, and write rows after they were counted.
                self._end_worker(worker.node)
        if run.state in {"running", KNOWN}:
            self._try(lambda: self._engine_metrics.end(run.notes.append))
        self._try(self.settle)
        self._try(self._stop_endpoint)
        has_drained = any(worker.state == "drained" for worker in run.workers)
        if run.state == "running" and run.start_at_ns and not has_drained:
            run.state = "failed"
            run.fail_without_workers()
        if run.state == "running":
            run.state = "complete"

    def _try(self, step: Callable[[], object]) -> None:
        try:
            step()
        except Exception as error:  # noqa: BLE001 - whatever it is
            self._run.fail(error)

    def _drain_workers(self, *, is_whole: bool) -> None:
        """Let the workers finish their open requests, for `limits.drain_s` at most."""
        run = self._run
        drain_s = 0.0
        if run.start_at_ns:
            drain_s = run.scenario.limits.drain_s
        sends = run.state != STOPPED

        def send_drain(worker: RunWorker) -> None:
            run.send("drain", worker, seconds=drain_s, sends=sends, serves=is_whole)

        drain_workers(run.workers, send_drain, run.changed, drain_s, run.notes.append)

    def _stop_endpoint(self) -> None:
        run = self._run
        run.notes.extend(self._targets.stop_endpoint(run.run_id, has_started=bool(run.start_at_ns)))

    def settle(self) -> None:
        """Fold transferred parts into one per table; record which stretches and rows are missing.

        From here on no part is accepted. A worker that joined too late to take part is forgotten. The schedule is
        compared with the rows only where arrivals are leased by time.
        """
        run = self._run
        has_leases = run.start_at_ns is not None and run.scenario.arrival.is_open
        if has_leases and run.state == "running":
            self._record.not_leased = self._admission.leases.not_leased()
        threads = gevent.get_hub().threadpool
        for number in list(self._part_receiver.rows):
            run.notes.extend(threads.apply(self._part_receiver.fold, (number,)))
        self._part_receiver.close()
        for worker in list(run.workers):
            if worker.state == "starting":
                del run.workers.by_node[worker.node]
                name = worker.hello["name"]
                run.notes.append(f"worker {name} joined late and was not ready before the end")
            elif has_leases and self._has_holes(worker):
                rows = request_ids(run.folder, worker.number)
                worker.missing = self._admission.leases.missing(worker, rows)
            if not (worker.delivered or worker.record.get("shared", True)):
                self._note_rows_elsewhere(worker)

    def _has_holes(self, worker: RunWorker) -> bool:
        """Return whether some of its leases may have no row although the run was not cut short."""
        if worker.state in {"lost", "failed"} or worker.lacks_rows:
            return True
        counts = worker.record.get("counts", {})
        return self._run.state == "running" and bool(counts.get("not_reached"))

    def _note_rows_elsewhere(self, worker: RunWorker) -> None:
        """Note where the rows are that a worker kept, and how a report can still have them."""
        record = worker.record
        cause = f" ({record['refused']})" if record.get("refused") else ""
        place = f"they are in {record['folder']} on {worker.hello['host']}"
        hint = "pass that folder to `tailgauge report` together with this one"
        self._run.notes.append(
            f"rows of worker {worker.number} were not transferred{cause}: {place}; {hint}"
        )


def drain_workers(
    workers: RunWorkers,
    send_drain: Callable[[RunWorker], object],
    changed: Event,
    drain_s: float,
    note: Callable[[str], None],
) -> None:
    """Drain every worker and wait: each finishes its open requests and transfers its rows.

    The master waits as long as messages of a worker arrive; a silent one is lost RETURN_S after its last message, and any
    one that does not end in `drain_s` and WRITING_S without progress of its transfer. A lost worker has the state `lost`;
    `note` gets a sentence on it. `changed` is set whenever a message of a worker arrives.
    """
    begin_ns = monotonic_ns()
    writing_ns = int(WRITING_S * 1e9)
    until_ns = begin_ns + int(drain_s * 1e9) + writing_ns
    waiting = []
    for worker in workers:
        may_drain = worker.ready and worker.state in {"running", "failed", "lost"}
        if may_drain and not workers.is_gone(worker):
            waiting.append(worker)
    for worker in waiting:
        send_drain(worker)
    # What each worker had still to transfer, and since when.
    backlogs = {worker.number: (-1, begin_ns) for worker in waiting}
    while waiting := [worker for worker in waiting if not worker.has_drained]:
        # It also notes a stall of this process, which is no silence of a worker.
        now_ns = workers.look()
        for worker in list(waiting):
            backlog = int(worker.counters.get("unshipped", 0))
            if backlog != backlogs[worker.number][0]:
                backlogs[worker.number] = (backlog, monotonic_ns())
            silent_s = workers.silent_s(worker, begin_ns, now_ns)
            if workers.is_gone(worker):
                problem = "was lost before it drained"
            elif silent_s > RETURN_S:
                problem = f"sent nothing for {silent_s:.0f} s during the drain"
            elif monotonic_ns() > max(until_ns, backlogs[worker.number][1] + writing_ns):
                problem = "did not drain in time"
            else:
                continue
            worker.state = "lost"
            note(f"worker {worker.number} {problem}")
            waiting.remove(worker)
        changed.clear()
        changed.wait(timeout=0.5)
