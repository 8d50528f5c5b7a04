"""What retries did: whether they respected retry-after, and how many attempts they added.

Attempts are of the steady stage, each compared with those of the same call (the same leg of the same request). Times are of
one worker's clock.

    violation      an attempt sent before t_429 + retry-after of a 429 of the same call that had arrived by then
    amplification  A = attempts / calls, counting first attempts and retries
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pandas as pd

from tailgauge.limits import WAITS
from tailgauge.rows import schema
from tailgauge_analysis.sections.rate_limits.refusals import refused
from tailgauge_analysis.stats import bootstrap
from tailgauge_analysis.stats.proportions import Proportion, proportion
from tailgauge_analysis.stats.quantiles import Floats, Mask
from tailgauge_analysis.text.formatting import plain

TRIES = (schema.PRIMARY, schema.RETRY)
MUCH = 1.5  # attempts per call: at or above it they are a load of their own


@dataclass(frozen=True, slots=True, kw_only=True)
class RetryAfter:
    """The retry-after headers of 429s, and whether they were respected."""

    with_header: Proportion
    """of the 429s"""
    with_reset: Proportion
    """of the 429s: no such header, but when a limit is reset"""
    asked_p50_s: float | None
    asked_max_s: float | None
    violations: Proportion
    """of the attempts after a 429 of the same call that named a time"""


def retry_after(attempts: pd.DataFrame) -> RetryAfter:
    """Compare attempts in order of sending with the headers of those before."""
    refusals = attempts[refused(attempts)]
    is_named = has_retry_after(refusals)
    named_s = refusals.loc[is_named, "retry_after_s"]
    asked_p50_s = None
    if len(named_s):
        asked_p50_s = float(named_s.quantile(0.5, "lower"))
    asked_max_s = None
    if len(named_s):
        asked_max_s = float(named_s.max())
    return RetryAfter(
        with_header=proportion(is_named),
        with_reset=proportion(refusals["retry_after_s"].notna().to_numpy() & ~is_named),
        asked_p50_s=asked_p50_s,
        asked_max_s=asked_max_s,
        violations=proportion(early_s(attempts) > 0),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Amplification:
    """Attempts per call of one traffic table."""

    traffic: str
    calls: int
    observed: float
    low: float
    high: float

    @property
    def text(self) -> str:
        """`3.2 attempts per call of traffic chat`."""
        return f"{self.observed:.1f} attempts per call of traffic {plain(self.traffic, 60)}"


def has_retry_after(attempts: pd.DataFrame) -> Mask:
    """Return which attempts have a time from a header about retries, and not from the reset of a limit."""
    source = attempts["retry_after_from"]
    is_named = source.isna() | source.isin(WAITS)  # older rows name no source
    return (is_named & attempts["retry_after_s"].notna()).to_numpy(np.bool_)


def early_s(attempts: pd.DataFrame) -> Floats:
    """Return the seconds by which each attempt came before the time that an earlier 429 of its call named; only attempts that had one.

    Both kinds of events are merged by call and time: after a 429 the latest time named so far holds.
    """
    answered_ns = attempts["headers_at_ns"].fillna(attempts["ended_at_ns"])
    has_time = refused(attempts) & has_retry_after(attempts) & answered_ns.notna().to_numpy()
    sent = attempts[attempts["sent_at_ns"].notna()]
    keys = ["request_id", "leg"]
    until_ns = answered_ns[has_time] + attempts.loc[has_time, "retry_after_s"] * 1e9
    # An attempt is sent before its 429, even in the same moment.
    rank = attempts.loc[has_time, "attempt"] + 0.5
    named = attempts.loc[has_time, keys].assign(
        at=answered_ns[has_time], until=until_ns, rank=rank, sent=False
    )
    tries = sent[keys].assign(at=sent["sent_at_ns"], until=np.nan, rank=sent["attempt"], sent=True)
    events = pd.concat([named, tries])
    events = events[events["request_id"].isin(named["request_id"])]
    events = events.sort_values([*keys, "at", "rank"], kind="stable")
    wait_until = (
        events.groupby(keys)["until"].cummax().groupby([events[key] for key in keys]).ffill()
    )
    late = ((wait_until - events["at"]) / 1e9)[events["sent"] & wait_until.notna()]
    return late.to_numpy(np.float64)


def amplification(attempts: pd.DataFrame) -> tuple[Amplification, ...]:
    """Return the attempts per call of each traffic table that retries, by name; tables without a retry have no entry.

    Only first attempts and retries count. The interval is by the bootstrap over requests in order of time.
    """
    first_and_retries = attempts[attempts["cause"].isin(TRIES)]
    entries = []
    for name, rows in first_and_retries.groupby("traffic", observed=True):
        call_count = int((rows["cause"] == schema.PRIMARY).sum())
        if not call_count or call_count == len(rows):
            continue
        order = rows.sort_values(["scheduled_at_ns", "request_id"], kind="stable")
        is_first = order["cause"] == schema.PRIMARY
        by_request = is_first.groupby(order["request_id"], sort=False).agg(["size", "sum"])
        attempts_by_request = by_request["size"].to_numpy(np.float64)
        calls_by_request = by_request["sum"].to_numpy(np.float64)
        low, high = bootstrap.ratio(attempts_by_request, calls_by_request)
        observed = len(rows) / call_count
        entries.append(
            Amplification(
                traffic=str(name), calls=call_count, observed=observed, low=low, high=high
            )
        )
    return tuple(entries)
