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
        """Current time."""

    def call_at(self, at_ns: int, call: Callable[[], None]) -> Timer:
        """Call at a time; may be slightly early."""


class Closable(Protocol):
    """The driver's interface of a call."""

    @property
    def aborted_at_ns(self) -> int | None:
        """Time when we closed it."""

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
        self, steps: Steps, origin: RequestRef, attempts: Starts, gates: Gates,
        on_over: Callable[[Drive], object], timing: Timing,
    ) -> None:  # fmt: skip
        self.done: Done | None = None
        self.bug: Exception | None = None
        self.calls: dict[int, list[Closable]] = {}
        self.target = MAIN  # of the first call
        self.last_at_ns = 0  # of the event that was received last
        self._steps = steps
        self.origin = origin
        self._attempts = attempts
        self._gates = gates
        self._on_over = on_over
        self._timing = timing
        self._events: deque[Event] = deque()
        self._until_ns: int | None = None  # what a wait ends with, if nothing happens
        self._timer: Timer | None = None
        self._timer_ns: int | None = None
        self._unended = 0  # calls whose end the pattern has not received
        self._running = self._closing = False

    @property
    def attempts(self) -> int:
        """Calls made."""
        return sum(map(len, self.calls.values()))

    def begin(self, first: Step | None = None) -> None:
        """Run the pattern until it waits; `first`: its first step, where that was taken before."""
        self._run(begin=True, first=first)

    def post(self, event: Event) -> None:
        """Pass an event to the pattern, now or as soon as it waits."""
        if self.done is None:
            self._events.append(event)
            if not self._running:
                self._run()

    def send_no_more(self) -> None:
        """End it as censored instead of its next call."""
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

    def _run(self, *, begin: bool = False, first: Step | None = None) -> None:
        self._running = True
        try:
            step = next(self._steps) if begin and first is None else first
            while True:
                answer = self._next() if step is None else self._do(step)
                if answer is not None:
                    step = self._steps.send(answer)
                elif step is None:
                    return
                else:
                    step = None
        except StopIteration as stop:
            done = stop.value
            if not isinstance(done, Done):
                done = self._fail(TypeError(f"a pattern returned {done!r}, not Done"))
        except _CensoredError:
            done = Done(CENSORED)
        except Exception as error:  # noqa: BLE001 - whatever a pattern raises ends its request, and ours the run
            done = self._fail(error)
        finally:
            self._running = False
        self._end(done)

    def _fail(self, error: Exception) -> Done:
        self.bug = blamed(self._steps, error)
        return Done(PLUGIN_ERROR if fault(self.bug) else CENSORED)

    def _next(self) -> Event | None:
        """The pattern's next event; None: it waits."""
        if self._events:
            self._until_ns = None
            event = self._events.popleft()
            self.last_at_ns = event.at_ns
            self._unended -= isinstance(event, Ended)
            return event
        if self._closing and self._unended <= 0:
            raise _CensoredError
        if self._until_ns is None:
            return None
        now = self._timing.now_ns()
        if now >= self._until_ns:
            # A busy event loop looks at its timers first: an answer that came in time must not be taken for a late one.
            for call in [call for leg in self.calls.values() for call in leg]:
                call.catch_up()
            if self._events:
                return self._next()
            self._until_ns = None
            return events.Due(now)
        self._set_timer(self._until_ns)
        return None

    def _do(self, step: Step) -> Event | None:
        """Carry out a step; None: the pattern waits."""
        if isinstance(step, events.Wait):
            self._until_ns = step.until_ns
            return None
        if isinstance(step, Send):
            return self._send(step)
        if isinstance(step, events.Cancel):
            exchange = self.calls[step.leg][step.attempt]
            exchange.abort(step.ended)
            return events.Closed(
                step.leg, step.attempt, exchange.aborted_at_ns or self._timing.now_ns()
            )
        if isinstance(step, events.Take):
            taken = self._gates.take(step.gate, step.limit, self, step.leg)
            return (events.Taken if taken else events.Queued)(step.leg, self._timing.now_ns())
        if isinstance(step, events.Give):
            self._gates.give(step.gate, self)
            return events.Given(self._timing.now_ns())
        raise TypeError(f"a pattern yielded {step!r}, which is not a step")

    def _send(self, step: Send) -> Sent:
        due = self.origin.due
        if self._closing and due is None:
            raise _CensoredError
        if not self.calls:
            self.target = step.call.target
        leg = self.calls.setdefault(step.leg, [])
        number = len(leg)
        leg.append(self._attempts.start(self.origin, step, number, self.post))
        self._unended += 1
        return Sent(step.leg, number, self._timing.now_ns() if due is None else due.at_ns)

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
            self._timer = self._timer_ns = None

    def _on_timer(self) -> None:
        """The loop's clock is coarse: after an early call, wait for the rest."""
        self._cancel_timer()
        if self.done is None and not self._running:
            self._run()

    # --- the end ----------------------------------------------------------------------------------------------

    def _abort(self, reason: str) -> None:
        for exchange in [exchange for leg in self.calls.values() for exchange in leg]:
            exchange.abort(reason)

    def _end(self, done: Done) -> None:
        self.done = done
        self._cancel_timer()
        try:
            self._steps.close()
        except Exception as error:  # noqa: BLE001 - as above
            self.bug = self.bug or error
        if self._unended > 0:
            self._abort(CENSORED if self._closing else CANCELLED)
        self._gates.leave(self)
        self._on_over(self)
