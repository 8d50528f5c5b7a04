"""The client's share of each reported figure: by how much it may be off because of us, and what follows.

For every reported percentile two values are known: from the lower ends of all ranges of timestamps, and from the upper ends,
which the tables show. Their difference, and for times since scheduled what late sending adds to the lower one, is its error.
A figure is DEGRADED above 5% of it, a quarter of the half width of its interval, or 0.5 ms, whichever is most, and INVALID
above 10% or 1 ms; for chunk gaps above 100 ms 10 ms are too much in any case.

distortion.py makes the run's verdict of it. A run is VALID if each figure that an objective bounds or the first latency
table shows is VALID. It is INVALID only if an INVALID figure may have changed its answer: the outcome of an objective, or where none
bounds a latency, a TTFT or an e2e.

Chunks that a proxy or an engine sent together arrived together: their ranges are no error of the client.

A job ended between two polls. Its turnaround may be off by so much too; the interval of the figure has it, and so has the limit.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import pandas as pd

from tailgauge.thresholds import DEGRADED, INVALID, VALID
from tailgauge_analysis.metrics.latency import (
    OFFERED,
    SUCCESSES,
    Row,
    before_polls,
    first_table,
    sample,
)
from tailgauge_analysis.metrics.metrics import (
    ATTEMPT,
    BY_NAME,
    CHUNK,
    NEITHER,
    RATE,
    SCHEDULED,
    TURNAROUNDS,
)
from tailgauge_analysis.metrics.pieces import sampled
from tailgauge_analysis.metrics.steady import Steady, worst_of
from tailgauge_analysis.reading.frames import CALL
from tailgauge_analysis.stats.quantiles import CLIENT, TOO_FEW, Floats, Quantile, rank
from tailgauge_analysis.text.formatting import listed, ms, percentile, plural, within_sentence

HEADLINE = ("join_sched", "turnaround")  # what a user waits for who has no TTFT
NOTICED_MS = 0.1  # an error below it is none to a reader
FIGURES_LISTED = 3
SHARE = 0.05
OF_HALF_WIDTH = 0.25
FLOOR_MS = 0.5
SHARE_MOST = 0.10
MOST_MS = 1.0
LONG_GAP_MS = 100.0
LONG_GAP_MOST_MS = 10.0
LATE = 3  # requests that were sent late by more than the limit; fewer shift nothing
SPLIT_TIMES = 2  # the share of split ones may be so much larger
# The time of these events has a lower end.
RANGES = ("first", "first_content", "first_text", "shown_text", "last_content")
# A run without objectives answers with these metrics.
ANSWERS = ("ttft_sched", "ttft_sent", "e2e_sched", "e2e_sent", *HEADLINE)

Columns = dict[str, "pd.Series[float]"]
Figures = set[tuple[str, float]]  # metric, quantile


@dataclass(frozen=True, slots=True, kw_only=True)
class Uses:
    """Percentiles that the first latency table shows, and those on which the answer of the run rests: with the bounds of its
    objectives in ms, or without where the answer is the figure itself.
    """

    shown: Figures
    deciding: dict[tuple[str, float], list[float]]


NO_FIGURES_USED = Uses(shown=set(), deciding={})


@dataclass(frozen=True, slots=True, kw_only=True)
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
    decides: bool
    moved_ms: float
    """by how much the client moved it at most: the error without what polls leave open, with sends that were late by less than the limit"""
    polls_ms: float = 0.0
    """of the error, what polls leave open"""

    @property
    def label(self) -> str:
        """`TTFT since scheduled p99`."""
        return f"{self.title} {percentile(self.quantile)}"

    @property
    def excess(self) -> float:
        """The error as a multiple of its limit."""
        return self.error_ms / self.limit_ms


def client_errors(stage: Steady, rows: Sequence[Row], uses: Uses) -> list[ClientError]:
    """Return by how much the client may have moved each percentile, with its verdict; those without a value are left out.

    `stage`: the requests of the rows. `uses`: which percentiles the report shows first, and which decide its answer. A row of all
    offered requests that repeats that of the successes is left out, as are metrics of connections, rates and client_delay itself.
    """
    of_successes: Figures = set()
    for row in rows:
        if row.view == SUCCESSES:
            of_successes |= {(row.metric.name, q.p) for q in row.quantiles}
    judged = []
    for row in rows:
        name = row.metric.name
        if row.metric.level == ATTEMPT or row.metric.unit == RATE or name == "client_delay":
            continue
        has_same_numbers = row.view == OFFERED and not row.without_answer
        quantiles = []
        for q in row.quantiles:
            has_value = q.mark != TOO_FEW and q.value is not None and np.isfinite(q.value)
            if has_value and not (has_same_numbers and (name, q.p) in of_successes):
                quantiles.append(q)
        if quantiles:
            judged.append((row, quantiles))
    # Each percentile is taken twice: with all timestamps at the lower ends of their ranges, and at the upper ones.
    variants = _Variants(stage)
    all_lows = _values_of_rows(judged, variants.early, variants.shortest())
    all_highs = _values_of_rows(judged, variants.timed, variants.longest())
    errors = []
    for (row, quantiles), lows, highs in zip(judged, all_lows, all_highs, strict=True):
        errors += _errors(row, quantiles, variants, uses, lows=lows, highs=highs)
    return errors


def effect(errors: Sequence[ClientError]) -> str:
    """Return which figures the client may have moved, and by how much at most, in a sentence; empty where no figure is used.

    Used are those that the report shows first or an objective bounds. Less than NOTICED_MS is not worth a name.
    """
    used = [error for error in errors if error.is_used]
    if not used:
        return ""
    # A figure has one label in both views: the one that was moved most counts.
    worst: dict[str, ClientError] = {}
    for error in sorted(used, key=lambda error: -error.moved_ms):
        worst.setdefault(error.label, error)
    noticed = [error for error in worst.values() if error.moved_ms >= NOTICED_MS]
    if not noticed:
        return f"The client moved no figure by {ms(NOTICED_MS)} ms or more."
    texts = []
    for error in noticed[:FIGURES_LISTED]:
        remark = "" if error.verdict == VALID else " (above its limit)"
        texts.append(f"{within_sentence(error.label)} by at most {ms(error.moved_ms)} ms{remark}")
    if noticed[FIGURES_LISTED:]:
        texts.append(f"{plural(len(noticed) - FIGURES_LISTED, 'other figure')} by less")
    within = ", each within its limit" if len(noticed) > 1 else ", within its limit"
    are_valid = all(error.verdict == VALID for error in used)
    return f"The client moved {listed(texts)}{within if are_valid else ''}."


def of_first_table(rows: Sequence[Row], *, closed: bool, is_coalesced: bool) -> Figures:
    """Return the percentiles that the first latency table shows; a user of a closed loop waits since sending."""
    used: Figures = set()
    for row in first_table(rows, is_coalesced=is_coalesced):
        if closed and row.metric.since == SCHEDULED and row.metric.name not in HEADLINE:
            continue
        for q in row.quantiles:
            if q.mark != TOO_FEW:
                used.add((row.metric.name, q.p))
    return used


def without_objective(figures: Figures) -> Uses:
    """Return what a run uses whose objectives bound no latency."""
    deciding: dict[tuple[str, float], list[float]] = {}
    for name, p in figures:
        if name in ANSWERS:
            deciding[name, p] = []
    return Uses(shown=figures, deciding=deciding)


def marked(rows: Sequence[Row], errors: Sequence[ClientError]) -> list[Row]:
    """Return the rows with a mark (CLIENT) on each percentile whose error is above its limit."""
    bad = set()
    for error in errors:
        if error.verdict != VALID:
            bad.add((error.metric, error.view, error.quantile))
    rows_marked = []
    for row in rows:
        # A rate is the inverse of TPOT, whose error was judged; views without failures share the error of the successes.
        name = "tpot" if row.metric.unit == RATE else row.metric.name
        view = row.view if row.without_answer else SUCCESSES
        quantiles = []
        for q in row.quantiles:
            is_moved = (name, view, q.p) in bad and q.mark != TOO_FEW
            if is_moved:
                quantiles.append(replace(q, mark=CLIENT))
            else:
                quantiles.append(q)
        rows_marked.append(replace(row, quantiles=tuple(quantiles)))
    return rows_marked


class _Variants:
    """The stage as it was `timed`; with every range at its low end (`early`); with the `shortest` and the `longest` time
    between two ranges; and with every range at its low end as if nothing had been sent late (`punctual`).
    """

    def __init__(self, stage: Steady) -> None:
        """Keep the stage as it was timed and, with the same gaps, with other times of its requests.

        `early`: every time at the low end of its range; `punctual`: also as if nothing had been sent late. `_begins`, `_ends`: the
        low ends of times at which an interval begins or ends.
        """
        requests = stage.requests
        late_ns = _late_ns(stage)
        lows = _lows(requests)
        as_sent = requests["scheduled_at_ns"] + late_ns
        self.late_ns = late_ns.to_numpy(np.float64)
        self.timed = stage
        self.early = replace(stage, requests=requests.assign(**lows))
        self.punctual = replace(stage, requests=requests.assign(**lows, scheduled_at_ns=as_sent))
        self._begins = dict(lows)
        self._ends = {}
        for name in ("last_content_at_ns", "whole_at_ns"):
            self._ends[name] = self._begins.pop(name)
        self._range_ns = np.empty(0)
        if len(stage.gap_ranges.gap):
            self._range_ns = _widths_ns(stage)

    def shortest(self) -> Steady:
        """Return a stage with gaps of its own: of a hundred million, one such stage at a time has room."""
        ranges = self.timed.gap_ranges
        gaps_ns = self.timed.gaps_ns
        if len(ranges.gap):
            gaps_ns = gaps_ns.copy()
            gaps_ns[ranges.gap[~ranges.begins]] -= self._range_ns[~ranges.begins]
            np.maximum(gaps_ns, 0, out=gaps_ns)
        return _with_gaps(self.timed, gaps_ns, self._ends)

    def longest(self) -> Steady:
        """Return a stage with gaps of its own, as `shortest` does."""
        ranges = self.timed.gap_ranges
        gaps_ns = self.timed.gaps_ns
        if len(ranges.gap):
            gaps_ns = gaps_ns.copy()
            gaps_ns[ranges.gap[ranges.begins]] += self._range_ns[ranges.begins]
        return _with_gaps(self.timed, gaps_ns, self._begins)


def _widths_ns(stage: Steady) -> Floats:
    """Return by how much each gap with a range may be off.

    Chunks of one read arrived together, unless others as close were split between two reads: of gaps as long as g, reads
    that are w apart split g / w.
    """
    ranges = stage.gap_ranges
    gaps_ns = sampled(stage.gaps_ns)
    separate = np.sort(gaps_ns[gaps_ns > 0])
    joined = int((stage.gaps_ns[ranges.gap[ranges.begins]] == 0).sum())
    if not joined:
        return ranges.ns
    joined_total = joined * len(gaps_ns) / len(stage.gaps_ns)
    split = np.searchsorted(separate, ranges.ns, "right")
    return ranges.ns * np.minimum(1.0, SPLIT_TIMES * split / (split + joined_total))


def _lows(requests: pd.DataFrame) -> Columns:
    """Return every time at the low end of its range."""
    lows = {f"{event}_at_ns": _low(requests, event) for event in RANGES}
    is_alone = requests["legs"] <= 1
    last_range = requests["last_content_at_ns"] - lows["last_content_at_ns"]
    lows["whole_at_ns"] = requests["whole_at_ns"] - last_range.fillna(0.0).where(is_alone, 0.0)
    is_first = requests["pace_from_ns"] == requests["first_content_at_ns"]
    pace_from = lows["first_content_at_ns"].where(is_first, lows["first_text_at_ns"])
    lows["pace_from_ns"] = pace_from.where(requests["pace_from_ns"].notna())
    return lows


def _low(requests: pd.DataFrame, event: str) -> pd.Series[float]:
    return requests[f"{event}_low_at_ns"].fillna(requests[f"{event}_at_ns"])


def _with_gaps(stage: Steady, gaps_ns: Floats, columns: Columns) -> Steady:
    worst_ns = worst_of(gaps_ns, stage.gap_counts)
    return replace(
        stage, requests=stage.requests.assign(**columns, worst_gap_ns=worst_ns), gaps_ns=gaps_ns
    )


def _late_ns(stage: Steady) -> pd.Series[float]:
    """Return how late each request was sent; the attempt that answered adds its wait for a connection if it was a later one."""
    requests = stage.requests
    late = pd.Series(BY_NAME["client_delay"].ns(stage), requests.index).clip(lower=0.0).fillna(0.0)
    key = list(CALL)
    waits = stage.attempts[[*key, "pool_wait_ns"]]
    waits = waits[(waits["leg"] > 0) | (waits["attempt"] > 0)]
    answers = requests[["request_id", "answer_leg", "answer_attempt"]].set_axis(key, axis=1)
    pool_wait = answers.merge(waits.drop_duplicates(key), on=key, how="left")["pool_wait_ns"]
    total: pd.Series[float] = late + pool_wait.fillna(0.0).to_numpy()
    return total


def _values_of_rows(
    judged: Sequence[tuple[Row, Sequence[Quantile]]], since_start: Steady, since_event: Steady
) -> list[list[float]]:
    """Return the percentiles of each row: in `between` of times that lie between two events of an answer."""
    values = []
    for row, quantiles in judged:
        variant = since_event if row.metric.since == NEITHER else since_start
        values.append(_values(row, variant, quantiles))
    return values


def _errors(
    row: Row,
    quantiles: Sequence[Quantile],
    variants: _Variants,
    uses: Uses,
    *,
    lows: Sequence[float],
    highs: Sequence[float],
) -> list[ClientError]:
    """Return the error of each percentile of a row.

    `lows`, `highs`: the percentiles in ms with all timestamps at the lower and at the upper ends of their ranges. The error is
    their difference; for metrics since scheduled, late sending adds to it. A job may have ended up to one poll earlier: so much
    is taken off the lower value, and added to error and limit alike. The verdict is without it.
    """
    metric = row.metric
    is_scheduled = metric.since == SCHEDULED
    punctual = lows
    if is_scheduled:
        punctual = _values(row, variants.punctual, quantiles)
    polled = highs
    if metric.of == TURNAROUNDS:
        polled = _values(row, before_polls(variants.timed), quantiles)
    errors = []
    for q, low_ms, high_ms, punctual_ms, polled_ms in zip(
        quantiles, lows, highs, punctual, polled, strict=True
    ):
        if not np.isfinite((low_ms, high_ms, punctual_ms)).all():  # among requests without answer
            continue
        limit_ms, most_ms = _limits_ms(metric.name, q)
        range_ms = max(0.0, high_ms - low_ms)
        late_ms = max(0.0, low_ms - punctual_ms)
        # A few late requests shift no percentile.
        are_late = is_scheduled and (variants.late_ns > limit_ms * 1e6).sum() >= LATE
        shift_ms = late_ms if are_late else 0.0
        error_ms = range_ms + shift_ms
        polls_ms = max(0.0, high_ms - polled_ms)
        error = ClientError(
            metric=metric.name,
            title=metric.title,
            view=row.view,
            quantile=q.p,
            lows_value=low_ms - polls_ms,
            highs_value=high_ms,
            late_shift=shift_ms,
            error_ms=error_ms + polls_ms,
            limit_ms=limit_ms + polls_ms,
            verdict=_verdict(error_ms, limit_ms, most_ms),
            is_used=(metric.name, q.p) in uses.shown | uses.deciding.keys(),
            decides=_decides(uses.deciding.get((metric.name, q.p)), q, high_ms, error_ms),
            moved_ms=range_ms + late_ms,
            polls_ms=polls_ms,
        )
        errors.append(error)
    return errors


def _decides(bounds_ms: list[float] | None, q: Quantile, high_ms: float, error_ms: float) -> bool:
    """Return whether an error may have changed the answer: a bound lies within the interval and what the client may have moved it by."""
    if bounds_ms is None or q.value is None:
        return False
    low = q.value if q.low is None else q.low
    high = q.value if q.high is None else q.high
    least_ms = low - error_ms
    most_ms = high + max(0.0, high_ms - q.value)
    return not bounds_ms or any(least_ms <= bound_ms <= most_ms for bound_ms in bounds_ms)


def _verdict(error_ms: float, limit_ms: float, most_ms: float) -> str:
    if error_ms <= limit_ms:
        return VALID
    return INVALID if error_ms > most_ms else DEGRADED


def allowed_ms(q: Quantile, least_ms: float) -> float:
    """By how much a percentile may be off: 5% of it, a quarter of the half width of its interval, or `least_ms`."""
    value = q.value or 0.0
    sides = []
    for end in (q.low, q.high):
        if end is not None and np.isfinite(end):
            sides.append(abs(end - value))
    half_width = 0.0
    if sides:
        half_width = sum(sides) / len(sides)
    return max(SHARE * value, OF_HALF_WIDTH * half_width, least_ms)


def _limits_ms(metric: str, q: Quantile) -> tuple[float, float]:
    """Above the first a figure is DEGRADED, above the second INVALID."""
    value = q.value or 0.0
    limit = allowed_ms(q, FLOOR_MS)
    invalid_limit = max(SHARE_MOST * value, MOST_MS)
    if metric.startswith("chunk_gap") and value > LONG_GAP_MS:
        return min(limit, LONG_GAP_MOST_MS), min(invalid_limit, LONG_GAP_MOST_MS)
    return limit, invalid_limit


def _values(row: Row, stage: Steady, quantiles: Sequence[Quantile]) -> list[float]:
    """Return the percentiles of one variant, in ms."""
    if row.metric.level == CHUNK:  # there may be a hundred million: they stay in ns
        values = stage.gaps_ns
        scale = 1e6
    else:
        values, _ = sample(row.metric, stage, row.view)
        scale = 1.0
    ranks = [rank(len(values), q.p) - 1 for q in quantiles]
    return [float(value) / scale for value in np.partition(values, ranks)[ranks]]
