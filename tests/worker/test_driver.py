"""A request's pattern runs where its events happen: the driver and its gates, with calls that do as the case wants."""

from __future__ import annotations

from typing import Any

import gevent
import pytest
from gevent import get_hub
from worker.fake_calls import MS, FakeAttempts

from tailgauge.call import Call, Prompt
from tailgauge.clock import monotonic_ns
from tailgauge.patterns.concurrency_gate import Gates
from tailgauge.patterns.events import (
    Cancel,
    Chunks,
    Closed,
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

pytestmark = pytest.mark.gevent

CALL = Call(Prompt.of("a"), 1)


@pytest.fixture
def attempts() -> FakeAttempts:
    return FakeAttempts(None)


def begun(pattern: Any, attempts: Any = None, gates: Gates | None = None) -> Drive:
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


def test_calls_are_numbered_within_their_leg_and_closed_at_the_end(attempts):
    seen = []

    def pattern() -> Any:
        seen.append((yield Send(CALL)))
        seen.append((yield Send(CALL, cause="hedge", of_attempt=0)))
        seen.append((yield Send(CALL, leg=1)))
        seen.append((yield Wait()))
        seen.append((yield Cancel(0, 0)))
        seen.append((yield Wait()))
        return Done("ok")

    drive = begun(pattern(), attempts)
    attempts.calls[1].post(FirstContent(0, 1, 5, 1))

    assert [(type(event), event.leg, event.attempt) for event in seen] == [
        (Sent, 0, 0),
        (Sent, 0, 1),
        (Sent, 1, 0),
        (FirstContent, 0, 1),
        (Closed, 0, 0),
        (Ended, 0, 0),
    ]
    assert seen[-1].ended == "cancelled"
    assert (drive.done.ended, len(drive.calls), drive.attempts) == ("ok", 2, 3)
    assert [call.aborted for call in attempts.calls] == [["cancelled"]] * 3


def test_a_wait_ends_with_its_time_or_with_an_event(attempts):
    def pattern() -> Any:
        until = monotonic_ns() + 30 * MS
        event = yield Wait(until)
        assert isinstance(event, Due)
        assert event.at_ns >= until
        assert isinstance((yield Wait(0)), Due)
        assert isinstance((yield Send(CALL)), Sent)
        gevent.spawn_later(0.01, attempts.calls[0].end, "empty")
        event = yield Wait(monotonic_ns() + 5000 * MS)
        return Done(event.ended)

    drive = begun(pattern(), attempts)
    gevent.sleep(0.08)

    assert (drive.bug, drive.done.ended, drive.attempts) == (None, "empty", 1)
    assert drive._timer is None


def test_no_wait_ends_before_its_time():
    """The hub is busy in between, so that the loop's own clock is behind, and counts milliseconds."""
    early = []

    def pattern(until: int) -> Any:
        event = yield Wait(until)
        early.append(event.at_ns - until)
        return Done("ok")

    now = monotonic_ns()
    drives = [begun(pattern(now + number * MS // 3)) for number in range(300)]
    while any(drive.done is None for drive in drives):
        busy = monotonic_ns() + 2 * MS
        while monotonic_ns() < busy:
            pass
        gevent.sleep(0.0001)

    assert len(early) == 300
    assert min(early) >= 0


def test_what_came_before_a_time_is_received_first_also_where_the_loop_is_late(attempts):
    seen = []

    def pattern() -> Any:
        yield Send(CALL)
        call = attempts.calls[0]

        def catch_up() -> None:
            call.on_catch_up = None
            call.post(FirstContent(0, 0, 5, 1))

        call.on_catch_up = catch_up
        seen.append(type((yield Wait(0))))
        seen.append(type((yield Wait(0))))
        return Done("ok")

    begun(pattern(), attempts)

    assert seen == [FirstContent, Due]


def test_what_happens_while_a_step_is_carried_out_waits_in_line_and_comes_before_a_time_that_has_passed(
    attempts,
):
    """Closing a call brings its own content to light, in the middle of the pattern's step."""
    seen = []

    def pattern() -> Any:
        yield Send(CALL)
        yield Send(CALL)
        seen.append((yield Wait()))
        seen.append((yield Cancel(0, 1)))
        for _ in range(3):
            seen.append((yield Wait(0)))
        return Done("ok")

    drive = begun(pattern(), attempts)
    loser = attempts.calls[1]
    loser.on_abort = lambda: loser.post(FirstContent(0, 1, 2, 1))
    attempts.calls[0].post(FirstContent(0, 0, 1, 1))

    assert [type(event) for event in seen] == [FirstContent, Closed, FirstContent, Ended, Due]
    assert [event.attempt for event in seen[:-1]] == [0, 1, 1, 1]
    assert drive.done.ended == "ok"


def test_the_steps_after_an_event_are_carried_out_before_the_hubs_callback_returns(attempts):
    order = []

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

    assert order == ["cancelled", "callback returns"]


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


@pytest.mark.parametrize(
    ("pattern", "error"),
    [
        (raises, KeyError),
        (yields_nonsense, TypeError),
        (returns_nonsense, TypeError),
        (cancels_nothing, KeyError),
        (gives_nothing, ValueError),
        (will_not_go, RuntimeError),
    ],
)
def test_a_bug_ends_the_request_and_is_kept_and_leaves_no_call_open(pattern, error, attempts):
    drive = begun(pattern(), attempts)
    drive.censor()

    assert isinstance(drive.bug, error)
    assert drive.done.ended == "censored"
    assert all(call.aborted == ["cancelled"] for call in attempts.calls)


# --- gates ------------------------------------------------------------------------------------------------------


def passes(gate: str, limit: int) -> Any:
    event = yield Take(gate, limit)
    while not isinstance(event, Taken):
        event = yield Wait()
    yield Give(gate)
    return Done("ok")


def holds() -> Any:
    yield Take("calls", 1)
    yield Wait()
    return Done("ok")


def test_a_gate_admits_in_the_order_of_asking_and_never_more_than_its_limit():
    """Ten requests, two places; those that end without giving theirs back set it free."""
    gates = Gates()
    order = []
    inside = set()

    def pattern(number: int) -> Any:
        event = yield Take("calls", 2, number)
        while not isinstance(event, Taken):
            event = yield Wait()
        assert event.leg == number
        order.append(number)
        inside.add(number)
        assert len(inside) <= 2
        until = monotonic_ns() + 2 * MS
        while not isinstance(event, Due):
            event = yield Wait(until)
        inside.remove(number)
        if number % 3:
            yield Give("calls")
        return Done("ok")

    drives = [begun(pattern(number), gates=gates) for number in range(10)]
    while any(drive.done is None for drive in drives):
        gevent.sleep(0.001)

    assert [drive.bug for drive in drives] == [None] * 10
    assert order == list(range(10))
    gate = gates._gates["calls"]
    assert (gate.in_use, len(gate.waiting), len(gate.places)) == (0, 0, 0)


def test_legs_of_one_request_wait_in_line_each_and_one_that_leaves_is_passed_over():
    gates = Gates()
    seen = []

    def waiter() -> Any:
        seen.append((yield Take("calls", 1, 0)))
        seen.append((yield Take("calls", 1, 1)))
        for _ in range(2):
            seen.append((yield Wait()))
            yield Give("calls")
        return Done("ok")

    first = begun(holds(), gates=gates)
    gone = begun(holds(), gates=gates)
    last = begun(waiter(), gates=gates)
    gone.censor()
    first.post(Chunks(0, 0, 1))

    assert [type(event) for event in seen] == [Queued, Queued, Taken, Taken]
    assert [event.leg for event in seen[2:]] == [0, 1]
    assert [drive.done.ended for drive in (first, gone, last)] == ["ok", "censored", "ok"]


def test_a_long_line_that_moves_at_once_does_not_nest():
    gates = Gates()
    first = begun(holds(), gates=gates)
    others = [begun(passes("calls", 1), gates=gates) for _ in range(1000)]
    first.post(Chunks(0, 0, 1))

    assert all(drive.bug is None and drive.done is not None for drive in others)


# --- the end ----------------------------------------------------------------------------------------------------


def test_a_censored_request_hears_the_end_of_its_calls_and_sends_no_other(attempts):
    ended = []

    def pattern() -> Any:
        while True:
            yield Send(CALL)
            event = yield Wait()
            ended.append(event.ended)

    drive = begun(pattern(), attempts)
    drive.censor()
    drive.censor()

    assert (ended, drive.attempts) == (["censored"], 1)
    assert (drive.done.ended, drive.bug) == ("censored", None)


def test_what_a_call_says_after_its_request_has_ended_is_for_no_one(attempts):
    def pattern() -> Any:
        yield Send(CALL)
        yield Send(CALL)
        event = yield Wait()
        return Done(event.ended, winner=event.attempt)

    drive = begun(pattern(), attempts)
    attempts.calls[1].end("ok")
    attempts.calls[0].post(Ended(0, 0, 1, "ok", None))

    assert drive.done.winner == 1
    assert [call.aborted for call in attempts.calls] == [["cancelled"], []]
