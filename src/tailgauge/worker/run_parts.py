"""The objects of which one run in one worker consists (recorder, targets, prompts, dispatcher ...), made from the plan.

run.py works with them. The parts of the rows' files are in part_sender.py.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from gevent.event import Event

from tailgauge.channel.clock_offset import MasterClock
from tailgauge.channel.messages import Link
from tailgauge.protocols.protocol import SIMULATED
from tailgauge.rows.recorder import Recorder
from tailgauge.rows.run_folder import RunFolder
from tailgauge.scenario.model import parse
from tailgauge.scenario.prices import Price
from tailgauge.worker.attempts import Attempts
from tailgauge.worker.cache_diagnostics import CacheDiagnostics
from tailgauge.worker.cache_tracker import CacheBook
from tailgauge.worker.counters import Counters
from tailgauge.worker.delivery import RowDelivery
from tailgauge.worker.dispatcher import Dispatcher
from tailgauge.worker.kept_answers import KeptAnswers
from tailgauge.worker.prompt_makers import PromptMakers
from tailgauge.worker.run_state import RunState
from tailgauge.worker.targets import RunTargets

log = logging.getLogger("tailgauge")


class RunParts:
    """What a run in this worker consists of. Nothing is sent yet."""

    def __init__(
        self,
        link: Link,
        plan: dict[str, Any],
        out: Path,
        on_ended: Callable[[str, str, float], None],
    ) -> None:
        """Make the parts of a run from the master's plan, and this worker's run folder; nothing is sent.

        `out`: where the folder lies, if the master's is not on this machine. `on_ended` gets the traffic
        table, the outcome and the time in ms of each request that has ended.
        """
        run = plan["run"]
        self.link = link
        self.plan = plan
        self.run_id: str = run["run_id"]
        self.number: int = plan["worker"]
        self.scenario = parse(run["scenario"], "the plan")
        # If it is shared with the master, no part has to be sent.
        self.folder, is_shared = run_folder(plan, out)
        self.folder.create()
        self.delivery = RowDelivery(
            self.folder, self.number, partial(self.send, "part"), is_shared=is_shared
        )
        on_part = None if is_shared else self.delivery.sender.add
        self.recorder = Recorder(self.folder, self.number, on_part, compacts=is_shared)
        self.state = RunState(self.scenario, self.folder.path, self.send)
        self.counters = Counters()
        self.targets = RunTargets(self.scenario, run)
        self.attempts = self._new_attempts()
        self.prompts = PromptMakers(self.scenario, self.run_id)
        self.dispatcher = Dispatcher(
            self.scenario,
            self.prompts.by_table,
            self.attempts,
            recorder=self.recorder,
            counters=self.counters,
            on_ended=on_ended,
            on_bug=self.state.on_error,
        )
        self.state.stop = self.dispatcher.stop
        self.state.hurry = self.dispatcher.hurry
        self.clock = MasterClock(lambda t0: self.send("ping", {"t0": t0}), plan["boot_id"])
        self.task_errors: dict[str, int] = {}  # what tasks of Locust's users raised, and how often
        self.finished = Event()

    def _new_attempts(self) -> Attempts:
        scenario = self.scenario
        is_simulated = scenario.target.url == SIMULATED
        attempts = Attempts(
            self.run_id,
            self.targets.endpoints,
            self.recorder,
            self.counters,
            scenario.limits.attempt_deadline_s,
            cache=CacheBook.from_scenario(
                scenario, is_alone=self.plan["alone"], simulated=is_simulated
            ),
        )
        attempts.diagnostics = CacheDiagnostics.from_scenario(scenario)
        if scenario.keep_answers is not None:
            path = self.folder.answers(self.number)
            attempts.answers = KeptAnswers(path, scenario.keep_answers)
        attempts.on_exhausted = self.state.on_exhausted
        attempts.on_bug = self.state.on_bug
        return attempts

    def send(self, kind: str, data: dict[str, Any]) -> None:
        """Send the master a message of this run."""
        self.link.send(kind, {"run": self.run_id, "worker": self.number, **data})

    def prices(self) -> dict[str, Price]:
        """Return the prices of the run by model."""
        return {model: Price.of_plain(price) for model, price in self.plan["prices"].items()}


def run_folder(plan: dict[str, Any], out: Path) -> tuple[RunFolder, bool]:
    """Return the folder for this worker's rows, and whether it is the master's run folder.

    Its mark tells: on another machine, a folder of this worker may have the same path.
    """
    shared = RunFolder(Path(plan["folder"]))
    try:
        if shared.mark.read_text() == plan["mark"]:
            return shared, True
    except OSError as error:
        log.info(
            "the master's run folder is not on this machine (%s): parts are transferred",
            error.strerror,
        )
    name = Path(plan["run"]["run_id"]).name
    return RunFolder((out / "runs" / name).resolve()), False
