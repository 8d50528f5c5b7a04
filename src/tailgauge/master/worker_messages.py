"""The messages of the workers that take part in a run, and what each changes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, ClassVar

from tailgauge.clock import monotonic_ns
from tailgauge.errors import InternalError, TargetError, UsageError
from tailgauge.master.part_receiver import PartReceiver
from tailgauge.master.preflight import Preflight
from tailgauge.master.run_state import STATES, RunState
from tailgauge.master.worker_start import WorkerStart
from tailgauge.master.workers import RunWorker
from tailgauge.plugins import plugin
from tailgauge.rows.run_folder import RunFolder
from tailgauge.sanitize import plain

MAX_REMARKS = 10  # of a worker
MAX_NOTE = 400  # characters that a worker sends for one


class WorkerMessages:
    """Handles each kind of message in `handlers`; the parts of the rows go to `part_receiver`."""

    def __init__(self, run: RunState, preflight: Preflight, start: WorkerStart) -> None:
        self._run = run
        self._preflight = preflight
        self._start = start
        self.part_receiver = PartReceiver(run.folder)

    def receive(self, kind: str, node: str, data: dict[str, Any]) -> None:
        """Handle a message, unless it is about another run or from a worker that takes no part."""
        worker = self._run.workers.by_node.get(node)
        if worker is None or data["run"] != self._run.run_id:
            return
        self.notice_life(node)
        self.handlers[kind](self, worker, data)
        self._run.changed.set()

    def notice_life(self, node: str) -> None:
        """Note a sign of life; a worker that was silent takes part again, with its leases."""
        run = self._run
        worker = run.workers.by_node.get(node)
        if worker is None:
            return
        worker.last_message_ns = monotonic_ns()
        if run.workers.is_back(worker, run.passed_ns()):
            run.notes.append(f"worker {worker.number} reconnected {run.passed_text()}")
            worker.state = "lost" if run.is_finishing else "running"

    def _on_ready(self, worker: RunWorker, data: dict[str, Any]) -> None:
        worker.ready = True
        worker.record = {key: data[key] for key in ("clock", "shared", "folder")}
        if worker.state == "starting":
            self._start.join(worker)

    def _on_waiting(self, _: RunWorker, data: dict[str, Any]) -> None:
        self._run.notes.append(plain(data["text"], MAX_NOTE))

    def _on_tried(self, _: RunWorker, data: dict[str, Any]) -> None:
        self._preflight.receive(data)

    def _on_opened(self, worker: RunWorker, data: dict[str, Any]) -> None:
        worker.opened = True
        max_texts = len(self._run.scenario.targets)
        self._note_texts(worker, data["missing"][:max_texts])

    def _on_part(self, worker: RunWorker, data: dict[str, Any]) -> None:
        self._run.send("got", worker, **self.part_receiver.take(worker.number, data))

    def _on_counters(self, worker: RunWorker, data: dict[str, Any]) -> None:
        worker.counters = data
        # Without a plan only the worker can count its requests.
        if not self._run.scenario.arrival.is_planned:
            worker.leased = data["counts"]["leased"]

    def _on_drained(self, worker: RunWorker, data: dict[str, Any]) -> None:
        """Take the last counts of a worker and its notes, and send it `delivered` if the master has all its rows.

        Its parts came before. A worker keeps its rows where a part was refused, and transfers none where it writes
        into the master's own folder.
        """
        run = self._run
        self._on_counters(worker, data)
        record = data["record"]
        worker.state = record["state"]
        worker.record = record
        self._note_texts(worker, record["faults"][: plugin.MAX_FAULTS], "plugin ")
        self._note_texts(worker, record["remarks"][:MAX_REMARKS])
        if record.get("answers"):  # absent of a worker that keeps none
            self._note_answers(worker)
        if worker.has_left:
            who = f"worker {worker.number} on {worker.hello['host']}"
            run.notes.append(f"{who} ended {run.passed_text()}: {record['why']}")
        received = self.part_receiver.rows.get(worker.number, {})
        is_complete = all(received.get(table, 0) == rows for table, rows in record["rows"].items())
        if is_complete and not record["shared"]:
            worker.delivered = True
            run.send("delivered", worker)

    def _note_texts(self, worker: RunWorker, texts: list[str], subject: str = "") -> None:
        for text in texts:
            self._run.notes.append(f"worker {worker.number}: {subject}{plain(text, MAX_NOTE)}")

    def _note_answers(self, worker: RunWorker) -> None:
        """Note where the raw answers are that a worker kept."""
        record = worker.record
        place = str(RunFolder(Path(record["folder"])).answers(worker.number))
        if not record["shared"]:
            place = f"{place} on {worker.hello['host']}, they are not transferred"
        self._run.notes.append(
            f"worker {worker.number} kept {record['answers']:,} raw answers: {place}"
        )

    def _on_failed(self, worker: RunWorker, data: dict[str, Any]) -> None:
        run = self._run
        worker.state = "failed"
        text = f"worker {worker.number} on {worker.hello['host']} failed: {data['why']}"
        run.notes.append(text)
        if data["target"]:
            run.failure = TargetError(data["why"])
        elif data.get("internal"):
            run.failure = InternalError(text)
        elif run.start_at_ns is None:
            run.failure = UsageError(text)
        run.cut_short("unusable" if data["target"] else "failed")
        # A fault of ours counts even in a run that is only waiting for open requests.
        if isinstance(run.failure, InternalError):
            run.state = STATES[InternalError]

    def _on_guarded(self, worker: RunWorker, data: dict[str, Any]) -> None:
        run = self._run
        key = data["limit"]
        if run.state == "running":
            limit = getattr(run.scenario.guard, key)
            end = f"no new requests after {run.passed_ns() / 1e9:.1f} s"
            cause = f"the next call of worker {worker.number} could exceed its share"
            run.notes.append(f"guard.{key} ({limit:,}): {end}; {cause}")
        run.cut_short("guarded")

    handlers: ClassVar[
        Mapping[str, Callable[[WorkerMessages, RunWorker, dict[str, Any]], None]]
    ] = {
        "ready": _on_ready,
        "waiting": _on_waiting,
        "tried": _on_tried,
        "opened": _on_opened,
        "counters": _on_counters,
        "guarded": _on_guarded,
        "part": _on_part,
        "drained": _on_drained,
        "failed": _on_failed,
    }
