"""Script: the dispatcher and the timer, with calls that end as the case wants."""

from __future__ import annotations

import json
from time import sleep
from types import SimpleNamespace
from typing import Any

import gevent
from gevent.event import Event
from starting.script import print_facts
from worker.scripts.fake_calls import MS, Bench, arrivals, wait_until

from tailgauge.call import Call
from tailgauge.clock import monotonic_ns
from tailgauge.patterns.events import Done, Send, Take, Wait
from tailgauge.plan.spend_limit import Amount, Guard, Sizing
from tailgauge.rows.schema import TURNS
from tailgauge.schedule.schedule import Planned
from tailgauge.schedule.sessions import Turn
from tailgauge.worker import dispatcher
from tailgauge.worker.admission import admission
from tailgauge.worker.timers import WaitTimer


def order() -> Any:
    bench = Bench()
    rows = arrivals(0, 5, 5, 20, 40, 60, 80, 101)
    bench.dispatcher.lease(rows[4:][::-1])
    bench.run()
    bench.dispatcher.lease(rows[:4][::-1])  # what comes later may be due earlier
    gevent.sleep(0.25)
    prompts = [prompt.messages[0].parts[0].text for _, prompt, _ in bench.attempts.started]
    return {
        **bench.close(),
        "prompts": len(set(prompts)),
        "words": [len(text.split()) for text in prompts],
    }


