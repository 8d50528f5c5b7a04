"""The run folder as the master keeps it: its mark, the disk space reserved for the end, and run.json."""

from __future__ import annotations

import logging
import os
import secrets
from contextlib import suppress
from typing import Any

from tailgauge.clock import monotonic_ns, utc_now
from tailgauge.master import run_json
from tailgauge.master.admission import Admission
from tailgauge.master.engine_metrics import EngineMetrics
from tailgauge.master.preflight import Preflight
from tailgauge.master.run_state import RunState
from tailgauge.master.targets import RunTargets
from tailgauge.rows.disk import advice
from tailgauge.rows.run_folder import write_json
from tailgauge.sanitize import plain

log = logging.getLogger("tailgauge")


class RunRecord:
    """Writes run.json after each step of a run. `mark` shows workers that a folder is the master's."""

    def __init__(
        self,
        run: RunState,
        targets: RunTargets,
        preflight: Preflight,
        admission: Admission,
        engine_metrics: EngineMetrics,
    ) -> None:
        self._run = run
        self._targets = targets
        self._preflight = preflight
        self._admission = admission
        self._engine_metrics = engine_metrics
        self.mark = secrets.token_hex(16)
        self.not_leased: list[dict[str, float]] = []
        self._mark_file: int | None = None  # open until the last run.json is written
        self._started_at = utc_now()
        self._ended_at_ns: int | None = None

    def open(self) -> None:
        """Create the run folder, hold it, and reserve disk space for the end."""
        folder = self._run.folder
        folder.create()
        self._mark_file = folder.hold(self.mark)
        folder.take_reserve()

    def close(self) -> None:
        """Write the last run.json, on the disk space that was reserved for it and for the report."""
        run = self._run
        run.folder.release_reserve()
        if run.start_at_ns is None and not run.folder.path.is_dir():
            return
        try:
            self.write(ended=True)
        except OSError:
            # What its facts are read from may be refused for a moment: once more.
            self.write(ended=True)
        with suppress(OSError):  # nobody holds it any more, and that is what counts
            run.folder.mark.unlink(missing_ok=True)
        if self._mark_file is not None:
            os.close(self._mark_file)

    def note_at_end(self, text: str) -> None:
        """Add a note to the run.json of a run that has ended."""
        self._run.notes.append(plain(text))
        try:
            self.write(ended=True)
        except OSError as error:
            log.warning("%s", advice(error, self._run.folder.path))

    def facts(self) -> dict[str, Any]:
        """Return the facts that master and workers both write, so that either record identifies the run."""
        run = self._run
        settings = run.settings
        scenario_facts = run_json.scenario_facts(
            run.scenario, settings.scenario_file, settings.overrides, self._targets.urls
        )
        return {
            "run_id": run.run_id,
            "started_at": self._started_at,
            "start_at_ns": run.start_at_ns,
            "command": list(settings.command),
            "estimate": settings.estimate.facts(),
            **self._preflight.learnt.facts(run.scenario),
            "engines": self._preflight.engines,
            **scenario_facts,
        }

    def write(self, *, ended: bool = False) -> None:
        """Replace run.json; see docs/reference/data-format.md."""
        run = self._run
        if ended and self._ended_at_ns is None:
            self._ended_at_ns = monotonic_ns()
        schedule = run.settings.schedule
        scheduled = schedule.requests if run.scenario.arrival.is_planned else None
        facts = run_json.frame(self.facts(), run.state, run.notes, self._preflight.calls)
        facts |= {
            "admission_end_at_ns": run.admission_end_at_ns,
            "ended_at_ns": self._ended_at_ns,
            **self._engine_metrics.facts(),
            "trace": schedule.trace,
            "prompt_files": schedule.prompt_files,
            "conservation": run.workers.conservation(scheduled, run.folder, final=ended),
            "stopped": self._admission.stopped,
            "precision": self._admission.looks.facts,
            "not_leased": self.not_leased,
            "master_stalled": run.workers.stalled(run.start_at_ns),
            "workers": [worker.facts() for worker in run.workers],
        }
        write_json(run.folder.run_json, facts)
