"""How often an entry should still be there when its text is asked for again, against how often it was.

Rule: over calls whose text was asked for before, one term a text. With l the calls of the text a second over the run and
T the life that its mark asks for:

    sliding    1 - exp(-lT)       Poisson calls, each read begins the life anew
    fixed      lT / (1 + lT)      Poisson calls, only a write does
    renewal    share of the gaps between calls of the same text that were shorter than T: no assumption on arrivals

Renewal is for sliding lives. Its excess over what was observed are misses that expiry does not explain.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pandas as pd

from tailgauge_analysis.sections.cache import shares
from tailgauge_analysis.stats.quantiles import Floats


@dataclass(frozen=True, slots=True)
class Expiry:
    """Shares of the calls whose text came back; `life_s` None where lives differ."""

    calls: int
    texts: int
    life_s: float | None
    sliding: bool
    observed: shares.Share
    by_gaps: float
    by_rate_sliding: float
    by_rate_fixed: float
    excess_misses: int


def expiry(calls: pd.DataFrame, *, sliding: bool) -> Expiry | None:
    """None where no text with a known life came back, or nothing was cached at all."""
    back = calls[calls["gap_ns"].notna() & calls["life_ns"].notna() & calls["counted"]]
    if not len(back) or not (calls["read"] + calls["created"]).any():
        return None
    life = back["life_ns"].to_numpy(np.float64)
    expected = per_text(calls, back) * life
    fresh = (back["gap_ns"] < back["life_ns"]).to_numpy(np.bool_)
    lives = np.unique(life)
    return Expiry(
        calls=len(back),
        texts=int(back["entry"].nunique()),
        life_s=float(lives[0]) / 1e9 if len(lives) == 1 else None,
        sliding=sliding,
        observed=shares.request_hit(back),
        by_gaps=float(fresh.mean()),
        by_rate_sliding=float(np.mean(sliding_hit(expected))),
        by_rate_fixed=float(np.mean(fixed_hit(expected))),
        excess_misses=int((fresh & ~back["hit"].to_numpy(np.bool_)).sum()),
    )


def why_not(calls: pd.DataFrame) -> str:
    """Why there is no expiry to tell of."""
    if not (calls["read"] + calls["created"]).any():
        return "nothing was read or written"
    if not (calls["gap_ns"].notna() & calls["counted"]).any():
        return "no text was asked for again"
    return "how long entries live is not known"


def per_text(calls: pd.DataFrame, back: pd.DataFrame) -> Floats:
    """Calls of each one's text a nanosecond, over the time in which the run sent calls."""
    sent = calls["sent_at_ns"]
    span = max(float(sent.max() - sent.min()), 1.0)
    rates: Floats = (
        back["entry"].map(calls.loc[calls["known"], "entry"].value_counts()).to_numpy(np.float64) / span
    )
    return rates


def sliding_hit(expected: Floats) -> Floats:
    """1 - exp(-lT), `expected` being lT."""
    return -np.expm1(-expected)


def fixed_hit(expected: Floats) -> Floats:
    """lT / (1 + lT)."""
    return expected / (1 + expected)
