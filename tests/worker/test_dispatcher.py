"""Open loop: each arrival at its time, whatever became of the others. See scripts/dispatcher.py."""

from __future__ import annotations

import pytest


@pytest.fixture(scope="module")
def seen(run_script):
    return run_script("worker/scripts/dispatcher.py")


def test_arrivals_are_dispatched_in_the_order_of_their_times_however_they_came(seen):
    facts = seen["order"]

    assert facts["started"] == list(range(8))
    assert facts["planned"] == [at * 1_000_000 for at in (0, 5, 5, 20, 40, 60, 80, 101)]
    assert facts["bugs"] == []


def test_no_arrival_is_dispatched_before_its_time(seen):
    assert min(seen["order"]["late"]) >= 0


def test_a_request_is_of_the_stage_of_its_scheduled_time(seen):
    assert seen["order"]["stages"] == ["warmup"] * 4 + [
        "warmup" if at < 50 else "steady" for at in (40, 60, 80)
    ] + ["cooldown"]


def test_every_request_has_a_prompt_of_its_own_of_the_size_that_was_asked_for(seen):
    assert (seen["order"]["prompts"], set(seen["order"]["words"])) == (8, {5})


def test_each_ended_request_is_reported_once(seen):
    assert seen["order"]["reported"] == 8
    assert seen["order"]["ended"] == ["ok"] * 8


def test_beyond_the_cap_arrivals_are_dropped_with_a_row_each_and_none_is_queued(seen):
    early, late = seen["cap"]["early"], seen["cap"]["late"]

    assert (early["in_flight"], early["started"]) == (3, [0, 1, 2])
    assert (early["ids"], early["ended"]) == ([3, 4, 5, 6, 7, 8, 9], ["client_drop"] * 7)
    assert early["nulls"] == [[True, True, 0, 0]] * 7
    assert late["started"] == [0, 1, 2, 10, 11, 12]
    assert late["counts"]["client_drop"] == 7
    assert late["in_flight"] == 0


def test_arrivals_beyond_the_slots_wait_in_their_order_and_none_is_dropped(seen):
    facts = seen["slots"]

    assert facts["started"] == list(range(6))
    assert facts["at_once"] == [2, 2, 2, 2, 2, 1]
    assert (facts["counts"]["dispatched"], facts["counts"]["client_drop"]) == (6, 0)
    assert facts["waits"][:2] == [0, 0]
    assert 0 < facts["waits"][2] <= facts["waits"][5]
    assert all(wait_ns > 0 for wait_ns in facts["slot_waits"][:4])  # four wait behind the first two
    assert facts["slot_waits"][4:] == [0, 0]


@pytest.mark.parametrize(
    ("case", "started", "ended", "not_reached"),
    [
        ("served", [0, 1, 2, 3], ["ok"] * 4, 0),
        ("not reached", [0], ["censored"], 3),
        ("open", [0], ["censored"] * 4, 0),
        ("a limit", [0, 1], ["ok"] * 2, 2),
    ],
)
def test_what_waits_for_a_slot_at_the_end_is_counted_once(seen, case, started, ended, not_reached):
    facts = seen["slots_at_end"][case]
    counts = facts["counts"]

    assert (facts["started"], facts["ended"], counts["not_reached"]) == (
        started,
        ended,
        not_reached,
    )
    assert counts["leased"] == 4 == counts["dispatched"] + counts["not_reached"]
    assert counts["dispatched"] == sum(counts["ended"].values()) + counts["censored"]
    assert (facts["in_flight"], facts["bugs"]) == (0, [])


def test_users_of_a_number_go_on_when_more_of_it_comes(seen):
    facts = seen["counted"]

    assert facts["started"] == list(range(7))
    assert facts["counts"]["leased"] == facts["counts"]["dispatched"] == 7
    assert facts["done"] == [3, 7]


@pytest.mark.parametrize("limits", ["none", "two", "tokens"])
def test_a_worker_at_its_cap_that_has_dropped_too_much_makes_no_prompts_for_what_it_drops(
    seen, limits
):
    """Of the first thirty it makes some ahead of need, until they are dropped."""
    facts = seen["full"][limits]
    first, second, last = facts["made"]

    assert facts["started"] == [0, 61]
    assert 1 < first == second == last - 1
    assert (facts["counts"]["client_drop"], facts["refused"]) == (60, [])


def test_a_limit_that_is_reached_stops_a_worker_at_its_cap_too(seen):
    facts = seen["full"]["one"]

    assert (facts["started"], facts["refused"]) == ([0], ["max_requests"])
    assert (facts["counts"]["client_drop"], facts["counts"]["not_reached"]) == (0, 61)


def test_an_answer_that_waits_to_be_read_frees_its_place_and_ended_when_it_did(seen):
    facts = seen["waiting"]

    assert facts["started"] == [0, 1]
    assert facts["counts"]["client_drop"] == 0
    assert facts["after_event"] == 0


def test_a_stop_counts_what_was_not_reached_and_sends_no_more(seen):
    facts = seen["stop"]

    assert (facts["started"], facts["walking"]) == ([0, 1, 2], False)
    assert facts["counts"]["not_reached"] == 6  # two of them of a slice that came after the stop


def test_what_was_due_at_the_end_is_still_sent_and_what_is_due_later_is_not(seen):
    counts = seen["late"]["counts"]

    assert (counts["dispatched"], counts["not_reached"]) == (50, 1)
    assert seen["far_behind"]["counts"]["not_reached"] > 1, (
        "a worker that stalled for longer does not catch up"
    )


