"""Whether a call that failed is sent again, and when.

Rule: pure: times and draws are passed in. One Retrier serves all calls of a traffic table in a worker.

    may be retried   rate_limited, overloaded, server_error, connect_error, and a timeout, all before any content. What
                     the target says itself (`x-should-retry`) wins, either way
    never            after content: the user has seen it. Nor a wrong request, a broken stream or an answer
    polite           begins at  t_failed + retry_after + U(0, min(cap, base * 2^n)),  n = 0 at the first retry;
                     without a retry-after the jitter alone. Not if that is after the request's deadline, and only with
                     a token of the budget, which begins full
    naive            begins at  t_failed + naive_wait, whatever the target says of the time; no budget, no deadline

A spend limit that is used up is a 429 without `retry-after`; only its error code tells it from others, and neither the
code nor its text is looked at: if the target does not say `x-should-retry: false`, it is retried as any other.

Sources: full jitter from "Exponential Backoff And Jitter" (AWS), put above the floor because plain full jitter falls
below `retry-after`; the budget from gRPC's retry throttling and Finagle's; classes as the providers' SDKs retry them.
"""

from __future__ import annotations

import math

from tailgauge.patterns.call_budget import Budget
from tailgauge.patterns.settings import Retry
from tailgauge.rows.schema import CLIENT_ERROR, CONNECT_ERROR, OVERLOADED, RATE_LIMITED, SERVER_ERROR, TIMEOUT

RETRYABLE = frozenset({RATE_LIMITED, OVERLOADED, SERVER_ERROR, CONNECT_ERROR, TIMEOUT})


def may_retry(ended: str, should_retry: bool | None) -> bool:
    """Whether a call that ended like this, before any content, may be sent again."""
    if should_retry is not None and ended in RETRYABLE | {CLIENT_ERROR}:
        return should_retry
    return ended in RETRYABLE


class Retrier:
    """The retry policy of one traffic table, with its budget."""

    def __init__(self, table: Retry) -> None:
        self._table = table
        self._budget = Budget(table.budget_share, table.budget_burst)

    def called(self) -> None:
        """A call was made that is no retry; the budget grows."""
        self._budget.give()

    def begins_at_ns(
        self,
        ended: str,
        at_ns: int,
        retry_after_s: float | None,
        should_retry: bool | None,
        *,
        retries: int,
        scheduled_at_ns: int,
        draw: float,
    ) -> int | None:
        """When the next try of a call that failed at `at_ns` begins; None: never. Takes from the budget.

        `retries` have been made, the request was scheduled at `scheduled_at_ns`, `draw` is uniform in [0, 1).
        """
        table = self._table
        if table.policy == "none" or retries >= table.max_retries or not may_retry(ended, should_retry):
            return None
        if table.policy == "naive":
            return at_ns + round(table.naive_wait_s * 1e9)
        jitter_ns = draw * min(table.cap_s, table.base_s * 2.0**retries) * 1e9
        begins = at_ns + math.ceil((retry_after_s or 0.0) * 1e9) + round(jitter_ns)
        if begins > scheduled_at_ns + round(table.deadline_s * 1e9) or not self._budget.take():
            return None
        return begins
