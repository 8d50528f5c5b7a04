"""The section on rate limits: 429s, the limits behind them, and retries.

Shares and retries are of the steady stage, buckets of the whole run. There is a section if the run met a 429, saw a
rate-limit header or retried. The numbers are computed beside: refusals.py, buckets.py with costs.py and token_bucket.py,
retries.py.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
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
    Remaining,
    find_buckets,
    further_windows,
    growth,
    in_order,
    window_name,
)
from tailgauge_analysis.sections.rate_limits.refusals import refused
from tailgauge_analysis.sections.rate_limits.retries import MUCH
from tailgauge_analysis.sections.rate_limits.token_bucket import MOST_FACTOR, Growth
from tailgauge_analysis.text.cells import share_cell, with_interval
from tailgauge_analysis.text.formatting import bin_name, plain, plural, share, share_range
from tailgauge_analysis.text.picture import GREY, ORANGE, Panel, Picture, PlotCurve
from tailgauge_analysis.text.quantile import UNPUBLISHED
from tailgauge_analysis.text.section import Card, Cell, Section, Table, Value

KEY = "rate_limits"
COMPUTED = (
    "Shares and retries cover the steady stage. Each limit is followed over the whole run, preflight included, as a bucket that is full at the start.",
    "Growth: the multiple of this traffic at which the bucket refuses its first call. It depends on the busiest moment of the run.",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Binding:
    """The limit that is met first; None with the reason."""

    bucket: Bucket | None = field(default=None, metadata=UNPUBLISHED)
    kind: str | None = None
    how: str | None = None
    why: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RateLimits:
    """429s, buckets, binding limit, growth, retry-after, retries; null without 429s, limit headers and retries."""

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
    retry_after: retries.RetryAfter
    amplification: tuple[retries.Amplification, ...]

    @property
    def most_retried(self) -> retries.Amplification | None:
        """Return the attempts per call of the traffic table that retries most."""
        return max(self.amplification, key=lambda table: table.observed, default=None)


def compute(run: Run) -> RateLimits | None:
    """Return what a run shows of limits; None without 429s, limit headers and retries.

    Shares and retries are of the steady stage, buckets of the whole run with its preflight. A column of a header exists only
    if a response had it.
    """
    attempts = in_order(run.frames)
    sent = attempts[attempts["stage"] != schema.PREFLIGHT]
    has_headers = any(column(kind, REMAINING) in attempts.columns for kind in KINDS)
    has_retried = (sent["cause"] == schema.RETRY).any()
    if not (refused(sent).any() or has_headers or has_retried) or not len(sent):
        return None
    by_kind = refusals.kinds(attempts)
    steady = sent[sent["stage"] == schema.STEADY]
    got_429 = refused(sent)
    # The clocks of two workers differ by up to this.
    buckets = find_buckets(attempts, by_kind, run.clocks.between_ns / 1e9)
    binding_limit = binding(buckets, by_kind.loc[sent.index[got_429], "kind"])
    requests = run.frames.requests.drop_duplicates("request_id")
    first_ns = sent.loc[got_429, "sent_at_ns"].min()
    bins = refusals.bins(sent, by_kind)
    run_attempts = 0
    run_refused = 0
    if bins:
        run_attempts = int(bins.attempts.sum())
        run_refused = int(bins.refused.sum())
    first_at_s = None
    if not np.isnan(first_ns):
        first_at_s = float(first_ns) / 1e9
    return RateLimits(
        shares=refusals.shares(requests, attempts, by_kind),
        run_attempts=run_attempts,
        run_refused=run_refused,
        bins=bins,
        first_at_s=first_at_s,
        buckets=buckets,
        further_windows=further_windows(attempts),
        binding=binding_limit,
        growth=_growth_of(binding_limit),
        retry_after=retries.retry_after(steady),
        amplification=retries.amplification(steady),
    )


def binding(buckets: tuple[Bucket, ...], by_kind: pd.Series[str]) -> Binding:
    """Return the limit with most 429s; without a 429 the one that would be met first as the traffic grows."""
    if not len(by_kind):
        used = [bucket for bucket in buckets if bucket.utilisation is not None]
        if not used:
            return Binding(why="no 429, and no limit is known")
        # No burst is known: how much of each rate was used is.
        busiest = max(used, key=lambda bucket: bucket.utilisation or 0.0)
        return Binding(bucket=busiest, kind=busiest.kind, how="highest mean use")
    counts = by_kind[by_kind != refusals.UNKNOWN].value_counts()
    if not len(counts):
        return Binding(why="nothing identifies the limit behind the 429s")
    kind = str(counts.index[0])
    of_kind = [bucket for bucket in buckets if bucket.kind == kind]
    main = max(of_kind, key=lambda bucket: bucket.refused, default=None)
    return Binding(bucket=main, kind=kind, how="most 429s")


def _growth_of(bound: Binding) -> Growth:
    if bound.bucket is not None:
        return growth(bound.bucket)
    is_ramp = bound.kind == refusals.RAMP
    reason = "an acceleration limit has no bucket" if is_ramp else "its bucket is not known"
    return Growth(why=bound.why or reason)


def kind_name(kind: str) -> str:
    """Return a kind of limit as a reader calls it."""
    return {"ramp": "acceleration", "spend": "spending"}.get(kind, kind.replace("_", " "))


def section(limits: RateLimits | None) -> Section | None:
    """Return the section; None where the run has nothing to do with limits."""
    if limits is None:
        return None
    tables = (_kinds(limits), _buckets(limits))
    return Section(
        name="rate-limits",
        title="Rate limits",
        answer=sentence(limits),
        facts=tuple(_facts(limits)),
        tables=tuple(table for table in tables if table.rows),
        figures=tuple(_refusals_over_time(limits.bins)),
        computed=COMPUTED,
        card=_card(limits),
        is_folded=_has_no_rejection(limits),
    )


def _has_no_rejection(limits: RateLimits) -> bool:
    """Return whether no call was rejected, and so none was retried for it."""
    has_retried = any(table.observed > 1.0 for table in limits.amplification)
    return not (limits.run_refused or limits.shares.overloaded.k or has_retried)


def sentence(limits: RateLimits) -> str:
    """Return the answer in one sentence: the 429s and the limit behind them, or that there were none; then traffic with many retries.

    Shares are of the attempts of the steady stage. `binding`: the limit with most 429s, else the one that would be met first.
    """
    refused = limits.shares.refused
    bucket = limits.binding.bucket
    if refused.k:
        text = f"{share(refused.value)} of {plural(refused.n, 'attempt')} got a 429"
        if limits.binding.kind is not None:
            text += f", most by the limit on {kind_name(limits.binding.kind)}"
        if bucket is not None and bucket.rate.value is not None:
            burst_size = bucket.burst.value
            burst = ""
            if burst_size is not None:
                burst = f", burst {_short(burst_size)}"
            text += f" ({_short(bucket.rate.value)}/s{burst})"
        early = limits.retry_after.violations
        if early.k:
            text += f"; {share(early.value)} of the retries came before retry-after elapsed"
    else:
        text = "Nothing was sent in the steady stage"
        if refused.n:
            text = f"No 429 in {plural(refused.n, 'attempt')}"
        overloaded = limits.shares.overloaded
        if overloaded.k:
            text += f", but {share(overloaded.value)} of them got a 529 or 503"
        if bucket is not None and bucket.utilisation is not None:
            used = f"at {share(bucket.utilisation)} of its refill rate"
            text += f"; the most used limit is {kind_name(bucket.kind)}, {used}"
    most_retried = limits.most_retried
    if most_retried is not None and most_retried.low >= MUCH:
        text += f"; {plain(most_retried.traffic, 60)} made {most_retried.observed:.1f} attempts per call"
    return f"{text}."


def _limit_text(kind: str, bucket: Bucket | None) -> str:
    """Name a limit, as its provider does where its size is known: `300 requests per minute, burst 20`."""
    name = kind_name(kind)
    if bucket is None or bucket.rate.value is None:
        return name
    text = (
        f"{_short(MINUTE_S * bucket.rate.value)} {name} per minute ({_short(bucket.rate.value)}/s)"
    )
    size = bucket.burst.value
    if size is None:
        return text
    return f"{text}, burst {_short(size)}"


def _first_429(at_s: float, bucket: Bucket | None) -> str:
    """Say when the first 429 came, which is chance, and how long a full burst lasts on average."""
    text = f"at {at_s:,.3g} s of the run"
    if (
        bucket is None
        or bucket.offered is None
        or not bucket.burst.value
        or bucket.rate.value is None
    ):
        return text
    excess_per_s = (bucket.offered.mean_per_s or 0.0) - bucket.rate.value
    if excess_per_s <= 0:
        return text
    lasts_s = bucket.burst.value / excess_per_s
    burst = f"a full burst of {_short(bucket.burst.value)} lasts {lasts_s:,.2g} s on average"
    return f"{text} (with these arrivals; {burst})"


def _card(limits: RateLimits) -> Card | None:
    """Return the share of 429s and what binds, or the retries; None where neither matters.

    Retries matter from MUCH attempts per call on: they multiply the load whatever the rejection is called.
    """
    refused = limits.shares.refused
    most_retried = limits.most_retried
    has_many_retries = most_retried is not None and most_retried.observed >= MUCH
    if refused.k:
        lines = []
        if limits.binding.kind:
            lines.append(
                f"binding limit: {_limit_text(limits.binding.kind, limits.binding.bucket)}"
            )
        if limits.first_at_s is not None:
            lines.append(f"first 429 {_first_429(limits.first_at_s, limits.binding.bucket)}")
        for table in limits.amplification:
            if table.observed >= MUCH:
                lines.append(table.text)
        return Card(
            label="limits",
            value=share_cell(refused),
            detail="of attempts got 429",
            lines=tuple(lines),
            tone="warn",
        )
    if most_retried is None or not has_many_retries:
        return None
    value = Value(
        f"{most_retried.observed:.1f}", f"{most_retried.low:.1f} – {most_retried.high:.1f}"
    )
    detail = f"per call of traffic {plain(most_retried.traffic, 60)}, the first attempt included"
    others = [table for table in limits.amplification if table is not most_retried]
    texts = tuple(table.text for table in others)
    return Card(label="attempts", value=value, detail=detail, lines=texts, tone="warn")


def _facts(limits: RateLimits) -> Iterator[tuple[str, str]]:
    """Yield the results as names and texts: 429s of the steady stage and of the run, growth, retry-after, retries, windows.

    What did not occur is left out.
    """
    shares = limits.shares
    if shares.refused.n:
        cell = share_cell(shares.refused)
        remarks = [
            f"95% CI {cell.interval}",
            cell.mark,
            f"n {shares.refused.n:,}",
            f"effective n {shares.refused.n_eff:,}",
        ]
        yield "429 rate", f"{cell.text} of attempts ({', '.join(filter(None, remarks))})"
    if limits.run_refused:
        attempts = plural(limits.run_attempts, "attempt")
        yield "429s of the run", f"{limits.run_refused:,} of {attempts}, warm-up included"
    if shares.refused.k:
        requests = f"{shares.requests_refused:,} of {shares.requests:,} requests got a 429"
        yield "Requests", f"{requests}, {shares.requests_ended_refused:,} ended with a 429"
    if shares.overloaded.k:
        yield "529 or 503", f"{with_interval(share_cell(shares.overloaded))} of attempts"
    if limits.first_at_s is not None:
        yield "First 429", _first_429(limits.first_at_s, limits.binding.bucket)
    yield "Traffic growth to the first 429", _growth(limits.growth)
    yield from _retry_after(limits.retry_after)
    for table in limits.amplification:
        interval = f"95% CI {table.low:.3f} – {table.high:.3f}, {table.calls:,} calls"
        yield (
            f"Retry amplification, {plain(table.traffic, 60)}",
            f"{table.observed:.3f} attempts per call ({interval})",
        )
    if limits.further_windows:
        # The windows of the buckets and further ones: the least share of a limit that was left.
        windows = []
        for bucket in limits.buckets:
            if bucket.remaining:
                windows.append((bucket.kind, bucket.remaining))
        windows += [(window.kind, window.remaining) for window in limits.further_windows]
        kind, nearest = min(windows, key=lambda window: window[1].least / window[1].limit)
        yield (
            "Nearest to empty",
            f"{kind_name(kind)} per {window_name(nearest.window_s)}: {_remaining(nearest)} were left",
        )


def _retry_after(waits: retries.RetryAfter) -> Iterator[tuple[str, str]]:
    named = waits.with_header
    early = waits.violations
    if named.n:
        text = f"sent with {share(named.value)} of {plural(named.n, '429')}"
        if named.k:
            text += f" (p50 {_short(waits.asked_p50_s)} s, max {_short(waits.asked_max_s)} s)"
        if waits.with_reset.k:
            text += f"; {share(waits.with_reset.value)} have the reset of a limit instead"
        yield "retry-after", text
    if early.n:
        interval = f"95% CI {share_range(early.low, early.high)}"
        text = f"{early.k:,} of {early.n:,} ({share(early.value)}, {interval})"
        yield "Retries before retry-after elapsed", text


def _kinds(limits: RateLimits) -> Table:
    columns = (
        ("limit", lambda limit: kind_name(limit.kind)),
        ("429s, steady stage", lambda limit: f"{limit.attempts.k:,}"),
        ("share of its attempts", lambda limit: share_cell(limit.attempts)),
        ("first, s of the whole run", lambda limit: f"{limit.first_at_s:,.3g}"),
        ("identified by", lambda limit: ", ".join(limit.how) or "–"),
    )
    return Table.of("429s by limit", limits.shares.by_kind, columns, prose=(4,))


def _buckets(limits: RateLimits) -> Table:
    """Return a table with a row for each bucket, and for each further window of which only the headers are known.

    Names have the model where there are several. A further window has a dash in the columns of buckets.
    """
    several = len({(bucket.target, bucket.model) for bucket in limits.buckets}) > 1

    def name(limit: Bucket | FurtherWindow) -> str:
        """Return the limit with its window, unless that is a minute."""
        text = kind_name(limit.kind)
        remaining = limit.remaining
        if remaining is not None and remaining.window_s != MINUTE_S:
            text += f" per {window_name(remaining.window_s)}"
        if not several:
            return text
        return f"{text}, {plain(limit.model, 80)}"

    def of_bucket(cell: Callable[[Bucket], Cell]) -> Callable[[Bucket | FurtherWindow], Cell]:
        """Return a column with this cell for buckets, and a dash for further windows."""

        def cell_of(limit: Bucket | FurtherWindow) -> Cell:
            if not isinstance(limit, Bucket):
                return "–"
            return cell(limit)

        return cell_of

    columns = (
        ("limit, whole run", name),
        ("429s", of_bucket(lambda bucket: f"{bucket.refused:,}")),
        ("least remaining", _remaining_cell),
        ("refill (per second)", of_bucket(lambda bucket: _estimate(bucket.rate))),
        ("burst", of_bucket(lambda bucket: _estimate(bucket.burst))),
        ("mean use (of the refill)", of_bucket(_used)),
    )
    buckets = sorted(limits.buckets, key=lambda bucket: KINDS.index(bucket.kind))
    rows: list[Bucket | FurtherWindow] = [*buckets, *limits.further_windows]
    return Table.of("Buckets", rows, columns, " ".join(_bucket_notes(buckets)))


def _bucket_notes(buckets: Sequence[Bucket]) -> list[str]:
    """Return why numbers are unknown, and which buckets refused calls although their headers showed much of the limit as left.

    A bucket with a small burst does so: the limit is that of a whole window.
    """
    reasons = set()
    for bucket in buckets:
        for reason in (bucket.rate.why, bucket.burst.why):
            if reason is not None:
                reasons.add(f"{kind_name(bucket.kind)}: {reason}")
    notes = []
    if reasons:
        notes.append(f"Unknown: {'; '.join(sorted(reasons))}.")
    for bucket in buckets:
        remaining = bucket.remaining
        burst_size = bucket.burst.value
        if not bucket.refused or remaining is None or not burst_size:
            continue
        if burst_size < remaining.limit / 2 < remaining.least:
            kind = kind_name(bucket.kind).capitalize()
            notes.append(
                f"{kind}: calls were refused with {_remaining(remaining)} left, because the burst is only {_short(burst_size)}."
            )
    return notes


def _used(bucket: Bucket) -> str:
    if bucket.utilisation is None:
        return "unknown"
    return share(bucket.utilisation)


def _remaining(remaining: Remaining) -> str:
    return f"{remaining.least:,.0f} of {remaining.limit:,.0f}"


def _remaining_cell(limit: Bucket | FurtherWindow) -> str:
    if limit.remaining is None:
        return "no header"
    return _remaining(limit.remaining)


def _estimate(estimate: Estimate) -> Value:
    """Return a number with its interval; of an unknown one the interval, if there is one."""
    text = "unknown"
    if estimate.value is not None:
        text = _short(estimate.value)
    if estimate.low == estimate.high:
        return Value(text)
    return Value(text, f"{_short(estimate.low)} – {_short(estimate.high)}")


def _growth(growth: Growth) -> str:
    """Return the factor by which the traffic can grow with its interval, as `1.2x (95% CI 1.1 – 1.4, 2,000 calls)`, or why it is not known.

    `high` is None where it is beyond MOST_FACTOR; a factor with bounds only has a reason.
    """
    if growth.low is None:
        return f"unknown: {growth.why}"
    value = "unknown"
    if growth.value is not None:
        value = f"{growth.value:.3g}x"
    high = f"> {MOST_FACTOR}"
    if growth.high is not None:
        high = f"{growth.high:.3g}"
    calls = ""
    if growth.calls:
        calls = f", {growth.calls:,} calls"
    reason = ""
    if growth.value is None:
        reason = f": {growth.why}"
    return f"{value} (95% CI {growth.low:.3g} – {high}{calls}){reason}"


def _short(value: float | None) -> str:
    """Return four figures, and never an exponent."""
    if value is None:
        return "?"
    if abs(value) >= 1000:
        return f"{value:,.0f}"
    return f"{value:.4g}"


# --- figure -------------------------------------------------------------------------------------------------------


def _refusals_over_time(bins: refusals.Bins | None) -> Iterator[Picture]:
    """Draw the share of 429s, the rates of attempts and 429s, and what headers showed as left, over the whole run; nothing without a 429.

    Levels are drawn only of limits that headers name.
    """
    if bins is None or not bins.refused.any():
        return
    refused = PlotCurve(bins.at_s, 100 * bins.share, "429s", colour=ORANGE, hover="%{y:.3~g}%")
    per_s = "%{y:,.4~g}/s"
    attempts = bins.attempts / bins.width_s
    rates = [PlotCurve(bins.at_s, attempts, "attempts", colour=GREY, dash="dot", hover=per_s)]
    for kind, counts in bins.by_kind.items():
        rates.append(
            PlotCurve(bins.at_s, counts / bins.width_s, f"429s, {kind_name(kind)}", hover=per_s)
        )
    panels = [
        Panel("429s<br>(% of attempts)", (refused,), scale="percent"),
        Panel("per second", rates),
    ]
    caption = f"One point per {bin_name(bins.width_s)}, by time of sending, over the whole run."
    levels = []
    for kind, shares in bins.left.items():
        levels.append(
            PlotCurve(bins.at_s, 100 * shares, f"left, {kind_name(kind)}", hover="%{y:.3~g}% left")
        )
    if levels:
        panels.append(Panel("bucket level<br>(% left)", levels, scale="percent"))
        caption += " Bucket level: the least that the headers of the responses show as left."
    yield Picture(
        name="refusals",
        title="429s over time",
        caption=caption,
        panels=panels,
        height=420 if levels else 360,
    )
