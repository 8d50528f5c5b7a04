"""A/B comparison in alternating blocks: two traffic tables of one run, compared as two sets of runs are (effects.py).

The variant of a block is the table that most of its requests came from. A block counts from its wash-out to its end, a pair
if both blocks are whole and of different variants.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from tailgauge.rows import schema
from tailgauge_analysis.compare.block import METRICS, Block, quantiles_of
from tailgauge_analysis.compare.contents import contents
from tailgauge_analysis.compare.design import NOT_COMPARABLE, Design, few_pairs
from tailgauge_analysis.compare.effects import effects, overall
from tailgauge_analysis.compare.text import cells, change, name
from tailgauge_analysis.metrics.steady import Steady
from tailgauge_analysis.stats.sign_flips import FEWEST
from tailgauge_analysis.text.formatting import plain, plural
from tailgauge_analysis.text.json_values import Json, number, table

MOST = 500  # pairs
HEADER = ("A", "B", "change", "95% interval", "p (Holm)", "verdict")


def alternating_blocks(scenario: Json, of_target: Steady) -> Json | None:
    """The comparison as in `tailgauge compare --json`; None without a crossover in the scenario."""
    settings = table(scenario, "crossover")
    a, b = settings.get("a"), settings.get("b")
    block_s, washout_s = (number(settings.get(key)) for key in ("block_s", "washout_s"))
    if not isinstance(a, str) or not isinstance(b, str) or not block_s:
        return None
    pairs = _pairs(of_target, (a, b), block_s, washout_s or 0.0)
    design = _design(len(pairs))
    threshold = number(settings.get("threshold")) or 0.05
    rows = effects(pairs, METRICS, threshold, decide=not design.against) if pairs else []
    verdict = NOT_COMPARABLE if design.against else overall(rows)
    return {"a": a, "b": b, "block_s": block_s, "washout_s": washout_s or 0.0} | contents(
        pairs, rows, design, [], threshold, verdict
    )


def _pairs(
    stage: Steady, variants: tuple[str, str], block_s: float, washout_s: float
) -> list[tuple[Block, Block]]:
    traffic = stage.requests["traffic"]
    is_b = (traffic == variants[1]).to_numpy(np.bool_)
    ours = (traffic == variants[0]).to_numpy(np.bool_) | is_b
    at = stage.requests["scheduled_at_ns"].to_numpy(np.float64) / 1e9 - stage.from_s
    block_of = np.floor(at / block_s).astype(np.int64)
    counted = ours & (at - block_of * block_s >= washout_s)
    found = []
    for pair in range(min(MOST, int((stage.seconds + 1e-6) // (2 * block_s)))):
        blocks = [
            _block(stage, counted & (block_of == i), is_b, i, block_s) for i in (2 * pair, 2 * pair + 1)
        ]
        by = dict(one for one in blocks if one is not None)
        if len(by) == 2:
            found.append((by[False], by[True]))
    return found


def _block(
    stage: Steady, mask: npt.NDArray[np.bool_], is_b: npt.NDArray[np.bool_], number: int, block_s: float
) -> tuple[bool, Block] | None:  # fmt: skip
    """Whether it is variant B's, and its figures; None without requests."""
    if not mask.any():
        return None
    of_b = bool(is_b[mask].mean() > 0.5)
    part = stage.only(mask & (is_b == of_b), gaps=False)
    ended = part.requests["ended"]
    offered = ended != schema.CANCELLED
    answered = float((ended == schema.OK).sum() / offered.sum()) if offered.any() else 0.0
    quantiles = quantiles_of(part, METRICS)
    return of_b, Block(f"block {number}", block_s, int(offered.sum()), answered, quantiles)


def _design(pairs: int) -> Design:
    if pairs < FEWEST:
        least = f"{FEWEST} are needed to distinguish a difference from chance at 5%"
        return Design([f"{plural(pairs, 'pair')} of whole blocks, {least}"], [])
    return Design([], few_pairs(pairs))


def sentence(found: Json) -> str:
    """The answer."""
    variants = f"B ({plain(found['b'], 80)}) against A ({plain(found['a'], 80)})"
    if found["against"]:
        return f"{variants}: not comparable, {found['against'][0]}."
    rows = [row for row in found["rows"] if row["verdict"] == found["verdict"] and row["change"] is not None]
    named = found["verdict"] in {"better", "worse"} and rows
    which = f": {name(rows[0])} {change(rows[0], 'change')}" if named else ""
    blocks = f"{plural(found['pairs'], 'pair')} of alternating blocks of {found['block_s']:g} s"
    return f"{variants}: {found['verdict']}{which} ({blocks}, threshold {found['threshold'] * 100:g}%)."


def rows(found: Json) -> list[tuple[str, ...]]:
    """One row per metric and percentile, under HEADER."""
    return [(first, a, b, *rest, p, word) for first, a, b, *rest, _, p, word in map(cells, found["rows"])]
