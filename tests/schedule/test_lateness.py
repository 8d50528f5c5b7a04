"""A late worker: what it sends late, how fast, and what it skips. On a clock of the test's own."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import pytest

from tailgauge.schedule.lateness import Overload

MS = 1_000_000
SECOND = 1000 * MS


@dataclass
class Walk:
    """What became of arrivals; times in ns."""

    sent: list[int] = field(default_factory=list)
    late: list[int] = field(default_factory=list)
    skipped: int = 0

    @property
    def busiest(self) -> int:
        """Requests in any second."""
        at = np.asarray(self.sent)
        return int(max(np.searchsorted(at, at + SECOND) - np.arange(len(at))))


def walk(due: list[int], cost_ns: int, until_ns: int, stalls: dict[int, int]) -> Walk:
    """A worker that takes `cost_ns` a request and stops at each time of `stalls` for so many ns."""
    judge, at_ns, found, left = Overload(), 0, Walk(), sorted(stalls.items())
    for due_ns in due:
        at_ns = max(at_ns, due_ns)
        while True:
            while left and at_ns >= left[0][0]:
                at_ns = max(at_ns, left[0][0] + left[0][1])
                left = left[1:]
            if (send_ns := judge.sends_at(at_ns, due_ns)) <= at_ns:
                break
            at_ns = send_ns
        if at_ns > until_ns:
            break
        if judge.skips(at_ns, at_ns - due_ns):
            found.skipped, at_ns = found.skipped + 1, at_ns + MS // 100
        else:
            found.sent.append(at_ns)
            found.late.append(at_ns - due_ns)
            at_ns += cost_ns
    return found


def load(times: float, *stalled_s: int) -> Walk:
    """So many times what it can send, for 30 s, with stalls of 2 s."""
    due = [int(number * MS / times) for number in range(int(30_000 * times))]
    return walk(due, MS, 30 * SECOND, {at * SECOND: 2 * SECOND for at in stalled_s})


@pytest.mark.parametrize(
    ("times", "stalls"),
    [(2.0, ()), (8.0, ()), (2.0, (5, 12))],
    ids=["double", "eightfold", "stalled while overloaded"],
)
def test_an_overloaded_worker_does_what_it_does_at_its_capacity_and_sends_nothing_far_behind(
    times, stalls
):
    found, whole = load(times, *stalls), load(1.0)
    stalls_s = 2 * len(stalls)

    assert whole.skipped == 0
    assert len(found.sent) >= 0.8 * (len(whole.sent) - 1000 * stalls_s)
    assert max(found.late) < (4 + stalls_s) * SECOND
    assert found.skipped > 0


@pytest.mark.parametrize(("times", "stalls"), [(0.9, (5,)), (0.5, (5, 9, 13, 17))])
def test_a_worker_that_was_stalled_and_catches_up_sends_all_that_came_meanwhile(times, stalls):
    found = load(times, *stalls)

    assert (len(found.sent), found.skipped) == (30_000 * times, 0)
    assert max(found.late) >= 1.9 * SECOND


@pytest.mark.parametrize("stalled_s", [0.4, 1.0, 1.2, 2.0, 5.0, 8.0])
@pytest.mark.parametrize("again_s", [0, 1, 3])
def test_after_a_stall_no_second_has_more_than_twice_what_was_planned_and_all_is_sent(
    stalled_s, again_s
):
    due = [number * SECOND // 20 for number in range(20 * 60)]
    stalls = {10 * SECOND: int(stalled_s * SECOND)}
    if again_s:  # while it still catches up
        stalls[int((10 + stalled_s + again_s) * SECOND)] = int(stalled_s * SECOND)
    found = walk(due, MS, 80 * SECOND, stalls)

    assert found.busiest <= 2 * 20
    assert (len(found.sent), found.skipped) == (len(due), 0)
    assert found.late[-1] < 100 * MS, "it has caught up"
    assert max(found.late) >= (stalled_s - 0.1) * SECOND


def test_an_uneven_plan_is_caught_up_as_unevenly():
    gaps = np.random.default_rng(7).exponential(SECOND / 20, 20 * 60)
    due = np.cumsum(gaps).astype(np.int64)
    planned = int(max(np.searchsorted(due, due + SECOND) - np.arange(len(due))))
    found = walk(due.tolist(), MS, 80 * SECOND, {10 * SECOND: 6 * SECOND})

    assert planned < found.busiest <= 2 * planned
    assert len(found.sent) == len(due)


def test_what_follows_a_slice_that_came_late_is_caught_up_too():
    judge, now_ns = Overload(), 30 * SECOND
    judge.begin(now_ns, now_ns - SECOND)

    assert judge.sends_at(now_ns, now_ns - SECOND) == now_ns
    assert judge.sends_at(now_ns, now_ns - SECOND // 2) == pytest.approx(
        now_ns + SECOND / 2 / 1.75, abs=10
    )
    assert judge.sends_at(now_ns + 2 * SECOND, now_ns + 2 * SECOND) == now_ns + 2 * SECOND
