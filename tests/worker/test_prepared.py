"""What is prepared keeps the limits of the run, however it ends. See scripts/prepared.py."""

from __future__ import annotations

import pytest


@pytest.fixture(scope="module")
def seen(run_script):
    return run_script("worker/scripts/prepared.py")


def test_each_run_of_a_process_keeps_its_own_cap(seen):
    """Also for what is due before anything else was sent."""
    for facts, cap in zip(seen["caps"], (30, 3, 8), strict=True):
        most = min(cap, 20)

        assert (facts["sent"], facts["dispatched"], facts["drops"]) == (most, most, 20 - most)
        assert facts["attempts"] == ["ok"] * most
        assert (facts["placed"], facts["in_flight"], facts["bugs"]) == (20, 0, [])


@pytest.mark.parametrize("of", ["retries", "fan-out", "hedge"])
def test_a_request_that_left_as_a_stop_rule_ended_the_run_makes_no_other_call(seen, of):
    facts = seen["ends_while_one_leaves"][of]
    if facts is None:
        pytest.skip("it was not prepared")

    assert facts["sent"] == len(facts["attempts"]) == facts["dispatched"] <= 1
    assert (facts["placed"], facts["in_flight"], facts["bugs"]) == (1, 0, [])


@pytest.mark.parametrize("limit", ["calls", "tokens"])
def test_limits_are_kept_and_what_was_not_used_is_given_back(seen, limit):
    enough = seen["limits"][f"{limit}, enough"]
    few = seen["limits"][f"{limit}, few"]

    assert (enough["sent"], enough["refused"], enough["held"]) == (12, [], 0)
    assert enough["taken"][0] == 12
    assert few["refused"] == ["max_requests" if limit == "calls" else "max_tokens"]
    assert 0 < few["sent"] == few["dispatched"] < 12
    assert few["taken"][limit == "tokens"] <= (5 if limit == "calls" else 150)
    for facts in (enough, few):
        assert (facts["placed"], facts["in_flight"], facts["held"], facts["bugs"]) == (12, 0, 0, [])


@pytest.mark.parametrize("limit", ["calls", "tokens"])
def test_what_is_withdrawn_at_the_end_gives_back_what_it_held(seen, limit):
    facts = seen["withdrawn"][limit]

    assert facts["sent"] == len(facts["attempts"]) == facts["dispatched"] == facts["taken"][0]
    assert (facts["placed"], facts["held"], facts["bugs"]) == (12, 0, [])


@pytest.mark.parametrize(("of", "calls"), [("hedged", 2), ("fan-out", 3)])
@pytest.mark.parametrize("limit", ["no limit", "enough", "few"])
def test_calls_beside_a_prepared_one_keep_the_limits(seen, of, calls, limit):
    """By the server's count: a hedge or a leg which the limit does not allow is never sent, and has a row all the same."""
    facts = seen["several_calls"][f"{of}, {limit}"]

    assert facts["sent"] == facts["rows_sent"]
    assert (facts["placed"], facts["in_flight"], facts["bugs"]) == (12, 0, [])
    if limit == "few":
        assert facts["refused"] == ["max_requests"]
        assert facts["sent"] == facts["taken"][0] <= 7
    else:
        assert facts["sent"] == 12 * calls
        assert facts["ended"] == ["ok"] * 12
        assert facts["of_each"] == [calls] * 12
