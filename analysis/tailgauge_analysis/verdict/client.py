"""The state of each worker, from its health rows, one per second.

Facts, no judgement. With kernel timestamps a busy client distorts no time, so CPU, loop lag and garbage collection explain
a failed check and are none themselves (explanations.py, checks.py). A number is None if the worker did not record it.

Client stalls: seconds in which a worker was late enough to move a figure.

A second of a worker is bad if its requests left too late, or if its event loop or its reads were that late and timestamps
taken meanwhile are ranges; lag does not affect exact kernel timestamps. By how much a figure may be off because of it says
client_error.py.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from tailgauge_analysis.metrics.steady import Steady
from tailgauge_analysis.reading.frames import Frames
from tailgauge_analysis.stats.quantiles import Floats, Ints, Mask
from tailgauge_analysis.text.formatting import clock, count, ms, share
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


# --- stalls -------------------------------------------------------------------------------------------------------

_LAGS = ("loop_lag_max_ns", "receive_lag_max_ns", "dispatch_late_max_ns")
_CAUSES = ("event loop late", "reads late", "requests sent late")


@dataclass(frozen=True, slots=True)
class Spell:
    """Consecutive bad seconds of a worker; `worst_ms` is the largest lag, `cause` which lag it was."""

    worker: int
    from_s: float
    to_s: float
    worst_ms: float
    cause: str


@dataclass(frozen=True, slots=True)
class BadSeconds:
    """Seconds of all workers in the steady stage, and those of them that are bad; `spells` with the largest lag first."""

    seconds: float
    bad: float
    spells: tuple[Spell, ...]

    @property
    def share(self) -> float:
        """Share of bad seconds."""
        return self.bad / self.seconds if self.seconds else 0.0


def bad_seconds(frames: Frames, stage: Steady, over_ns: float) -> BadSeconds:
    """Those with a lag above `over_ns` that could move a figure."""
    seconds = bad = 0.0
    spells: list[Spell] = []
    health = frames.health.sort_values("at_ns")
    by_user = {w["worker"] for w in frames.run["workers"] if w["stamps"] == "user"}
    for worker, rows in health.groupby("worker"):
        end_s = rows["at_ns"].to_numpy(np.float64) / 1e9
        begin_s = np.concatenate([end_s[:1] - 1, end_s[:-1]])
        middle = (begin_s + end_s) / 2
        inside = (middle > stage.from_s) & (middle <= stage.to_s)
        lags = rows[list(_LAGS)].to_numpy(np.float64)
        # Reading late does not change exact kernel timestamps. NaN of older rows: perhaps.
        blurred = np.diff(rows["chunk_intervals"].to_numpy(np.float64), prepend=0) != 0
        late = lags > over_ns
        stalled = inside & (late[:, 2] | (late.any(axis=1) & (blurred | (worker in by_user))))
        lasted = end_s - begin_s
        seconds += float(lasted[inside].sum())
        bad += float(lasted[stalled].sum())
        spells += [_spell(worker, begin_s, end_s, lags, some) for some in _stretches(stalled)]
    return BadSeconds(seconds, bad, tuple(sorted(spells, key=lambda spell: -spell.worst_ms)))


def _stretches(mask: Mask) -> list[Ints]:
    """Indices of each unbroken stretch under the mask."""
    at = np.flatnonzero(mask)
    return [part for part in np.split(at, np.flatnonzero(np.diff(at) > 1) + 1) if len(part)]


def _spell(worker: Any, begin_s: Floats, end_s: Floats, lags: Floats, rows: Ints) -> Spell:
    worst = lags[rows].max(axis=0)
    ends = float(begin_s[rows[0]]), float(end_s[rows[-1]])
    return Spell(int(worker), *ends, float(worst.max()) / 1e6, _CAUSES[int(worst.argmax())])


def sentence(found: BadSeconds) -> str:
    """How much of the stage was bad, and where most."""
    one = found.spells[0]
    worst = f"worker {one.worker} at {clock(one.from_s)}, {one.cause} by {ms(one.worst_ms)} ms"
    of = f"{share(found.share)} of {count(found.seconds)} seconds"
    return f"Workers were stalled for more than 50 ms in {of}. Worst: {worst}."
