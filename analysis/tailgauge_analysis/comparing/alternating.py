"""A/B comparison in alternating blocks: two traffic tables of one run, compared as two sets of runs are (effects.py).

The variant of a block is the table that most of its requests came from. A block counts from its wash-out to its end, a pair
if both blocks are whole and of different variants.

The variants share a target, so one that it does not sustain slows the other one down too, and the difference vanishes. So
three things are checked first. Stability: whether the requests in flight grow in the second halves of a variant's blocks,
joined end to end. Length: five end-to-end p99. Carry-over: whether a block begins as it ends; from the requests in flight and
the waits in its first and last tenth, by their ranks, A less B in each pair.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from tailgauge.rows import schema
from tailgauge.thresholds import FEWEST_PAIRS
from tailgauge_analysis.comparing import block as blocks
from tailgauge_analysis.comparing.block import METRICS, Block
from tailgauge_analysis.comparing.comparison import Comparison, comparison
from tailgauge_analysis.comparing.design import BLOCK_E2E, STABLE, TOO_FEW, Design, Growing, few_pairs
from tailgauge_analysis.metrics.backlog import growth_within, stays_s
from tailgauge_analysis.metrics.stability import compared, waits_ms
from tailgauge_analysis.metrics.steady import Steady
from tailgauge_analysis.reading.frames import Frames
from tailgauge_analysis.stats import stationarity
from tailgauge_analysis.stats.quantiles import CONFIDENCE, Floats
from tailgauge_analysis.stats.sign_flips import flips
from tailgauge_analysis.stats.stationarity import MATTERS, TENTHS, differs_at
from tailgauge_analysis.text.formatting import figures, plural
from tailgauge_analysis.text.json_values import number, table

MOST = 500  # pairs
POINTS = 16  # of a tenth at which the requests in flight are counted


@dataclass(frozen=True, slots=True)
class Part:
    """What counts of a block: its requests of the variant, and from when to when, in seconds of the run."""

    requests: npt.NDArray[np.bool_]
    from_s: float
    to_s: float


Parts = Sequence[tuple[Part, Part]]  # of A and of B, by pair
Stays = tuple[Floats, Floats]  # when each request of the run was due and when it ended (stays_s)


def parts(stage: Steady, variants: tuple[str, str], block_s: float, washout_s: float) -> Parts:
    """The blocks of a run; pairs in which a variant has no request are left out."""
    masks = [(stage.requests["traffic"] == name).to_numpy(np.bool_) for name in variants]
    at = stage.requests["scheduled_at_ns"].to_numpy(np.float64) / 1e9 - stage.from_s
    block_of = np.floor(at / block_s).astype(np.int64)
    counted = at - block_of * block_s >= washout_s
    found = []
    for pair in range(min(MOST, int((stage.seconds + 1e-6) // (2 * block_s)))):
        first, second = 2 * pair, 2 * pair + 1
        a_first = (masks[0] & (block_of == first)).sum() > (masks[0] & (block_of == second)).sum()
        made = []
        for mask, i in zip(masks, (first, second) if a_first else (second, first), strict=True):
            began = stage.from_s + i * block_s
            made.append(Part(mask & counted & (block_of == i), began + washout_s, began + block_s))
        if all(one.requests.any() for one in made):
            found.append((made[0], made[1]))
    return found


def growths(stays: Stays, of: Parts) -> Growing:
    """Of each variant, where the target does not sustain it; a stable one is as it stays in the second half of a block."""
    a, b = ([((one[i].from_s + one[i].to_s) / 2, one[i].to_s) for one in of] for i in (0, 1))
    return growth_within(*stays, a), growth_within(*stays, b)


def grows_throughout(stays: Stays, of: Parts) -> float | None:
    """By how much the requests in flight grow per second from the first block to the last; None where they do not."""
    each = [part for pair in of for part in pair]
    spans = [(min(part.from_s for part in each), max(part.to_s for part in each))] if each else []
    return growth_within(*stays, spans)


def carried_over(stays: Stays, stage: Steady, of: Parts) -> str:
    """How the begin of a variant's blocks differs from their end; empty if it does not."""
    begun, ended = (np.sort(at) for at in stays)
    kept = (stage.requests["ended"] != schema.CLIENT_DROP).to_numpy(np.bool_)
    waits, at_s = np.full(len(kept), np.nan), stage.requests["scheduled_at_ns"].to_numpy(np.float64) / 1e9
    waits[kept] = waits_ms(stage)
    ranked = stationarity.ranks(waits)
    # Requests in flight, ranks of waits; by pair, variant, first and last tenth.
    seen = np.full((2, len(of), 2, 2), 0.5)
    places = [[np.zeros(len(kept), np.bool_) for _ in range(2)] for _ in range(2)]
    for i, side, last in np.ndindex(len(of), 2, 2):
        part = of[i][side]
        long_s = (part.to_s - part.from_s) / TENTHS
        from_s = part.to_s - long_s if last else part.from_s
        points = np.linspace(from_s, from_s + long_s, POINTS)
        open_then = np.searchsorted(begun, points, "right") - np.searchsorted(ended, points, "right")
        seen[0, i, side, last] = open_then.mean()
        here = part.requests & kept & (at_s >= from_s) & (at_s < from_s + long_s)
        places[side][last] |= here
        if here.any():
            seen[1, i, side, last] = ranked[here].mean()
    falls = seen[..., 0] - seen[..., 1]
    of_ranks = stationarity.ranks(seen[0].ravel()).reshape(seen[0].shape) + seen[1]
    of_ranks = of_ranks[..., 0] - of_ranks[..., 1]
    if flips(of_ranks[:, 0] - of_ranks[:, 1]).p_value > 1 - CONFIDENCE:
        return ""
    side = int(np.abs(falls[0].mean(axis=0)).argmax())
    first, last = seen[0, :, side].mean(axis=0)
    if max(first, last) > MATTERS * min(first, last) and abs(first - last) >= 1:
        return f"{'AB'[side]} begins its blocks with {figures(first)} requests in flight and ends them with {figures(last)}"
    side = int(np.abs(falls[1].mean(axis=0)).argmax())
    early, late = (waits[one] for one in places[side])
    if len(early) and len(late) and differs_at(early, late):
        text = compared(early, late, "the last ones", "wait")
        return f"the first tenths of {'AB'[side]}'s blocks have {text}"
    return ""


