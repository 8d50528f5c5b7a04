"""The latency table: every metric's quantiles, among successes and of everything offered.

Two views, never mixed. `successes` are the requests with a complete answer (ok or cut) that have the event. `offered` adds every request of such
a pattern that failed, whatever the reason (error, refusal, timeout, dropped before it was sent), as slower than any success, so that
failing fast never looks fast, and every one whose user left or that was still open at the end as a wait that was cut short
(stats/survival.py). What was seen before counts. A pace is no wait: of a request that its user left it is not known.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np
import pandas as pd

from tailgauge.rows import schema
from tailgauge_analysis.metrics import metrics
from tailgauge_analysis.metrics.answers import LEFT
from tailgauge_analysis.metrics.metrics import BY_NAME, RATE, Metric
from tailgauge_analysis.metrics.steady import Steady
from tailgauge_analysis.stats.proportions import Proportion, counted
from tailgauge_analysis.stats.quantiles import Floats, Ints, Quantile, quantiles
from tailgauge_analysis.stats.survival import Waits

PS = (0.5, 0.9, 0.95, 0.99, 0.999)
SUCCESSES = "successes"
OFFERED = "offered"


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
    waits: Waits | None = None

    def beyond(self, max_ms: float) -> Proportion:
        """The share beyond a bound; of nothing where the values are not kept."""
        return counted(0, 0) if self.waits is None else self.waits.beyond(max_ms)


def table(steady: Steady) -> list[Row]:
    """Every metric in every view that it has."""
    return [row(metric, steady, view) for metric in BY_NAME.values() for view in views(metric)]


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
    if metric.level == metrics.CHUNK:  # there may be a hundred million gaps: they stay in ns to avoid a copy
        ns = metric.ns(steady)
        pooled = tuple(map(_in_ms, quantiles(ns, ps, steady.gap_counts)))
        return Row(metric, view, len(ns), 0, float(ns.mean()) / 1e6 if len(ns) else None, pooled)
    every = waits(metric, steady, view)
    n = len(every.ms)
    lost = int((~every.seen).sum())
    found = tuple(every.quantiles(ps))
    values = 1000 / every.values if metric.unit == RATE else every.values
    mean = float(values.mean()) if n and not lost else None
    if metric.unit == RATE:
        return Row(metric, view, n, lost, mean, tuple(map(_inverse, found)))
    return Row(metric, view, n, lost, mean, found, every if view == views(metric)[-1] else None)


def _inverse(q: Quantile) -> Quantile:
    """Tokens per second from ms per token: the slow end stays the high end, +inf still means no answer."""
    value, fast, slow = (v if v is None or math.isinf(v) else 1000 / v for v in (q.value, q.low, q.high))
    return replace(q, value=value, low=slow, high=fast)


def _in_ms(ns: Quantile) -> Quantile:
    value, low, high = (None if v is None else v / 1e6 for v in (ns.value, ns.low, ns.high))
    return replace(ns, value=value, low=low, high=high)


def sample(metric: Metric, steady: Steady, view: str) -> tuple[Floats, Ints | None]:
    """Values in ms in arrival order, and how many each request has where it may have several."""
    if metric.level == metrics.CHUNK:
        return metric.ns(steady) / 1e6, steady.gap_counts
    return waits(metric, steady, view).values, None


def waits(metric: Metric, steady: Steady, view: str) -> Waits:
    """The requests of the view, in arrival order."""
    if view == OFFERED and metric.offered:
        every = offered_waits(metric, steady)
        return every.only(~np.isnan(every.ms))
    ms = metric.ns(steady) / 1e6
    ms = ms[~np.isnan(ms)]
    return Waits(ms, np.ones(len(ms), np.bool_), np.zeros(len(ms), np.bool_))


def offered_ms(metric: Metric, steady: Steady) -> Floats:
    """One value per request: +inf without an answer, NaN if it is not part of the offered view."""
    every = offered_waits(metric, steady)
    return np.where(np.isnan(every.ms), np.nan, every.values)


def offered_waits(metric: Metric, steady: Steady) -> Waits:
    """One wait per request, NaN if it is not part of the offered view."""
    requests = steady.requests
    ms = metric.ns(steady) / 1e6
    ended = requests["ended"]
    could = requests["answer"].isin(metric.of).to_numpy(np.bool_)
    left = could & ended.isin(LEFT).to_numpy(np.bool_)
    if metric.before_leaving is not None:
        ms = np.where(left, metric.before_leaving(steady) / 1e6, ms)
    seen = ~np.isnan(ms)
    is_ok = ended.isin(schema.COMPLETE).to_numpy(np.bool_)
    if metric.since == metrics.NEITHER:
        failed = could & ~seen & ~is_ok & (ended != schema.CANCELLED).to_numpy(np.bool_)
        return Waits(np.where(failed, 0.0, ms), seen, np.zeros(len(ms), np.bool_))
    sent = requests["left_sent_at_ns"].fillna(requests["first_sent_at_ns"])
    start = requests["scheduled_at_ns"] if metric.since == metrics.SCHEDULED else sent
    waited = ((requests["over_at_ns"] - start) / 1e6).fillna(0.0).clip(lower=0.0)
    if metric.before_leaving is None:
        waited = waited.mask(requests["left_by_pace"], 0.0)
    return Waits(np.where(could & ~seen & ~is_ok, waited, ms), seen, left & ~seen)
