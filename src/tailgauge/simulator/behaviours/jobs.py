"""Jobs: calls that are answered later, at a URL that is polled.

What a job has become is computed from the time that is passed in, so that nothing runs in between. Its outcome is drawn when it
is submitted.
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
# Why a job cannot be asked for any more: a status of 404, or of 410.
LOST = "lost"
GONE = "gone"


@dataclass(slots=True)
class Job:
    """One job; `result` gives the body of its result, `tokens` what that has of input and output."""

    id: str
    created_ns: int
    ends_ns: int
    outcome: str
    tokens: tuple[int, int]
    result: Callable[[], bytes]

    def state(self, now_ns: int) -> str:
        """What has become of it."""
        if self.outcome == LOST and now_ns >= (self.created_ns + self.ends_ns) // 2:
            return LOST
        return self.outcome if now_ns >= self.ends_ns else RUNNING

    def cancel(self, now_ns: int) -> None:
        """End it, unless it has ended."""
        if now_ns < self.ends_ns:
            self.outcome = CANCELLED
            self.ends_ns = now_ns


def turnaround_s(table: JobsTable, random: Random) -> float:
    """How long a job, or a batch, takes."""
    return table.turnaround_s * random.lognormvariate(0, table.turnaround_sigma)


class Jobs:
    """The jobs that an endpoint holds by their ids; the oldest ended ones go first."""

    def __init__(self, table: JobsTable, seed: int) -> None:
        self.table = table
        self._seed = seed
        self._number = 0
        self._jobs: dict[str, Job] = {}  # in the order of their creation

    def submit(self, tokens: tuple[int, int], result: Callable[[], bytes], now_ns: int) -> Job:
        """A new job."""
        while (
            len(self._jobs) >= self.table.kept and next(iter(self._jobs.values())).ends_ns <= now_ns
        ):
            del self._jobs[next(iter(self._jobs))]
        self._number += 1
        random = draws(self._seed, "job", self._number)
        ends_ns = now_ns + round(turnaround_s(self.table, random) * 1e9)
        shares = [
            (getattr(self.table, outcome), outcome) for outcome in (LOST, GONE, EXPIRED, FAILED)
        ]
        outcome = pick(random, shares, SUCCEEDED)
        job = Job(f"job_{self._number:024d}", now_ns, ends_ns, outcome, tokens, result)
        self._jobs[job.id] = job
        return job

    def get(self, job_id: str) -> Job | None:
        """A job; None: it was never there, or was dropped."""
        return self._jobs.get(job_id)
