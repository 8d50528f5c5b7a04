"""The thread that reads, by itself. What happens is in scripts/sockets.py."""

from __future__ import annotations

from importlib.util import find_spec
from typing import Any

import pytest

MEGABYTE = 1 << 20


@pytest.fixture(scope="module")
def seen(run_script: Any) -> Any:
    if find_spec("tailgauge.transport._core") is None:
        pytest.skip("it is not compiled here: that needs Linux, a C compiler and Python's headers")
    return run_script("transport/scripts/sockets.py")


def test_of_thousands_of_connections_nothing_is_left(seen: Any) -> None:
    """They are opened, fed, taken from and closed at any moment, most while data comes."""
    facts = seen["churn"]

    assert (facts["ready"], facts["descriptors"]) == (0, 0)
    assert facts["grown"] < 2 * MEGABYTE, "by 4,000 connections behind the first 2,000"


def test_connections_and_answers_are_held_while_they_are_read_and_no_longer(seen: Any) -> None:
    """Also where all of it is given up with 200 connections open: the thread and its descriptors go."""
    facts = seen["recipients"]

    assert facts["alive"] == [300, 200, 0]
    assert facts["released"] == 100
    assert facts["left"] == [0, 0]


def test_a_number_that_is_used_again_has_nothing_of_the_connection_before_it(seen: Any) -> None:
    facts = seen["numbers"]

    assert facts["wrong"] == []
    assert facts["refused"] == 18, "numbers of no connection or pool"


@pytest.mark.parametrize("case", ["flood_of_reads", "flood_of_an_answer"])
def test_what_nobody_takes_waits_in_the_kernel_and_all_of_it_comes_later(
    seen: Any, case: str
) -> None:
    """8 MB come."""
    facts = seen[case]

    assert (facts["same"], facts["ends"]) == (True, [0])
    assert facts["grown"] < 2 * MEGABYTE


@pytest.mark.parametrize("case", ["flood_of_comments", "flood_of_large_events"])
def test_what_takes_no_room_is_not_read_without_end_either(seen: Any, case: str) -> None:
    """32 MB of events of which the thread keeps little: Python has bounds for the bytes of a body."""
    facts = seen[case]

    assert facts["is_woken"]
    assert facts["at_once"] < 5 * MEGABYTE
    assert facts["all"]


def test_events_that_come_while_python_holds_its_lock_have_the_times_at_which_they_were_sent(
    seen: Any,
) -> None:
    facts = seen["stalled"]

    assert facts["outside"] == []
    assert (facts["pieces"], facts["chunks"], facts["events"]) == (1, 59, 59), (
        "the first is decoded in Python"
    )
    assert facts["text"] == "".join(map(str, range(1, 60)))
    assert facts["done"]
    assert facts["lags"], "one for each read"


def test_each_prepared_request_is_reported_once_or_withdrawn_and_arrives_once(seen: Any) -> None:
    """On connections that are lent, used again, taken back and closed at any moment, and on new ones."""
    facts = seen["prepared"]
    on_lent, on_new, back = facts["kinds"]

    assert facts["wrong"] == []
    assert (facts["over"], facts["same"], facts["left"]) == (True, True, 0)
    assert min(on_lent, on_new, back, facts["withdrawn"]) > 20


def test_a_connection_that_was_opened_for_a_request_is_nobodys_until_it_is_adopted(
    seen: Any,
) -> None:
    """200 of them, more than there was room for; the half that is never adopted is closed with the rest."""
    assert seen["not_adopted"] == {"refused": 1200, "left": 0}


def test_calls_that_are_wrong_are_refused(seen: Any) -> None:
    assert seen["wrong_calls"]["raised"] == seen["wrong_calls"]["calls"]
