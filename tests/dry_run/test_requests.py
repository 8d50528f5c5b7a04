"""The requests of a dry run: those of the plan, each to its end, and the same ones every time."""

from dataclasses import asdict
from statistics import mean

import pytest
from dry_run.in_memory import evenly, plan_of, run_in_memory, scenario_of

from tailgauge.rows.schema import TURNS

BUSY = {
    "arrival": {"rate_per_s": 40.0},
    "stages": {"duration_s": 20.0},
    "simulated": {
        "profile": "sonnet",
        "stragglers": {"slow_share": 0.05},
        "limits": {"rpm": 2000, "burst": 20},
    },
    "traffic": {
        "plain": {"output_tokens": 30, "output_sigma": 0.5, "retry": {"policy": "polite"}},
        "hedged": {
            "pattern": "hedged",
            "output_tokens": 20,
            "hedge": {"policy": "adaptive", "delay_ms": 700.0},
        },
        "legs": {
            "pattern": "fan_out",
            "output_tokens": 10,
            "weight": 0.3,
            "fan_out": {"legs": 3, "at_once_per_worker": 12},
        },
    },
}


def rows_of(kept):
    return [
        [asdict(row) for row in rows] for rows in (kept.requests, kept.attempts, kept.server_rows)
    ], kept.chunks_of


@pytest.fixture(scope="module")
def busy():
    return run_in_memory(BUSY)


@pytest.mark.slow
def test_the_same_seed_gives_the_same_rows_and_another_one_others(busy):
    assert rows_of(run_in_memory(BUSY)) == rows_of(busy)
    assert rows_of(run_in_memory({**BUSY, "seed": 2})) != rows_of(busy)


def test_the_requests_are_those_of_the_plan(busy):
    scenario = scenario_of(BUSY)
    planned = list(plan_of(scenario).slice(0, 10**12))
    rows = sorted(busy.requests, key=lambda row: row.request_id)

    assert [row.request_id for row in rows] == [one.request_id for one in planned]
    assert [row.scheduled_at_ns - busy.run.start_at_ns for row in rows] == [
        one.at_ns for one in planned
    ]
    asked = [(one.traffic, one.prompt_tokens, one.output_tokens) for one in planned]
    assert [
        (row.traffic, row.asked_prompt_tokens, row.asked_output_tokens) for row in rows
    ] == asked


def test_every_request_is_counted_once_and_its_calls_are_its_rows(busy):
    counters, calls = busy.run.counters, busy.by_request()

    assert counters.leased == counters.dispatched == len(busy.requests)
    ended = [row.ended for row in busy.requests]
    assert counters.ended == {name: ended.count(name) for name in set(ended)}
    assert len(set(ended)) > 1  # some were refused for good
    assert all(len(calls[row.request_id]) == row.attempts for row in busy.requests)
    assert len(busy.server_rows) == len(busy.attempts)
    assert {"primary", "retry", "hedge"} == {row.cause for row in busy.attempts}


def test_the_server_log_agrees_with_what_the_client_received(busy):
    logged = {(row.request_id, row.leg, row.attempt): row for row in busy.server_rows}

    for row in busy.attempts:
        key = (row.request_id, row.leg, row.attempt)
        log, chunks = logged[key], busy.chunks_of.get(key)
        assert log.received_at_ns == row.sent_at_ns
        assert log.cancelled_at_ns == row.cancelled_at_ns
        assert log.chunk_sent_at_ns == (list(chunks.arrived) if chunks else [])
        assert row.chunks == len(log.chunk_sent_at_ns)
        if row.ended == "ok":
            assert (row.status, log.ended_at_ns) == (200, row.ended_at_ns)
            assert log.output_tokens == row.output_tokens == sum(chunks.chars) // 4
            assert row.input_tokens == log.input_tokens
        elif row.status == 429:
            assert (log.status, log.limit_kind, row.retry_after_s > 0) == (429, "requests", True)


def test_no_request_holds_a_gate_for_more_than_its_places(busy):
    """Twelve legs in flight at once, over all requests."""
    legs = [row for row in busy.attempts if row.traffic == "legs" and row.status == 200]
    marks = sorted([(row.sent_at_ns, 1) for row in legs] + [(row.ended_at_ns, -1) for row in legs])
    open_now = most = 0
    for _, change in marks:
        open_now += change
        most = max(most, open_now)

    assert most == 12


