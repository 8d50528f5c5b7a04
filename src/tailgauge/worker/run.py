"""One run in one worker, from the plan to `drained`.

All rows are in files before the worker reports `drained`. A failure to record is reported at once and ends the run.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import gevent

from tailgauge.channel.messages import Link
from tailgauge.clock import monotonic_ns
from tailgauge.errors import InternalError
from tailgauge.plan import preflight
from tailgauge.plan.input_bound import InputBound
from tailgauge.plan.preflight import Learnt, sizing
from tailgauge.plan.spend_limit import Amount, Guard
from tailgauge.plugins import plugin
from tailgauge.protocols.protocol import Adaptation
from tailgauge.rows.recorder import Recorder, RecorderError
from tailgauge.transport.reader import POLLS
from tailgauge.worker import timers
from tailgauge.worker.admission import admission
from tailgauge.worker.housekeeping import Housekeeping
from tailgauge.worker.kept_answers import KeptAnswers
from tailgauge.worker.preflight_calls import try_out
from tailgauge.worker.run_parts import RunParts
from tailgauge.worker.run_record import RunRecord

log = logging.getLogger("tailgauge")
PARTING_S = 10.0  # a stopped worker takes to transfer its rows


class WorkerRun(RunParts):
    """One run in this worker: the order in which its parts work.

    The master's messages call the methods: `prepare`, `preflight` and `preopen` before the start, `go` at the start, `drain`
    at the end.
    """

    def __init__(
        self,
        link: Link,
        name: str,
        plan: dict[str, Any],
        out: Path,
        on_ended: Callable[[str, str, float], None],
    ) -> None:
        super().__init__(link, plan, out, on_ended)
        self.housekeeping = Housekeeping(self, plan["pace"])
        self._record = RunRecord(self, name)
        self._draining = False

    # --- before the start -------------------------------------------------------------------------------------

    def prepare(self) -> None:
        """Measure the clock offset, write this worker's record, and report ready."""
        self.recorder.warm_up()
        self.attempts.warm_up()
        self.state.limits.check(self.scenario)
        self.clock.measure()
        self._record.write()
        offset = self.clock.offset()
        self.housekeeping.clock_offset = offset
        to_master_ns = offset["offset_ns"] or 0
        self.recorder.origin.wall_offset_ns = to_master_ns + self.plan["wall_offset_ns"]
        is_shared = self.delivery.is_shared
        folder = str(self.folder.path)
        self.send("ready", {"clock": offset, "shared": is_shared, "folder": folder})

    def preflight(self) -> None:
        """Make the calls before the run and report their results."""
        try:
            results = try_out(
                self.scenario,
                self.attempts,
                self.recorder,
                self.prices(),
                self.prompts.learn,
                salt=self.prompts.salt,
                notify=lambda text: self.send("waiting", {"text": text}),
            )
        except Exception as error:  # noqa: BLE001 - whatever it is, the master waits for an answer
            failure = plugin.failure(error)
            log.warning("the preflight could not be made: %s", failure)
            is_internal = isinstance(failure, InternalError)
            self.send("failed", {"why": str(failure), "target": False, "internal": is_internal})
            return
        self.send("tried", results)

    def preopen(self) -> None:
        """Open the scenario's number of connections before the run and report failures."""
        self.send("opened", {"missing": self.targets.preopen()})

    # --- the start --------------------------------------------------------------------------------------------

    def go(self, data: dict[str, Any]) -> None:
        """Begin at an absolute time of the master's clock, with the results of the preflight; returns before that time.

        `data`: the master's message. `learnt`: of the preflight; `limit`: this worker's share of the
        limits; `slots`: of requests in flight, or None; `start_at_ns`: by the master's clock.
        """
        learnt = Learnt(*data["learnt"])
        self._use_preflight_results(learnt, data)
        self._set_guard(Amount.of_plain(data["limit"]), learnt)
        self.plan["run"] |= learnt.facts(self.scenario)
        self._log_plan()
        self._record.start_at_ns = data["start_at_ns"]
        # On this worker's clock; the offset is the master's clock less this one, None until it is measured.
        start_at_ns = data["start_at_ns"] - (self.clock.offset()["offset_ns"] or 0)
        self._record.write()
        # From now on the health of this process is sampled.
        self.dispatcher.has_stalled = self.housekeeping.prepare().has_stalled
        self.dispatcher.most_in_flight = data["slots"]
        self.dispatcher.on_done = partial(gevent.spawn, self.housekeeping.report_counters)
        if self.targets.reader == "python":
            # The hub reads the sockets: it must see them often, to bound when something came.
            POLLS.start(timers.hub_ticks)
        wait_s = max(0.0, (start_at_ns - monotonic_ns()) / 1e9)
        gevent.spawn_later(wait_s, self._record.note_cpu, "at_start")
        gevent.spawn(self.dispatcher.run, start_at_ns)
        self.housekeeping.start()
        # A thread sends pulses, so that a busy worker does not count as lost.
        self.link.beat(self.finished.is_set, self.plan["pace"])

    def _use_preflight_results(self, learnt: Learnt, data: dict[str, Any]) -> None:
        """Send what the preflight has found that the targets take, in the sizes that they count."""
        adaptations = {name: Adaptation(*plain) for name, plain in data["adaptations"].items()}
        self.prompts.learn(learnt, preflight.unmarked(adaptations))
        self.attempts.adapt(adaptations)
        self.attempts.use_engines(data["engines"])
        self.attempts.input_bound = InputBound.learnt(self.scenario, learnt)

    def _set_guard(self, limit: Amount, learnt: Learnt) -> None:
        """Keep to this worker's share of the limits: the guard decides about each call."""
        if limit == Amount(None, None, None):
            return
        on_limit = partial(gevent.spawn, self._on_limit)
        guard = Guard(limit, sizing(self.scenario, learnt), self.prices(), on_limit)
        self.attempts.guard = guard
        self.dispatcher.admits = admission(self.scenario, guard)

    def _on_limit(self, limit: str) -> None:
        self.dispatcher.stop()
        self.send("guarded", {"limit": limit})

    def _log_plan(self) -> None:
        """Log what this worker is about to send."""
        log.info("joined run %s as worker %d", self.run_id, self.number)
        tables = self.scenario.traffic.items()
        names = ", ".join(f"{name} ({table.pattern})" for name, table in tables)
        load = self.scenario.arrival.load
        stages = self.scenario.stages
        if not stages.is_endless:
            load += f" for {stages.duration_s:g} s"
        sends = "sends" if self.plan["alone"] else "sends a share of"
        log.info("%s %s to %s: %s", sends, load, ", ".join(self.targets.urls), names)

    # --- the end ----------------------------------------------------------------------------------------------

    def drain(self, seconds: float, *, sends: bool = True, serves: bool = False) -> None:
        """Admit no more, wait for open requests, write everything, and send `drained`. A second call does nothing.

        It blocks for `seconds` and the time to close what is open then. Without `sends` the open requests
        may not make another call either. If it `serves`, those that wait for a slot go on. An error in a
        step is reported, and the next step follows.
        """
        if self._draining:
            return
        self._draining = True
        self._step(lambda: self._end_requests(seconds, sends=sends, serves=serves))
        self.housekeeping.closing = True
        if not self.clock.is_same_clock:
            self.clock.measure()
        health = self.housekeeping.health
        if health is not None:
            self._step(self.housekeeping.close_second)
            self._step(health.close)
        self.targets.close()  # the last parts may need the descriptors
        self._step(partial(self._close, self.recorder))
        self.state.end()
        if self.attempts.answers is not None:
            self._close(self.attempts.answers)
        POLLS.stop()
        self._record.note_cpu("at_end")
        # Returns when the master has all parts that it accepts, or is gone.
        self.delivery.send_parts()
        self.finished.set()
        self.housekeeping.stop()
        self._record.write()
        sent = self.counters.text()
        log.info("worker %d done: %s; rows are %s", self.number, sent, self.delivery.place)
        counters = self.housekeeping.counters_message()
        self.send("drained", {**counters, "record": self._record.as_message()})

    def _step(self, action: Callable[[], object]) -> None:
        """Take a step of the end. A fault of ours in it is reported, and the other steps follow."""
        try:
            action()
        except Exception as error:  # noqa: BLE001 - the master learns of it
            log.warning("a step of the end failed: %s", error)
            self.state.on_error(error)

    def _end_requests(self, seconds: float, *, sends: bool, serves: bool) -> None:
        if sends:
            self.dispatcher.send_due()
        self.dispatcher.stop(sends=sends, serves=serves)
        self.dispatcher.drain(seconds)

    def _close(self, file: Recorder | KeptAnswers) -> None:
        """Write what is left of rows or of raw answers."""
        try:
            file.close()
        except RecorderError as error:
            self.state.lose_rows(str(error))

    def leave(self, reason: str, *, master_gone: bool) -> None:
        """End now: close open requests, and transfer the rows if the master accepts them soon."""
        self.state.reason = reason
        self.delivery.master_gone = master_gone
        patience = gevent.spawn_later(PARTING_S, self.delivery.give_up)
        self.dispatcher.hurry()
        self.drain(0.0)
        self.delivery.wait(PARTING_S)
        patience.kill()

    def delivered(self) -> None:
        """Delete this worker's copy of its rows, because the master has every row."""
        if self.finished.is_set() and not self.delivery.is_shared:
            self.delivery.delete_copy()
