"""Sessions and closed loops in one worker: what follows a request, and where each one is counted.

See scripts/sessions.py; think times and ids are tested in tests/schedule/test_sessions.py.
"""

from __future__ import annotations

import pytest

SESSION_CASES = ("talks", "cut_off", "stopped", "dropped")
CLOSED_CASES = ("users", "crowd")


@pytest.fixture(scope="module")
def seen(run_script):
    return run_script("worker/scripts/sessions.py")


def classes(facts):
    return {arrival: [turn[1] for turn in turns] for arrival, turns in facts["turns"].items()}


def test_a_session_has_the_turns_that_were_planned_and_ends_with_a_failure(seen):
    assert classes(seen["talks"]) == {
        "0": ["ok", "ok", "ok"],
        "1": ["ok"],
        "2": ["ok", "rate_limited"],
    }
    assert seen["talks"]["counts"]["not_reached"] == 2, "what was planned after the failure"
    assert seen["talks"]["counts"]["not_due"] == 2


def test_each_turn_is_scheduled_exactly_a_think_time_after_the_end_of_the_one_before(seen):
    thought = [turn[2] for turns in seen["talks"]["turns"].values() for turn in turns if turn[0]]

    assert thought == [40.0] * 3
    assert min(seen["talks"]["late"]) >= 0


def test_a_later_turn_carries_the_conversation_with_the_answers_that_came(seen):
    asked = seen["talks"]["messages"]

    assert asked["1"] == [*asked["0"], "-> answer 0", asked["1"][-1]]
    assert asked["2"][:3] == asked["1"]
    assert asked["2"][3] == "-> answer 3"


def test_what_conversations_keep_is_known_while_they_last(seen):
    assert [seen[case]["kept"] for case in ("talks", "cut_off", "dropped")] == [0, 0, 0]
    assert seen["stopped"]["kept"] == 2 * (49 + len("answer 0")), "two sessions were thinking"


def test_rows_say_to_which_session_and_stage_they_belong(seen):
    stages = [turn[3:] for turn in seen["talks"]["turns"]["2"]]

    assert stages == [["warmup", 2 * 65536], ["steady", 2 * 65536]]
    assert seen["talks"]["tags"] == '{"tenant": "a"}'


def test_a_turn_that_would_be_due_after_the_run_is_not_sent(seen):
    assert classes(seen["cut_off"]) == {"0": ["ok", "ok"], "1": ["ok"]}
    assert seen["cut_off"]["counts"]["not_reached"] == seen["cut_off"]["counts"]["not_due"] == 4


def test_a_stop_in_the_think_time_leaves_the_next_turn_unsent(seen):
    assert classes(seen["stopped"]) == {"0": ["ok"], "1": ["ok"]}
    assert seen["stopped"]["counts"]["not_reached"] == 4
    assert seen["stopped"]["counts"]["not_due"] == 0, "their next turns had a time"


def test_a_turn_at_the_cap_is_dropped_and_ends_its_session(seen):
    assert classes(seen["dropped"]) == {"0": ["ok", "ok"], "1": ["client_drop"]}
    assert seen["dropped"]["counts"]["not_reached"] == seen["dropped"]["counts"]["not_due"] == 8


def test_the_next_prompt_is_made_in_the_think_time(seen):
    assert seen["ahead"]["ready"] == [3]


# --- closed loop ------------------------------------------------------------------------------------------------


def test_users_ask_again_after_a_think_time_and_stay_after_a_failure(seen):
    turns = seen["users"]["turns"]

    assert [turns["2"][0][1], turns["2"][1][1]] == ["server_error", "ok"]
    assert {turn[2] for user in turns.values() for turn in user if turn[0]} == {30.0}
    assert all(len(user) >= 3 for user in turns.values())
    assert {(number, turn[4]) for number, user in turns.items() for turn in user} == {
        ("0", 0),
        ("1", 65536),
        ("2", 2 * 65536),
    }


def test_users_of_a_closed_loop_ask_something_new_each_time_and_carry_nothing_on(seen):
    asked = [text for texts in seen["users"]["messages"].values() for text in texts]

    assert len(set(asked)) == len(asked) == len(seen["users"]["ids"])


def test_a_closed_loop_ends_with_the_run(seen):
    assert seen["users"]["last_ms"] < 300


def test_a_closed_loop_counts_its_requests_as_they_come(seen):
    assert seen["users"]["early"] == 0
    assert seen["users"]["counts"]["leased"] == len(seen["users"]["ids"])
    assert seen["crowd"]["counts"]["leased"] == len(seen["crowd"]["ids"])
    assert seen["users"]["counts"]["not_reached"] == seen["crowd"]["counts"]["not_reached"] == 0


def test_hasty_users_at_the_cap_do_not_spin(seen):
    """Two of four are turned away, each at most every 100 ms of the 400."""
    assert 2 <= seen["crowd"]["counts"]["client_drop"] <= 2 * 5
    assert seen["crowd"]["counts"]["dispatched"] >= 4


@pytest.mark.parametrize("case", [*SESSION_CASES, *CLOSED_CASES])
def test_everything_leased_is_in_exactly_one_place(seen, case):
    counts = seen[case]["counts"]

    assert counts["leased"] == counts["dispatched"] + counts["client_drop"] + counts["not_reached"]
    assert counts["dispatched"] == sum(counts["ended"].values()) + counts["censored"]
    assert (seen[case]["bugs"], seen[case]["in_flight"], seen[case]["open"]) == ([], 0, 0)
