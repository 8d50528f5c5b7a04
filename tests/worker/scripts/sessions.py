"""Script: turns of sessions and users of a closed loop in one worker, with calls that end as the case wants."""

from __future__ import annotations

from typing import Any

import gevent
from starting.script import print_facts
from worker.scripts.fake_calls import MS, Bench, arrivals

from tailgauge.call import Call
from tailgauge.patterns.events import Done, Ended, Send, Wait
from tailgauge.rows.schema import TURNS


def keeps_text(request: Any) -> Any:
    """One call; the answer is kept, as sessions need it."""
    yield Send(Call(request.prompt, request.output_tokens, keep_text=True))
    while not isinstance(received := (yield Wait()), Ended):
        pass
    return Done(received.ended, received.attempt, text=received.text)


def tables(duration_s: float = 10.0, arrival: Any = None, **session: Any) -> Any:
    talk = {"prompt_tokens": 5, "output_tokens": 7, "tags": {"tenant": "a"}}
    return {
        "arrival": arrival or {},
        "stages": {"duration_s": duration_s, "warmup_s": 0.03},
        "traffic": {"main": {**talk, "session": session} if session else talk},
    }


def turns(bench: Bench) -> Any:
    """Per arrival: turn, class, time since the end of the turn before, stage, session."""
    rows = sorted(bench.recorder.rows, key=lambda row: row.request_id)
    found: dict[int, list[Any]] = {}
    ended: dict[int, int | None] = {}
    for row in rows:
        arrival, turn = divmod(row.request_id, TURNS)
        before = ended.get(row.request_id - 1)
        thought = None if before is None else (row.scheduled_at_ns - before) / MS
        found.setdefault(arrival, []).append([turn, row.ended, thought, row.stage, row.session_id])
        ended[row.request_id] = row.ended_at_ns
    return found


def messages(bench: Bench) -> Any:
    """What each request asked: texts of its messages, by id."""
    return {
        str(request_id): [
            m.parts[0].text if m.role == "user" else f"-> {m.parts[0].text}"
            for m in prompt.messages
        ]
        for request_id, prompt, _ in bench.attempts.started
    }


SESSION = {"turns_mean": 3.0, "think_s": 0.04, "think_sigma": 0.0}


def talks() -> Any:
    """Three turns, one turn, and one whose second turn fails."""
    bench = Bench(0.01, pattern=keeps_text, tables=tables(**SESSION))
    bench.dispatcher.lease(
        [*arrivals(0, turns=3), *arrivals(5, first=1), *arrivals(15, first=2, turns=4)]
    )
    bench.attempts.classes = {
        4: "rate_limited"
    }  # the fifth call: second turn of the arrival at 15 ms
    bench.run()
    gevent.sleep(0.35)
    row = bench.recorder.rows[0]
    return {
        **bench.close(),
        "turns": turns(bench),
        "messages": messages(bench),
        "kept": bench.counters.conversations,
        "tags": row.tags,
        "name": row.name,
    }


def cut_off() -> Any:
    """The run ends while two sessions are thinking, and one is due after its end."""
    bench = Bench(0.01, pattern=keeps_text, tables=tables(0.2, **{**SESSION, "think_s": 0.15}))
    bench.dispatcher.lease([*arrivals(0, turns=5), *arrivals(100, first=1, turns=2)])
    bench.run()
    gevent.sleep(0.4)
    return {**bench.close(), "turns": turns(bench), "kept": bench.counters.conversations}


def stopped() -> Any:
    """Stopped while a session thinks: the turn is not sent, and counted."""
    bench = Bench(0.01, pattern=keeps_text, tables=tables(**{**SESSION, "think_s": 0.1}))
    bench.dispatcher.lease(arrivals(0, 0, turns=3))
    bench.run()
    gevent.sleep(0.06)
    bench.dispatcher.stop()
    gevent.sleep(0.15)
    return {**bench.close(), "turns": turns(bench), "kept": bench.counters.conversations}


def dropped() -> Any:
    """A turn at the cap: dropped, and its session is over."""
    bench = Bench(0.1, pattern=keeps_text, tables=tables(**SESSION), in_flight_per_worker=1)
    bench.dispatcher.lease([*arrivals(0, turns=2), *arrivals(5, first=1, turns=9)])
    bench.run()
    gevent.sleep(0.35)
    return {**bench.close(), "turns": turns(bench), "kept": bench.counters.conversations}


def users() -> Any:
    """Three users who think 30 ms; the third call of all fails; the run lasts 300 ms."""
    closed = {"process": "closed", "closed": {"users": 3, "think_s": 0.03}}
    bench = Bench(0.01, pattern=keeps_text, tables=tables(0.3, closed))
    bench.attempts.classes = {2: "server_error"}
    bench.dispatcher.lease(arrivals(0, 10, 20, turns=0))
    bench.run()
    early = bench.counters.leased
    gevent.sleep(0.45)
    facts = {**bench.close(), "turns": turns(bench), "messages": messages(bench), "early": early}
    facts["last_ms"] = (
        max(row.scheduled_at_ns - bench.start_at_ns for row in bench.recorder.rows) / MS
    )
    return facts


def crowd() -> Any:
    """Four hasty users, room for two: the others are turned away again and again, but the worker does not spin."""
    closed = {"process": "closed", "closed": {"users": 4, "think_s": 0.0}}
    bench = Bench(0.02, pattern=keeps_text, tables=tables(0.4, closed), in_flight_per_worker=2)
    bench.dispatcher.lease(arrivals(0, 0, 0, 0, turns=0))
    bench.run()
    gevent.sleep(0.5)
    return bench.close()


def ahead() -> Any:
    """In the think time the next turn stands ready, its prompt made."""
    bench = Bench(0.01, pattern=keeps_text, tables=tables(**{**SESSION, "think_s": 2.0}))
    bench.dispatcher.lease(arrivals(0, turns=2))
    bench.run()
    gevent.sleep(0.2)
    ready = [len(turn.prompts[0].messages) for _, _, turn in bench.dispatcher._waiting]
    return {**bench.close(), "ready": ready}


print_facts(talks, cut_off, stopped, dropped, users, crowd, ahead)
