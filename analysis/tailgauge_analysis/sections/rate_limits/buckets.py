"""The buckets of a run: each limit of each model that headers name or that 429s are by.

Buckets are of the whole run, preflight included, because they keep their level from one stage to the next.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import pandas as pd

from tailgauge_analysis.metrics.answers import by_request
from tailgauge_analysis.reading import rate_limit_headers
from tailgauge_analysis.reading.frames import Frames
from tailgauge_analysis.reading.rate_limit_headers import INPUT, KINDS, OUTPUT, TOKENS
from tailgauge_analysis.sections.rate_limits import estimates, token_bucket
from tailgauge_analysis.sections.rate_limits.costs import Costs, costs, countings
from tailgauge_analysis.sections.rate_limits.estimates import Estimate, HeaderReadings
from tailgauge_analysis.sections.rate_limits.refusals import Bins, kinds, refused
from tailgauge_analysis.sections.rate_limits.token_bucket import Fit, Growth, fit

MOST_MODELS = 5
ONE_OF = (INPUT, OUTPUT)
COLUMNS = (
    "request_id", "leg", "attempt", "cause", "stage", "traffic", "target", "asked_model", "scheduled_at_ns", "sent_at_ns",
    "headers_at_ns", "ended_at_ns", "first_content_at_ns", "last_content_at_ns", "ended", "limit_kind", "error_type",
    "error_body", "retry_after_s", "input_tokens", "cache_creation_input_tokens", "cache_read_input_tokens", "output_tokens",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Remaining:
    """The least that the headers of a bucket showed as left."""

    limit: float
    least: float
    low: float  # `least` may be rounded
    high: float


@dataclass(frozen=True, slots=True)
class Bucket:
    """One limit of one model of one target."""

    target: str
    model: str
    kind: str
    counted: str  # when its cost is counted: see costs
    refused: int
    remaining: Remaining | None
    rate: Estimate
    burst: Estimate
    fit: Fit | None
    use: estimates.Consumption | None
    levels: estimates.LevelSeries | None
    growth: Growth

    @property
    def utilisation(self) -> float | None:
        """Mean use of the rate."""
        return self.use.mean_per_s / self.rate.value if self.use and self.rate.value else None


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
            headers = estimates.read_headers(rows, header, ours.to_numpy(np.bool_))
            name = (str(target), str(model), kind)
            out.append(_bucket(rows, name, headers, ours, over_time, between_s, grows=grows))
    return tuple(out)


def _has_headers(rows: pd.DataFrame, kind: str) -> bool:
    name = rate_limit_headers.column(kind, rate_limit_headers.REMAINING)
    return name in rows.columns and bool(rows[name].notna().any())


def _bucket(
    rows: pd.DataFrame, name: tuple[str, str, str], headers: HeaderReadings | None, ours: pd.Series[bool],
    over_time: Bins | None, between_s: float, *, grows: bool,
) -> Bucket:  # fmt: skip
    kind = name[2]
    tried = [(by, events) for by in countings(kind) if (events := costs(rows, kind, ours, by)) is not None]
    lag_s = _decision_lag_s(rows, ours) + between_s  # calls of two workers are ordered no better than that
    fits = [fit(events, lag_s) for _, events in tried]
    unexplained = [one.unexplained if one is not None else 0 for one in fits]
    best = min(range(len(tried)), key=unexplained.__getitem__, default=None)
    counted, events = tried[best] if best is not None else (countings(kind)[0], None)
    fitted = fits[best] if best is not None else None
    per_s = estimates.rate(headers, fitted, events, kind)
    size = estimates.burst(per_s, headers, fitted, events, counted, lag_s)
    level, grown = None, Growth(why=size.why or per_s.why)
    if events is None:
        grown = Growth(why="the record does not hold what the calls cost")
    elif per_s.value is not None and grows:
        if size.value is not None and over_time is not None:
            bins = over_time.width_s, float(over_time.at_s[-1])
            level = estimates.level_series(events, per_s.value, size.value, headers, *bins, between_s)
        grown = _grown(events, rows, per_s.value, size)
        if not ours.any() and grown.low is not None and grown.low < 1:  # nothing was refused: 1 is allowed
            grown = replace(grown, low=1.0, value=None if grown.value is None else max(1.0, grown.value))
    used, left = estimates.consumption(events) if events is not None else None, _remaining(headers)
    return Bucket(*name, counted, int(ours.sum()), left, per_s, size, fitted, used, level, grown)


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
    return Remaining(headers.limit, least, max(0.0, least - headers.slack), least + headers.slack)
