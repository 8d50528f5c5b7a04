"""The state of each worker, from its health rows, one per second.

Facts, no judgement. With kernel timestamps a busy client distorts no time, so CPU, loop lag and garbage collection explain
a failed check and are none themselves (explanations.py, checks.py). A number is None if the worker did not record it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from tailgauge_analysis.metrics.steady import Steady
from tailgauge_analysis.reading.frames import Frames
from tailgauge_analysis.text.json_values import Json

# The worst second of a time, and its column.
_LARGEST = {
    "loop_lag_max_ms": "loop_lag_max_ns", "receive_lag_max_ms": "receive_lag_max_ns", "receive_lag_p99_ms": "receive_lag_p99_ns",
    "dispatch_late_max_ms": "dispatch_late_max_ns", "dispatch_late_p99_ms": "dispatch_late_p99_ns", "gc_max_ms": "gc_pause_ns",
    "pool_wait_max_ms": "pool_wait_max_ns", "core_wait_max_ms": "core_wait_ns",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Worker:
    """One worker over the steady stage; the clock step over the whole run."""

    worker: int
    seconds: int
    cpu_mean: float
    cpu_max: float
    loop_lag_max_ms: float
    receive_lag_max_ms: float
    dispatch_late_max_ms: float
    gc_max_ms: float
    rss_max_bytes: int
    in_flight_max: int
    clock_step_max_ms: float
    first_interval_share: float | None
    receive_lag_p50_ms: float | None
    receive_lag_p99_ms: float | None
    dispatch_late_p99_ms: float | None
    pool_waits: int | None
    pool_wait_max_ms: float | None
    retransmits: int | None
    out_of_order: int | None
    core_wait_max_ms: float | None


def workers(frames: Frames, steady: Steady) -> list[Worker]:
    """A summary of each worker that left health rows."""
    whole_run = dict(iter(frames.health.groupby("worker")))
    return [_worker(n, rows, whole_run[n]) for n, rows in steady_health(frames, steady).groupby("worker")]


def steady_health(frames: Frames, steady: Steady) -> pd.DataFrame:
    """Health rows of the steady stage; of the whole run where it had no full second."""
    health = frames.health.sort_values(["worker", "at_ns"])
    at_s = health["at_ns"] / 1e9
    inside = health[(at_s > steady.from_s) & (at_s <= steady.to_s + 0.5)]  # a row ends its second
    return inside if len(inside) else health


def _worker(worker: Any, rows: pd.DataFrame, whole_run: pd.DataFrame) -> Worker:
    first, intervals = (grown(name, rows, whole_run) for name in ("first_chunks", "first_intervals"))
    largest: Json = {name: _ms(rows[column].max()) for name, column in _LARGEST.items()}
    return Worker(
        worker=int(worker),
        seconds=len(rows),
        cpu_mean=float(rows["cpu_share"].mean()),
        cpu_max=float(rows["cpu_share"].max()),
        rss_max_bytes=int(rows["rss_bytes"].max()),
        in_flight_max=int(rows["in_flight"].max()),
        clock_step_max_ms=float(whole_run["clock_step_ns"].abs().max()) / 1e6,
        first_interval_share=intervals / first if first and intervals is not None else None,
        receive_lag_p50_ms=_ms(rows["receive_lag_p50_ns"].median()),
        pool_waits=grown("pool_waits", rows, whole_run),
        retransmits=grown("retransmits", rows, whole_run),
        out_of_order=grown("out_of_order", rows, whole_run),
        **largest,
    )


def grown(column: str, rows: pd.DataFrame, whole_run: pd.DataFrame) -> int | None:
    """Growth of a count over consecutive rows of a worker."""
    last = rows[column].max()
    if np.isnan(last):
        return None
    before = whole_run.loc[whole_run["at_ns"] < rows["at_ns"].min(), column].max()
    return int(last - (0 if np.isnan(before) else before))


def _ms(ns: float) -> float | None:
    return None if np.isnan(ns) else float(ns) / 1e6
