"""Verdicts on a measurement and their thresholds, for the live verdict (counters) and the report (rows).

Shares are of what the comment names; docs/reports.md defines what is counted.
"""

from __future__ import annotations

import math

VALID = "VALID"
DEGRADED = "DEGRADED"
INVALID = "INVALID"
WORST_FIRST = (INVALID, DEGRADED, VALID)

DROPS = 0.01  # of the scheduled requests: INVALID above, DEGRADED above none
INTERVALS = 0.01  # of the first chunks
CLIENT_DELAY_MS = 5.0  # at p99, or, if that is more,
CLIENT_DELAY_OF_TTFT = 0.01  # of the TTFT median; the wait for a connection has the same bound
CLOCK_MS = 1.0

# Under the user clock only, where the process stamps its reads itself:
USER_LAG_NS = 5_000_000  # loop lag
USER_CPU = 0.7  # of one core
USER_SECONDS = 0.01  # of the seconds may be beyond them

# A bad second: the worker was stalled for longer than two or three chunk gaps, with an effect on timestamps.
STALL_NS = 50_000_000
BAD_SECONDS = 0.10  # of the steady seconds, and never for one alone: DEGRADED above
BAD_SECONDS_MOST = 0.50  # INVALID above

BUSY_CPU = 0.9  # of one core: a worker is one process
PLANNED_CPU = 0.7  # what a worker's core should be at


def is_stall(loop_lag_ns: float, receive_lag_ns: float, dispatch_late_ns: float, *, blurred: bool) -> bool:
    """Whether a second with these largest lags is a bad one; `blurred`: some of its timestamps are not exact.

    Reading late does not change exact kernel timestamps.
    """
    return dispatch_late_ns > STALL_NS or (blurred and max(loop_lag_ns, receive_lag_ns) > STALL_NS)


def fewest_for(p: float) -> int:
    """Values below which a window of time shows no percentile: with fewer, p99 would be the largest of a few."""
    return math.ceil(3 / (1 - p) - 1e-6)


def delay_bound_ms(ttft_p50_ms: float) -> float:
    """What the client may add at p99."""
    return max(CLIENT_DELAY_MS, CLIENT_DELAY_OF_TTFT * ttft_p50_ms)


def by_bad_seconds(bad: float, seconds: float) -> str:
    """The worst verdict that this share of bad seconds allows; a single one is ignored."""
    if bad <= 1.5 or bad <= BAD_SECONDS * seconds:  # a stalled second lasts slightly longer than one
        return VALID
    return INVALID if bad > BAD_SECONDS_MOST * seconds else DEGRADED
