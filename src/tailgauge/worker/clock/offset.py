"""One clock offset for a whole run, from the pings between a worker and its master.

Rule: pure. A ping gives the offset within half its round trip (clock.offset_from_ping). Delays only add, so of every
WINDOW pings one after the other the tightest is kept. The rows of a worker are moved by one offset, so that what lies
between two of them stays an interval of one clock: the middle of all that the kept pings allow, with an error that holds
at each of them, and between them wherever the clocks drift evenly. With pings p of offset o and error e:

    offset   (min(o - e) + max(o + e)) / 2        error   (max(o + e) - min(o - e)) / 2
    drift    slope of the kept offsets over time, least squares
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tailgauge.clock import Offset

WINDOW = 8
EVERY_S = 5
DRIFT_FROM_NS = 10_000_000_000  # over less, a drift is lost in the errors of the pings


@dataclass(frozen=True, slots=True)
class Ping:
    """What one ping said, and when it came back by the worker's clock."""

    at_ns: int
    offset: Offset


@dataclass(frozen=True, slots=True)
class RunOffset:
    """master clock = worker clock + offset_ns, within error_ns during the pings; `drift_ppb`, parts in 10^9, where known."""

    offset_ns: int
    error_ns: int
    drift_ppb: int | None


def tightest(pings: Sequence[Ping], window: int = WINDOW) -> list[Ping]:
    """Of every `window` pings the one with the smallest error; the last window ends with the last ping, and what is left
    over belongs to the one before it.
    """
    windows = len(pings) // window
    starts = [window * i for i in range(windows - 1)] + [len(pings) - window] if windows > 1 else [0]
    held = [pings[a:b] for a, b in zip(starts, [*starts[1:], len(pings)], strict=True)]
    return [min(some, key=lambda p: p.offset.error_ns) for some in held if some]


def over_run(pings: Sequence[Ping]) -> RunOffset:
    """The offset of a run with these pings, of which there is one at least."""
    kept = tightest(pings)
    low = min(p.offset.offset_ns - p.offset.error_ns for p in kept)
    high = max(p.offset.offset_ns + p.offset.error_ns for p in kept)
    return RunOffset((low + high) // 2, (high - low + 1) // 2, _drift_ppb(kept))


def _drift_ppb(kept: Sequence[Ping]) -> int | None:
    first = kept[0]
    at = [p.at_ns - first.at_ns for p in kept]
    if at[-1] < DRIFT_FROM_NS:
        return None
    by = [p.offset.offset_ns - first.offset.offset_ns for p in kept]
    n, mean = len(kept), sum(at) / len(kept)
    spread = sum((t - mean) ** 2 for t in at)
    return round(1e9 * sum((t - mean) * (o - sum(by) / n) for t, o in zip(at, by, strict=True)) / spread)
