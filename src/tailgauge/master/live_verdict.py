"""The verdict so far: what the report would say of the client, were the run to end now.

Rule: from what the workers say each second, by the report's own bounds (`trust`). It cannot see what only the rows
show; the report decides.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial
from typing import Any

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

Said = tuple[str, str]  # verdict, why


@dataclass(slots=True)
class Watched:
    """A worker, its state, and what it last said."""

    worker: int
    state: str = "running"
    dispatched: int = 0
    dropped: int = 0
    watch: dict[str, Any] = field(default_factory=dict)


def so_far(crew: list[Watched], ttft_p50_ms: float | None = None) -> Said:
    """The worst verdict and its reason, which is empty where there is none; `ttft_p50_ms` as it is so far."""
    delayed = partial(_delayed, ttft_p50_ms=ttft_p50_ms or 0.0)
    judges = (_lost, _dropped, _stood, delayed, _blurred, _lagging)
    found = [said for judge in judges if (said := judge(crew)) is not None]
    if not found:
        return VALID, ""
    word, why = min(found, key=lambda said: WORST_FIRST.index(said[0]))
    busy = [one for one in crew if one.watch.get("cpu", 0.0) >= BUSY_CPU]
    if busy:
        why += f"; worker {busy[0].worker} is at {busy[0].watch['cpu']:.0%} of its core"
    return word, why


def _lost(crew: list[Watched]) -> Said | None:
    gone = [str(one.worker) for one in crew if one.state in {"lost", "failed"}]
    return (INVALID, f"worker {', '.join(gone)} {'is' if len(gone) == 1 else 'are'} gone") if gone else None


def _dropped(crew: list[Watched]) -> Said | None:
    drops = sum(one.dropped for one in crew)
    scheduled = drops + sum(one.dispatched for one in crew)
    if not drops:
        return None
    text = f"{drops:,} of {scheduled:,} requests dropped at the in-flight cap"
    return (INVALID if drops > DROPS * scheduled else DEGRADED), text


def _stood(crew: list[Watched]) -> Said | None:
    bad, seconds = _sum(crew, "bad"), _sum(crew, "seconds")
    word = by_bad_seconds(bad, seconds)
    if word == VALID:
        return None
    worst = max(crew, key=lambda one: one.watch.get("bad", 0.0))
    return (
        word,
        f"worker {worst.worker} stood still in {worst.watch['bad']:.0f} of its {worst.watch['seconds']:.0f} s",
    )


def _delayed(crew: list[Watched], ttft_p50_ms: float) -> Said | None:
    delays = quantile_sketch.total(one.watch.get("delays", b"") for one in crew)
    p99 = quantile_sketch.quantile(delays, 0.99)
    if p99 is None or p99 <= delay_bound_ms(ttft_p50_ms):
        return None
    return DEGRADED, f"requests leave up to {p99:,.0f} ms late (p99)"


def _blurred(crew: list[Watched]) -> Said | None:
    first, intervals = _sum(crew, "first"), _sum(crew, "intervals")
    if intervals <= INTERVALS * first:
        return None
    return DEGRADED, f"{intervals / first:.1%} of the first chunks came in one read with later ones"


def _lagging(crew: list[Watched]) -> Said | None:
    lagging, seconds = _sum(crew, "lagging"), _sum(crew, "seconds")
    if lagging <= USER_SECONDS * seconds:
        return None
    return DEGRADED, f"the process stamps its reads itself and was too busy for it in {lagging:.0f} s"


def _sum(crew: list[Watched], key: str) -> float:
    return float(sum(one.watch.get(key, 0) for one in crew))
