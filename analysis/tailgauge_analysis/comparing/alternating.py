"""A/B comparison in alternating blocks: two traffic tables of one run, compared as two sets of runs are (effects.py).

The variant of a block is the table that most of its requests came from. A block counts from its wash-out to its end, a pair
if both blocks are whole and of different variants.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import numpy.typing as npt

from tailgauge_analysis.comparing.block import (
    METRICS,
    Block,
    answered,
    figures,
    pair_of,
    primary,
    work,
)
from tailgauge_analysis.comparing.comparison import Comparison, comparison
from tailgauge_analysis.comparing.design import Design, few_pairs
from tailgauge_analysis.metrics.steady import Steady
from tailgauge_analysis.stats.sign_flips import FEWEST
from tailgauge_analysis.text.formatting import plural
from tailgauge_analysis.text.json_values import Json, number, table

MOST = 500  # pairs


def alternating_blocks(scenario: Json, of_target: Steady) -> Comparison | None:
    """The comparison; None without a crossover in the scenario."""
    settings = table(scenario, "crossover")
    a, b = settings.get("a"), settings.get("b")
    block_s, washout_s = (number(settings.get(key)) for key in ("block_s", "washout_s"))
    if not isinstance(a, str) or not isinstance(b, str) or not block_s:
        return None
    pairs = _pairs(of_target, (a, b), block_s, washout_s or 0.0)
    threshold = number(settings.get("threshold")) or 0.05
    found = comparison(pairs, METRICS, primary(scenario, METRICS), threshold, _design(len(pairs)))
    return replace(found, a=a, b=b, block_s=block_s, washout_s=washout_s or 0.0)


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
            found.append(pair_of(by[False], by[True]))
    return found


def _block(
    stage: Steady, mask: npt.NDArray[np.bool_], is_b: npt.NDArray[np.bool_], number: int, block_s: float
) -> tuple[bool, Block] | None:  # fmt: skip
    """Whether it is variant B's, and its figures; None without requests."""
    if not mask.any():
        return None
    of_b = bool(is_b[mask].mean() > 0.5)
    part = stage.only(mask & (is_b == of_b), gaps=False)
    of = len(part.requests), answered(part)
    return of_b, Block(f"block {number}", block_s, *of, work=work(part), **figures(part, METRICS))


def _design(pairs: int) -> Design:
    if pairs < FEWEST:
        least = f"{FEWEST} are needed to distinguish a difference from chance at 5%"
        return Design([f"{plural(pairs, 'pair')} of whole blocks, {least}"], [])
    return Design([], few_pairs(pairs))
