"""A request's pattern runs where its events happen. See scripts/driver.py."""

from __future__ import annotations

import pytest


@pytest.fixture(scope="module")
def seen(run_script):
    return run_script("worker/scripts/driver.py")


def test_calls_are_numbered_within_their_leg_and_their_events_heard(seen):
    facts = seen["sends_and_cancels"]

    assert facts["seen"] == [
        ["Sent", 0, 0],
        ["Sent", 0, 1],
        ["Sent", 1, 0],
        ["FirstContent", 1],
        ["Closed", 0],
        ["Ended", 0, "cancelled"],
    ]
    assert facts["result"] == ["ok", 2, 3]


def test_calls_that_a_pattern_left_open_are_closed_at_its_end(seen):
    assert seen["sends_and_cancels"]["aborted"] == [["cancelled"]] * 3


def test_a_wait_ends_with_its_time_or_with_an_event(seen):
    assert seen["waits"]["seen"] == [[True, True], [True], [True], ["empty"]]
    assert seen["waits"]["result"] == ["empty", 1, 1]
    assert seen["waits"]["timer_left"] is False


def test_no_wait_ends_before_its_time(seen):
    """The loop's own clock lags behind and counts milliseconds; retry-after is kept all the same."""
    assert seen["never_early"]["count"] == 300
    assert seen["never_early"]["earliest"] >= 0


def test_what_happens_while_a_step_is_carried_out_waits_in_line_and_comes_before_a_time_that_has_passed(
    seen,
):
    assert seen["reentered"] == {
        "seen": [["FirstContent", 0], ["Closed"], ["FirstContent", 1], ["Ended", 1], ["Due"]],
        "ended": "ok",
    }


def test_what_came_before_a_time_is_received_first_also_where_the_loop_is_late(seen):
    assert seen["came_in_time"] == ["FirstContent", "Due"]


def test_the_steps_after_an_event_are_carried_out_before_the_hubs_callback_returns(seen):
    assert seen["hub_runs_it"] == ["cancelled", "callback returns"]


@pytest.mark.parametrize(
    ("case", "error"),
    {
        "raises": "KeyError",
        "yields_nonsense": "TypeError",
        "returns_nonsense": "TypeError",
        "cancels_nothing": "KeyError",
        "gives_nothing": "ValueError",
        "will_not_go": "RuntimeError",
    }.items(),
)
def test_a_bug_ends_the_request_and_is_kept(seen, case, error):
    assert seen["bugs"][case][:2] == [error, "censored"]


def test_a_bug_leaves_no_call_open(seen):
    assert seen["bugs"]["raises"][2] == [["cancelled"]]


# --- gates ------------------------------------------------------------------------------------------------------


def test_a_gate_admits_in_the_order_of_asking_and_never_more_than_its_limit(seen):
    assert seen["gates"]["order"] == list(range(10))
    assert seen["gates"]["most"] == 2


def test_places_of_requests_that_end_without_giving_them_back_are_free_again(seen):
    assert seen["gates"]["left"] == [0, 0, 0]


def test_legs_of_one_request_wait_in_line_each_and_one_that_leaves_is_passed_over(seen):
    assert seen["gate_legs"]["seen"] == [["Queued", "Queued"], ["Taken", 0], ["Taken", 1]]
    assert seen["gate_legs"]["ended"] == ["ok", "censored", "ok"]


def test_a_long_line_that_moves_at_once_does_not_nest(seen):
    assert seen["deep_gate"] == [[], 1000]


# --- the end ----------------------------------------------------------------------------------------------------


def test_a_censored_request_hears_the_end_of_its_calls_and_sends_no_other(seen):
    assert seen["censored"] == {
        "received": [["Ended", "censored"]],
        "calls": 1,
        "ended": "censored",
        "bug": False,
    }


def test_what_a_call_says_after_its_request_has_ended_is_for_no_one(seen):
    assert seen["late_text"] == {"winner": 1, "aborted": [["cancelled"], []]}
