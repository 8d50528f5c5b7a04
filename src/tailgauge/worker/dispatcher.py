"""Dispatches arrivals at their absolute times, whatever happened to earlier ones (open loop).

A late arrival keeps its scheduled time; at the in-flight cap it is recorded as client_drop and never queued. Without
another slice the worker idles. The next turn of a session is scheduled when the previous one has ended, and is an arrival
like any other from then on.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import gevent
from gevent import get_hub, getcurrent
from gevent.event import Event as Signal

from tailgauge.clock import monotonic_ns
from tailgauge.patterns.events import Request
from tailgauge.patterns.pattern import Pattern
from tailgauge.patterns.table import pattern_of
from tailgauge.prompts import Maker
from tailgauge.rows.schema import CENSORED, CLIENT_DROP, OK
from tailgauge.schedule.schedule import Planned
from tailgauge.schedule.sessions import Turn, conversation, draw, following, requests_in
from tailgauge.worker.attempt_row import RequestRef, request_row
from tailgauge.worker.attempts import Attempts
from tailgauge.worker.concurrency_gate import Gates
from tailgauge.worker.counters import Counters
from tailgauge.worker.driver import Drive
from tailgauge.worker.timers import WaitTimer, yield_to_hub

if TYPE_CHECKING:
    from tailgauge.rows.recorder import Recorder
    from tailgauge.scenario.model import Scenario

AT_ONCE = 20  # prompts made, or late arrivals sent, before open streams are read
LATE_S = 1.0  # at the end of the run a worker that is no later than this catches up
CLOSING_S = 5.0  # beyond the connect time-out: an abort does not interrupt a connect in progress
_POLL_S = 0.02  # between checks for open requests


@dataclass(frozen=True, slots=True)
class TrafficRuntime:
    """A traffic table in this worker: its pattern and the gates of its requests."""

    pattern: Pattern
    gates: Gates


class Dispatcher:
    """Dispatches one worker's leases. `makers` make the prompts of each traffic table."""

    def __init__(
        self,
        scenario: Scenario,
        makers: Mapping[str, Maker],
        attempts: Attempts,
        recorder: Recorder,
        counters: Counters,
        on_ended: Callable[[str, str, float], None],
        on_bug: Callable[[BaseException], None],
    ) -> None:
        self._scenario, self._makers, self._attempts = scenario, makers, attempts
        self._recorder, self._counters = recorder, counters
        self._on_ended, self._on_bug = on_ended, on_bug
        self._kinds = {
            name: TrafficRuntime(pattern_of(traffic), Gates()) for name, traffic in scenario.traffic.items()
        }
        self._until_ns = int(scenario.stages.duration_s * 1e9)
        self._waiting: list[Turn] = []
        self._coming: list[Turn] = []  # later turns without prompts yet
        self._open: set[Drive] = set()
        self._timer = WaitTimer()
        self._more, self._to_make = Signal(), Signal()
        self._stopped = self._hurried = False
        self.start_at_ns = 0
        self.admits: Callable[[Turn], bool] = lambda _: True  # False: a limit of the run is reached

    def lease(self, rows: Iterable[Sequence[Any]]) -> None:
        """Take arrivals of a slice (`schedule.Planned`) and make their prompts."""
        planned = [Planned(*row) for row in rows]
        self._counters.leased += requests_in(planned)
        if self._stopped:
            self._counters.not_reached += requests_in(planned)
            return
        self._make([Turn.first(row) for row in planned])

    def run(self, start_at_ns: int) -> None:
        """Dispatch until `stop`; `start_at_ns` is the start of the run on this worker's clock."""
        self.start_at_ns = start_at_ns
        gevent.spawn(self._make_coming)
        in_a_row = 0
        while not self._stopped:
            if not self._waiting:
                self._more.clear()
                self._more.wait()
                continue
            due = start_at_ns + self._waiting[0].at_ns
            if due > monotonic_ns():
                in_a_row = 0
                self._timer.wait_until(due)
                continue
            self._dispatch(heapq.heappop(self._waiting))
            in_a_row += 1
            if in_a_row % AT_ONCE == 0:
                yield_to_hub()

    def send_due(self) -> None:
        """Send what is due by now, if it is not far behind: the end of the run comes between two arrivals."""
        now_ns, late_ns = monotonic_ns(), int(LATE_S * 1e9)
        while not self._stopped and monotonic_ns() - now_ns < late_ns:
            due_ns = self.start_at_ns + self._waiting[0].at_ns if self._waiting else 0
            if not (now_ns - late_ns < due_ns <= now_ns or self._coming):
                return
            gevent.sleep(_POLL_S)

    def stop(self) -> None:
        """Admit no more; count leased arrivals that were not reached."""
        if not self._stopped:
            self._stopped = True
            counters = self._counters  # a slice may be half taken, so the queue is not all of it
            counters.not_reached = counters.leased - counters.dispatched - counters.client_drop
            self._more.set()
            self._to_make.set()
            self._timer.wake()

    def drain(self, seconds: float) -> None:
        """Wait for open requests, then close the rest as censored."""
        if not self._hurried:
            self._wait_until_closed(monotonic_ns() + int(seconds * 1e9))
        patience = monotonic_ns() + int((self._scenario.limits.connect_timeout_s + CLOSING_S) * 1e9)
        while self._is_open and monotonic_ns() < patience:
            self._censor()  # repeatedly: a greenlet may open its call late
            gevent.sleep(_POLL_S)
        for drive in list(self._open):
            drive.give_up()
        self._timer.close()

    def hurry(self) -> None:
        """Admit no more and close open requests now."""
        self._hurried = True
        self.stop()
        self._censor()

    # --- one request ------------------------------------------------------------------------------------------

    def _dispatch(self, turn: Turn) -> None:
        if not self.admits(turn):
            self.stop()
            return
        scheduled = self.start_at_ns + turn.at_ns
        stage = self._scenario.stages.stage_at(turn.at_ns / 1e9)
        counters = self._counters
        counters.leased += turn.is_closed
        if counters.in_flight >= self._scenario.limits.in_flight_per_worker:
            counters.client_drop += 1
            self._recorder.request(request_row(self._scenario, turn, stage, scheduled, None, CLIENT_DROP))
            self._follow(turn, CLIENT_DROP, monotonic_ns(), None)
            yield_to_hub()  # many drops in a row must not delay reading open streams
            return
        counters.dispatched += 1
        counters.in_flight += 1
        dispatched = monotonic_ns()
        counters.second.dispatched(dispatched - scheduled)

        def over(drive: Drive) -> None:
            self._over(turn, stage, scheduled, dispatched, drive)

        drive = self._drive(self._kinds[turn.asked.traffic], turn, stage, scheduled, over)
        self._open.add(drive)
        drive.begin()

    def _drive(
        self, kind: TrafficRuntime, turn: Turn, stage: str, scheduled: int, over: Callable[[Drive], None]
    ) -> Drive:
        seed, request_id = self._scenario.seed, turn.request_id
        tokens = turn.asked.output_tokens
        request = Request(request_id, scheduled, turn.prompts, tokens, draw(seed, request_id), seed)
        origin = RequestRef(request_id, stage, turn.asked.traffic, scheduled)
        return Drive(kind.pattern.steps(request), origin, self._attempts, kind.gates, over)

    def _over(self, turn: Turn, stage: str, scheduled: int, dispatched: int, drive: Drive) -> None:
        """A request has ended; runs where its last event happened, be that the hub."""
        assert drive.done is not None
        self._open.discard(drive)
        ended, counters = drive.done.ended, self._counters
        counters.in_flight -= 1
        ended_at = self._ended(turn, stage, scheduled, dispatched, drive)
        if ended == CENSORED:
            counters.censored += 1
            counters.not_due += turn.rest
            return
        counters.end(ended)
        self._follow(turn, ended, ended_at, drive.done.text)
        e2e_ms = (ended_at - scheduled) / 1e6
        counters.of(turn.asked.traffic, drive.target).end_request(ended, e2e_ms if ended == OK else None)
        outcome = (turn.planned.traffic, ended, e2e_ms)
        if getcurrent() is get_hub():
            gevent.spawn(self._on_ended, *outcome)  # a listener of Locust's may wait, the hub must not
        else:
            self._on_ended(*outcome)

    def _ended(self, turn: Turn, stage: str, scheduled: int, dispatched: int, drive: Drive) -> int:
        """Write the row; returns when the request ended."""
        done, now = drive.done, monotonic_ns()
        assert done is not None
        row = request_row(self._scenario, turn, stage, scheduled, dispatched, done.ended)
        row.legs, row.attempts, row.winner = len(drive.calls), drive.attempts, done.winner
        row.joined_at_ns, row.hedge_held = done.joined_at_ns, done.hedge_held
        row.ended_at_ns = None if done.ended == CENSORED else now
        self._recorder.request(row)
        if drive.bug is not None:
            self._on_bug(drive.bug)
        return now

    # --- what follows it --------------------------------------------------------------------------------------

    def _follow(self, turn: Turn, ended: str, ended_at: int, answer: str | None) -> None:
        """Plan the next turn of the session, unless it is due after the end of the run."""
        traffic = self._scenario.traffic[turn.planned.traffic]
        since_start = ended_at - self.start_at_ns
        coming = following(turn, ended, since_start, self._scenario.seed, self._scenario.arrival, traffic)
        if coming is None or coming.at_ns >= self._until_ns:
            self._counters.not_due += turn.rest
            return
        if self._stopped:
            return
        if traffic.session.grow and not turn.is_closed:
            coming.history = conversation(turn, answer)
        self._coming.append(coming)
        self._to_make.set()

    def _make_coming(self) -> None:
        """Make the prompts of later turns outside the callbacks in which earlier turns ended."""
        while not self._stopped:
            coming, self._coming = self._coming, []
            self._make(coming)
            if not self._coming:
                self._to_make.clear()
                self._to_make.wait()

    def _make(self, turns: list[Turn]) -> None:
        """Make prompts in small portions; each turn may be sent from then on."""
        for number, turn in enumerate(turns):
            turn.prompts = self._makers[turn.asked.traffic].make(turn.asked, turn.number, turn.history)
            heapq.heappush(self._waiting, turn)
            if number % AT_ONCE == 0:
                self._more.set()
                self._timer.wake()
                yield_to_hub()
        if turns:
            self._more.set()
            self._timer.wake()

    # --- what is open -----------------------------------------------------------------------------------------

    @property
    def _is_open(self) -> bool:
        return bool(self._open or self._attempts.open)

    def _wait_until_closed(self, deadline_ns: int) -> None:
        while self._is_open and monotonic_ns() < deadline_ns:
            gevent.sleep(_POLL_S)

    def _censor(self) -> None:
        drives = list(self._open)
        for drive in drives:
            drive.send_no_more()  # all of them first: an ending request frees a gate for another
        for drive in drives:
            drive.censor()
        self._attempts.abort_open(CENSORED)
