"""The buckets of a run: each limit of each model that headers name or that 429s are by.

Buckets are of the whole run, preflight included, because they keep their level from one stage to the next.

What is known of each bucket, from its headers and from the decisions: rate, burst, level over time, use.

A number that is not known is None, with the reason.

- Rate: a header's limit / its window, a minute where it names none. For requests, whose cost is known exactly, it is checked against the decisions:
  if another rate explains them significantly better, that one is the estimate. Without
  headers the decisions alone (token_bucket.fit).
- Burst: a bucket admits a call if what it lacks + the call's cost <= burst. So burst >= what is missing after an admitted
  call (limit - remaining, to rounding) and < what is missing at a refusal + its cost; and likewise with what the costs say is
  missing. The estimate is the middle of the interval, as a whole number if there is one.
- Level, where headers name the limit: burst - what is missing by the headers (limit - remaining). The minimum of a bin is over
  the responses that came in it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np
import pandas as pd

from tailgauge import vendors
from tailgauge_analysis.metrics.answers import by_request
from tailgauge_analysis.reading import rate_limit_headers
from tailgauge_analysis.reading.frames import Frames
from tailgauge_analysis.reading.rate_limit_headers import (
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
    rounding,
)
from tailgauge_analysis.sections.rate_limits import token_bucket
from tailgauge_analysis.sections.rate_limits.costs import PRODUCED, Costs, costs, countings
from tailgauge_analysis.sections.rate_limits.refusals import Bins, kinds, refused, rejected
from tailgauge_analysis.sections.rate_limits.token_bucket import (
    Fit,
    Growth,
    bursts,
    envelope,
    fit,
    stretch,
)
from tailgauge_analysis.stats.quantiles import Floats, Ints, Mask

_WINDOW_NAMES = {float(seconds): str(name) for name, seconds in vendors.TABLE["limits"]["windows"].items()}
_CLOSE = 1e-3
HEADERS, DECISIONS, BOTH = "headers", "429s", "headers and 429s"


@dataclass(frozen=True, slots=True)
class Estimate:
    """A number that may be known, and from what."""

    value: float | None = None
    low: float | None = None
    high: float | None = None
    how: str | None = None
    why: str | None = None


@dataclass(frozen=True, slots=True)
class HeaderReadings:
    """The headers of one bucket, one entry per response that has them. `attempt`: row of the attempt."""

    limit: float  # in `window_s`
    limits: int  # different ones
    remaining: Floats
    missing: Floats
    slack: float
    attempt: Ints
    refused: Mask
    window_s: float = MINUTE_S


def read_headers(attempts: pd.DataFrame, kind: str, refused: Mask) -> HeaderReadings | None:
    """Headers of a bucket."""
    names = [column(kind, LIMIT), column(kind, REMAINING)]
    if any(name not in attempts.columns for name in names):
        return None
    limit, remaining = (attempts[name].to_numpy(np.float64) for name in names)
    known = np.flatnonzero(~np.isnan(limit) & ~np.isnan(remaining) & (limit > 0))
    if not len(known):
        return None
    windows_s = _windows_s(attempts, kind)
    pairs = np.stack((limit[known], windows_s[known]), axis=1)
    different, counts = np.unique(pairs, axis=0, return_counts=True)
    most_frequent = different[int(np.argmax(counts))]
    left = remaining[known]
    return HeaderReadings(
        limit=float(most_frequent[0]),
        window_s=float(most_frequent[1]),
        limits=len(different),
        remaining=left,
        missing=limit[known] - left,
        slack=rounding(kind, left),
        attempt=known,
        refused=refused[known],
    )


def _windows_s(attempts: pd.DataFrame, kind: str) -> Floats:
    """Return the window of a limit by attempt; where a part of the run tells none, that of the others."""
    name = column(kind, WINDOW)
    if name not in attempts.columns or attempts[name].isna().all():
        return np.full(len(attempts), MINUTE_S)
    usual_s = attempts[name].mode().iloc[0]
    return attempts[name].fillna(usual_s).to_numpy(np.float64)


def window_name(window_s: float) -> str:
    """Return a window as a reader calls it: minute, day, 10 s."""
    return _WINDOW_NAMES.get(window_s, f"{window_s:g} s")


def rate(headers: HeaderReadings | None, fit: Fit | None, costs: Costs | None, kind: str) -> Estimate:
    """Tokens per second."""
    credible = fit is not None and fit.is_credible
    if headers is not None:
        per_s = headers.limit / headers.window_s
        if headers.limits > 1:
            why = f"headers name {headers.limits} limits; this is the most frequent"
            return Estimate(per_s, per_s, per_s, HEADERS, why)
        exact = costs if kind == REQUESTS else None
        if fit and credible and exact and not fit.tolerates(bursts(stretch(exact), per_s)[0]):
            why = f"headers name {headers.limit:g} per {window_name(headers.window_s)}, but the 429s do not match that limit"
            return Estimate(fit.rate, fit.rate_low, fit.rate_high, DECISIONS, why)
        return Estimate(per_s, per_s, per_s, HEADERS)
    if fit is None:
        return Estimate(why="no header names this limit, and it refused no call")
    if not credible:
        return Estimate(why="no token bucket explains these 429s")
    return Estimate(fit.rate, fit.rate_low, fit.rate_high, DECISIONS)


def burst(
    per_s: Estimate, headers: HeaderReadings | None, fit: Fit | None, costs: Costs | None, counted: str,
    decision_lag_s: float,
) -> Estimate:  # fmt: skip
    """Tokens in the full bucket. `decision_lag_s`: how long after its sending a call may have been decided."""
    if per_s.value is None:
        return Estimate(why=per_s.why)
    low, high, how = 0.0, math.inf, []
    if headers is not None:
        low, high = _burst_by_headers(headers, costs, counted)
        how.append(HEADERS)
    if costs is not None and fit is not None and fit.is_credible:
        if per_s.how == HEADERS:
            wrong, at_least, below = bursts(stretch(costs), per_s.value)
            unsure = per_s.value * decision_lag_s
            at_least, below, fits = max(0.0, at_least - unsure), below + unsure, fit.tolerates(wrong)
        else:
            at_least, below, fits = fit.burst_low, fit.burst_high, True
        if fits and max(low, at_least) <= min(high, below):
            low, high = max(low, at_least), min(high, below)
            how.append(DECISIONS)
    elif costs is not None and headers is not None and counted != PRODUCED:
        low = max(low, min(envelope(costs, per_s.value), headers.limit))
    if not math.isfinite(high):
        why = "no 429 by this limit: its bucket was never seen empty"
        return Estimate(None, low or None, headers.limit if headers is not None else None, HEADERS, why)
    if high < low:
        return Estimate(why="headers and 429s contradict each other")
    value = (low + high) / 2
    if low - _CLOSE <= round(value) <= high + _CLOSE:
        value = float(round(value))
    return Estimate(value, low, high, BOTH if len(how) == 2 else how[0] if how else None)


def _burst_by_headers(headers: HeaderReadings, costs: Costs | None, counted: str) -> tuple[float, float]:
    """Bounds of the burst. `remaining` is rounded down, so what is missing is up to one less than it seems."""
    is_429 = headers.refused
    free = 1.0 if counted == PRODUCED else 0.0  # a decision on output takes nothing, but needs one
    low = float((headers.missing[~is_429] - 1 - headers.slack).max(initial=0.0)) + free
    if not is_429.any():
        return max(0.0, low), math.inf
    need = pd.Series(1.0, headers.attempt)
    if costs is not None:
        by_attempt = pd.Series(costs.need[costs.decided], costs.attempt[costs.decided])
        need = by_attempt[~by_attempt.index.duplicated()].reindex(headers.attempt).fillna(1.0)
    high = float((headers.missing + headers.slack + need.to_numpy(np.float64))[is_429].min())
    return min(max(0.0, low), high), high


@dataclass(frozen=True, slots=True, kw_only=True)
class LevelSeries:
    """Lowest level of a bucket that headers showed, by bin of `width_s` seconds; null where none came."""

    width_s: int
    at_s: Floats
    lowest: Floats


def level_series(headers: HeaderReadings, came_at_s: Floats, burst: float, over_time: Bins) -> LevelSeries:
    """Take the level that each response shows to the bin in which it came; `came_at_s` by attempt."""
    count = len(over_time.at_s)
    bins = np.nan_to_num(came_at_s[headers.attempt]) // over_time.width_s
    lowest = np.full(count, np.nan)
    np.fmin.at(lowest, np.clip(bins, 0, count - 1).astype(np.int64), burst - headers.missing)
    return LevelSeries(width_s=over_time.width_s, at_s=over_time.at_s, lowest=lowest)


def mean_per_s(costs: Costs) -> float | None:
    """Return the mean use of the limit; None where all calls were sent at one moment."""
    span_s = float(costs.at_s[-1] - costs.at_s[0]) if len(costs.at_s) else 0.0
    return float(costs.charge.sum()) / span_s if span_s > 0 else None


# --- the buckets of a run -----------------------------------------------------------------------------------------

MOST_MODELS = 5
ONE_OF = (INPUT, OUTPUT)
COLUMNS = (
    "request_id", "leg", "attempt", "cause", "stage", "traffic", "target", "asked_model", "scheduled_at_ns", "sent_at_ns",
    "headers_at_ns", "ended_at_ns", "first_content_at_ns", "last_content_at_ns", "ended", "error_class", "limit_kind", "error_type",
    "error_body", "retry_after_s", "retry_after_from", "input_tokens", "cache_creation_input_tokens", "cache_read_input_tokens", "output_tokens",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Remaining:
    """The least that the headers of a bucket showed as left."""

    limit: float  # in `window_s`
    window_s: float
    least: float
    low: float  # `least` may be rounded
    high: float


@dataclass(frozen=True, slots=True)
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
    counted: str
    """when the cost of a call is counted, see costs.py"""
    refused: int
    remaining: Remaining | None
    rate: Estimate
    burst: Estimate
    fit: Fit | None
    mean_per_s: float | None
    levels: LevelSeries | None
    growth: Growth

    @property
    def utilisation(self) -> float | None:
        """Mean use of the rate."""
        if self.mean_per_s is None or not self.rate.value:
            return None
        return self.mean_per_s / self.rate.value


@dataclass(frozen=True, slots=True, kw_only=True)
class _Limit:
    """What the rows show of one limit of one model; `is_429`: its own 429s."""

    target: str
    model: str
    kind: str
    rows: pd.DataFrame
    headers: HeaderReadings | None
    is_429: pd.Series[bool]

    def bucket(self, over_time: Bins | None, between_s: float, *, grows: bool) -> Bucket:
        """Fit the bucket. Calls of two workers are ordered no better than `between_s`."""
        lag_s = _decision_lag_s(self.rows, self.is_429) + between_s
        counted, events, fitted = self._best_counting(lag_s)
        refill = rate(self.headers, fitted, events, self.kind)
        size = burst(refill, self.headers, fitted, events, counted, lag_s)
        levels = None
        grown = Growth(why=size.why or refill.why)
        if events is None:
            grown = Growth(why="the record does not hold what the calls cost")
        elif refill.value is not None and grows:
            grown = self._growth(events, refill.value, size)
            if size.value is not None and over_time is not None and self.headers is not None:
                came_at_s = self.rows["headers_at_ns"].to_numpy(np.float64) / 1e9
                levels = level_series(self.headers, came_at_s, size.value, over_time)
        return Bucket(
            target=self.target,
            model=self.model,
            kind=self.kind,
            counted=counted,
            refused=int(self.is_429.sum()),
            remaining=_remaining(self.headers),
            rate=refill,
            burst=size,
            fit=fitted,
            mean_per_s=mean_per_s(events) if events is not None else None,
            levels=levels,
            growth=grown,
        )

    def _best_counting(self, lag_s: float) -> tuple[str, Costs | None, Fit | None]:
        """Return how calls are counted so that the fewest decisions stay unexplained."""
        countable = countings(self.kind)
        tried: list[tuple[str, Costs, Fit | None]] = []
        for counting in countable:
            events = costs(self.rows, self.kind, self.is_429, counting)
            if events is not None:
                tried.append((counting, events, fit(events, lag_s)))
        if not tried:
            return countable[0], None, None
        return min(tried, key=lambda one: one[2].unexplained if one[2] is not None else 0)

    def _growth(self, events: Costs, per_s: float, size: Estimate) -> Growth:
        grown = _grown(events, self.rows, per_s, size)
        # Nothing was refused: 1 is allowed.
        if not self.is_429.any() and grown.low is not None and grown.low < 1:
            grown = replace(grown, low=1.0, value=None if grown.value is None else max(1.0, grown.value))
        return grown


def known_buckets(frames: Frames) -> tuple[Bucket, ...]:
    """The buckets without how much the traffic may grow, which takes longest to compute."""
    attempts = in_order(frames)
    return find_buckets(attempts, kinds(attempts), None, grows=False)


def offered_load(frames: Frames, kind: str, counted: str, *, cached: bool) -> Costs | None:
    """What the run offered to a limit of the model with most calls, as if nothing had been refused; None where the record
    does not hold it. Without `cached`, reads count as input.
    """
    attempts = in_order(frames)
    if not len(attempts):
        return None
    target, model = models(attempts)[0]
    attempts = attempts[(attempts["target"] == target) & (attempts["asked_model"] == model)]
    attempts = attempts.reset_index(drop=True)
    if not cached:
        read = attempts["cache_read_input_tokens"].fillna(0)
        attempts = attempts.assign(input_tokens=attempts["input_tokens"] + read)
    events = costs(attempts, kind, pd.Series(refused(attempts), attempts.index), counted)
    return None if events is None else token_bucket.offered_load(events, attempts)


def in_order(frames: Frames) -> pd.DataFrame:
    """Attempts in order of sending, with the columns that are used here."""
    headers = [name for name in frames.attempts.columns if name.startswith(rate_limit_headers.HEADER)]
    attempts = frames.attempts[[*COLUMNS, *headers]]
    attempts = attempts.sort_values("sent_at_ns", kind="stable", ignore_index=True)
    limits = by_request(frames.requests)["asked_output_tokens"]
    return attempts.assign(asked_output_tokens=attempts["request_id"].map(limits))


def models(attempts: pd.DataFrame) -> list[tuple[str, str]]:
    """Targets and their models, those with most calls first."""
    calls = attempts.groupby(["target", "asked_model"], observed=True).size()
    return list(calls.sort_values(ascending=False).index)


def find_buckets(
    attempts: pd.DataFrame, kinds: pd.DataFrame, over_time: Bins | None, between_s: float = 0.0, *, grows: bool = True
) -> tuple[Bucket, ...]:  # fmt: skip
    """Each limit that headers name or 429s are by, of the models with most calls."""
    out: list[Bucket] = []
    for target, model in models(attempts)[:MOST_MODELS]:
        rows = attempts[(attempts["target"] == target) & (attempts["asked_model"] == model)]
        by = kinds["kind"].reindex(rows.index)
        named = [kind for kind in KINDS if (by == kind).any() or _has_headers(rows, kind)]
        if len(named) > 1 and not (by == TOKENS).any():  # repeats the tighter of the others
            named = [kind for kind in named if kind != TOKENS or not set(ONE_OF) & set(named)]
        for kind in named:
            ours, header = by == kind, kind
            if kind in ONE_OF and not _has_headers(rows, kind) and not (by.isin(ONE_OF) & ~ours).any():
                header = TOKENS  # OpenAI's name for whichever limit on tokens is the tighter
            headers = read_headers(rows, header, ours.to_numpy(np.bool_) & rejected(rows))
            limit = _Limit(
                target=str(target), model=str(model), kind=kind, rows=rows, headers=headers, is_429=ours
            )
            out.append(limit.bucket(over_time, between_s, grows=grows))
    return tuple(out)


def further_windows(attempts: pd.DataFrame) -> tuple[FurtherWindow, ...]:
    """Return the windows that stand beside those of the buckets, of the models with most calls."""
    windows: list[FurtherWindow] = []
    for target, model in models(attempts)[:MOST_MODELS]:
        rows = attempts[(attempts["target"] == target) & (attempts["asked_model"] == model)]
        for kind in KINDS:
            for window_s in rate_limit_headers.further_windows_s(rows.columns, kind):
                left = _least_of_window(rows, kind, window_s)
                if left is not None:
                    windows.append(FurtherWindow(str(target), str(model), kind, left))
    return tuple(windows)


def _least_of_window(rows: pd.DataFrame, kind: str, window_s: float) -> Remaining | None:
    names = [column(kind, field, window_s) for field in (LIMIT, REMAINING)]
    if any(name not in rows.columns for name in names):
        return None
    known = rows[names].dropna()
    if not len(known):
        return None
    limit, remaining = (known[name].to_numpy(np.float64) for name in names)
    slack = rounding(kind, remaining)
    least = int(np.argmin(remaining))
    left = float(remaining[least])
    return Remaining(
        limit=float(limit[least]),
        window_s=window_s,
        least=left,
        low=max(0.0, left - slack),
        high=left + slack,
    )


def _has_headers(rows: pd.DataFrame, kind: str) -> bool:
    name = rate_limit_headers.column(kind, rate_limit_headers.REMAINING)
    return name in rows.columns and bool(rows[name].notna().any())


def _decision_lag_s(rows: pd.DataFrame, ours: pd.Series[bool]) -> float:
    """How long after its sending a call may have been decided: the time in which 99% of the 429s came back."""
    times = (rows["headers_at_ns"].fillna(rows["ended_at_ns"]) - rows["sent_at_ns"])[ours]
    return float(times.quantile(0.99)) / 1e9 if times.notna().any() else 0.0


def _grown(events: Costs, rows: pd.DataFrame, per_s: float, size: Estimate) -> Growth:
    """g*, and only its bounds where the burst is only bounded."""
    if size.low is None or size.high is None:
        return Growth(why=size.why)
    value = size.value if size.value is not None else size.low
    low = size.low if size.value is None else min(size.low, value)
    high = size.high if size.value is None else max(size.high, value)
    if high - low < 1 and value == round(value):  # less than one call wide: as good as known
        low = high = value
    one = token_bucket.growth(token_bucket.offered_load(events, rows), per_s, (low, value, high))
    return replace(one, value=None, why=size.why) if size.value is None and one.value is not None else one


def _remaining(headers: HeaderReadings | None) -> Remaining | None:
    if headers is None:
        return None
    least = float(headers.remaining.min())
    return Remaining(
        limit=headers.limit,
        window_s=headers.window_s,
        least=least,
        low=max(0.0, least - headers.slack),
        high=least + headers.slack,
    )
