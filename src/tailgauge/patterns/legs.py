"""The legs of a request: one leg is a call with the retries and the hedge that its policies allow; several run at once.

A call gets at most one hedge. A hedged call is not retried, and a retried call is not hedged.

    first content of an attempt      it wins; the other is closed in the same step
    an attempt fails before content  the other goes on; if both fail, the leg ends as the last of them
    the only attempt fails           lost connection or server error, and no hedge was due yet: the hedge is sent now.
                                     Else the retry policy decides; after a 429 or 529 nothing else does
    the winner fails later           the leg ends with that failure: the user has seen the content

The delay of a hedge runs from `Sent`, when the call was started; its first byte leaves a little later.

`Legs` drives several from the request's one stream of events. A leg does not know that there are others. Steps that are
answered at once pass through; of all waits the earliest is waited for; an event goes to the leg whose open call it
belongs to, events of closed calls to none.
"""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass, replace
from random import Random

from tailgauge.call import Call
from tailgauge.patterns import events
from tailgauge.patterns.events import (
    Done,
    Ended,
    Event,
    FirstContent,
    OfCall,
    Request,
    Send,
    Step,
    Wait,
)
from tailgauge.patterns.policies import Policies
from tailgauge.rows import schema

_HEDGED_AT_ONCE = frozenset({schema.CONNECT_ERROR, schema.SERVER_ERROR})


@dataclass(slots=True)
class LegEnd:
    """How a leg ended."""

    ended: str
    at_ns: int
    attempt: int | None  # whose answer the user got; None without one
    last_attempt: int  # that ended last
    text: str | None = None
    hedge_held: str | None = None  # why a due hedge was not sent
    retry_after_s: float | None = None
    location: str | None = None


Leg = Generator[Step, Event, LegEnd]


def done(end: LegEnd) -> Done:
    """Return how a request of one leg ended."""
    return Done(end.ended, winner=end.attempt, hedge_held=end.hedge_held, text=end.text)


def leg(
    call: Call,
    request: Request,
    policies: Policies,
    number: int = 0,
    *,
    cause: str = schema.PRIMARY,
    of_attempt: int | None = None,
) -> Leg:
    """Make a call as leg `number`; returns when it is over. `cause` and `of_attempt` as in `Send`."""
    if policies.is_off:
        return _single_attempt(call, number, cause, of_attempt)
    return _Leg(call, request, policies, number).run(cause, of_attempt)


def _single_attempt(call: Call, number: int, cause: str, of_attempt: int | None) -> Leg:
    """Make one attempt, which is neither hedged nor retried."""
    sent = yield Send(call, number, cause, of_attempt)
    assert isinstance(sent, events.Sent)
    attempt = sent.attempt
    while True:
        event = yield Wait()
        if isinstance(event, Ended) and (event.leg, event.attempt) == (number, attempt):
            has_answer = event.had_content or event.ended in schema.SERVED
            return _leg_end(event, winner=attempt if has_answer else None)


def _leg_end(event: Ended, *, winner: int | None, hedge_held: str | None = None) -> LegEnd:
    """Return the end of a leg that ends with this attempt."""
    return LegEnd(
        ended=event.ended,
        at_ns=event.at_ns,
        attempt=winner,
        last_attempt=event.attempt,
        text=event.text,
        hedge_held=hedge_held,
        retry_after_s=event.retry_after_s,
        location=event.location,
    )


