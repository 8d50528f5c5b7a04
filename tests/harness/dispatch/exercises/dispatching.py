"""Exercise: the dispatcher, the driver and the alarm, with calls that end as they are told."""

from __future__ import annotations

import json
import traceback
from dataclasses import dataclass, field
from typing import Any

import gevent

from tailgauge.clock import monotonic_ns
from tailgauge.dispatch.alarm import Alarm
from tailgauge.dispatch.attempts import Origin
from tailgauge.dispatch.counters import Counters
from tailgauge.dispatch.dispatcher import Dispatcher
from tailgauge.dispatch.driver import drive
from tailgauge.records import TURNS
from tailgauge.scenario import parse
from tailgauge.traffic.steps import Ask, Call, Cancel, Due, Ended, FirstContent, Send, Sent, Wait

MS = 1_000_000


@dataclass
class FakeCall:
    """A call in flight."""

    post: Any
    leg: int
    attempt: int
    aborted: list[str] = field(default_factory=list)
    done: bool = False

    def end(self, ended: str = "ok") -> None:
        if not self.done:
            self.done = True
            self.post(Ended(self.leg, self.attempt, monotonic_ns(), ended, None))

    def abort(self, reason: str) -> None:
        if not self.done:
            self.aborted.append(reason)
            self.end(reason)


