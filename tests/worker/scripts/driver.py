"""Script: the driver and its gates, with patterns written here and calls that do as the case wants."""

from __future__ import annotations

from typing import Any

import gevent
from gevent import get_hub
from starting.script import print_facts
from worker.scripts.fake_calls import MS, FakeAttempts

from tailgauge.call import Call, Prompt
from tailgauge.clock import monotonic_ns
from tailgauge.patterns.concurrency_gate import Gates
from tailgauge.patterns.events import (  # fmt: skip
    Cancel,
    Chunks,
    Done,
    Due,
    Ended,
    FirstContent,
    Give,
    Queued,
    Send,
    Sent,
    Take,
    Taken,
    Wait,
)
from tailgauge.worker.attempts import RequestRef
from tailgauge.worker.driver import Drive
from tailgauge.worker.timers import HubTime

CALL = Call(Prompt.of("a"), 1)


def begun(pattern: Any, attempts: Any = None, gates: Any = None) -> Drive:
    drive = Drive(
        pattern,
        RequestRef(0, "steady", "main", 0),
        attempts or FakeAttempts(None),
        gates=gates or Gates(),
        on_end=lambda _: None,
        timing=HubTime(),
    )
    drive.begin()
    return drive


def name(event: Any) -> str:
    return type(event).__name__


def sends_and_cancels() -> Any:
    attempts, seen = FakeAttempts(None), []

    def pattern() -> Any:
        sent = [
            (yield Send(CALL)),
            (yield Send(CALL, cause="hedge", of_attempt=0)),
            (yield Send(CALL, leg=1)),
        ]
        seen.extend([name(s), s.leg, s.attempt] for s in sent)
        received = yield Wait()
        seen.append([name(received), received.attempt])
        closed = yield Cancel(0, 0)
        seen.append([name(closed), closed.attempt])
        received = yield Wait()
        seen.append([name(received), received.attempt, received.ended])
        return Done("ok")

    drive = begun(pattern(), attempts)
    attempts.calls[1].post(FirstContent(0, 1, 5, 1))
    return {
        "seen": seen,
        "result": [drive.done.ended, len(drive.calls), drive.attempts],
        "aborted": [call.aborted for call in attempts.calls],
    }


def waits() -> Any:
    attempts, seen, unmoved = FakeAttempts(None), [], monotonic_ns() + 5000 * MS

    def pattern() -> Any:
        until = monotonic_ns() + 30 * MS
        received = yield Wait(until)
        seen.append([isinstance(received, Due), received.at_ns >= until])
        received = yield Wait(0)
        seen.append([isinstance(received, Due)])
        sent = yield Send(CALL)
        seen.append([isinstance(sent, Sent)])
        gevent.spawn_later(0.01, attempts.calls[0].end, "empty")
        received = yield Wait(unmoved)
        seen.append([received.ended])
        return Done(received.ended)

    drive = begun(pattern(), attempts)
    gevent.sleep(0.08)
    return {
        "seen": seen,
        "result": [drive.done.ended, 1, drive.attempts],
        "timer_left": drive._timer is not None,
    }


