"""Clocks: an offset that is always within its own error, and a wall clock held against the monotonic one."""

import re
import time
from datetime import datetime

from hypothesis import given
from hypothesis import strategies as st

from tailgauge import clock

DELAY = st.integers(0, 10**10)


def ping(offset, there, answering, back, start):
    """Four stamps of a ping whose true offset (master minus worker) is known."""
    t0 = start
    t1 = t0 + there + offset
    t2 = t1 + answering
    t3 = t2 - offset + back
    return clock.offset_from_ping(t0, t1, t2, t3)


@given(st.integers(-(10**15), 10**15), DELAY, DELAY, DELAY, st.integers(0, 10**15))
def test_the_true_offset_lies_within_the_error_however_asymmetric_the_way(
    offset, there, answering, back, start
):
    found = ping(offset, there, answering, back, start)

    assert abs(found.offset_ns - offset) <= found.error_ns


@given(st.integers(-(10**15), 10**15), DELAY, DELAY, DELAY)
def test_the_error_is_half_the_time_on_the_way_and_the_answering_costs_nothing(
    offset, there, answering, back
):
    found = ping(offset, there, answering, back, 0)

    assert found.error_ns == (there + back) // 2 + 1


def test_a_symmetric_way_gives_the_exact_offset():
    assert ping(12_345, 400, 77, 400, 5).offset_ns == 12_345


def test_clocks_that_contradict_each_other_do_not_give_a_negative_error():
    assert clock.offset_from_ping(0, 100, 300, 10).error_ns == 1


def test_wall_minus_monotonic_turns_a_wall_stamp_into_a_monotonic_one():
    offset = clock.wall_minus_monotonic_ns()
    before, wall, after = clock.monotonic_ns(), time.time_ns(), clock.monotonic_ns()

    assert before - 100_000 <= wall - offset <= after + 100_000


def test_a_refresh_tells_how_far_the_wall_clock_moved():
    wall = clock.Wall()
    wall.offset_ns -= (
        3_600_000_000_000  # as if the wall clock had been set forward by an hour since
    )
    moved = wall.refresh()

    assert abs(moved - 3_600_000_000_000) < 200_000_000
    assert abs(wall.offset_ns - clock.wall_minus_monotonic_ns()) < 200_000_000


def test_a_label_is_utc_with_milliseconds():
    label = clock.utc_now()

    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", label)
    assert abs(datetime.fromisoformat(label).timestamp() - time.time()) < 60


def test_processes_of_one_kernel_share_its_identity(command):
    program = "from tailgauge.clock import boot_id; print(boot_id())"
    measured = command(["python", "-c", program], 20).stdout.strip()

    assert measured == clock.boot_id()
