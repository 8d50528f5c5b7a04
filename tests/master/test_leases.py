"""Who is handed which arrival, when workers come, go and come back. In plain numbers, without processes."""

from __future__ import annotations

import random

import numpy as np
import pytest

from tailgauge.master.leases import SLICE_NS, Leases
from tailgauge.master.workers import RunWorkers
from tailgauge.rows.schema import TURNS
from tailgauge.schedule.schedule import Schedule

S = 1_000_000_000


def schedule(count: int, seconds: int) -> Schedule:
    """Arrivals at even distances; every fifth begins a session of three turns."""
    at_ns = np.linspace(0, seconds * S, count, endpoint=False).astype(np.int64)
    ones = np.ones(count, dtype=np.int64)
    turns = np.where(np.arange(count) % 5 == 0, 3, 1)
    return Schedule(at_ns, ones * 0, ones, ones, ("chat",), turns)


class Rig:
    """A handout, its workers, and who was given what."""

    def __init__(self, workers: int, count: int = 600, seconds: int = 60) -> None:
        self.workers = RunWorkers(lambda _: True)
        for number in range(workers):
            self.workers.add(f"w{number}", {"name": f"w{number}"})
        self.given: dict[str, list[int]] = {}
        self.handout = Leases(schedule(count, seconds), seconds * S, self.workers, self.give)

    def give(self, worker, rows):
        self.given.setdefault(worker.node, []).extend(row.request_id // TURNS for row in rows)

    def go(self, since, until):
        """The master looks at its leases once a second."""
        for passed in range(since, until + 1):
            self.handout.up_to(passed * S)

    def worker(self, node):
        return self.workers.by_node[node]

    def all(self):
        return sorted(i for given in self.given.values() for i in given)


@pytest.mark.parametrize(("workers", "users"), [(1, 8), (2, 8), (3, 2), (4, 1)])
def test_a_number_of_requests_is_leased_at_once_and_only_to_workers_with_a_user(workers, users):
    rig = Rig(workers)
    ones = np.ones(50, dtype=np.int64)
    starts_ns = np.zeros(users, dtype=np.int64)
    plan = Schedule(ones * 0, ones * 0, ones, ones, ("chat",), ones, starts_ns)
    rig.handout = Leases(plan, 10**18, rig.workers, rig.give)
    rig.handout.up_to(7 * S)  # the master was late
    rig.handout.up_to(30 * S)

    assert rig.all() == list(range(50))
    assert len(rig.given) == min(workers, users)
    assert all(min(given) < users for given in rig.given.values())
    assert sum(worker.leased for worker in rig.workers) == 50


def test_every_arrival_is_handed_out_once_and_at_least_a_slice_ahead():
    rig = Rig(3)
    for passed in range(60):
        rig.handout.up_to(passed * S)
        reached = max(i for given in rig.given.values() for i in given)
        assert min(599, 10 * (passed + 5) - 1) <= reached < 10 * (passed + 10)
    assert rig.all() == list(range(600))
    assert sum(m.leased for m in rig.workers) == 600 + 2 * 120  # each session has two turns more


def test_the_share_of_a_lost_worker_goes_to_the_living_from_the_next_slice_on():
    rig = Rig(3)
    rig.handout.up_to(0)
    before = set(rig.given["w1"])
    rig.worker("w1").state = "lost"
    rig.go(1, 56)

    assert set(rig.given["w1"]) == before == set(range(1, 50, 3))
    assert rig.all() == list(range(600))


def test_who_comes_back_takes_its_place_again():
    rig = Rig(2)
    rig.handout.up_to(0)
    rig.worker("w1").state = "lost"
    rig.go(1, 10)
    rig.worker("w1").state = "running"
    rig.go(11, 56)

    assert max(rig.given["w1"]) == 599
    assert rig.all() == list(range(600))


def test_a_late_joiner_takes_a_share():
    rig = Rig(2)
    rig.handout.up_to(0)
    rig.workers.add("w2", {"name": "w2"})
    rig.go(1, 56)

    assert rig.given["w2"] == [i for i in range(50, 600) if i % 3 == 2]
    assert rig.all() == list(range(600))


def test_while_nobody_is_there_what_is_due_is_not_reached_and_is_not_sent_in_a_burst_later():
    rig = Rig(1)
    rig.handout.up_to(0)  # until 5 s
    rig.worker("w0").state = "lost"
    for passed in range(1, 33):
        rig.handout.up_to(passed * S)
    rig.worker("w0").state = "running"
    rig.handout.up_to(32 * S + S // 2)
    rig.go(33, 56)

    assert rig.all() == [i for i in range(600) if i < 50 or i >= 325]
    assert rig.handout.not_leased() == [{"from_s": 5.0, "to_s": 32.4, "requests": 275}]


def test_what_was_due_while_the_master_was_stalled_is_not_sent_in_a_burst_later():
    rig = Rig(2)
    rig.go(0, 3)  # until 10 s
    rig.handout.up_to(27 * S)
    rig.go(28, 56)

    assert rig.all() == [i for i in range(600) if i < 100 or i >= 270]
    assert rig.handout.not_leased() == [{"from_s": 10.0, "to_s": 26.9, "requests": 170}]


def test_what_is_left_when_the_master_comes_back_after_the_end_goes_to_nobody():
    rig = Rig(2)
    rig.go(0, 0)

    assert rig.handout.not_leased() == [{"from_s": 5.0, "to_s": 59.9, "requests": 550}]


def test_nobody_for_a_moment_costs_nothing():
    rig = Rig(1)
    rig.handout.up_to(0)
    rig.worker("w0").state = "lost"
    rig.handout.up_to(3 * S)
    rig.worker("w0").state = "running"
    rig.go(4, 56)

    assert rig.all() == list(range(600))
    assert rig.handout.not_leased() == []


@pytest.mark.parametrize("seed", range(5))
def test_whatever_happens_no_arrival_is_handed_out_twice(seed):
    chance = random.Random(seed)
    rig = Rig(3)
    for passed in range(60):
        rig.handout.up_to(passed * S)
        for worker in rig.workers:
            if chance.random() < 0.1:
                worker.state = "running" if worker.state == "lost" else "lost"
        if chance.random() < 0.05:
            rig.workers.add(f"w{len(rig.workers)}", {"name": "late"})

    assert len(rig.all()) == len(set(rig.all()))


# --- what a lost worker leaves out ------------------------------------------------------------------------------


def test_missing_seconds_are_those_of_its_arrivals_without_a_row():
    rig = Rig(2)
    rig.handout.up_to(S)  # its odd arrivals until 10 s
    seen = {i * TURNS for i in range(1, 40, 2)} | {51 * TURNS}

    assert rig.handout.missing(rig.worker("w1"), seen) == [
        {"from_s": 4.1, "to_s": 9.9, "requests": 29}
    ]


def test_a_hole_of_more_than_a_second_parts_two_stretches():
    rig = Rig(1)
    rig.handout.up_to(S)
    seen = {i * TURNS for i in range(100)} - {10 * TURNS, 11 * TURNS, 70 * TURNS}

    assert rig.handout.missing(rig.worker("w0"), seen) == [
        {"from_s": 1.0, "to_s": 1.1, "requests": 2},
        {"from_s": 7.0, "to_s": 7.0, "requests": 1},
    ]


def test_nothing_is_missing_where_every_arrival_has_a_row():
    rig = Rig(1)
    rig.handout.up_to(S)

    assert rig.handout.missing(rig.worker("w0"), {i * TURNS for i in range(100)}) == []
    assert rig.handout.missing(rig.workers.add("w1", {}), set()) == []


def test_a_slice_lasts_five_seconds():
    assert SLICE_NS == 5 * S