def test_what_is_overdue_by_a_second_when_its_slice_comes_is_sent_only_if_the_worker_itself_was_stopped(
    seen,
):
    link, worker = seen["came_late"]["link"], seen["came_late"]["worker"]

    assert 90 in link["started"]
    fewest, most = (
        sum(at <= now_ms - 1000 for at in range(1000, 3000, 100))
        for now_ms in link["leased_between_ms"]
    )
    assert 8 <= fewest <= link["counts"]["came_late"] == link["counts"]["not_reached"] <= most
    assert min(at for at in link["planned"] if at) >= 1_900_000_000
    assert worker["counts"]["came_late"] == 0
    assert {0, 1, 2} <= set(worker["started"])
    for facts in (link, worker):
        counts = facts["counts"]
        assert counts["leased"] == 21 == counts["dispatched"] + counts["not_reached"]


def test_what_an_overloaded_worker_skips_is_not_reached(seen):
    counts = seen["behind"]["counts"]

    assert counts["leased"] == counts["dispatched"] + counts["not_reached"] == 1200
    assert counts["client_drop"] == 0
    assert max(seen["behind"]["planned"]) > 4e9, (
        "a worker that sends all late would not have come as far"
    )


def test_a_drain_waits_and_then_censors_what_is_open(seen):
    facts = seen["drain"]
    ended = dict(zip(facts["ids"], zip(facts["ended"], facts["nulls"], strict=True), strict=True))

    assert ended == {
        0: ("censored", [False, True, 1, 1]),
        1: ("timeout", [False, False, 1, 1]),
        2: ("censored", [False, True, 1, 1]),
    }
    assert facts["reasons"] == [["censored"], [], ["censored"]]
    assert (facts["counts"]["censored"], facts["counts"]["ended"], facts["in_flight"]) == (
        2,
        {"timeout": 1},
        0,
    )
    assert facts["reported"] == 1  # the censored are for no statistics page


def test_a_user_in_a_hurry_does_not_wait_for_the_drain(seen):
    facts = seen["hurried"]

    assert facts["took_s"] < 10
    assert (facts["ended"], facts["counts"]["not_reached"]) == (["censored", "censored"], 1)


def test_a_hurry_ends_a_drain_that_waits_for_a_request_that_never_ends(seen):
    facts = seen["hurried_in_drain"]

    assert facts["took_s"] < 30
    assert facts["ended"] == ["censored"]


@pytest.mark.parametrize(
    "case",
    [
        "order",
        "stop",
        "drain",
        "hurried",
        "hurried_in_drain",
        "bug",
        "retry_wait",
        "informed_in_time",
    ],
)
def test_everything_leased_is_in_exactly_one_place(seen, case):
    counts = seen[case]["counts"]

    assert counts["leased"] == counts["dispatched"] + counts["client_drop"] + counts["not_reached"]
    assert counts["dispatched"] == sum(counts["ended"].values()) + counts["censored"]
    assert (seen[case]["in_flight"], seen[case]["open"]) == (0, 0)


def test_a_bug_in_a_pattern_is_reported_ends_its_request_and_closes_its_call(seen):
    facts = seen["bug"]

    assert facts["bugs"] == ["KeyError('a bug')"]
    assert dict(zip(facts["ids"], facts["ended"], strict=True)) == {0: "ok", 1: "censored", 2: "ok"}
    assert facts["reasons"] == [[], ["cancelled"], []]


def test_a_drain_ends_requests_that_wait_for_a_retry_or_in_line_at_a_gate(seen):
    facts = seen["retry_wait"]

    assert facts["ended"] == ["censored"] * 3
    assert facts["started"] == [0, 1], "the place that the drain sets free is no reason to send"
    assert 0.1 <= facts["took_s"] < 10


def test_a_listener_may_wait_although_the_request_ended_in_the_hub(seen):
    assert (seen["informed_in_time"]["ended"], seen["informed_in_time"]["reported"]) == (
        ["timeout"] * 2,
        2,
    )


# --- the timer --------------------------------------------------------------------------------------------------


def test_the_timer_is_never_early(seen):
    assert seen["timer"]["timer"][0] >= 0
    assert seen["timer"]["after_wake_up"] >= 0


def test_the_timer_is_nearer_to_its_time_than_a_sleep(seen):
    """Medians of 60 each, taken in turn; a sleep is a third of a millisecond later even on an idle machine."""
    timer, sleep = seen["timer"]["timer"], seen["timer"]["sleep"]

    assert timer[len(timer) // 2] < sleep[len(sleep) // 2]


def test_a_wake_up_ends_the_wait_and_a_time_that_has_passed_needs_none(seen):
    assert seen["timer"]["rung_s"] < 4
    assert seen["timer"]["past_s"] < 4


def test_the_request_of_a_task_is_recorded_as_its_task_judges_the_answer(seen):
    facts = seen["judged"]

    assert facts["before"] == 0
    assert facts["counted"] == [0, 3], "behind its calls, so that no error is shown before its 429"
    assert facts["ended"] == {
        "0": "check_failed", "1": "ok", "2": "rate_limited", "3": "ok", "4": "censored",
    }  # fmt: skip
    assert facts["tags"]["0"] == {"task": "t0", "failure": "no end mark"}
    assert facts["tags"]["1"] == {"task": "t1"}
    assert facts["counts"]["ended"] == {"check_failed": 1, "ok": 2, "rate_limited": 1}
    assert (facts["counts"]["dispatched"], facts["counts"]["censored"], facts["in_flight"]) == (
        5,
        1,
        0,
    )
    assert facts["bugs"] == []


def test_users_whose_answers_end_together_do_not_wait_for_each_others_prompts(seen):
    facts = seen["together"]

    assert facts["bugs"] == []
    assert len(facts["waits"]) == 100
    assert max(facts["waits"]) <= 1
