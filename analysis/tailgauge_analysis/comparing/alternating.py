"""Rows of B against A from alternating blocks: two traffic tables of one run, or the same traffic directly and through a gateway."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from tailgauge.rows import schema
from tailgauge_analysis.comparing import gateway
from tailgauge_analysis.comparing.comparison import STABLE, Comparison, Kind, conclude
from tailgauge_analysis.comparing.effect import (
    Compared,
    answered_row,
    decide,
    deciding_first,
    latency_row,
    unequal_work,
    with_power,
)
from tailgauge_analysis.comparing.pairs import THRESHOLD, few_pairs
from tailgauge_analysis.comparing.run_summary import METRICS, PS, primary, work
from tailgauge_analysis.comparing.variant_blocks import (
    BlockPairs,
    block_pairs,
    compared,
    growths,
    reasons_against,
    wait_values,
)
from tailgauge_analysis.metrics.metrics import BY_NAME
from tailgauge_analysis.metrics.stability import stays_s
from tailgauge_analysis.metrics.steady import Steady
from tailgauge_analysis.reading.frames import Frames
from tailgauge_analysis.text.json_values import number, table, text

KIND = Kind(
    name="comparison",
    title="A/B comparison in alternating blocks",
    computed="Figures are those of all blocks of a variant; the 95% interval draws pairs of blocks again, and p follows from it "
    "by Student's t. The first row is tested alone, the others together (Holm). Who left before the event is left out.",
)


def in_blocks(frames: Frames, stage: Steady) -> Comparison | None:
    """Compare the variants of a run; None without a crossover in the scenario."""
    scenario = frames.run["scenario"]
    settings = table(scenario, "crossover")
    a = text(settings.get("a"))
    b = text(settings.get("b"))
    block_s = number(settings.get("block_s"))
    washout_s = number(settings.get("washout_s")) or 0.0
    if not a or not b or not block_s:
        return None
    stays = stays_s(frames)
    pairs = block_pairs(stage, (a, b), block_s, washout_s)
    found = Comparison(
        kind=KIND,
        threshold=number(settings.get("threshold")) or THRESHOLD,
        pairs=len(pairs),
        remarks=tuple(few_pairs(len(pairs))),
        growth_per_s=growths(stays, pairs),
        a=a,
        b=b,
        block_s=block_s,
        washout_s=washout_s,
    )
    if found.growth_per_s != STABLE:
        return conclude(found)
    against = reasons_against(stays, stage, pairs, block_s)
    if against:
        return conclude(replace(found, against=tuple(against)))
    found = replace(found, unequal=tuple(_unequal(stage, pairs)))
    if settings.get("gateway") is True:
        return conclude(gateway.compared_through(found, frames, stage, pairs))
    rows = deciding_first(_rows(stage, pairs, found.threshold), primary(scenario, METRICS), METRICS)
    rows[0] = with_power(rows[0])
    return conclude(replace(found, rows=tuple(decide(rows))))


def _unequal(stage: Steady, pairs: BlockPairs) -> list[str]:
    works = []
    for a, b in pairs:
        works.append((work(stage.only(a.requests, gaps=False)), work(stage.only(b.requests, gaps=False))))
    return unequal_work(works)


def _rows(stage: Steady, pairs: BlockPairs, threshold: float) -> list[Compared]:
    """Return every metric that the run has at every quantile, then the share answered."""
    rows = []
    for name in METRICS:
        values = wait_values(BY_NAME[name], stage)
        if not np.isnan(values).all():
            rows += [compared(latency_row(name, p, threshold), pairs, values) for p in PS]
    answered = stage.requests["ended"].isin(schema.COMPLETE).to_numpy(np.float64)
    return [*rows, compared(answered_row(), pairs, answered)]
