"""429s: which limit caused each, how many there were and when, and whether one limits the growth of traffic.

The kind of a 429 is the first that applies: the error's code, the bucket that its headers show empty, its message.
Otherwise it is `unknown`.

Shares are of attempts that were sent, with exact (Clopper-Pearson) 95% intervals on effective n, because 429s come
together. Bins are by the time of sending, as wide as those of the timeline.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import pandas as pd

from tailgauge.rows import schema
from tailgauge_analysis.metrics.groupings import of_attempts
from tailgauge_analysis.metrics.timeline import width
from tailgauge_analysis.reading.frames import ended_as
from tailgauge_analysis.reading.rate_limit_headers import (
    INPUT,
    KINDS,
    LIMIT,
    OUTPUT,
    REMAINING,
    REQUESTS,
    TOKENS,
    column,
)
from tailgauge_analysis.stats.proportions import Proportion, proportion
from tailgauge_analysis.stats.quantiles import Floats, Ints, Mask
from tailgauge_analysis.text.quantile import UNPUBLISHED

RAMP = "ramp"
SPEND = "spend"
UNKNOWN = "unknown"
ALL = (*KINDS, RAMP, SPEND, UNKNOWN)

BY_CODE = "error code"
BY_EMPTY = "empty in the headers"
BY_MESSAGE = "message"

# What providers write: Anthropic's and OpenAI's error codes and messages.
_CODES = {
    RAMP: "ramp_limit_exceeded",
    SPEND: "enforced_spend_limit_reached|insufficient_quota|usage limits",
}
_MESSAGES = {
    RAMP: r"acceleration limit",
    INPUT: r"input tokens per min",
    OUTPUT: r"output tokens per min",
    REQUESTS: r"requests per (?:min|day)|\((?:RPM|RPD)\)",
    TOKENS: r"tokens per (?:min|day)|\((?:TPM|TPD)\)",
}


def refused(attempts: pd.DataFrame) -> Mask:
    """Return which attempts got a 429, or an error of the same meaning inside their answer."""
    return ended_as(attempts, schema.RATE_LIMITED)


def rejected(attempts: pd.DataFrame) -> Mask:
    """Return which attempts a limit did not admit; an error behind content is of an attempt that it did."""
    return (attempts["ended"] == schema.RATE_LIMITED).to_numpy(np.bool_)


def kinds(attempts: pd.DataFrame) -> pd.DataFrame:
    """Return the columns `kind` and `how`, one row per 429, under the index of its attempt."""
    rows = attempts[refused(attempts)]
    text = rows["error_body"].fillna("") + " " + rows["error_type"].fillna("")
    evidence = []
    for kind, pattern in _CODES.items():
        evidence.append((kind, BY_CODE, _has(text, pattern)))
    for kind in KINDS:
        evidence.append((kind, BY_EMPTY, rows["limit_kind"] == kind))
    for kind, pattern in _MESSAGES.items():
        evidence.append((kind, BY_MESSAGE, _has(text, pattern)))
    identified = pd.DataFrame({"kind": UNKNOWN, "how": ""}, rows.index, dtype=object)
    for kind, source, applies in reversed(evidence):
        identified.loc[applies.fillna(value=False).astype(bool), ["kind", "how"]] = [kind, source]
    return identified


def _has(text: pd.Series[str], pattern: str) -> pd.Series[bool]:
    return text.astype(str).str.contains(pattern, case=False, regex=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class RateLimitKind:
    """The 429s of one limit among all attempts; `how` names what identified them."""

    kind: str
    attempts: Proportion
    first_at_s: float
    """since the start of the run, its warm-up included"""
    how: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Bins:
    """Counts of the whole run by the time of sending."""

    width_s: int
    at_s: Floats
    attempts: Ints
    refused: Ints
    by_kind: dict[str, Ints]
    left: dict[str, Floats] = field(default_factory=dict, metadata=UNPUBLISHED)
    """by limit, the least share of it that headers showed as left; NaN without one"""

    @property
    def share(self) -> Floats:
        """Return the share of 429s among the attempts of each bin."""
        return np.where(self.attempts > 0, self.refused / np.maximum(self.attempts, 1), np.nan)


@dataclass(frozen=True, slots=True, kw_only=True)
class Shares:
    """429s among the attempts of the steady stage, and how many of its requests met one or ended with one."""

    refused: Proportion
    requests: int
    requests_refused: int
    requests_ended_refused: int
    overloaded: Proportion
    """refused too, but by no limit of the client's"""
    by_kind: tuple[RateLimitKind, ...]


