"""What an engine tells its driver.

Rule: of one replica in the order of time; `at_ns` is when it happened, which may lie before the driver's now.
"""

from __future__ import annotations

from typing import NamedTuple

from tailgauge.simulator.engine.job import Call, Job

ADMITTED = "admitted"
PREFILL_STARTED = "prefill_started"
FIRST_TOKEN = "first_token"  # noqa: S105 - the prefill ended; with the tokens of the first chunk
TOKENS = "tokens"
FINISHED = "finished"
PREEMPTED = "preempted"  # lost its memory, waits again; its tokens so far stay
REFUSED = "refused"  # at the door: the queue is full, or the call can never fit
CANCELLED = "cancelled"  # ended by a cancellation
ENDINGS = (FINISHED, CANCELLED, REFUSED)


class Emission(NamedTuple):
    """One thing that happened to one call."""

    kind: str
    call: Call
    at_ns: int
    tokens: int = 0  # of the chunk; of an ending, of the whole call

    @property
    def job(self) -> Job:
        """The call as its caller described it."""
        return self.call.job
