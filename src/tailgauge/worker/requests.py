"""Each request from its time to its row, and what follows it. The same in a worker and in a dry run.

Knows no clock and no greenlet: a subclass (`dispatcher`, or that of the dry run) says when the time has come, and plans the
next turn of a session. What happens within a request is in `driver` and in the patterns; its calls are in `attempts`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from sys import getsizeof
from typing import Any

from tailgauge.patterns.concurrency_gate import Gates
from tailgauge.patterns.events import Done, Request, Send, Steps
from tailgauge.patterns.table import pattern_of
from tailgauge.plugins.plugin import Faults, fault
from tailgauge.rows.schema import CENSORED, CLIENT_DROP, RequestRow
from tailgauge.scenario.model import Scenario
from tailgauge.schedule.sessions import RequestPool, Turn, conversation, draw, following
from tailgauge.schedule.settings import TASKS
from tailgauge.transport.reader import Departure
from tailgauge.worker.attempt_row import RequestRef, request_row
from tailgauge.worker.counters import Counters
from tailgauge.worker.driver import Drive, Starts, Timing

KEPT_PROMPTS = 1000  # of requests that wait for a slot; those of the others are made again


@dataclass(slots=True)
class Ahead:
    """A request that was begun before its time: its steps, the first of which is a prepared call."""

    turn: Turn
    steps: Steps
    first_step: Send
    withdraw: Callable[[], bool] | None = None  # takes the prepared call back


@dataclass(slots=True)
class Waiting:
    """A request that waits for a slot."""

    turn: Turn
    dispatched_at_ns: int


class Requests(ABC):
    """The requests of one run. `makers`: of each traffic table; `start_at_ns`: its start.

    `write` takes the rows of requests, `on_bug` an error of a pattern.
    """

    def __init__(
        self,
        scenario: Scenario,
        makers: Mapping[str, Any],
        attempts: Starts,
        *,
        write: Callable[[RequestRow], None],
        counters: Counters,
        timing: Timing,
        on_bug: Callable[[Exception], None],
    ) -> None:
        """Prepare for the requests of a run. `makers`: of prompts, by traffic table. `attempts` makes the calls.

        `write` takes the rows of requests; `on_bug` an error of our own code in a pattern; `timing` is the
        clock.
        """
        self.scenario = scenario
        self.attempts = attempts
        self.counters = counters
        self.start_at_ns = 0
        self._makers = makers
        self.faults = Faults()  # errors of plugins
        self._write = write
        self._timing = timing
        self._on_bug = on_bug
        self._gates = {name: Gates(timing.now_ns) for name in scenario.traffic}
        self._patterns = {name: pattern_of(traffic) for name, traffic in scenario.traffic.items()}
        for pattern in self._patterns.values():
            pattern.keeps_text |= scenario.arrival.process == TASKS  # a task may look at its answer
        # The end of the last stage, since the start: a turn that is due later is never sent.
        self._until_ns = int(scenario.stages.duration_s * 1e9)
        # Of a closed loop with a fixed number of requests: those that no user has sent yet.
        self._pool: RequestPool | None = None
        if scenario.arrival.is_counted:
            self._pool = RequestPool(scenario.arrival, scenario.seed)
        # The slots of this worker, in an open loop with arrival.max_concurrency: requests wait for one. Otherwise None.
        self.most_in_flight: int | None = None
        self._slot_queue: deque[Waiting] = deque()
        self._sends_no_more = False
        # In the order of their start: a set would have one of its own.
        self._open: dict[Drive, None] = {}

    # --- what a subclass does -----------------------------------------------------------------------------------

    @abstractmethod
    def _plan(self, turn: Turn) -> None:
        """Dispatch a later turn at its time; its prompts are still to be made."""

    @abstractmethod
    def _serve(self, waiting: Waiting) -> None:
        """Begin a request that has got its slot, by `_begin`; its prompts may be still to be made."""

    @abstractmethod
    def _note_dispatch(self, turn: Turn, late_ns: int) -> None:
        """Take notice that a request is dispatched, so much later than scheduled."""

    def _is_awaited(self, request_id: int) -> bool:  # noqa: ARG002 - see the dispatcher
        """Return whether somebody waits for the end of a request."""
        return False

    # --- the beginning of a request -----------------------------------------------------------------------------

    def _dispatch(self, turn: Turn) -> Drive | None:
        """Begin a request and return its drive; None where it has not begun.

        It waits where all slots are taken (`arrival.max_concurrency`), and is dropped at the worker's in-flight cap
        (`limits.in_flight_per_worker`). A drop has a row, and the next turn of its session is planned.
        """
        counters = self.counters
        now_ns = self._timing.now_ns()
        late_ns = now_ns - self.start_at_ns - turn.at_ns
        # Arrivals are counted when they are leased; a request of a user in a closed loop exists only
        # from now on.
        counters.leased += turn.is_closed
        if self.most_in_flight is not None and counters.in_flight >= self.most_in_flight:
            self._note_dispatch(turn, late_ns)
            self._enqueue(Waiting(turn, now_ns))
            return None
        if self._is_full():
            counters.client_drop += 1
            self._write_unsent(turn, CLIENT_DROP, None)
            self._follow(turn, CLIENT_DROP, now_ns, None)
            return None
        counters.dispatched += 1
        counters.in_flight += 1
        self._note_dispatch(turn, late_ns)
        turn.slot_wait_ns = None if self.most_in_flight is None else 0
        return self._begin(turn, now_ns)

    def _dispatch_sent(self, ahead: Ahead, departure: Departure) -> None:
        """Begin a request whose first call has left."""
        turn = ahead.turn
        counters = self.counters
        counters.leased += turn.is_closed
        counters.dispatched += 1
        counters.in_flight += 1
        self._note_dispatch(turn, departure.at_ns - self.start_at_ns - turn.at_ns)
        turn.slot_wait_ns = None
        self._begin(turn, departure.at_ns, ahead, departure)

    def _steps(self, turn: Turn) -> Steps:
        """Return what the pattern does for a request."""
        seed = self.scenario.seed
        pattern = self._patterns[turn.asked.traffic]
        share = 0.0
        if pattern.acts:  # else nothing happens to a share of the requests
            share = draw(seed, turn.request_id)
        request = Request(
            request_id=turn.request_id,
            scheduled_at_ns=self.start_at_ns + turn.at_ns,
            prompts=turn.prompts,
            output_tokens=turn.asked.output_tokens,
            draw=share,
            seed=seed,
        )
        return pattern.begin(request, turn.failed)

    def _begin(
        self,
        turn: Turn,
        dispatched_at_ns: int,
        ahead: Ahead | None = None,
        departure: Departure | None = None,
    ) -> Drive:
        """Begin a request that is counted as dispatched; `ahead` and `departure`: where its first call has left."""
        traffic = turn.asked.traffic
        origin = RequestRef(
            request_id=turn.request_id,
            stage=self.scenario.stages.stage_at(turn.at_ns / 1e9),
            traffic=traffic,
            scheduled_at_ns=self.start_at_ns + turn.at_ns,
            dispatched_at_ns=dispatched_at_ns,
            acts=self._acts(turn),
            departure=departure,
        )
        steps = self._steps(turn) if ahead is None else ahead.steps
        drive = Drive(
            steps,
            origin,
            self.attempts,
            gates=self._gates[traffic],
            on_end=partial(self._finish, turn),
            timing=self._timing,
        )
        self._open[drive] = None
        if self._sends_no_more:  # its first call left before that, and is noticed now
            drive.send_no_more()
        drive.begin(None if ahead is None else ahead.first_step)
        return drive

    def _acts(self, turn: Turn) -> bool:
        """Return whether something waits for what the calls of a request bring: its pattern, a later request, or a task."""
        if self._patterns[turn.asked.traffic].acts or turn.is_closed or turn.rest > 0:
            return True
        if self._pool is not None or self.most_in_flight is not None:
            return True
        return self._is_awaited(turn.request_id)

    def _make_prompts(self, turn: Turn) -> None:
        """Make what a turn says."""
        maker = self._makers[turn.asked.traffic]
        try:
            turn.prompts = maker.make(turn.asked, turn.number, turn.history)
        except Exception as error:
            if not fault(error):
                raise
            turn.failed = error  # its request fails with it when its time comes

    def _is_full(self) -> bool:
        """Return whether the in-flight cap is reached."""
        return self.counters.in_flight >= self.scenario.limits.in_flight_per_worker

    def _write_unsent(self, turn: Turn, ended: str, dispatched_at_ns: int | None) -> None:
        """Write the row of a request without a call."""
        row = request_row(
            self.scenario,
            turn,
            ended,
            stage=self.scenario.stages.stage_at(turn.at_ns / 1e9),
            scheduled_at_ns=self.start_at_ns + turn.at_ns,
            dispatched_at_ns=dispatched_at_ns,
        )
        self._write(row)

    # --- requests that wait for a slot --------------------------------------------------------------------------

    def _enqueue(self, waiting: Waiting) -> None:
        if len(self._slot_queue) >= KEPT_PROMPTS:
            waiting.turn.prompts = ()
        self._slot_queue.append(waiting)
        self.counters.waiting = len(self._slot_queue)

    @property
    def slot_wait_ns(self) -> int:
        """Return for how many ns the first of those that wait for a slot has waited; 0 where none waits."""
        if not self._slot_queue:
            return 0
        return max(0, self._timing.now_ns() - self._slot_queue[0].dispatched_at_ns)

    def _pass_slot_on(self, freed_at_ns: int) -> None:
        """Give the slot of a request that has ended to the one that waits longest."""
        if (
            self.most_in_flight is None
            or not self._slot_queue
            or self.counters.in_flight >= self.most_in_flight
        ):
            return
        waiting = self._slot_queue.popleft()
        waiting.turn.slot_wait_ns = max(0, freed_at_ns - waiting.dispatched_at_ns)
        self.counters.waiting = len(self._slot_queue)
        self.counters.dispatched += 1
        self.counters.in_flight += 1
        self._serve(waiting)

    def _censor_waiting(self) -> None:
        """End those that never got a slot."""
        counters = self.counters
        now_ns = self._timing.now_ns()
        while self._slot_queue:
            waiting = self._slot_queue.popleft()
            turn = waiting.turn
            turn.slot_wait_ns = now_ns - waiting.dispatched_at_ns
            self._write_unsent(turn, CENSORED, waiting.dispatched_at_ns)
            counters.dispatched += 1
            counters.censored += 1
            counters.not_due += turn.rest
        counters.waiting = 0

    # --- the end of a request -----------------------------------------------------------------------------------

    def _finish(self, turn: Turn, drive: Drive) -> int:
        """Write the row of a request that has ended, and plan the next turn; returns the time of its end."""
        now_ns = self._timing.now_ns()
        assert drive.done is not None
        if not drive.origin.acts and drive.done.ended != CENSORED:
            now_ns = drive.last_at_ns or now_ns  # its end may have waited
        self._open.pop(drive, None)
        self.counters.in_flight -= 1
        self._conclude(turn, drive, now_ns)
        self._pass_slot_on(now_ns)
        return now_ns

    def _conclude(self, turn: Turn, drive: Drive, ended_at_ns: int) -> None:
        """Record and count a request whose outcome is known."""
        done = drive.done
        assert done is not None
        counters = self.counters
        self._record(turn, drive, done, ended_at_ns)
        if drive.bug is not None and not self.faults.note(drive.bug):
            self._on_bug(drive.bug)
        if done.ended == CENSORED:
            counters.censored += 1
            counters.not_due += turn.rest
            return
        counters.ended[done.ended] += 1
        self._follow(turn, done.ended, ended_at_ns, done.text)

    def _record(self, turn: Turn, drive: Drive, done: Done, ended_at_ns: int) -> None:
        """Write the row of a request that has ended."""
        origin = drive.origin
        row = request_row(
            self.scenario,
            turn,
            done.ended,
            stage=origin.stage,
            scheduled_at_ns=origin.scheduled_at_ns,
            dispatched_at_ns=origin.dispatched_at_ns,
        )
        row.legs = len(drive.calls)
        row.attempts = drive.attempts
        row.winner = done.winner
        row.joined_at_ns = done.joined_at_ns
        row.hedge_held = done.hedge_held
        row.ended_at_ns = None if done.ended == CENSORED else ended_at_ns
        self._write(row)

    def _follow(self, turn: Turn, ended: str, ended_at_ns: int, answer: str | None) -> None:
        """Plan the turn after this one; a turn that is due after the end of the run is counted as not due.

        `ended`: the outcome of this turn, `answer`: its text, None without one. In a session whose prompts
        grow both go into the history, and the bytes of that into `counters.conversations`.
        """
        since_start_ns = ended_at_ns - self.start_at_ns
        if self._pool is not None:
            self._plan_from_pool(self._pool, ended, since_start_ns)
            return
        if turn.planned.turns == 1:
            return  # most requests are no session
        scenario = self.scenario
        traffic = scenario.traffic[turn.planned.traffic]
        next_turn = following(
            turn,
            ended,
            since_start_ns,
            seed=scenario.seed,
            arrival=scenario.arrival,
            traffic=traffic,
        )
        if next_turn is None or next_turn.at_ns >= self._until_ns:
            self.counters.not_due += turn.rest
            self.counters.conversations -= sum(getsizeof(text) for _, text in turn.history)
            return
        if traffic.session.grow and not turn.is_closed:
            next_turn.history = conversation(turn, answer)
            self.counters.conversations += getsizeof(next_turn.history[-1][1])
        self._plan(next_turn)

    def _plan_from_pool(self, pool: RequestPool, ended: str, since_start_ns: int) -> None:
        """Plan the request that the user sends next, if one is left and the run lasts so long."""
        next_turn = pool.following(ended, since_start_ns)
        if next_turn is not None and next_turn.at_ns < self._until_ns:
            self._plan(next_turn)

    @property
    def _has_sent_all(self) -> bool:
        """Whether every request of a closed loop with a fixed number of requests has ended."""
        counters = self.counters
        sent = counters.dispatched + counters.client_drop
        return self._pool is not None and 0 < counters.leased == sent and not counters.in_flight

    def _send_no_more(self) -> None:
        """Let no open request make another call, nor one of which it is noticed later that it has left."""
        self._sends_no_more = True
        for drive in self._open:
            drive.send_no_more()

    def _censor(self) -> None:
        """Close every open request and end every waiting one."""
        self._censor_waiting()
        self._send_no_more()  # all of them first: an ending request frees a gate for another
        for drive in list(self._open):
            drive.censor()
        self.attempts.abort_open(CENSORED)
