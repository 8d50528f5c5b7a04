"""Everything that the report says of rate limits, computed once.

Rule: the order of the computation stands here. Shares and retries are of the steady stage; buckets are of the whole run,
since they remember. There is a finding if the run met a 429, saw a rate-limit header or retried.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import pandas as pd

from tailgauge.rows import schema
from tailgauge_analysis.load.frames import Frames
from tailgauge_analysis.load.rate_limit_headers import HEADER, INPUT, KINDS, OUTPUT, REMAINING, TOKENS, column
from tailgauge_analysis.sections.rate_limits import bucket_levels as levels
from tailgauge_analysis.sections.rate_limits import buckets, growth, retries
from tailgauge_analysis.sections.rate_limits.acceleration import Acceleration, acceleration
from tailgauge_analysis.sections.rate_limits.costs import Costs, costs, ways
from tailgauge_analysis.sections.rate_limits.estimates import Readings, Told, burst, rate, readings
from tailgauge_analysis.sections.rate_limits.limit_kinds import UNKNOWN, kinds, refused
from tailgauge_analysis.sections.rate_limits.shares import Bins, Shares, bins, shares
from tailgauge_analysis.text.json_values import Json
from tailgauge_analysis.verdict.clocks import clocks

MOST_MODELS = 5
ONE_OF = (INPUT, OUTPUT)
ASKED = (
    "request_id", "leg", "attempt", "cause", "stage", "traffic", "target", "asked_model", "scheduled_at_ns", "sent_at_ns",
    "headers_at_ns", "ended_at_ns", "first_content_at_ns", "last_content_at_ns", "ended", "limit_kind", "error_type",
    "error_body", "retry_after_s", "input_tokens", "cache_creation_input_tokens", "cache_read_input_tokens", "output_tokens",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Remaining:
    """The least that the headers of a bucket said is left."""

    limit: float
    responses: int
    least: float
    low: float  # `least` may be rounded
    high: float
    share: float
    at_s: float


@dataclass(frozen=True, slots=True)
class Bucket:
    """One limit of one model of one target."""

    target: str
    model: str
    kind: str
    counted: str  # when its cost is counted: see costs
    refused: int
    remaining: Remaining | None
    refill_per_s: tuple[float, float] | None  # by the headers' resets
    rate: Told
    burst: Told
    fit: buckets.Fit | None
    use: levels.Use | None
    levels: levels.Levels | None
    growth: growth.Growth

    @property
    def utilisation(self) -> float | None:
        """Mean use of the rate."""
        known = self.rate.value and self.use
        return self.use.mean_per_s / self.rate.value if known and self.use and self.rate.value else None


@dataclass(frozen=True, slots=True)
class Binding:
    """The limit that is met first; None with the reason."""

    bucket: Bucket | None
    kind: str | None
    how: str | None
    why: str | None


@dataclass(frozen=True, slots=True)
class RateLimits:
    """The 429 report."""

    shares: Shares
    bins: Bins | None
    first_at_s: float | None
    buckets: tuple[Bucket, ...]
    binding: Binding
    acceleration: Acceleration
    retry_after: retries.RetryAfter
    amplification: tuple[retries.Amplification, ...]
    synchrony: retries.Synchrony


def rate_limits(frames: Frames) -> RateLimits | None:
    """Of a run; None where it has nothing to do with limits."""
    attempts = _lean(frames)
    run = attempts[attempts["stage"] != schema.PREFLIGHT]
    headed = any(column(kind, REMAINING) in attempts.columns for kind in KINDS)
    retried = (run["cause"] == schema.RETRY).any()
    if not (refused(run).any() or headed or retried) or not len(run):
        return None
    told = kinds(attempts)
    steady = run[run["stage"] == schema.STEADY]
    over_time = bins(run, told)
    found = _buckets(attempts, told, over_time, _zero_s(frames.run), clocks(frames).between_ns / 1e9)
    known = told.loc[told.index.isin(run.index), "kind"]
    first = run.loc[refused(run), "sent_at_ns"].min()
    return RateLimits(
        shares=shares(frames.requests.drop_duplicates("request_id"), attempts, told),
        bins=over_time,
        first_at_s=None if np.isnan(first) else float(first) / 1e9,
        buckets=found,
        binding=binding(found, known),
        acceleration=acceleration(run, told),
        retry_after=retries.retry_after(steady),
        amplification=retries.amplification(steady, frames.run["scenario"]),
        synchrony=retries.synchrony(steady),
    )


def known(frames: Frames) -> tuple[Bucket, ...]:
    """The buckets alone, without how much the traffic may grow, which takes longest to tell."""
    attempts = _lean(frames)
    told = kinds(attempts)
    return _buckets(attempts, told, None, _zero_s(frames.run), grows=False)


def offered(frames: Frames, kind: str, way: str, *, cached: bool) -> Costs | None:
    """What the run offered to a limit of the model with most calls, as if nothing had been refused; None where the record
    does not hold it. Without `cached`, reads count as input.
    """
    attempts = _lean(frames)
    if not len(attempts):
        return None
    sizes = attempts.groupby(["target", "asked_model"], observed=True).size().sort_values(ascending=False)
    target, model = next(iter(sizes.index))
    attempts = attempts[(attempts["target"] == target) & (attempts["asked_model"] == model)]
    attempts = attempts.reset_index(drop=True)
    if not cached:
        read = attempts["cache_read_input_tokens"].fillna(0)
        attempts = attempts.assign(input_tokens=attempts["input_tokens"] + read)
    events = costs(attempts, kind, pd.Series(refused(attempts), attempts.index), way)
    return None if events is None else growth.offered(events, attempts)


def _lean(frames: Frames) -> pd.DataFrame:
    """Attempts in order of sending, with what is asked here and no more."""
    names = [*ASKED, *(name for name in frames.attempts.columns if name.startswith(HEADER))]
    attempts = frames.attempts[names].sort_values("sent_at_ns", kind="stable", ignore_index=True)
    asked = frames.requests.drop_duplicates("request_id").set_index("request_id")["asked_output_tokens"]
    attempts["asked_output_tokens"] = attempts["request_id"].map(asked)
    return attempts


def _zero_s(run: Json) -> float | None:
    """Seconds since 1970 at the zero of the run clock: a rehearsal's wall clock is its virtual clock, others' is no more
    than a label.
    """
    return float(run["start_at_ns"] or 0) / 1e9 if run["virtual"] else None


def _journey_s(rows: pd.DataFrame, ours: pd.Series[bool]) -> float:
    """How long after its sending a call may have been decided: the time in which 99% of the 429s came back."""
    times = (rows["headers_at_ns"].fillna(rows["ended_at_ns"]) - rows["sent_at_ns"])[ours]
    return float(times.quantile(0.99)) / 1e9 if times.notna().any() else 0.0


def _buckets(
    attempts: pd.DataFrame, told: pd.DataFrame, over_time: Bins | None, zero_s: float | None, between_s: float = 0.0, *,
    grows: bool = True,
) -> tuple[Bucket, ...]:  # fmt: skip
    """Each limit that headers name or 429s are by, of the models with most calls."""
    out: list[Bucket] = []
    sizes = attempts.groupby(["target", "asked_model"], observed=True).size().sort_values(ascending=False)
    for target, model in list(sizes.index)[:MOST_MODELS]:
        ours = (attempts["target"] == target) & (attempts["asked_model"] == model)
        rows = attempts[ours]
        by = told["kind"].reindex(rows.index)
        named = [kind for kind in KINDS if (by == kind).any() or _headed(rows, kind)]
        if len(named) > 1 and not (by == TOKENS).any():  # repeats the tighter of the others
            named = [kind for kind in named if kind != TOKENS or not set(ONE_OF) & set(named)]
        for kind in named:
            refusals, header = by == kind, kind
            if kind in ONE_OF and not _headed(rows, kind) and not (by.isin(ONE_OF) & ~refusals).any():
                header = TOKENS  # OpenAI's name for whichever limit on tokens is the tighter
            out.append(
                _bucket(
                    rows,
                    str(target),
                    str(model),
                    kind,
                    header,
                    refusals,
                    over_time,
                    zero_s,
                    between_s,
                    grows=grows,
                )
            )
    return tuple(out)


def _headed(rows: pd.DataFrame, kind: str) -> bool:
    name = column(kind, REMAINING)
    return name in rows.columns and bool(rows[name].notna().any())


def _bucket(
    rows: pd.DataFrame, target: str, model: str, kind: str, header: str, ours: pd.Series[bool],
    over_time: Bins | None, zero_s: float | None, between_s: float, *, grows: bool,
) -> Bucket:  # fmt: skip
    seen = readings(rows, header, ours.to_numpy(np.bool_), zero_s)
    tried = [(way, events) for way in ways(kind) if (events := costs(rows, kind, ours, way)) is not None]
    journey_s = (
        _journey_s(rows, ours) + between_s
    )  # which of two workers' calls came first is known no closer
    fits = [buckets.fit(events, journey_s) for _, events in tried]
    best = min(range(len(tried)), key=lambda i: _unexplained(fits[i]), default=None)
    way, events = tried[best] if best is not None else (ways(kind)[0], None)
    fit = fits[best] if best is not None else None
    per_s = rate(seen, fit, events, kind)
    size = burst(per_s, seen, fit, events, way, journey_s)
    level, grown = None, growth.Growth(None, None, None, 0, size.why or per_s.why)
    if events is None:
        grown = growth.Growth(None, None, None, 0, "the record does not hold what the calls cost")
    elif per_s.value is not None and grows:
        if size.value is not None and over_time is not None:
            end_s = float(over_time.at_s[-1])
            level = levels.levels(events, per_s.value, size.value, seen, over_time.width_s, end_s, between_s)
        grown = _grown(events, rows, per_s.value, size)
        if not ours.any():
            grown = _unrefused(grown)
    refill = None
    if seen is not None and seen.refill_low is not None and seen.refill_high is not None:
        refill = (seen.refill_low, seen.refill_high)
    use = levels.use(events) if events is not None else None
    return Bucket(
        target, model, kind, way, int(ours.sum()), _remaining(seen), refill, per_s, size, fit, use, level, grown
    )  # fmt: skip


def _grown(events: Costs, rows: pd.DataFrame, per_s: float, size: Told) -> growth.Growth:
    """g*, and only its bounds where the burst is only bounded."""
    if size.low is None or size.high is None:
        return growth.Growth(None, None, None, 0, size.why)
    trace = growth.offered(events, rows)
    value = size.value if size.value is not None else size.low
    low = size.low if size.value is None else min(size.low, value)
    high = size.high if size.value is None else max(size.high, value)
    if _is_exact(value, low, high):
        low = high = value
    one = growth.growth(trace, per_s, (low, value, high))
    if size.value is None and one.value is not None:
        return growth.Growth(None, one.low, one.high, one.calls, size.why)
    return one


def _unrefused(grown: growth.Growth) -> growth.Growth:
    """At least 1 where the limit refused nobody: so much was borne."""
    if grown.low is None or grown.low >= 1:
        return grown
    value = None if grown.value is None else max(1.0, grown.value)
    return replace(grown, low=1.0, value=value)


def _unexplained(fit: buckets.Fit | None) -> int:
    return fit.unexplained if fit is not None else 0


def _is_exact(value: float, low: float, high: float) -> bool:
    """Whether a burst is as good as known: its interval is less than one call wide."""
    return high - low < 1 and value == round(value)


def _remaining(seen: Readings | None) -> Remaining | None:
    if seen is None:
        return None
    at = int(np.argmin(seen.remaining))
    least = float(seen.remaining[at])
    low, high = max(0.0, least - seen.slack), least + seen.slack
    return Remaining(
        seen.limit, len(seen.remaining), least, low, high, least / seen.limit, float(seen.at_s[at])
    )  # fmt: skip


def binding(found: tuple[Bucket, ...], known: pd.Series[str]) -> Binding:
    """The limit with most 429s; without a 429 the one that would be met first as the traffic grows."""
    if len(known):
        counts = known[known != UNKNOWN].value_counts()
        if not len(counts):
            return Binding(None, None, None, "nothing tells which limit refused")
        kind = str(counts.index[0])
        ours = [one for one in found if one.kind == kind]
        return Binding(max(ours, key=lambda one: one.refused, default=None), kind, "most 429s", None)
    used = [(one.utilisation, one) for one in found if one.utilisation is not None]
    if used:  # nothing was refused, so no burst is known: how much of each rate was used is
        _, first = max(used, key=lambda pair: pair[0])
        return Binding(first, first.kind, "highest mean use", None)
    return Binding(None, None, None, "no 429, and no limit is known")
