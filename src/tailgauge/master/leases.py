"""Leases of the schedule: slices of 5 s, given to the workers at least 5 s ahead.

A slice is leased once. Arrival i goes to share i mod n of the n workers that run at that moment, a session as a whole.
Later arrivals of a lost worker go to the others. What is due while no worker runs, or the master is stalled, is not leased: it is never sent in a burst, and not reached.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from tailgauge.master.workers import RunWorker, RunWorkers
from tailgauge.rows.schema import TURNS
from tailgauge.schedule.schedule import Planned, Schedule
from tailgauge.schedule.sessions import requests_in

SLICE_NS = 5_000_000_000
_NEAR_NS = 1_000_000_000  # arrivals without a row closer than this are one missing stretch

Give = Callable[[RunWorker, list[Planned]], None]


class Leases:
    """Leases `schedule` until `until_ns`; `give` sends a worker its share of a slice."""

    def __init__(self, schedule: Schedule, until_ns: int, workers: RunWorkers, give: Give) -> None:
        self._schedule = schedule
        self._until_ns = until_ns
        self._workers = workers
        self._give = give
        self._leased_ns = 0
        self._skipped: list[tuple[int, int]] = []  # leased to nobody

    def up_to(self, passed_ns: int) -> None:
        """Lease the slices that begin within the next 5 s: a lost worker then has leases of 10 s at most.

        A closed loop with a number of requests is leased as a whole: they have no times.
        """
        if self._schedule.users is not None:
            if not self._leased_ns and self._workers.living():
                self._lease(0, self._until_ns)
                self._leased_ns = self._until_ns
            return
        while self._leased_ns < min(self._until_ns, passed_ns + SLICE_NS):
            until_ns = min(self._leased_ns + SLICE_NS, self._until_ns)
            if until_ns > passed_ns and not self._workers.living():
                return  # one may come back before the slice is over
            since_ns = max(self._leased_ns, min(passed_ns, until_ns))
            if since_ns > self._leased_ns:
                self._skipped.append((self._leased_ns, since_ns))
            if since_ns < until_ns:
                self._lease(since_ns, until_ns)
            self._leased_ns = until_ns

    def _lease(self, since_ns: int, until_ns: int) -> None:
        takers = self._workers.living()[: self._schedule.users]
        shares: list[list[Planned]] = [[] for _ in takers]
        for row in self._schedule.slice(since_ns, until_ns):
            shares[_share(row, len(takers))].append(row)
        for number, (worker, rows) in enumerate(zip(takers, shares, strict=True)):
            worker.leased += requests_in(rows)
            worker.leases.append((since_ns, until_ns, len(takers), number))
            self._give(worker, rows)

    def missing(self, worker: RunWorker, seen: set[int]) -> list[dict[str, float]]:
        """Stretches (s) with arrivals that this worker leased and whose request ids are not in `seen`."""
        return _stretches(
            row.at_ns
            for since_ns, until_ns, takers, number in worker.leases
            for row in self._schedule.slice(since_ns, until_ns)
            if _share(row, takers) == number and row.request_id not in seen
        )

    def not_leased(self) -> list[dict[str, float]]:
        """Stretches (s) whose arrivals no worker got, once the schedule is over."""
        spans = [*self._skipped, (self._leased_ns, self._until_ns)]
        return _stretches(row.at_ns for span in spans for row in self._schedule.slice(*span))


def _stretches(times: Iterable[int]) -> list[dict[str, float]]:
    """Times in ns, joined where they are near each other."""
    stretches: list[list[int]] = []
    for at_ns in times:
        if stretches and at_ns - stretches[-1][-1] <= _NEAR_NS:
            stretches[-1].append(at_ns)
        else:
            stretches.append([at_ns])
    ends = [(round(s[0] / 1e9, 3), round(s[-1] / 1e9, 3), len(s)) for s in stretches]
    return [{"from_s": from_s, "to_s": to_s, "requests": n} for from_s, to_s, n in ends]


def _share(row: Planned, takers: int) -> int:
    return (row.request_id // TURNS) % takers
