"""Whether copies are slow together: what hedging can bring at all depends on it.

Rule: TTFT since each copy's own first byte. A call is slow if it has no content after u; a copy that was closed says
"longer than this" (Kaplan-Meier), one that failed before content says nothing.

    fixed, adaptive, single_r   u = the median delay of the copies, until which no first call is ever closed:
                                P(first slow) from all first calls, P(copy slow | first slow) from the copies
    immediate                   of two copies only the faster is seen. P(both slow) = P(no content after u) with u the p90 of
                                the control, whose calls also say what P(slow) is; without a control nothing is known

    product      P(slow)^2, what it would be of independent copies
    correlation  (P(both slow) - P(slow)^2) / (P(slow)(1 - P(slow)))
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import pandas as pd

from tailgauge.rows import schema
from tailgauge_analysis.sections.hedging.copies import CLOSED, Copies, Mask
from tailgauge_analysis.stats.quantiles import Floats, rank
from tailgauge_analysis.stats.shares import counted, portion
from tailgauge_analysis.stats.survival import Z, curve

FEWEST = 20  # copies, below which nothing is said
NOTHING = "the copies were sent at once: only a control could tell what is slow"


@dataclass(frozen=True, slots=True)
class Slowness:
    """Of the hedged legs. Numbers are None where `why` says why."""

    slower_than_ms: float | None = None
    calls: int = 0
    slow_share: float | None = None
    copies: int = 0
    copy_slow_share: float | None = None  # of the copies of slow calls
    copy_slow_low: float | None = None
    copy_slow_high: float | None = None
    both_slow: float | None = None
    product: float | None = None
    correlation: float | None = None
    correlation_low: float | None = None
    correlation_high: float | None = None
    why: str = ""


def slowness(found: Copies, firsts: pd.DataFrame, control: pd.DataFrame | None) -> Slowness:
    """`firsts` are all first calls of the arm, `control` those of the control."""
    if len(found.copy) < FEWEST:
        return Slowness(copies=len(found.copy), why=f"fewer than {FEWEST} copies")
    u = float(np.median(found.delay_ms))
    if u <= 1:
        return _at_once(found, control)
    times, seen = _waits(firsts)
    slow, *_ = _longer(times, seen, u)
    times, seen = _waits(found.copy)
    if not (times > u).any() and not seen.all():  # the curve ends before u: it would say 0 of what nobody saw
        return Slowness(u, len(firsts), slow, len(times), why=f"no copy was watched for {u:,.4g} ms")
    share, low, high = _longer(times, seen, u)
    return _joined(u, len(firsts), slow, len(times), (share, low, high))


def _at_once(found: Copies, control: pd.DataFrame | None) -> Slowness:
    times, seen = _waits(control) if control is not None else (np.empty(0), np.empty(0, np.bool_))
    times = np.sort(times[seen])
    if len(times) < FEWEST:
        return Slowness(copies=len(found.copy), why=NOTHING)
    u = float(times[rank(len(times), 0.9) - 1])
    slow = float((times > u).mean())
    at = found.winners()["first_content_at_ns"].to_numpy(np.float64)
    waited = (at - found.first["sent_at_ns"].to_numpy(np.float64)[found.decided]) / 1e6
    both = portion(waited[~np.isnan(waited)] > u)
    if both.value is None or not slow:
        return Slowness(copies=len(found.copy), why=NOTHING)
    ends = [None if b is None else min(1.0, b / slow) for b in (both.value, both.low, both.high)]
    return _joined(u, len(times), slow, both.n, (ends[0] or 0.0, ends[1], ends[2]))


def _joined(
    u: float, calls: int, slow: float, copies: int, given: tuple[float, float | None, float | None]
) -> Slowness:
    def correlation(share: float | None) -> float | None:
        return None if share is None or slow >= 1 else (share - slow) / (1 - slow)

    share, low, high = given
    return Slowness(
        u, calls, slow, copies, share, low, high, slow * share, slow * slow,
        correlation(share), correlation(low), correlation(high),
    )  # fmt: skip


def _waits(rows: pd.DataFrame) -> tuple[Floats, Mask]:
    """TTFT since sent in ms, or until closed, and whether content was seen; failures before content left out."""
    seen = rows["first_content_at_ns"].notna().to_numpy(np.bool_)
    closed = rows["ended"].isin((*CLOSED, schema.TIMEOUT)).to_numpy(np.bool_)
    until = rows["first_content_at_ns"].where(seen, rows["ended_at_ns"])
    times = ((until - rows["sent_at_ns"]) / 1e6).to_numpy(np.float64)
    kept = (seen | closed) & ~np.isnan(times)
    return times[kept], seen[kept]


def _longer(times: Floats, seen: Mask, u: float) -> tuple[float, float | None, float | None]:
    """Share that waits longer than u, with its interval; exact where nothing was cut short before."""
    before = times <= u
    if not (before & ~seen).any():
        exact = counted(int((~before).sum()), len(times))
        return exact.value or 0.0, exact.low, exact.high
    c = curve(times, seen)
    place = int(np.searchsorted(c.at, u, side="right")) - 1
    share = float(c.share[place]) if place >= 0 else 1.0
    if place < 0 or share <= 0:
        return share, None, None
    log = math.log(share)
    error = math.sqrt(float(c.greenwood[place])) / abs(log)
    return share, share ** math.exp(Z * error), share ** math.exp(-Z * error)
