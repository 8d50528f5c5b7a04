"""Rows of B against A from alternating blocks: two traffic tables of one run, or the same traffic directly and through a gateway."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from tailgauge.rows import schema
from tailgauge_analysis.comparing import gateway
from tailgauge_analysis.comparing.block_growth import block_growth
from tailgauge_analysis.comparing.comparison import STABLE, Comparison, Method, conclude
from tailgauge_analysis.comparing.effect import (
    Compared,
    decide,
    deciding_first,
    row_templates,
    unequal_work,
    with_power,
)
from tailgauge_analysis.comparing.pairs import THRESHOLD, few_pairs
from tailgauge_analysis.comparing.run_summary import ANSWERED_SHARE, METRICS, primary, work
from tailgauge_analysis.comparing.variant_blocks import (
    BlockPairs,
    VariantBlock,
    block_pairs,
    compared,
    reasons_against,
    wait_values,
)
from tailgauge_analysis.metrics.metrics import BY_NAME
from tailgauge_analysis.metrics.steady import Steady
from tailgauge_analysis.metrics.waiting import waiting
from tailgauge_analysis.reading.frames import Frames
from tailgauge_analysis.text.json_values import number, table, text

METHOD = Method(
    name="comparison",
    title="A/B comparison in alternating blocks",
    computed="The figures of a variant cover all its blocks. The 95% interval comes from a bootstrap over pairs of blocks, and p from a Student's t test with the width of this interval. "
    "The first row is tested alone, the others together (Holm). Requests whose user left before the measured event are excluded.",
)


def in_blocks(frames: Frames, stage: Steady) -> Comparison | None:
    """Compare two variants whose blocks alternate in one run: the traffic tables that [crossover] names; None without that.

    Where the target does not sustain a variant, that decides and no figure is compared. `stage`: without slow readers.
    """
    scenario = frames.run["scenario"]
    settings = table(scenario, "crossover")
    a = text(settings.get("a"))
    b = text(settings.get("b"))
    block_s = number(settings.get("block_s"))
    washout_s = number(settings.get("washout_s")) or 0.0
    if not a or not b or not block_s:
        return None
    waits = waiting(frames, stage.to_s)
    pairs = block_pairs(stage, (a, b), block_s, washout_s)
    comparison = Comparison(
        method=METHOD,
        threshold=number(settings.get("threshold")) or THRESHOLD,
        pairs=len(pairs),
        remarks=tuple(few_pairs(len(pairs))),
        growth_per_s=block_growth(waits, pairs).of_variants,
        a=a,
        b=b,
        block_s=block_s,
        washout_s=washout_s,
    )
    if comparison.growth_per_s != STABLE:
        return conclude(comparison)
    # Too few or too short blocks, or blocks that still show the one before, allow no conclusion.
    against = reasons_against(waits, stage, pairs, block_s)
    if against:
        return conclude(replace(comparison, against=tuple(against)))
    works = ((_work(stage, a), _work(stage, b)) for a, b in pairs)
    comparison = replace(comparison, unequal=tuple(unequal_work(works)))
    if settings.get("gateway") is True:
        return conclude(gateway.compared_through(comparison, frames, stage, pairs))
    # Each row with its estimate; the first one decides, and has the smallest change that such a run finds.
    rows = deciding_first(
        list(_rows(stage, pairs, comparison.threshold)), primary(scenario, METRICS)
    )
    rows[0] = with_power(rows[0])
    return conclude(replace(comparison, rows=tuple(decide(rows))))


def _work(stage: Steady, block: VariantBlock) -> dict[str, float]:
    return work(stage.only(block.requests, gaps=False))


def _rows(stage: Steady, pairs: BlockPairs, threshold: float) -> Iterator[Compared]:
    """Yield every metric that the run has at every percentile, then the share answered."""
    answered = stage.requests["ended"].isin(schema.COMPLETE).to_numpy(np.bool_).astype(np.float64)
    for row in row_templates(METRICS, threshold):
        values = answered
        if row.metric != ANSWERED_SHARE:
            values = wait_values(BY_NAME[row.metric], stage)
        if not np.isnan(values).all():
            yield compared(row, pairs, values)
