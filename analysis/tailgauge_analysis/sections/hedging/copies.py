"""Hedged legs: primary attempt and hedge side by side, and whether both are slow together, which limits hedging.

One row per hedged leg, in order of time. The winner is the call that was not closed and got content, or that the target ended; a leg
that neither answered (both failed, or both were closed with their request) has no winner and no loser. Times of content are
since the first byte of the same call was sent.

Slow together: a call is slow if it has no content after u; one that was closed is "longer than this" (Kaplan-Meier), one
that failed before content is left out.

    fixed, adaptive, single_r   u = the median delay of the copies, until which no first call is ever closed:
                                P(first slow) from all first calls, P(copy slow | first slow) from the copies
    immediate                   of two copies only the faster is known. P(both slow) = P(no content after u) with u the p90 of
                                the control, whose calls also give P(slow); without a control nothing is known

    product      P(slow)^2, what it would be of independent copies
    correlation  (P(both slow) - P(slow)^2) / (P(slow)(1 - P(slow)))
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd

from tailgauge.rows import schema
from tailgauge_analysis.metrics.answers import LEFT, by_request
from tailgauge_analysis.stats.proportions import proportion
from tailgauge_analysis.stats.quantiles import Floats, Mask, rank
from tailgauge_analysis.stats.survival import Waits

KEYS = ["request_id", "leg"]
PROMPT = ("input_tokens", "cache_read_input_tokens", "cache_creation_input_tokens")
OF_COPY = [
    "attempt", "ended", "status", "sent_at_ns", "first_content_at_ns", "ended_at_ns", "chunks", "output_tokens",
    *PROMPT, "cache_creation_5m_input_tokens", "cache_creation_1h_input_tokens", "asked_model", "model", "target",
    "service_tier", "speed", "fallback", "iterations", "usage_marks", "error_type", "error_class",
]  # fmt: skip
FEWEST = 20  # copies, below which their dependence is not estimated
NOTHING = "the hedges were sent at once: only a control can show what is slow"


@dataclass(frozen=True, slots=True)
class Copies:
    """Rows of the primary attempts and of the hedges, in the same order."""

    legs: pd.DataFrame  # KEYS, and the output tokens that the request asked for
    first: pd.DataFrame
    copy: pd.DataFrame
    copy_won: Mask
    first_won: Mask

    @property
    def decided(self) -> Mask:
        """Which legs have a winner."""
        return self.copy_won | self.first_won

    @property
    def delay_ms(self) -> Floats:
        """Time from sending the primary attempt to sending the hedge."""
        return ((self.copy["sent_at_ns"] - self.first["sent_at_ns"]) / 1e6).to_numpy(np.float64)

    def winners(self) -> pd.DataFrame:
        """The attempt of each decided leg that won."""
        rows = self.copy.where(pd.Series(self.copy_won), self.first)
        return rows[self.decided].reset_index(drop=True)

    def losers(self) -> pd.DataFrame:
        """The attempt of each decided leg that lost, with KEYS."""
        rows = self.first.where(pd.Series(self.copy_won), self.copy)
        return pd.concat([self.legs, rows], axis=1)[self.decided].reset_index(drop=True)


def copies(requests: pd.DataFrame, attempts: pd.DataFrame) -> Copies:
    """The hedged legs of one traffic table."""
    sent = attempts[attempts["cause"] == schema.HEDGE].drop_duplicates(KEYS)
    keys = [*KEYS, "attempt"]
    firsts = attempts[attempts["cause"] != schema.HEDGE].drop_duplicates(keys).set_index(keys)
    beside = sent["of_attempt"].fillna(0).astype("int64")
    places = firsts.index.get_indexer(pd.MultiIndex.from_arrays([sent["request_id"], sent["leg"], beside]))
    sent, places = sent[places >= 0], places[places >= 0]
    first = firsts.reset_index().iloc[places].reset_index(drop=True)
    copy = sent.reset_index(drop=True)
    limit = copy["request_id"].map(by_request(requests)["asked_output_tokens"])
    legs = copy[KEYS].assign(asked_output_tokens=limit)
    copy_won = _answered(copy) & ~_ok(first)
    return Copies(legs, first[OF_COPY], copy[OF_COPY], copy_won, _answered(first) & ~copy_won)


def _ok(rows: pd.DataFrame) -> Mask:
    return rows["ended"].isin(schema.SERVED).to_numpy(np.bool_)


def _answered(rows: pd.DataFrame) -> Mask:
    with_content = rows["first_content_at_ns"].notna() & ~rows["ended"].isin(LEFT)
    return _ok(rows) | with_content.to_numpy(np.bool_)


@dataclass(frozen=True, slots=True)
class Slowness:
    """How slow the attempts of hedged legs were together. Numbers are None where `why` has the reason."""

    slower_than_ms: float | None = None
    calls: int = 0
    slow_share: float | None = None
    copies: int = 0
    copy_slow_share: float | None = None  # of the copies of slow calls
    both_slow: float | None = None
    product: float | None = None
    correlation: float | None = None
    correlation_low: float | None = None
    correlation_high: float | None = None
    why: str = ""


def slowness(found: Copies, firsts: pd.DataFrame, control: pd.DataFrame | None) -> Slowness:
    """`firsts` are all first calls of the variant, `control` those of the control."""
    if len(found.copy) < FEWEST:
        return Slowness(copies=len(found.copy), why=f"fewer than {FEWEST} hedges")
    u = float(np.median(found.delay_ms))
    if u <= 1:
        return _at_once(found, control)
    slow = _waits(firsts).beyond(u).value or 0.0
    late = _waits(found.copy).beyond(u)
    if late.value is None:
        return Slowness(u, len(firsts), slow, late.n, why=f"no hedge was open for {u:,.4g} ms")
    return _joined(u, len(firsts), slow, late.n, (late.value, late.low, late.high))


def _at_once(found: Copies, control: pd.DataFrame | None) -> Slowness:
    waits = _waits(control) if control is not None else None
    if waits is None or waits.seen.sum() < FEWEST:
        return Slowness(copies=len(found.copy), why=NOTHING)
    times = np.sort(waits.ms[waits.seen])
    u = float(times[rank(len(times), 0.9) - 1])
    slow = float((times > u).mean())
    at = found.winners()["first_content_at_ns"].to_numpy(np.float64)
    waited = (at - found.first["sent_at_ns"].to_numpy(np.float64)[found.decided]) / 1e6
    both_slow = proportion(waited[~np.isnan(waited)] > u)
    if both_slow.value is None or not slow:
        return Slowness(copies=len(found.copy), why=NOTHING)
    shares = (both_slow.value, both_slow.low, both_slow.high)
    given = [None if share is None else min(1.0, share / slow) for share in shares]
    return _joined(u, len(times), slow, both_slow.n, given)


def _joined(u: float, calls: int, slow: float, copies: int, given: Sequence[float | None]) -> Slowness:
    """`given`: the share of slow copies beside slow calls, and the ends of its interval."""
    rho, low, high = (None if one is None or slow >= 1 else (one - slow) / (1 - slow) for one in given)
    share = given[0] or 0.0
    return Slowness(u, calls, slow, copies, share, slow * share, slow * slow, rho, low, high)


def _waits(rows: pd.DataFrame) -> Waits:
    """TTFT since sent in ms, or until closed; failures before content left out."""
    has_content = rows["first_content_at_ns"].notna().to_numpy(np.bool_)
    closed = rows["ended"].isin((*LEFT, schema.TIMEOUT)).to_numpy(np.bool_)
    until = rows["first_content_at_ns"].where(has_content, rows["ended_at_ns"])
    times = ((until - rows["sent_at_ns"]) / 1e6).to_numpy(np.float64)
    kept = (has_content | closed) & ~np.isnan(times)
    return Waits(times[kept], has_content[kept], ~has_content[kept])
