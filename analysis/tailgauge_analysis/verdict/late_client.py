"""What would help a client that is late: more workers, free cores, connections that are there when they are needed."""

from __future__ import annotations

import math
from urllib.parse import urlsplit

import numpy as np
import pandas as pd

from tailgauge.address import is_loopback
from tailgauge.rows import schema
from tailgauge.thresholds import PLANNED_CPU
from tailgauge_analysis.metrics.steady import Steady, is_of_tasks
from tailgauge_analysis.reading.frames import Frames
from tailgauge_analysis.text.formatting import count, plural
from tailgauge_analysis.text.json_values import table, whole
from tailgauge_analysis.verdict.workers import steady_health

SHORT_OF_CORES = 0.1  # of the time
REST_NS = 5_000_000  # of a connection after a call, before another one may use it


def advice_on_cores(frames: Frames, stage: Steady) -> str:
    """Return the advice that gives the workers enough CPU time, as an imperative without a full stop; empty where no core was full.

    It is either a number of workers that leaves each core at 70%, dropped requests included, or to stop what else took the
    cores.
    """
    rows = steady_health(frames, stage)
    # Shares of each second: a health row covers one second.
    waits = rows["core_wait_ns"].fillna(0) / 1e9
    wanted = rows["cpu_share"] + waits
    is_short = wanted >= PLANNED_CPU
    if not is_short.any():
        return ""
    waited = waits.mean()
    # They waited for a core longer than they ran on one.
    if waits[is_short].sum() > rows["cpu_share"][is_short].sum():
        return _free_cores(frames, waits[is_short].mean())
    used = float(wanted.groupby(rows["worker"]).quantile(0.95).sum())
    dropped = 0.0
    if len(stage.requests):
        dropped = float((stage.requests["ended"] == schema.CLIENT_DROP).mean())
    workers = frames.run["workers"]
    need = max(len(workers) + 1, 2, math.ceil(used / PLANNED_CPU / max(0.1, 1 - dropped)))
    master = frames.run["master"]
    cores = whole(master.get("cpu_count"))
    if cores and need > cores and {worker["host"] for worker in workers} == {master.get("host")}:
        return f"use {need} workers in all, some of them on other machines (this one has {plural(cores, 'core')})"
    if waited > SHORT_OF_CORES:
        return f"use {need} workers, each on a separate core (they waited {waited:.0%} of the time for one)"
    option = "--processes" if is_of_tasks(frames.run["scenario"]) else "--workers"
    return f"use {need} workers ({option} {need})"


def _free_cores(frames: Frames, waited: float) -> str:
    """Return what to do where a worker needs no more than its core, and does not get it."""
    condition = f"it took the cores for which the workers waited {waited:.0%} of the time"
    url = str(table(frames.run["scenario"], "target").get("url") or "")
    if is_loopback(urlsplit(url).hostname or ""):
        return (
            f"run the target on another machine, or on cores of its own (taskset), if {condition}"
        )
    return f"stop what else runs on this machine: {condition}"


def connections(frames: Frames) -> str:
    """Return the advice that spares calls the opening of a connection.

    A worker needs a connection for each call at the same time, and another for each that it closed or that broke off. What was
    opened beyond that, the target had closed.
    """
    calls = frames.attempts.dropna(subset=["connection_is_new", "sent_at_ns"])
    closed = 0
    cut = 0
    peak = 0
    limit = math.inf
    for (_, name), rows in calls.groupby(["worker", "target"], observed=True):
        target = table(frames.run["scenario"], "target" if name == "main" else "second_target")
        at_once = _at_once(rows)
        broken = int((~rows["ended"].isin(schema.SERVED) | rows["reader_paused_ns"].notna()).sum())
        needed = max(0, at_once - (whole(target.get("preopened")) or 0)) + broken
        # Opened beyond need: the target closed the earlier ones.
        closed += max(0, int(rows["connection_is_new"].sum()) - needed)
        cut += broken
        peak = max(peak, at_once)
        limit = min(limit, whole(target.get("connections")) or math.inf)
    opened = int(calls["connection_is_new"].sum())
    if peak > limit:
        return f"keep more of them with target.connections = {peak}"
    if closed > opened / 2:
        closes = (
            f"the target closes its connections ({count(len(calls))} calls took {count(opened)})"
        )
        return f"{closes}: let it, and a proxy in front of it, keep them open"
    if cut > opened / 2:
        return f"calls that were cut short or broke off ({count(cut)}) took theirs along"
    if is_of_tasks(frames.run["scenario"]):
        return "the first requests of the users do"
    advice = "open them before the run with target.preopened"
    if peak:
        advice += f" = {peak}"
    return advice


def _at_once(calls: pd.DataFrame) -> int:
    """Most connections in use at the same time."""
    sent_ns = np.sort(calls["sent_at_ns"].to_numpy(np.float64))
    free_ns = np.sort(calls["ended_at_ns"].to_numpy(np.float64)) + REST_NS
    return int((np.arange(len(calls)) + 1 - np.searchsorted(free_ns, sent_ns)).max())
