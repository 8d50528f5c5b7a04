"""How B differs from A, metric by metric, and the verdict on it.

Pairs of blocks in, one `Effect` per metric and quantile out. A pair's figure is ln q_p(B) - ln q_p(A), read as a relative
change; for the share of answered requests it is the difference of the shares. Mean, p-value and interval are those of the
sign-flip test; p-values are corrected over the family (Holm), without metrics that differ in no pair. `harm` > 0: B is worse.

The verdict compares the interval with the threshold t (a factor 1 + t, or its inverse):
  worse    the whole interval beyond +t, and the corrected p-value at most 5%
  better   the same beyond -t
  no difference   the whole interval between -t and +t
  no worse        its upper end at most +t, and none of the above
  inconclusive    everything else
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from tailgauge_analysis.comparing.block import PS, Block, view
from tailgauge_analysis.metrics.metrics import BY_NAME
from tailgauge_analysis.stats.quantiles import CONFIDENCE, TOO_FEW, Floats, Quantile
from tailgauge_analysis.stats.sign_flips import Flips, flips, holm
from tailgauge_analysis.text.formatting import percentile

WORSE, BETTER, SAME, NO_WORSE = "worse", "better", "no difference", "no worse"
INCONCLUSIVE = "inconclusive"
ANSWERED_SHARE = "answered"
POINTS = 0.01  # threshold of a share


@dataclass(frozen=True, slots=True)
class BlockPair:
    """One pair of blocks; `change` is None if one of them has no such quantile."""

    a: Quantile | float
    b: Quantile | float
    change: float | None


@dataclass(frozen=True, slots=True)
class Effect:
    """One metric at one percentile, or the share answered. `a` and `b`: geometric means over the blocks, so that b / a is the
    change; `why`: why there is no figure or no clearer verdict; `counts` is false if nothing could be compared.
    """

    metric: str
    title: str
    since: str | None
    view: str
    unit: str
    p: float | None
    label: str
    threshold: float
    blocks: tuple[BlockPair, ...]
    a: float | None = None
    b: float | None = None
    change: float | None = None
    low: float | None = None
    high: float | None = None
    pairs: int = 0
    worse_in: int = 0
    p_value: float | None = None
    p_holm: float | None = None
    verdict: str | None = None
    why: str = ""
    counts: bool = True

    @property
    def is_share(self) -> bool:
        """Whether changes are differences of shares."""
        return self.metric == ANSWERED_SHARE


Compared = tuple[Effect, Floats]  # with the harm of each pair, empty if it was not compared


def effects(
    pairs: Sequence[tuple[Block, Block]], metrics: Sequence[str], threshold: float, decide: bool
) -> list[Effect]:
    """Every metric at every quantile, then the share answered; tested only where `decide`."""
    rows = [row for metric in metrics for p in PS if (row := _latency(pairs, metric, p, threshold))]
    rows.append(_answered(pairs))
    return _decided(rows) if decide else [row for row, _ in rows]


def _latency(
    pairs: Sequence[tuple[Block, Block]], metric: str, p: float, threshold: float
) -> Compared | None:
    """The row, compared if all blocks have a number; None where no run has the metric."""
    of = BY_NAME[metric]
    seen = [(a.quantiles[metric, p], b.quantiles[metric, p]) for a, b in pairs]
    every = [q for pair in seen for q in pair]
    if not any(q.n for q in every):
        return None
    blocks = tuple(BlockPair(a, b, None) for a, b in seen)
    row = Effect(metric, of.title, of.since, view(of), of.unit, p, percentile(p), threshold, blocks)
    beyond = sum(q.value == math.inf for q in every)
    why, counts = "", True
    if any(q.mark == TOO_FEW for q in every):
        why, counts = f"too few requests: a block has {min(q.n for q in every)}", False
    elif beyond:
        counts = beyond < len(every)
        where = f"{beyond} of {len(every)} blocks" if counts else "every block"
        why = f"falls among unanswered requests in {where}"
    elif any(not q.value for q in every):
        why = "is 0 in a block"
    if why:
        return replace(row, why=why, counts=counts), np.array([])
    logs = np.log([q.value or 1.0 for q in every]).reshape(-1, 2)
    harm = logs[:, 1] - logs[:, 0]
    a, b = map(float, np.exp(logs.mean(axis=0)))
    return _with_changes(replace(row, a=a, b=b), harm, np.expm1(harm), math.expm1(harm.mean()))


def _answered(pairs: Sequence[tuple[Block, Block]]) -> Compared:
    """The share of offered requests that was answered."""
    shares = np.array([(a.answered, b.answered) for a, b in pairs])
    blocks = tuple(BlockPair(float(x), float(y), None) for x, y in shares)
    a, b = map(float, shares.mean(axis=0))
    row = Effect(
        ANSWERED_SHARE, "Answered, of all offered", None, "offered", "share", None, "", POINTS, blocks, a, b
    )
    change = shares[:, 1] - shares[:, 0]
    return _with_changes(row, -change, change, change.mean())


def _with_changes(row: Effect, harm: Floats, changes: Floats, mean: float) -> Compared:
    blocks = tuple(replace(one, change=float(by)) for one, by in zip(row.blocks, changes, strict=True))
    worse_in = int((harm > 0).sum())
    return replace(row, blocks=blocks, change=float(mean), pairs=len(harm), worse_in=worse_in), harm


def _decided(rows: Sequence[Compared]) -> list[Effect]:
    tested = [flips(harm) if len(harm) else None for _, harm in rows]
    family = {i: found.p_value for i, found in enumerate(tested) if found is not None and rows[i][1].any()}
    corrected = dict(zip(family, holm(list(family.values())), strict=True))
    out = []
    for i, ((row, _), found) in enumerate(zip(rows, tested, strict=True)):
        if found is None:
            out.append(replace(row, verdict=INCONCLUSIVE if row.counts else None))
            continue
        p_holm = corrected.get(i, 1.0)
        verdict, why = judge(found, p_holm, row.threshold if row.is_share else math.log1p(row.threshold))
        ends = [end for end in (found.low, found.high) if end is not None]
        low, high = (
            sorted(-end if row.is_share else math.expm1(end) for end in ends)
            if len(ends) == 2
            else (None, None)
        )
        out.append(
            replace(row, low=low, high=high, p_value=found.p_value, p_holm=p_holm, verdict=verdict, why=why)
        )
    return out


def judge(found: Flips, p_holm: float, limit: float) -> tuple[str, str]:
    """The verdict, and why it is not a clearer one."""
    if found.low is None or found.high is None:
        return INCONCLUSIVE, "too few pairs for an interval"
    beyond = WORSE if found.low > limit else BETTER if found.high < -limit else None
    if beyond and p_holm <= 1 - CONFIDENCE:
        return beyond, ""
    if beyond:
        verdict = INCONCLUSIVE if beyond == WORSE else NO_WORSE
        return verdict, "not significant among so many tests: run more pairs"
    if found.high <= limit:
        return (SAME, "") if found.low >= -limit else (NO_WORSE, "possibly better")
    why = "worse, but possibly by less than the threshold" if found.low > 0 else "the interval is too wide"
    return INCONCLUSIVE, why


def overall(rows: Sequence[Effect]) -> str:
    """One verdict for all rows that count; a good one needs more than the share answered."""
    verdicts = [row.verdict for row in rows if row.counts]
    if WORSE in verdicts:
        return WORSE
    if len(verdicts) < 2 or INCONCLUSIVE in verdicts or None in verdicts:
        return INCONCLUSIVE
    return BETTER if BETTER in verdicts else SAME if set(verdicts) == {SAME} else NO_WORSE
