"""A copy of the master is a child as any other: it has a session, a log and a lifeline, and its end is noticed."""

import pytest


@pytest.fixture(scope="module")
def seen(run_script):
    return run_script("channel/scripts/child_process.py")


def test_a_copy_has_a_name_and_a_session(seen):
    assert (seen["name"], seen["session"]) == ("worker 1", True)


def test_it_ends_with_its_own_lifeline_whatever_was_copied_after_it(seen):
    assert seen["cut"] == [7, "abc", True, True]


def test_an_error_ends_it_and_is_in_its_log(seen):
    code, tail = seen["failed"]

    assert code == 1
    assert tail.endswith("OSError: no such thing")


def test_a_killed_copy_is_noticed(seen):
    assert seen["killed"] == [-9, "no output (exit code -9)", True]


def test_stop_waits_for_its_end(seen):
    assert seen["stopped"] == 7


def test_a_fork_that_fails_leaves_no_pipe_open(seen):
    assert seen["leaked"] == 0
