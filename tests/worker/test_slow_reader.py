"""A slow reader: felt by the target, not blamed on the client, and its stamps no more exact than they are.

See scripts/slow_reader.py.
"""

from __future__ import annotations

import pytest


@pytest.fixture(scope="module")
def seen(run_script, tmp_path_factory):
    folder = tmp_path_factory.mktemp("slow-reader")
    return run_script("worker/scripts/slow_reader.py", FOLDER=str(folder))["slow_reader"]


def held_ns(facts):
    """How long the server was kept from writing, its own waits left out."""
    wrote = facts["wrote"]
    return wrote[-1] - wrote[2]


@pytest.mark.parametrize("kind", ["plain", "tls"])
def test_a_slow_reader_presses_back_on_the_target(seen, kind):
    quick, slow = seen["quick"], seen[kind]
    row = slow["row"]

    assert row["ended"] == quick["row"]["ended"] == "ok"
    assert row["chunks"] == quick["row"]["chunks"] == 150
    assert (
        held_ns(slow) > 0.3e9 > 3 * held_ns(quick)
    )  # 60 kB at 100 kB/s, less what fits into two small buffers
    assert row["reader_paused_ns"] > 0.4e9
    assert row["ended_at_ns"] > row["last_content_at_ns"]  # there until it has read what arrived
    assert quick["row"]["reader_paused_ns"] is None


@pytest.mark.parametrize("kind", ["plain", "tls"])
def test_a_slow_reader_is_no_slow_client(seen, kind):
    slow = seen[kind]

    assert (slow["row"]["receive_lag_max_ns"], slow["receive_lag"]) == (None, 0)
    assert seen["quick"]["receive_lag"] > 0
    assert (slow["connections"], seen["quick"]["connections"]) == (
        2,
        1,
    )  # its own is never used again


@pytest.mark.parametrize("kind", ["plain", "tls"])
def test_the_stamps_of_a_slow_reader_are_the_kernels(seen, kind):
    slow = seen[kind]
    wrote, arrived, low = slow["wrote"], slow["arrived"], slow["low"]

    assert slow["row"]["stamps"] == "kernel"
    assert low[0] == 0
    assert wrote[0] <= arrived[0] < wrote[1]
    assert all(at >= written for at, written in zip(arrived, wrote, strict=False))
    assert all(bound <= at for bound, at in zip(low, arrived, strict=True))
    assert sum(bound > 0 for bound in low) > 75  # most came together with others


def test_what_a_slow_reader_reads_late_came_within_its_bounds(seen):
    facts = seen["trickle"]
    rows = list(zip(facts["before"], facts["after"], facts["low"], facts["arrived"], strict=True))

    assert len(rows) == 40
    assert facts["row"]["reads"] < 30  # pieces were read together, long after they came
    assert sum(bound > 0 for bound in facts["low"]) > 10
    for written, there, low, arrived in rows:
        assert written <= arrived
        assert low <= there if low else arrived <= there
