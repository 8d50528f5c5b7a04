"""Alternating blocks of one run: which requests count, whether the two variants can be compared, and rows of their figures.

The variant of a block is the table that most of its requests came from. A block counts from its wash-out to its end, a pair
if both blocks are whole and of different variants.

The variants share a target, so one that it does not sustain slows the other one down too, and the difference vanishes. So
three things are checked first. Stability: block_growth.py. Length: five end-to-end p99. Carry-over: whether a block begins
with other requests in flight than it ends with, by its first and last tenth.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from tailgauge.thresholds import FEWEST_PAIRS
from tailgauge_analysis.comparing.effect import NO_VALUE, RATIO, Compared, Effect
from tailgauge_analysis.comparing.pairs import BLOCK_E2E, NEEDED
from tailgauge_analysis.comparing.run_summary import e2e_p99_s
from tailgauge_analysis.metrics.latency import offered_waits
from tailgauge_analysis.metrics.metrics import Metric
from tailgauge_analysis.metrics.steady import Steady
from tailgauge_analysis.metrics.waiting import Waiting
from tailgauge_analysis.stats.contrast import Contrast, mean_contrast, quantile_contrast
from tailgauge_analysis.stats.estimate import by_student, paired
from tailgauge_analysis.stats.quantiles import CONFIDENCE, Floats, Ints, Mask, n_min
from tailgauge_analysis.stats.stationarity import MATTERS, TENTHS
from tailgauge_analysis.text.formatting import figures, plural

MOST_PAIRS = 500
POINTS = 16  # of a tenth at which the requests in flight are counted


@dataclass(frozen=True, slots=True)
class VariantBlock:
    """What counts of a block: its requests of the variant, and from when to when, in seconds of the run; `begun_s`: with its wash-out."""

    requests: Mask
    begun_s: float
    from_s: float
    to_s: float


BlockPairs = Sequence[tuple[VariantBlock, VariantBlock]]  # of A and of B


def block_pairs(
    stage: Steady, variants: tuple[str, str], block_s: float, washout_s: float
) -> BlockPairs:
    """Return the whole blocks of a run in pairs, of A and of B; pairs in which a variant has no request are left out.

    Within a pair the block of A is the one with more requests of A, as either may come first. Requests of the wash-out, the first
    seconds of a block, do not count.
    """
    a_name, b_name = variants
    a_mask = (stage.requests["traffic"] == a_name).to_numpy(np.bool_)
    b_mask = (stage.requests["traffic"] == b_name).to_numpy(np.bool_)
    at_s = stage.requests["scheduled_at_ns"].to_numpy(np.float64) / 1e9 - stage.from_s
    place = np.floor(at_s / block_s).astype(np.int64)
    is_counted = at_s - place * block_s >= washout_s

    def block(mask: Mask, number: int) -> VariantBlock:
        began = stage.from_s + number * block_s
        return VariantBlock(
            mask & is_counted & (place == number),
            begun_s=began,
            from_s=began + washout_s,
            to_s=began + block_s,
        )

    pairs = []
    whole_pairs = int((stage.seconds + 1e-6) // (2 * block_s))
    for pair in range(min(MOST_PAIRS, whole_pairs)):
        a_number = 2 * pair
        b_number = 2 * pair + 1
        if (a_mask & (place == a_number)).sum() <= (a_mask & (place == b_number)).sum():
            a_number, b_number = b_number, a_number
        a = block(a_mask, a_number)
        b = block(b_mask, b_number)
        if a.requests.any() and b.requests.any():
            pairs.append((a, b))
    return pairs


def reasons_against(waits: Waiting, stage: Steady, pairs: BlockPairs, block_s: float) -> list[str]:
    """Return why stable variants cannot be compared."""
    if len(pairs) < FEWEST_PAIRS:
        return [f"{plural(len(pairs), 'pair')} of whole blocks, {NEEDED}"]
    least_s = BLOCK_E2E * (e2e_p99_s(stage) or 0.0)
    if block_s < least_s:
        text = f"blocks of {block_s:g} s are shorter than {BLOCK_E2E} times the end-to-end p99"
        return [f"{text}: set crossover.block_s to at least {math.ceil(least_s)}"]
    carried = carried_over(waits, pairs)
    if not carried:
        return []
    return [f"each block still shows the block before it: {carried}. Use longer blocks"]


def carried_over(waits: Waiting, pairs: BlockPairs) -> str:
    """Return how the requests in flight at the begin of a variant's blocks differ from those at their end; empty if they do not.

    Compared are the first and the last tenth of each block. The difference counts where it is not the same in both variants
    beyond chance, and where begin and end are one request or more apart and a factor of MATTERS.
    """
    from_s = np.array([(a.from_s, b.from_s) for a, b in pairs])
    to_s = np.array([(a.to_s, b.to_s) for a, b in pairs])
    tenth_s = (to_s - from_s) / TENTHS
    at_begin = _in_flight(waits, from_s, from_s + tenth_s)
    at_end = _in_flight(waits, to_s - tenth_s, to_s)
    # By pair and variant: positive where a block begins with more than it ends with.
    falls = at_begin - at_end
    estimate = paired(falls[:, 0] - falls[:, 1])
    if estimate is None or estimate.p_value > 1 - CONFIDENCE:
        return ""
    variant = int(np.abs(falls.mean(axis=0)).argmax())
    begins = at_begin[:, variant].mean()
    ends = at_end[:, variant].mean()
    if abs(begins - ends) < 1 or max(begins, ends) <= MATTERS * min(begins, ends):
        return ""
    return f"{'AB'[variant]} begins its blocks with {figures(begins)} requests in flight and ends them with {figures(ends)}"


def _in_flight(waits: Waiting, from_s: Floats, to_s: Floats) -> Floats:
    """Return the mean requests in flight between these times."""
    points = np.linspace(from_s, to_s, POINTS)
    begun = np.searchsorted(waits.begun_s, points, "right")
    ended = np.searchsorted(np.sort(waits.ended_s), points, "right")
    mean: Floats = (begun - ended).mean(axis=0)
    return mean


def wait_values(metric: Metric, stage: Steady) -> Floats:
    """Return the wait of each request, +inf without an answer; NaN if it is not part, or its user left before the event."""
    if not metric.offered:
        return metric.ns(stage) / 1e6
    waits = offered_waits(metric, stage)
    return np.where(waits.cut | np.isnan(waits.ms), np.nan, waits.values)


# --- rows -----------------------------------------------------------------------------------------------------------


def compared(
    row: Effect, pairs: BlockPairs, values: Floats, counts: Ints | None = None
) -> Compared:
    """Return the row with the figures of both variants, and the estimate of their difference: of its quantile, else of the mean.

    Without an estimate the row has the reason. It counts as inconclusive where only one variant's figure falls among failures.
    `values`: one per request of the stage, or as many as `counts` says; NaN where there is none, +inf without an answer.
    """
    a = [_values_of_block(block, values, counts) for block, _ in pairs]
    b = [_values_of_block(block, values, counts) for _, block in pairs]
    fewest = min(sum(map(len, a)), sum(map(len, b)))
    needed = 1
    if row.p:
        needed = n_min(row.p)
    if fewest < needed:
        return replace(row, why="too few requests", counts=False), None
    contrast = _contrast(row, a, b)
    if contrast is None or not math.isfinite(contrast.a + contrast.b):
        return replace(row, why=NO_VALUE, counts=contrast is not None), None
    if row.scale == RATIO and 0 in {contrast.a, contrast.b}:
        return replace(row, why="is 0"), None
    row = replace(
        row, a=contrast.a, b=contrast.b, change=row.change_of(contrast.value), pairs=len(pairs)
    )
    return row, by_student(contrast.value, contrast.low, contrast.high, len(pairs) - 1)


def _values_of_block(block: VariantBlock, values: Floats, counts: Ints | None) -> Floats:
    is_inside = block.requests
    if counts is not None:
        is_inside = np.repeat(block.requests, counts)
    inside = values[is_inside]
    return inside[~np.isnan(inside)]


def _contrast(row: Effect, a: list[Floats], b: list[Floats]) -> Contrast | None:
    if row.p is None:
        return mean_contrast(a, b)
    return quantile_contrast(a, b, row.p, relative=row.scale == RATIO)
