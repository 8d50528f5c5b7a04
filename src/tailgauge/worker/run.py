"""One run in one worker, from the plan to `drained`.

All rows are in files before the worker reports `drained`. A failure to record is reported at once and ends the run.
"""

from __future__ import annotations

import contextlib
import logging
import os
import platform
import time
from collections.abc import Callable, Collection
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

import gevent
from gevent.event import Event

from tailgauge import quantile_sketch
from tailgauge.call import MAIN, SECOND
from tailgauge.channel.clock_offset import EVERY_S, MasterClock
from tailgauge.channel.messages import Link
from tailgauge.clock import monotonic_ns
from tailgauge.errors import InternalError
from tailgauge.machine import NO_DESCRIPTORS
from tailgauge.patterns.pattern import Pattern
from tailgauge.patterns.table import pattern_of
from tailgauge.plan import preflight
from tailgauge.plan.input_bound import InputBound
from tailgauge.plan.preflight import Learnt, sizing
from tailgauge.plan.spend_limit import Amount, Guard
from tailgauge.plugins import plugin
from tailgauge.prompts import Maker
from tailgauge.prompts.words import run_salt
from tailgauge.protocols.protocol import SIMULATED, Adaptation
from tailgauge.protocols.table import Target
from tailgauge.protocols.target import Endpoint
from tailgauge.rows.disk import advice
from tailgauge.rows.recorder import Recorder, RecorderError
from tailgauge.rows.run_folder import RunFolder, write_json
from tailgauge.rows.schema import SCHEMA_VERSION
from tailgauge.scenario.model import Scenario, parse
from tailgauge.scenario.prices import Price
from tailgauge.schedule.sessions import Turn
from tailgauge.thresholds import VISIBLE_STALL_NS
from tailgauge.transport.connection import KERNEL_STAMPS
from tailgauge.transport.reader import COMPILED, POLLS, READER
from tailgauge.transport.stopwatch import Stopwatch
from tailgauge.worker import counters, health, part_sender, timers
from tailgauge.worker.attempts import Attempts
from tailgauge.worker.cache_diagnostics import CacheDiagnostics
from tailgauge.worker.cache_tracker import CacheBook
from tailgauge.worker.dispatcher import Dispatcher
from tailgauge.worker.kept_answers import KeptAnswers
from tailgauge.worker.preflight_calls import try_out

log = logging.getLogger("tailgauge")
FLUSH_EVERY = 4  # seconds between parts, writing included at most 5 s; multiplied by the pace
# Since the last part: from either on another part is due, whatever the pace.
MANY_CHUNKS = 1_000_000
MUCH_TEXT = 8 << 20
LOG_EVERY_S = 10
PARTING_S = 10.0  # a stopped worker takes to transfer its rows
_POLL_S = 0.05  # between checks of a transfer


