"""A driver of patterns on a simulated clock, with calls whose outcome is scripted; it keeps every step and event.

Rule: it is as strict as the contract in `traffic.steps` allows: it refuses a step that the contract does not, hands
events out in order of time, and closes nothing that a pattern should have closed itself without noting it.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from itertools import count

from tailgauge.call import Prompt
from tailgauge.patterns.events import (
    Cancel,
    Chunks,
    Closed,
    Done,
    Due,
    Ended,
    Event,
    FirstContent,
    Give,
    Given,
    Queued,
    Request,
    Send,
    Sent,
    Step,
    Steps,
    Take,
    Taken,
    Wait,
)
from tailgauge.patterns.pattern import Pattern
from tailgauge.rows.schema import OK

MS = 1_000_000
S = 1_000_000_000


@dataclass(frozen=True)
class Outcome:
    """What becomes of a call: times since it was sent."""

    content_ns: int | None
    ended_ns: int
    ended: str = OK
    retry_after_s: float | None = None
    should_retry: bool | None = None
    text: str | None = None
    chunks_ns: int | None = None  # when as many as were watched for have arrived


def answers(content_ms: float, ended_ms: float | None = None, **more: object) -> Outcome:
    """An answer."""
    ended = content_ms + 100 if ended_ms is None else ended_ms
    return Outcome(round(content_ms * MS), round(ended * MS), **more)  # type: ignore[arg-type]


def fails(ended: str, at_ms: float, **more: object) -> Outcome:
    """A failure before content."""
    return Outcome(None, round(at_ms * MS), ended, **more)  # type: ignore[arg-type]


@dataclass
class Entry:
    """A step or an event, and when."""

    at_ns: int
    what: Step | Event


@dataclass(eq=False)
class Played:
    """One request under way: `log` is the whole conversation with its pattern."""

    planned: Request
    pattern: Steps
    log: list[Entry] = field(default_factory=list)
    inbox: deque[Event] = field(default_factory=deque)
    attempts: dict[int, int] = field(default_factory=dict)
    open: set[tuple[int, int]] = field(default_factory=set)
    left_open: set[tuple[int, int]] = field(default_factory=set)
    holds: list[str] = field(default_factory=list)
    waits: int = 0  # grows with each wait: a timer for an older one is void
    waiting: bool = False
    done: Done | None = None
    done_at_ns: int = -1

    def steps(self, kind: type) -> list[Entry]:
        """Steps and events of this type."""
        return [entry for entry in self.log if isinstance(entry.what, kind)]

    @property
    def sends(self) -> list[Send]:
        """The calls."""
        return [entry.what for entry in self.steps(Send)]  # type: ignore[misc]

    @property
    def sent_at_ns(self) -> list[int]:
        """When they were sent."""
        return [entry.at_ns for entry in self.steps(Send)]

    @property
    def cancels(self) -> list[Cancel]:
        """Those that were closed."""
        return [entry.what for entry in self.steps(Cancel)]  # type: ignore[misc]

    @property
    def causes(self) -> list[str]:
        """Their causes."""
        return [send.cause for send in self.sends]


class World:
    """A simulated clock, calls and gates; `outcome` is called once for each call."""

    def __init__(self, outcome: Callable[[Request, Send, int, int], Outcome]) -> None:
        self.outcome = outcome  # of (request, send, attempt, now)
        self.now_ns = 0
        self._agenda: list[tuple[int, int, Callable[[], None]]] = []
        self._numbers = count()
        self.taken: dict[str, int] = {}
        self.most_taken: dict[str, int] = {}
        self.queues: dict[str, deque[tuple[Played, int]]] = {}

    def run(self, pattern: Pattern, arrivals: Iterable[Request]) -> list[Played]:
        """All requests to their ends, each from its scheduled time on."""
        requests = []
        for one in arrivals:
            request = Played(one, pattern.steps(one))
            requests.append(request)
            self._at(one.scheduled_at_ns, lambda r=request: self._talk(r, None))  # type: ignore[misc]
        while self._agenda:
            self.now_ns, _, act = heapq.heappop(self._agenda)
            act()
        assert all(request.done is not None for request in requests), "a pattern waits for nothing"
        return requests

    def _at(self, at_ns: int, act: Callable[[], None]) -> None:
        heapq.heappush(self._agenda, (at_ns, next(self._numbers), act))

    def _post(self, request: Played, event: Event) -> None:
        if request.done is not None:
            return
        if isinstance(event, (FirstContent, Chunks, Ended)):
            if (event.leg, event.attempt) not in request.open:
                return  # it was closed
            if isinstance(event, Ended):
                request.open.discard((event.leg, event.attempt))
        request.inbox.append(event)
        if request.waiting:
            self._talk(request, request.inbox.popleft())

    def _talk(self, request: Played, event: Event | None) -> None:
        request.waiting = False
        try:
            while True:
                if event is not None:
                    request.log.append(Entry(self.now_ns, event))
                step = next(request.pattern) if event is None else request.pattern.send(event)
                request.log.append(Entry(self.now_ns, step))
                if not isinstance(step, Wait):
                    event = self._do(request, step)
                elif request.inbox:
                    event = request.inbox.popleft()
                else:
                    return self._wait(request, step.until_ns)
        except StopIteration as stop:
            request.done, request.done_at_ns = stop.value, self.now_ns
            request.left_open, request.open = request.open, set()
            for queue in self.queues.values():
                for place in [p for p in queue if p[0] is request]:
                    queue.remove(place)
            for gate in list(
                request.holds
            ):  # given back for it, as it may not have received them yet
                self._give(request, gate)

    def _wait(self, request: Played, until_ns: int | None) -> None:
        request.waiting = True
        request.waits += 1
        if until_ns is None:
            return
        number = request.waits

        def fire() -> None:
            if request.waiting and request.waits == number:
                self._talk(request, Due(self.now_ns))

        self._at(max(until_ns, self.now_ns), fire)

    def _do(self, request: Played, step: Step) -> Event:
        now = self.now_ns
        match step:
            case Send():
                return self._send(request, step)
            case Cancel(leg, attempt, ended):
                if (leg, attempt) in request.open:
                    request.open.discard((leg, attempt))
                    request.inbox.append(Ended(leg, attempt, now, ended, None))
                return Closed(leg, attempt, now)
            case Take(gate, limit, leg):
                if self.taken.get(gate, 0) < limit:
                    return self._take(request, gate, leg)
                self.queues.setdefault(gate, deque()).append((request, leg))
                return Queued(leg, now)
            case Give(gate):
                self._give(request, gate)
                return Given(now)
        raise AssertionError(f"not a step: {step!r}")

    def _give(self, request: Played, gate: str) -> None:
        request.holds.remove(gate)
        self.taken[gate] -= 1
        if self.queues.get(gate):
            other, leg = self.queues[gate].popleft()
            taken = self._take(other, gate, leg)
            self._at(self.now_ns, lambda: self._post(other, taken))

    def _take(self, request: Played, gate: str, leg: int) -> Taken:
        self.taken[gate] = self.taken.get(gate, 0) + 1
        self.most_taken[gate] = max(self.most_taken.get(gate, 0), self.taken[gate])
        request.holds.append(gate)
        return Taken(leg, self.now_ns)

    def _send(self, request: Played, send: Send) -> Sent:
        now, leg = self.now_ns, send.leg
        attempt = request.attempts.get(leg, 0)
        request.attempts[leg] = attempt + 1
        request.open.add((leg, attempt))
        outcome = self.outcome(request.planned, send, attempt, now)

        def later(since_ns: int, make: Callable[[int], Event]) -> None:
            at = now + since_ns
            self._at(at, lambda: self._post(request, make(at)))

        if outcome.content_ns is not None:
            later(outcome.content_ns, lambda at: FirstContent(leg, attempt, at, now))
        if outcome.chunks_ns is not None and send.call.watch_chunks:
            later(outcome.chunks_ns, lambda at: Chunks(leg, attempt, at))
        later(
            outcome.ended_ns,
            lambda at: Ended(
                leg, attempt, at, outcome.ended, outcome.retry_after_s, outcome.should_retry,
                outcome.text if send.call.keep_text or send.call.kind != "message" else None,
                had_content=outcome.content_ns is not None,
            ),
        )  # fmt: skip
        return Sent(leg, attempt, now)


def asked(request_id: int = 0, at_ns: int = 0, legs: int = 1, **more: object) -> Request:
    """One request."""
    prompts = tuple(Prompt.of(f"question {request_id} {leg}") for leg in range(legs))
    return Request(request_id, at_ns, prompts, 50, **more)  # type: ignore[arg-type]
