"""The state of each worker, from its health rows, one per second.

Facts, no judgement. With kernel timestamps a busy client distorts no time, so CPU, loop lag and garbage collection explain
a failed check (explanations.py) and are none themselves.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from tailgauge_analysis.metrics.steady import Steady
from tailgauge_analysis.reading.frames import Frames


@dataclass(frozen=True, slots=True, kw_only=True)
class Worker:
    """One worker over the steady stage, worst second; the clock step over the whole run. None: it did not record it."""

    worker: int
    seconds: int
    cpu_mean: float
    cpu_max: float
    loop_lag_max_ms: float | None
    receive_lag_max_ms: float | None
    dispatch_late_max_ms: float | None
    gc_max_ms: float | None
    rss_max_bytes: int
    in_flight_max: int
    clock_step_max_ms: float
    pool_waits: int | None
    tcp_losses: int | None


def workers(frames: Frames, steady: Steady) -> list[Worker]:
    """Return a summary of each worker that left health rows."""
    whole_run = dict(iter(frames.health.groupby("worker")))
    summaries = []
    for worker, rows in steady_health(frames, steady).groupby("worker"):
        summaries.append(_worker(worker, rows, whole_run[worker]))
    return summaries


def steady_health(frames: Frames, steady: Steady) -> pd.DataFrame:
    """Health rows of the steady stage; of the whole run where it had no full second."""
    health = frames.health.sort_values(["worker", "at_ns"])
    at_s = health["at_ns"] / 1e9
    inside = health[(at_s > steady.from_s) & (at_s <= steady.to_s + 0.5)]  # a row ends its second
    return inside if len(inside) else health


def _worker(worker: Any, rows: pd.DataFrame, whole_run: pd.DataFrame) -> Worker:
    tcp_losses = growth("retransmits", rows, whole_run)
    if tcp_losses is not None:
        tcp_losses += growth("out_of_order", rows, whole_run) or 0
    maxima = rows.max()
    return Worker(
        worker=int(worker),
        seconds=len(rows),
        cpu_mean=float(rows["cpu_share"].mean()),
        cpu_max=float(maxima["cpu_share"]),
        loop_lag_max_ms=_ms(maxima["loop_lag_max_ns"]),
        receive_lag_max_ms=_ms(maxima["receive_lag_max_ns"]),
        dispatch_late_max_ms=_ms(maxima["dispatch_late_max_ns"]),
        gc_max_ms=_ms(maxima["gc_pause_ns"]),
        rss_max_bytes=int(maxima["rss_bytes"]),
        in_flight_max=int(maxima["in_flight"]),
        clock_step_max_ms=float(whole_run["clock_step_ns"].abs().max()) / 1e6,
        pool_waits=growth("pool_waits", rows, whole_run),
        tcp_losses=tcp_losses,
    )


def growth(column: str, rows: pd.DataFrame, whole_run: pd.DataFrame) -> int | None:
    """Growth of a count over consecutive rows of a worker."""
    final = rows[column].max()
    if np.isnan(final):
        return None
    initial = whole_run.loc[whole_run["at_ns"] < rows["at_ns"].min(), column].max()
    return int(final - (0 if np.isnan(initial) else initial))


def _ms(ns: float) -> float | None:
    if np.isnan(ns):
        return None
    return float(ns) / 1e6