def never_early() -> Any:
    """Many times at once, with a hub that is busy in between, so that the loop's own clock is behind."""
    early: list[int] = []

    def pattern(until: int) -> Any:
        received = yield Wait(until)
        early.append(received.at_ns - until)
        return Done("ok")

    now = monotonic_ns()
    drives = [begun(pattern(now + number * MS // 3)) for number in range(300)]
    while any(drive.done is None for drive in drives):
        busy = monotonic_ns() + 2 * MS
        while monotonic_ns() < busy:
            pass
        gevent.sleep(0.0001)
    return {"count": len(early), "earliest": min(early)}


def came_in_time() -> Any:
    """The time of a wait has passed, and what had come before was not looked at yet."""
    attempts, seen = FakeAttempts(None), []

    def pattern() -> Any:
        yield Send(CALL)
        call = attempts.calls[0]

        def catch_up() -> None:
            call.on_catch_up = None
            call.post(FirstContent(0, 0, 5, 1))

        call.on_catch_up = catch_up
        seen.append(name((yield Wait(0))))
        seen.append(name((yield Wait(0))))
        return Done("ok")

    begun(pattern(), attempts)
    return seen


def reentered() -> Any:
    """Closing a call brings its own content to light, in the middle of the pattern's step."""
    attempts, seen = FakeAttempts(None), []

    def pattern() -> Any:
        yield Send(CALL)
        yield Send(CALL)
        received = yield Wait()
        seen.append([name(received), received.attempt])
        seen.append([name((yield Cancel(0, 1)))])
        for _ in range(2):
            received = yield Wait(0)  # long past: what has happened comes before the time
            seen.append([name(received), received.attempt])
        seen.append([name((yield Wait(0)))])
        return Done("ok")

    drive = begun(pattern(), attempts)
    loser = attempts.calls[1]
    loser.on_abort = lambda: loser.post(FirstContent(0, 1, 2, 1))
    attempts.calls[0].post(FirstContent(0, 0, 1, 1))
    return {"seen": seen, "ended": drive.done.ended}


def hub_runs_it() -> Any:
    """An event that a callback of the hub posts: the steps are carried out before the callback returns."""
    attempts, order = FakeAttempts(None), []

    def pattern() -> Any:
        yield Send(CALL)
        yield Send(CALL)
        yield Wait()
        yield Cancel(0, 1)
        order.append("cancelled")
        return Done("ok")

    begun(pattern(), attempts)

    def read() -> None:
        attempts.calls[0].post(Chunks(0, 0, 1))
        order.append("callback returns")

    get_hub().loop.run_callback(read)
    gevent.sleep(0.01)
    return order


def bugs() -> Any:
    def raises() -> Any:
        yield Send(CALL)
        raise KeyError("x")

    def yields_nonsense() -> Any:
        yield "wait"

    def returns_nonsense() -> Any:
        yield Wait(0)
        return "ok"

    def cancels_nothing() -> Any:
        yield Cancel(3, 1)

    def gives_nothing() -> Any:
        yield Give("gate")

    def will_not_go() -> Any:
        try:
            yield Wait()
        finally:
            yield Wait()

    facts = {}
    for make in (
        raises,
        yields_nonsense,
        returns_nonsense,
        cancels_nothing,
        gives_nothing,
        will_not_go,
    ):
        attempts = FakeAttempts(None)
        drive = begun(make(), attempts)
        drive.censor()
        facts[make.__name__] = [
            name(drive.bug),
            drive.done.ended,
            [call.aborted for call in attempts.calls],
        ]
    return facts


def gates() -> Any:
    """Ten requests, two places: first come, first served; never more than two inside."""
    shared, order, inside, most = Gates(), [], [0], [0]

    def pattern(number: int) -> Any:
        received = yield Take("calls", 2, number)
        while not isinstance(received, Taken):
            received = yield Wait()
        assert received.leg == number
        order.append(number)
        inside[0] += 1
        most[0] = max(most[0], inside[0])
        until = monotonic_ns() + 2 * MS
        while not isinstance(received, Due):
            received = yield Wait(until)
        inside[0] -= 1
        if number % 3:
            yield Give("calls")  # the others give back by ending
        return Done("ok")

    drives = [begun(pattern(number), gates=shared) for number in range(10)]
    while any(drive.done is None for drive in drives):
        gevent.sleep(0.001)
    gate = shared._gates["calls"]
    return {
        "order": order,
        "most": most[0],
        "left": [gate.in_use, len(gate.waiting), len(gate.places)],
    }


def gate_legs() -> Any:
    """One request with two legs in line, and what it hears; a request that leaves the line."""
    shared, seen = Gates(), []

    def holder() -> Any:
        yield Take("calls", 1)
        yield Wait()
        return Done("ok")

    def waiter() -> Any:
        seen.append([name((yield Take("calls", 1, 0))), name((yield Take("calls", 1, 1)))])
        for _ in range(2):
            received = yield Wait()
            seen.append([name(received), received.leg])
            yield Give("calls")
        return Done("ok")

    def leaver() -> Any:
        received = yield Take("calls", 1)
        assert isinstance(received, Queued)
        yield Wait()

    first, gone, last = (begun(make(), gates=shared) for make in (holder, leaver, waiter))
    gone.censor()
    first.post(Chunks(0, 0, 1))
    return {"seen": seen, "ended": [drive.done.ended for drive in (first, gone, last)]}


def deep_gate() -> Any:
    """A thousand in line who each give their place back at once: no recursion."""
    shared = Gates()

    def holder() -> Any:
        yield Take("calls", 1)
        yield Wait()
        return Done("ok")

    def passer() -> Any:
        received = yield Take("calls", 1)
        while not isinstance(received, Taken):
            received = yield Wait()
        yield Give("calls")
        return Done("ok")

    first = begun(holder(), gates=shared)
    others = [begun(passer(), gates=shared) for _ in range(1000)]
    first.post(Chunks(0, 0, 1))
    return [[name(d.bug) for d in others if d.bug], sum(d.done is not None for d in others)]


def censored() -> Any:
    """A pattern that would go on after its calls were closed: no call is sent any more."""
    attempts, received_of = FakeAttempts(None), []

    def pattern() -> Any:
        while True:
            yield Send(CALL)
            received = yield Wait()
            received_of.append([name(received), received.ended])

    drive = begun(pattern(), attempts)
    drive.censor()
    drive.censor()
    return {
        "received": received_of,
        "calls": drive.attempts,
        "ended": drive.done.ended,
        "bug": drive.bug is not None,
    }


def late_text() -> Any:
    """What a call says after its request has ended is for no one."""
    attempts = FakeAttempts(None)

    def pattern() -> Any:
        yield Send(CALL)
        yield Send(CALL)
        received = yield Wait()
        return Done(received.ended, winner=received.attempt)

    drive = begun(pattern(), attempts)
    attempts.calls[1].end("ok")
    attempts.calls[0].post(Ended(0, 0, 1, "ok", None))
    return {"winner": drive.done.winner, "aborted": [call.aborted for call in attempts.calls]}


print_facts(
    sends_and_cancels, waits, never_early, came_in_time, reentered, hub_runs_it, bugs, gates, gate_legs, deep_gate, censored, late_text
)  # fmt: skip
