"""The loser of a hedge is closed before any other socket is read. See scripts/hedge_cancellation.py."""

from __future__ import annotations

import pytest


@pytest.fixture(scope="module")
def seen(run_script):
    return run_script("worker/scripts/hedge_cancellation.py")


def test_what_lay_in_the_losers_socket_is_never_read_after_the_winners_first_content(seen):
    facts = seen["hedged"]
    (winner,) = [row for row in facts["rows"] if row[1] == "ok"]
    (loser,) = [row for row in facts["rows"] if row[1] == "cancelled"]

    assert facts["unread"] == 0, "both answers lay in their sockets before the first look"
    assert facts["log"][0] == ["read", winner[3]]
    assert facts["log"][1] == ["close", loser[3]], "before anything else happened to any socket"
    assert ["read", loser[3]] not in facts["log"]
    assert loser[2] == 0
    assert (facts["winner"], facts["ended"]) == (winner[0], "ok")


def test_the_losers_peer_sees_a_reset(seen):
    assert "ConnectionResetError" in seen["hedged"]["ends"]


def test_without_a_cancel_both_sockets_are_read_in_the_same_turn(seen):
    """The control: else the case above would prove nothing."""
    facts = seen["control"]

    assert sorted(facts["log"]) == [["read", 1], ["read", 2]]
    assert [row[1] for row in facts["rows"]] == ["ok", "ok"]
