"""Shares with their intervals: hit rates, write amplification, the part of the cost that was saved; expiry; what Poisson calls would hit.

A rate is a ratio of sums over calls in order of time, its interval by the stationary bootstrap. A rate of calls that is 0 or
1 has the Clopper-Pearson interval, because every resample is alike. Below FEW calls there is none.

Expiry compares how often an entry should still be there when its text is requested again with how often it was, over the
calls whose text was requested before: the share of the gaps between calls of the same text that were shorter than the life
that its mark sets. This assumes sliding lives, which each read renews. Calls within that life that read nothing are misses that
expiry does not explain.
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
TOO_FEW = "too few calls for an interval"
NONE_MARKED = "the target does not report cache writes"


@dataclass(frozen=True, slots=True)
class Share:
    """A ratio; `why` is the reason where it is None, or has no interval."""

    value: float | None
    low: float | None
    high: float | None
    n: int
    why: str = ""


def token_hit(calls: pd.DataFrame) -> Share:
    """Return read / (read + creation + uncached)."""
    return _read_of(calls, calls["total"])


def cacheable_hit(calls: pd.DataFrame) -> Share:
    """Return read / (read + creation): of what was cached at all, where the target reports writes."""
    if not calls["created"].any() and not (calls["cache_marks"] > 0).any():
        return Share(None, None, None, len(calls), NONE_MARKED)
    return _read_of(calls, calls["read"] + calls["created"])


def request_hit(calls: pd.DataFrame) -> Share:
    """Return the share of the calls that read something."""
    return _of_calls(calls["hit"])


def write_amplification(calls: pd.DataFrame) -> Share:
    """Return tokens written / tokens that each text's first writing call wrote: 1 where nothing is written again."""
    written = calls[calls["created"] > 0]
    if not len(written):
        is_marked = (calls["cache_marks"] > 0).any()
        return Share(
            None, None, None, len(calls), "nothing was written" if is_marked else NONE_MARKED
        )
    is_first = ~written["entry"].duplicated() | (written["entry"] < 0)
    tokens = _floats(written["created"])
    first_tokens = tokens * is_first.to_numpy(np.float64)
    value = float(tokens.sum() / first_tokens.sum())
    if value == 1 or is_first.sum() < FEW:
        return Share(
            value, None, None, len(written), "" if value == 1 else "too few texts for an interval"
        )
    return Share(value, *ratio(tokens, first_tokens, reps=REPS), len(written))


def saved_share(saved: Floats, uncached_cost: Floats) -> Share:
    """Return cost saved / cost without a cache."""
    if uncached_cost.sum() <= 0:
        return Share(None, None, None, len(saved), "no input tokens")
    if not saved.any():
        return Share(0.0, None, None, len(saved), "nothing was read or written")
    return _ratio(saved, uncached_cost)


def _read_of(calls: pd.DataFrame, tokens: pd.Series[int]) -> Share:
    if tokens.sum() <= 0:
        return Share(None, None, None, len(calls), "nothing was read or written")
    if not calls["read"].any():
        return Share(0.0, None, None, len(calls), "nothing was read")
    return _ratio(_floats(calls["read"]), _floats(tokens))


def _ratio(numerator: Floats, denominator: Floats) -> Share:
    value = float(numerator.sum() / denominator.sum())
    n = len(numerator)
    if n < FEW:
        return Share(value, None, None, n, TOO_FEW)
    return Share(value, *ratio(numerator, denominator, reps=REPS), n)


def _of_calls(yes: pd.Series[bool]) -> Share:
    n = len(yes)
    k = int(yes.sum())
    if not n:
        return Share(None, None, None, 0, "no calls")
    if k in {0, n}:
        return Share(k / n, *clopper_pearson(k, n), n)
    return _ratio(_floats(yes), np.ones(n))


def _floats(values: pd.Series) -> Floats:
    return values.to_numpy(np.float64)


@dataclass(frozen=True, slots=True, kw_only=True)
class Expiry:
    """Shares of the calls whose text came back; `life_s` None where lives differ."""

    calls: int
    texts: int
    life_s: float | None
    sliding: bool
    observed: Share
    by_gaps: float
    excess_misses: int


def expiry(calls: pd.DataFrame, *, sliding: bool) -> Expiry | None:
    """Return the expiry; None where no text with a known life came back, or nothing was cached at all."""
    back = calls[calls["gap_ns"].notna() & calls["life_ns"].notna() & calls["counted"]]
    if not len(back) or not (calls["read"] + calls["created"]).any():
        return None
    life = back["life_ns"].to_numpy(np.float64)
    lives = np.unique(life)
    fresh = (back["gap_ns"] < back["life_ns"]).to_numpy(np.bool_)
    life_s = None
    if len(lives) == 1:
        life_s = float(lives[0]) / 1e9
    return Expiry(
        calls=len(back),
        texts=int(back["entry"].nunique()),
        life_s=life_s,
        sliding=sliding,
        observed=request_hit(back),
        by_gaps=float(fresh.mean()),
        excess_misses=int((fresh & ~back["hit"].to_numpy(np.bool_)).sum()),
    )


def why_not(calls: pd.DataFrame) -> str:
    """Return why there is no expiry."""
    if not (calls["read"] + calls["created"]).any():
        return "nothing was read or written"
    if not (calls["gap_ns"].notna() & calls["counted"]).any():
        return "no call had exactly the same prefix as an earlier call"
    return "the TTL of the entries is not known"


def sliding_hit(expected: Floats) -> Floats:
    """Return the share of Poisson calls that hit where each read renews the life: 1 - exp(-lT), `expected` being lT."""
    return -np.expm1(-expected)


def fixed_hit(expected: Floats) -> Floats:
    """Return the share of Poisson calls that hit where only a write renews the life: lT / (1 + lT)."""
    return expected / (1 + expected)