def alternating_blocks(frames: Frames, of_target: Steady) -> Comparison | None:
    """The comparison; None without a crossover in the scenario."""
    scenario = frames.run["scenario"]
    settings = table(scenario, "crossover")
    a, b = settings.get("a"), settings.get("b")
    block_s, washout_s = (number(settings.get(key)) for key in ("block_s", "washout_s"))
    if not isinstance(a, str) or not isinstance(b, str) or not block_s:
        return None
    of = parts(of_target, (a, b), block_s, washout_s or 0.0)
    threshold = number(settings.get("threshold")) or 0.05
    pairs = [blocks.pair_of(*(_block(of_target, part, block_s) for part in pair)) for pair in of]
    judged = _design(frames, of_target, of, block_s)
    found = comparison(pairs, METRICS, blocks.primary(scenario, METRICS), threshold, judged)
    return replace(found, a=a, b=b, block_s=block_s, washout_s=washout_s or 0.0)


def _block(stage: Steady, of: Part, block_s: float) -> Block:
    part = stage.only(of.requests, gaps=False)
    name = f"block {round((of.to_s - stage.from_s) / block_s) - 1}"
    values, work = blocks.figures(part, METRICS), blocks.work(part)
    return Block(name, block_s, len(part.requests), blocks.answered(part), work=work, **values)


def _design(frames: Frames, stage: Steady, of: Parts, block_s: float) -> Design:
    stays = stays_s(frames)
    grows = growths(stays, of)
    if grows != STABLE:
        return Design([], [], grows)
    if len(of) < FEWEST_PAIRS:
        return Design([f"{plural(len(of), 'pair')} of whole blocks, {TOO_FEW}"], [])
    least_s = BLOCK_E2E * (blocks.e2e_p99_s(stage) or 0.0)
    if block_s < least_s:
        text = f"blocks of {block_s:g} s are shorter than {BLOCK_E2E} end-to-end p99"
        return Design([f"{text}: set crossover.block_s to at least {math.ceil(least_s)}"], [])
    carried = carried_over(stays, stage, of)
    if carried:
        return Design([f"each block still shows the one before: {carried}. Use longer blocks"], [])
    return Design([], few_pairs(len(of)))
