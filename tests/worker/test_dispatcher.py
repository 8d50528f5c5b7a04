"""Open loop: each arrival at its time, whatever became of the others. Calls end as the case wants."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any

import gevent
import pytest
from gevent.event import Event
from transport.scripted_server import block_process
from worker.fake_calls import MS, Bench, arrivals, wait_until

from tailgauge.call import Call
from tailgauge.clock import monotonic_ns
from tailgauge.patterns.events import Done, Send, Take, Wait
from tailgauge.plan.spend_limit import Amount, Guard, Sizing
from tailgauge.rows.schema import TURNS
from tailgauge.schedule.schedule import Planned
from tailgauge.schedule.sessions import Turn
from tailgauge.worker import dispatcher
from tailgauge.worker.admission import admission

pytestmark = pytest.mark.gevent


def running(bench: Bench, rows: list[Any], after_s: float = 0.1) -> Bench:
    """Lease these and let them run for a while; what was due while the process had no core has been done then."""
    bench.dispatcher.lease(rows)
    bench.run()
    gevent.sleep(after_s)
    gevent.idle()
    return bench


def closed_loop(users: int, **settings: Any) -> dict[str, Any]:
    closed = {"users": users, "think_s": 0.0, **settings}
    return {"arrival": {"process": "closed", "closed": closed}}


def test_arrivals_are_dispatched_at_their_times_however_they_came():
    """Each has a prompt of its own of the size that was asked for, is of the stage of its time, and is reported once."""
    bench = Bench()
    rows = arrivals(0, 5, 5, 20, 40, 60, 80, 101)
    bench.dispatcher.lease(rows[4:][::-1])
    bench.run()
    bench.dispatcher.lease(rows[:4][::-1])  # what comes later may be due earlier
    gevent.sleep(0.25)
    bench.close()

    assert bench.started == list(range(8))
    assert bench.planned_ms == [0, 5, 5, 20, 40, 60, 80, 101]
    assert all(row.dispatched_at_ns >= row.scheduled_at_ns for row in bench.rows)
    stages = ["warmup"] * 5 + ["steady"] * 2 + ["cooldown"]
    assert [row.stage for row in bench.rows] == stages
    prompts = [prompt.messages[0].parts[0].text for _, prompt, _ in bench.attempts.started]
    assert len(set(prompts)) == 8
    assert {len(text.split()) for text in prompts} == {5}
    assert (len(bench.summary), bench.ended, bench.bugs) == (8, ["ok"] * 8, [])


def test_beyond_the_cap_arrivals_are_dropped_with_a_row_each_and_none_is_queued():
    """Ten at once with room for three, three more when these have ended."""
    bench = Bench(0.1, in_flight_per_worker=3)
    running(bench, arrivals(*[0] * 10, 300, 300, 300), 0.08)

    assert (bench.counters.in_flight, bench.started) == (3, [0, 1, 2])
    assert bench.ended_by_number == dict.fromkeys(range(3, 10), "client_drop")
    for row in bench.rows:
        assert (row.dispatched_at_ns, row.ended_at_ns) == (None, None)
        assert (row.legs, row.attempts) == (0, 0)
    gevent.sleep(0.4)
    assert bench.close()["client_drop"] == 7
    assert bench.started == [0, 1, 2, 10, 11, 12]


def test_arrivals_beyond_the_slots_wait_in_their_order_and_none_is_dropped():
    """Two slots and six arrivals at once: calls that end in the order of their begin, one after the other."""
    bench = Bench(None, in_flight_per_worker=2)
    bench.dispatcher.most_in_flight = 2
    calls = bench.attempts.calls
    running(bench, arrivals(*[0] * 6), 0)
    at_once = []
    slot_waits_ns = []
    for number in range(6):
        wait_until(lambda number=number: len(calls) == min(6, number + 2))
        at_once.append(sum(not call.done for call in calls))
        slot_waits_ns.append(bench.dispatcher.slot_wait_ns)
        calls[number].end()
    wait_until(lambda: len(bench.rows) == 6)
    counts = bench.close()

    assert bench.started == list(range(6))
    assert at_once == [2, 2, 2, 2, 2, 1]
    assert (counts["dispatched"], counts["client_drop"]) == (6, 0)
    assert all(wait_ns > 0 for wait_ns in slot_waits_ns[:4])  # four wait behind the first two
    assert slot_waits_ns[4:] == [0, 0]
    waits_ns = [row.slot_wait_ns for row in sorted(bench.rows, key=lambda row: row.request_id)]
    assert waits_ns[:2] == [0, 0]
    assert 0 < waits_ns[2] <= waits_ns[5]


@pytest.mark.parametrize(
    ("serves", "answers", "most", "ended", "not_reached"),
    [
        (True, True, 99, ["ok"] * 4, 0),
        (False, False, 99, ["censored"], 3),
        (True, False, 99, ["censored"] * 4, 0),
        (False, True, 2, ["ok"] * 2, 2),
    ],
    ids=["served", "not reached", "open", "a limit"],
)
def test_what_waits_for_a_slot_at_the_end_is_counted_once(
    serves, answers, most, ended, not_reached
):
    """One slot and four arrivals when the load ends: they are served, or not reached, or open to the end of the drain."""
    bench = Bench(None)
    bench.dispatcher.most_in_flight = 1
    calls = bench.attempts.calls
    bench.dispatcher.admits = lambda _: len(calls) < most
    running(bench, arrivals(*[0] * 4), 0)
    wait_until(lambda: calls and len(bench.dispatcher._slot_queue) == 3)
    if serves or not answers:
        bench.dispatcher.stop(serves=serves)
    if answers:
        bench.attempts.seconds = 0.0
        calls[0].end()
        wait_until(lambda: len(calls) == 4 or bench.dispatcher.stopped)
    bench.dispatcher.stop(serves=serves)
    bench.dispatcher.drain(1.0 if answers else 0.05)

    assert bench.started == list(range(4 if serves and answers else most if answers else 1))
    assert bench.ended == ended
    assert bench.counts()["not_reached"] == not_reached
    assert bench.bugs == []


def test_users_of_a_number_go_on_when_more_of_it_comes():
    """Two users and seven requests, which come in two messages: the second when both users are idle."""
    bench = Bench(tables=closed_loop(2, requests=7))
    done = []
    bench.dispatcher.on_done = lambda: done.append(bench.counters.dispatched)
    running(bench, arrivals(0, 0, 0), 0)
    wait_until(lambda: len(bench.rows) == 3)
    bench.dispatcher.lease(arrivals(*[0] * 4, first=3))
    wait_until(lambda: len(bench.rows) == 7)
    counts = bench.close()

    assert bench.started == list(range(7))
    assert counts["leased"] == counts["dispatched"] == 7
    assert done == [3, 7]


class Full:
    """Room for one that is open while twice thirty more come, and then one more, with limits of requests and tokens."""

    def __init__(self, requests: int | None, tokens: int | None) -> None:
        self.bench = bench = Bench(None, in_flight_per_worker=1)
        self.prompts: list[Any] = []
        maker = bench.dispatcher._makers["main"]
        counting = SimpleNamespace(make=lambda *of: self.prompts.append(of) or maker.make(*of))
        bench.dispatcher._makers = {"main": counting}
        self.refused: list[str] = []
        guard = Guard(Amount(requests, tokens, None), Sizing(), {}, self.refused.append)
        bench.dispatcher.admits = admission(bench.dispatcher.scenario, guard)
        bench.attempts.on_start = lambda send: guard.take(
            len(bench.attempts.started), send.call, "m"
        )
        # What comes late on a busy machine is taken all the same.
        bench.dispatcher.has_stalled = lambda: True
        self.made: list[int] = []
        self._run()

    def _run(self) -> None:
        bench = self.bench
        calls = bench.attempts.calls
        running(bench, arrivals(0), 0)
        wait_until(lambda: calls)
        for first in (1, 31):
            bench.dispatcher.lease(arrivals(*range(30), first=first))
            wait_until(
                lambda first=first: len(bench.rows) == first + 29 or bench.dispatcher.stopped
            )
            self.made.append(len(self.prompts))
        calls[0].end()
        bench.dispatcher.lease(arrivals(0, first=61))
        wait_until(lambda: len(calls) == 2 or bench.dispatcher.stopped)
        calls[-1].end()
        self.counts = bench.close()
        self.made.append(len(self.prompts))


@pytest.mark.parametrize("limits", [(None, None), (2, None), (None, 10**6)])
def test_a_worker_at_its_cap_that_has_dropped_too_much_makes_no_prompts_for_what_it_drops(limits):
    """Of the first thirty it makes some ahead of need, until they are dropped."""
    full = Full(*limits)
    first, second, last = full.made

    assert full.bench.started == [0, 61]
    assert 1 < first == second == last - 1
    assert (full.counts["client_drop"], full.refused) == (60, [])


def test_a_limit_that_is_reached_stops_a_worker_at_its_cap_too():
    full = Full(1, None)

    assert (full.bench.started, full.refused) == ([0], ["max_requests"])
    assert (full.counts["client_drop"], full.counts["not_reached"]) == (0, 61)


def test_users_whose_answers_end_together_do_not_wait_for_each_others_prompts():
    users = 100
    bench = Bench(None, tables=closed_loop(users))
    calls = bench.attempts.calls
    planned = [Planned(0, number * TURNS, "main", 3, 5, 0) for number in range(users)]
    running(bench, planned, 0)
    wait_until(lambda: len(calls) == users)
    prompts_ahead = []
    made = 0
    maker = bench.dispatcher._makers["main"]

    def make(*of: Any) -> Any:
        nonlocal made
        made += 1
        return maker.make(*of)

    bench.dispatcher._makers = {"main": SimpleNamespace(make=make)}
    bench.attempts.on_start = lambda _: prompts_ahead.append(made - len(prompts_ahead) - 1)
    for call in calls[:users]:
        call.end()
    wait_until(lambda: len(calls) == 2 * users)
    bench.close()

    assert bench.bugs == []
    assert max(prompts_ahead[:users]) <= 1


def test_an_answer_that_waits_to_be_read_frees_its_place_and_ended_when_it_did(monkeypatch):
    """Room for one, whose answer has been read and waits when the second is due."""
    bench = Bench(None, in_flight_per_worker=1)
    ended_at_ns = []

    def catch_up() -> None:
        if not ended_at_ns:
            ended_at_ns.append(monotonic_ns() - 5 * MS)
            bench.attempts.calls[0].end(at_ns=ended_at_ns[0])

    reader = SimpleNamespace(catch_up=catch_up, let_leave=lambda _: None)
    monkeypatch.setattr(dispatcher, "READER", reader)
    running(bench, arrivals(0, 30))

    assert bench.close()["client_drop"] == 0
    assert bench.started == [0, 1]
    assert [bench.rows[0].ended_at_ns] == ended_at_ns


def test_a_stop_counts_what_was_not_reached_and_sends_no_more():
    bench = running(Bench(), arrivals(0, 1, 2, 5000, 5001, 5002, 5003))
    bench.dispatcher.stop()
    bench.dispatcher.stop()
    bench.walker.join(1)
    bench.dispatcher.lease(arrivals(0, 0, first=7))  # a slice that crossed the stop
    gevent.sleep(0.05)

    assert bench.close()["not_reached"] == 6
    assert (bench.started, bench.walker.ready()) == ([0, 1, 2], True)


def test_a_stop_while_arrivals_are_prepared_counts_each_of_them_once():
    """The dispatcher lets the hub run between two portions of arrivals that are due, and the stop comes then."""
    bench = Bench()
    bench.start_at_ns = monotonic_ns()
    bench.dispatcher.lease(arrivals(*[0] * 200))
    bench.run()
    gevent.spawn(bench.dispatcher.stop)
    bench.walker.join(1)
    counts = bench.close()

    assert counts["not_reached"] > 0
    assert counts["dispatched"] + counts["not_reached"] == counts["leased"] == 200
    assert len(bench.rows) == counts["dispatched"]


@pytest.mark.parametrize(("stall_ms", "is_sent"), [(150, True), (1400, False)])
def test_what_was_due_at_the_end_is_still_sent_but_not_after_a_long_stall(stall_ms, is_sent):
    """The run ends while a busy hub is behind; nothing is sent in a burst after the end. What is due later is not sent."""
    bench = running(Bench(), arrivals(*[100] * 50, 3000), 0.05)
    block_process(stall_ms / 1000)
    bench.dispatcher.send_due()
    bench.dispatcher.stop()
    gevent.sleep(0.05)
    counts = bench.close()

    if is_sent:
        assert (counts["dispatched"], counts["not_reached"]) == (50, 1)
    else:
        assert counts["not_reached"] > 1


@pytest.mark.parametrize("stalled", [False, True], ids=["link", "worker"])
def test_what_is_overdue_by_a_second_when_its_slice_comes_is_sent_only_if_the_worker_itself_was_stopped(
    stalled,
):
    bench = Bench()
    bench.start_at_ns = monotonic_ns() - 3000 * MS
    bench.dispatcher.has_stalled = lambda: stalled
    running(bench, arrivals(2900, first=90), 0.01)  # before the start is known
    before_ms = (monotonic_ns() - bench.start_at_ns) / MS
    bench.dispatcher.lease(arrivals(*range(1000, 3000, 100)))
    after_ms = (monotonic_ns() - bench.start_at_ns) / MS
    gevent.sleep(0.8)
    counts = bench.close()

    assert counts["leased"] == 21
    if stalled:
        assert counts["came_late"] == 0
        assert {0, 1, 2} <= set(bench.started)
    else:
        assert 90 in bench.started
        fewest, most = (
            sum(at <= now_ms - 1000 for at in range(1000, 3000, 100))
            for now_ms in (before_ms, after_ms)
        )
        assert 8 <= fewest <= counts["came_late"] == counts["not_reached"] <= most
        assert min(filter(None, bench.planned_ms)) >= 1900


@pytest.mark.slow
def test_what_an_overloaded_worker_skips_is_not_reached():
    """Twice what the hub can do: what is sent is never far behind, and all of it is counted."""
    bench = Bench()
    bench.dispatcher._note_dispatch = lambda *_: block_process(0.01)
    running(bench, arrivals(*range(0, 6000, 5)), 6)
    counts = bench.close()

    assert (counts["leased"], counts["client_drop"]) == (1200, 0)
    assert max(bench.planned_ms) > 4000, "a worker that sends all late would not have come as far"


def test_a_drain_waits_and_then_censors_what_is_open():
    """Two calls never end by themselves, one ends in the drain. The censored are for no statistics page."""
    bench = running(Bench(None), arrivals(0, 1, 2))
    gevent.spawn_later(0.05, bench.attempts.calls[1].end, "timeout")
    counts = bench.close(0.2)

    assert bench.ended_by_number == {0: "censored", 1: "timeout", 2: "censored"}
    for row in bench.rows:
        assert row.dispatched_at_ns is not None
        assert (row.ended_at_ns is None) == (row.ended == "censored")
        assert (row.legs, row.attempts) == (1, 1)
    assert [call.aborted for call in bench.attempts.calls] == [["censored"], [], ["censored"]]
    assert (counts["censored"], counts["ended"]) == (2, {"timeout": 1})
    assert len(bench.summary) == 1


def test_a_user_in_a_hurry_does_not_wait_for_the_drain():
    bench = running(Bench(None), arrivals(0, 1, 5000))
    bench.dispatcher.hurry()
    with gevent.Timeout(10):
        bench.dispatcher.drain(60)

    assert bench.ended == ["censored"] * 2
    assert bench.counts()["not_reached"] == 1


@pytest.mark.slow
def test_a_hurry_ends_a_drain_that_waits_for_a_request_that_never_ends():
    """Nothing ends its call, as after a fault of ours."""
    bench = running(Bench(None, connect_timeout_s=0.1), arrivals(0))
    bench.attempts.calls[0].abort = lambda *_: None
    gevent.spawn_later(0.1, bench.dispatcher.hurry)
    with gevent.Timeout(30):
        bench.dispatcher.drain(60)

    assert bench.ended == ["censored"]
    bench.counts()


def test_a_bug_in_a_pattern_is_reported_ends_its_request_and_closes_its_call():
    """It raises once its call has begun, among requests that do well."""

    def pattern(request: Any) -> Any:
        yield Send(Call(request.prompt, 1))
        if request.request_id == TURNS:
            raise KeyError("a bug")
        received = yield Wait()
        return Done(received.ended)

    bench = running(Bench(0.05, pattern=pattern), arrivals(0, 1, 2), 0.2)
    bench.close()

    assert bench.bugs == ["KeyError('a bug')"]
    assert bench.ended_by_number == {0: "ok", 1: "censored", 2: "ok"}
    assert [call.aborted for call in bench.attempts.calls] == [[], ["cancelled"], []]


def test_a_drain_ends_requests_that_wait_for_a_retry_or_in_line_at_a_gate():
    """They have no call in flight. The place that the drain sets free is no reason to send."""
    in_an_hour_ns = monotonic_ns() + 3600_000 * MS

    def pattern(request: Any) -> Any:
        if request.request_id == TURNS:
            yield Take("calls", 1)
        if request.request_id <= TURNS:
            yield Send(Call(request.prompt, 1))
            yield Wait()
            yield Wait(in_an_hour_ns)
        yield Take("calls", 1)
        yield Wait()
        yield Send(Call(request.prompt, 1))
        return Done("ok")

    bench = running(Bench(0.01, pattern=pattern), arrivals(0, 1, 2))
    began_ns = monotonic_ns()
    bench.close(0.1)

    assert 100 * MS <= monotonic_ns() - began_ns < 10_000 * MS
    assert bench.ended == ["censored"] * 3
    assert bench.started == [0, 1]


def test_a_listener_may_wait_although_the_request_ended_in_the_hub():
    def pattern(request: Any) -> Any:
        yield Wait(monotonic_ns() + 5 * MS)
        return Done("timeout")

    bench = Bench(pattern=pattern)
    bench.dispatcher._on_ended = lambda *ended: (gevent.sleep(0.001), bench.summary.append(ended))
    running(bench, arrivals(0, 1), 0)
    wait_until(lambda: len(bench.summary) == 2)
    bench.close()

    assert bench.ended == ["timeout"] * 2


def test_the_request_of_a_task_is_recorded_as_its_task_judges_the_answer():
    """As failed, as fine, too late, and never; the last is open at the end."""
    bench = Bench(None)
    bench.dispatcher.start_at_ns = monotonic_ns()
    for number in range(5):
        row = {"text": "Hi", "prompt_tokens": 3, "tags": {"task": f"t{number}"}}
        planned = Planned(number * TURNS, 60 * MS, "main", 3, 5, 0, row)
        turn = Turn(60 * MS, number * TURNS, planned, planned)
        bench.dispatcher.send_now(turn, Event(), is_checked=True)
    for number, ended in enumerate(("ok", "ok", "rate_limited", "ok")):
        bench.attempts.calls[number].end(ended)

    def ended_in_the_live_view() -> int:
        return sum(sum(traffic.requests.values()) for traffic in bench.counters.traffic.values())

    assert bench.rows == []
    bench.dispatcher.judge(0, "no end mark")
    bench.dispatcher.judge(TURNS, None)
    bench.dispatcher.judge(2 * TURNS, None)
    bench.dispatcher.judge(TURNS, "again")
    assert ended_in_the_live_view() == 0, (
        "behind its calls, so that no error is shown before its 429"
    )
    bench.attempts.later.finish()
    assert ended_in_the_live_view() == 3
    counts = bench.close(0.0)

    assert bench.ended_by_number == {
        0: "check_failed",
        1: "ok",
        2: "rate_limited",
        3: "ok",
        4: "censored",
    }
    tags = {row.request_id // TURNS: json.loads(row.tags) for row in bench.rows}
    assert tags[0] == {"task": "t0", "failure": "no end mark"}
    assert tags[1] == {"task": "t1"}
    assert counts["ended"] == {"check_failed": 1, "ok": 2, "rate_limited": 1}
    assert (counts["dispatched"], counts["censored"]) == (5, 1)
    assert bench.bugs == []
