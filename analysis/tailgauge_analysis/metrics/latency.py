"""The latency table: every metric's quantiles, among successes and of everything offered.

Two views, never mixed. `successes` are the requests with a complete answer (ok or cut) that have the event. `offered` adds every request of such
a pattern that failed, whatever the reason (error, refusal, timeout, dropped before it was sent), as slower than any success, so that
failing fast never looks fast, and every one whose user left or that was still open at the end as a wait that was cut short
(stats/survival.py). What was seen before counts. A pace is no wait: of a request that its user left it is not known.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import pandas as pd

from tailgauge.rows import schema
from tailgauge_analysis.metrics import metrics, pace
from tailgauge_analysis.metrics.answers import LEFT
from tailgauge_analysis.metrics.metrics import BY_NAME, PACED, RATE, UNIT, Metric
from tailgauge_analysis.metrics.steady import Steady
from tailgauge_analysis.stats.proportions import Proportion, counted
from tailgauge_analysis.stats.quantiles import (
    HIDDEN_TOKENS,
    TIE,
    TOO_FEW,
    Floats,
    Ints,
    Quantile,
    quantiles,
)
from tailgauge_analysis.stats.survival import Waits

QUANTILES = (0.5, 0.9, 0.95, 0.99, 0.999)
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
        """Return the share beyond a bound; of nothing where the values are not kept."""
        if self.waits is None:
            return counted(0, 0)
        return self.waits.beyond(max_ms)


def table(steady: Steady) -> list[Row]:
    """Return every metric in every view that it has."""
    rows: list[Row] = []
    for metric in BY_NAME.values():
        rows += [row(metric, steady, view) for view in views(metric)]
    return rows


def of_tasks(rows: Sequence[Row]) -> list[Row]:
    """Rows of users without a schedule, in their words: they wait from when their task made the request."""
    renamed = []
    for row in rows:
        title = row.metric.title.replace(" since scheduled", " since requested")
        renamed.append(replace(row, metric=replace(row.metric, title=title)))
    return renamed


def shown(rows: Sequence[Row], view: str, *, is_coalesced: bool) -> list[Row]:
    """Return the rows of a view, in ms, that a table shows: each with a value, and none that repeats another.

    `is_coalesced`: chunks have several tokens, so that the correction for it (tpot_c) is shown.
    """
    of_view = []
    for row in rows:
        is_of_view = row.n and row.view == view and row.metric.unit == UNIT
        # Where all requests have an answer, the offered view repeats that of the successes.
        if is_of_view and (view != OFFERED or row.without_answer):
            of_view.append(row)
    hidden = set()
    ttft_quantiles = []
    if not is_coalesced:
        hidden.add("tpot_c")
    for row in of_view:
        # The pace by chunks stands in for a TPOT that hidden tokens may falsify.
        if row.metric.name == "tpot" and row.quantiles[0].mark != HIDDEN_TOKENS:
            hidden.add("chunk_pace")
        if row.metric.name == "ttft_sched":
            ttft_quantiles.append(row.quantiles)
    listed = []
    for row in of_view:
        is_repeated = (
            row.metric.name in {"ttft_text", "ttft_event"} and row.quantiles in ttft_quantiles
        )
        if row.metric.name not in hidden and not is_repeated:
            listed.append(row)
    return listed


def columns(rows: Sequence[Row]) -> int:
    """Return how many percentiles a table shows: what a user waits decides on p99.9."""
    has_last = rows[0].quantiles[-1].mark != TOO_FEW
    return len(rows[0].quantiles) - (not has_last)


def first_table(rows: Sequence[Row], *, is_coalesced: bool) -> list[Row]:
    """Rows of the first latency table with the percentiles that it shows.

    Where it is of everything offered, those join it that only successes have, such as chunk gaps.
    """
    listed = shown(rows, OFFERED, is_coalesced=is_coalesced)
    names = {row.metric.name for row in listed}
    of_successes = shown(rows, SUCCESSES, is_coalesced=is_coalesced)
    listed += [row for row in of_successes if row.metric.name not in names]
    if not listed:
        return []
    column_count = columns(listed)
    shortened = []
    for row in listed:
        shortened.append(replace(row, quantiles=row.quantiles[:column_count]))
    return shortened


def by_traffic(steady: Steady, whole: list[Row]) -> dict[str, list[Row]]:
    """Return the latency rows of each traffic table; `whole`: the rows of all of them together."""
    codes, names = pd.factorize(steady.requests["traffic"])
    if len(names) == 1:
        return {str(names[0]): whole}
    tables = {}
    for code, name in enumerate(names):
        tables[str(name)] = table(steady.only(codes == code))
    return tables


def views(metric: Metric) -> tuple[str, ...]:
    """Return the views that a metric has."""
    if metric.offered:
        return (SUCCESSES, OFFERED)
    return (SUCCESSES,)


def row(metric: Metric, steady: Steady, view: str, ps: tuple[float, ...] = QUANTILES) -> Row:
    """Return the quantiles `ps` of one metric in one view: SUCCESSES, or OFFERED with failures as slower than any success.

    Values are in ms, of a rate in tokens/s. `waits`, all values of the row, is kept of one row per metric only, that of its
    last view, and neither of rates nor of chunk gaps.
    """
    if metric.level == metrics.CHUNK:
        # There may be a hundred million gaps: they stay in ns to avoid a copy.
        ns = metric.ns(steady)
        in_ns = quantiles(ns, ps, steady.gap_counts, steady.groupings, tie=TIE * 1e6)
        pooled = tuple(map(_in_ms, in_ns))
        mean_ms = None
        if len(ns):
            mean_ms = float(ns.mean()) / 1e6
        return Row(
            metric=metric, view=view, n=len(ns), without_answer=0, mean=mean_ms, quantiles=pooled
        )
    every = waits(metric, steady, view)
    n = len(every.ms)
    lost = int((~every.seen).sum())
    percentiles = tuple(every.quantiles(ps))
    if n and metric.of == metrics.TURNAROUNDS:
        # A batch or job ended somewhere between two polls: the interval begins where it ended right after the earlier one.
        percentiles = within_polls(
            percentiles, waits(metric, before_polls(steady), view).quantiles(ps)
        )
    if metric.name in PACED and pace.ambiguous(steady.requests):
        percentiles = tuple(map(_hidden_possible, percentiles))
    values = every.values
    bounded_waits = None
    if metric.unit == RATE:
        # All was computed of ms per token.
        values = 1000 / values
        percentiles = tuple(map(_inverse, percentiles))
    elif view == views(metric)[-1]:
        bounded_waits = every
    mean = None
    if n and not lost:
        mean = float(values.mean())
    return Row(
        metric=metric,
        view=view,
        n=n,
        without_answer=lost,
        mean=mean,
        quantiles=percentiles,
        waits=bounded_waits,
    )


def _hidden_possible(q: Quantile) -> Quantile:
    if q.mark == TOO_FEW:
        return q
    return replace(q, mark=HIDDEN_TOKENS)


def _inverse(q: Quantile) -> Quantile:
    """Tokens per second from ms per token: the slow end stays the high end, +inf still means no answer."""
    value, fast, slow = map(_tokens_per_s, (q.value, q.low, q.high))
    return replace(q, value=value, low=slow, high=fast)


def _tokens_per_s(ms_per_token: float | None) -> float | None:
    if ms_per_token is None or math.isinf(ms_per_token):
        return ms_per_token
    return 1000 / ms_per_token


def _in_ms(ns: Quantile) -> Quantile:
    value, low, high = map(_ms, (ns.value, ns.low, ns.high))
    return replace(ns, value=value, low=low, high=high)


def _ms(ns: float | None) -> float | None:
    if ns is None:
        return None
    return ns / 1e6


def before_polls(steady: Steady) -> Steady:
    """Return the stage as if each job had ended right after the last poll at which it was under way."""
    requests = steady.requests
    ended_low = requests["ended_low_at_ns"].fillna(requests["ended_at_ns"])
    return replace(steady, requests=requests.assign(ended_at_ns=ended_low))


def within_polls(
    measured: Sequence[Quantile], earliest: Sequence[Quantile]
) -> tuple[Quantile, ...]:
    """Quantiles whose intervals begin with those of the earliest times at which jobs can have ended."""
    ranges = []
    for quantile, early in zip(measured, earliest, strict=True):
        low = quantile.low
        if low is not None and early.low is not None:
            low = min(low, early.low)
        ranges.append(replace(quantile, low=low))
    return tuple(ranges)


def sample(metric: Metric, steady: Steady, view: str) -> tuple[Floats, Ints | None]:
    """Values in ms in arrival order, and how many each request has where it may have several."""
    if metric.level == metrics.CHUNK:
        return metric.ns(steady) / 1e6, steady.gap_counts
    return waits(metric, steady, view).values, None


def waits(metric: Metric, steady: Steady, view: str) -> Waits:
    """Return the requests of the view, in arrival order."""
    if view == OFFERED and metric.offered:
        every = offered_waits(metric, steady)
        return every.only(~np.isnan(every.ms))
    ms = metric.ns(steady) / 1e6
    groupings = steady.groupings if metric.level == metrics.REQUEST else ()
    every = Waits(ms, np.ones(len(ms), np.bool_), np.zeros(len(ms), np.bool_), groupings)
    return every.only(~np.isnan(ms))


def offered_ms(metric: Metric, steady: Steady) -> Floats:
    """Return one value per request: +inf without an answer, NaN if it is not part of the offered view."""
    every = offered_waits(metric, steady)
    return np.where(np.isnan(every.ms), np.nan, every.values)


def offered_waits(metric: Metric, steady: Steady) -> Waits:
    """Return one wait per request in ms, NaN if it is not part of the offered view.

    `seen`: the wait ended with the event that the metric measures. `cut`: its user left or the run ended before, so that it
    would have been longer. Where neither holds, the request failed: it never gets an answer.
    """
    requests = steady.requests
    ms = metric.ns(steady) / 1e6
    ended = requests["ended"]
    # Requests of a kind that can have the metric.
    can_have = requests["answer"].isin(metric.of).to_numpy(np.bool_)
    abandoned = can_have & ended.isin(LEFT).to_numpy(np.bool_)
    if metric.before_leaving is not None:
        ms = np.where(abandoned, metric.before_leaving(steady) / 1e6, ms)
    has_value = ~np.isnan(ms)
    is_ok = ended.isin(schema.COMPLETE).to_numpy(np.bool_)
    if metric.since == metrics.NEITHER:
        # A pace is no wait: nothing is known of a request that its user left.
        failed = can_have & ~has_value & ~is_ok & (ended != schema.CANCELLED).to_numpy(np.bool_)
        cut = np.zeros(len(ms), np.bool_)
        return Waits(np.where(failed, 0.0, ms), has_value, cut, steady.groupings)
    sent = requests["left_sent_at_ns"].fillna(requests["first_sent_at_ns"])
    start = sent
    if metric.since == metrics.SCHEDULED:
        start = requests["scheduled_at_ns"]
    waited = ((requests["over_at_ns"] - start) / 1e6).fillna(0.0).clip(lower=0.0)
    if metric.before_leaving is None:
        # Who leaves after so many chunks leaves sooner, the faster the answer: how long they waited says nothing.
        waited = waited.mask(requests["left_by_pace"], 0.0)
    ms = np.where(can_have & ~has_value & ~is_ok, waited, ms)
    return Waits(ms, has_value, abandoned & ~has_value, steady.groupings)
