"""The live verdict on the measurement: the report's thresholds applied to the workers' last counters.

It cannot see what only the rows show; the report decides.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any, Protocol

from tailgauge import quantile_sketch
from tailgauge.thresholds import (
    BUSY_CPU,
    DEGRADED,
    DROPS,
    INTERVALS,
    INVALID,
    USER_SECONDS,
    VALID,
    WORST_FIRST,
    by_bad_seconds,
    delay_bound_ms,
)

Finding = tuple[str, str]  # verdict, reason


class Watched(Protocol):
    """A worker of the run with its last counters."""

    number: int
    state: str

    @property
    def watch(self) -> dict[str, Any]:
        """The worker's figures for the live verdict."""

    def count(self, name: str) -> int:
        """One of its counts."""


def live_verdict(workers: Sequence[Watched], ttft_p50_ms: float | None = None) -> Finding:
    """The worst verdict with its reason; "" without one."""
    delayed = partial(_delayed, ttft_p50_ms=ttft_p50_ms or 0.0)
    checks = (_lost, _dropped, _stalled, delayed, _blurred, _lagging)
    found = [finding for check in checks if (finding := check(workers)) is not None]
    if not found:
        return VALID, ""
    verdict, reason = min(found, key=lambda finding: WORST_FIRST.index(finding[0]))
    busy = [one for one in workers if one.watch.get("cpu", 0.0) >= BUSY_CPU]
    if busy:
        reason += f"; worker {busy[0].number} is at {busy[0].watch['cpu']:.0%} of its core"
    return verdict, reason


def _lost(workers: Sequence[Watched]) -> Finding | None:
    gone = [str(one.number) for one in workers if one.state in {"lost", "failed"}]
    return (INVALID, f"worker {', '.join(gone)} {'is' if len(gone) == 1 else 'are'} gone") if gone else None


def _dropped(workers: Sequence[Watched]) -> Finding | None:
    drops = sum(one.count("client_drop") for one in workers)
    scheduled = drops + sum(one.count("dispatched") for one in workers)
    if not drops:
        return None
    text = f"{drops:,} of {scheduled:,} requests dropped at the in-flight cap"
    return (INVALID if drops > DROPS * scheduled else DEGRADED), text


def _stalled(workers: Sequence[Watched]) -> Finding | None:
    bad, seconds = _sum(workers, "bad"), _sum(workers, "seconds")
    verdict = by_bad_seconds(bad, seconds)
    if verdict == VALID:
        return None
    worst = max(workers, key=lambda one: one.watch.get("bad", 0.0))
    return (
        verdict,
        f"worker {worst.number} was stalled for {worst.watch['bad']:.0f} of {worst.watch['seconds']:.0f} s",
    )


def _delayed(workers: Sequence[Watched], ttft_p50_ms: float) -> Finding | None:
    delays = quantile_sketch.total(one.watch.get("delays", b"") for one in workers)
    p99 = quantile_sketch.quantile(delays, 0.99)
    if p99 is None or p99 <= delay_bound_ms(ttft_p50_ms):
        return None
    return DEGRADED, f"requests are sent up to {p99:,.0f} ms late (p99)"


def _blurred(workers: Sequence[Watched]) -> Finding | None:
    first, intervals = _sum(workers, "first"), _sum(workers, "intervals")
    if intervals <= INTERVALS * first:
        return None
    return DEGRADED, f"{intervals / first:.1%} of first chunks shared a read with later ones"


def _lagging(workers: Sequence[Watched]) -> Finding | None:
    lagging, seconds = _sum(workers, "lagging"), _sum(workers, "seconds")
    if lagging <= USER_SECONDS * seconds:
        return None
    return DEGRADED, f"user-space timestamps were late in {lagging:.0f} s (busy process)"


def _sum(workers: Sequence[Watched], key: str) -> float:
    return float(sum(one.watch.get(key, 0) for one in workers))
