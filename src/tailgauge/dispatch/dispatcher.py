"""Walks the schedule: each arrival at its absolute time, whatever became of those before it.

Rule: open loop. An arrival that is late keeps its scheduled time; at the in-flight cap it is recorded as client_drop
and never queued. A slice once handed out is this worker's alone; without a next slice the worker idles.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import gevent
from gevent.event import Event as Signal
from gevent.pool import Group

from tailgauge.arrivals import Planned
from tailgauge.call import Prompt
from tailgauge.clock import monotonic_ns
from tailgauge.dispatch.alarm import Alarm
from tailgauge.dispatch.attempts import Attempts, Origin
from tailgauge.dispatch.counters import Counters
from tailgauge.dispatch.driver import drive
from tailgauge.prompts import prompt
from tailgauge.records import CENSORED, CLIENT_DROP, PREFLIGHT, RequestRow
from tailgauge.traffic.patterns import PATTERNS
from tailgauge.traffic.steps import Ask

if TYPE_CHECKING:
    from tailgauge.recorder import Recorder
    from tailgauge.scenario import Scenario

_PROMPTS_AT_ONCE = 20
CLOSING_S = 5.0  # beyond the connect time-out: an abort does not interrupt a connect in progress


@dataclass(slots=True, order=True)
class Arrival:
    """One planned request; `at_ns` since the start of the run."""

    at_ns: int
    request_id: int
    traffic: str
    prompt_tokens: int
    output_tokens: int
    prompt: str = ""


class Dispatcher:
    """One worker's share of the schedule, as it comes in."""

    def __init__(
        self,
        scenario: Scenario,
        attempts: Attempts,
        recorder: Recorder,
        counters: Counters,
        on_ended: Callable[[str, str, float], None],
        on_bug: Callable[[BaseException], None],
    ) -> None:
        self._scenario = scenario
        self._attempts = attempts
        self._recorder = recorder
        self._counters = counters
        self._on_ended = on_ended
        self._on_bug = on_bug
        self._waiting: list[Arrival] = []
        self._alarm = Alarm()
        self._more = Signal()
        self._requests = Group()
        self._stopped = False
        self._hurried = False
        self.start_at_ns = 0

    def lease(self, rows: Iterable[Sequence[Any]]) -> None:
        """Take arrivals of a slice (see `arrivals.Planned`); makes their prompts."""
        planned = [Planned(*row) for row in rows]
        arrivals = [
            Arrival(p.at_ns, p.request_id, p.traffic, p.prompt_tokens, p.output_tokens) for p in planned
        ]
        self._counters.leased += len(arrivals)
        if self._stopped:
            self._counters.not_reached += len(arrivals)
            return
        for number, arrival in enumerate(arrivals):
            arrival.prompt = prompt(self._scenario.seed, arrival.request_id, arrival.prompt_tokens)
            heapq.heappush(self._waiting, arrival)
            if number % _PROMPTS_AT_ONCE == 0:
                gevent.sleep(0)
        self._more.set()
        self._alarm.ring()

    def run(self, start_at_ns: int) -> None:
        """Dispatch until `stop`; `start_at_ns` is the start of the run on this worker's clock."""
        self.start_at_ns = start_at_ns
        while not self._stopped:
            if not self._waiting:
                self._more.clear()
                self._more.wait()
                continue
            due = start_at_ns + self._waiting[0].at_ns
            if due > monotonic_ns():
                self._alarm.wait_until(due)
                continue
            self._dispatch(heapq.heappop(self._waiting))

    def stop(self) -> None:
        """Admit no more; what was leased and not reached is counted."""
        if not self._stopped:
            self._stopped = True
            counters = self._counters  # a slice may be half taken: what waits is not all of it
            counters.not_reached = counters.leased - counters.dispatched - counters.client_drop
            self._more.set()
            self._alarm.ring()

    def drain(self, seconds: float) -> None:
        """Wait for open requests, then close the rest as censored."""
        if not self._hurried:
            self._requests.join(timeout=seconds)
        patience = monotonic_ns() + int((self._scenario.limits.connect_timeout_s + CLOSING_S) * 1e9)
        while self._requests and monotonic_ns() < patience:
            self._attempts.abort_open(CENSORED)  # again and again: a greenlet may only now open its call
            self._requests.join(timeout=0.05)
        self._alarm.close()

    def hurry(self) -> None:
        """Admit no more and close what is open now: the user does not want to wait."""
        self._hurried = True
        self.stop()
        self._attempts.abort_open(CENSORED)

    def preflight(self, traffic: str, request_id: int) -> None:
        """One real request outside every statistic; returns when it has ended."""
        mix = self._scenario.traffic[traffic]
        text = prompt(self._scenario.seed, request_id, min(mix.prompt_tokens, 32))
        now = monotonic_ns()
        self._request(Arrival(now, request_id, traffic, 32, min(mix.output_tokens, 16), text), PREFLIGHT, now)

    def _dispatch(self, arrival: Arrival) -> None:
        scheduled = self.start_at_ns + arrival.at_ns
        stage = self._scenario.stages.stage_at(arrival.at_ns / 1e9)
        counters = self._counters
        if counters.in_flight >= self._scenario.limits.in_flight_per_worker:
            counters.client_drop += 1
            self._recorder.request(self._row(arrival, stage, scheduled, None, CLIENT_DROP))
            gevent.sleep(0)  # a storm of drops must not keep the open streams from being read
            return
        counters.dispatched += 1
        counters.in_flight += 1
        self._requests.start(gevent.Greenlet(self._counted, arrival, stage, scheduled))

    def _counted(self, arrival: Arrival, stage: str, scheduled: int) -> None:
        counters = self._counters
        counters.dispatch_late_max_ns = max(counters.dispatch_late_max_ns, monotonic_ns() - scheduled)
        try:
            ended = self._request(arrival, stage, scheduled)
        except BaseException as error:
            self._on_bug(error)
            raise
        finally:
            counters.in_flight -= 1
        if ended == CENSORED:
            counters.censored += 1
        else:
            counters.end(ended)
            self._on_ended(arrival.traffic, ended, (monotonic_ns() - scheduled) / 1e6)

    def _request(self, arrival: Arrival, stage: str, scheduled: int) -> str:
        dispatched = monotonic_ns()
        traffic = self._scenario.traffic[arrival.traffic]
        pattern = PATTERNS[traffic.pattern](traffic)
        ask = Ask(arrival.request_id, scheduled, (Prompt.of(arrival.prompt),), arrival.output_tokens)
        origin = Origin(arrival.request_id, stage, arrival.traffic, scheduled)
        driven = drive(pattern, ask, origin, self._attempts)
        row = self._row(arrival, stage, scheduled, dispatched, driven.done.ended)
        row.legs, row.attempts, row.winner = driven.legs, driven.attempts, driven.done.winner
        row.ended_at_ns = None if driven.done.ended == CENSORED else monotonic_ns()
        self._recorder.request(row)
        return driven.done.ended

    def _row(
        self, arrival: Arrival, stage: str, scheduled: int, dispatched: int | None, ended: str
    ) -> RequestRow:
        return RequestRow(
            request_id=arrival.request_id,
            stage=stage,
            traffic=arrival.traffic,
            pattern=self._scenario.traffic[arrival.traffic].pattern,
            session_id=None,
            scheduled_at_ns=scheduled,
            dispatched_at_ns=dispatched,
            ended_at_ns=None,
            ended=ended,
            legs=0,
            attempts=0,
            asked_prompt_tokens=arrival.prompt_tokens,
            asked_output_tokens=arrival.output_tokens,
        )
