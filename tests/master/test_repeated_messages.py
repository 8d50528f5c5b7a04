"""Messages of a worker that come twice, or from another run, change nothing; what happens is in scripts/repeated_messages.py."""

from __future__ import annotations

from typing import Any

import pytest


@pytest.fixture(scope="module")
def facts(run_script: Any) -> Any:
    return run_script("master/scripts/repeated_messages.py")


def test_a_worker_that_repeats_its_hello_takes_part_once(facts: Any) -> None:
    assert facts["repeated_hello"]["workers"] == {"w1": "running"}
    assert facts["repeated_hello"]["sent"] == ["tailgauge:welcome"] * 2


def test_a_worker_that_repeats_its_ready_joins_once(facts: Any) -> None:
    assert facts["repeated_ready"]["sent"] == [
        "tailgauge:welcome",
        "tailgauge:plan",
        "tailgauge:go",
    ]
    assert facts["repeated_ready"]["workers"] == {"w1": "running"}
    assert len(facts["repeated_ready"]["notes"]) == 1


def test_messages_of_another_run_are_left_out(facts: Any) -> None:
    assert facts["of_another_run"]["workers"] == {"w1": "running"}
    assert facts["of_another_run"]["notes"] == []
    assert facts["of_another_run"]["failure"] == "None"


def test_a_worker_that_fails_is_named(facts: Any) -> None:
    assert facts["repeated_failed"]["workers"] == {"w1": "failed"}
    assert set(facts["repeated_failed"]["notes"]) == {"worker 0 on host failed: no space left"}
