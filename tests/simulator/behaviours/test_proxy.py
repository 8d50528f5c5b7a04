"""A proxy holds writes back and neither loses, splits nor reorders one."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tailgauge.scenario.simulated import ProxyTable
from tailgauge.simulator.behaviours.gateway import Buffer, Flush

MS = 1_000_000
WRITES = [(0, 30), (10 * MS, 30), (20 * MS, 30), (45 * MS, 30)]
END = 50 * MS


def flushes(table: ProxyTable, writes: list[tuple[int, int]], ended_ns: int) -> list[Flush]:
    """Groups of a response's writes, (time, bytes) in order of time, that ends at `ended_ns`."""
    buffer = Buffer(table)
    groups = [flush for at_ns, size in writes for flush in buffer.write(at_ns, size)]
    return groups + buffer.end(ended_ns)


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        (ProxyTable(), [(0, 0, 1), (10, 1, 2), (20, 2, 3), (45, 3, 4)]),
        (ProxyTable(buffer_bytes=60), [(10, 0, 2), (45, 2, 4)]),
        (ProxyTable(buffer_bytes=61), [(20, 0, 3), (50, 3, 4)]),
        (ProxyTable(buffer_bytes=1), [(0, 0, 1), (10, 1, 2), (20, 2, 3), (45, 3, 4)]),
        (ProxyTable(buffer_ms=15.0), [(15, 0, 2), (35, 2, 3), (50, 3, 4)]),
        (ProxyTable(buffer_ms=20.0), [(20, 0, 2), (40, 2, 3), (50, 3, 4)]),
        (ProxyTable(buffer_bytes=60, buffer_ms=5.0), [(5, 0, 1), (15, 1, 2), (25, 2, 3), (50, 3, 4)]),
        (ProxyTable(buffer_bytes=60, buffer_ms=15.0), [(10, 0, 2), (35, 2, 3), (50, 3, 4)]),
        (ProxyTable(buffer_all=True), [(50, 0, 4)]),
        (ProxyTable(buffer_all=True, buffer_bytes=10, buffer_ms=5.0), [(50, 0, 4)]),
    ],
)
def test_groups_of_four_writes(settings: ProxyTable, expected: list[tuple[int, int, int]]) -> None:
    assert flushes(settings, WRITES, END) == [Flush(at * MS, first, behind) for at, first, behind in expected]


def test_an_empty_response_has_no_group() -> None:
    assert flushes(ProxyTable(buffer_all=True), [], END) == []


SETTINGS = st.builds(
    ProxyTable,
    buffer_bytes=st.integers(0, 300),
    buffer_ms=st.sampled_from([0.0, 0.5, 7.0, 1000.0]),
    buffer_all=st.booleans(),
)
GAPS = st.lists(st.tuples(st.integers(0, 20 * MS), st.integers(1, 100)), max_size=50)


def timed(gaps: list[tuple[int, int]]) -> list[tuple[int, int]]:
    now, writes = 0, []
    for gap, size in gaps:
        now += gap
        writes.append((now, size))
    return writes


@given(SETTINGS, GAPS)
def test_every_write_leaves_once_in_order_and_not_before_its_time(
    settings: ProxyTable, gaps: list[tuple[int, int]]
) -> None:
    writes = timed(gaps)
    end = (writes[-1][0] if writes else 0) + 3 * MS
    groups = flushes(settings, writes, end)

    assert [i for group in groups for i in range(group.first, group.behind)] == list(range(len(writes)))
    assert [group.at_ns for group in groups] == sorted(group.at_ns for group in groups)
    for group in groups:
        first, last = writes[group.first][0], writes[group.behind - 1][0]
        assert last <= group.at_ns <= end
        if settings.buffer_ms and not settings.buffer_all:
            assert group.at_ns - first <= settings.buffer_ms * MS
        if settings.buffer_bytes and not settings.buffer_all:
            assert sum(size for _, size in writes[group.first : group.behind - 1]) < settings.buffer_bytes


@given(SETTINGS, GAPS)
def test_in_real_time_with_a_timer_the_groups_are_the_same(
    settings: ProxyTable, gaps: list[tuple[int, int]]
) -> None:
    """The timer fires between the writes, and sometimes earlier than it should."""
    writes = timed(gaps)
    end = (writes[-1][0] if writes else 0) + 3 * MS
    buffer, groups = Buffer(settings), []
    for at, size in writes:
        if buffer.due_at_ns is not None and buffer.due_at_ns <= at:
            groups += buffer.due(buffer.due_at_ns - 1)
            groups += buffer.due(buffer.due_at_ns)
        groups += buffer.write(at, size)
    groups += buffer.end(end)

    assert groups == flushes(settings, writes, end)
    assert buffer.end(end) == []
