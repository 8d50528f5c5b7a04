"""Waits without abandonment: Kaplan-Meier over users who gave up and requests that the drain cut off.

Only if more than 0.1% of the waits were cut short. A wait that was cut short was longer than seen; a request that failed
is slower than any. Leaving must not depend on the rest of the wait, which holds for users drawn by lot and for the end of
a run.
"""

from __future__ import annotations

import math

import numpy as np

from tailgauge.rows import schema
from tailgauge_analysis.load.frames import Frames
from tailgauge_analysis.metrics.answers import ONE_ANSWER
from tailgauge_analysis.metrics.metrics import BY_NAME
from tailgauge_analysis.metrics.steady import Steady
from tailgauge_analysis.stats.quantiles import Floats
from tailgauge_analysis.stats.survival import Wait, waits
from tailgauge_analysis.text.formatting import percentile
from tailgauge_analysis.text.json_values import Json
from tailgauge_analysis.text.quantile import VALUE, plain_values

PS = (0.5, 0.95, 0.99)
LEAST = 0.001
ENDS = {"ttft_sched": "first_at_ns", "e2e_sched": "whole_at_ns"}


def survival_quantiles(frames: Frames, of_target: Steady, beyond: str) -> list[Json]:
    """The key `survival_quantiles` of report.json: metrics of which enough waits were cut short to matter."""
    requests = of_target.requests[of_target.requests["answer"].isin(ONE_ANSWER)]
    begun = requests["ended"] != schema.CLIENT_DROP
    requests = requests[begun]
    stopped = requests["ended"].isin((schema.CANCELLED, schema.CENSORED)).to_numpy(np.bool_)
    ok = (requests["ended"] == schema.OK).to_numpy(np.bool_)
    scheduled = requests["scheduled_at_ns"].to_numpy(np.float64)
    last = _end_ns(frames, scheduled)
    left = requests["ended_at_ns"].fillna(last).to_numpy(np.float64) - scheduled
    seen_first = of_target.attempts.groupby("request_id")[_first(of_target)].min()
    first = (requests["request_id"].map(seen_first) - requests["scheduled_at_ns"]).to_numpy(np.float64)
    out = []
    for name, end in ENDS.items():
        took = (requests[end] - requests["scheduled_at_ns"]).to_numpy(np.float64)
        if name == "ttft_sched":
            took = np.where(stopped, first, took)
        seen = ~stopped | ~np.isnan(took)
        times = np.where(np.isnan(took), np.where(stopped, left, np.inf), took)
        counted = ~ok | ~np.isnan(took)
        cut = int((~seen & counted).sum())
        if len(times) and cut > LEAST * len(times):
            found = waits(times[counted] / 1e6, seen[counted], PS)
            quantiles = [_quantile(wait, beyond) for wait in found]
            facts = {"metric": name, "title": BY_NAME[name].title, "n": int(counted.sum()), "cut": cut}
            out.append({**facts, "quantiles": quantiles})
    return out


def _quantile(wait: Wait, beyond: str) -> Json:
    failed = wait.value is not None and not math.isfinite(wait.value)
    ends = plain_values({"value_ms": wait.value, "low_ms": wait.low, "high_ms": wait.high})
    value_is = beyond if failed else VALUE if wait.value is not None else "cut short"
    return {"p": wait.p, "label": percentile(wait.p), **ends, "value_is": value_is}


def _first(steady: Steady) -> str:
    return "first_text_at_ns" if steady.first_token == schema.TEXT else "first_content_at_ns"


def _end_ns(frames: Frames, scheduled: Floats) -> float:
    """When the drain ended, on the run clock; without that word, the last time that any row knows."""
    run = frames.run
    if run["ended_at_ns"] is not None and run["start_at_ns"] is not None:
        return float(run["ended_at_ns"] - run["start_at_ns"])
    known = [scheduled.max(initial=0.0), frames.attempts["ended_at_ns"].max()]
    return float(np.nanmax(np.array(known, dtype=np.float64)))