def test_arrivals_beyond_the_cap_are_dropped_and_nothing_queues():
    limits = {"in_flight_per_worker": 3}
    slow = {"ttft_ms": 1000.0, "chunk_gap_ms": 0.0}
    kept = run_in_memory(evenly(10.0, 10.0, limits=limits, simulated=slow))
    counters = kept.run.counters

    assert (counters.dispatched, counters.client_drop, counters.leased) == (30, 70, 100)
    assert all(row.dispatched_at_ns in {None, row.scheduled_at_ns} for row in kept.requests)
    assert {row.ended for row in kept.requests if row.dispatched_at_ns is None} == {"client_drop"}


def test_what_is_open_when_the_drain_ends_is_censored():
    long = {"main": {"output_tokens": 100}}
    slow = {"ttft_ms": 1000.0, "chunk_gap_ms": 50.0}
    tree = evenly(1.0, 10.0, limits={"drain_s": 2.0}, traffic=long, simulated=slow)
    kept = run_in_memory(tree)
    counters = kept.run.counters

    assert (counters.censored, counters.ended, counters.in_flight) == (4, {"ok": 6}, 0)
    censored = sorted(
        (row for row in kept.attempts if row.ended == "censored"), key=lambda row: row.request_id
    )
    assert [row.ended_at_ns for row in censored] == [None] * 4
    assert [row.chunks for row in censored] == [
        91,
        71,
        51,
        31,
    ]  # what had arrived at 12 s of those sent at 6.5, 7.5, ...


def test_a_call_beyond_its_deadline_times_out():
    paced = {"ttft_ms": 200.0, "chunk_gap_ms": 10.0}
    kept = run_in_memory(evenly(10.0, 2.0, limits={"attempt_deadline_s": 0.5}, simulated=paced))

    assert {(row.ended, row.ended_at_ns - row.sent_at_ns, row.chunks) for row in kept.attempts} == {
        ("timeout", 500_000_000, 31)
    }


def test_a_closed_loop_obeys_the_interactive_law():
    """X = N / (Z + R)."""
    tree = {
        "arrival": {"process": "closed", "closed": {"users": 8, "think_s": 1.0}},
        "stages": {"duration_s": 200.0},
        "simulated": {"profile": "llama3-8b-h100"},
    }
    kept = run_in_memory(tree)
    rows = kept.requests
    response_s = mean((row.ended_at_ns - row.scheduled_at_ns) / 1e9 for row in rows)

    assert len(rows) / 200 == pytest.approx(8 / (1.0 + response_s), rel=0.02)
    assert {row.session_id for row in rows} == {user * TURNS for user in range(8)}
    assert kept.run.counters.leased == len(rows)


def test_a_session_s_turn_follows_the_answer_before_it_and_carries_it():
    session = {"turns_mean": 4.0, "think_s": 2.0, "think_sigma": 0.0}
    talk = {"main": {"prompt_tokens": 50, "output_tokens": 20, "session": session}}
    kept = run_in_memory(evenly(0.5, 60.0, traffic=talk))
    attempts = {row.request_id: row for row in kept.attempts}
    later = [row for row in kept.requests if row.request_id % TURNS]

    assert later
    for row in later:
        before = attempts[row.request_id - 1]
        assert row.scheduled_at_ns == before.ended_at_ns + 2_000_000_000
        # The turn before, its answer of 20 tokens, and about 50 of its own.
        assert attempts[row.request_id].input_tokens == pytest.approx(
            before.input_tokens + 20 + 50, abs=15
        )
    counters = kept.run.counters
    assert counters.leased == counters.dispatched + counters.not_reached
    assert counters.not_due == counters.not_reached > 0, "nothing that was due was left out"


@pytest.mark.parametrize(
    "closed", [{"users": 5, "think_s": 0.0}, {"users": 5, "think_s": 0.0, "requests": 400}]
)
@pytest.mark.parametrize(
    "limits", [{"rpm": 60, "burst": 3}, {"itpm": 6_000, "itpm_burst": 300, "overload": True}]
)
def test_users_who_are_refused_at_once_do_not_stop_the_clock(closed, limits):
    tree = {
        "arrival": {"process": "closed", "closed": closed},
        "stages": {"duration_s": 10.0},
        "simulated": {"ttft_ms": 20.0, "limits": limits},
        "traffic": {"chat": {"prompt_tokens": 100, "output_tokens": 4}},
    }
    rows = run_in_memory(tree).requests
    refused = [row for row in rows if row.ended != "ok"]

    assert 100 < len(refused) <= 5 * 10 * 10
    assert all(row.ended_at_ns == row.scheduled_at_ns for row in refused)
    assert len(rows) - len(refused) <= 3 + 10