class FakeAttempts:
    """Starts calls that end at once, after `seconds`, or when told."""

    def __init__(self, seconds: float | None = 0.0) -> None:
        self.seconds = seconds
        self.calls: list[FakeCall] = []
        self.started: list[tuple[int, str, int]] = []

    def start(self, origin: Any, send: Any, attempt: int, post: Any) -> FakeCall:
        call = FakeCall(post, send.leg, attempt)
        self.calls.append(call)
        self.started.append((origin.request_id, send.call.prompt, origin.scheduled_at_ns))
        if self.seconds is not None:
            gevent.spawn_later(self.seconds, call.end)
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

    def __init__(self, seconds: float | None = 0.0, **limits: Any) -> None:
        scenario = parse(
            {
                "name": "n",
                "stages": {"duration_s": 10, "warmup_s": 0.05, "cooldown_s": 9.9},
                "limits": limits,
            },
            "x",
        )
        self.attempts, self.recorder, self.counters = FakeAttempts(seconds), Rows(), Counters()
        self.told: list[Any] = []
        self.bugs: list[str] = []
        self.dispatcher = Dispatcher(
            scenario, self.attempts, self.recorder, self.counters,
            lambda *ended: self.told.append(ended), lambda error: self.bugs.append(repr(error)),
        )  # fmt: skip
        self.start_at_ns = monotonic_ns() + 20 * MS

    def run(self) -> None:
        self.walker = gevent.spawn(self.dispatcher.run, self.start_at_ns)

    def facts(self) -> dict[str, Any]:
        rows = self.recorder.rows
        return {
            "ids": [row.request_id // TURNS for row in rows],
            "ended": [row.ended for row in rows],
            "stages": [row.stage for row in rows],
            "late": [row.dispatched_at_ns - row.scheduled_at_ns for row in rows if row.dispatched_at_ns],
            "planned": [row.scheduled_at_ns - self.start_at_ns for row in rows],
            "nulls": [
                [row.dispatched_at_ns is None, row.ended_at_ns is None, row.legs, row.attempts]
                for row in rows
            ],
            "started": [request_id // TURNS for request_id, _, _ in self.attempts.started],
            "counts": self.counters.as_message(),
            "in_flight": self.counters.in_flight,
            "told": len(self.told),
            "bugs": self.bugs,
        }


def arrivals(*at_ms: float, first: int = 0) -> list[Any]:
    return [((first + i) * TURNS, int(at * MS), "main", 5, 7) for i, at in enumerate(at_ms)]


def order() -> Any:
    bench = Bench()
    rows = arrivals(0, 5, 5, 20, 40, 60, 80, 101)
    bench.dispatcher.lease(rows[4:][::-1])
    bench.run()
    bench.dispatcher.lease(rows[:4][::-1])  # what comes later may be due earlier
    gevent.sleep(0.25)
    prompts = [text for _, text, _ in bench.attempts.started]
    bench.dispatcher.stop()
    bench.dispatcher.drain(1)
    return {**bench.facts(), "prompts": len(set(prompts)), "words": [len(text.split()) for text in prompts]}


def cap() -> Any:
    """Ten at once with room for three, three more when these have ended."""
    bench = Bench(0.1, in_flight_per_worker=3)
    bench.dispatcher.lease(arrivals(*[0] * 10, 300, 300, 300))
    bench.run()
    gevent.sleep(0.08)
    early = bench.facts()
    gevent.sleep(0.4)
    bench.dispatcher.stop()
    bench.dispatcher.drain(1)
    return {"early": early, "late": bench.facts()}


def stop() -> Any:
    bench = Bench()
    bench.dispatcher.lease(arrivals(0, 1, 2, 5000, 5001, 5002, 5003))
    bench.run()
    gevent.sleep(0.1)
    bench.dispatcher.stop()
    bench.dispatcher.stop()
    bench.walker.join(1)
    bench.dispatcher.lease(arrivals(0, 0, first=7))  # a slice that crossed the stop
    gevent.sleep(0.05)
    bench.dispatcher.drain(1)
    return {**bench.facts(), "walking": not bench.walker.ready()}


def drain() -> Any:
    """Two calls never end by themselves, one ends in the drain."""
    bench = Bench(None)
    bench.dispatcher.lease(arrivals(0, 1, 2))
    bench.run()
    gevent.sleep(0.1)
    bench.dispatcher.stop()
    gevent.spawn_later(0.05, bench.attempts.calls[1].end, "timeout")
    bench.dispatcher.drain(0.2)
    return {**bench.facts(), "reasons": [call.aborted for call in bench.attempts.calls]}


def hurried() -> Any:
    bench = Bench(None)
    bench.dispatcher.lease(arrivals(0, 1, 5000))
    bench.run()
    gevent.sleep(0.1)
    bench.dispatcher.hurry()
    started = monotonic_ns()
    bench.dispatcher.drain(60)
    return {**bench.facts(), "took_s": (monotonic_ns() - started) / 1e9}


def driven(make: Any, attempts: Any = None) -> Any:
    attempts = attempts or FakeAttempts(None)
    seen: list[Any] = []
    result = drive(
        lambda ask: make(ask, seen, attempts), Ask(0, 0, "p", 1), Origin(0, "steady", "main", 0), attempts
    )
    return {
        "result": [result.ended, result.legs, result.attempts],
        "seen": seen,
        "aborted": [c.aborted for c in attempts.calls],
    }


def driver_sends_and_cancels() -> Any:
    def pattern(ask: Any, seen: list[Any], attempts: Any) -> Any:
        sent = [
            (yield Send(Call("a", 1))),
            (yield Send(Call("b", 1), cause="hedge", of_attempt=0)),
            (yield Send(Call("c", 1), leg=1)),
        ]
        seen.extend([type(s).__name__, s.leg, s.attempt] for s in sent)
        attempts.calls[1].post(FirstContent(0, 1, 5))
        heard = yield Wait()
        seen.append([type(heard).__name__, heard.attempt])
        heard = yield Cancel(0, 0)
        seen.append([type(heard).__name__, heard.attempt, heard.ended])
        return "ok"

    return driven(pattern)


def driver_waits() -> Any:
    def pattern(ask: Any, seen: list[Any], attempts: Any) -> Any:
        until = monotonic_ns() + 30 * MS
        heard = yield Wait(until)
        seen.append([isinstance(heard, Due), heard.at_ns >= until])
        heard = yield Wait(0)
        seen.append([isinstance(heard, Due)])
        sent = yield Send(Call("a", 1))
        seen.append([isinstance(sent, Sent)])
        gevent.spawn_later(0.01, attempts.calls[0].end, "empty")
        heard = yield Wait(monotonic_ns() + 5000 * MS)
        seen.append([heard.ended])
        return heard.ended

    return driven(pattern)


def alarm() -> Any:
    """How late the alarm is, beside how late a sleep is, in the same minute."""
    bell = Alarm()
    late: dict[str, list[int]] = {"alarm": [], "sleep": []}
    for _ in range(60):
        due = monotonic_ns() + 3 * MS
        bell.wait_until(due)
        late["alarm"].append(monotonic_ns() - due)
        due = monotonic_ns() + 3 * MS
        gevent.sleep((due - monotonic_ns()) / 1e9)
        late["sleep"].append(monotonic_ns() - due)
    gevent.spawn_later(0.02, bell.ring)
    started = monotonic_ns()
    bell.wait_until(started + 5000 * MS)
    rung_s = (monotonic_ns() - started) / 1e9
    started = monotonic_ns()
    for at_ns in (0, started - MS, started):
        bell.wait_until(at_ns)
    past_s = (monotonic_ns() - started) / 1e9
    due = monotonic_ns() + 20 * MS  # a ring before the wait does not count for it
    bell.ring()
    bell.wait_until(due)
    after_ring = monotonic_ns() - due
    bell.close()
    return {
        **{k: sorted(v) for k, v in late.items()},
        "rung_s": rung_s,
        "past_s": past_s,
        "after_ring": after_ring,
    }


facts = {}
for run in (order, cap, stop, drain, hurried, driver_sends_and_cancels, driver_waits, alarm):
    try:
        with gevent.Timeout(20):
            facts[run.__name__] = run()
    except BaseException:  # noqa: BLE001 - told to the test
        facts[run.__name__] = {"raised": traceback.format_exc()}
print(json.dumps(facts))
