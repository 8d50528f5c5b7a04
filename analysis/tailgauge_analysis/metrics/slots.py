"""Slots: how many requests are in flight at once, where users of a closed loop or arrival.max_concurrency limit them.

A request is in flight from when it has its slot to its end, retries and all legs included. One that never got a slot waited to
the end of the drain.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from tailgauge.rows import schema
from tailgauge_analysis.metrics.steady import end_ns, is_counted
from tailgauge_analysis.reading.frames import Frames
from tailgauge_analysis.stats.quantiles import Floats
from tailgauge_analysis.text.formatting import count, figures, ms, share
from tailgauge_analysis.text.json_values import number, table

WAIT = 0.95  # quantile of the waits that is shown
SCHEDULED = (
    "latency counts from the scheduled time, waits included; ttft_sent and e2e_sent leave them out"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Slots:
    """Requests in flight at once over the whole run, warm-up and drain included."""

    limit: int
    """users of a closed loop, or arrival.max_concurrency"""
    most: int
    """the most requests in flight at once"""
    mean: float
    """mean of the requests in flight, from the first to the last end"""
    sent: int
    """requests that got a slot"""
    planned: int | None
    """requests that a closed loop was to send; null without a number"""
    waited: float | None
    """share of the requests that waited for a slot; null without a queue"""
    wait_p95_ms: float | None
    """95th percentile of the waits of all requests in ms, those that did not wait included; null without a queue"""

    @property
    def sentence(self) -> str:
        """`at most 8 requests in flight of 8 allowed, 7.9 on average; 100 of 100 requests sent`."""
        parts = [
            f"at most {count(self.most)} requests in flight of {count(self.limit)} allowed, {figures(self.mean)} on average"
        ]
        if self.planned is not None:
            parts.append(f"{count(self.sent)} of {count(self.planned)} requests sent")
        if self.waited is not None:
            parts.append(
                f"{share(self.waited)} of requests waited, p95 wait {ms(self.wait_p95_ms)} ms"
            )
            parts.append(SCHEDULED)
        return "; ".join(parts)


def users(frames: Frames) -> float | None:
    """Return the number of users of a closed loop; None of another load, also of the tasks of a locustfile."""
    arrival = table(frames.run["scenario"], "arrival")
    if arrival.get("process") != "closed":
        return None
    return number(table(arrival, "closed").get("users"))


def slots(frames: Frames) -> Slots | None:
    """Return how many requests were in flight at once over a run, and how long they waited for a slot.

    The limit is the number of users of a closed loop, else arrival.max_concurrency. None where there is neither, or nothing was
    sent. Only a limited rate has waits.
    """
    arrival = table(frames.run["scenario"], "arrival")
    limit = users(frames)
    is_closed = limit is not None
    if not is_closed:
        limit = number(arrival.get("max_concurrency"))
    requests = frames.requests[frames.requests["stage"] != schema.PREFLIGHT].drop_duplicates(
        "request_id"
    )
    dispatched = requests[requests["dispatched_at_ns"].notna()]
    # One that was open at the end without an attempt never got a slot.
    has_slot = ~((dispatched["ended"] == schema.CENSORED) & (dispatched["attempts"] == 0))
    begun_ns = (dispatched["dispatched_at_ns"] + dispatched["slot_wait_ns"].fillna(0))[
        has_slot
    ].to_numpy(np.float64)
    if limit is None or not len(begun_ns):
        return None
    # What was open at the end of the run was in flight until then.
    ended_ns = dispatched["ended_at_ns"].fillna(end_ns(frames))[has_slot].to_numpy(np.float64)
    planned = None
    if is_counted(frames):
        planned = number(table(arrival, "closed").get("requests"))
    span_ns = float(ended_ns.max() - begun_ns.min())
    mean = float(len(begun_ns))
    if span_ns > 0:
        mean = float((ended_ns - begun_ns).sum()) / span_ns
    waited = None
    wait_p95_ms = None
    waits_ns = dispatched["slot_wait_ns"].dropna()
    if not is_closed and len(waits_ns):
        waited = float((waits_ns > 0).mean())
        wait_p95_ms = float(waits_ns.quantile(WAIT)) / 1e6
    return Slots(
        limit=int(limit),
        most=int(at_once(begun_ns, ended_ns)[1].max()),
        mean=mean,
        sent=len(begun_ns),
        planned=None if planned is None else int(planned),
        waited=waited,
        wait_p95_ms=wait_p95_ms,
    )


def at_once(begun: Floats, ended: Floats) -> tuple[Floats, Floats]:
    """Return the times at which the number of open intervals changes, and the number from then on.

    At the same time one ends before the next begins.
    """
    times = np.concatenate([begun, ended])
    changes = np.repeat([1.0, -1.0], len(begun))
    order = np.lexsort([changes, times])
    return times[order], np.cumsum(changes[order])
