"""Connections: kept, closed, refused, aborted, and sent to. What happens is in scripts/connection.py."""

from __future__ import annotations

import sys
from statistics import median

import pytest

linux = pytest.mark.skipif(sys.platform != "linux", reason="only Linux stamps packets for us")

CLIENTS = ("prompt", "blocked", "unbounded")
PATIENCE_S = (
    8  # far more than any of these takes, far less than the time-outs that would end a hang
)


@pytest.fixture(scope="module")
def seen(run_script, reader):
    return run_script("transport/scripts/connection.py", reader)


def test_a_connection_is_kept_for_the_next_request(seen):
    calls = seen["kept"]["seen"]

    assert [(c["status"], c["payload"]) for c in calls] == [(200, "ok")] * 3
    assert [c["is_new"] for c in calls] == [True, False, False]
    assert len({c["number"] for c in calls}) == 1
    assert seen["kept"]["connections"] == 1
    assert seen["kept"]["ends"] == ["EOF"]  # and closed with the stopwatch


def test_a_literal_address_costs_no_name_look_up_and_a_connect_costs_time(seen):
    assert [c["dns_ns"] for c in seen["kept"]["seen"]] == [0, 0, 0]
    assert seen["kept"]["seen"][0]["connect_ns"] > 0


def test_connections_opened_beforehand_are_used_before_new_ones_are_opened(seen):
    """And no call pays for them."""
    facts = seen["opened_beforehand"]

    assert (facts["opened"], facts["why"], facts["connections"]) == (6, None, 6)
    assert facts["status"] == [200] * 8
    assert facts["is_new"] == [False] * 6 + [True] * 2
    assert not facts["again_is_new"]


def test_connections_opened_beforehand_that_the_server_closed_are_not_used_and_not_held_against_it(
    seen,
):
    """The next call opens its own; the one after it finds that one rested, as after any response."""
    facts = seen["opened_and_closed_by_the_server"]

    assert (facts["opened"], facts["why"]) == (4, None)
    assert [(c["status"], c["is_new"], c["failure"]) for c in facts["seen"]] == [
        (200, True, None),
        (200, False, None),
    ]
    assert facts["requests"] == 2


def test_why_a_connection_could_not_be_opened_beforehand_is_reported(seen):
    assert seen["not_opened"] == [0, "tcp: Connection refused"]


def test_a_connection_that_the_server_wants_closed_is_not_kept(seen):
    assert [c["is_new"] for c in seen["connection_close_is_obeyed"]["seen"]] == [True, True]


def test_no_more_connections_are_kept_than_the_scenario_allows(seen):
    """Two rounds of three: the second finds one."""
    assert seen["idle_limit"] == {"connections": 5, "closed": 4}


def test_a_connection_that_the_server_closed_while_idle_is_not_used_again(seen):
    calls = seen["closed_while_idle"]["seen"]

    assert [(c["status"], c["is_new"], c["failure"]) for c in calls] == [
        (200, True, None),
        (200, True, None),
    ]


def test_a_request_on_a_connection_that_was_going_away_is_reported_as_stale_and_never_sent_again(
    seen,
):
    second = seen["stale"]["seen"][1]

    assert (second["is_new"], second["failure"], second["status"], second["reported"]) == (
        False, "stale_connection", None, "ReadError",
    )  # fmt: skip
    assert (seen["stale"]["requests"], seen["stale"]["connections"]) == (2, 1)


def test_a_new_connection_that_is_closed_without_an_answer_is_not_stale(seen):
    (only,) = seen["closed_at_first"]["seen"]

    assert (only["failure"], only["reported"], seen["closed_at_first"]["requests"]) == (
        "closed",
        "ReadError",
        1,
    )


@pytest.mark.parametrize(
    ("hint", "is_new"), [("short", [True, True]), ("long", [True, False]), ("odd", [True, False]), ("huge", [True, False])]
)  # fmt: skip
def test_the_servers_hint_how_long_it_keeps_a_connection_is_honoured(seen, hint, is_new):
    """One second less one of margin is not worth a try; a value that is none is no hint."""
    assert seen["hints"][hint] == is_new


def test_a_connection_on_which_nobody_asked_for_bytes_is_closed(seen):
    assert [c["is_new"] for c in seen["garbage_while_idle"]["seen"]] == [True, True]
    assert [c["payload"] for c in seen["garbage_while_idle"]["seen"]] == ["ok", "ok"]


def test_a_refused_connection_is_reported_as_such(seen):
    assert (seen["refused"]["failure"], seen["refused"]["message"]) == ("tcp", "Connection refused")
    assert seen["refused"]["reported"] == "ConnectError"


def test_a_name_without_an_address_is_reported_as_such(seen):
    assert [(c["failure"], c["reported"]) for c in seen["no_such_name"]] == [
        ("dns", "ConnectError")
    ] * 2


# --- aborted ----------------------------------------------------------------------------------------------------


