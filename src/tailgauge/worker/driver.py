"""Drives one request's pattern where its events happen: in the callback that read them, or on a simulated clock.

Knows no particular pattern, and never waits. A step is carried out before the callback that caused it returns: a hedge's
loser is closed before any other socket is read. Events meanwhile (closing a call decodes what it had received) are queued,
because a pattern is never reentered.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Protocol

from tailgauge.call import MAIN
from tailgauge.patterns import events
from tailgauge.patterns.concurrency_gate import Gates
from tailgauge.patterns.events import Done, Ended, Event, Send, Sent, Step, Steps
from tailgauge.plugins.plugin import blamed, fault
from tailgauge.rows.schema import CANCELLED, CENSORED, PLUGIN_ERROR
from tailgauge.worker.attempt_row import RequestRef


class Timer(Protocol):
    """A pending callback."""

    def cancel(self) -> None:
        """Cancel it, once."""


class Timing(Protocol):
    """The clock of a driver: real or simulated."""

    def now_ns(self) -> int:
        """Return the current time in ns."""

    def call_at(self, at_ns: int, call: Callable[[], None]) -> Timer:
        """Call at a time; may be slightly early."""


class Closable(Protocol):
    """The driver's interface of a call."""

    @property
    def aborted_at_ns(self) -> int | None:
        """Return when we closed it, in ns; None where we did not."""

    def catch_up(self) -> None:
        """Take what has come by now."""

    def abort(self, reason: str) -> None:
        """Close it unless it has ended; `reason` becomes its class."""


class Starts(Protocol):
    """The maker of calls."""

    def start(
        self, origin: RequestRef, send: Send, attempt: int, post: Callable[[Event], None], /
    ) -> Closable:
        """Start a call; `post` receives its first content and its end."""

    def abort_open(self, reason: str) -> None:
        """Close every open call."""


class _CensoredError(Exception):
    """The drain has ended, and the pattern has no open call."""


