"""The state of each worker, from its health rows, one per second.

Facts, no judgement. With kernel timestamps a busy client distorts no time, so CPU, loop lag and garbage collection explain
a failed check and are none themselves (checks.py). A number is None if the worker did not record it.

Also here: client stalls, seconds in which a worker was late enough to move a figure.

A second of a worker is bad if its requests left too late, or if its event loop or its reads were that late and timestamps
taken meanwhile are ranges; lag does not affect exact kernel timestamps. By how much a figure may be off because of it says
client_error.py.

And explanations: what made the client's work harder, for which worker, when, and what to do about it.

An explanation judges nothing; it accompanies the reasons of the verdict. It recommends more workers only if a core was
saturated. A worker whose event loop was late with time left on its core was blocked, or waited for a core.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
import pandas as pd

from tailgauge import thresholds
from tailgauge.rows import schema
from tailgauge_analysis.metrics.steady import Steady
from tailgauge_analysis.reading.frames import Frames
from tailgauge_analysis.reading.run_json import Stretch
from tailgauge_analysis.stats.quantiles import Floats, Ints, Mask
from tailgauge_analysis.text.formatting import clock, count, ms, plural, share
from tailgauge_analysis.text.json_values import Json, table, whole

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


# --- explanations -------------------------------------------------------------------------------------------------

LAG_NS = thresholds.LAG_NS
LOSSES = 0.001  # of the reads
GARBAGE_MS = 50.0  # of one pause
RETRANSMISSION_MS = 200.0
SHORT_OF_CORES = 0.1  # of the time
WAITED = 0.5  # of a lag, or of a second
GREW_BYTES = 500_000_000
REST_NS = 5_000_000  # of a connection after a call, before another one may use it


def explanations(frames: Frames, stage: Steady) -> list[str]:
    """All of them, the one with the largest delay first, whichever its worker."""
    out: list[tuple[float, str]] = []
    more, open_fewer = more_workers(frames, stage), cache(lambda: connections(frames))
    for number, rows in steady_health(frames, stage).groupby("worker"):
        mine = frames.health[frames.health["worker"] == number]
        silent = [s for w in frames.run["workers"] if w["worker"] == number for s in w["silent"]]
        of_worker = _of(rows, mine, more, open_fewer, silent)
        out += [(size_ms, f"worker {number} {text}") for size_ms, text in of_worker]
    return [text for _, text in sorted(out, key=lambda one: -one[0])]


def more_workers(frames: Frames, stage: Steady) -> str:
    """How many workers would have their cores at 70%, dropped requests and waiting for a core included; empty where no core was
    full: then more of them help nothing.
    """
    rows = steady_health(frames, stage)
    have = max(1, len(frames.run["workers"]))
    waits = rows["core_wait_ns"].fillna(0) / 1e9
    wanted = rows["cpu_share"] + waits
    if not len(rows) or wanted.max() < thresholds.PLANNED_CPU:
        return ""
    used = float(wanted.groupby(rows["worker"]).quantile(0.95).sum())
    dropped = float((stage.requests["ended"] == schema.CLIENT_DROP).mean()) if len(stage.requests) else 0.0
    need = max(have + 1, math.ceil(used / thresholds.PLANNED_CPU / max(0.1, 1 - dropped)))
    text = f"use {need} workers"
    cores, hosts = whole(frames.run["master"].get("cpu_count")), {w["host"] for w in frames.run["workers"]}
    if cores and need > cores and hosts == {frames.run["master"].get("host")}:
        text += f", on more machines (this one has {plural(cores, 'core')})"
    elif waits.mean() > SHORT_OF_CORES:
        text += f", each on a separate core (they waited {waits.mean():.0%} of the time for one)"
    return text


def connections(frames: Frames) -> str:
    """What spares calls that open a connection. A worker needs one for each call at the same time, and another for each that it
    closed or that broke off; what was opened beyond that, the target had closed.
    """
    calls = frames.attempts.dropna(subset=["connection_is_new", "sent_at_ns"])
    closed, cut, most, kept = 0, 0, 0, math.inf
    for (_, name), rows in calls.groupby(["worker", "target"], observed=True):
        of = table(frames.run["scenario"], "target" if name == "main" else "second_target")
        sent, over = (np.sort(rows[at].to_numpy(np.float64)) for at in ("sent_at_ns", "ended_at_ns"))
        at_once = int((np.arange(len(rows)) + 1 - np.searchsorted(over + REST_NS, sent)).max())
        spent = int((~rows["ended"].isin(schema.SERVED) | rows["reader_paused_ns"].notna()).sum())
        needed = max(0, at_once - (whole(of.get("preopened")) or 0)) + spent
        cut += spent
        closed += max(0, int(rows["connection_is_new"].sum() - needed))
        most, kept = max(most, at_once), min(kept, whole(of.get("connections")) or math.inf)
    opened = int(calls["connection_is_new"].sum())
    if most > kept:
        return f"keep more of them with target.connections = {most}"
    if closed > opened / 2:
        closes = f"the target closes its connections ({count(len(calls))} calls took {count(opened)})"
        return f"{closes}: let it, and a proxy in front of it, keep them open"
    if cut > opened / 2:
        return f"calls that were cut short or broke off ({count(cut)}) took theirs along"
    return f"open them before the run with target.preopened{f' = {most}' if most else ''}"


def _of(
    rows: pd.DataFrame, mine: pd.DataFrame, more: str, open_fewer: Callable[[], str], silent: list[Stretch]
) -> Iterator[tuple[float, str]]:
    """Explanations for one worker, each with the largest delay in ms that it stands for; `rows` are its seconds of the stage, `mine` all of them; `silent`: stretches without a message."""
    waits = rows["core_wait_ns"].fillna(0) / 1e9
    busy = _longest(rows, rows["cpu_share"] + waits >= thresholds.BUSY_CPU)
    if busy is not None:
        waited = waits.loc[busy.index].mean()
        of = f"a core and waited for one {waited:.0%} of the time" if waited > SHORT_OF_CORES else "its core"
        lags_ns = busy[["loop_lag_max_ns", "receive_lag_max_ns", "dispatch_late_max_ns"]].to_numpy()
        text = f"was at {busy['cpu_share'].mean():.0%} of {of} {_span(busy)}: {more}"
        yield float(lags_ns.max()) / 1e6, text
    yield from _late(rows, silent)
    pause = rows["gc_pause_ns"].max() / 1e6
    if pause > GARBAGE_MS:
        yield pause, f"paused for {ms(pause)} ms for Python's garbage collector"
    opened, wait_ns = grown("pool_waits", rows, mine), rows["pool_wait_max_ns"].max()
    if opened and wait_ns > LAG_NS:
        worst = rows.iloc[int(rows["pool_wait_max_ns"].fillna(0).to_numpy().argmax())]
        which = f"{count(opened)} attempts, which waited up to {ms(wait_ns / 1e6)} ms (at {_at(worst)})"
        yield wait_ns / 1e6, f"opened connections for {which}: {open_fewer()}"
    again, jumbled = grown("retransmits", rows, mine) or 0, grown("out_of_order", rows, mine) or 0
    if again + jumbled > LOSSES * (grown("reads", rows, mine) or 0):
        lost = f"{plural(again, 'segment')} retransmitted, {plural(jumbled, 'packet')} out of order"
        text = f"lost packets on the network: {lost}; a retransmission costs 200 ms or a round trip"
        yield RETRANSMISSION_MS if again else 0.0, text
    grew = float(rows["rss_bytes"].iloc[-1]) - float(rows["rss_bytes"].iloc[0])
    if grew > GREW_BYTES:
        text = f"used {grew / 1e6:,.0f} MB more memory at the end of the stage: a longer run may exhaust it"
        yield 0.0, text


def _late(rows: pd.DataFrame, silent: list[Stretch]) -> Iterator[tuple[float, str]]:
    """Why the worker's event loop was late."""
    late = rows[rows["loop_lag_max_ns"] > LAG_NS]
    if not len(late):
        return
    worst = late.iloc[int(late["loop_lag_max_ns"].to_numpy().argmax())]
    lag_ns = worst["loop_lag_max_ns"]
    above = f"above {LAG_NS // 10**6} ms in {len(late)} of {len(rows)} seconds"
    text = f"had an event loop up to {ms(lag_ns / 1e6)} ms late (at {_at(worst)}), {above}"
    if any(_froze(worst["at_ns"] / 1e9, lag_ns / 1e9, s.from_s, s.to_s or math.inf) for s in silent):
        text += "; it sent no messages in that time: the process or its machine was suspended"
    elif worst["core_wait_ns"] > WAITED * lag_ns:
        text += f"; it waited {ms(worst['core_wait_ns'] / 1e6)} ms of that second for a core "
        text += "that other processes used: give each worker its own core"
    elif worst["gc_pause_ns"] > WAITED * lag_ns:
        text += " (Python's garbage collector)"
    elif lag_ns > thresholds.STALL_NS and worst["cpu_share"] < thresholds.PLANNED_CPU:
        text += f"; its core was at {share(worst['cpu_share'])} then, so the event loop was blocked "
        text += "(a sleep, a file or a name look-up in a plug-in or listener): remove it"
    yield lag_ns / 1e6, text


def _froze(at_s: float, lag_s: float, from_s: float, to_s: float) -> bool:
    """Whether a lag that ended at `at_s` was most of a silence: a lost network delays no event loop."""
    return from_s < at_s and at_s - lag_s < to_s and lag_s > WAITED * (to_s - from_s)


def _span(rows: pd.DataFrame) -> str:
    return f"from {clock(rows['at_ns'].iloc[0] / 1e9 - 1)} to {clock(rows['at_ns'].iloc[-1] / 1e9)}"


def _at(row: pd.Series[float]) -> str:
    return clock(row["at_ns"] / 1e9)


def _longest(rows: pd.DataFrame, mask: pd.Series[bool]) -> pd.DataFrame | None:
    """The longest unbroken stretch of rows under the mask."""
    stretches = [part for _, part in rows[mask].groupby((~mask).cumsum()[mask])]
    return max(stretches, key=len) if stretches else None
