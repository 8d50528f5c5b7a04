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

SendSlice = Callable[[RunWorker, list[Planned]], None]


class Leases:
    """Leases `schedule` until `until_ns`; `send_slice` sends a worker its share of a slice."""

    def __init__(
        self, schedule: Schedule, until_ns: int, workers: RunWorkers, send_slice: SendSlice
    ) -> None:
        self._schedule = schedule
        self._until_ns = until_ns
        self._workers = workers
        self._send_slice = send_slice
        self._leased_ns = 0
        self._skipped: list[tuple[int, int]] = []  # leased to nobody

    def up_to(self, passed_ns: int) -> None:
        """Lease the slices that begin within 5 s after `passed_ns`: a lost worker then has leases of 10 s at most.

        `passed_ns`: since the start of the run. A slice that is partly over is leased from now on; what was due before is
        in no lease. A closed loop with a number of requests is leased as a whole, once: they have no times.
        """
        if self._schedule.users is not None:
            if not self._leased_ns and self._workers.living():
                self._lease(0, self._until_ns)
                self._leased_ns = self._until_ns
            return
        while self._leased_ns < min(self._until_ns, passed_ns + SLICE_NS):
            until_ns = min(self._leased_ns + SLICE_NS, self._until_ns)
            if until_ns > passed_ns and not self._workers.living():
                return  # not leased yet: a worker may come back before the slice is over
            # What was due before now is skipped, not sent in a burst.
            begin_ns = max(self._leased_ns, min(passed_ns, until_ns))
            if begin_ns > self._leased_ns:
                self._skipped.append((self._leased_ns, begin_ns))
            if begin_ns < until_ns:
                self._lease(begin_ns, until_ns)
            self._leased_ns = until_ns

    def _lease(self, begin_ns: int, end_ns: int) -> None:
        """Divide the arrivals of a slice among the workers that run now."""
        workers = self._workers.living()[: self._schedule.users]
        shares: list[list[Planned]] = [[] for _ in workers]
        for row in self._schedule.slice(begin_ns, end_ns):
            shares[_share(row, len(workers))].append(row)
        for number, worker in enumerate(workers):
            worker.leased += requests_in(shares[number])
            worker.leases.append((begin_ns, end_ns, len(workers), number))
            self._send_slice(worker, shares[number])

    def missing(self, worker: RunWorker, request_ids: set[int]) -> list[dict[str, float]]:
        """Return the stretches (s) with arrivals that this worker leased and that are not among `request_ids`."""
        times = []
        for begin_ns, end_ns, workers, number in worker.leases:
            for row in self._schedule.slice(begin_ns, end_ns):
                if _share(row, workers) == number and row.request_id not in request_ids:
                    times.append(row.at_ns)
        return _stretches(times)

    def not_leased(self) -> list[dict[str, float]]:
        """Return the stretches (s) whose arrivals no worker got, once the schedule is over."""
        times: list[int] = []
        for begin_ns, end_ns in [*self._skipped, (self._leased_ns, self._until_ns)]:
            times.extend(row.at_ns for row in self._schedule.slice(begin_ns, end_ns))
        return _stretches(times)


def _stretches(times: Iterable[int]) -> list[dict[str, float]]:
    """Join times in ns that are near each other; each stretch has its begin and end in s, and the requests in it."""
    stretches: list[list[int]] = []
    for at_ns in times:
        if stretches and at_ns - stretches[-1][-1] <= _NEAR_NS:
            stretches[-1].append(at_ns)
        else:
            stretches.append([at_ns])
    facts = []
    for stretch in stretches:
        from_s = round(stretch[0] / 1e9, 3)
        to_s = round(stretch[-1] / 1e9, 3)
        facts.append({"from_s": from_s, "to_s": to_s, "requests": len(stretch)})
    return facts


def _share(row: Planned, shares: int) -> int:
    """Return which of the shares an arrival belongs to; the turns of a session go together."""
    return (row.request_id // TURNS) % shares
