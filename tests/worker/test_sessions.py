"""Sessions and closed loops in one worker: what follows a request, and where each one is counted.

Think times and ids are tested in tests/schedule/test_sessions.py.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import gevent
import pytest
from worker.fake_calls import MS, Bench, arrivals, wait_until

from tailgauge.call import Call
from tailgauge.patterns.events import Done, Ended, Send, Wait
from tailgauge.rows.schema import TURNS

pytestmark = pytest.mark.gevent


def keeps_text(request: Any) -> Any:
    """One call; the answer is kept, as sessions need it."""
    yield Send(Call(request.prompt, request.output_tokens, keep_text=True))
    while not isinstance(received := (yield Wait()), Ended):
        pass
    return Done(received.ended, received.attempt, text=received.text)


def bench_of(
    seconds: float, duration_s: float, traffic: dict[str, Any], arrival: Any = None, **limits: Any
) -> Bench:
    talk = {"prompt_tokens": 5, "output_tokens": 7, "tags": {"tenant": "a"}, **traffic}
    tables = {
        "arrival": arrival or {},
        "stages": {"duration_s": duration_s, "warmup_s": 0.03},
        "traffic": {"main": talk},
    }
    return Bench(seconds, pattern=keeps_text, tables=tables, **limits)


def sessions(
    seconds: float = 0.01, *, think_s: float = 0.04, duration_s: float = 10.0, **limits: Any
) -> Bench:
    session = {"turns_mean": 3.0, "think_s": think_s, "think_sigma": 0.0}
    return bench_of(seconds, duration_s, {"session": session}, **limits)


def users(
    seconds: float, duration_s: float, *, think_s: float, number: int, **limits: Any
) -> Bench:
    arrival = {"process": "closed", "closed": {"users": number, "think_s": think_s}}
    return bench_of(seconds, duration_s, {}, arrival, **limits)


def run(bench: Bench, rows: list[Any], for_s: float) -> None:
    bench.dispatcher.lease(rows)
    bench.run()
    gevent.sleep(for_s)


def turns(bench: Bench) -> dict[int, list[Any]]:
    """Rows of each arrival, in the order of their turns."""
    assert bench.bugs == []
    found: dict[int, list[Any]] = {}
    for row in sorted(bench.rows, key=lambda row: row.request_id):
        found.setdefault(row.request_id // TURNS, []).append(row)
    return found


def ended(bench: Bench) -> dict[int, list[str]]:
    return {arrival: [row.ended for row in rows] for arrival, rows in turns(bench).items()}


def think_times_ms(bench: Bench) -> list[float]:
    return [
        (row.scheduled_at_ns - before.ended_at_ns) / MS
        for rows in turns(bench).values()
        for before, row in pairwise(rows)
    ]


def messages(bench: Bench) -> dict[int, list[str]]:
    """What each request asked: texts of its messages."""
    return {
        request_id: [message.parts[0].text for message in prompt.messages]
        for request_id, prompt, _ in bench.attempts.started
    }


def test_a_session_has_the_turns_that_were_planned_and_ends_with_a_failure():
    """Three turns, one turn, and one whose second turn, the fifth call, fails."""
    bench = sessions()
    bench.attempts.classes = {4: "rate_limited"}
    rows = [*arrivals(0, turns=3), *arrivals(5, first=1), *arrivals(15, first=2, turns=4)]
    run(bench, rows, 0.0)
    wait_until(lambda: len(bench.rows) == 6)
    gevent.sleep(0.1)
    counts = bench.close()

    assert ended(bench) == {0: ["ok"] * 3, 1: ["ok"], 2: ["ok", "rate_limited"]}
    assert counts["not_reached"] == counts["not_due"] == 2, "what was planned after the failure"
    assert think_times_ms(bench) == [40.0] * 3
    assert all(row.dispatched_at_ns >= row.scheduled_at_ns for row in bench.rows)
    assert [row.stage for row in turns(bench)[2]] == ["warmup", "steady"]
    assert [row.session_id for row in turns(bench)[2]] == [2 * TURNS] * 2
    assert bench.rows[0].tags == '{"tenant": "a"}'
    # A later turn carries the conversation with the answers that came.
    asked = messages(bench)
    assert asked[1] == [*asked[0], "answer 0", asked[1][-1]]
    assert asked[2][:4] == [*asked[1], "answer 3"]
    assert bench.counters.conversations == 0


def test_a_turn_that_would_be_due_after_the_run_is_not_sent():
    """The run ends while two sessions are thinking, and one is due after its end."""
    bench = sessions(duration_s=0.2, think_s=0.15)
    run(bench, [*arrivals(0, turns=5), *arrivals(100, first=1, turns=2)], 0.4)
    counts = bench.close()

    assert ended(bench) == {0: ["ok", "ok"], 1: ["ok"]}
    assert counts["not_reached"] == counts["not_due"] == 4
    assert bench.counters.conversations == 0


def test_a_stop_in_the_think_time_leaves_the_next_turn_unsent():
    bench = sessions(think_s=0.1)
    run(bench, arrivals(0, 0, turns=3), 0.06)
    bench.dispatcher.stop()
    gevent.sleep(0.15)
    counts = bench.close()

    assert ended(bench) == {0: ["ok"], 1: ["ok"]}
    assert counts["not_reached"] == 4
    assert counts["not_due"] == 0, "their next turns had a time"
    assert bench.counters.conversations == 2 * (49 + len("answer 0")), "two sessions were thinking"


def test_a_turn_at_the_cap_is_dropped_and_ends_its_session():
    bench = sessions(0.1, in_flight_per_worker=1)
    run(bench, [*arrivals(0, turns=2), *arrivals(5, first=1, turns=9)], 0.35)
    counts = bench.close()

    assert ended(bench) == {0: ["ok", "ok"], 1: ["client_drop"]}
    assert counts["not_reached"] == counts["not_due"] == 8
    assert bench.counters.conversations == 0


def test_the_next_prompt_is_made_in_the_think_time():
    bench = sessions(think_s=2.0)
    run(bench, arrivals(0, turns=2), 0.2)

    ((_, _, turn),) = bench.dispatcher._waiting
    assert len(turn.prompts[0].messages) == 3
    bench.close()


def test_users_ask_something_new_after_a_think_time_stay_after_a_failure_and_end_with_the_run():
    """Three users; the third call of all fails; the run lasts 1 s."""
    bench = users(0.01, 1.0, think_s=0.03, number=3)
    bench.attempts.classes = {2: "server_error"}
    bench.dispatcher.lease(arrivals(0, 10, 20, turns=0))
    bench.run()
    assert bench.counters.leased == 0, "requests are counted as they come"
    gevent.sleep(1.2)
    counts = bench.close()

    assert ended(bench)[2][:2] == ["server_error", "ok"]
    assert set(think_times_ms(bench)) == {30.0}
    for number, rows in turns(bench).items():
        assert len(rows) >= 3
        assert {row.session_id for row in rows} == {number * TURNS}
    asked = [text for texts in messages(bench).values() for text in texts]
    assert len(set(asked)) == len(asked) == len(bench.rows)
    assert (counts["leased"], counts["not_reached"]) == (len(bench.rows), 0)
    assert max(bench.planned_ms) < 1000


def test_hasty_users_at_the_cap_do_not_spin():
    """Two of four are turned away, each at most every 100 ms of the 400."""
    bench = users(0.02, 0.4, think_s=0.0, number=4, in_flight_per_worker=2)
    run(bench, arrivals(0, 0, 0, 0, turns=0), 0.5)
    counts = bench.close()

    assert 2 <= counts["client_drop"] <= 2 * 5
    assert counts["dispatched"] >= 4
    assert (counts["leased"], counts["not_reached"]) == (len(bench.rows), 0)