def test_a_call_that_was_aborted_before_is_not_sent(seen):
    facts = seen["aborted_before"]

    assert (facts["aborted"], facts["reported"], facts["connections"], facts["number"]) == (
        "cancelled",
        "ReadError",
        0,
        None,
    )


def test_a_call_aborted_while_waiting_for_headers_closes_its_connection(seen):
    facts = seen["aborted_waiting"]

    assert (facts["aborted"], facts["done"], facts["status"], facts["reported"]) == (
        "timeout",
        True,
        None,
        "ReadTimeout",
    )
    assert facts["ends"] == ["ConnectionResetError"]


def test_a_call_aborted_in_its_stream_closes_its_connection_and_keeps_what_came(seen):
    facts = seen["aborted_mid_stream"]

    assert (facts["aborted"], facts["done"], facts["status"]) == ("cancelled", True, 200)
    assert facts["payload"] == "data: a\n\n"
    assert facts["ends"] == ["ConnectionResetError"]


@pytest.mark.parametrize("at", ["aborted_before", "aborted_waiting", "aborted_mid_stream"])
def test_an_aborted_call_leaves_nothing_behind_for_the_next(seen, at):
    assert seen[at]["again"] == 200


# --- sending ----------------------------------------------------------------------------------------------------


def test_a_large_request_reaches_a_slow_reader_whole(seen):
    facts = seen["slow_reader"]

    assert (facts["status"], facts["payload"], facts["failure"]) == (200, "ok", None)
    assert facts["taken"] > 8 * 1024 * 1024


@pytest.mark.parametrize(
    ("name", "aborted", "failure"),
    [
        ("aborted_while_sending", "timeout", None),
        ("peer_closes_while_sending", None, "closed"),
        ("peer_half_closes_while_sending", None, "closed"),
    ],
)
def test_a_call_whose_connection_ends_while_it_is_sent_ends_with_it(seen, name, aborted, failure):
    facts = seen[name]

    assert (facts["aborted"], facts["failure"], facts["status"]) == (aborted, failure, None)
    assert facts["took_s"] < PATIENCE_S
    assert facts["sent"]  # the first byte went out, and when is known


def test_a_connection_whose_request_was_answered_before_it_was_sent_whole_is_not_kept(seen):
    facts = seen["answered_while_sending"]

    assert (facts["status"], facts["payload"], facts["failure"]) == (413, "ok", None)
    assert facts["took_s"] < PATIENCE_S
    assert facts["again_is_new"]


def test_a_prepared_request_may_be_answered_later_than_a_connection_may_take(seen, reader):
    if reader == "python":
        pytest.skip("it sends nothing by itself")
    facts = seen["prepared_and_answered_late"]

    assert (facts["failure"], facts["status"], facts["payload"]) == (None, 200, "ok")
    assert (facts["sent"], facts["is_new"]) == (True, True)


def test_nor_is_the_connection_of_a_prepared_one(seen, reader):
    if reader == "python":
        pytest.skip("it sends nothing by itself")
    facts = seen["prepared_and_answered_while_sending"]

    assert (facts["failure"], facts["status"], facts["payload"]) == (None, 413, "ok")
    assert (facts["sent"], facts["kept"]) == (True, 0)


def test_a_prepared_request_that_finds_nobody_fails_as_others_do(seen, reader):
    if reader == "python":
        pytest.skip("it sends nothing by itself")
    facts = seen["prepared_and_refused"]

    assert (facts["failure"], facts["message"], facts["sent"]) == (
        "tcp",
        "Connection refused",
        False,
    )


def test_no_failure_of_a_target_prints_a_traceback(seen):
    assert seen["stderr"] == ""


@pytest.fixture(scope="module")
def polled(run_script, reader):
    return run_script("transport/scripts/polls.py", reader)


@linux
@pytest.mark.parametrize("client", CLIENTS)
def test_a_read_never_came_before_its_lower_bound(polled, client):
    """Whatever the reader did meanwhile: planted by a server that shares its clock."""
    bounds = polled[client]

    assert len(bounds) == 60
    assert all(sent <= low <= arrived for low, arrived, sent in bounds)


@linux
def test_a_prompt_reader_can_prove_that_it_was_prompt(polled, reader):
    """The first piece, read together with more or not, came within about 2 ms after its lower bound. In Python that holds
    while nothing else runs, and without polls no more is known than that it came after the request."""
    width_ms = {
        name: median([(arrived - low) / 1e6 for low, arrived, _ in polled[name]])
        for name in CLIENTS
    }

    assert width_ms["prompt"] < 4
    if reader == "compiled":
        assert max(width_ms.values()) < 4
    else:
        assert width_ms["prompt"] < width_ms["blocked"]
        assert width_ms["unbounded"] > 4


def test_a_connection_on_which_a_request_has_left_stays_open_when_idle_ones_are_closed(
    seen, reader
):
    if reader == "python":
        pytest.skip("it sends nothing by itself")
    facts = seen["left_before_its_pool_is_closed"]

    assert (facts["status"], facts["failure"], facts["is_new"]) == (200, None, False)
