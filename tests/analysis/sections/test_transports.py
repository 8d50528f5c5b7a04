"""Streams that were resumed and jobs that were polled: their outcomes, times and wasted polls, by hand."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pandas as pd

from tailgauge_analysis.sections.transports import compute, section

MS = 1_000_000


def run_of(requests, attempts):
    return SimpleNamespace(
        without_slow_readers=SimpleNamespace(requests=requests, attempts=attempts)
    )


def found(answer, *requests):
    """The section's finding; a request is how it ended, and its attempts as (cause, ended, first content, end, more), in ms."""
    rows, calls = [], []
    for number, (ended, attempts) in enumerate(requests):
        rows.append({"request_id": number, "traffic": "chat", "answer": answer, "ended": ended, "scheduled_at_ns": 0.0,
                     "ended_at_ns": attempts[-1][3] * MS, "whole_at_ns": attempts[-1][3] * MS})  # fmt: skip
        for attempt, (cause, end_class, first, end, more) in enumerate(attempts):
            calls.append({
                "request_id": number, "attempt": attempt, "cause": cause, "ended": end_class, "ended_at_ns": end * MS,
                "first_content_at_ns": np.nan if first is None else first * MS, "error_type": None, "stop_reason": None,
                "status": 200, **more,
            })  # fmt: skip
    (one,) = compute(run_of(pd.DataFrame(rows), pd.DataFrame(calls)))
    return one


def values(one):
    return [quantile.value for quantile in one.times]


def test_the_time_to_resume_runs_from_a_cut_to_the_next_content():
    one = found(
        "pieces",
        ("ok", [("primary", "cancelled", 10, 50, {}), ("resume", "ok", 80, 200, {})]),
        ("ok", [("primary", "ok", 10, 50, {})]),
        # Two connections brought nothing, and are a part of the wait.
        ("ok", [("primary", "truncated", 10, 50, {}), ("resume", "connect_error", None, 60, {}), ("retry", "cancelled", None, 70, {}),
                ("resume", "ok", 150, 200, {})]),
        # Nothing was missing but the end mark.
        ("ok", [("primary", "cancelled", 10, 50, {}), ("resume", "ok", None, 60, {})]),
    )  # fmt: skip

    assert one.outcomes == {"complete": 4}
    assert {name: list(waits_ms) for name, waits_ms in one.groups.items()} == {
        "never cut": [50.0],
        "resumed": [200.0, 200.0, 60.0],
    }
    assert (one.calls, one.wasted) == (4, 0)
    assert one.times[0].n == 3
    assert values(one) == [30.0, 100.0]


def test_a_cut_before_any_content_is_no_cut_of_an_answer():
    one = found(
        "pieces", ("ok", [("primary", "cancelled", None, 50, {}), ("resume", "ok", 80, 200, {})])
    )

    assert one.times[0].n == 0


def test_what_was_not_resumed_counts_as_slower_than_any():
    damaged = {"error_type": "events_repeated"}
    one = found(
        "pieces",
        (
            "stream_error",
            [("primary", "cancelled", 10, 50, {}), ("resume", "stream_error", 80, 200, damaged)],
        ),
        (
            "server_error",
            [("primary", "truncated", 10, 50, {}), ("resume", "server_error", None, 60, {})],
        ),
        ("truncated", [("primary", "truncated", 10, 50, {})]),
        (
            "stream_error",
            [("primary", "stream_error", 10, 50, {})],
        ),  # an error of the target, and no cut
    )

    assert one.outcomes == {"broken off": 3, "with events twice": 1}
    assert one.times[0].n == 3
    assert all(np.isinf(values(one)))


SUBMIT = ("primary", "ok", None, 10, {"status": 202})


def poll(at, state=None, status=200, ended="ok"):
    return ("poll", ended, None, at, {"stop_reason": state, "status": status})


def test_jobs_have_outcomes_turnaround_and_wasted_polls():
    one = found(
        "turnaround",
        ("ok", [SUBMIT, poll(100), poll(200), poll(300, "succeeded"), poll(310)]),
        ("ok", [SUBMIT, poll(100, "succeeded")]),  # the result came with it
        ("client_error", [SUBMIT, poll(100), poll(200, status=404, ended="client_error")]),
        ("client_error", [SUBMIT, poll(100, status=410, ended="client_error")]),
        ("timeout", [SUBMIT, poll(100, "expired")]),
        ("timeout", [SUBMIT, poll(100), ("cancel", "ok", None, 400, {})]),
        ("cancelled", [SUBMIT, poll(100), ("cancel", "ok", None, 400, {})]),
        (
            "server_error",
            [SUBMIT, poll(100, "succeeded"), poll(200, status=500, ended="server_error")],
        ),
        ("rate_limited", [("primary", "rate_limited", None, 10, {"status": 429})]),
    )

    assert one.outcomes == {
        "fetched": 2, "lost (404)": 1, "dropped (410)": 1, "expired": 1, "past the deadline": 1, "given up": 1,
        "ended, not fetched": 1, "rate_limited": 1,
    }  # fmt: skip
    assert (one.calls, one.wasted) == (11, 5)
    assert one.times[0].n == 9
    assert np.isinf(values(one)).all()


def test_a_failed_poll_is_wasted():
    one = found(
        "turnaround", ("ok", [SUBMIT, poll(100, status=503, ended="overloaded"), poll(200, "done")])
    )

    assert (one.calls, one.wasted, values(one)) == (2, 1, [200.0, 200.0])


def test_other_traffic_has_no_such_section():
    rows = pd.DataFrame({"request_id": [1], "traffic": "chat", "answer": "single", "ended": "ok"})

    assert section(compute(run_of(rows, rows))) is None