class Task:
    """The run's endpoint, dispatcher, recorder and clock in this worker."""

    def __init__(
        self, link: Link, name: str, plan: dict[str, Any], out: Path, on_ended: Any
    ) -> None:
        self._link = link
        self._name = name
        self._plan = plan
        run = plan["run"]
        self.run_id: str = run["run_id"]
        self.number: int = plan["worker"]
        self.scenario = parse(run["scenario"], "the plan")
        self.folder = _folder(plan, out)
        self.folder.create()
        self.counters = counters.Counters()
        self.part_sender = part_sender.PartSender(partial(self._send, "part"))
        on_part = None if self._shared else self.part_sender.add
        self.recorder = Recorder(self.folder, self.number, on_part, compacts=self._shared)
        target = self.scenario.target
        limits = self.scenario.limits
        self._reader = self.scenario.reader if COMPILED else "python"
        self._transports: list[Stopwatch] = []
        self.urls: list[str] = []  # of the targets
        targets = zip((MAIN, SECOND), self.scenario.targets.items(), strict=False)
        endpoints = {name: self._endpoint(run[table]["url"], one) for name, (table, one) in targets}
        cache = CacheBook.of(self.scenario, alone=plan["alone"], simulated=target.url == SIMULATED)
        deadline_s = limits.attempt_deadline_s
        self.attempts = Attempts(
            self.run_id, endpoints, self.recorder, self.counters, deadline_s, cache
        )
        self.attempts.diagnostics = CacheDiagnostics.of(self.scenario)
        self._keep_answers()
        self._prices = {model: Price.of_plain(price) for model, price in plan["prices"].items()}
        self.attempts.on_exhausted = self._on_exhausted
        self.attempts.on_bug = self._on_bug
        self._limits = health.ProcessLimits()
        self._salt = "" if self.scenario.repeat_prompts else run_salt(self.run_id)
        self._makers: dict[str, Maker] = {}
        self._unmarked: frozenset[str] = frozenset()  # targets whose engines cache without marks
        self._learn(Learnt())
        self.dispatcher = Dispatcher(
            self.scenario,
            self._makers,
            self.attempts,
            self.recorder,
            self.counters,
            on_ended,
            self.on_error,
        )
        self.clock = MasterClock(lambda t0: self._send("ping", {"t0": t0}), plan["boot_id"])
        self._clock_now: dict[str, int | None] = {}
        self.task_errors: dict[
            str, int
        ] = {}  # of Locust's users: what a task raised, and how often
        self.finished = Event()
        self._delivered = Event()
        self._draining = False
        self._closing = False  # nothing more is recorded
        self.master_gone = False
        self._state = "running"
        self._why: str | None = None
        self._reporter: Any = None
        self._health: health.Health | None = None
        self._last_second = {"cpu": 0.0, "stalled_s": 0.0}
        self._chunks_recorded = 0
        self._master_start_ns: int | None = None
        self._cpu_s: dict[str, float] = {}

    def _keep_answers(self) -> None:
        if self.scenario.keep_answers is None:
            return
        path = self.folder.answers(self.number)
        self.attempts.answers = KeptAnswers(path, self.scenario.keep_answers)

    def _endpoint(self, url: str, target: Target) -> Endpoint:
        """A target at its address with a separate connection pool."""
        limits = self.scenario.limits
        transport = Stopwatch(
            idle_connections=target.connections, ca_file=target.ca_file,
            connect_timeout_s=limits.connect_timeout_s, send_timeout_s=limits.attempt_deadline_s,
            user_clock=self.scenario.clock == "user", reader=self._reader,
        )  # fmt: skip
        self._transports.append(transport)
        self.urls.append(url)
        tables = {name: table.adds for name, table in self.scenario.traffic.items()}
        return Endpoint(url, target, transport, tables)

    # --- from plan to go --------------------------------------------------------------------------------------

    def prepare(self) -> None:
        """Measure the clock offset, write this worker's record, and report ready."""
        self.recorder.warm_up()
        self.attempts.warm_up()
        self._limits.check(self.scenario)
        self.clock.measure()
        self._write_record()
        self._clock_now = self.clock.offset()
        to_master_ns = self._clock_now["offset_ns"] or 0
        self.recorder.origin.wall_offset_ns = to_master_ns + self._plan["wall_offset_ns"]
        facts = {"clock": self._clock_now, "shared": self._shared, "folder": str(self.folder.path)}
        self._send("ready", facts)

    @property
    def _shared(self) -> bool:
        """Whether this worker writes into the master's run folder; else it transfers its parts."""
        return str(self.folder.path) == str(self._plan["folder"])

    def _send(self, kind: str, data: dict[str, Any]) -> None:
        self._link.send(kind, {"run": self.run_id, "worker": self.number, **data})

    def _learn(self, learnt: Learnt, unmarked: Collection[str] | None = None) -> dict[str, Maker]:
        """Makers that size prompts by the tokens that the target counts; `unmarked`: targets that get no cache marks."""
        if unmarked is not None:
            self._unmarked = frozenset(unmarked)
        seed = self.scenario.seed
        words = 1 / learnt.tokens_per_word
        overhead = learnt.overhead_tokens
        make = partial(Maker, run=self._salt, words=learnt.words)
        for name, traffic in self.scenario.traffic.items():
            marks = self.scenario.marks(traffic, self._unmarked)
            self._makers[name] = make(seed, traffic, name, words, overhead, marks=marks)
        return self._makers

    def preflight(self) -> None:
        """Make the calls before the run and report their results."""
        try:
            tried = try_out(
                self.scenario, self.attempts, self.recorder, self._prices, self._learn, salt=self._salt,
                notify=lambda text: self._send("waiting", {"text": text}),
            )  # fmt: skip
        except Exception as error:  # noqa: BLE001 - whatever it is, the master waits for an answer
            failure = plugin.failure(error)
            log.warning("the preflight could not be made: %s", failure)
            is_ours = isinstance(failure, InternalError)
            self._send("failed", {"why": str(failure), "target": False, "internal": is_ours})
            return
        self._send("tried", tried)

    def preopen(self) -> None:
        """Open the scenario's number of connections before the run and report failures."""
        targets = self.scenario.targets.values()
        missing = []
        for transport, url, target in zip(self._transports, self.urls, targets, strict=True):
            if wanted := target.preopened:
                opened, why = transport.preopen(url, wanted)
                if why or opened < wanted:
                    why = why or "the target closed the others"
                    missing.append(
                        f"{opened:,} of {wanted:,} connections to {url} are open ({why})"
                    )
        self._send("opened", {"missing": missing})

    def go(self, data: dict[str, Any]) -> None:
        """Begin at an absolute time of the master's clock, with the results of the preflight."""
        learnt = Learnt(*data["learnt"])
        limit = Amount.of_plain(data["limit"])
        adaptations = {name: Adaptation(*plain) for name, plain in data["adaptations"].items()}
        self._learn(learnt, preflight.unmarked(adaptations))
        self.attempts.adapt(adaptations)
        self.attempts.use_engines(data["engines"])
        self.attempts.input_bound = InputBound.learnt(self.scenario, learnt)
        self._guard(limit, learnt)
        self._plan["run"] |= learnt.facts(self.scenario)
        log.info("joined run %s as worker %d", self.run_id, self.number)
        names = ", ".join(
            f"{name} ({each.pattern})" for name, each in self.scenario.traffic.items()
        )
        load = self.scenario.arrival.load
        stages = self.scenario.stages
        load += "" if stages.is_endless else f" for {stages.duration_s:g} s"
        sends = "sends" if self._plan["alone"] else "sends a share of"
        log.info("%s %s to %s: %s", sends, load, ", ".join(self.urls), names)
        self._master_start_ns = data["start_at_ns"]
        start_at_ns = data["start_at_ns"] - (self.clock.offset()["offset_ns"] or 0)
        self._write_record()
        self._health = health.Health(self.counters, self._transports)
        self._health.freeze()
        self.dispatcher.has_stalled = self._health.has_stalled
        self.dispatcher.slots = data["slots"]
        self.dispatcher.on_done = partial(gevent.spawn, self._report_counters)
        if self._reader == "python":
            POLLS.start(timers.hub_ticks)
        gevent.spawn_later(
            max(0.0, (start_at_ns - monotonic_ns()) / 1e9), self._note_cpu, "at_start"
        )
        gevent.spawn(self.dispatcher.run, start_at_ns)
        self._reporter = gevent.spawn(self._report)
        self._link.beat(self.finished.is_set, self._plan["pace"])

    def _guard(self, limit: Amount, learnt: Learnt) -> None:
        """Keep to this worker's share of the limits: the guard decides about each call."""
        if limit == Amount(None, None, None):
            return
        size = sizing(self.scenario, learnt)
        on_limit = partial(gevent.spawn, self._on_guarded)
        self.attempts.guard = guard = Guard(limit, size, self._prices, on_limit)
        self.dispatcher.admits = begins(self.scenario, guard)

    def _note_cpu(self, moment: str) -> None:
        self._cpu_s[moment] = time.process_time()

    def _on_guarded(self, limit: str) -> None:
        self.dispatcher.stop()
        self._send("guarded", {"limit": limit})

    # --- while it runs ----------------------------------------------------------------------------------------

    def _report(self) -> None:
        """Every second until the end of the drain; a worker without this message or a pulse counts as lost."""
        second = 0
        due = monotonic_ns()
        pace = self._plan["pace"]
        while not self.finished.is_set():
            due += 1_000_000_000
            gevent.sleep(max(0.0, (due - monotonic_ns()) / 1e9))
            second += 1
            if second % EVERY_S == 0:
                self._do(self._look_at_clock)
            if not self._closing:
                self._do(partial(self._tick, flush=second % (FLUSH_EVERY * pace) == 0))
            self._do(self.part_sender.pump)
            if second % pace == 0:
                self._do(self._report_counters)
            if second % LOG_EVERY_S == 0:
                log.info("%d s: %s", second, self.counters.text())

    def _do(self, duty: Callable[[], object]) -> None:
        """One duty of the loop. Whatever becomes of it, the others follow: without them the worker would count as lost."""
        try:
            duty()
        except RecorderError as error:
            self._fail(str(error))
        except Exception as error:  # noqa: BLE001 - it ends the run in order
            self.on_error(error)

    def _look_at_clock(self) -> None:
        if not self.clock.is_same_clock:
            self._clock_now = self.clock.offset()
            self.clock.ping()

    def _report_counters(self) -> None:
        self._send("counters", self._counters_message())

    def _tick(self, *, flush: bool) -> None:
        self.attempts.decode_open()
        self._close_second()
        much = self.recorder.text_size > MUCH_TEXT
        if flush or much or self.counters.chunks - self._chunks_recorded > MANY_CHUNKS:
            self._chunks_recorded = self.counters.chunks
            self.attempts.record_open()
            self.recorder.flush()
        self.recorder.check()
        if self.attempts.answers is not None:
            self.attempts.answers.check()
        if self._limits.is_short():
            self.on_error(MemoryError())

    def _close_second(self) -> None:
        assert self._health is not None
        row = self._health.row(self.attempts.in_flight(), self.recorder.waiting_rows)
        self.recorder.health(row)
        late_ns = max(row.loop_lag_max_ns, row.dispatch_late_max_ns)
        stalled_s = late_ns / 1e9 if late_ns > VISIBLE_STALL_NS else 0.0
        self._last_second = {"cpu": row.cpu_share, "stalled_s": stalled_s}

    def _counters_message(self) -> dict[str, Any]:
        counters = self.counters
        return {
            "counts": counters.as_message(), "in_flight": counters.in_flight, "waiting": counters.waiting, "slot_wait_ns": self.dispatcher.slot_wait_ns,
            "chunks": counters.chunks, "rejections": asdict(counters.rejections),
            "traffic": [[*key, of.as_message()] for key, of in counters.traffic.items()],
            "watch": {"delays": quantile_sketch.packed(counters.delays), **self._last_second},
            "clock": self._clock_now, "unshipped": self.part_sender.waiting,
        }  # fmt: skip

    def delivered(self) -> None:
        """The master has every row: delete this worker's copy. Other workers may share the folder."""
        if self.finished.is_set() and not self._shared:
            self._delivered.set()
            parts = self.folder.path.glob(f"*/part-{self.number}-*")
            for path in (*parts, self.folder.worker_json(self.number)):
                path.unlink(missing_ok=True)
            folders = [path for path in self.folder.path.iterdir() if path.is_dir()]
            for folder in (*folders, self.folder.path, self.folder.path.parent):
                with contextlib.suppress(OSError):  # not empty: of another worker
                    folder.rmdir()

    def on_error(self, error: BaseException) -> None:
        """End the run: a fault of ours, or no memory."""
        if isinstance(error, MemoryError):
            self._fail(self._limits.no_memory())
            self.dispatcher.hurry()  # whoever lost an event would be waited for
        elif isinstance(error, OSError) and error.errno in NO_DESCRIPTORS:
            self._fail(advice(error, self.folder.path))
        elif isinstance(error, Exception) and self._state == "running":
            failure = plugin.failure(error)
            self._fail(str(failure), is_internal=isinstance(failure, InternalError))
            self.dispatcher.hurry()  # a request may never end

    def _on_bug(self, error: Exception) -> None:
        """A call could not be prepared: that is our fault and not the target's."""
        gevent.spawn(self.on_error, error)

    def _on_exhausted(self, why: str) -> None:
        limit = self.scenario.limits.in_flight_per_worker
        gevent.spawn(self._fail, f"{why}, or lower limits.in_flight_per_worker ({limit:,})")

    def _fail(self, why: str, *, is_internal: bool = False) -> None:
        if self._state == "running":
            self._state = "failed"
            self._why = why
            self.dispatcher.stop()
            self._send("failed", {"why": why, "target": False, "internal": is_internal})

    # --- the end ----------------------------------------------------------------------------------------------

    def drain(self, seconds: float, *, sends: bool = True, serves: bool = False) -> None:
        """Admit no more, wait for open requests, write everything, report. A second call does nothing.

        Without `sends` the open requests may not make another call either. If it `serves`, those that wait for a slot go on.
        """
        if self._draining:
            return
        self._draining = True
        self._step(lambda: self._end_requests(seconds, sends=sends, serves=serves))
        self._closing = True
        if not self.clock.is_same_clock:
            self.clock.measure()
        if self._health is not None:
            self._step(self._close_second)
            self._step(self._health.close)
        for transport in self._transports:  # what they hold open, the last parts may need
            transport.close()
        self._step(self._close_recorder)
        if self._state == "running":
            self._state = "drained"
        self._close_answers()
        POLLS.stop()
        self._note_cpu("at_end")
        self._transfer_parts()
        self.finished.set()
        if self._reporter is not None:
            self._reporter.kill()
        self._write_record()
        is_sent = not (self._shared or self.part_sender.unshipped)
        where = "sent to the master" if is_sent else f"in {self.folder.path}"
        log.info("worker %d done: %s; rows are %s", self.number, self.counters.text(), where)
        self._send("drained", {**self._counters_message(), "record": self._record()})

    def _step(self, action: Callable[[], object]) -> None:
        """Take a step of the end. A fault of ours in it is reported, and the other steps follow."""
        try:
            action()
        except Exception as error:  # noqa: BLE001 - the master learns of it
            log.warning("a step of the end failed: %s", error)
            self.on_error(error)

    def _end_requests(self, seconds: float, *, sends: bool, serves: bool) -> None:
        if sends:
            self.dispatcher.send_due()
        self.dispatcher.stop(sends=sends, serves=serves)
        self.dispatcher.drain(seconds)

    def _close_recorder(self) -> None:
        """Write the rows that are left."""
        try:
            self.recorder.close()
        except RecorderError as error:
            self._state = "failed"
            self._why = "; ".join(filter(None, (self._why, str(error))))

    def _close_answers(self) -> None:
        """Write what is left of the raw answers that are kept."""
        if self.attempts.answers is None:
            return
        try:
            self.attempts.answers.close()
        except RecorderError as error:
            self._state = "failed"
            self._why = "; ".join(filter(None, (self._why, str(error))))

    def leave(self, reason: str, *, master_gone: bool) -> None:
        """End now: close open requests, and transfer the rows if the master accepts them soon."""
        self._why = reason
        self.master_gone = master_gone
        give_up = gevent.spawn_later(PARTING_S, setattr, self, "master_gone", True)
        self.dispatcher.hurry()
        self.drain(0.0)
        if not (self.master_gone or self._shared):
            self._delivered.wait(timeout=PARTING_S)
        give_up.kill()

    @property
    def is_delivered(self) -> bool:
        """Whether the master has every row."""
        return self._delivered.is_set() or (self._shared and not self.master_gone)

    def _transfer_parts(self) -> None:
        """Wait until the master has every part that it accepts, or is gone."""
        while self.part_sender.waiting and not self.master_gone:
            self.part_sender.pump()
            gevent.sleep(_POLL_S)
        if (why := self.part_sender.refused) is not None:
            log.warning("the master refused %s: %s", ", ".join(self.part_sender.unshipped), why)

    def _record(self) -> dict[str, Any]:
        sender = self.part_sender
        recorder = self.recorder
        answers = self.attempts.answers
        return {
            "schema_version": SCHEMA_VERSION,
            "worker": self.number, "name": self._name, "host": platform.node(), "pid": os.getpid(),
            "state": self._state, "why": self._why, "clock": self.clock.offset(), "reader": self._reader,
            "priority": READER.priority,
            "stamps": "kernel" if KERNEL_STAMPS and self.scenario.clock == "kernel" else "user",
            "counts": self.counters.as_message(),
            "rows": dict(recorder.written), "unwritten": dict(recorder.unwritten), "shared": self._shared,
            "unshipped": sender.unshipped, "refused": sender.refused,
            "faults": list(self.dispatcher.faults.texts.values()), "task_errors": dict(self.task_errors),
            "remarks": list(recorder.remarks),
            "answers": None if answers is None else answers.written,
            "folder": str(self.folder.path), "cpu_s": {**self._cpu_s, "writer": recorder.cpu_s},
        }  # fmt: skip

    def _write_record(self) -> None:
        run = {**self._plan["run"], "start_at_ns": self._master_start_ns}
        try:
            write_json(self.folder.worker_json(self.number), {**self._record(), "run": run})
        except OSError as error:
            self._state = "failed"
            self._why = self._why or f"{self.folder.path}: cannot be written: {error.strerror}"


