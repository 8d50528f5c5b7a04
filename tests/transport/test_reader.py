"""What two readers make of the same streams: every byte in its order, whatever the client does meanwhile."""

from __future__ import annotations

from typing import Any

import pytest

MOST_KEPT = 16 << 20  # bytes that wait for Python


@pytest.fixture(scope="module")
def seen(run_script: Any, reader: str) -> Any:
    return run_script("transport/scripts/reader.py", reader, timeout_s=240)


@pytest.mark.at_full_size("python-many]")
@pytest.mark.parametrize("case", ["many", "many_under_tls"])
def test_no_byte_is_lost_doubled_or_moved_to_another_stream(seen: Any, case: str) -> None:
    """60 users with reused connections, cut at any byte; a quarter leaves anywhere, some answers end in the middle."""
    ends, wrong = seen[case]["ends"], seen[case]["wrong"]

    assert wrong == []
    assert sum(ends.values()) == 60 * 6
    assert ends["ok"] > 150
    assert ends["cancelled"] > 20
    assert ends["connection_closed"] > 10


@pytest.mark.parametrize("case", ["events", "events_under_tls", "events_captured", "events_slow"])
def test_plain_events_are_decoded_whole_and_in_their_order(
    seen: Any, case: str, reader: str
) -> None:
    """The same users at a server that cuts its events anywhere; what is captured has all that was decoded."""
    if reader == "python":
        pytest.skip("it decodes nothing")
    facts = seen[case]

    assert facts["wrong"] == []
    assert sum(facts["ends"].values()) == 60 * 6
    assert facts["ends"]["ok"] > 150
    assert facts["chunks"] > 20_000
    assert (facts["plain"] > 500) == (case != "events_slow"), "a slow reader is read in Python"


def test_of_connections_that_come_and_go_nothing_is_left(seen: Any) -> None:
    facts = seen["come_and_go"]

    assert sum(facts["ends"].values()) == 3600
    assert facts["ends"]["ok"] > 900
    assert facts["left"] <= 0
    assert facts["grown"] < 8 << 20


def test_what_waits_for_a_busy_client_is_bounded(seen: Any) -> None:
    """96 MB come while it does nothing for a second: the kernel keeps what there is no room for."""
    flood = seen["flood"]

    assert (flood["size"], flood["same"], flood["cut"]) == (96 << 20, True, None)
    assert flood["grown"] < 3 * MOST_KEPT


def test_for_how_long_reads_waited_is_known_once(seen: Any, reader: str) -> None:
    flood = seen["flood"]

    if reader == "compiled":
        assert 0.9 * flood["still_s"] < flood["waited_s"] < flood["still_s"] + 60
    else:
        assert flood["waited_s"] == 0
    assert flood["waits_again_s"] == 0


def test_what_waits_is_bounded_also_where_all_of_it_is_asked_for(seen: Any) -> None:
    """As when calls are closed while others flood: each close collects what was read by now."""
    assert seen["collected"]["grown"] < 3 * MOST_KEPT


def test_what_nobody_acts_on_waits_for_others_and_an_end_does_not(seen: Any, reader: str) -> None:
    if reader == "python":
        pytest.skip("it keeps no reads")
    patient = seen["patient"]

    assert patient["waited_ms"] > 8
    assert patient["taken"] == [["waits:x"], ["waits:y", "counts:z"], ["waits ends:0"]]


def test_a_core_that_both_want_goes_to_the_thread_that_reads(seen: Any, reader: str) -> None:
    """What is read late has lost its time. Where the thread may not go first, the event loop is the slower one."""
    if reader == "python":
        pytest.skip("it has no such thread")

    for before, loop, apart, is_first, recorded in (
        seen["priority"]["root"],
        seen["priority"]["nobody"],
    ):
        assert recorded == ("real-time" if is_first else "normal")
        assert (loop, apart) == ((before, before) if is_first else (min(before + 5, 19), before))
    assert not seen["priority"]["nobody"][3]


def test_an_answer_that_waits_when_its_call_is_closed_is_whole(seen: Any, reader: str) -> None:
    if reader == "python":
        pytest.skip("it keeps no reads")
    assert seen["censored"] == {"done": True, "aborted": None, "cut": None, "status": 200}


def test_an_answer_that_came_before_the_deadline_is_no_timeout_of_a_busy_client(seen: Any) -> None:
    """32 streams flood it: it is seconds behind when the deadline comes."""
    assert seen["in_time"] == {"done": True, "aborted": None, "cut": None}


def test_the_first_bytes_of_the_only_connection_have_a_lower_bound(seen: Any) -> None:
    """Before it none was open: it is watched from its opening on."""
    alone = seen["alone"]

    assert min(alone["known_ms"]) > alone["wait_ms"] / 2
