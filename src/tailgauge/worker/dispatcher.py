"""Dispatches arrivals at their absolute times, whatever happened to earlier ones (open loop).

A late arrival keeps its scheduled time; at the in-flight cap it is recorded as client_drop and never queued. Only where the
scenario limits what is in flight over all workers, arrivals wait for a slot, in their order. After a stall
of its own a worker sends all that came meanwhile, at less than twice the planned pace. One that is behind and does not
catch up skips what is overdue, and so does one whose slice comes late: both count as not reached. Without another slice the
worker idles. The next turn of a session is scheduled when the previous one has ended, and is an arrival like any other then.

A little ahead of its time the first call of an arrival is prepared, and leaves then without this process (`Attempts.prepare`):
this process only learns of it. Where that cannot be, it is sent here when its time has come.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import count
from typing import Any

import gevent
from gevent.event import Event as Signal

from tailgauge.clock import monotonic_ns
from tailgauge.patterns.events import Done, Send
from tailgauge.prompts import Maker
from tailgauge.rows.recorder import Recorder
from tailgauge.rows.schema import CENSORED, CHECK_FAILED, FAILURE, OK
from tailgauge.scenario.model import Scenario
from tailgauge.schedule.lateness import LATE_S, Overload
from tailgauge.schedule.schedule import Planned
from tailgauge.schedule.sessions import RequestPool, Turn, requests_in
from tailgauge.thresholds import DROPS
from tailgauge.transport.reader import READER, Departure
from tailgauge.worker.attempts import Attempts
from tailgauge.worker.counters import Counters
from tailgauge.worker.driver import Drive
from tailgauge.worker.requests import Ahead, Requests, Waiting
from tailgauge.worker.task_requests import TaskRequests
from tailgauge.worker.timers import HubTime, Later, WaitTimer, yield_to_hub

AT_ONCE = 20  # prompts made, or late arrivals sent, before open streams are read
SKIPPED_AT_ONCE = 500  # arrivals that are not sent
CLOSING_S = 5.0  # beyond the connect time-out: an abort does not interrupt a connect in progress
NEVER_NS = 1 << 62
_POLL_S = 0.02  # between checks for open requests
MOST_AHEAD = 4096  # prepared requests
CALLS_OF_A_REQUEST = 8  # calls that a request makes, with its retries and hedges, at most as a rule


class Dispatcher(Requests):
    """Dispatches one worker's leases. `makers` make the prompts of each traffic table."""

    def __init__(
        self,
        scenario: Scenario,
        makers: Mapping[str, Maker],
        attempts: Attempts,
        *,
        recorder: Recorder,
        counters: Counters,
        on_ended: Callable[[str, str, float], None],
        on_bug: Callable[[BaseException], None],
    ) -> None:
        """Prepare to dispatch; nothing is sent before `run`.

        `makers`: of prompts, by traffic table. `on_ended` gets the traffic table, the outcome and the time
        from due to end in ms of each request, but for those of tasks. `on_bug` gets an error of our own
        code.
        """
        super().__init__(
            scenario,
            makers,
            attempts,
            write=recorder.request,
            counters=counters,
            timing=HubTime(),
            on_bug=on_bug,
        )
        self._calls = attempts
        self._ahead_ns = attempts.ahead_ns
        self._on_ended = on_ended
        # Heaps by time and request: numbers are compared in a tenth of the time of turns.
        self._waiting: list[tuple[int, int, Turn]] = []
        self._near: list[tuple[int, int, Turn]] = []  # due soon, and sent by this process
        self._ahead: dict[int, Ahead] = {}  # by request: due soon, and prepared
        self._coming: deque[Turn] = deque()  # later turns without prompts yet
        self._timer = WaitTimer()
        # Set when there is something to dispatch, while `run` has nothing to wait for.
        self._more = Signal()
        self._later = attempts.later  # rows
        self._notices = Later()  # calls of `on_ended` and `on_done`
        self.stopped = False
        self._hurried = False  # `drain` does not wait for open requests
        self._task_requests = TaskRequests()
        self._overload = Overload()
        # A closed loop with a fixed number of requests has ended.
        self.on_done: Callable[[], object] = lambda: None
        self.admits: Callable[[Turn], bool] = lambda _: True  # False: a limit of the run is reached
        self.has_stalled: Callable[[], bool] = lambda: False  # this process did not run just now

    def lease(self, rows: Iterable[Sequence[Any]]) -> None:
        """Take arrivals of a slice (`schedule.Planned`) and make their prompts; not those that came too late."""
        counters = self.counters
        planned = [Planned(*row) for row in rows]
        counters.leased += requests_in(planned)
        if self.stopped:
            counters.not_reached += requests_in(planned)
            return
        if self._pool is not None:
            self._take_pool(self._pool, planned)
            return
        if not self.has_stalled():
            planned = self._without_late(planned)
        self._make_all_ready([Turn.first(row) for row in planned])

    def _without_late(self, planned: list[Planned]) -> list[Planned]:
        """Return the arrivals of a slice that came in time, and count the others."""
        if not self.start_at_ns:
            return planned
        since_ns = monotonic_ns() - int(LATE_S * 1e9) - self.start_at_ns
        late = [row for row in planned if row.turns and row.at_ns < since_ns]
        if not late:
            return planned
        self.counters.came_late += requests_in(late)
        self._overload.begin(monotonic_ns(), self.start_at_ns + since_ns)
        return planned[len(late) :]

    def _take_pool(self, pool: RequestPool, planned: list[Planned]) -> None:
        """Take requests of a closed loop with a fixed number of requests: those that users begin with are made now."""
        starts = [row for row in planned if pool.is_of_start(row)]
        pool.coming.extend(planned[len(starts) :])
        idle = pool.idle_users
        pool.idle_users = 0
        for _ in range(idle):
            self._plan_from_pool(pool, OK, monotonic_ns() - self.start_at_ns)
        self._make_all_ready([Turn.first(row) for row in starts])

    def run(self, start_at_ns: int) -> None:
        """Dispatch until `stop`, and block until then; `start_at_ns` is the start of the run on this worker's clock."""
        self.start_at_ns = start_at_ns
        self._limit_departures()  # the run before may have had another cap
        is_open = self.scenario.arrival.is_open
        in_a_row = 0  # requests without a wait between them, in which the hub would read sockets
        while not self.stopped:
            now_ns = monotonic_ns()
            # What is due soon leaves `_waiting`: the reader sends it at its time (`_ahead`), or this
            # process does (`_near`).
            self._prepare_soon(now_ns)
            # Prompts of later turns are made while nothing is due before them.
            if self._makes_prompts_now():
                self._make_ready(self._coming.popleft())
            elif self._near:
                due_ns = start_at_ns + self._near[0][0]
                send_at_ns = due_ns
                if is_open:
                    # After a stall, arrivals that are late are sent at a bounded pace.
                    send_at_ns = self._overload.sends_at(now_ns, due_ns)
                if send_at_ns > now_ns:
                    in_a_row = 0
                    self._timer.wait_until(min(send_at_ns, self._next_to_prepare()))
                    continue
                # An overloaded worker does not send what is overdue. A closed loop skips nothing.
                if self._overload.skips(now_ns, now_ns - due_ns) and is_open:
                    # `stop` counts it as not reached.
                    self._skip_next()
                    continue
                self._send(heapq.heappop(self._near)[2])
            elif self._waiting:
                in_a_row = 0
                self._timer.wait_until(self._next_to_prepare())
                continue
            else:
                self._more.clear()
                self._more.wait()
                continue
            in_a_row += 1
            if in_a_row % AT_ONCE == 0:
                yield_to_hub()

    def _skip_next(self) -> None:
        """Leave out the next arrival; `stop` counts it as not reached."""
        heapq.heappop(self._near)
        if len(self._near) % SKIPPED_AT_ONCE == 0:
            yield_to_hub()

    def _makes_prompts_now(self) -> bool:
        """Return whether a later turn is the next to be made: prompts are made when nothing is due before their turn.

        Else many that come together would wait until the prompts of all are made.
        """
        if not self._coming:
            return False
        return not self._near or self._near[0][0] > self._coming[0].at_ns

    def _next_to_prepare(self) -> int:
        """Return when the next arrival is to be prepared."""
        if not self._waiting or len(self._ahead) >= MOST_AHEAD:
            return NEVER_NS
        return self.start_at_ns + self._waiting[0][0] - self._ahead_ns

    def _prepare_soon(self, now_ns: int) -> None:
        """Prepare what is due soon, in small portions; what cannot be prepared is sent by this process."""
        for number in count(1):
            if self.stopped or self._next_to_prepare() > now_ns:
                return
            at_ns, request_id, turn = heapq.heappop(self._waiting)
            if not self._prepare(turn, now_ns):
                heapq.heappush(self._near, (at_ns, request_id, turn))
            if number % AT_ONCE == 0:
                yield_to_hub()

    def _prepare(self, turn: Turn, now_ns: int) -> bool:
        """Let the compiled reader's thread send the first call of a request at its time, even while Python is busy.

        False where it cannot be prepared. Of such a request nothing is kept: its pattern begins anew when this process
        sends it.
        """
        due_ns = self.start_at_ns + turn.at_ns
        traffic = turn.asked.traffic
        # A request that may have to wait for a slot is not prepared.
        if self.most_in_flight is not None or due_ns <= now_ns or not turn.prompts:
            return False
        if not self._patterns[traffic].may_begin_ahead:
            return False
        steps = self._steps(turn)
        try:
            step = next(steps)
        except Exception:  # noqa: BLE001 - raised again when it is sent
            return False
        if not isinstance(step, Send):
            return False
        ahead = Ahead(turn, steps, step)
        # Prepared only while the limits allow all calls that this request may make, retries and hedges too, and one of each request
        # that is open or prepared.
        open_requests = len(self._ahead) + self.counters.in_flight
        ahead.withdraw = self._calls.prepare(
            turn.request_id,
            traffic,
            step,
            due_ns=due_ns,
            on_due=partial(self._on_due, ahead),
            calls_needed=open_requests + CALLS_OF_A_REQUEST * len(turn.prompts),
        )
        if ahead.withdraw is None:
            return False
        self._ahead[turn.request_id] = ahead
        return True

    def _on_due(self, ahead: Ahead, departure: Departure) -> None:
        """Begin a request whose first call has left; one whose call could not leave is sent by this process."""
        turn = ahead.turn
        if len(self._ahead) >= MOST_AHEAD:
            self._wake()
        del self._ahead[turn.request_id]
        if not departure.is_back:
            self._dispatch_sent(ahead, departure)
        elif self.stopped:
            self.counters.not_reached += not turn.is_closed
        else:
            heapq.heappush(self._near, (turn.at_ns, turn.request_id, turn))
            self._wake()

    def _withdraw_prepared(self) -> None:
        """Take back every prepared call that has not left."""
        for request_id, ahead in list(self._ahead.items()):
            if ahead.withdraw is not None and ahead.withdraw():
                del self._ahead[request_id]

    def _send(self, turn: Turn) -> None:
        """Begin a request, unless a limit of the run is reached."""
        if self._is_full():
            READER.catch_up()  # an answer may have ended, or a bug the run
        if self.stopped:  # and has counted this request as not reached
            return
        if not (turn.prompts or turn.failed or self._is_full()):
            self._make_prompts(turn)
        if not (turn.failed or self.admits(turn)):
            self.stop()
        elif not self._dispatch(turn):
            yield_to_hub()  # many drops in a row must not delay reading open streams

    def _serve(self, waiting: Waiting) -> None:
        """Begin a request on a greenlet of its own: its slot may have come free in a callback."""
        gevent.spawn(self._send_waiting, waiting)

    def _send_waiting(self, waiting: Waiting) -> None:
        turn = waiting.turn
        if not (turn.prompts or turn.failed):
            self._make_prompts(turn)
        if turn.failed or self.admits(turn):
            self._begin(turn, waiting.dispatched_at_ns)
            return
        self.counters.dispatched -= 1
        self.counters.in_flight -= 1
        self.stop()

    def send_now(self, turn: Turn, signal: Signal, *, is_checked: bool = False) -> Drive | None:
        """Send the request of a task; `signal` is set at its end. None: dropped at the in-flight cap, or nothing is admitted.

        With `is_checked` the task judges the answer: the request is recorded by `judge`, at the latest when the run ends.
        """
        self._make_prompts(turn)
        if self._is_full():
            READER.catch_up()
        if self.stopped or not self.admits(turn):
            self.stop()
            return None
        self._task_requests.add(turn.request_id, signal, is_judged=is_checked)
        drive = self._dispatch(turn)
        if drive is None:
            self._task_requests.drop(turn.request_id)
        return drive

    def judge(self, request_id: int, failure: str | None) -> None:
        """Record an answered request as it ended, or as the failure that its task found."""
        self._task_requests.judge(request_id, failure)

    def send_due(self) -> None:
        """Send what is due by now, if it is not far behind: the end of the run comes between two arrivals."""
        now_ns = monotonic_ns()
        late_ns = int(LATE_S * 1e9)
        while not self.stopped and monotonic_ns() - now_ns < late_ns:
            times_ns = [heap[0][0] for heap in (self._near, self._waiting) if heap]
            due_ns = 0
            if times_ns:
                due_ns = self.start_at_ns + min(times_ns)
            if not (now_ns - late_ns < due_ns <= now_ns or self._coming):
                return
            gevent.sleep(_POLL_S)

    def stop(self, *, sends: bool = True, serves: bool = False) -> None:
        """Admit no more, and count leased arrivals that were not reached. A second call can only stop more than the first.

        Without `sends` open requests end at their next call. If it `serves`, requests go on to wait for
        slots; otherwise those are not reached either.
        """
        if not sends:
            self._send_no_more()
        counters = self.counters
        if not serves:
            # The first call has counted those that wait as begun.
            if self.stopped:
                counters.not_reached += len(self._slot_queue)
            self._slot_queue.clear()
            counters.waiting = 0
        if self.stopped:
            return
        self.stopped = True
        self._withdraw_prepared()
        # What could not be withdrawn has left, and is counted once that is noticed; a closed loop leases only then.
        # Not reached is what else was leased: a slice may be half taken, so that it is not in the queues.
        sent = sum(not ahead.turn.is_closed for ahead in self._ahead.values())
        begun = counters.dispatched + counters.client_drop + len(self._slot_queue) + sent
        counters.not_reached = counters.leased - begun
        self._wake()

    def drain(self, seconds: float) -> None:
        """Wait at most `seconds` for open requests, unless it is or gets hurried; close the rest as censored; record all.

        `stop` comes before. It blocks, and no request is open afterwards.
        """
        deadline_ns = monotonic_ns() + int(seconds * 1e9)
        while self._has_open() and not self._hurried and monotonic_ns() < deadline_ns:
            gevent.sleep(_POLL_S)
        closing_s = self.scenario.limits.connect_timeout_s + CLOSING_S
        deadline_ns = monotonic_ns() + int(closing_s * 1e9)
        while self._has_open() and monotonic_ns() < deadline_ns:
            self._censor()  # repeatedly: a greenlet may open its call late
            gevent.sleep(_POLL_S)
        # Whatever is open after this time ends without its calls.
        for drive in list(self._open):
            drive.give_up()
        if self._task_requests.unjudged():
            gevent.sleep(_POLL_S)  # for the tasks that have just been answered
        for request_id in self._task_requests.unjudged():
            self.judge(request_id, None)
        # Rows and notices that were put off.
        self._later.finish()
        self._notices.finish()
        self._timer.close()

    def hurry(self) -> None:
        """Admit no more and close open requests now."""
        self._hurried = True
        self.stop()
        self._censor()

    # --- one request ------------------------------------------------------------------------------------------

    def _is_awaited(self, request_id: int) -> bool:
        return self._task_requests.is_awaited(request_id)

    def _note_dispatch(self, turn: Turn, late_ns: int) -> None:  # noqa: ARG002 - prompts are made ahead of need
        self.counters.second.dispatched(late_ns)
        self._limit_departures()

    def _limit_departures(self) -> None:
        """Limit how many prepared requests may leave before the in-flight cap is reached."""
        READER.let_leave(self.scenario.limits.in_flight_per_worker - self.counters.in_flight)

    def _finish(self, turn: Turn, drive: Drive) -> int:
        """End a request where its last event happened, be that the hub: what may wait comes later."""
        ended_at_ns = super()._finish(turn, drive)
        self._limit_departures()
        assert drive.done is not None
        ended = drive.done.ended
        # A task reports its request to Locust itself.
        is_of_a_task = self._task_requests.end(turn.request_id)
        if ended != CENSORED and not is_of_a_task:
            e2e_ms = (ended_at_ns - self.start_at_ns - turn.at_ns) / 1e6
            self._notices.add(partial(self._on_ended, turn.planned.traffic, ended, e2e_ms))
        if self._has_sent_all:
            self._notices.add(self.on_done)
        return ended_at_ns

    def _conclude(self, turn: Turn, drive: Drive, ended_at_ns: int) -> None:
        """Record and count a request, and plan the next turn, now or once its task has judged the answer.

        A censored one is recorded at once.
        """
        assert drive.done is not None
        ended = drive.done.ended
        request_id = turn.request_id
        if self._task_requests.is_judged(request_id) and ended != CENSORED:
            conclude = partial(self._conclude_judged, turn, drive, ended_at_ns)
            self._task_requests.keep(request_id, conclude)
            return
        super()._conclude(turn, drive, ended_at_ns)
        if ended == CENSORED:  # the live counters have ended requests only
            return
        e2e_ms = None
        if ended == OK:
            e2e_ms = (ended_at_ns - self.start_at_ns - turn.at_ns) / 1e6
        counters = self.counters.traffic[turn.asked.traffic, drive.target]
        # Counted after its calls, so that the live view never shows an error before it shows that it was a 429.
        self._calls.in_order(partial(counters.end_request, ended, e2e_ms))

    def _conclude_judged(
        self, turn: Turn, drive: Drive, ended_at_ns: int, failure: str | None
    ) -> None:
        """Record a request that its task has judged."""
        if failure is not None and drive.done is not None and turn.asked.source is not None:
            drive.done = replace(drive.done, ended=CHECK_FAILED)
            turn.asked.source["tags"][FAILURE] = failure
        self._conclude(turn, drive, ended_at_ns)

    def _record(self, turn: Turn, drive: Drive, done: Done, ended_at_ns: int) -> None:
        self._later.add(partial(super()._record, turn, drive, done, ended_at_ns))

    # --- later turns and their prompts ------------------------------------------------------------------------

    def _plan(self, turn: Turn) -> None:
        """Have the prompts of a turn made outside of the callback in which the turn before ended."""
        if not self.stopped:
            self._coming.append(turn)
            self._wake()

    def _wake(self) -> None:
        self._more.set()
        self._timer.wake()

    def _make_all_ready(self, turns: list[Turn]) -> None:
        """Make the prompts of turns in small portions; each turn may be sent from then on."""
        for number, turn in enumerate(turns):
            self._make_ready(turn)
            if number % AT_ONCE == 0:
                self._wake()
                yield_to_hub()
        if turns:
            self._wake()

    def _make_ready(self, turn: Turn) -> None:
        """Make the prompts of a turn, which may be sent from then on.

        Where the worker is behind, or drops too much, its time may never come: then its prompts are made when it is sent.
        """
        counters = self.counters
        drops_many = self._is_full() and counters.client_drop > DROPS * counters.dispatched
        if not (self._overload.is_behind or drops_many):
            self._make_prompts(turn)
        heapq.heappush(self._waiting, (turn.at_ns, turn.request_id, turn))

    # --- what is open -----------------------------------------------------------------------------------------

    def _has_open(self) -> bool:
        self._later.finish()
        return bool(self._open or self._slot_queue or self._ahead or self._calls.open)
