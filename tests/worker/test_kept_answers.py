"""Which raw answers a worker keeps, and what a full disk does. What happens is in scripts/kept_answers.py."""

from __future__ import annotations

import os

import pytest


@pytest.fixture(scope="module")
def seen(run_script, tmp_path_factory, request):
    """Where no small disk can be mounted, its test skips."""
    disk = [request.getfixturevalue("small_disk")(1_000_000)] if os.geteuid() == 0 else []
    return run_script("worker/scripts/kept_answers.py", tmp_path_factory.mktemp("answers"), *disk)


def test_the_first_answers_and_the_first_of_each_outcome_are_kept(seen):
    answers, written = seen["first_and_one_of_each_outcome"]

    assert answers == [
        [1, "ok", "complete", 5, 9],
        [2, "ok", "complete", 5, 9],
        [5, "refused", "complete", 5, 9],
        [8, "timeout", "client", 5, 9],
        [9, "truncated", "closed", 5, 9],
        [10, "stream_error", "reset", 5, 9],
        [11, "client_error", "client", 5, 9],
    ]
    assert written == 7


def test_answers_of_the_preflight_take_none_from_those_of_the_run(seen):
    assert seen["preflight_beside_the_run"] == [*range(-1, -9, -1), -15, 1]


def test_calls_that_no_answer_can_have_are_not_kept(seen):
    assert seen["what_is_no_answer"] == [False, 0]


def test_times_are_never_negative_and_never_go_back(seen):
    assert seen["times_never_go_back"] == [[0, 9], [800, 800]]


def test_a_file_at_its_bound_takes_no_more(seen):
    assert seen["a_file_that_is_full_takes_no_more"] == [4, True]


def test_a_full_disk_is_an_error_with_what_to_do_and_leaves_whole_answers(seen):
    facts = seen["full_disk"]
    if facts is None:
        pytest.skip("no small disk")

    assert "0.jsonl: an answer could not be written: no space is left (" in facts["fault"]
    assert facts["fault"].endswith("choose another --out")
    assert 0 < facts["written"] < 26
    assert facts["whole"] == facts["written"]
    assert facts["more"]


def test_a_folder_that_cannot_be_made_is_an_error(seen):
    assert "0.jsonl: an answer could not be written: " in seen["no_folder"]
