"""The record of one worker in a run: the file worker.json, and a part of the message `drained`."""

from __future__ import annotations

import os
import platform
import time
from typing import Any

from tailgauge.rows.run_folder import write_json
from tailgauge.rows.schema import SCHEMA_VERSION
from tailgauge.transport.connection import KERNEL_STAMPS
from tailgauge.transport.reader import READER
from tailgauge.worker.run_parts import RunParts
from tailgauge.worker.run_state import FAILED


class RunRecord:
    """What is known of a worker in its run. `start_at_ns`: the start of the run on the master's clock."""

    def __init__(self, run: RunParts, name: str) -> None:
        self._run = run
        self._name = name
        self.start_at_ns: int | None = None
        self._cpu_s: dict[str, float] = {}  # of this process, at the start and at the end

    def note_cpu(self, moment: str) -> None:
        """Keep the CPU time that this process has used by now."""
        self._cpu_s[moment] = time.process_time()

    def as_message(self) -> dict[str, Any]:
        """Return the record as plain values."""
        run = self._run
        state = run.state
        delivery = run.delivery
        recorder = run.recorder
        answers = run.attempts.answers
        has_kernel_stamps = KERNEL_STAMPS and run.scenario.clock == "kernel"
        return {
            "schema_version": SCHEMA_VERSION,
            "worker": run.number,
            "name": self._name,
            "host": platform.node(),
            "pid": os.getpid(),
            "state": state.name,
            "why": state.reason,
            "clock": run.clock.offset(),
            "reader": run.targets.reader,
            "priority": READER.priority,
            "stamps": "kernel" if has_kernel_stamps else "user",
            "counts": run.counters.as_message(),
            "rows": dict(recorder.written),
            "unwritten": dict(recorder.unwritten),
            "shared": delivery.is_shared,
            "unshipped": delivery.sender.unshipped,
            "refused": delivery.sender.refused,
            "faults": list(run.dispatcher.faults.texts.values()),
            "task_errors": dict(run.task_errors),
            "remarks": list(recorder.remarks),
            "answers": None if answers is None else answers.written,
            "folder": str(run.folder.path),
            "cpu_s": {**self._cpu_s, "writer": recorder.cpu_s},
        }

    def write(self) -> None:
        """Write worker.json; where that fails, the run counts as failed."""
        run = self._run
        state = run.state
        facts = {**run.plan["run"], "start_at_ns": self.start_at_ns}
        try:
            write_json(run.folder.worker_json(run.number), {**self.as_message(), "run": facts})
        except OSError as error:
            state.name = FAILED
            cause = f"{run.folder.path}: cannot be written: {error.strerror}"
            state.reason = state.reason or cause
