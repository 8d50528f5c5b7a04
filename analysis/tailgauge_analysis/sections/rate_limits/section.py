"""The section on rate limits: 429s, the limits behind them, and retries.

Shares and retries are of the steady stage, buckets of the whole run. There is a section if the run met a 429, saw a
rate-limit header or retried.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
import pandas as pd

from tailgauge.rows import schema
from tailgauge_analysis.reading.rate_limit_headers import KINDS, MINUTE_S, REMAINING, column
from tailgauge_analysis.run import Run
from tailgauge_analysis.sections.rate_limits import refusals, retries
from tailgauge_analysis.sections.rate_limits.buckets import (
    Bucket,
    Estimate,
    FurtherWindow,
    find_buckets,
    further_windows,
    in_order,
    window_name,
)
from tailgauge_analysis.sections.rate_limits.refusals import Acceleration, refused
from tailgauge_analysis.sections.rate_limits.token_bucket import MOST_FACTOR, Growth
from tailgauge_analysis.text.cells import share_cell, with_interval
from tailgauge_analysis.text.formatting import bin_name, plain, plural, share, share_range
from tailgauge_analysis.text.picture import BLUE, GREY, ORANGE, Band, Panel, Picture, PlotCurve
from tailgauge_analysis.text.quantile import UNPUBLISHED
from tailgauge_analysis.text.section import Section, Table, Value

KEY = "rate_limits"
COMPUTED = (
    "Shares and retries: steady stage. Buckets: whole run with preflight, full at the start.",
    "Growth: how often the same traffic can be repeated before the bucket refuses a call. It depends on the busiest moment of the run.",
)
MUCH = 1.5  # attempts per call, above which the answer mentions them


@dataclass(frozen=True, slots=True)
class Binding:
    """The limit that is met first; None with the reason."""

    bucket: Bucket | None = field(metadata=UNPUBLISHED)
    kind: str | None
    how: str | None
    why: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class RateLimits:
    """429s by limit and over time, buckets, binding limit, growth, retry-after, retries; null without 429s, limit headers and
    retries. See reports.md.
    """

    shares: refusals.Shares
    run_attempts: int
    """of the whole run, as run_refused"""
    run_refused: int
    bins: refusals.Bins | None
    first_at_s: float | None
    """when the first 429 came"""
    buckets: tuple[Bucket, ...]
    further_windows: tuple[FurtherWindow, ...]
    binding: Binding
    growth: Growth
    """of the limit that binds"""
    acceleration: Acceleration
    retry_after: retries.RetryAfter
    amplification: tuple[retries.Amplification, ...]


def compute(run: Run) -> RateLimits | None:
    """Return what a run shows of limits; None without 429s, limit headers and retries."""
    attempts = in_order(run.frames)
    sent = attempts[attempts["stage"] != schema.PREFLIGHT]
    has_headers = any(column(kind, REMAINING) in attempts.columns for kind in KINDS)
    has_retried = (sent["cause"] == schema.RETRY).any()
    if not (refused(sent).any() or has_headers or has_retried) or not len(sent):
        return None
    by_kind = refusals.kinds(attempts)
    steady = sent[sent["stage"] == schema.STEADY]
    over_time = refusals.bins(sent, by_kind)
    buckets = find_buckets(attempts, by_kind, over_time, run.clocks.between_ns / 1e9)
    first = sent.loc[refused(sent), "sent_at_ns"].min()
    bound = binding(buckets, by_kind.loc[by_kind.index.isin(sent.index), "kind"])
    requests = run.frames.requests.drop_duplicates("request_id")
    return RateLimits(
        shares=refusals.shares(requests, attempts, by_kind),
        run_attempts=int(over_time.attempts.sum()) if over_time else 0,
        run_refused=int(over_time.refused.sum()) if over_time else 0,
        bins=over_time,
        first_at_s=None if np.isnan(first) else float(first) / 1e9,
        buckets=buckets,
        further_windows=further_windows(attempts),
        binding=bound,
        growth=_growth_of(bound),
        acceleration=refusals.acceleration(sent, by_kind),
        retry_after=retries.retry_after(steady),
        amplification=retries.amplification(steady),
    )


def binding(found: tuple[Bucket, ...], by_kind: pd.Series[str]) -> Binding:
    """The limit with most 429s; without a 429 the one that would be met first as the traffic grows."""
    if len(by_kind):
        counts = by_kind[by_kind != refusals.UNKNOWN].value_counts()
        if not len(counts):
            return Binding(None, None, None, "nothing identifies the limit behind the 429s")
        kind = str(counts.index[0])
        ours = [one for one in found if one.kind == kind]
        return Binding(max(ours, key=lambda one: one.refused, default=None), kind, "most 429s", None)
    used = [(one.utilisation, one) for one in found if one.utilisation is not None]
    if used:  # nothing was refused, so no burst is known: how much of each rate was used is
        _, first = max(used, key=lambda pair: pair[0])
        return Binding(first, first.kind, "highest mean use", None)
    return Binding(None, None, None, "no 429, and no limit is known")


def _growth_of(bound: Binding) -> Growth:
    """Of the limit that binds, or why it is not known."""
    if bound.bucket is not None:
        return bound.bucket.growth
    is_ramp = bound.kind == refusals.RAMP
    unknown = "an acceleration limit has no bucket" if is_ramp else "its bucket is not known"
    return Growth(why=bound.why or unknown)


def kind_name(kind: str) -> str:
    """A kind of limit as a reader calls it."""
    return {"ramp": "acceleration", "spend": "spending"}.get(kind, kind.replace("_", " "))


def section(found: RateLimits | None) -> Section | None:
    """The section; None where the run has nothing to do with limits."""
    if found is None:
        return None
    tables = (_kinds(found), _buckets(found))
    return Section(
        "rate-limits", "Rate limits", sentence(found), tuple(_facts(found)), tuple(one for one in tables if one.rows), tuple(_refusals_over_time(found)),
        computed=COMPUTED, brief=tuple(_brief(found)),
    )  # fmt: skip


def sentence(found: RateLimits) -> str:
    """The answer in one sentence."""
    of, bound, after = found.shares, found.binding, found.retry_after
    n, one = of.refused.n, bound.bucket
    if not of.refused.k:
        text = f"No 429 in {plural(n, 'attempt')}" if n else "Nothing was sent in the steady stage"
        if of.overloaded.k:
            text += f", but {share(of.overloaded.value)} of them got a 529 or 503"
        if one is not None and one.utilisation is not None:
            text += f"; the most used limit is {kind_name(one.kind)}, at {share(one.utilisation)} of its refill rate"
        return f"{text}{_amplified(found.amplification)}."
    text = f"{share(of.refused.value)} of {plural(n, 'attempt')} got a 429"
    if bound.kind is not None:
        text += f", most by the limit on {kind_name(bound.kind)}"
    if one is not None and one.rate.value is not None:
        burst = f", burst {_short(one.burst.value)}" if one.burst.value is not None else ""
        text += f" ({_short(one.rate.value)}/s{burst})"
    if after.violations.k:
        text += f"; {share(after.violations.value)} of the retries came before retry-after elapsed"
    return f"{text}{_amplified(found.amplification)}."


def _amplified(every: Sequence[retries.Amplification]) -> str:
    """Attempts per call of the traffic that retried most, where they are many."""
    worst = max(every, key=lambda one: one.observed, default=None)
    if worst is None or worst.low < MUCH:
        return ""
    return f"; {plain(worst.traffic, 60)} made {worst.observed:.1f} attempts per call"


def _brief(found: RateLimits) -> Iterator[str]:
    """For the terminal."""
    if not found.shares.refused.k:
        return
    parts = [f"{share(found.shares.refused.value)} of attempts got 429"]
    parts += [f"binding limit: {kind_name(found.binding.kind)}"] if found.binding.kind else []
    parts += [f"first at {found.first_at_s:,.3g} s"] if found.first_at_s is not None else []
    yield "; ".join(parts)


def _facts(found: RateLimits) -> Iterator[tuple[str, str]]:
    of = found.shares
    yield from _rate(found)
    yield "Growth to the first 429", _growth(found.growth)
    if of.refused.k or found.acceleration.coded:
        yield "Acceleration limit", _acceleration(found.acceleration)
    yield from _retry_after(found.retry_after)
    for one in found.amplification:
        yield f"Retry amplification, {plain(one.traffic, 60)}", _amplification(one)
    if found.further_windows:
        yield "Nearest to empty", _nearest_to_empty(found)
    if (capped := _capped_burst(found.buckets)) is not None:
        yield "Burst is capped below the limit", capped


def _rate(found: RateLimits) -> Iterator[tuple[str, str]]:
    of = found.shares
    if of.refused.n:
        cell = share_cell(of.refused)
        about = [f"95% CI {cell.interval}", cell.mark, f"n {of.refused.n:,}", f"n_eff {of.refused.n_eff:,}"]
        yield "429 rate", f"{cell.text} of attempts ({', '.join(filter(None, about))})"
    if k := found.run_refused:
        yield "429s of the run", f"{k:,} of {plural(found.run_attempts, 'attempt')}, warm-up included"
    if of.refused.k:
        met = f"{of.requests_refused:,} of {of.requests:,} met a 429"
        yield "Requests", f"{met}, {of.requests_ended_refused:,} ended with one"
    if of.overloaded.k:
        yield "529 or 503", f"{with_interval(share_cell(of.overloaded))} of attempts"
    if found.first_at_s is not None:
        yield "First 429 of the run", f"{found.first_at_s:,.3g} s after the start, warm-up included"


def _nearest_to_empty(found: RateLimits) -> str:
    """The limit of which the smallest share was left, of all windows."""
    remaining = [(one.kind, one.remaining) for one in found.buckets if one.remaining is not None]
    remaining += [(one.kind, one.remaining) for one in found.further_windows]
    kind, left = min(remaining, key=lambda pair: pair[1].least / pair[1].limit if pair[1].limit else 1.0)
    window = window_name(left.window_s)
    return f"{kind_name(kind)} per {window}: {left.least:,.0f} of {left.limit:,.0f} were left"


def _capped_burst(buckets: Sequence[Bucket]) -> str | None:
    """Headers show capacity that is not there, if a bucket holds much less than its limit."""
    for one in buckets:
        left, size = one.remaining, one.burst.high
        if one.refused and left is not None and size is not None and size < left.limit / 2:
            limit = f"The limit is {left.limit:,.0f} {kind_name(one.kind)} per {window_name(left.window_s)}"
            burst = f"bursts above about {_short(one.burst.value or size)} are refused"
            return f"{limit}, but {burst}. Headers never showed less than {left.least:,.0f} left."
    return None


def _retry_after(after: retries.RetryAfter) -> Iterator[tuple[str, str]]:
    named, early = after.with_header, after.violations
    if named.n:
        text = f"sent with {share(named.value)} of {plural(named.n, '429')}"
        if named.k:
            text += f" (p50 {_short(after.asked_p50_s)} s, max {_short(after.asked_max_s)} s)"
        if after.with_reset.k:
            text += f"; {share(after.with_reset.value)} have the reset of a limit instead"
        yield "retry-after", text
    if early.n:
        ends = share_range(early.low, early.high)
        text = f"{early.k:,} of {early.n:,} ({share(early.value)}, 95% CI {ends})"
        if early.k:
            times = f"{_short(after.early_p50_s)} s (p50) and at most {_short(after.early_max_s)} s"
            text += f", early by {times}"
        yield "Retries before retry-after elapsed", text


def _amplification(one: retries.Amplification) -> str:
    return (
        f"{one.observed:.3f} attempts per call (95% CI {one.low:.3f} – {one.high:.3f}, {one.calls:,} calls)"
    )


def _acceleration(one: Acceleration) -> str:
    if one.found is None:
        return f"unknown: {one.why}"
    if one.found == refusals.CERTAIN:
        when = f", the first after {one.first_at_s:,.3g} s" if one.first_at_s is not None else ""
        return f"certain: {plural(one.coded, '429')} with its error code{when}"
    if one.found == refusals.LIKELY:
        return f"likely: {one.growing:,} of {one.with_headers:,} 429s came while traffic grew, with capacity left in every bucket"
    return f"not detected: {one.with_capacity:,} of {one.with_headers:,} 429s had capacity in every bucket"


def _kinds(found: RateLimits) -> Table:
    header = ("limit, steady stage", "429s", "share of attempts", "first at (s)", "identified by")
    rows = tuple(
        (kind_name(one.kind), f"{one.attempts.k:,}", share_cell(one.attempts), f"{one.first_at_s:,.3g}",
         ", ".join(one.how) or "–")
        for one in found.shares.by_kind
    )  # fmt: skip
    return Table("429s by limit", header, rows, prose=(4,))


def _buckets(found: RateLimits) -> Table:
    several = len({(one.target, one.model) for one in found.buckets}) > 1
    header = (
        "limit, whole run", "429s", "least remaining", "refill (per second)", "burst", "mean use (of the refill)",
        "growth to the first 429",
    )  # fmt: skip
    rows = tuple(
        (_bucket_name(one) + (f", {plain(one.model, 80)}" if several else ""), f"{one.refused:,}",
         "no header" if one.remaining is None else f"{one.remaining.least:,.0f} of {one.remaining.limit:,.0f}",
         _estimate(one.rate), _estimate(one.burst), "unknown" if one.utilisation is None else share(one.utilisation), _growth_cell(one.growth))
        for one in sorted(found.buckets, key=lambda b: KINDS.index(b.kind))
    )  # fmt: skip
    whys = ((b.kind, one.why) for b in found.buckets for one in (b.rate, b.burst, b.growth))
    reasons = {f"{kind_name(kind)}: {why}" for kind, why in whys if why}
    further = tuple(_further_row(window, several=several) for window in found.further_windows)
    return Table(
        "Buckets", header, (*rows, *further), f"Unknown: {'; '.join(sorted(reasons))}." if reasons else ""
    )


def _further_row(window: FurtherWindow, *, several: bool) -> tuple[str | Value, ...]:
    """A limit of which only the headers are known."""
    left = window.remaining
    name = f"{kind_name(window.kind)} per {window_name(left.window_s)}"
    if several:
        name += f", {plain(window.model, 80)}"
    return (name, "–", f"{left.least:,.0f} of {left.limit:,.0f}", "–", "–", "–", "–")


def _bucket_name(bucket: Bucket) -> str:
    """Its kind, with its window where that is no minute."""
    name = kind_name(bucket.kind)
    left = bucket.remaining
    return name if left is None or left.window_s == MINUTE_S else f"{name} per {window_name(left.window_s)}"


def _estimate(one: Estimate) -> Value:
    """A number with its interval; of an unknown one the interval, if there is one."""
    if one.value is None:
        is_bounded = one.low is not None or one.high is not None
        return Value("unknown", f"{_short(one.low)} – {_short(one.high)}" if is_bounded else "")
    return Value(_short(one.value), "" if one.low == one.high else f"{_short(one.low)} – {_short(one.high)}")


def _growth_cell(one: Growth) -> Value:
    """A growth factor with its interval."""
    if one.low is None:
        return Value("unknown")
    high = f"> {MOST_FACTOR}" if one.high is None else f"{one.high:.3g}"
    return Value("unknown" if one.value is None else f"{one.value:.3g}x", f"{one.low:.3g} – {high}")


def _growth(one: Growth) -> str:
    if one.value is None and one.low is None:
        return f"unknown: {one.why}"
    cell = _growth_cell(one)
    n = f", {one.calls:,} calls" if one.calls else ""
    return f"{cell.text} (95% CI {cell.interval}{n}){f': {one.why}' if one.value is None else ''}"


def _short(value: float | None) -> str:
    """Four figures, and never an exponent."""
    if value is None:
        return "?"
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"


# --- figure -------------------------------------------------------------------------------------------------------


def _refusals_over_time(found: RateLimits) -> Iterator[Picture]:
    """Draw the 429s, and the bucket of the limit that binds, or of the first whose level is known."""
    bins = found.bins
    if bins is None or not bins.refused.any():
        return
    at_s = bins.at_s
    known = ~np.isnan(bins.share)
    band = Band(
        x=at_s[known],
        low=100 * bins.low[known],
        high=100 * bins.high[known],
        name="95% interval",
        colour=ORANGE,
    )
    refused = PlotCurve(at_s, 100 * bins.share, "429s", colour=ORANGE, hover="%{y:.3~g}%")
    per_s = "%{y:,.4~g}/s"
    rates = [PlotCurve(at_s, bins.attempts / bins.width_s, "attempts", colour=GREY, dash="dot", hover=per_s)]
    for kind, counts in bins.by_kind.items():
        rates.append(PlotCurve(at_s, counts / bins.width_s, f"429s, {kind_name(kind)}", hover=per_s))
    panels = [Panel("429s<br>(% of attempts)", (band, refused), scale="percent"), Panel("per second", rates)]
    caption = f"One point per {bin_name(bins.width_s)}, by the time of sending, the whole run; the band is the exact 95% interval."
    buckets = sorted(found.buckets, key=lambda bucket: bucket is not found.binding.bucket)
    bucket = next((one for one in buckets if one.levels is not None), None)
    if bucket is not None and bucket.levels is not None:
        kind = kind_name(bucket.kind)
        name = f"{kind} left at least"
        level = PlotCurve(bucket.levels.at_s, bucket.levels.lowest, name, colour=BLUE, hover="%{y:,.4~g}")
        panels.append(Panel(f"{kind}<br>left in the bucket", (level,)))
        caption += " Below: the lowest level of the bucket in each bin, by the headers."
    yield Picture(
        name="refusals", title="429s over time", caption=caption, panels=panels, height=160 * len(panels) + 60
    )
