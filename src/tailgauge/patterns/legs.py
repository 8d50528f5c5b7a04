"""Several legs of one request at once, each a generator of its own, driven by the request's one stream of events.

A leg does not know that there are others. Steps that are answered at once pass through; of all waits the earliest is
waited for; an event goes to the leg whose open call it belongs to, the rest (of calls that were closed) to nobody.
"""

from __future__ import annotations

from collections.abc import Generator

from tailgauge.patterns.events import (
    Cancel,
    Chunks,
    Closed,
    Due,
    Ended,
    Event,
    FirstContent,
    Give,
    Headers,
    Queued,
    Send,
    Sent,
    Step,
    Take,
    Taken,
    Wait,
)
from tailgauge.patterns.leg import Leg, LegEnd
from tailgauge.rows.schema import CANCELLED

_OF_A_CALL = (Headers, FirstContent, Chunks, Ended)


class Legs:
    """The legs of one request: `running` by their numbers, `ends` of those that are over."""

    def __init__(self) -> None:
        self.running: dict[int, Leg] = {}
        self.ends: dict[int, LegEnd] = {}
        self.with_content: set[int] = set()
        self.sent_at_ns: dict[int, int] = {}  # its first call
        self.last: dict[int, int] = {}  # the attempt that was sent last
        self._until_ns: dict[int, int | None] = {}
        self._open: dict[int, set[int]] = {}  # attempts
        self._gates: dict[int, str] = {}  # a place is held
        self._queues: dict[int, str] = {}  # a place is waited for

    def start(self, number: int, leg: Leg) -> Generator[Step, Event, None]:
        """Begin a leg; one of the same number must be over or closed."""
        self.running[number] = leg
        self._open[number] = set()
        self.ends.pop(number, None)
        self.with_content.discard(number)
        self.sent_at_ns.pop(number, None)
        yield from self._advance(number, None)

    def receive(self, until_ns: int | None = None) -> Generator[Step, Event, Event]:
        """Wait for the next event, or `Due` at `until_ns`; the legs receive it before the caller does."""
        times = [t for t in (until_ns, *self._until_ns.values()) if t is not None]
        event = yield Wait(min(times, default=None))
        if isinstance(event, Due):
            for number, until in list(self._until_ns.items()):
                if until is not None and until <= event.at_ns:
                    yield from self._advance(number, event)
        elif isinstance(event, Taken):
            gate = self._queues.pop(event.leg)
            if event.leg in self.running:
                self._gates[event.leg] = gate
                yield from self._advance(event.leg, event)
            else:
                yield Give(gate)
        elif isinstance(event, _OF_A_CALL) and event.attempt in self._open.get(event.leg, ()):
            if isinstance(event, FirstContent):
                self.with_content.add(event.leg)
            elif isinstance(event, Ended):
                self._open[event.leg].discard(event.attempt)
            yield from self._advance(event.leg, event)
        return event

    def is_open(self, event: Event) -> bool:
        """Whether an event is of a call that is still open."""
        return isinstance(event, _OF_A_CALL) and event.attempt in self._open.get(event.leg, ())

    def close(self, number: int, ended: str = CANCELLED) -> Generator[Step, Event, None]:
        """End a leg from outside: its calls are closed as `ended`, its place is given back."""
        leg = self.running.pop(number, None)
        if leg is None:
            return
        leg.close()
        self._until_ns.pop(number, None)
        for attempt in sorted(self._open.pop(number)):
            yield Cancel(number, attempt, ended)
        if number in self._gates:
            yield Give(self._gates.pop(number))

    def close_all(self) -> Generator[Step, Event, None]:
        """End all that run."""
        for number in list(self.running):
            yield from self.close(number)

    def _advance(self, number: int, event: Event | None) -> Generator[Step, Event, None]:
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
        if isinstance(step, Send):
            assert isinstance(answer, Sent)
            self._open[number].add(answer.attempt)
            self.sent_at_ns.setdefault(number, answer.at_ns)
            self.last[number] = answer.attempt
        elif isinstance(step, Cancel):
            assert isinstance(answer, Closed)
            self._open[number].discard(step.attempt)
        elif isinstance(step, Take):
            assert isinstance(answer, (Taken, Queued))
            (self._gates if isinstance(answer, Taken) else self._queues)[number] = step.gate
        elif isinstance(step, Give):
            self._gates.pop(number)
