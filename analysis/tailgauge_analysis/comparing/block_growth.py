"""Growth within alternating blocks: does a variant ask for more than the target can do?

A request waits for all the work before it, so its wait grows within a block by what the variant of this block asks for,
whichever variant left the backlog. A target that slows down instead of letting requests wait holds more and more of them
in the second half of a block. Either is compared, block by block, with a queue at 90% load that starts as long
(stats/stationarity.py). The whole run is judged as any other one, and by what it holds from pair to pair.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from tailgauge_analysis.comparing.comparison import STABLE, Growing
from tailgauge_analysis.comparing.variant_blocks import BlockPairs, VariantBlock
from tailgauge_analysis.metrics.backlog import FEWEST_FOR_GROWTH, LEAST_GROWTH, backlog
from tailgauge_analysis.metrics.waiting import Waiting
from tailgauge_analysis.stats.estimate import Estimate, paired
from tailgauge_analysis.stats.quantiles import Floats, Ints
from tailgauge_analysis.stats.stationarity import (
    BY_CHANCE,
    WINDOWS,
    Stretches,
    chance_of_growth,
    per_arrival,
    smoothed,
    variance_in_windows,
)

TESTS = 4  # two of each variant, which share the chance that a healthy run is called


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockGrowth:
    """How fast requests pile up, per second.

    `of_variants`: the backlog in the blocks of each, None where no growth is shown; `from_pair_to_pair`: the requests in
    flight, from the begin of each pair to that of the next, None for a single pair.
    """

    of_variants: Growing
    from_pair_to_pair: Estimate | None
    grows_throughout: bool


def block_growth(waits: Waiting, pairs: BlockPairs) -> BlockGrowth:
    """Return how fast requests pile up: in the blocks of each variant, from pair to pair, and whether they do over all pairs."""
    begins_s = [min(a.begun_s, b.begun_s) for a, b in pairs]
    ends_s = begins_s[1:]
    whole = None
    if pairs:
        a, b = pairs[-1]
        ends_s.append(max(a.to_s, b.to_s))
        whole = backlog(waits, begins_s[0], ends_s[-1])
    in_flight = _growth_in_flight(waits, list(zip(begins_s, ends_s, strict=True)))
    grows_throughout = whole is not None and whole.grows
    from_pair_to_pair = None
    if in_flight is not None:
        grows_throughout = grows_throughout or in_flight.shown_per_s is not None
        seconds = np.array(ends_s) - np.array(begins_s)
        # Of each pair, the requests in flight at its end less those at its begin.
        change_in_flight = in_flight.queues.sizes
        from_pair_to_pair = paired(change_in_flight / seconds)
    return BlockGrowth(
        of_variants=_of_variants(waits, pairs, grows_throughout=grows_throughout),
        from_pair_to_pair=from_pair_to_pair,
        grows_throughout=grows_throughout,
    )


def _of_variants(waits: Waiting, pairs: BlockPairs, *, grows_throughout: bool) -> Growing:
    """Return the growth of each variant, None where it is not shown.

    What a request waits for is known to be of its variant's own making; requests in flight may wait for those of the other
    one. Where the whole run grows and no block tells by which variant, it is by those that hold more and more.
    """
    a_blocks = [a for a, _ in pairs]
    b_blocks = [b for _, b in pairs]
    for growth in (_growth_of_waits, _growth_in_halves):
        a = growth(waits, a_blocks)
        b = growth(waits, b_blocks)
        shown = (_shown_per_s(a), _shown_per_s(b))
        if shown != STABLE:
            return shown
    if not grows_throughout:
        return STABLE
    return _positive_per_s(a), _positive_per_s(b)


def _shown_per_s(growth: _Growth | None) -> float | None:
    if growth is None:
        return None
    return growth.shown_per_s


def _positive_per_s(growth: _Growth | None) -> float | None:
    if growth is None or growth.per_s <= 0:
        return None
    return growth.per_s


@dataclass(frozen=True, slots=True, kw_only=True)
class _Growth:
    """Growth of queues in stretches of `seconds` together."""

    queues: Stretches
    seconds: float

    @property
    def per_s(self) -> float:
        return float((self.queues.sizes - self.queues.starts).sum()) / self.seconds

    @property
    def shown_per_s(self) -> float | None:
        """The growth where it is a share of the arrivals, and beyond chance."""
        arrivals = float(self.queues.arrivals.sum())
        if arrivals < FEWEST_FOR_GROWTH or self.per_s * self.seconds < LEAST_GROWTH * arrivals:
            return None
        if chance_of_growth(self.queues) >= BY_CHANCE / TESTS:
            return None
        return self.per_s


def _windows(count: int) -> int:
    """Return into how many parts each of so many stretches is cut to see how much the queue varies."""
    return max(2, math.ceil(WINDOWS / count))


def _growth_of_waits(waits: Waiting, blocks: Sequence[VariantBlock]) -> _Growth | None:
    """Return how the queue grows within the blocks of a variant; None below two blocks with answers.

    The queue is how much too long requests wait, as the number of requests that arrive in that time. It is taken at the edges
    of equal windows, so that its variance is known too.
    """
    waits_s = []
    counts = []
    edges_s = []
    for edges, times_s, excess_s in _answered(waits, blocks):
        edges_s.append(edges)
        waits_s.append(np.interp(edges, times_s, excess_s))
        counts.append(np.diff(np.searchsorted(times_s, edges)))
    if len(counts) < 2:
        return None
    arrived: Ints = np.array(counts)
    spans_s: Floats = np.diff(edges_s, axis=1)
    seconds = float(spans_s.sum())
    rate = int(arrived.sum()) / seconds
    queue = rate * np.array(waits_s)
    # The work that comes in a window, in requests at full load; at a higher load it varies by as much more.
    work = np.diff(queue, axis=1) + rate * spans_s
    load = max(1.0, float(work.sum()) / (rate * seconds))
    noise = max(float(arrived.var(ddof=1)), float(work.var(ddof=1)) / load**2)
    queues = Stretches(
        starts=queue[:, 0],
        sizes=queue[:, -1],
        arrivals=arrived.sum(axis=1),
        variance=per_arrival(noise * arrived.size, int(arrived.sum())),
    )
    return _Growth(queues=queues, seconds=seconds)


def _answered(
    waits: Waiting, blocks: Sequence[VariantBlock]
) -> Iterator[tuple[Floats, Floats, Floats]]:
    """Yield the edges of windows, and when requests of the block came and how much too long they waited.

    A block whose requests got no answer is left out: how long they waited is not known.
    """
    excess_s = waits.first_s - waits.begun_s - waits.unqueued_s
    for block in blocks:
        begin, end = np.searchsorted(waits.begun_s, [block.begun_s, block.to_s])
        if end - begin < 2:
            continue
        smooth_s = np.maximum(smoothed(excess_s[begin:end]), 0.0)
        if np.isfinite(smooth_s).all():
            edges = np.linspace(block.begun_s, block.to_s, _windows(len(blocks)) + 1)
            yield edges, waits.begun_s[begin:end], smooth_s


def _growth_in_halves(waits: Waiting, blocks: Sequence[VariantBlock]) -> _Growth | None:
    """Return the growth of the requests in flight in the second halves, which the target had time to fill before."""
    halves = []
    for block in blocks:
        middle_s = (block.begun_s + block.to_s) / 2
        halves.append((middle_s, block.to_s))
    return _growth_in_flight(waits, halves)


def _growth_in_flight(waits: Waiting, spans_s: Sequence[tuple[float, float]]) -> _Growth | None:
    """Return the growth of the requests in flight in stretches of time; None below two."""
    if len(spans_s) < 2:
        return None
    windows = _windows(len(spans_s))
    edges_s = np.array([np.linspace(from_s, to_s, windows + 1) for from_s, to_s in spans_s])
    begun = np.searchsorted(waits.begun_s, edges_s, "right")
    ended = np.searchsorted(np.sort(waits.ended_s), edges_s, "right")
    in_flight = begun - ended
    queues = Stretches(
        starts=np.zeros(len(spans_s)),
        sizes=(in_flight[:, -1] - in_flight[:, 0]).astype(np.float64),
        arrivals=begun[:, -1] - begun[:, 0],
        variance=variance_in_windows(begun, ended),
    )
    return _Growth(queues=queues, seconds=float((edges_s[:, -1] - edges_s[:, 0]).sum()))
