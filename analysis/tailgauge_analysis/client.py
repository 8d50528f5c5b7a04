"""The client's own state: what each worker says of itself, second by second.

Rule: facts and explanations, no judgement. Under kernel stamps a busy client does not move a measured time, so CPU,
loop lag and garbage collection explain a failed gate and are none themselves; verdict.py decides.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pandas as pd

from tailgauge_analysis.frames import Frames
from tailgauge_analysis.quantiles import rank
from tailgauge_analysis.steady import Steady
from tailgauge_analysis.wording import clock, ms

BUSY_CPU = 0.9  # of one core: a worker is one process
LAG_NS = 5_000_000


@dataclass(frozen=True, slots=True)
class Worker:
    """One worker over the steady stage; the clock step over the whole run."""

    worker: int
    seconds: int
    cpu_mean: float
    cpu_max: float
    loop_lag_p99_ms: float
    loop_lag_max_ms: float
    seconds_lagging: int
    handover_max_ms: float
    dispatch_late_max_ms: float
    gc_max_ms: float
    rss_max_bytes: int
    in_flight_max: int
    client_drops: int
    clock_step_max_ms: float


def workers(frames: Frames, steady: Steady) -> list[Worker]:
    """A summary of each worker that left health rows."""
    seconds = steady_health(frames, steady)
    numbers = np.unique(seconds["worker"].to_numpy(np.int64))
    of = [(int(n), seconds["worker"] == n, frames.health["worker"] == n) for n in numbers]
    return [_worker(n, seconds[steady_rows], frames.health[rows]) for n, steady_rows, rows in of]


def steady_health(frames: Frames, steady: Steady) -> pd.DataFrame:
    """Health rows of the steady stage; of the whole run where it had no full second."""
    health = frames.health.sort_values(["worker", "at_ns"])
    at_s = health["at_ns"] / 1e9
    inside = health[(at_s > steady.from_s) & (at_s <= steady.to_s + 0.5)]  # a row ends its second
    return inside if len(inside) else health


def _worker(worker: int, rows: pd.DataFrame, whole_run: pd.DataFrame) -> Worker:
    lags = rows["loop_lag_max_ns"].sort_values()
    return Worker(
        worker=worker,
        seconds=len(rows),
        cpu_mean=float(rows["cpu_share"].mean()),
        cpu_max=float(rows["cpu_share"].max()),
        loop_lag_p99_ms=float(lags.iloc[rank(len(lags), 0.99) - 1]) / 1e6,
        loop_lag_max_ms=float(lags.iloc[-1]) / 1e6,
        seconds_lagging=int((lags > LAG_NS).sum()),
        handover_max_ms=float(rows["handover_max_ns"].max()) / 1e6,
        dispatch_late_max_ms=float(rows["dispatch_late_max_ns"].max()) / 1e6,
        gc_max_ms=float(rows["gc_pause_ns"].max()) / 1e6,
        rss_max_bytes=int(rows["rss_bytes"].max()),
        in_flight_max=int(rows["in_flight"].max()),
        client_drops=int(whole_run["client_drops"].max()),
        clock_step_max_ms=float(whole_run["clock_step_ns"].abs().max()) / 1e6,
    )


def explanations(frames: Frames, steady: Steady) -> list[str]:
    """What was hard for the client, in sentences with the time and what to do."""
    out = []
    for n, rows in steady_health(frames, steady).groupby("worker"):
        busy = _longest(rows, rows["cpu_share"] >= BUSY_CPU)
        if busy is not None:
            span = f"from {clock(busy['at_ns'].iloc[0] / 1e9 - 1)} to {clock(busy['at_ns'].iloc[-1] / 1e9)}"
            out.append(
                f"worker {n} was at {busy['cpu_share'].mean():.0%} of its core {span}: use more workers"
            )
        late = rows[rows["loop_lag_max_ns"] > LAG_NS]
        if len(late):
            worst = late.iloc[int(late["loop_lag_max_ns"].to_numpy().argmax())]
            out.append(
                f"worker {n}'s event loop was up to {ms(worst['loop_lag_max_ns'] / 1e6)} ms late (at {clock(worst['at_ns'] / 1e9)}), "
                f"above 5 ms in {len(late)} of {len(rows)} seconds"
            )
        pauses = rows["gc_pause_ns"].max() / 1e6
        if pauses > LAG_NS / 1e6:
            out.append(f"worker {n} spent up to {ms(pauses)} ms of a second in Python's garbage collector")
    return out


def _longest(rows: pd.DataFrame, mask: pd.Series[bool]) -> pd.DataFrame | None:
    """The longest unbroken stretch of rows under the mask."""
    stretches = [part for _, part in rows[mask].groupby((~mask).cumsum()[mask])]
    return max(stretches, key=len) if stretches else None
