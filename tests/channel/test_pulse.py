"""A worker whose hub is busy is no dead one: a thread of the system sends for it, and only then."""

from __future__ import annotations

import pytest


@pytest.fixture(scope="module")
def seen(run_script):
    return run_script("channel/scripts/pulse.py")


def test_a_busy_hub_has_a_sealed_pulse_under_the_worker_s_name(seen):
    assert len(seen["busy"]) >= 3
    assert seen["busy"] == [["tailgauge:pulse", "w1", {}]] * len(seen["busy"])


def test_a_worker_that_sends_something_else_needs_none(seen):
    assert (seen["talks"], seen["sent"]) == ([], 15)


def test_it_ends_with_the_run(seen):
    assert seen["after"] == []
