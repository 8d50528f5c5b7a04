"""The master's side of a run: plan, leases, losses, drain, run.json.

The schedule is drawn once and leased in slices: a slice leased to one worker never goes to another. The master sends no
traffic and writes no rows; the run folder, run.json and the embedded simulated endpoint are its own.
"""

from __future__ import annotations

import logging
import os
import secrets
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import gevent
from gevent.event import Event

from tailgauge import errors
from tailgauge.call import SECOND
from tailgauge.channel.child_process import Child
from tailgauge.channel.messages import Link, TooLargeError
from tailgauge.clock import WALL, boot_id, monotonic_ns, utc_now
from tailgauge.errors import InterruptedRunError, TailgaugeError, TargetError, UsageError
from tailgauge.master import progress, run_json
from tailgauge.master.embedded_endpoint import fetch_server_log, start_endpoint
from tailgauge.master.engine_metrics import EngineMetrics
from tailgauge.master.leases import Leases
from tailgauge.master.looks import KNOWN, InterimLooks
from tailgauge.master.objectives import LiveObjectives
from tailgauge.master.part_receiver import PartReceiver
from tailgauge.master.stop_rules import StopRules
from tailgauge.master.workers import RunWorker, RunWorkers, drain_workers, pace, request_ids
from tailgauge.plan.looks import looks
from tailgauge.plan.preflight import USABLE, Learnt, is_loading, prefixes, preflight_calls
from tailgauge.plan.resolve import Settings
from tailgauge.plan.spend_limit import Amount
from tailgauge.plugins import plugin
from tailgauge.protocols.protocol import SIMULATED, Adaptation
from tailgauge.rows.disk import advice
from tailgauge.rows.run_folder import RunFolder, new_run_id, write_json
from tailgauge.rows.schema import COMPLETE, INTERNAL_ERROR, PLUGIN_ERROR, SERVED
from tailgauge.sanitize import plain
from tailgauge.scenario.model import Scenario
from tailgauge.schedule.schedule import Planned
from tailgauge.schedule.settings import CLOSED
from tailgauge.simulator.behaviours import gateway
from tailgauge.transport.connection import OF_THIS_MACHINE

log = logging.getLogger("tailgauge")

LEAD_NS = 1_500_000_000  # from `go` to the first arrival, with workers on other machines
LOCAL_LEAD_NS = 300_000_000  # with children of this process
_EACH_NS = 20_000_000  # the more children, the later the last one gets a core and its first slice
READY_S = 30.0
OPENING_S = 0.02  # per connection opened beforehand
POLL_S = 0.25
LOOK_NS = 1_000_000_000  # between looks at the stop rules: workers report once a second
STOPPED = "stopped"  # a stop rule protects the target
STATES: dict[type, str] = {TargetError: "unusable", errors.InternalError: "error"}
MAX_REMARKS = 10  # of a worker
MAX_NOTE = 400  # characters that a worker sends for one