def _folder(plan: dict[str, Any], out: Path) -> RunFolder:
    """The master's run folder if this worker can see it, else one of the same name in `out`."""
    shared = RunFolder(Path(plan["folder"]))
    try:
        if shared.mark.read_text() == plan["mark"]:
            return shared
    except OSError as error:
        log.info(
            "the master's run folder is not on this machine (%s): parts are transferred",
            error.strerror,
        )
    return RunFolder((out / "runs" / Path(plan["run"]["run_id"]).name).resolve())


def begins(scenario: Scenario, guard: Guard) -> Callable[[Turn], bool]:
    """Whether the limits allow the first calls of a request; only stops one whose first calls could not be sent."""
    patterns = {name: pattern_of(traffic) for name, traffic in scenario.traffic.items()}
    one_each = {
        name
        for name, pattern in patterns.items()
        if type(pattern).first_calls is Pattern.first_calls
    }

    def admits(turn: Turn) -> bool:
        if not turn.prompts:  # at the in-flight cap: it is dropped, unless nothing more may be sent
            return guard.admits((), "", more_calls=1)
        if guard.is_of_calls_only and turn.asked.traffic in one_each:
            return guard.admits_calls(len(turn.prompts))  # without making them
        pattern = patterns[turn.asked.traffic]
        calls, more = pattern.first_calls(turn.prompts, turn.asked.output_tokens)
        return guard.admits(calls, scenario.model_of(pattern.traffic), more_calls=more)

    return admits
