"""The row of the table `health`; a part of the record (see `records`), apart for its length.

Rule: as in `records`: type and meaning of each column stand beside its name.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated


@dataclass(slots=True)
class HealthRow:
    """One row per second and worker: client health, and counters since the start of the run."""

    at_ns: Annotated[int, ("int64", "end of the second")]
    in_flight: Annotated[int, ("int32", "attempts open")]
    scheduled: Annotated[int, ("int64", "arrivals leased to this worker so far")]
    dispatched: Annotated[int, ("int64", "requests started so far")]
    ended: Annotated[int, ("int64", "requests with a known outcome so far")]
    client_drops: Annotated[int, ("int64", "arrivals dropped at the in-flight cap so far")]
    chunks: Annotated[int, ("int64", "content chunks decoded so far")]
    reads: Annotated[int, ("int64", "socket reads so far")]
    loop_lag_max_ns: Annotated[int, ("int64", "largest delay of a 50 ms timer in the second")]
    receive_lag_max_ns: Annotated[int, ("int64", "largest receive lag in the second")]
    dispatch_late_max_ns: Annotated[int, ("int64", "largest dispatched_at - scheduled_at in the second")]
    cpu_share: Annotated[float, ("float64", "CPU time of the process over the second, 1 = one core")]
    gc_pause_ns: Annotated[int, ("int64", "time spent in Python's garbage collector in the second")]
    rss_bytes: Annotated[int, ("int64", "resident memory")]
    queued_rows: Annotated[int, ("int64", "rows not yet written to a part")]
    clock_step_ns: Annotated[int, ("int64", "change of wall minus monotonic clock in the second")]
    first_chunks: Annotated[int | None, ("int64", "first chunks so far, preflight excluded")] = None
    first_intervals: Annotated[int | None, ("int64", "of these, with an interval timestamp")] = None
    chunk_intervals: Annotated[int | None, ("int64", "chunks so far with an interval timestamp")] = None
    receive_lag_p50_ns: Annotated[
        int | None,
        ("int64", "median receive lag of the reads decoded in the second; null without reads"),
    ] = None
    receive_lag_p99_ns: Annotated[int | None, ("int64", "99th percentile of the same")] = None
    dispatch_late_p99_ns: Annotated[
        int | None,
        ("int64", "99th percentile of the second's dispatch delays; null without requests"),
    ] = None
    pool_waits: Annotated[int | None, ("int64", "calls so far that waited for a connection to be opened")] = (
        None
    )
    pool_wait_max_ns: Annotated[
        int | None, ("int64", "longest wait for a connection that ended in the second")
    ] = None
    retransmits: Annotated[
        int | None,
        ("int64", "TCP segments retransmitted so far; null if the system does not report it"),
    ] = None
    out_of_order: Annotated[
        int | None,
        ("int64", "TCP packets received out of order so far: earlier ones were late or lost"),
    ] = None
    core_wait_ns: Annotated[
        int | None, ("int64", "time of the second in which the main thread was runnable without a core")
    ] = None
