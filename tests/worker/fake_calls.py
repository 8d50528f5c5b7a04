"""What surrounds the dispatcher in a test: calls that end at once, after some time, or on request; rows in a list."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import gevent

from tailgauge.clock import monotonic_ns
from tailgauge.patterns.events import Ended
from tailgauge.prompts import Maker
from tailgauge.rows.schema import TURNS
from tailgauge.scenario.model import parse
from tailgauge.worker.counters import Counters
from tailgauge.worker.dispatcher import Dispatcher
from tailgauge.worker.timers import Later

MS = 1_000_000


@dataclass
class FakeCall:
    """A call in flight."""

    post: Any
    leg: int
    attempt: int
    text: str | None = None
    aborted: list[str] = field(default_factory=list)
    aborted_at_ns: int | None = None
    on_abort: Any = None  # what closing a call brings to light
    on_catch_up: Any = None  # what had come and was not looked at
    done: bool = False

    def end(self, ended: str = "ok", at_ns: int | None = None) -> None:
        if not self.done:
            self.done = True
            self.post(
                Ended(self.leg, self.attempt, at_ns or monotonic_ns(), ended, None, text=self.text)
            )

    def catch_up(self) -> None:
        if self.on_catch_up and not self.done:
            self.on_catch_up()

    def abort(self, reason: str) -> None:
        if not self.done:
            self.aborted.append(reason)
            self.aborted_at_ns = monotonic_ns()
            if self.on_abort:
                self.on_abort()
            self.end(reason)


class FakeAttempts:
    """Starts calls that end at once, after `seconds`, or on request; `classes` says how, by number of the call."""

    def __init__(self, seconds: float | None = 0.0, classes: dict[int, str] | None = None) -> None:
        self.seconds, self.classes = seconds, classes or {}
        self.calls: list[FakeCall] = []
        self.started: list[tuple[int, Any, int]] = []
        self.open: dict[int, Any] = {}  # rows are instant here: nothing is ever half recorded
        self.later = Later()
        self.in_order = self.later.add
        self.on_start = lambda _: None

    ahead_ns = 0

    def prepare(self, *_: Any, **__: Any) -> None:
        """Nothing leaves before its time here."""

    def start(self, origin: Any, send: Any, attempt: int, post: Any) -> FakeCall:
        self.on_start(send)
        number = len(self.calls)
        call = FakeCall(
            post, send.leg, attempt, f"answer {number}" if send.call.keep_text else None
        )
        self.calls.append(call)
        self.started.append((origin.request_id, send.call.prompt, origin.scheduled_at_ns))
        if self.seconds is not None:
            gevent.spawn_later(self.seconds, call.end, self.classes.get(number, "ok"))
        return call

    def abort_open(self, reason: str) -> None:
        for call in self.calls:
            call.abort(reason)


class Rows:
    """Keeps request rows."""

    def __init__(self) -> None:
        self.rows: list[Any] = []

    def request(self, row: Any) -> None:
        self.rows.append(row)


class Bench:
    """A dispatcher with its surroundings."""

    def __init__(
        self, seconds: float | None = 0.0, *, pattern: Any = None, tables: Any = None, **limits: Any
    ) -> None:
        tree = {"stages": {"duration_s": 10, "warmup_s": 0.05, "cooldown_s": 9.9}, **(tables or {})}
        scenario = parse({"name": "n", "limits": limits, **tree}, "x")
        self.attempts = FakeAttempts(seconds)
        self.recorder = Rows()
        self.counters = Counters()
        self.summary: list[Any] = []
        self.bugs: list[str] = []
        makers = {
            name: Maker(scenario.seed, traffic, name) for name, traffic in scenario.traffic.items()
        }
        self.dispatcher = Dispatcher(
            scenario,
            makers,
            self.attempts,
            recorder=self.recorder,
            counters=self.counters,
            on_ended=lambda *ended: self.summary.append(ended),
            on_bug=lambda error: self.bugs.append(repr(error)),
        )
        for at_work in self.dispatcher._patterns.values() if pattern else ():
            at_work.steps = pattern
        self.start_at_ns = monotonic_ns() + 20 * MS

    def run(self) -> None:
        self.walker = gevent.spawn(self.dispatcher.run, self.start_at_ns)

    @property
    def rows(self) -> list[Any]:
        return self.recorder.rows

    @property
    def started(self) -> list[int]:
        """Numbers of the arrivals of which a call was started."""
        return [request_id // TURNS for request_id, _, _ in self.attempts.started]

    @property
    def ended(self) -> list[str]:
        return [row.ended for row in self.rows]

    @property
    def ended_by_number(self) -> dict[int, str]:
        return {row.request_id // TURNS: row.ended for row in self.rows}

    @property
    def planned_ms(self) -> list[float]:
        return [(row.scheduled_at_ns - self.start_at_ns) / MS for row in self.rows]

    def close(self, drain_s: float = 1.0) -> dict[str, Any]:
        """Stop and drain; return the counts, which have everything leased in exactly one place."""
        self.dispatcher.stop()
        self.dispatcher.drain(drain_s)
        return self.counts()

    def counts(self) -> dict[str, Any]:
        counts = self.counters.as_message()
        placed = counts["dispatched"] + counts["client_drop"] + counts["not_reached"]
        assert counts["leased"] == placed
        assert counts["dispatched"] == sum(counts["ended"].values()) + counts["censored"]
        assert (self.counters.in_flight, self.dispatcher._open) == (0, {})
        return counts


def arrivals(*at_ms: float, first: int = 0, turns: int = 1) -> list[Any]:
    return [((first + i) * TURNS, int(at * MS), "main", 5, 7, turns) for i, at in enumerate(at_ms)]


def wait_until(done: Callable[[], Any]) -> None:
    with gevent.Timeout(10):
        while not done():
            gevent.sleep(0.005)
