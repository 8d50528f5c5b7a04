"""Jobs: calls that are answered later, at a URL that is polled.

The state of a job is computed from the time that is passed in, so that nothing runs in between. Its outcome is drawn when it
is submitted. What a call about a job gets is in core/job_calls.py; message batches are in http/api.py.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from random import Random

from tailgauge.scenario.simulated import JobsTable
from tailgauge.simulator.behaviours.draws import draws, pick

RUNNING = "running"
SUCCEEDED = "succeeded"
FAILED = "failed"
EXPIRED = "expired"
CANCELLED = "cancelled"
# States of a job that cannot be polled any more: the status is 404, or 410.
LOST = "lost"
GONE = "gone"


@dataclass(slots=True, kw_only=True)
class Job:
    """One job."""

    id: str
    created_ns: int
    ends_ns: int
    outcome: str
    tokens: tuple[int, int]  # input and output of its result
    result: Callable[[], bytes]  # returns the body of its result

    def state(self, now_ns: int) -> str:
        """Return the state of the job at a time."""
        # A job is lost half-way.
        if self.outcome == LOST and now_ns >= (self.created_ns + self.ends_ns) // 2:
            return LOST
        return self.outcome if now_ns >= self.ends_ns else RUNNING

    def cancel(self, now_ns: int) -> None:
        """End the job, unless it has ended."""
        if now_ns < self.ends_ns:
            self.outcome = CANCELLED
            self.ends_ns = now_ns


def turnaround_s(table: JobsTable, random: Random) -> float:
    """Draw how long a job, or a batch, takes."""
    return table.turnaround_s * random.lognormvariate(0, table.turnaround_sigma)


class Jobs:
    """The jobs that an endpoint holds by their ids; the oldest ended ones go first."""

    def __init__(self, table: JobsTable, seed: int) -> None:
        self.table = table
        self._seed = seed
        self._number = 0
        self._jobs: dict[str, Job] = {}  # in the order of their creation

    def submit(self, tokens: tuple[int, int], result: Callable[[], bytes], now_ns: int) -> Job:
        """Add a job, and drop ended ones for it, from the oldest on."""
        while len(self._jobs) >= self.table.kept:
            oldest = next(iter(self._jobs.values()))
            if oldest.ends_ns > now_ns:
                break
            del self._jobs[oldest.id]
        self._number += 1
        random = draws(self._seed, "job", self._number)
        turnaround_ns = round(turnaround_s(self.table, random) * 1e9)
        shares = (
            (self.table.lost, LOST),
            (self.table.gone, GONE),
            (self.table.expired, EXPIRED),
            (self.table.failed, FAILED),
        )
        job = Job(
            id=f"job_{self._number:024d}",
            created_ns=now_ns,
            ends_ns=now_ns + turnaround_ns,
            outcome=pick(random, shares, SUCCEEDED),
            tokens=tokens,
            result=result,
        )
        self._jobs[job.id] = job
        return job

    def get(self, job_id: str) -> Job | None:
        """Return a job; None: it was never there, or was dropped."""
        return self._jobs.get(job_id)
