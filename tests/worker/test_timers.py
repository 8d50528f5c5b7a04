"""What can wait is done together, in order and in slices. See scripts/later.py."""

from __future__ import annotations

import pytest


@pytest.fixture(scope="module")
def seen(run_script):
    return run_script("worker/scripts/later.py")


def test_jobs_are_done_soon_in_their_order(seen):
    assert seen["together"] == [[], [0, 1, 2], [0, 1, 2, "after"]]


def test_finishing_does_all_now_and_once(seen):
    assert seen["finished"] == [["of a job"], ["of a job"]]


def test_a_job_that_fails_keeps_none_from_being_done(seen):
    assert seen["failing"] == ["next", "later"]


def test_between_slices_others_have_their_turn(seen):
    assert len(set(seen["long"])) > 10