def judged() -> Any:
    """Requests of tasks that judge their answers: as failed, as fine, too late, and never; the last is open at the end."""
    bench = Bench(None)
    bench.dispatcher.start_at_ns = monotonic_ns()
    for number in range(5):
        row = {"text": "Hi", "prompt_tokens": 3, "tags": {"task": f"t{number}"}}
        planned = Planned(number * TURNS, 60 * MS, "main", 3, 5, 0, row)
        turn = Turn(60 * MS, number * TURNS, planned, planned)
        bench.dispatcher.send_now(turn, Event(), is_checked=True)
    for number, ended in enumerate(("ok", "ok", "rate_limited", "ok")):
        bench.attempts.calls[number].end(ended)
    before = len(bench.recorder.rows)
    bench.dispatcher.judge(0, "no end mark")
    bench.dispatcher.judge(TURNS, None)
    bench.dispatcher.judge(2 * TURNS, None)
    bench.dispatcher.judge(TURNS, "again")
    counted = [ended_requests(bench)]
    bench.attempts.later.finish()
    counted.append(ended_requests(bench))
    facts = bench.close(0.0)
    tags = {row.request_id // TURNS: json.loads(row.tags) for row in bench.recorder.rows}
    return {"before": before, "counted": counted, "ended": dict(zip(facts["ids"], facts["ended"], strict=True)), "tags": tags, **{
        key: facts[key] for key in ("counts", "in_flight", "bugs")}}  # fmt: skip


def ended_requests(bench: Bench) -> int:
    """Requests that the live view counts as ended."""
    return sum(sum(traffic.requests.values()) for traffic in bench.counters.traffic.values())


def cap() -> Any:
    """Ten at once with room for three, three more when these have ended."""
    bench = Bench(0.1, in_flight_per_worker=3)
    bench.dispatcher.lease(arrivals(*[0] * 10, 300, 300, 300))
    bench.run()
    gevent.sleep(0.08)
    early = bench.facts()
    gevent.sleep(0.4)
    return {"early": early, "late": bench.close()}


def full() -> Any:
    """Room for one that is open while twice thirty more come, and then one more; without limits, and with some."""

    def prompts(requests: int | None, tokens: int | None) -> Any:
        bench, made = Bench(None, in_flight_per_worker=1), []
        maker = bench.dispatcher._makers["main"]
        bench.dispatcher._makers = {
            "main": SimpleNamespace(make=lambda *of: made.append(of) or maker.make(*of))
        }
        refused: list[str] = []
        guard = Guard(Amount(requests, tokens, None), Sizing(), {}, refused.append)
        bench.dispatcher.admits = admission(bench.dispatcher.scenario, guard)
        bench.attempts.on_start = lambda send: guard.take(
            len(bench.attempts.started), send.call, "m"
        )
        bench.dispatcher.has_stalled = lambda: (
            True
        )  # what comes late on a busy machine is taken all the same
        so_far: list[int] = []
        calls, rows = bench.attempts.calls, bench.recorder.rows
        bench.dispatcher.lease(arrivals(0))
        bench.run()
        wait_until(lambda: calls)
        for first in (1, 31):
            bench.dispatcher.lease(arrivals(*range(30), first=first))
            wait_until(lambda first=first: len(rows) == first + 29 or bench.dispatcher.stopped)
            so_far.append(len(made))
        calls[0].end()
        bench.dispatcher.lease(arrivals(0, first=61))
        wait_until(lambda: len(calls) == 2 or bench.dispatcher.stopped)
        calls[-1].end()
        return {**bench.close(), "made": [*so_far, len(made)], "refused": refused}

    limits = {"none": (None, None), "one": (1, None), "two": (2, None), "tokens": (None, 10**6)}
    return {name: prompts(*of) for name, of in limits.items()}


def waits_of(bench: Bench) -> list[int | None]:
    rows = sorted(bench.recorder.rows, key=lambda row: row.request_id)
    return [row.slot_wait_ns for row in rows]


def slots() -> Any:
    """Two slots and six arrivals at once: calls that end in the order of their begin, one after the other."""
    bench = Bench(None, in_flight_per_worker=2)
    bench.dispatcher.most_in_flight = 2
    calls = bench.attempts.calls
    bench.dispatcher.lease(arrivals(*[0] * 6))
    bench.run()
    at_once = []
    slot_waits = []
    for number in range(6):
        wait_until(lambda number=number: len(calls) == min(6, number + 2))
        at_once.append(sum(not call.done for call in calls))
        slot_waits.append(bench.dispatcher.slot_wait_ns)
        calls[number].end()
    wait_until(lambda: len(bench.recorder.rows) == 6)
    return {**bench.close(), "at_once": at_once, "slot_waits": slot_waits, "waits": waits_of(bench)}


def slots_at_end() -> Any:
    """One slot and four arrivals when the load ends: they are served, or not reached, or open to the end of the drain."""

    def ended(*, serves: bool, answers: bool, refused_after: int = 99) -> Any:
        bench = Bench(None)
        bench.dispatcher.most_in_flight = 1
        calls = bench.attempts.calls
        bench.dispatcher.admits = lambda _: len(calls) < refused_after
        bench.dispatcher.lease(arrivals(*[0] * 4))
        bench.run()
        wait_until(lambda: calls and len(bench.dispatcher._queue) == 3)
        if serves or not answers:
            bench.dispatcher.stop(serves=serves)
        if answers:
            bench.attempts.seconds = 0.0
            calls[0].end()
            wait_until(lambda: len(calls) == 4 or bench.dispatcher.stopped)
        bench.dispatcher.stop(serves=serves)
        bench.dispatcher.drain(1.0 if answers else 0.05)
        return {**bench.facts(), "waits": waits_of(bench)}

    return {
        "served": ended(serves=True, answers=True),
        "not reached": ended(serves=False, answers=False),
        "open": ended(serves=True, answers=False),
        "a limit": ended(serves=False, answers=True, refused_after=2),
    }


def counted() -> Any:
    """A closed loop of two users and seven requests, which come in two messages: the second when both users are idle."""
    closed = {"users": 2, "think_s": 0.0, "requests": 7}
    bench = Bench(tables={"arrival": {"process": "closed", "closed": closed}})
    done: list[int] = []
    bench.dispatcher.on_done = lambda: done.append(bench.counters.dispatched)
    bench.dispatcher.lease(arrivals(0, 0, 0))
    bench.run()
    wait_until(lambda: len(bench.recorder.rows) == 3)
    bench.dispatcher.lease(arrivals(*[0] * 4, first=3))
    wait_until(lambda: len(bench.recorder.rows) == 7)
    return {**bench.close(), "done": done}


def together() -> Any:
    """A hundred users whose answers end at the same time: in which order the next prompts are made and sent."""
    users = 100
    closed = {"users": users, "think_s": 0.0}
    bench = Bench(None, tables={"arrival": {"process": "closed", "closed": closed}})
    calls = bench.attempts.calls
    bench.dispatcher.lease([Planned(0, number * TURNS, "main", 3, 5, 0) for number in range(users)])
    bench.run()
    wait_until(lambda: len(calls) == users)
    waits: list[int] = []
    made = 0
    maker = bench.dispatcher._makers["main"]

    def make(*of: Any) -> Any:
        nonlocal made
        made += 1
        return maker.make(*of)

    bench.dispatcher._makers = {"main": SimpleNamespace(make=make)}
    bench.attempts.on_start = lambda _: waits.append(
        made - len(waits) - 1
    )  # prompts made and not sent
    for call in calls[:users]:
        call.end()
    wait_until(lambda: len(calls) == 2 * users)
    return {**bench.close(), "waits": waits[:users]}


def waiting() -> Any:
    """Room for one, whose answer has been read and waits when the second is due: when it ended, by its row."""
    bench = Bench(None, in_flight_per_worker=1)
    ended_at: list[int] = []

    def catch_up() -> None:
        if not ended_at:
            ended_at.append(monotonic_ns() - 5 * MS)
            bench.attempts.calls[0].end(at_ns=ended_at[0])

    dispatcher.READER = SimpleNamespace(catch_up=catch_up, let_leave=lambda _: None)
    bench.dispatcher.lease(arrivals(0, 30))
    bench.run()
    gevent.sleep(0.1)
    return {**bench.close(), "after_event": bench.recorder.rows[0].ended_at_ns - ended_at[0]}


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


def late() -> Any:
    """The run ends while a busy hub is behind: what was due is sent, what is due later is not."""
    bench = Bench()
    bench.dispatcher.lease(arrivals(*[100] * 50, 3000))
    bench.run()
    gevent.sleep(0.05)
    until = monotonic_ns() + 150 * MS
    while monotonic_ns() < until:  # over the time of the fifty
        pass
    bench.dispatcher.send_due()
    bench.dispatcher.stop()
    gevent.sleep(0.05)
    return bench.close()


def far_behind() -> Any:
    """The same after a stall of more than a second: nothing is sent in a burst after the end."""
    bench = Bench()
    bench.dispatcher.lease(arrivals(*[100] * 50, 3000))
    bench.run()
    gevent.sleep(0.05)
    until = monotonic_ns() + 1400 * MS
    while monotonic_ns() < until:
        pass
    bench.dispatcher.send_due()
    bench.dispatcher.stop()
    return bench.close()


def came_late() -> Any:
    """A slice that is overdue when it comes, where the worker ran all the while, and where it was stopped itself."""

    def take(*, stalled: bool) -> Any:
        bench = Bench()
        bench.start_at_ns = monotonic_ns() - 3000 * MS
        bench.dispatcher.has_stalled = lambda: stalled
        bench.dispatcher.lease(arrivals(2900, first=90))  # before the start is known
        bench.run()
        gevent.sleep(0.01)
        before_ns = monotonic_ns() - bench.start_at_ns
        bench.dispatcher.lease(arrivals(*range(1000, 3000, 100)))
        after_ns = monotonic_ns() - bench.start_at_ns
        gevent.sleep(0.8)
        return {**bench.close(), "leased_between_ms": (before_ns / MS, after_ns / MS)}

    return {"link": take(stalled=False), "worker": take(stalled=True)}


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


def hurried_in_drain() -> Any:
    """A call that nothing ends, as after a fault of ours, and a hurry that comes while the drain waits for it."""
    bench = Bench(None, connect_timeout_s=0.1)
    bench.dispatcher.lease(arrivals(0))
    bench.run()
    gevent.sleep(0.1)
    bench.attempts.calls[0].abort = lambda *_: None  # type: ignore[method-assign]
    gevent.spawn_later(0.1, bench.dispatcher.hurry)
    started = monotonic_ns()
    bench.dispatcher.drain(60)
    return {**bench.facts(), "took_s": (monotonic_ns() - started) / 1e9}


def bug() -> Any:
    """A pattern that raises once its call has begun, among requests that do well."""

    def pattern(request: Any) -> Any:
        yield Send(Call(request.prompt, 1))
        if request.request_id == TURNS:
            raise KeyError("a bug")
        received = yield Wait()
        return Done(received.ended)

    bench = Bench(0.05, pattern=pattern)
    bench.dispatcher.lease(arrivals(0, 1, 2))
    bench.run()
    gevent.sleep(0.2)
    return {**bench.close(), "reasons": [call.aborted for call in bench.attempts.calls]}


def retry_wait() -> Any:
    """A drain with requests that have no call in flight: one waits for a retry's time, one in line at a gate."""

    def pattern(request: Any) -> Any:
        if request.request_id == 0:
            yield Send(Call(request.prompt, 1))
            yield Wait()
            yield Wait(monotonic_ns() + 3600_000 * MS)  # retry-after: an hour
        elif request.request_id == TURNS:
            yield Take("calls", 1)
            yield Send(Call(request.prompt, 1))
            yield Wait()
            yield Wait(monotonic_ns() + 3600_000 * MS)
        yield Take("calls", 1)
        yield Wait()
        yield Send(Call(request.prompt, 1))  # never: the place comes with the end of the drain
        return Done("ok")

    bench = Bench(0.01, pattern=pattern)
    bench.dispatcher.lease(arrivals(0, 1, 2))
    bench.run()
    gevent.sleep(0.1)
    return bench.close(0.1)


def informed_in_time() -> Any:
    """A request that ends with a timer, in the hub, where no listener may wait."""

    def pattern(request: Any) -> Any:
        yield Wait(monotonic_ns() + 5 * MS)
        return Done("timeout")

    bench = Bench(pattern=pattern)
    bench.dispatcher._on_ended = lambda *ended: (gevent.sleep(0.001), bench.summary.append(ended))
    bench.dispatcher.lease(arrivals(0, 1))
    bench.run()
    until_ns = monotonic_ns() + 5_000 * MS
    while len(bench.summary) < 2 and monotonic_ns() < until_ns:
        gevent.sleep(0.01)
    return bench.close()


def timer() -> Any:
    """How late the timer is, beside how late a sleep is, in the same minute."""
    bell = WaitTimer()
    late: dict[str, list[int]] = {"timer": [], "sleep": []}
    for _ in range(60):
        due = monotonic_ns() + 3 * MS
        bell.wait_until(due)
        late["timer"].append(monotonic_ns() - due)
        due = monotonic_ns() + 3 * MS
        gevent.sleep((due - monotonic_ns()) / 1e9)
        late["sleep"].append(monotonic_ns() - due)
    gevent.spawn_later(0.02, bell.wake)
    started = monotonic_ns()
    bell.wait_until(started + 5000 * MS)
    rung_s = (monotonic_ns() - started) / 1e9
    started = monotonic_ns()
    for at_ns in (0, started - MS, started):
        bell.wait_until(at_ns)
    past_s = (monotonic_ns() - started) / 1e9
    due = monotonic_ns() + 20 * MS  # a wake-up before the wait does not count for it
    bell.wake()
    bell.wait_until(due)
    after_wake_up = monotonic_ns() - due
    bell.close()
    return {
        **{k: sorted(v) for k, v in late.items()},
        "rung_s": rung_s,
        "past_s": past_s,
        "after_wake_up": after_wake_up,
    }


def behind() -> Any:
    """Twice what the hub can do, then a stall: what is sent is never far behind, and all of it is counted."""
    bench = Bench()
    bench.dispatcher._note_dispatch = lambda *_: sleep(0.01)  # type: ignore[method-assign]
    bench.dispatcher.lease(arrivals(*range(0, 6000, 5)))
    bench.run()
    gevent.sleep(6)
    return bench.close()


print_facts(
    order, judged, cap, full, waiting, stop, late, far_behind, came_late, behind, drain, hurried, hurried_in_drain, bug, retry_wait, informed_in_time,
    timer, slots, slots_at_end, counted, together,
)  # fmt: skip
