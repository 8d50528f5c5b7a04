"""Hit shares and write amplification, with their intervals.

Rule: a share is a ratio of sums over calls in order of time, its interval by the stationary bootstrap; of shares of
calls that are 0 or 1, where every resample is alike, the Clopper-Pearson interval. Below FEW calls there is none.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pandas as pd

from tailgauge_analysis.stats.binomial import clopper_pearson
from tailgauge_analysis.stats.bootstrap import ratio
from tailgauge_analysis.stats.quantiles import Floats

FEW = 20
REPS = 500
TOO_FEW, NONE_MARKED, NOTHING = (
    "too few calls for an interval",
    "the target tells of no writing",
    "nothing was written",
)


@dataclass(frozen=True, slots=True)
class Share:
    """A ratio; None where it cannot be told, `why` says why (or why it has no interval)."""

    value: float | None
    low: float | None
    high: float | None
    n: int
    why: str = ""


def token_hit(calls: pd.DataFrame) -> Share:
    """read / (read + creation + uncached)."""
    return _share(calls, "read", _floats(calls["total"]))


def cacheable_hit(calls: pd.DataFrame) -> Share:
    """read / (read + creation): of what was cached at all, where writing is told."""
    if not calls["created"].any() and not (calls["cache_marks"] > 0).any():
        return Share(None, None, None, len(calls), NONE_MARKED)
    return _share(calls, "read", _floats(calls["read"] + calls["created"]))


def request_hit(calls: pd.DataFrame) -> Share:
    """Share of the calls that read something."""
    return _of_calls(calls["hit"])


def full_hit(calls: pd.DataFrame) -> Share:
    """Share of the calls that read something and wrote nothing."""
    return _of_calls(calls["hit"] & (calls["created"] == 0))


def write_amplification(calls: pd.DataFrame) -> Share:
    """Tokens written / tokens that each text's first writing call wrote: 1 where nothing is written twice."""
    written = calls[calls["created"] > 0]
    if not len(written):
        why = NOTHING if (calls["cache_marks"] > 0).any() else NONE_MARKED
        return Share(None, None, None, len(calls), why)
    first = ~written["entry"].duplicated() | (written["entry"] < 0)
    tokens = _floats(written["created"])
    once = tokens * first.to_numpy(np.float64)
    value = float(tokens.sum() / once.sum())
    if value == 1 or first.sum() < FEW:
        return Share(value, None, None, len(written), "" if value == 1 else "too few texts for an interval")
    return Share(value, *ratio(tokens, once, reps=REPS), len(written))


def saved_share(saved: Floats, without: Floats) -> Share:
    """Cost saved / cost without a cache."""
    if without.sum() <= 0:
        return Share(None, None, None, len(saved), "no input tokens")
    if not saved.any():
        return Share(0.0, None, None, len(saved), "nothing was read or written")
    return _ratio(saved, without)


def _share(calls: pd.DataFrame, over: str, under: Floats) -> Share:
    if under.sum() <= 0:
        return Share(None, None, None, len(calls), "nothing was read or written")
    read = _floats(calls[over])
    if not read.any():
        return Share(0.0, None, None, len(calls), "nothing was read")
    return _ratio(read, under)


def _ratio(over: Floats, under: Floats) -> Share:
    value, n = float(over.sum() / under.sum()), len(over)
    return (
        Share(value, None, None, n, TOO_FEW) if n < FEW else Share(value, *ratio(over, under, reps=REPS), n)
    )


def _of_calls(yes: pd.Series[bool]) -> Share:
    n, k = len(yes), int(yes.sum())
    if not n:
        return Share(None, None, None, 0, "no calls")
    if k in {0, n}:
        return Share(k / n, *clopper_pearson(k, n), n)
    return _ratio(_floats(yes), np.ones(n))


def _floats(values: pd.Series) -> Floats:
    return values.to_numpy(np.float64)
