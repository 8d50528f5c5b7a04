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
from tailgauge_analysis.metrics import metrics
from tailgauge_analysis.metrics.metrics import METRICS, RATE, Metric
from tailgauge_analysis.metrics.steady import Steady
from tailgauge_analysis.stats.quantiles import Floats, Ints, Quantile, quantiles

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