class Run:
    """One run, from Locust's test_start to the end of its drain."""

    def __init__(
        self,
        link: Link,
        settings: Settings,
        expected: Callable[[], int],
        is_alive: Callable[[str], bool],
        end_worker: Callable[[str], None],
    ) -> None:
        """`expected`: with how many workers it begins; `is_alive`: whether one is still connected; `end_worker` ends the process
        of one that was given up, if it is a child of this process.
        """
        self._link = link
        self.settings = settings
        self._expected = expected
        self._end_worker = end_worker
        self.scenario = settings.scenario
        self.run_id = new_run_id(self.scenario.name)
        self.folder = RunFolder((settings.out / "runs" / self.run_id).resolve())
        self.workers = RunWorkers(is_alive)
        self.part_receiver = PartReceiver(self.folder)
        self._leases: Leases | None = None
        self.state = "running"
        self.notes: list[str] = []
        self.preflight: list[dict[str, Any]] = []
        self.not_leased: list[dict[str, float]] = []
        self.failure: TailgaugeError | None = None
        self.preflight_result: dict[str, Any] | None = (
            None  # the first worker's message on the preflight
        )
        self.start_at_ns: int | None = None
        self.admission_end_at_ns: int | None = None
        self._ended_at_ns: int | None = None  # when it was drained
        self.admitted = Event()  # the schedule has ended or was cut short
        self.over = Event()  # drained and written
        self._mark = secrets.token_hex(16)
        self._held: int | None = None  # the mark, open until the last run.json is written
        self.targets = list(self.scenario.targets.values())
        self.target_urls = [one.url for one in self.targets]
        self._endpoint: Child | None = None
        self._endpoint_url = ""
        self._objectives = LiveObjectives(self.scenario)
        self._stop_rules = StopRules(self.scenario)
        self.looks = InterimLooks(looks(self.scenario, settings.schedule), self.folder)
        self._looking = gevent.spawn(int)
        self.stopped = ""  # when and why a stop rule ended the run
        self.engine_metrics = EngineMetrics(self.scenario, gevent.sleep)
        self._changed = Event()
        self._started_at = utc_now()
        self._plan_sent = False  # workers that report after that join late
        self._early: dict[str, dict[str, Any]] = {}  # late joiners that reported before the start
        self._draining = self.finishing = False
        self._has_sent_all = False  # every request of a closed loop with a number has ended

    # --- messages of the workers --------------------------------------------------------------------------------

    def on_hello(self, node: str, data: dict[str, Any]) -> None:
        """A worker reports. After the start it gets a share from the next slice on, if it can join."""
        if node in self.workers.by_node or self._draining:
            return
        if not self._plan_sent:
            self.workers.add(node, data)
            self._changed.set()
        elif self.start_at_ns is None:
            self._early[node] = data
        elif (
            why := refuses_late_join(self.scenario, self.settings.limit, len(self.workers))
        ) is not None:
            who = f"worker {data['name']} connected {self._at()}"
            self.notes.append(f"{who} and waits for the next run: {why}")
        else:
            worker = self.workers.add(node, data, late=True)
            self._link.send("plan", self._plan(worker.number), node)

    def on_message(self, kind: str, node: str, data: dict[str, Any]) -> None:
        """A message of a worker that takes part: a kind of `handlers`."""
        worker = self.workers.by_node.get(node)
        if worker is None or data["run"] != self.run_id:
            return
        self.notice_life(node)
        self.handlers[kind](self, worker, data)
        self._changed.set()

    def notice_life(self, node: str) -> None:
        """A worker gave a sign of life; one that was silent takes part again."""
        worker = self.workers.by_node.get(node)
        if worker is None:
            return
        worker.last_message_ns = monotonic_ns()
        if self.workers.is_back(worker, self._passed_ns()):  # silent, not dead: it keeps its leases
            self.notes.append(f"worker {worker.number} reconnected {self._at()}")
            worker.state = "lost" if self.finishing else "running"

    def _on_ready(self, worker: RunWorker, data: dict[str, Any]) -> None:
        worker.ready = True
        worker.record = {k: data[k] for k in ("clock", "shared", "folder")}
        if worker.state == "starting":
            self._join(worker)

    def _on_waiting(self, _: RunWorker, data: dict[str, Any]) -> None:
        self.notes.append(plain(data["text"], MAX_NOTE))

    def _on_tried(self, _: RunWorker, data: dict[str, Any]) -> None:
        self.preflight_result = data
        self.preflight = data["calls"]

    def _on_opened(self, worker: RunWorker, data: dict[str, Any]) -> None:
        worker.opened = True
        missing = [plain(text, MAX_NOTE) for text in data["missing"][: len(self.targets)]]
        self.notes.extend(f"worker {worker.number}: {text}" for text in missing)

    def _on_part(self, worker: RunWorker, data: dict[str, Any]) -> None:
        self._send("got", worker, **self.part_receiver.take(worker.number, data))

    def _on_counters(self, worker: RunWorker, data: dict[str, Any]) -> None:
        worker.counters = data
        if not self.scenario.arrival.is_planned:  # without a plan only the worker can count
            worker.leased = data["counts"]["leased"]

    def _on_drained(self, worker: RunWorker, data: dict[str, Any]) -> None:
        self._on_counters(worker, data)
        record = data["record"]
        worker.state = record["state"]
        worker.record = record
        who = f"worker {worker.number}"
        faults = [plain(text, MAX_NOTE) for text in record["faults"][: plugin.MAX_FAULTS]]
        self.notes.extend(f"{who}: plugin {text}" for text in faults)
        self.notes.extend(
            f"{who}: {plain(text, MAX_NOTE)}" for text in record["remarks"][:MAX_REMARKS]
        )
        if record.get("answers"):  # absent of a worker that keeps none
            self._note_answers(worker)
        if worker.has_left:
            self.notes.append(
                f"{who} on {worker.hello['host']} ended {self._at()}: {record['why']}"
            )
        received = self.part_receiver.rows.get(worker.number, {})
        written = record["rows"]
        if not record["shared"] and all(
            received.get(name, 0) == rows for name, rows in written.items()
        ):
            worker.delivered = True
            self._send("delivered", worker)

    def _note_answers(self, worker: RunWorker) -> None:
        """Say where the raw answers are that a worker kept."""
        record = worker.record
        path = RunFolder(Path(record["folder"])).answers(worker.number)
        where = str(path)
        if not record["shared"]:
            where = f"{path} on {worker.hello['host']}, they are not transferred"
        self.notes.append(f"worker {worker.number} kept {record['answers']:,} raw answers: {where}")

    def _join(self, worker: RunWorker) -> None:
        """A late joiner is ready: it begins with the next slice, on the common start time."""
        worker.state = "running"
        worker.late_ns = self._passed_ns()
        self._send_go(worker, Amount(None, None, None))
        self.notes.append(f"worker {worker.number} joined {self._at()}")

    def _on_failed(self, worker: RunWorker, data: dict[str, Any]) -> None:
        worker.state = "failed"
        text = f"worker {worker.number} on {worker.hello['host']} failed: {data['why']}"
        self.notes.append(text)
        if data["target"]:
            self.failure = TargetError(data["why"])
        elif data.get("internal"):
            self.failure = errors.InternalError(text)
        elif self.start_at_ns is None:
            self.failure = UsageError(text)
        self.cut_short("unusable" if data["target"] else "failed")
        if isinstance(self.failure, errors.InternalError):
            self.state = STATES[
                errors.InternalError
            ]  # also of a run that is only waiting for open requests

    def _on_guarded(self, worker: RunWorker, data: dict[str, Any]) -> None:
        limit = data["limit"]
        if self.state == "running":
            end = f"no new requests after {self._passed_ns() / 1e9:.1f} s"
            why = f"the next call of worker {worker.number} could exceed its share"
            self.notes.append(
                f"guard.{limit} ({getattr(self.scenario.guard, limit):,}): {end}; {why}"
            )
        self.cut_short("guarded")

    # --- the run ----------------------------------------------------------------------------------------------

    def begin(self) -> None:
        """Folder, plan, endpoint, workers, preflight, start; then lease slices until the schedule has ended."""
        try:
            self._prepare()
            self._send_plan()
            self._preflight()
            self._open()
            self._go()
            self._lease_slices()
        except Exception as error:  # noqa: BLE001 - a plugin's or a fault of ours, whatever it is
            self.failure = plugin.failure(error)
            if not isinstance(
                self.failure, InterruptedRunError
            ):  # else it has the state of what stopped it
                self.state = STATES.get(type(self.failure), "failed")
            self._note_failure()
        finally:
            self.admitted.set()

    def _note_failure(self) -> None:
        if str(self.failure) not in self.notes:
            self.notes.append(str(self.failure))

    def _prepare(self) -> None:
        scenario = self.scenario
        self.notes.extend(self.settings.schedule.notes)
        self.folder.create()
        self._held = self.folder.hold(self._mark)
        self.folder.take_reserve()
        if SIMULATED in self.target_urls:
            self._endpoint, self._endpoint_url = start_endpoint(
                scenario, self.folder.path / "endpoint.log"
            )
            behind = gateway.PATH if scenario.has_gateway else ""
            urls = (self._endpoint_url, self._endpoint_url + behind)
            both = zip(self.target_urls, urls, strict=False)
            self.target_urls = [new if old == SIMULATED else old for old, new in both]
        self._write_run_json()

    def _send_plan(self) -> None:
        complaint = "workers did not report for the run"
        self._await(lambda: len(self.workers) >= max(1, self._expected()), READY_S, complaint)
        self._plan_sent = True
        for worker in self.workers:
            self._link.send("plan", self._plan(worker.number), worker.node)
        self._await(lambda: all(m.ready for m in self.workers), READY_S, "workers were not ready")

    def _plan(self, number: int) -> dict[str, Any]:
        return {
            "worker": number, "folder": str(self.folder.path), "mark": self._mark, "boot_id": boot_id(),
            "alone": len(self.workers) == 1, "pace": pace(len(self.workers)), "prices": self.settings.priced(),
            "run": self._facts(), "wall_offset_ns": WALL.offset_ns,
        }  # fmt: skip

    def _preflight(self) -> None:
        """The preflight, by the first worker: targets, tokens per word, prefixes written before the run."""
        self._send("try", next(iter(self.workers)))
        calls = len(preflight_calls(self.scenario)) + prefixes(self.scenario)
        limits = self.scenario.limits
        patience = limits.attempt_deadline_s + limits.connect_timeout_s + 5
        patience_s = (
            patience * calls + limits.ready_s + patience * (limits.ready_s > 0) * len(self.targets)
        )
        self._await(
            lambda: self.preflight_result is not None, patience_s, "the preflight did not end"
        )
        self._note_adaptations()
        for call in self.preflight:
            self._refuse_bug(call)
            loads = is_loading(call["status"], call["message"])
            if call["error_type"] in OF_THIS_MACHINE:
                raise errors.MachineError(
                    f"the preflight could not be made: {plain(call['message'] or '')}"
                )
            if (call["ended"] not in USABLE or loads) and call["needed"]:
                at = self._place(call["target"])
                url = call["url"] or self.target_urls[at]
                target = self.targets[at]
                raise TargetError(
                    progress.preflight_failure(
                        url, target.protocol, call, target, ready_s=limits.ready_s
                    )
                )
            whole_note = progress.not_whole(call)
            if whole_note:
                self.notes.append(whole_note)
            expected = (
                COMPLETE if call["words"] else SERVED
            )  # a call that only writes a prefix has no answer
            if call["ended"] not in expected:
                text = call["message"] or "no text"
                self.notes.append(
                    f"a preflight call, sent before the run, ended as {call['ended']}: {text}"
                )
        for name, engine in self._engines.items():
            if engine is None:
                table = "second_target" if name == SECOND else "target"
                raise errors.ScenarioError(
                    progress.unknown_engine(table, self.target_urls[self._place(name)])
                )

    def _place(self, target: str) -> int:
        """Which of the targets a worker names; the first where there is no second."""
        return int(target == SECOND and len(self.targets) > 1)

    def _note_adaptations(self) -> None:
        """Say what the preflight found that a target takes."""
        assert self.preflight_result is not None
        for target, plain_values in self.preflight_result["adaptations"].items():
            table = "second_target" if target == SECOND else "target"
            self.notes.extend(progress.adaptation_notes(table, Adaptation(*plain_values)))

    def _refuse_bug(self, call: dict[str, Any]) -> None:
        """End the run where our own code, or a plugin's, could not prepare a call: the target has not seen it."""
        text = call["message"]
        if call["error_type"] == INTERNAL_ERROR:
            raise errors.InternalError(f"internal error: a request could not be prepared: {text}")
        if call["error_type"] == PLUGIN_ERROR and call["status"] is None:
            raise UsageError(f"plugin {text}")

    @property
    def called(self) -> list[str]:
        """The full URLs of calls, from the preflight on."""
        return list(dict.fromkeys(str(call["url"]) for call in self.preflight if call["words"]))

    @property
    def _engines(self) -> dict[str, str | None]:
        """By target, where exact answers are asked for; None of an unknown one."""
        return {} if self.preflight_result is None else self.preflight_result["engines"]

    def _open(self) -> None:
        """Open connections beforehand, after the preflight so that they are fresh at the start."""
        if wanted := sum(target.preopened for target in self.targets):
            workers = self.workers.living()
            for worker in workers:
                self._send("open", worker)
            patience = READY_S + self.scenario.limits.connect_timeout_s + OPENING_S * wanted
            self._await(
                lambda: all(m.opened for m in workers), patience, "the connections were not opened"
            )

    def _go(self) -> None:
        assert self.preflight_result is not None
        left = self.settings.limit.less(Amount.of_plain(self.preflight_result["spent"]))
        workers = self.workers.living()
        shares = left.shares(len(workers)) if workers else []
        schedule = self.settings.schedule
        until_ns = int(self.scenario.stages.duration_s * 1e9)
        self.engine_metrics.begin(self.notes.append, self.preflight)
        self._leases = Leases(schedule, until_ns, self.workers, self._give)
        self.start_at_ns = monotonic_ns() + (lead_ns(workers) if len(schedule) else LOCAL_LEAD_NS)
        for worker, share in zip(workers, shares, strict=True):
            self._send_go(worker, share, _slots(self.scenario, workers, worker))
        self._write_run_json()
        for node, data in self._early.items():
            self.on_hello(node, data)

    def _send_go(self, worker: RunWorker, limit: Amount, slots: int | None = None) -> None:
        assert self.preflight_result is not None
        plan = {
            "learnt": self.preflight_result["learnt"], "engines": self._engines, "limit": limit.plain(),
            "adaptations": self.preflight_result["adaptations"], "slots": slots,
        }  # fmt: skip
        self._send("go", worker, start_at_ns=self.start_at_ns, **plan)

    def _lease_slices(self) -> None:
        assert self._leases is not None
        duration_ns = int(self.scenario.stages.duration_s * 1e9)
        looks = 0
        while self._passed_ns() < duration_ns and not self._draining:
            self._leases.up_to(self._passed_ns())
            self._notice_losses()
            if self.settings.schedule.users is not None and self.workers.have_sent_all():
                self._has_sent_all = True
                return
            if self._passed_ns() >= looks * LOOK_NS:
                looks = self._passed_ns() // LOOK_NS + 1
                self._protect_target()
                if self._looking.ready() and self.looks.is_due(self._passed_ns() / 1e9):
                    self._looking = gevent.spawn(self._look)  # beside the loop
            self._changed.clear()
            pause_s = min(POLL_S, max(0.01, (duration_ns - self._passed_ns()) / 1e9))
            if self.settings.schedule.users is None:
                gevent.sleep(pause_s)
            else:
                self._changed.wait(timeout=pause_s)  # its end comes with a message

    def _give(self, worker: RunWorker, rows: list[Planned]) -> None:
        try:
            self._link.send("slice", {"run": self.run_id, "rows": rows}, worker.node)
        except TooLargeError:
            if len(rows) < 2:
                raise
            for part in (rows[: len(rows) // 2], rows[len(rows) // 2 :]):
                self._give(worker, part)

    def _protect_target(self) -> None:
        """Stop if a rule of the scenario says so: nothing more is sent."""
        why = self._stop_rules.broken(self._progress())
        if why is not None and self.state == "running":
            self.stopped = f"{self._at()}: {why}"
            self.notes.append(f"stopped {self.stopped}; {self._stop_rules.how_to_go_on}")
            self.cut_short(STOPPED)

    def _look(self) -> None:
        """Look whether the objectives are known, and end the run if they are."""
        texts = self.looks.look(self.start_at_ns)
        if self.state == "running" and not self._draining:
            self.notes.extend(texts)
            if self.looks.is_known:
                self.cut_short(KNOWN)

    def _notice_losses(self) -> None:
        for worker in self.workers.newly_lost(self.start_at_ns or 0):
            self.notes.append(f"worker {worker.number} was lost {self._at()}")
        self.look_for_workers()

    def look_for_workers(self) -> None:
        """Fail the run if no worker is left."""
        if len(self.workers) and all(self.workers.is_gone(worker) for worker in self.workers):
            self._fail_without_workers()
            self.cut_short("failed")

    def _fail_without_workers(self) -> None:
        if self.failure is None:
            self.failure = errors.LostError("lost connection to every worker: the run has ended")
            self._note_failure()

    def _send(self, kind: str, worker: RunWorker, **data: Any) -> bool:
        return self._link.send(kind, {"run": self.run_id, **data}, worker.node)

    def _at(self) -> str:
        return f"{self._passed_ns() / 1e9:.0f} s into the run"

    def _passed_ns(self) -> int:
        return monotonic_ns() - (self.start_at_ns or monotonic_ns())

    # --- the end ----------------------------------------------------------------------------------------------

    def cut_short(self, state: str) -> None:
        """Admit no more: Ctrl-C, Locust's -t, a failed worker. `state` goes to run.json."""
        is_early = (
            self._passed_ns() < self.scenario.stages.duration_s * 1e9 and not self._has_sent_all
        )
        if is_early and self.state == "running":
            self.state = state
        self._draining = True
        self._changed.set()
        self.admitted.set()

    def interrupt(self) -> None:
        """Admit no more after Ctrl-C; a run that is only waiting for open requests was interrupted too."""
        self.cut_short("interrupted")
        if self.state == "running":
            self.state = "interrupted"

    def hurry(self) -> None:
        """Close open requests instead of waiting for them."""
        self.engine_metrics.hurry()
        for worker in self.workers.living():
            self._send("hurry", worker)

    def finish(self) -> None:
        """Drain every worker, write run.json, fetch the server log. Runs once."""
        if self.finishing:
            self.over.wait()
            return
        self.finishing = self._draining = True
        try:
            self._drain()
            self._close()
        except OSError as error:
            self._fail_to_write(error)
        finally:
            self.over.set()

    def _step(self, action: Callable[[], object]) -> None:
        """Take a step of the end. What fails in it is noted, and the other steps follow: rows wait for them."""
        try:
            action()
        except Exception as error:  # noqa: BLE001 - whatever it is
            self.failure = plugin.failure(error)
            self.state = STATES.get(type(self.failure), "failed")
            self._note_failure()

    def _fail_to_write(self, error: OSError) -> None:
        self.failure = errors.LostError(
            f"{self.folder.path}: cannot be written: {advice(error, self.folder.path)}"
        )
        self.state = "failed"
        self._note_failure()

    def _drain(self) -> None:
        self.admission_end_at_ns = monotonic_ns() if self.start_at_ns else None
        self._looking.kill()
        is_whole = self.state == "running"
        self._step(lambda: self.looks.stop(is_whole=is_whole))
        seconds = self.scenario.limits.drain_s if self.start_at_ns else 0.0
        drain = partial(
            self._send, "drain", seconds=seconds, sends=self.state != STOPPED, serves=is_whole
        )
        self._step(
            lambda: drain_workers(self.workers, drain, self._changed, seconds, self.notes.append)
        )
        for worker in self.workers:
            if (
                worker.state == "lost"
            ):  # a stopped process may go on, and write rows after they were counted
                self._end_worker(worker.node)
        if self.state in {"running", KNOWN}:
            self._step(lambda: self.engine_metrics.end(self.notes.append))
        self._step(self._settle)
        if self._endpoint is not None:
            self._step(self._end_endpoint)
        drained = [worker for worker in self.workers if worker.state == "drained"]
        if self.state == "running" and self.start_at_ns and not drained:
            self.state = "failed"
            self._fail_without_workers()
        if self.state == "running":
            self.state = "complete"

    def _end_endpoint(self) -> None:
        """Fetch the server log, and end the simulated endpoint."""
        assert self._endpoint is not None
        if self.start_at_ns:
            self.notes.extend(fetch_server_log(self._endpoint_url, self.run_id, self.folder))
        self._endpoint.stop(3)

    def _close(self) -> None:
        """Write the last run.json, on the disk space that was reserved for it and for the report."""
        self.folder.release_reserve()
        if self.start_at_ns is not None or self.folder.path.is_dir():
            try:
                self._write_run_json(ended=True)
            except OSError:  # what its facts are read from was refused for a moment
                self._write_run_json(ended=True)
            with suppress(OSError):  # nobody holds it any more, and that is what counts
                self.folder.mark.unlink(missing_ok=True)
            if self._held is not None:
                os.close(self._held)

    @property
    def has_lost_rows(self) -> bool:
        """Whether a worker could not write or deliver some."""
        return any(
            worker.lacks_rows or worker.state in {"lost", "failed"} for worker in self.workers
        )

    def note_at_end(self, text: str) -> None:
        """Add a note to the run.json of a run that has ended."""
        self.notes.append(plain(text))
        try:
            self._write_run_json(ended=True)
        except OSError as error:
            log.warning("%s", advice(error, self.folder.path))

    def _facts(self) -> dict[str, Any]:
        """Facts that master and workers both write, so that either record identifies the run."""
        settings = self.settings
        origin = (self.settings.scenario_file, self.settings.overrides)
        learnt = Learnt(*self.preflight_result["learnt"]) if self.preflight_result else Learnt()
        return {
            "run_id": self.run_id, "started_at": self._started_at, "start_at_ns": self.start_at_ns,
            "command": list(settings.command), "estimate": settings.estimate.facts(), **learnt.facts(self.scenario), "engines": self._engines,
            **run_json.scenario_facts(self.scenario, *origin, self.target_urls),
        }  # fmt: skip

    def _write_run_json(self, *, ended: bool = False) -> None:
        """Replace run.json; see docs/reference/data-format.md."""
        if ended and self._ended_at_ns is None:
            self._ended_at_ns = monotonic_ns()
        schedule = self.settings.schedule
        scheduled = schedule.requests if self.scenario.arrival.is_planned else None
        facts = run_json.frame(self._facts(), self.state, self.notes, self.preflight) | {
            "admission_end_at_ns": self.admission_end_at_ns, "ended_at_ns": self._ended_at_ns,
            **self.engine_metrics.facts(), "trace": schedule.trace,
            "prompt_files": schedule.prompt_files,
            "conservation": self.workers.conservation(scheduled, self.folder, final=ended),
            "stopped": self.stopped, "precision": self.looks.facts, "not_leased": self.not_leased,
            "master_stalled": self.workers.stalled(self.start_at_ns),
            "workers": [worker.facts() for worker in self.workers],
        }  # fmt: skip
        write_json(self.folder.run_json, facts)

    def _settle(self) -> None:
        """Fold transferred parts into one per table; record which stretches and rows are missing."""
        if self._leases is not None and self.scenario.arrival.is_open and self.state == "running":
            self.not_leased = self._leases.not_leased()
        for number in list(self.part_receiver.rows):
            self.notes.extend(gevent.get_hub().threadpool.apply(self.part_receiver.fold, (number,)))
        self.part_receiver.close()
        for worker in list(self.workers):
            if worker.state == "starting":
                del self.workers.by_node[worker.node]
                name = worker.hello["name"]
                self.notes.append(f"worker {name} joined late and was not ready before the end")
            elif (
                self._leases is not None
                and self.scenario.arrival.is_open
                and self._has_holes(worker)
            ):
                worker.missing = self._leases.missing(
                    worker, request_ids(self.folder, worker.number)
                )
            if not (worker.delivered or worker.record.get("shared", True)):
                why = f" ({worker.record['refused']})" if worker.record.get("refused") else ""
                where = f"they are in {worker.record['folder']} on {worker.hello['host']}"
                how = "pass that folder to `tailgauge report` together with this one"
                self.notes.append(
                    f"rows of worker {worker.number} were not transferred{why}: {where}; {how}"
                )

    def _has_holes(self, worker: RunWorker) -> bool:
        """Whether some of its leases may have no row although the run was not cut short."""
        held_back = self.state == "running" and worker.record.get("counts", {}).get("not_reached")
        return worker.state in {"lost", "failed"} or worker.lacks_rows or bool(held_back)

    def _await(self, done: Callable[[], bool], seconds: float, complaint: str) -> None:
        deadline = monotonic_ns() + int(seconds * 1e9)
        while not done():
            if self._draining:
                raise self.failure or InterruptedRunError(
                    "the run was stopped before its first request"
                )
            for worker in self.workers:
                if self.workers.is_gone(worker):
                    who = f"worker {worker.number} on {worker.hello['host']}"
                    raise TailgaugeError(f"{who} ended before the start")
            if monotonic_ns() > deadline:
                raise TailgaugeError(f"{complaint} within {seconds:.0f} s")
            self._changed.clear()
            self._changed.wait(timeout=0.2)

    def snapshot(self) -> progress.Progress:
        """The run up to now, for the live display."""
        found = self._progress()
        found.objectives = self._objectives.judge(found.passed_s, found.traffic)
        return found

    def _progress(self) -> progress.Progress:
        known = self.workers.progress(self._passed_ns() / 1e9, self.scenario.stages.duration_s)
        schedule = self.settings.schedule
        known.planned = None if schedule.users is None else schedule.requests
        known.slots = self.scenario.arrival.max_concurrency
        return known

    handlers: ClassVar[Mapping[str, Callable[[Run, RunWorker, dict[str, Any]], None]]] = {
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


def lead_ns(workers: Sequence[RunWorker]) -> int:
    """Time from `go` to the first arrival: until then each worker has its start time and its first slice."""
    if all(worker.hello["child"] for worker in workers):
        return min(LEAD_NS, LOCAL_LEAD_NS + _EACH_NS * (len(workers) - 1))
    return LEAD_NS


def _slots(scenario: Scenario, workers: Sequence[RunWorker], worker: RunWorker) -> int | None:
    """This worker's share of the requests that may be in flight; None without such a limit."""
    most = scenario.arrival.max_concurrency
    if most is None:
        return None
    place = workers.index(worker)
    return most // len(workers) + (place < most % len(workers))


def refuses_late_join(scenario: Scenario, limit: Amount, workers: int) -> str | None:
    """Why a late joiner waits for the next run; `workers`: how many have the plan already. None if it can join."""
    if scenario.arrival.process == CLOSED:
        return "in a closed loop every user already has a worker"
    if scenario.arrival.max_concurrency is not None:
        return "the slots of the run were divided at its start"
    if limit != Amount(None, None, None):
        return "the limits of the run were divided at its start"
    if workers == 1 and any(traffic.cache for traffic in scenario.traffic.values()):
        return "the first worker tracks the prompt cache as its only writer"
    return None
