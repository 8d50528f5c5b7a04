"""The end of a run: who is waited for, and for how long. The patience is a tenth of a second's multiple here."""

from __future__ import annotations

import pytest


@pytest.fixture(scope="module")
def seen(run_script):
    return run_script("master/scripts/drain.py")


@pytest.mark.parametrize("case", ["drains", "reports", "ships", "back", "stalled"])
def test_who_is_heard_of_is_waited_for(seen, case):
    assert (seen[case]["reported"], seen[case]["state"], seen[case]["notes"]) == (
        [0],
        "drained",
        [],
    )


@pytest.mark.parametrize(
    ("case", "printed"),
    [
        ("silent", "worker 0 sent nothing for 1 s during the drain"),
        ("for_ever", "worker 0 did not drain in time"),
        ("gone", "worker 0 was lost before it drained"),
    ],
)
def test_who_is_not_is_lost_and_it_is_reported_how(seen, case, printed):
    assert (seen[case]["reported"], seen[case]["state"], seen[case]["notes"]) == (
        [0],
        "lost",
        [printed],
    )


def test_whose_process_has_ended_is_not_told_at_all(seen):
    assert (seen["long_gone"]["reported"], seen["long_gone"]["notes"]) == ([], [])
    assert seen["long_gone"]["lasted_s"] < seen["drains"]["lasted_s"]


def test_a_slice_that_is_too_large_for_a_message_is_divided_and_one_row_that_is_ends_the_run(seen):
    assert seen["divided"] == [2, 3, 2, 3, -1]
