"""Verdicts on a measurement and their thresholds, for the live verdict (counters) and the report (rows).

The comment says what a share is of; docs/reference/reports.md defines what is counted.
"""

from __future__ import annotations

import math

VALID = "VALID"
DEGRADED = "DEGRADED"
INVALID = "INVALID"
# The longest run: something else ends it, such as Locust, or the last request.
ENDLESS_S = 30 * 86400.0

WORST_FIRST = (INVALID, DEGRADED, VALID)

DROPS = 0.01  # of the scheduled requests: INVALID above, DEGRADED above none
CLOCK_MS = 1.0
# Is shown while the run goes on, and in the first figure of a VALID measurement.
VISIBLE_STALL_NS = 250_000_000
STALL_NS = 50_000_000  # longer than two or three chunk gaps: listed as a stall
LAG_NS = 5_000_000  # of the event loop: explained
# The live verdict speaks of a median lateness above both: a share of the TTFT median, and milliseconds.
LATE_SHARE = 0.1
LATE_MS = 1.0

BUSY_CPU = 0.9  # of one core: a worker is one process
PLANNED_CPU = 0.7  # what a worker's core should be at


def fewest_for(p: float) -> int:
    """Values below which a window of time shows no percentile: with fewer, p99 would be the largest of a few."""
    return math.ceil(3 / (1 - p) - 1e-6)


FEWEST_PAIRS = 6  # of a comparison: with fewer, one odd pair makes the interval
