"""The kernel keeps the time: its stamps beside those of the sender, both of one run and one clock."""

from __future__ import annotations

import sys

import pytest

pytestmark = [
    pytest.mark.alone,
    pytest.mark.skipif(sys.platform != "linux", reason="only Linux stamps packets for us"),
]
SLACK_NS = 200_000  # of the wall clock's difference, which is measured to well under a microsecond
BLOCKED_NS = 100_000_000


@pytest.fixture(scope="module")
def seen(run_script, reader):
    return run_script("transport/scripts/stopwatch.py", "kernel", reader)


def exact(seen):
    """Reads that ended with an event: (number of that event, stamp, our clock)."""
    reads = [
        (payload.split("data: ")[-1], arrived, read_at)
        for payload, _, arrived, read_at, at_rest in seen["reads"]
        if at_rest
    ]
    return [(int(text), arrived, read_at) for text, arrived, read_at in reads]


def test_the_stamps_are_the_kernels_and_no_event_is_missing(seen):
    events = "".join(read[0] for read in seen["reads"]).split()[1::2]

    assert not seen["user_stamps"]
    assert events == [str(i) for i in range(20)]


def test_a_stamp_lies_behind_the_senders_time_however_late_the_client_looked(seen):
    """Loopback delivers within the send call, so the stamp lies between its begin and its return."""
    early = [arrived - seen["sent"][number][0] for number, arrived, _ in exact(seen)]
    late = [arrived - seen["sent"][number][1] for number, arrived, _ in exact(seen)]

    assert min(early) >= -SLACK_NS
    assert sorted(late)[len(late) // 2] <= SLACK_NS


def test_our_user_clock_is_never_before_the_kernels(seen):
    assert all(arrived <= read_at + SLACK_NS for _, arrived, read_at in exact(seen))


def test_a_client_that_was_stalled_shows_in_the_receive_lag_and_not_in_the_stamps(seen, reader):
    """The client was blocked for 100 ms at a time; half of it is far more than any send took. The compiled reader read on."""
    stamps = [arrived - seen["sent"][number][1] for number, arrived, _ in exact(seen)]

    if reader == "compiled":
        assert len(exact(seen)) >= 19, (
            "each event in a read of its own, but for a preemption of the reader"
        )
        assert sorted(stamps)[len(stamps) // 2] < BLOCKED_NS // 4
    else:
        assert seen["receive_lag_max_ns"] > BLOCKED_NS // 4
        assert sorted(stamps)[len(stamps) // 2] < seen["receive_lag_max_ns"] // 4


def test_the_times_of_a_call_are_in_order(seen):
    first, last = seen["reads"][0], seen["reads"][-1]

    assert seen["sent_at_ns"] <= seen["headers_at_ns"] <= first[2] <= last[2] <= seen["ended_at_ns"]
    assert all(low <= arrived for _, low, arrived, _, _ in seen["reads"])


@pytest.mark.parametrize("whose", ["user", "elsewhere"])
def test_our_user_clock_instead_is_late_by_what_held_us_up_and_says_so(run_script, whose, reader):
    """By choice, or on a system whose kernel stamps nothing: the rows must not claim a precision that nobody has."""
    seen = run_script("transport/scripts/stopwatch.py", whose, reader)
    facts = [
        arrived - seen["sent"][int(number)][0]
        for payload, _, arrived, _, _ in seen["reads"]
        for number in payload.split()[1::2]
    ]

    assert seen["user_stamps"]
    assert all(arrived == read_at for _, _, arrived, read_at, _ in seen["reads"])
    assert seen["receive_lag_max_ns"] == 0, "no second clock that could tell how late we were"
    late = sorted(facts)[len(facts) // 2] if reader == "compiled" else max(facts)
    assert (late > BLOCKED_NS // 4) == (reader == "python")