class _Leg:
    """One call with its retries and its hedge. `open`: the calls in flight, by attempt."""

    def __init__(self, call: Call, request: Request, policies: Policies, number: int) -> None:
        self.call = call
        self.request = request
        self.number = number
        self.retrier = policies.retrier
        self.hedger = policies.hedger
        self.open: dict[int, Call] = {}
        # The latest attempt that is no hedge, when it was sent, and when its hedge is due.
        self.primary = -1
        self.sent_at_ns = 0
        self.due_at_ns: int | None = None
        self.winner: int | None = None
        self.hedge_held: str | None = None
        self.retries = 0
        self.hedged = False

    def run(self, cause: str, of_attempt: int | None) -> Leg:
        """Take the steps of the leg, from its first call to its end, and return how it ended.

        `cause` and `of_attempt`: of the first call, as in `Send`. A step that is yielded is answered with
        an event.
        """
        yield from self._send(self.call, cause, of_attempt)
        # Both budgets grow with each call that is neither a retry nor a hedge.
        self.retrier.called()
        self.hedger.called()
        while True:
            # A hedge without a delay is sent at once.
            if self.due_at_ns is not None and self.due_at_ns <= self.sent_at_ns:
                yield from self._hedge_if_allowed(self.sent_at_ns)
            event = yield Wait(self.due_at_ns)
            if isinstance(event, events.Due):
                if self.due_at_ns is not None and event.at_ns >= self.due_at_ns:
                    yield from self._hedge_if_allowed(event.at_ns)
                continue
            # Events of other legs, and of attempts that were closed, change nothing.
            if not (isinstance(event, OfCall) and self._is_open(event)):
                continue
            if isinstance(event, FirstContent):
                yield from self._take_content(event)
            elif isinstance(event, Ended):
                end = yield from self._take_end(event)
                if end is not None:
                    return end

    def _is_open(self, event: OfCall) -> bool:
        return event.leg == self.number and event.attempt in self.open

    def _send(self, call: Call, cause: str, of_attempt: int | None) -> Generator[Step, Event, None]:
        sent = yield Send(call, self.number, cause, of_attempt)
        assert isinstance(sent, events.Sent)
        self.open[sent.attempt] = call
        if cause != schema.HEDGE:
            self.primary = sent.attempt
            self.sent_at_ns = sent.at_ns
            draw = 0.0
            if self.hedger.draws:
                draw = self._draw("hedge", self.retries)
            self.due_at_ns = self.hedger.due_at_ns(sent.at_ns, draw)

    def _hedge_if_allowed(self, now_ns: int) -> Generator[Step, Event, None]:
        """Send the hedge, which is due, if the policy allows it."""
        self.due_at_ns = None
        obstacle = self.hedger.take(now_ns, retried=self.retries > 0)
        if obstacle is not None:
            self.hedge_held = self.hedge_held or obstacle
            return
        self.hedged = True
        hedge = replace(self.call, target=self.hedger.target)
        yield from self._send(hedge, schema.HEDGE, self.primary)

    def _take_content(self, event: FirstContent) -> Generator[Step, Event, None]:
        """Let the first attempt with content win."""
        if self.winner is not None:
            return
        if event.attempt == self.primary:
            self.hedger.waited(event.at_ns - event.sent_at_ns, event.at_ns)
        yield from self._let_win(event.attempt, event.at_ns)

    def _let_win(self, winner: int, now_ns: int) -> Generator[Step, Event, None]:
        """Make an attempt the winner, and close every other one."""
        self.winner = winner
        self.due_at_ns = None
        for attempt in list(self.open):
            if attempt == winner:
                continue
            del self.open[attempt]
            if attempt == self.primary:
                self.hedger.waited(now_ns - self.sent_at_ns, now_ns)
            yield events.Cancel(self.number, attempt)

    def _take_end(self, event: Ended) -> Generator[Step, Event, LegEnd | None]:
        """Return the end of the leg, if this end of an attempt is it; None: another attempt is in flight, or was sent now.

        Waits for the time of a retry.
        """
        call = self.open.pop(event.attempt)
        self.hedger.ended(event, call.target)
        if self.winner is not None:
            return self._end(event)
        # Served without content: an answer all the same, and it wins.
        if event.ended in schema.SERVED:
            yield from self._let_win(event.attempt, event.at_ns)
            return self._end(event)
        if event.ended == schema.TIMEOUT and event.attempt == self.primary:
            # The adaptive delay counts the wait of a primary attempt that timed out.
            self.hedger.waited(event.at_ns - self.sent_at_ns, event.at_ns)
        if self.open:
            return None
        # The only attempt has failed before its hedge was due: the hedge may help now.
        may_help = event.ended in _HEDGED_AT_ONCE and event.should_retry is not False
        if may_help and self.due_at_ns is not None:
            yield from self._hedge_if_allowed(event.at_ns)
            if self.open:
                return None
        is_retried = yield from self._retry(event)
        if is_retried:
            return None
        return self._end(event)

    def _retry(self, event: Ended) -> Generator[Step, Event, bool]:
        """Wait for the time of a retry and send it; False if there is to be none."""
        self.due_at_ns = None
        if self.hedged:
            return False
        at_ns = self.retrier.begins_at_ns(
            event,
            retries=self.retries,
            scheduled_at_ns=self.request.scheduled_at_ns,
            draw=self._draw("retry", self.retries),
            streams=self.call.stream,
        )
        if at_ns is None:
            return False
        if event.at_ns < at_ns:
            yield from events.until(at_ns)
        self.retries += 1
        yield from self._send(self.call, schema.RETRY, event.attempt)
        return True

    def _end(self, event: Ended) -> LegEnd:
        return _leg_end(event, winner=self.winner, hedge_held=self.hedge_held)

    def _draw(self, purpose: str, retries: int) -> float:
        """Return a number that is uniform in [0, 1), the same whenever the run is repeated."""
        request = self.request
        key = f"{request.seed}/{request.request_id}/{self.number}/{purpose}/{retries}"
        return Random(key).random()


