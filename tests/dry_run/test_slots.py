"""A number of requests in flight at most: N requests of a closed loop, and a queue beside an open rate."""

from __future__ import annotations

import numpy as np
import pytest
from dry_run.in_memory import run_in_memory

from tailgauge.rows.schema import CENSORED, CLIENT_DROP, TURNS

SPREAD = {"output_tokens": 30, "output_sigma": 0.8}


def counted(requests: int, users: int, **changes):
    closed = {"users": users, "think_s": 0.0, "requests": requests}
    return {
        "arrival": {"process": "closed", "closed": closed},
        "traffic": {"chat": SPREAD},
        **changes,
    }


def most_at_once(begun_ns, ended_ns) -> int:
    """The most intervals that overlap; one that begins when another ends does not overlap it."""
    times = np.concatenate([begun_ns, ended_ns])
    changes = np.repeat([1, -1], len(begun_ns))
    return int(np.cumsum(changes[np.lexsort([changes, times])]).max())


def at_client(kept) -> int:
    rows = [row for row in kept.attempts if row.ended_at_ns is not None]
    return most_at_once([row.sent_at_ns for row in rows], [row.ended_at_ns for row in rows])


def at_server(kept) -> int:
    rows = [row for row in kept.server_rows if row.ended_at_ns is not None]
    return most_at_once([row.received_at_ns for row in rows], [row.ended_at_ns for row in rows])


def numbers(kept) -> list[int]:
    return sorted(row.request_id // TURNS for row in kept.requests)


REFUSING = {"simulated": {"limits": {"rpm": 60, "burst": 5}}}
TWO_TABLES = {"traffic": {"chat": SPREAD, "code": {"weight": 3.0, "output_tokens": 5}}}
LEGS = {"traffic": {"chat": {"pattern": "fan_out", "output_tokens": 5, "fan_out": {"legs": 3}}}}


@pytest.mark.parametrize(
    ("tree", "requests", "users"),
    [
        (counted(100, 8), 100, 8),
        (counted(3, 8), 3, 3),
        (counted(40, 1), 40, 1),
        (counted(60, 4, **REFUSING), 60, 4),
        (counted(50, 6, **TWO_TABLES), 50, 6),
        (counted(20, 5, stages={"warmup_s": 2.0}), 20, 5),
    ],
    ids=["plain", "more users than requests", "one user", "429s", "two tables", "a warm-up"],
)
def test_a_closed_loop_with_a_number_sends_exactly_so_many(tree, requests, users):
    kept = run_in_memory(tree)

    assert numbers(kept) == list(range(requests))
    assert kept.run.counters.leased == kept.run.counters.dispatched == requests
    assert at_client(kept) == at_server(kept) == users
    assert {row.session_id for row in kept.requests} == {None}


def test_without_a_warm_up_every_request_of_a_number_counts():
    assert {row.stage for row in run_in_memory(counted(12, 3)).requests} == {"steady"}


def test_a_request_of_a_number_follows_the_end_of_another_and_its_legs_take_one_slot():
    kept = run_in_memory(counted(12, 2, **LEGS))
    rows = sorted(kept.requests, key=lambda row: row.scheduled_at_ns)

    ends = {row.ended_at_ns for row in rows}
    assert all(row.scheduled_at_ns in ends for row in rows[2:])
    assert at_client(kept) == 6
    assert (
        most_at_once([row.dispatched_at_ns for row in rows], [row.ended_at_ns for row in rows]) == 2
    )


def test_users_of_a_number_think_between_their_requests():
    tree = counted(12, 3)
    tree["arrival"]["closed"]["think_s"] = 2.0
    kept = run_in_memory(tree)
    rows = sorted(kept.requests, key=lambda row: row.scheduled_at_ns)

    assert numbers(kept) == list(range(12))
    ends = {row.ended_at_ns + 2_000_000_000 for row in rows}
    assert all(row.scheduled_at_ns in ends for row in rows[3:])


def test_the_longest_length_ends_a_number_too():
    kept = run_in_memory(counted(1000, 2, stages={"duration_s": 3.0}))

    assert 2 < len(kept.requests) < 100
    assert kept.run.counters.not_reached == 1000 - len(kept.requests)


# --- a queue beside an open rate ----------------------------------------------------------------------------------


def queued(slots: int, rate: float, seconds: float = 10.0, **changes):
    arrival = {"rate_per_s": rate, "max_concurrency": slots}
    stages = {"duration_s": seconds, "warmup_s": 0.0}
    return {"arrival": arrival, "stages": stages, "traffic": {"chat": SPREAD}, **changes}


@pytest.mark.parametrize(("slots", "rate"), [(2, 6.0), (1, 2.0), (8, 20.0)])
def test_arrivals_beyond_the_slots_wait_in_order_and_none_is_dropped(slots, rate):
    kept = run_in_memory(queued(slots, rate))
    free = run_in_memory({**queued(slots, rate), "arrival": {"rate_per_s": rate}})
    rows = sorted(kept.requests, key=lambda row: row.scheduled_at_ns)
    begun = [row.dispatched_at_ns + row.slot_wait_ns for row in rows]

    assert at_client(kept) == at_server(kept) == slots < at_client(free)
    assert [row.scheduled_at_ns for row in rows] == sorted(
        row.scheduled_at_ns for row in free.requests
    )
    assert [row.dispatched_at_ns for row in rows] == [row.scheduled_at_ns for row in rows]
    assert begun == sorted(begun)
    assert 0 < sum(row.slot_wait_ns > 0 for row in rows) <= len(rows)
    assert {row.ended for row in rows} == {"ok"}
    assert {row.slot_wait_ns for row in free.requests} == {None}


def test_a_wait_is_until_the_slot_and_the_call_begins_then():
    kept = run_in_memory(queued(2, 6.0))
    sent = {row.request_id: row.sent_at_ns for row in kept.attempts}

    assert all(
        sent[row.request_id] == row.dispatched_at_ns + row.slot_wait_ns for row in kept.requests
    )


def test_slots_that_suffice_make_nobody_wait():
    assert {row.slot_wait_ns for row in run_in_memory(queued(50, 4.0)).requests} == {0}


def test_what_waits_when_the_drain_ends_is_open_without_a_call():
    kept = run_in_memory(queued(1, 20.0, limits={"drain_s": 2.0}))
    waiting = [row for row in kept.requests if row.ended == CENSORED and not row.attempts]

    assert len(waiting) > 50
    assert all(row.slot_wait_ns > 2_000_000_000 and row.legs == 0 for row in waiting)
    assert CLIENT_DROP not in {row.ended for row in kept.requests}
    counters = kept.run.counters
    assert counters.leased == counters.dispatched == len(kept.requests)
    assert counters.dispatched == sum(counters.ended.values()) + counters.censored


def test_turns_of_sessions_and_retries_keep_to_the_slots_too():
    sessions = {"chat": {**SPREAD, "session": {"turns_mean": 3.0, "think_s": 0.2}}}
    kept = run_in_memory(queued(3, 5.0, traffic=sessions))

    assert at_client(kept) == 3
    assert max(row.request_id % TURNS for row in kept.requests) >= 2
