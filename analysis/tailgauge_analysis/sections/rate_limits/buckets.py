"""The buckets of a run: each limit of each model that headers name or that 429s are by.

Buckets are of the whole run, preflight included, because they keep their level from one stage to the next.
A number that is not known is None, with the reason.

- Rate: a header's limit / its window, a minute where it names none. For requests, whose cost is known exactly, it is checked against the decisions:
  if another rate explains them significantly better, that one is the estimate. Without
  headers the decisions alone (token_bucket.fit).
- Burst: a bucket admits a call if what it lacks + the call's cost <= burst. So burst >= what is missing after an admitted
  call (limit - remaining, to rounding) and < what is missing at a refusal + its cost; and likewise with what the costs say is
  missing. The estimate is the middle of the interval, as a whole number if there is one.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field, replace

import numpy as np
import pandas as pd

from tailgauge import vendors
from tailgauge.rows import schema
from tailgauge_analysis.reading.frames import Frames
from tailgauge_analysis.reading.rate_limit_headers import (
    HEADER,
    INPUT,
    KINDS,
    LIMIT,
    MINUTE_S,
    OUTPUT,
    REMAINING,
    REQUESTS,
    TOKENS,
    WINDOW,
    column,
    further_windows_s,
    rounding,
)
from tailgauge_analysis.sections.rate_limits import token_bucket
from tailgauge_analysis.sections.rate_limits.costs import Costs, costs
from tailgauge_analysis.sections.rate_limits.refusals import kinds, rejected
from tailgauge_analysis.sections.rate_limits.token_bucket import Fit, Growth
from tailgauge_analysis.stats.quantiles import Floats, Ints, Mask
from tailgauge_analysis.text.quantile import UNPUBLISHED

_WINDOW_NAMES = {
    float(seconds): str(name) for name, seconds in vendors.TABLE["limits"]["windows"].items()
}
_CLOSE = 1e-3
HEADERS = "headers"
DECISIONS = "429s"
BOTH = "headers and 429s"
NEVER_EMPTY = "no 429 by this limit: its bucket was never seen empty"
MOST_MODELS = 5
TOKEN_DIRECTIONS = {INPUT, OUTPUT}
COLUMNS = (
    "request_id",
    "leg",
    "attempt",
    "cause",
    "stage",
    "traffic",
    "target",
    "asked_model",
    "scheduled_at_ns",
    "sent_at_ns",
    "headers_at_ns",
    "ended_at_ns",
    "first_content_at_ns",
    "last_content_at_ns",
    "ended",
    "error_class",
    "limit_kind",
    "error_type",
    "error_body",
    "retry_after_s",
    "retry_after_from",
    "input_tokens",
    "cache_creation_input_tokens",
    "cache_read_input_tokens",
    "output_tokens",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimate:
    """A number that may be known, and from what."""

    value: float | None = None
    low: float | None = None
    high: float | None = None
    how: str | None = None
    why: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Remaining:
    """The least that the headers of a bucket showed as left."""

    limit: float  # in `window_s`
    window_s: float
    least: float
    low: float  # `least` may be rounded
    high: float


@dataclass(frozen=True, slots=True, kw_only=True)
class HeaderReadings:
    """The headers of one bucket, one entry per response that has them. `attempt`: row of the attempt."""

    limit: float  # in `window_s`
    window_s: float
    limits: int  # different ones
    least: float
    slack: float
    missing: Floats
    attempt: Ints
    refused: Mask

    @property
    def remaining(self) -> Remaining:
        """Return the least that was left."""
        return Remaining(
            limit=self.limit,
            window_s=self.window_s,
            least=self.least,
            low=max(0.0, self.least - self.slack),
            high=self.least + self.slack,
        )


def read_headers(
    attempts: pd.DataFrame, kind: str, refused: Mask, window_s: float | None = None
) -> HeaderReadings | None:
    """Read the headers of a bucket, or of one of its further windows; None where no response has both limit and remaining.

    `attempts`: in order of sending, numbered from 0. `refused`: which of them this limit refused. `window_s`: a further
    window; None: the bucket's own, whose length the headers name, else a minute. Where headers name several limits, the most
    frequent one is taken.
    """
    limit_name = column(kind, LIMIT, window_s)
    remaining_name = column(kind, REMAINING, window_s)
    if not {limit_name, remaining_name} <= set(attempts.columns):
        return None
    limits = attempts[limit_name]
    remaining = attempts[remaining_name]
    with_headers = np.flatnonzero((limits > 0) & remaining.notna())
    if not len(with_headers):
        return None
    windows_s = pd.Series(window_s or MINUTE_S, attempts.index)
    name = column(kind, WINDOW)
    if window_s is None and name in attempts.columns:
        # Where a part of the run tells no window, that of the others.
        usual_s = MINUTE_S
        most_frequent = attempts[name].mode()
        if len(most_frequent):
            usual_s = most_frequent.iloc[0]
        windows_s = attempts[name].fillna(usual_s)
    limits_and_windows = np.stack((limits, windows_s), axis=1)[with_headers]
    different, counts = np.unique(limits_and_windows, axis=0, return_counts=True)
    limit, most_frequent_s = different[int(np.argmax(counts))]
    left = remaining.to_numpy(np.float64)[with_headers]
    # `slack`: by how much the numbers may be rounded.
    return HeaderReadings(
        limit=float(limit),
        window_s=float(most_frequent_s),
        limits=len(different),
        least=float(left.min()),
        slack=rounding(kind, left),
        missing=limits.to_numpy(np.float64)[with_headers] - left,
        attempt=with_headers,
        refused=refused[with_headers],
    )


def window_name(window_s: float) -> str:
    """Return a window as a reader calls it: minute, day, 10 s."""
    return _WINDOW_NAMES.get(window_s, f"{window_s:g} s")


def rate(
    headers: HeaderReadings | None, fit: Fit | None, costs: Costs | None, kind: str
) -> Estimate:
    """Estimate what a bucket regains per second, in requests or tokens, and from what; `why` where it is not known.

    `headers`, `fit`, `costs`: None where no header names the limit, it refused no call, or the record does not hold what
    calls cost. The limit that headers state goes first, unless for requests, whose cost is known exactly, the 429s fit
    another rate better.
    """
    by_decisions = None
    if fit is not None and fit.is_credible:
        by_decisions = Estimate(value=fit.rate, low=fit.rate_low, high=fit.rate_high, how=DECISIONS)
    if headers is None:
        if fit is None:
            return Estimate(why="no header names this limit, and it refused no call")
        return by_decisions or Estimate(why="no token bucket explains these 429s")
    stated_per_s = headers.limit / headers.window_s
    stated = Estimate(value=stated_per_s, low=stated_per_s, high=stated_per_s, how=HEADERS)
    if headers.limits > 1:
        reason = f"headers name {headers.limits} limits; this is the most frequent"
        return replace(stated, why=reason)
    if kind != REQUESTS or by_decisions is None or fit is None or costs is None:
        return stated
    # At the stated rate hardly more decisions are unexplained than at the best one.
    if fit.tolerates(_bursts_at_rate(costs, stated_per_s)[0]):
        return stated
    stated_limit = f"{headers.limit:g} per {window_name(headers.window_s)}"
    reason = f"headers name {stated_limit}, but the 429s do not match that limit"
    return replace(by_decisions, why=reason)


def _bursts_at_rate(costs: Costs, per_s: float) -> tuple[int, float, float]:
    """Return how many decisions no burst explains at this rate, and the bursts that leave as few: from the first value, below the second."""
    return token_bucket.bursts(costs.around(costs.refused, token_bucket.MOST), per_s)


def burst(
    per_s: Estimate,
    headers: HeaderReadings | None,
    fit: Fit | None,
    costs: Costs | None,
    *,
    kind: str,
    unsure_s: float,
) -> Estimate:
    """Estimate the tokens in the full bucket, where its rate is known; `why` where they are not.

    `unsure_s`: how long after its sending a call may have been decided. Headers and 429s each give a range: the estimate is
    the middle of both together, or of the headers' alone where they contradict each other. Without an upper end there is no
    value.
    """
    if per_s.value is None:
        return Estimate(why=per_s.why)
    low = 0.0
    high = math.inf
    source = ""
    if headers is not None:
        low, high = _burst_by_headers(headers, costs, kind)
        source = HEADERS
    if costs is not None and fit is not None and fit.is_credible:
        decisions_low, decisions_high = _burst_by_decisions(per_s, fit, costs, unsure_s)
        if max(low, decisions_low) <= min(high, decisions_high):
            low = max(low, decisions_low)
            high = min(high, decisions_high)
            source = BOTH if source else DECISIONS
    if math.isinf(high):
        limit = None
        if headers is not None:
            limit = headers.limit
        return Estimate(low=low or None, high=limit, how=HEADERS, why=NEVER_EMPTY)
    value = (low + high) / 2
    # A bucket usually holds a whole number.
    if low - _CLOSE <= round(value) <= high + _CLOSE:
        value = float(round(value))
    return Estimate(value=value, low=low, high=high, how=source)


def _burst_by_decisions(
    per_s: Estimate, fit: Fit, costs: Costs, unsure_s: float
) -> tuple[float, float]:
    """Return the bounds of the burst; an empty range where the decisions do not match the rate of the headers."""
    if per_s.how != HEADERS or per_s.value is None:
        return fit.burst_low, fit.burst_high
    wrong, lower, upper = _bursts_at_rate(costs, per_s.value)
    if not fit.tolerates(wrong):
        return math.inf, 0.0
    unsure = per_s.value * unsure_s
    return max(0.0, lower - unsure), upper + unsure


def _burst_by_headers(
    headers: HeaderReadings, costs: Costs | None, kind: str
) -> tuple[float, float]:
    """Return the bounds of the burst. `remaining` is rounded down, so what is missing is up to one less than it seems."""
    need = pd.Series(1.0, headers.attempt)
    if costs is not None:
        by_attempt = pd.Series(costs.need, costs.attempt)[costs.decided]
        need = by_attempt[~by_attempt.index.duplicated()].reindex(headers.attempt).fillna(1.0)
    lowest = float((headers.missing[~headers.refused] - 1 - headers.slack).max(initial=0.0))
    low = max(0.0, lowest + (kind == OUTPUT))  # a decision on output takes nothing, but needs one
    wanted = headers.missing + headers.slack + need.to_numpy(np.float64)
    high = float(wanted[headers.refused].min(initial=math.inf))
    return min(low, high), high


@dataclass(frozen=True, slots=True, kw_only=True)
class FurtherWindow:
    """A limit of the same kind in a longer window, of which nothing but its headers is known."""

    target: str
    model: str
    kind: str
    remaining: Remaining


@dataclass(frozen=True, slots=True, kw_only=True)
class Bucket:
    """One limit of one model of one target."""

    target: str
    model: str
    kind: str
    refused: int
    remaining: Remaining | None
    rate: Estimate
    burst: Estimate
    mean_per_s: float | None
    offered: Costs | None = field(metadata=UNPUBLISHED)
    """first attempts, each charged as if it had been admitted; None where the record does not hold what calls cost"""

    @property
    def utilisation(self) -> float | None:
        """Return the mean use of the rate."""
        if self.mean_per_s is None or not self.rate.value:
            return None
        return self.mean_per_s / self.rate.value


def known_buckets(frames: Frames) -> tuple[Bucket, ...]:
    """Return the buckets of a run."""
    attempts = in_order(frames)
    return find_buckets(attempts, kinds(attempts))


def in_order(frames: Frames) -> pd.DataFrame:
    """Return the attempts in order of sending, with the columns that are used here."""
    headers = [name for name in frames.attempts.columns if name.startswith(HEADER)]
    attempts = frames.attempts[[*COLUMNS, *headers]]
    return attempts.sort_values("sent_at_ns", kind="stable", ignore_index=True)


def _kinds_in_use(kind_by_row: pd.Series[str], headed: set[str]) -> list[str]:
    """Return the kinds of limits that headers name or 429s are by."""
    named = []
    for kind in KINDS:
        if kind in headed or (kind_by_row == kind).any():
            named.append(kind)
    # A header on all tokens repeats the tighter of those on input and on output.
    is_repeated = TOKENS in named and not (kind_by_row == TOKENS).any()
    if is_repeated and TOKEN_DIRECTIONS & set(named):
        named.remove(TOKENS)
    return named


def find_buckets(
    attempts: pd.DataFrame, kinds: pd.DataFrame, between_s: float = 0.0
) -> tuple[Bucket, ...]:
    """Return each limit that headers name or 429s are by, for each model of each target, those with most calls first.

    `attempts`: in order of sending, with COLUMNS and the columns of headers. `kinds`: the kind of each 429, by the index of
    its attempt. Calls of two workers are ordered no better than `between_s`.
    """
    buckets: list[Bucket] = []
    for target, model, rows in _by_model(attempts):
        kind_by_row = kinds["kind"].reindex(rows.index)
        kinds_in_headers = {kind for kind in KINDS if _has_headers(rows, kind)}
        for kind in _kinds_in_use(kind_by_row, kinds_in_headers):
            is_of_kind = (kind_by_row == kind).to_numpy(np.bool_)
            header_kind = kind
            if (
                kind in TOKEN_DIRECTIONS - kinds_in_headers
                and not kind_by_row.isin(TOKEN_DIRECTIONS - {kind}).any()
            ):
                header_kind = TOKENS  # OpenAI's name for whichever limit on tokens is the tighter
            headers = read_headers(rows, header_kind, is_of_kind & rejected(rows))
            cost_events = costs(rows, kind, is_of_kind)
            # How long after its sending a call may have been decided.
            lag_s = _decision_lag_s(rows[is_of_kind]) + between_s
            bucket_fit = None
            if cost_events is not None:
                bucket_fit = token_bucket.fit(cost_events, lag_s)
            refill_rate = rate(headers, bucket_fit, cost_events, kind)
            remaining = None
            if headers is not None:
                remaining = headers.remaining
            mean_per_s = None
            if cost_events is not None:
                mean_per_s = cost_events.mean_per_s
            offered = None
            if cost_events is not None:
                offered = _first_attempts_charged(cost_events, rows)
            bucket = Bucket(
                target=target,
                model=model,
                kind=kind,
                refused=int(is_of_kind.sum()),
                remaining=remaining,
                rate=refill_rate,
                burst=burst(
                    refill_rate, headers, bucket_fit, cost_events, kind=kind, unsure_s=lag_s
                ),
                mean_per_s=mean_per_s,
                offered=offered,
            )
            buckets.append(bucket)
    return tuple(buckets)


def further_windows(attempts: pd.DataFrame) -> tuple[FurtherWindow, ...]:
    """Return the windows that stand beside those of the buckets, of the models with most calls."""
    windows: list[FurtherWindow] = []
    for target, model, rows in _by_model(attempts):
        for kind in KINDS:
            for window_s in further_windows_s(rows.columns, kind):
                headers = read_headers(rows, kind, rejected(rows), window_s)
                if headers is not None:
                    remaining = headers.remaining
                    windows.append(
                        FurtherWindow(target=target, model=model, kind=kind, remaining=remaining)
                    )
    return tuple(windows)


def _by_model(attempts: pd.DataFrame) -> Iterator[tuple[str, str, pd.DataFrame]]:
    """Yield targets, their models and the attempts at them, those with most calls first."""
    groups = attempts.groupby(["target", "asked_model"], observed=True)
    for target, model in groups.size().sort_values(ascending=False).index[:MOST_MODELS]:
        yield str(target), str(model), groups.get_group((target, model))


def _has_headers(rows: pd.DataFrame, kind: str) -> bool:
    name = column(kind, REMAINING)
    return name in rows.columns and bool(rows[name].notna().any())


def _decision_lag_s(refused: pd.DataFrame) -> float:
    """Return how long after its sending a call may have been decided: the time in which 99% of the 429s came back."""
    times = refused["headers_at_ns"].fillna(refused["ended_at_ns"]) - refused["sent_at_ns"]
    if not times.notna().any():
        return 0.0
    return float(times.quantile(0.99)) / 1e9


def _first_attempts_charged(events: Costs, rows: pd.DataFrame) -> Costs:
    """Return the first attempts alone, each charged as if it had been admitted: what was offered to the limit."""
    charge = np.where(events.refused, np.nan_to_num(events.need), events.charge)
    is_first = (rows["cause"] != schema.RETRY).to_numpy(np.bool_)[events.attempt]
    return replace(events, charge=charge).only(is_first)


def growth(bucket: Bucket) -> Growth:
    """Return by which factor the traffic of the run can grow before this bucket refuses a call; only its bounds where the burst is only bounded.

    Without its rate, its burst or the costs of the calls there is a reason instead.
    """
    burst_estimate = bucket.burst
    if bucket.offered is None:
        return Growth(why="the record does not hold what the calls cost")
    if bucket.rate.value is None or burst_estimate.low is None or burst_estimate.high is None:
        return Growth(why=burst_estimate.why or bucket.rate.why)
    burst_low = burst_estimate.low
    burst_high = burst_estimate.high
    burst_size = burst_low
    if burst_estimate.value is not None:
        burst_size = burst_estimate.value
    if burst_high - burst_low < 1 and burst_size == round(burst_size):  # as good as known
        burst_low = burst_size
        burst_high = burst_size
    grown = token_bucket.growth(
        bucket.offered, bucket.rate.value, (burst_low, burst_size, burst_high)
    )
    if burst_estimate.value is None and grown.value is not None:
        grown = replace(grown, value=None, why=burst_estimate.why)
    # A bucket that refused calls may allow less than this traffic.
    if bucket.refused or grown.low is None or grown.low >= 1:
        return grown
    # Nothing was refused: the traffic of the run is allowed.
    at_least_one = grown.value
    if at_least_one is not None:
        at_least_one = max(1.0, at_least_one)
    return replace(grown, low=1.0, value=at_least_one)