class Legs:
    """The legs of one request, all by their numbers: `running`, and `ends` of those that are over."""

    def __init__(self) -> None:
        self.running: dict[int, Leg] = {}
        self.ends: dict[int, LegEnd] = {}
        self.with_content: set[int] = set()
        self.sent_at_ns: dict[int, int] = {}  # its first call
        self.last_attempt: dict[int, int] = {}  # that was sent
        self._until_ns: dict[int, int | None] = {}  # with which its wait ends
        self._open: dict[int, set[int]] = {}  # its attempts in flight
        self._gates: dict[int, str] = {}  # of which it holds a slot
        self._queues: dict[int, str] = {}  # in which it waits for a slot

    def start(self, number: int, leg: Leg) -> Generator[Step, Event, None]:
        """Begin a leg; one of the same number must be over or closed."""
        self.running[number] = leg
        self._open[number] = set()
        self.ends.pop(number, None)
        self.with_content.discard(number)
        self.sent_at_ns.pop(number, None)
        yield from self._advance(number, None)

    def receive(self, until_ns: int | None = None) -> Generator[Step, Event, Event]:
        """Wait for the next event, or `Due` at `until_ns`, and return it; the legs receive it before the caller does.

        One leg takes an event of a call; a time that has come goes to each leg that waited for it. A leg
        that ends is in `ends` afterwards. None as `until_ns`: only the waits of legs have an end.
        """
        times_ns = [at_ns for at_ns in (until_ns, *self._until_ns.values()) if at_ns is not None]
        event = yield Wait(min(times_ns, default=None))
        if isinstance(event, events.Due):
            for number, leg_until_ns in list(self._until_ns.items()):
                if leg_until_ns is not None and leg_until_ns <= event.at_ns:
                    yield from self._advance(number, event)
        elif isinstance(event, events.Taken):
            gate = self._queues.pop(event.leg)
            if event.leg in self.running:
                self._gates[event.leg] = gate
                yield from self._advance(event.leg, event)
            else:
                # The leg was closed while it waited for the slot.
                yield events.Give(gate)
        elif isinstance(event, OfCall) and self.is_open(event):
            if isinstance(event, FirstContent):
                self.with_content.add(event.leg)
            elif isinstance(event, Ended):
                self._open[event.leg].discard(event.attempt)
            yield from self._advance(event.leg, event)
        return event

    def is_open(self, event: Event) -> bool:
        """Return whether an event is of a call that is still open."""
        return isinstance(event, OfCall) and event.attempt in self._open.get(event.leg, ())

    def close(self, number: int, ended: str = schema.CANCELLED) -> Generator[Step, Event, None]:
        """End a leg from outside: its calls are closed as `ended`, its place is given back."""
        leg = self.running.pop(number, None)
        if leg is None:
            return
        leg.close()
        self._until_ns.pop(number, None)
        for attempt in sorted(self._open.pop(number)):
            yield events.Cancel(number, attempt, ended)
        if number in self._gates:
            yield events.Give(self._gates.pop(number))

    def close_all(self) -> Generator[Step, Event, None]:
        """End all that run."""
        for number in list(self.running):
            yield from self.close(number)

    def _advance(self, number: int, event: Event | None) -> Generator[Step, Event, None]:
        """Pass an event to a leg and take its steps until it waits or is over."""
        leg = self.running[number]
        try:
            step = next(leg) if event is None else leg.send(event)
            while not isinstance(step, Wait):
                answer = yield step
                self._note(number, step, answer)
                step = leg.send(answer)
            self._until_ns[number] = step.until_ns
        except StopIteration as stop:
            self.ends[number] = stop.value
            del self.running[number]
            self._until_ns.pop(number, None)

    def _note(self, number: int, step: Step, answer: Event) -> None:
        """Keep account of a leg's open calls and its slot."""
        if isinstance(step, Send):
            assert isinstance(answer, events.Sent)
            self._open[number].add(answer.attempt)
            self.sent_at_ns.setdefault(number, answer.at_ns)
            self.last_attempt[number] = answer.attempt
        elif isinstance(step, events.Cancel):
            self._open[number].discard(step.attempt)
        elif isinstance(step, events.Take):
            slots = self._gates if isinstance(answer, events.Taken) else self._queues
            slots[number] = step.gate
        elif isinstance(step, events.Give):
            self._gates.pop(number)