class Drive:
    """One running request. `done`: its end; `bug`: an error of its pattern."""

    def __init__(
        self,
        steps: Steps,
        origin: RequestRef,
        attempts: Starts,
        *,
        gates: Gates,
        on_end: Callable[[Drive], object],
        timing: Timing,
    ) -> None:
        """Prepare to run the pattern of one request; `begin` runs it. `steps`: the pattern, a generator.

        `attempts` makes its calls. `gates`: the concurrency limits of its traffic table. `on_end` is called
        once, when `done` is set; `timing`: the clock, real or simulated.
        """
        self.done: Done | None = None
        self.bug: Exception | None = None
        self.calls: dict[int, list[Closable]] = {}  # by leg, its attempts in order
        self.target = MAIN  # of the first call
        self.last_at_ns = 0  # of the event that was received last
        self._steps = steps
        self.origin = origin
        self._attempts = attempts
        self._gates = gates
        self._on_end = on_end
        self._timing = timing
        self._events: deque[Event] = deque()
        self._until_ns: int | None = None  # what a wait ends with, if nothing happens
        self._timer: Timer | None = None
        self._timer_ns: int | None = None
        self._unended = 0  # calls whose end the pattern has not received
        self._running = False  # the pattern is on the stack: it must not be entered again
        self._closing = False  # it makes no more calls, and ends as censored

    @property
    def attempts(self) -> int:
        """Calls made."""
        return sum(map(len, self.calls.values()))

    def begin(self, first_step: Step | None = None) -> None:
        """Run the pattern until it waits; `first_step`: its first step, where that was taken before."""
        self._run(begin=True, first_step=first_step)

    def post(self, event: Event) -> None:
        """Pass an event to the pattern, now or as soon as it waits."""
        if self.done is None:
            self._events.append(event)
            if not self._running:
                self._run()

    def send_no_more(self) -> None:
        """End the request as censored instead of its next call."""
        self._closing = True

    def censor(self) -> None:
        """Close its calls; the request ends with the last of them, or now if none is in flight."""
        self._closing = True
        self._abort(CENSORED)
        if self.done is None and not self._running:
            self._run()

    def leave(self) -> None:
        """End it now as cancelled, if it has not ended: its user is gone."""
        if self.done is None:
            self._end(Done(CANCELLED))

    def close_calls(self, reason: str) -> None:
        """Close its open calls; what follows is its pattern's to say."""
        self._abort(reason)

    def give_up(self) -> None:
        """End it now, whatever its calls do."""
        self._unended = 0
        self.censor()

    # --- the pattern ------------------------------------------------------------------------------------------

    def _run(self, *, begin: bool = False, first_step: Step | None = None) -> None:
        """Run the pattern until it waits or ends; where it ends, so does the request."""
        self._running = True
        try:
            self._advance(begin=begin, first_step=first_step)
        except StopIteration as stop:
            outcome = stop.value
            if not isinstance(outcome, Done):
                outcome = self._fail(TypeError(f"a pattern returned {outcome!r}, not Done"))
        except _CensoredError:
            outcome = Done(CENSORED)
        except Exception as error:  # noqa: BLE001 - whatever a pattern raises ends its request, and ours the run
            outcome = self._fail(error)
        else:
            return
        finally:
            self._running = False
        self._end(outcome)

    def _advance(self, *, begin: bool, first_step: Step | None) -> None:
        """Carry out steps of the pattern and send it events until it waits; raises StopIteration at its end."""
        step = first_step
        if begin and step is None:
            step = next(self._steps)
        while True:
            answer = self._next_event() if step is None else self._do(step)
            if answer is not None:
                step = self._steps.send(answer)
            elif step is None:
                return
            else:
                step = None

    def _fail(self, error: Exception) -> Done:
        self.bug = blamed(self._steps, error)
        return Done(PLUGIN_ERROR if fault(self.bug) else CENSORED)

    def _next_event(self) -> Event | None:
        """Return the next event for the pattern; None: nothing has happened, and it goes on waiting.

        A wait that has an end ends with `Due`, for which a timer is set here. Raises _CensoredError once
        the request is to make no more calls and none is open.
        """
        if self._events:
            return self._take_event()
        if self._closing and self._unended <= 0:
            raise _CensoredError
        if self._until_ns is None:
            return None
        now_ns = self._timing.now_ns()
        if now_ns < self._until_ns:
            self._set_timer(self._until_ns)
            return None
        # A busy event loop looks at its timers first: an answer that came in time must not be taken for a late one.
        for call in self._all_calls():
            call.catch_up()
        if self._events:
            return self._take_event()
        self._until_ns = None
        return events.Due(now_ns)

    def _take_event(self) -> Event:
        self._until_ns = None
        event = self._events.popleft()
        self.last_at_ns = event.at_ns
        self._unended -= isinstance(event, Ended)
        return event

    def _all_calls(self) -> list[Closable]:
        return [call for leg in self.calls.values() for call in leg]

    def _do(self, step: Step) -> Event | None:
        """Carry out a step and return its answer; None for a wait, which a later event answers.

        A call that is sent or closed posts its events to `post`; they are queued until the pattern waits.
        """
        if isinstance(step, events.Wait):
            self._until_ns = step.until_ns
            return None
        if isinstance(step, Send):
            return self._send(step)
        if isinstance(step, events.Cancel):
            call = self.calls[step.leg][step.attempt]
            call.abort(step.ended)
            closed_at_ns = call.aborted_at_ns or self._timing.now_ns()
            return events.Closed(step.leg, step.attempt, closed_at_ns)
        if isinstance(step, events.Take):
            # Permits to have a call in flight, of those that all requests of the traffic table share.
            if self._gates.take(step.gate, step.limit, self, step.leg):
                return events.Taken(step.leg, self._timing.now_ns())
            return events.Queued(step.leg, self._timing.now_ns())
        if isinstance(step, events.Give):
            self._gates.give(step.gate, self)
            return events.Given(self._timing.now_ns())
        raise TypeError(f"a pattern yielded {step!r}, which is not a step")

    def _send(self, step: Send) -> Sent:
        # A call that has left already is never censored before its end.
        departure = self.origin.departure
        if self._closing and departure is None:
            raise _CensoredError
        if not self.calls:
            self.target = step.call.target
        leg = self.calls.setdefault(step.leg, [])
        number = len(leg)
        leg.append(self._attempts.start(self.origin, step, number, self.post))
        self._unended += 1
        if departure is not None:
            return Sent(step.leg, number, departure.at_ns)
        return Sent(step.leg, number, self._timing.now_ns())

    # --- time -------------------------------------------------------------------------------------------------

    def _set_timer(self, until_ns: int) -> None:
        if self._timer_ns == until_ns:
            return
        self._cancel_timer()
        self._timer = self._timing.call_at(until_ns, self._on_timer)
        self._timer_ns = until_ns

    def _cancel_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
            self._timer_ns = None

    def _on_timer(self) -> None:
        """Go on; the loop's clock is coarse, so an early timer is followed by another for the rest."""
        self._cancel_timer()
        if self.done is None and not self._running:
            self._run()

    # --- the end ----------------------------------------------------------------------------------------------

    def _abort(self, reason: str) -> None:
        for call in self._all_calls():
            call.abort(reason)

    def _end(self, outcome: Done) -> None:
        self.done = outcome
        self._cancel_timer()
        try:
            self._steps.close()
        except Exception as error:  # noqa: BLE001 - as above
            self.bug = self.bug or error
        if self._unended > 0:
            self._abort(CENSORED if self._closing else CANCELLED)
        self._gates.leave(self)
        self._on_end(self)
