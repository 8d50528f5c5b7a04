"""Whether ids show that a stream went on where it was cut."""

import pytest

from tailgauge.protocol_violations import EVENTS_REPEATED, EVENTS_SKIPPED, STREAM_RESTARTED
from tailgauge.protocols.event_ids import EventIds, id_of


def numbered(numbers, name="a-"):
    return [f"{name}{number}" for number in numbers]


def problem(*connections):
    """What is found in these ids, each connection's in a list."""
    found = EventIds()
    for ids in connections:
        found.connect()
        for one in ids:
            found.receive(one, has_content=True)
    return None if found.problem is None else found.problem[0]


OPAQUE = ["x1b", "qq", "f00d", "zz-top"]
REDIS = ["1700000000001-0", "1700000000007-0", "1700000000019-0"]


@pytest.mark.parametrize(
    "connections",
    [
        [numbered(range(5))],
        [numbered(range(5)), numbered(range(5, 9))],
        [numbered(range(5)), [], numbered(range(5, 9))],
        [numbered([0]), numbered([1])],
        [[], numbered(range(3))],
        [numbered(range(5), ""), numbered(range(5, 9), "")],
        [OPAQUE[:2], OPAQUE[2:]],
        [REDIS[:2], REDIS[2:]],
        [numbered([10, 20, 30]), numbered([70, 80])],  # numbers that do not grow by one show no gap
        [numbered([3]), numbered([17])],  # nothing shows that they do
        [[None, None]],
        [["a-0", None, "a-1"], [None, "a-2"]],  # an event without an id says nothing
    ],
)
def test_a_stream_that_goes_on_has_no_problem(connections):
    assert problem(*connections) is None


@pytest.mark.parametrize(
    ("connections", "kind"),
    [
        ([numbered(range(5)), numbered(range(5))], STREAM_RESTARTED),
        ([numbered(range(5)), numbered(range(5), "b-")], STREAM_RESTARTED),
        ([numbered(range(5)), numbered(range(3, 9))], EVENTS_REPEATED),
        ([numbered(range(5)), numbered([4])], EVENTS_REPEATED),
        ([numbered(range(5)), numbered(range(6, 9))], EVENTS_SKIPPED),
        ([numbered([0]), numbered([4, 5])], EVENTS_SKIPPED),  # shown by what follows
        ([numbered(range(3)), numbered(range(3, 6)), numbered(range(8, 9))], EVENTS_SKIPPED),
        ([OPAQUE, OPAQUE[2:]], EVENTS_REPEATED),
        ([OPAQUE, OPAQUE], STREAM_RESTARTED),
        ([REDIS, REDIS[:1]], STREAM_RESTARTED),
        ([["a-0", "a-1", "a-1"]], EVENTS_REPEATED),
        ([[None, None], [None]], STREAM_RESTARTED),
    ],
)
def test_a_stream_that_does_not_is_found_out(connections, kind):
    assert problem(*connections) == kind


def test_the_first_problem_is_kept_over_all_connections():
    found = EventIds()
    for connection in (numbered(range(5)), numbered(range(4, 7)), numbered(range(9, 11))):
        found.connect()
        for one in connection:
            found.receive(one, has_content=True)

    assert found.connect() == found.problem
    assert found.problem[0] == EVENTS_REPEATED
    assert (found.last_id, found.contents) == ("a-10", 10)


@pytest.mark.parametrize(
    "value", [b"", b"a\x00b", b"a\tb", b" a", b"a\r", "ä".encode(), b"x" * 201, b"\xff"]
)
def test_an_id_that_no_header_can_carry_is_none(value):
    assert id_of(value) is None


@pytest.mark.parametrize("value", [b"7", b"a b", b"msg_01:7", b"x" * 200])
def test_other_ids_are_taken_as_they_are(value):
    assert id_of(value) == value.decode()
