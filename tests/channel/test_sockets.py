"""Whatever is sent to the port of a master or by a master ends neither; with a token nobody else reads or sends anything.

A worker whose hub is busy is no dead one: a thread of the system sends for it, and only then.
"""

from __future__ import annotations

import pytest


@pytest.fixture(scope="module")
def received(run_script):
    return run_script("channel/scripts/sockets.py")


@pytest.fixture(scope="module")
def seen(run_script):
    return run_script("channel/scripts/pulse.py")


@pytest.mark.slow
def test_whatever_a_master_is_sent_is_dropped_and_counted_and_it_answers_the_next_message(received):
    strange = dict(received["strange"]["found"])

    assert received["strange"]["first"] == ["ack"]
    assert strange.pop("names of peers") == [[], 2]
    assert len(strange) > 50
    assert {name: found for name, found in strange.items() if found != [["heartbeat"], 1]} == {}
    assert received["strange"]["state"] == ["ready", 1.5, {}, ["w1"]], "nothing of it was kept"


def test_a_flood_of_them_does_not_starve_an_honest_worker(received):
    assert received["flood"] == ["ack"]


def test_whatever_a_worker_is_sent_is_dropped_and_counted_and_it_receives_the_next_message(
    received,
):
    found = received["worker"]["found"]

    assert len(found) > 30
    assert {name: dropped for name, dropped in found.items() if dropped != 1} == {}
    assert received["worker"]["receives"]


def test_a_message_beyond_the_bound_costs_no_memory_and_one_within_it_arrives(received):
    assert received["large"]["kib"] < 32 * 1024
    assert received["large"]["arrived"] == ["w1", "tailgauge:part", 4 * 2**20 - 100]
    assert received["large"]["client"] == 64 * 2**20


OTHERS = {
    "other": "its TAILGAUGE_TOKEN differs from the master's",
    "none": "TAILGAUGE_TOKEN is not set: export TAILGAUGE_TOKEN=",
    "only the worker": "TAILGAUGE_TOKEN is set here and not at the master",
}


@pytest.mark.parametrize("tokens", OTHERS)
def test_a_worker_with_another_token_learns_why_it_is_refused_and_the_master_counts_it(
    received, tokens
):
    ((why,), is_counted) = received["tokens"][tokens]

    assert why.startswith(f"the master refused this worker: {OTHERS[tokens]}")
    assert is_counted


@pytest.mark.parametrize("tokens", ["same", "neither"])
def test_a_worker_with_the_same_token_or_where_there_is_none_is_received(received, tokens):
    assert received["tokens"][tokens] == [["client_ready"], False]


def test_a_worker_that_is_refused_right_before_it_sends_learns_why_too(received):
    """Whether the master's end or its own ends the connection is chance: by its own end its message has nowhere to go."""
    assert received["refused_as_they_send"]
    for why in received["refused_as_they_send"]:
        assert why.startswith(
            f"ConnectionRefusedError: the master refused this worker: {OTHERS['none']}"
        )


def test_a_tunnel_without_a_master_at_its_end_has_refused_nobody(received):
    assert received["no_master_yet"] == ["waits", True]


def test_a_stranger_at_the_master_s_port_has_refused_nobody(received):
    assert received["no_refusal"] == [None, None]


def test_nobody_on_the_way_reads_a_message_where_there_is_a_token(received):
    assert received["overheard_in_transit"] == [False, True]


def test_a_busy_hub_has_a_sealed_pulse_under_the_worker_s_name(seen):
    assert len(seen["busy"]) >= 3
    assert seen["busy"] == [["tailgauge:pulse", "w1", {}]] * len(seen["busy"])


def test_a_worker_that_sends_something_else_needs_none(seen):
    assert (seen["talks"], seen["sent"]) == ([], 15)


def test_it_ends_with_the_run(seen):
    assert seen["after"] == []
