"""The section on rate limits: its findings, its part of report.json, and its text.

Shares and retries are of the steady stage, buckets of the whole run. There is a section if the run met a 429, saw a
rate-limit header or retried.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pandas as pd

from tailgauge.rows import schema
from tailgauge_analysis.load.frames import Frames
from tailgauge_analysis.load.rate_limit_headers import KINDS, REMAINING, column
from tailgauge_analysis.sections.rate_limits import refusals, retries
from tailgauge_analysis.sections.rate_limits.buckets import Bucket, find_buckets, in_order
from tailgauge_analysis.sections.rate_limits.estimates import WINDOWS_S
from tailgauge_analysis.sections.rate_limits.refusals import (
    Acceleration,
    Bins,
    Shares,
    acceleration,
    bins,
    kinds,
    refused,
    shares,
)
from tailgauge_analysis.sections.rate_limits.token_bucket import MOST_FACTOR
from tailgauge_analysis.text.formatting import plain, plural, share, share_range
from tailgauge_analysis.text.json_values import Json
from tailgauge_analysis.text.quantile import between, plain_values
from tailgauge_analysis.verdict.clocks import clocks

NOTE = (
    "Shares and retries: steady stage. Buckets: whole run with preflight, full at the start. "
    "Growth: how often the same traffic can be repeated before the bucket refuses a call. It depends on the busiest moment of the run."
)
MUCH = 1.5  # attempts per call, above which the answer mentions them
KIND_HEADER = ("limit, steady stage", "429s", "share of attempts", "95% CI", "first at (s)", "identified by")
BUCKET_HEADER = (
    "limit, whole run", "429s", "least remaining", "refill (per second)", "burst", "mean use (of the refill)", "growth to the first 429",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Binding:
    """The limit that is met first; None with the reason."""

    bucket: Bucket | None
    kind: str | None
    how: str | None
    why: str | None


@dataclass(frozen=True, slots=True)
class RateLimits:
    """The findings."""

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
    """The section of a run; None if the run has nothing to do with limits."""
    attempts = in_order(frames)
    run = attempts[attempts["stage"] != schema.PREFLIGHT]
    headed = any(column(kind, REMAINING) in attempts.columns for kind in KINDS)
    retried = (run["cause"] == schema.RETRY).any()
    if not (refused(run).any() or headed or retried) or not len(run):
        return None
    by_kind = kinds(attempts)
    steady = run[run["stage"] == schema.STEADY]
    over_time = bins(run, by_kind)
    found = find_buckets(attempts, by_kind, over_time, frames.run, clocks(frames).between_ns / 1e9)
    first = run.loc[refused(run), "sent_at_ns"].min()
    return RateLimits(
        shares=shares(frames.requests.drop_duplicates("request_id"), attempts, by_kind),
        bins=over_time,
        first_at_s=None if np.isnan(first) else float(first) / 1e9,
        buckets=found,
        binding=binding(found, by_kind.loc[by_kind.index.isin(run.index), "kind"]),
        acceleration=acceleration(run, by_kind),
        retry_after=retries.retry_after(steady),
        amplification=retries.amplification(steady, frames.run["scenario"]),
        synchrony=retries.synchrony(steady),
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


def to_json(found: RateLimits | None) -> Json | None:
    """`rate_limits` of report.json."""
    if found is None:
        return None
    values: Json = plain_values(found)
    buckets, bound = values["buckets"], found.binding
    for facts, one in zip(buckets, found.buckets, strict=True):
        facts |= {
            "target": plain(one.target, 60), "model": plain(one.model, 80), "utilisation": one.utilisation,
        }  # fmt: skip
        if one.use is not None:
            facts["use"]["peak_per_s"] = {
                f"{s} s": peak for s, peak in zip(WINDOWS_S, one.use.peak_per_s, strict=True)
            }
    place = next((i for i, one in enumerate(found.buckets) if one is bound.bucket), None)
    unknown = (
        "an acceleration limit has no bucket" if bound.kind == refusals.RAMP else "its bucket is not known"
    )
    values["binding"]["bucket"] = place
    values["growth"] = (
        buckets[place]["growth"]
        if place is not None
        else {"value": None, "low": None, "high": None, "calls": 0, "why": bound.why or unknown}
    )
    values["retry_after"]["early_from_s"] = list(retries.EDGES_S)
    over_time = values.pop("bins")
    values["whole_run"] = {"attempts": 0, "refused": 0}
    if found.bins is not None:
        over_time["share"] = plain_values(found.bins.share)
        values["whole_run"] = {name: sum(over_time[name]) for name in ("attempts", "refused")}
    values = {**values.pop("shares"), **values, "by_second": over_time}
    return {"sentence": sentence(values), **values}


def kind_name(kind: str) -> str:
    """A kind of limit as a reader calls it."""
    return {"ramp": "acceleration", "spend": "spending"}.get(kind, kind.replace("_", " "))


def sentence(limits: Json) -> str:
    """The answer in one sentence."""
    bound, after, n = limits["binding"], limits["retry_after"], limits["attempts"]
    one = limits["buckets"][bound["bucket"]] if bound["bucket"] is not None else None
    if not limits["refused"]:
        text = f"No 429 in {plural(n, 'attempt')}" if n else "Nothing was sent in the steady stage"
        if limits["overloaded"]["k"]:
            text += f", but {share(limits['overloaded']['value'])} of them got a 529 or 503"
        if one is not None and one["utilisation"] is not None:
            text += f"; the most used limit is {kind_name(one['kind'])}, at {share(one['utilisation'])} of its refill rate"
        return f"{text}{_amplified(limits)}."
    text = f"{share(limits['share'])} of {plural(n, 'attempt')} got a 429"
    if bound["kind"] is not None:
        text += f", most by the limit on {kind_name(bound['kind'])}"
    if one is not None and one["rate"]["value"] is not None:
        at_once = one["burst"]["value"]
        text += f" ({_short(one['rate']['value'])}/s"
        text += f", burst {_short(at_once)})" if at_once is not None else ")"
    if after["violations"]:
        text += f"; {share(after['violation_share'])} of the retries came before retry-after elapsed"
    return f"{text}{_amplified(limits)}."


def _amplified(limits: Json) -> str:
    """Attempts per call of the traffic that retried most, where they are many."""
    worst = max(limits["amplification"], key=lambda one: one["observed"], default=None)
    if worst is None or worst["low"] < MUCH:
        return ""
    return f"; {plain(worst['traffic'], 60)} made {worst['observed']:.1f} attempts per call"


def summary(limits: Json) -> Json:
    """The section as text: `facts` (name, text) and `tables` (caption, header, rows)."""
    tables = (("429s by limit", KIND_HEADER, _kinds(limits)), ("Buckets", BUCKET_HEADER, _buckets(limits)))
    return {"facts": _facts(limits), "tables": [one for one in tables if one[2]]}


def _facts(limits: Json) -> list[tuple[str, str]]:
    rows = [*_rate(limits), ("Growth to the first 429", _growth(limits["growth"]))]
    if limits["refused"] or limits["acceleration"]["coded"]:
        rows.append(("Acceleration limit", _acceleration(limits["acceleration"])))
    rows += _retry_after(limits["retry_after"])
    rows += [
        (f"Retry amplification, {plain(one['traffic'], 60)}", _amplification(one))
        for one in limits["amplification"]
    ]
    if (capped := _capped_burst(limits)) is not None:
        rows.append(("Per-minute limit, but burst is capped", capped))
    wave = limits["synchrony"]
    if wave["retries"]:
        spread = wave["why"] or f"variance / mean per second {_number(wave, 'index')}, 1 if independent"
        n = f"{wave['retries']:,} {'retry' if wave['retries'] == 1 else 'retries'}"
        rows.append(("Synchrony of retries", f"{spread} ({n})"))
    return rows


def _rate(limits: Json) -> list[tuple[str, str]]:
    rows = []
    if limits["attempts"]:
        n = f"n {limits['attempts']:,}, n_eff {limits['n_eff']:,}"
        rows.append(("429 rate", f"{share(limits['share'])} of attempts (95% CI {between(limits)}, {n})"))
    whole = limits["whole_run"]
    if whole["refused"]:
        of = plural(whole["attempts"], "attempt")
        rows.append(("429s of the run", f"{whole['refused']:,} of {of}, warm-up included"))
    if limits["refused"]:
        met = f"{limits['requests_refused']:,} of {limits['requests']:,} met a 429"
        rows.append(("Requests", f"{met}, {limits['requests_ended_refused']:,} ended with one"))
    full = limits["overloaded"]
    if full["k"]:
        rows.append(("529 or 503", f"{share(full['value'])} of attempts (95% CI {between(full)})"))
    if limits["first_at_s"] is not None:
        rows.append(
            ("First 429 of the run", f"{limits['first_at_s']:,.3g} s after the start, warm-up included")
        )
    return rows


def _capped_burst(limits: Json) -> str | None:
    """Headers show capacity that is not there, if a bucket holds much less than its limit per minute."""
    for one in limits["buckets"]:
        left, size = one["remaining"], one["burst"]["high"]
        if one["refused"] and left is not None and size is not None and size < left["limit"] / 2:
            return (
                f"The limit is {left['limit']:,.0f} {kind_name(one['kind'])}/min, but bursts above about "
                f"{_short(one['burst']['value'] or size)} are refused. Headers never showed less than {left['least']:,.0f} left."
            )
    return None


def _retry_after(after: Json) -> list[tuple[str, str]]:
    rows = []
    if after["refused"]:
        text = f"sent with {share(after['share'])} of {plural(after['refused'], '429')}"
        if after["with_header"]:
            text += f" (p50 {_short(after['asked_p50_s'])} s, max {_short(after['asked_max_s'])} s)"
        rows.append(("retry-after", text))
    if after["followed"]:
        ends = share_range(after["violation_low"], after["violation_high"])
        text = f"{after['violations']:,} of {after['followed']:,} ({share(after['violation_share'])}, 95% CI {ends})"
        if after["violations"]:
            text += f", early by {_short(after['early_p50_s'])} s (p50) and at most {_short(after['early_max_s'])} s"
        rows.append(("Retries before retry-after elapsed", text))
    return rows


def _amplification(one: Json) -> str:
    text = f"{one['observed']:.3f} attempts per call (95% CI {one['low']:.3f} – {one['high']:.3f}, {one['calls']:,} calls)"
    if one["predicted"] is None:
        return f"{text}; no prediction: {one['why']}"
    ends = f"{one['predicted_low']:.3f} – {one['predicted_high']:.3f}"
    return (
        f"{text}; {one['predicted']:.3f} ({ends}) predicted for independent failures of {share(one['failed_share'])} "
        f"and at most {one['most_retries']} retries"
    )


def _acceleration(one: Json) -> str:
    if one["found"] is None:
        return f"unknown: {one['why']}"
    if one["found"] == refusals.CERTAIN:
        when = f", the first after {one['first_at_s']:,.3g} s" if one["first_at_s"] is not None else ""
        return f"certain: {plural(one['coded'], '429')} with its error code{when}"
    if one["found"] == refusals.LIKELY:
        return f"likely: {one['growing']:,} of {one['with_headers']:,} 429s came while traffic grew, with capacity left in every bucket"
    return (
        f"not detected: {one['with_capacity']:,} of {one['with_headers']:,} 429s had capacity in every bucket"
    )


def _buckets(limits: Json) -> list[tuple[str, ...]]:
    rows: list[tuple[str, ...]] = []
    several = len({(one["target"], one["model"]) for one in limits["buckets"]}) > 1
    for one in sorted(limits["buckets"], key=lambda b: KINDS.index(b["kind"])):
        left, use = one["remaining"], one["utilisation"]
        rows.append((
            kind_name(one["kind"]) + (f", {one['model']}" if several else ""),
            f"{one['refused']:,}",
            "no header" if left is None else f"{left['least']:,.0f} of {left['limit']:,.0f}",
            _number(one["rate"]), _number(one["burst"]),
            "unknown" if use is None else share(use), _factor(one["growth"]),
        ))  # fmt: skip
    return rows


def _kinds(limits: Json) -> list[tuple[str, ...]]:
    return [
        (kind_name(one["kind"]), f"{one['attempts']:,}", share(one["share"]), between(one),
         f"{one['first_at_s']:,.3g}", ", ".join(one["how"]) or "–")
        for one in limits["by_kind"]
    ]  # fmt: skip


def _number(facts: Json, key: str = "value") -> str:
    """A number with its interval, or why there is none."""
    value, low, high = facts[key], facts["low"], facts["high"]
    if value is None and low is None and high is None:
        return f"unknown: {facts['why']}"
    ends = f"{_short(low)} – {_short(high)}"
    if value is None:
        return f"{ends} ({facts['why']})"
    return _short(value) if low == high else f"{_short(value)} ({ends})"


def _growth(grown: Json) -> str:
    n = f", {grown['calls']:,} calls" if grown["calls"] and grown["low"] is not None else ""
    return f"{_factor(grown)}{n}"


def _factor(grown: Json) -> str:
    """A growth factor with its interval."""
    if grown["value"] is None and grown["low"] is None:
        return f"unknown: {grown['why']}"
    high = f"> {MOST_FACTOR}" if grown["high"] is None else f"{grown['high']:.3g}"
    ends = f"{grown['low']:.3g} – {high}"
    return f"{grown['value']:.3g}x ({ends})" if grown["value"] is not None else f"{ends}x ({grown['why']})"


def _short(value: float | None) -> str:
    """Four figures, and never an exponent."""
    if value is None:
        return "?"
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"
