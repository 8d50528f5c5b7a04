"""The client's share of each reported figure: by how much it may be off because of us, and what follows.

For every reported percentile two values are known: from the lower ends of all ranges of timestamps, and from the upper ends,
which the tables show. Their difference, and for times since scheduled what late sending adds to the lower one, is its error.
A figure is DEGRADED above 5% of it, a quarter of the half width of its interval, or 0.5 ms, whichever is most, and INVALID
above 10% or 1 ms; for chunk gaps above 100 ms 10 ms are too much in any case. The run takes the worst of the figures that
an objective or the headline uses.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from tailgauge.thresholds import DEGRADED, INVALID, VALID
from tailgauge_analysis.metrics.latency import OFFERED, SUCCESSES, Row, sample
from tailgauge_analysis.metrics.metrics import ATTEMPT, BY_NAME, CHUNK, NEITHER, RATE, SCHEDULED, Metric
from tailgauge_analysis.metrics.steady import Steady, worst_of
from tailgauge_analysis.reading.dedup import CALL
from tailgauge_analysis.stats.quantiles import CLIENT, TOO_FEW, Floats, Quantile, rank
from tailgauge_analysis.text.formatting import percentile

HEADLINE = ("join_sched", "turnaround")  # what a user waits for who has no TTFT
SHARE, OF_HALF_WIDTH, FLOOR_MS = 0.05, 0.25, 0.5
SHARE_MOST, MOST_MS = 0.10, 1.0
LONG_GAP_MS, LONG_GAP_MOST_MS = 100.0, 10.0
LATE = 3  # requests that were sent late by more than the limit; fewer shift nothing
_RANGES = {  # times that have a lower end, and it
    f"{event}_at_ns": f"{event}_low_at_ns"
    for event in ("first", "first_content", "first_text", "last_content")
}


@dataclass(frozen=True, slots=True)
class ClientError:
    """One reported percentile, in ms."""

    metric: str
    title: str
    view: str
    quantile: float
    lows_value: float
    highs_value: float
    late_shift: float
    error_ms: float
    limit_ms: float
    verdict: str
    is_used: bool

    @property
    def label(self) -> str:
        """`TTFT since scheduled p99`."""
        return f"{self.title} {percentile(self.quantile)}"


Used = set[tuple[str, float]]  # metric, quantile


def client_errors(stage: Steady, rows: Sequence[Row], used: Used) -> list[ClientError]:
    """The error of every percentile that has a value."""
    variants = _Variants.of(stage)
    of_successes = {(row.metric.name, q.p) for row in rows if row.view == SUCCESSES for q in row.quantiles}
    out = []
    for row in rows:
        if row.metric.level == ATTEMPT or row.metric.unit == RATE or row.metric.name == "client_delay":
            continue
        again = of_successes if row.view == OFFERED and not row.without_answer else set()  # the same numbers
        known = [q for q in row.quantiles if q.mark != TOO_FEW and (row.metric.name, q.p) not in again]
        known = [q for q in known if q.value is not None and np.isfinite(q.value)]
        if known:
            out += _errors(row, known, variants, used)
    return out


def of_headline(rows: Sequence[Row], *, closed: bool) -> Used:
    """The percentiles that the headline may show; a user of a closed loop waits since sending."""
    names = ("ttft_sent" if closed else "ttft_sched", *HEADLINE)
    shown = next((name for name in names for row in rows if row.metric.name == name and row.n), "")
    known = [row.quantiles for row in rows if row.metric.name == shown]
    ps = [[q.p for q in of if q.mark != TOO_FEW and q.p <= 0.99] for of in known]
    return {(shown, p) for of in ps for p in (*of[:1], *of[-1:])}


def marked(rows: Sequence[Row], errors: Sequence[ClientError]) -> list[Row]:
    """The rows, each figure marked whose error is above its limit."""
    bad = {(e.metric, e.view, e.quantile) for e in errors if e.verdict != VALID}

    def mark(row: Row, q: Quantile) -> Quantile:
        name = "tpot" if row.metric.unit == RATE else row.metric.name
        view = row.view if row.without_answer else SUCCESSES
        return replace(q, mark=CLIENT) if (name, view, q.p) in bad and q.mark != TOO_FEW else q

    return [replace(row, quantiles=tuple(mark(row, q) for q in row.quantiles)) for row in rows]


@dataclass(frozen=True, slots=True)
class _Variants:
    """The stage as it was timed; with every range at its low end; with the shortest and the longest time between two
    ranges; and with every range at its low end as if nothing had been sent late, with the lateness of each request."""

    timed: Steady
    early: Steady
    shortest: Steady
    longest: Steady
    punctual: Steady
    late_ns: npt.NDArray[Any]

    @classmethod
    def of(cls, stage: Steady) -> _Variants:
        requests, ranges = stage.requests, stage.gap_ranges
        width = {at: (requests[at] - requests[low]).fillna(0.0) for at, low in _RANGES.items()}
        alone = (requests["legs"] <= 1).astype(float)
        low = {at: requests[at] - by for at, by in width.items()}
        low["whole_at_ns"] = requests["whole_at_ns"] - width["last_content_at_ns"] * alone
        ends = ("last_content_at_ns", "whole_at_ns")
        begins = ("first_at_ns", "first_content_at_ns", "first_text_at_ns", "pace_from_ns")
        is_first = requests["pace_from_ns"] == requests["first_content_at_ns"]
        widths = width["first_content_at_ns"].where(is_first, width["first_text_at_ns"])
        low["pace_from_ns"] = requests["pace_from_ns"] - widths
        short_gaps = long_gaps = stage.gaps_ns
        if len(ranges.at):
            short_gaps, long_gaps = stage.gaps_ns.copy(), stage.gaps_ns.copy()
            short_gaps[ranges.at[~ranges.begins]] -= ranges.ns[~ranges.begins]
            np.maximum(short_gaps, 0, out=short_gaps)
            long_gaps[ranges.at[ranges.begins]] += ranges.ns[ranges.begins]

        def stage_with(gaps: Floats, columns: dict[str, pd.Series[float]]) -> Steady:
            worst = worst_of(gaps, stage.gap_counts)
            return replace(stage, requests=requests.assign(**columns, worst_gap_ns=worst), gaps_ns=gaps)

        late_ns = _late_ns(stage)
        as_sent = requests["scheduled_at_ns"] + late_ns
        return cls(
            timed=stage,
            early=replace(stage, requests=requests.assign(**low)),
            shortest=stage_with(short_gaps, {at: low[at] for at in ends}),
            longest=stage_with(long_gaps, {at: low[at] for at in begins}),
            punctual=replace(stage, requests=requests.assign(**low, scheduled_at_ns=as_sent)),
            late_ns=late_ns.to_numpy(np.float64),
        )


def _late_ns(stage: Steady) -> pd.Series[float]:
    """How late each request was sent; the attempt that answered adds its wait for a connection if it was a later one."""
    requests = stage.requests
    late = pd.Series(BY_NAME["client_delay"].ns(stage), requests.index).clip(lower=0.0).fillna(0.0)
    key = list(CALL)
    waits = stage.attempts[[*key, "pool_wait_ns"]]
    waits = waits[(waits["leg"] > 0) | (waits["attempt"] > 0)]
    answers = requests[["request_id", "answer_leg", "answer_attempt"]].set_axis(key, axis=1)
    more = answers.merge(waits.drop_duplicates(key), on=key, how="left")["pool_wait_ns"]
    both: pd.Series[float] = late + more.fillna(0.0).to_numpy()
    return both


def _errors(row: Row, known: list[Quantile], variants: _Variants, used: Used) -> list[ClientError]:
    metric, ps = row.metric, [q.p for q in known]
    low, high = variants.early, variants.timed
    if metric.since == NEITHER:
        low, high = variants.shortest, variants.longest
    on_time = variants.punctual if metric.since == SCHEDULED else low
    lows, highs, punctual = (_values(metric, stage, row.view, ps) for stage in (low, high, on_time))
    out = []
    for q, least, most, due in zip(known, lows, highs, punctual, strict=True):
        if not np.isfinite((least, most, due)).all():  # among requests without answer
            continue
        limit, too_much = _limits(metric, q)
        late = int((variants.late_ns > limit * 1e6).sum()) >= LATE
        shift = max(0.0, least - due) if metric.since == SCHEDULED and late else 0.0
        error = max(0.0, most - least) + shift
        verdict = VALID if error <= limit else INVALID if error > too_much else DEGRADED
        of, is_used = (metric.name, metric.title, row.view, q.p), (metric.name, q.p) in used
        out.append(ClientError(*of, least, most, shift, error, limit, verdict, is_used))
    return out


def allowed(q: Quantile, least_ms: float) -> float:
    """By how much a percentile may be off: 5% of it, a quarter of the half width of its interval, or `least_ms`."""
    value = q.value or 0.0
    ends = [abs(end - value) for end in (q.low, q.high) if end is not None and np.isfinite(end)]
    return max(SHARE * value, OF_HALF_WIDTH * (sum(ends) / len(ends) if ends else 0.0), least_ms)


def _limits(metric: Metric, q: Quantile) -> tuple[float, float]:
    """Above the first a figure is DEGRADED, above the second INVALID."""
    value, limit = q.value or 0.0, allowed(q, FLOOR_MS)
    most = max(SHARE_MOST * value, MOST_MS)
    if metric.name.startswith("chunk_gap") and value > LONG_GAP_MS:
        return min(limit, LONG_GAP_MOST_MS), min(most, LONG_GAP_MOST_MS)
    return limit, most


def _values(metric: Metric, stage: Steady, view: str, ps: Sequence[float]) -> list[float]:
    """The percentiles of one variant, in ms."""
    values = stage.gaps_ns if metric.level == CHUNK else sample(metric, stage, view)[0]
    at = [rank(len(values), p) - 1 for p in ps]
    scale = 1e6 if metric.level == CHUNK else 1.0
    return [float(value) / scale for value in np.partition(values, at)[at]]
