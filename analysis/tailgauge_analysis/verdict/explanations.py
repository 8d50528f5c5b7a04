"""Explanations: what made the client's work harder, for which worker, when, and what to do about it.

An explanation judges nothing; it accompanies the reasons of the verdict. It recommends more workers only if a core was
saturated. A worker whose event loop was late with time left on its core was blocked, or waited for a core.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from functools import cache

import numpy as np
import pandas as pd

from tailgauge import thresholds
from tailgauge.rows import schema
from tailgauge_analysis.metrics.steady import Steady
from tailgauge_analysis.reading.frames import Frames
from tailgauge_analysis.reading.run_json import Stretch
from tailgauge_analysis.text.formatting import clock, count, ms, plural, share
from tailgauge_analysis.text.json_values import table, whole
from tailgauge_analysis.verdict.client import grown, steady_health

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
        spent = int((~rows["ended"].isin(schema.COMPLETED) | rows["reader_paused_ns"].notna()).sum())
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
    grew = rows["rss_bytes"].iloc[-1] - rows["rss_bytes"].iloc[0]
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