def shares(requests: pd.DataFrame, attempts: pd.DataFrame, kinds: pd.DataFrame) -> Shares:
    """Count the 429s of attempts in order of sending. The first of a limit is that of the whole run."""
    steady = attempts[(attempts["stage"] == schema.STEADY) & attempts["sent_at_ns"].notna()]
    is_429 = refused(steady)
    alike = of_attempts(steady)
    wanted = requests[requests["stage"] == schema.STEADY]
    rows = kinds.loc[steady.index[is_429]]
    first_at_ns = attempts["sent_at_ns"].groupby(kinds["kind"]).min()
    by_kind = []
    for kind, group in rows.groupby("kind", sort=False):
        of_kind = RateLimitKind(
            kind=str(kind),
            attempts=proportion(steady.index.isin(group.index), groupings=alike),
            first_at_s=float(first_at_ns[kind]) / 1e9,
            how=tuple(sorted({*group["how"]} - {""})),
        )
        by_kind.append(of_kind)
    return Shares(
        refused=proportion(is_429, groupings=alike),
        requests=len(wanted),
        requests_refused=int(steady["request_id"][is_429].nunique()),
        requests_ended_refused=int((wanted["ended"] == schema.RATE_LIMITED).sum()),
        overloaded=proportion(ended_as(steady, schema.OVERLOADED), groupings=alike),
        by_kind=tuple(sorted(by_kind, key=lambda limit: -limit.attempts.k)),
    )


def bins(attempts: pd.DataFrame, kinds: pd.DataFrame) -> Bins | None:
    """Return the counts over the whole run without the preflight; None if nothing was sent."""
    sent = attempts[(attempts["stage"] != schema.PREFLIGHT) & attempts["sent_at_ns"].notna()]
    if not len(sent):
        return None
    at_s = np.maximum(0.0, sent["sent_at_ns"].to_numpy(np.float64) / 1e9)
    step = width(float(at_s.max()))
    number = (at_s // step).astype(np.int64)
    count = int(number.max()) + 1
    kind_of = kinds["kind"].reindex(sent.index).to_numpy(object)
    by_kind = {}
    for kind in ALL:
        is_of_kind = kind_of == kind
        if is_of_kind.any():
            by_kind[kind] = np.bincount(number[is_of_kind], minlength=count)
    return Bins(
        width_s=step,
        at_s=(np.arange(count) + 0.5).astype(np.float64) * step,
        attempts=np.bincount(number, minlength=count),
        refused=np.bincount(number[refused(sent)], minlength=count),
        by_kind=by_kind,
        left=_remaining_shares(sent, number, count),
    )


def _remaining_shares(sent: pd.DataFrame, number: Ints, count: int) -> dict[str, Floats]:
    """Return the least share of each limit that the headers of each bin showed as left."""
    levels = {}
    for kind in KINDS:
        names = (column(kind, REMAINING), column(kind, LIMIT))
        if not set(names) <= set(sent.columns):
            continue
        remaining = sent[names[0]].to_numpy(np.float64)
        limit = sent[names[1]].to_numpy(np.float64)
        is_valid = np.isfinite(remaining) & (limit > 0)
        lowest = np.full(count, np.inf)
        np.minimum.at(lowest, number[is_valid], remaining[is_valid] / limit[is_valid])
        levels[kind] = np.where(np.isfinite(lowest), lowest, np.nan)
    return levels
