"""Where other behaviours plug in: a prefix cache, stragglers.

Rule: the engine asks at admission and tells at first token and end, each with the time at which it happens, in the
order of time over all replicas. A hook's answer depends on what it was asked and told only, or runs do not repeat.
"""

from __future__ import annotations

from tailgauge.simulator.engine.job import Job


class Hooks:
    """Nothing cached, nobody slow. Override what is wanted."""

    def cached_tokens(self, job: Job, replica: int, now_ns: int) -> int:  # noqa: ARG002 - the names are the interface
        """Prompt tokens that the replica need not compute; asked again when a preempted call is admitted again."""
        return 0

    def slowdown(self, job: Job, replica: int, now_ns: int) -> float:  # noqa: ARG002
        """Factor on the call's work on this replica (S; times X, its size, which copies of a call have in common)."""
        return 1.0

    def first_token(self, job: Job, replica: int, now_ns: int) -> None:
        """Its prefill is complete: what it wrote may become visible."""

    def ended(self, job: Job, replica: int, now_ns: int, tokens: int) -> None:
        """It finished or was cancelled after `tokens` tokens; told only of calls that were admitted."""


NO_HOOKS = Hooks()
