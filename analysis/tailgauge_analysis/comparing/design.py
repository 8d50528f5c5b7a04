"""The design of a comparison: what order, number and verdicts of the runs allow to conclude.

`against` rules out any conclusion; `remarks` are for the reader to weigh.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import median

from tailgauge.thresholds import FEWEST_PAIRS, INVALID
from tailgauge_analysis.comparing.block import Block
from tailgauge_analysis.text.formatting import plain

Pair = tuple[Block, Block]
Growing = tuple[float | None, float | None]
"""Of A and of B: requests/s by which its requests in flight grow, None of a variant that is stable."""

NOT_COMPARABLE = "not comparable"
ENOUGH = 20  # pairs
STABLE: Growing = (None, None)
TOO_FEW = f"{FEWEST_PAIRS} are needed to distinguish a difference from chance at 5%"
BLOCK_E2E = 5  # a block lasts at least so many end-to-end p99


@dataclass(frozen=True, slots=True)
class Design:
    """Reasons against the comparison, and remarks on it; where a variant is unstable, that is the answer."""

    against: list[str]
    remarks: list[str]
    growth: Growing = STABLE


def design(pairs: Sequence[Pair]) -> Design:
    """Judge the pairs."""
    blocks = [block for pair in pairs for block in pair]
    invalid = [block for block in blocks if block.verdict == INVALID]
    against = [f"{block.run_id} is INVALID: {plain(block.reason, 200)}" for block in invalid]
    growth = STABLE if against else (_growth([a for a, _ in pairs]), _growth([b for _, b in pairs]))
    if growth != STABLE:
        return Design([], [], growth)
    dry_run = all(block.dry_run for block in blocks)
    if len(pairs) == 1:
        against.append(_one_each(dry_run))
    elif len(pairs) < FEWEST_PAIRS:
        against.append(f"{len(pairs)} pairs, {TOO_FEW}")
    against += _repeated(pairs) if dry_run else _in_time(pairs)
    return Design(against, _remarks(pairs, blocks, dry_run))


def _growth(runs: Sequence[Block]) -> float | None:
    """The median growth in the runs of a variant, if at least half of them are unstable."""
    found = [run.growth_per_s for run in runs if run.growth_per_s is not None]
    return median(found) if 2 * len(found) >= len(runs) else None


def _one_each(dry_run: bool) -> str:
    if dry_run:
        return "one run each: the chance difference of two equal dry runs is unknown. Compare more pairs, each with its own seed"
    return (
        "one run each: a difference cannot be distinguished from drift; two equal runs, compared by their intervals, "
        "differ 7 times in 10 or more. Run 20 or more pairs, one after the other, in random order within each pair"
    )


def _repeated(pairs: Sequence[Pair]) -> list[str]:
    seeds = [block.seed for block, _ in pairs]
    if len(set(seeds)) == len(seeds):
        return []
    return ["pairs have the same seed: a dry run repeats itself exactly. Give each pair its own seed"]


def _in_time(pairs: Sequence[Pair]) -> list[str]:
    """Runs of a pair must follow each other, and none may run beside another."""
    spans = [(b.began, b.ended, b.run_id, i) for i, pair in enumerate(pairs) for b in pair]
    known = sorted(
        (began, ended, name, i) for began, ended, name, i in spans if began is not None and ended is not None
    )
    if len(known) < len(spans):
        return ["a run does not record when it began and ended, so the order of A and B is unknown"]
    for (_, ended, one, _), (began, _, other, _) in pairwise(known):
        if began < ended:
            return [f"{one} and {other} ran at the same time: each loaded the other"]
    order = [i for _, _, _, i in known]
    if any(a != b for a, b in zip(order[::2], order[1::2], strict=True)):
        return ["the runs of a pair did not follow each other: drift between them looks like a difference"]
    return []


def few_pairs(pairs: int) -> list[str]:
    """The remark on a number of pairs that is enough, and no more."""
    return [f"{pairs} pairs; {ENOUGH} or more narrow the interval"] if FEWEST_PAIRS <= pairs < ENOUGH else []


def _remarks(pairs: Sequence[Pair], blocks: Sequence[Block], dry_run: bool) -> list[str]:
    remarks = few_pairs(len(pairs))
    if dry_run:
        return remarks
    first = {a.began < b.began for a, b in pairs if a.began is not None and b.began is not None}
    if len(pairs) >= FEWEST_PAIRS and len(first) == 1:
        drift = "drift within a pair counts as a difference. Randomize the order"
        remarks.append(f"{'A' if first == {True} else 'B'} came first in every pair: {drift}")
    if len(pairs) > 1 and len({a.seed for a, _ in pairs}) == 1:
        remarks.append("all pairs have the same seed, so the same prompts: a cache may hold them")
    short = [b for b in blocks if b.e2e_p99_s is not None and b.seconds < BLOCK_E2E * b.e2e_p99_s]
    if short:
        shorter = (
            f"{len(short)} of {len(blocks)} blocks are shorter than {BLOCK_E2E} times their end-to-end p99"
        )
        remarks.append(f"{shorter}: consecutive blocks influence each other")
    return remarks
