"""The latency table: every metric's quantiles, among successes and of everything offered.

Two views, never mixed. `successes` are the requests that ended ok and have the event. `offered` adds every request of such
a pattern that did not end ok, whatever the reason (error, timeout, still open at the end, dropped before it was sent), as
slower than any success, so that failing fast never looks fast. A request that its user abandoned is in neither.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import pandas as pd

from tailgauge.rows import schema
from tailgauge_analysis.load.frames import Frames
from tailgauge_analysis.metrics import metrics
from tailgauge_analysis.metrics.answers import ONE_ANSWER
from tailgauge_analysis.metrics.metrics import BY_NAME, METRICS, RATE, Metric
from tailgauge_analysis.metrics.steady import Steady
from tailgauge_analysis.stats.quantiles import Floats, Ints, Quantile, quantiles
from tailgauge_analysis.stats.survival import Wait, waits
from tailgauge_analysis.text.formatting import percentile
from tailgauge_analysis.text.json_values import Json
from tailgauge_analysis.text.quantile import VALUE, plain_values

PS = (0.5, 0.9, 0.95, 0.99, 0.999)
SUCCESSES = "successes"
OFFERED = "offered"
WAIT_PS = (0.5, 0.95, 0.99)
LEAST = 0.001
ENDS = {"ttft_sched": "first_at_ns", "e2e_sched": "whole_at_ns"}


@dataclass(frozen=True, slots=True)
class Row:
    """Quantiles of one metric in one view, in its unit; +inf where the rank falls on a request without answer.

    `mean` is None where there is none: no sample, or one of them without an answer.
    """

    metric: Metric
    view: str
    n: int
    without_answer: int
    mean: float | None
    quantiles: tuple[Quantile, ...]


def table(steady: Steady) -> list[Row]:
    """Every metric in every view that it has."""
    return [row(metric, steady, view) for metric in METRICS for view in views(metric)]


def by_traffic(steady: Steady, whole: list[Row]) -> dict[str, list[Row]]:
    """The latency rows of each traffic table; `whole`: the rows of all of them together."""
    codes, names = pd.factorize(steady.requests["traffic"])
    if len(names) == 1:
        return {str(names[0]): whole}
    return {str(name): table(steady.only(codes == code)) for code, name in enumerate(names)}


def views(metric: Metric) -> tuple[str, ...]:
    """The views that a metric has."""
    return (SUCCESSES, OFFERED) if metric.offered else (SUCCESSES,)


def row(metric: Metric, steady: Steady, view: str, ps: tuple[float, ...] = PS) -> Row:
    """One metric in one view."""
    if metric.level == metrics.CHUNK:
        return _pooled(metric, steady, view, ps)
    values, _ = sample(metric, steady, view)
    if metric.unit == RATE:
        return _rates(metric, values, view, ps)
    lost = int(np.isinf(values).sum())
    mean = float(values.mean()) if len(values) and not lost else None
    return Row(metric, view, len(values), lost, mean, tuple(quantiles(values, ps)))


def _pooled(metric: Metric, steady: Steady, view: str, ps: tuple[float, ...]) -> Row:
    """One row over all values. There may be a hundred million gaps: they stay in ns to avoid a copy."""
    values = metric.ns(steady)
    found = (_in_ms(q) for q in quantiles(values, ps, steady.gap_counts))
    return Row(
        metric, view, len(values), 0, float(values.mean()) / 1e6 if len(values) else None, tuple(found)
    )


def _rates(metric: Metric, values: Floats, view: str, ps: tuple[float, ...]) -> Row:
    """Tokens per second from ms per token: the slow end stays the high end, +inf still means no answer."""
    lost = int(np.isinf(values).sum())
    mean = float((1000 / values).mean()) if len(values) and not lost else None
    found = (_inverse(q) for q in quantiles(values, ps))
    return Row(metric, view, len(values), lost, mean, tuple(found))


def _inverse(q: Quantile) -> Quantile:
    value, fast, slow = (v if v is None or math.isinf(v) else 1000 / v for v in (q.value, q.low, q.high))
    return replace(q, value=value, low=slow, high=fast)


def _in_ms(ns: Quantile) -> Quantile:
    value, low, high = (None if v is None else v / 1e6 for v in (ns.value, ns.low, ns.high))
    return replace(ns, value=value, low=low, high=high)


def offered(rows: Sequence[Row], metric: str) -> tuple[Quantile, ...]:
    """The quantiles of a metric of everything offered; none where it has no sample."""
    found = [row for row in rows if (row.metric.name, row.view) == (metric, OFFERED) and row.n]
    return found[0].quantiles if found else ()


def sample(metric: Metric, steady: Steady, view: str) -> tuple[Floats, Ints | None]:
    """Values in ms in arrival order, and how many each request has where it may have several."""
    if metric.level == metrics.CHUNK:
        return metric.ns(steady) / 1e6, steady.gap_counts
    values = offered_ms(metric, steady) if view == OFFERED else metric.ns(steady) / 1e6
    return values[~np.isnan(values)], None


def offered_ms(metric: Metric, steady: Steady) -> Floats:
    """One value per request: +inf without an answer, NaN if it is not part of the offered view."""
    values = metric.ns(steady) / 1e6
    return np.where(np.isnan(values), metrics.failed(steady, metric), values)


def beyond(steady: Steady) -> str:
    """What a quantile that falls on requests without answer is called."""
    ended = steady.requests["ended"]
    unanswered = ended[~ended.isin((schema.OK, schema.CANCELLED))]
    return "> drain" if len(unanswered) and (unanswered == schema.CENSORED).all() else "failed"


def survival_quantiles(frames: Frames, of_target: Steady, beyond: str) -> list[Json]:
    """Waits without abandonment: Kaplan-Meier over users who gave up and requests that the drain cut off.

    Only metrics of which more than 0.1% of the waits were cut short. A wait that was cut short was longer than seen; a
    request that failed is slower than any. Leaving must not depend on the rest of the wait, which holds for users drawn by
    lot and for the end of a run.
    """
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
            found = waits(times[counted] / 1e6, seen[counted], WAIT_PS)
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
