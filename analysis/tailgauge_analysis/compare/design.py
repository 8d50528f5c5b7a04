"""Is it an experiment? What the runs' order, number and verdicts allow to be said.

Rule: blocks in, sentences out. `against` forbids any word on the difference; `remarks` are for the reader to weigh.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from tailgauge.thresholds import DEGRADED, INVALID
from tailgauge_analysis.compare.block import Block
from tailgauge_analysis.stats.sign_flips import FEWEST
from tailgauge_analysis.text.formatting import plain

Pair = tuple[Block, Block]

ENOUGH = 20  # pairs
BLOCK_E2E = 5  # a block lasts at least so many end-to-end p99


@dataclass(frozen=True, slots=True)
class Design:
    """What speaks against the comparison, and what should be known of it."""

    against: list[str]
    remarks: list[str]


def design(pairs: Sequence[Pair]) -> Design:
    """Judge the pairs as an experiment."""
    blocks = [block for pair in pairs for block in pair]
    against = [
        f"{block.run_id} is INVALID: {plain(block.reason, 200)}"
        for block in blocks
        if block.verdict == INVALID
    ]
    dry_run = all(block.dry_run for block in blocks)
    if len(pairs) == 1:
        against.append(_one_each(dry_run))
    elif len(pairs) < FEWEST:
        against.append(
            f"{len(pairs)} pairs: with fewer than {FEWEST} no difference, however large, can be told from chance at 5%"
        )
    against += _repeated(pairs) if dry_run else _in_time(pairs)
    return Design(against, _remarks(pairs, blocks, dry_run))


def _one_each(dry_run: bool) -> str:
    if dry_run:
        return "one block each: nothing tells how far two equal rehearsals lie apart by chance. Rehearse more pairs, each with a seed of its own"
    return (
        "one block each: two runs one after the other cannot be told from drift; two equal ones, compared by their own "
        "intervals, are called different 7 times in 10 or more. Run pairs in turn, 20 or more, a coin saying which comes first"
    )


def _repeated(pairs: Sequence[Pair]) -> list[str]:
    seeds = [block.seed for block, _ in pairs]
    if len(set(seeds)) == len(seeds):
        return []
    return [
        "pairs have the same seed: a rehearsal repeats itself to the nanosecond. Give each pair a seed of its own"
    ]


def _in_time(pairs: Sequence[Pair]) -> list[str]:
    """Runs of a pair must follow each other, and none may run beside another."""
    spans = [(b.began, b.ended, b.run_id, i) for i, pair in enumerate(pairs) for b in pair]
    known = sorted(
        (began, ended, name, i) for began, ended, name, i in spans if began is not None and ended is not None
    )
    if len(known) < len(spans):
        return ["a run does not say when it began and ended: whether the arms took turns is not known"]
    for (_, ended, one, _), (began, _, other, _) in pairwise(known):
        if began < ended:
            return [f"{one} and {other} ran at the same time: each was a load on the other"]
    order = [i for _, _, _, i in known]
    if any(a != b for a, b in zip(order[::2], order[1::2], strict=True)):
        return [
            "the runs of a pair did not follow each other: what drifted between them looks like a difference"
        ]
    return []


def _remarks(pairs: Sequence[Pair], blocks: Sequence[Block], dry_run: bool) -> list[str]:
    said = []
    if FEWEST <= len(pairs) < ENOUGH:
        said.append(f"{len(pairs)} pairs; {ENOUGH} or more make the interval narrow")
    degraded = sum(block.verdict == DEGRADED for block in blocks)
    if degraded:
        said.append(f"{degraded} of {len(blocks)} runs are DEGRADED: see their reports")
    if dry_run:
        return said
    first = {a.began < b.began for a, b in pairs if a.began is not None and b.began is not None}
    if len(pairs) >= FEWEST and len(first) == 1:
        said.append(
            f"{'A' if first == {True} else 'B'} came first in every pair: what drifts within a pair counts as a difference. Let a coin say"
        )
    if len(pairs) > 1 and len({a.seed for a, _ in pairs}) == 1:
        said.append("all pairs have the same seed, so the same prompts: a cache may know them")
    short = [b for b in blocks if b.e2e_p99_s is not None and b.seconds < BLOCK_E2E * b.e2e_p99_s]
    if short:
        said.append(
            f"{len(short)} of {len(blocks)} blocks are shorter than {BLOCK_E2E} times their end-to-end p99: neighbours still feel each other"
        )
    return said
