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

from tailgauge_analysis.compare.block import PS, Block
from tailgauge_analysis.stats.quantiles import CONFIDENCE, TOO_FEW, Quantile
from tailgauge_analysis.stats.sign_flips import Flips, flips, holm

WORSE, BETTER, SAME, NO_WORSE = "worse", "better", "no difference", "no worse"
INCONCLUSIVE = "inconclusive"
ANSWERED_SHARE = "answered"
POINTS = 0.01  # threshold of a share


@dataclass(frozen=True, slots=True)
class Effect:
    """One row. `why`: why there is no figure or no clearer verdict; `counts` is false if nothing could be compared."""

    metric: str
    p: float | None
    pairs: tuple[tuple[Quantile, Quantile], ...]
    shares: tuple[tuple[float, float], ...]
    harm: tuple[float, ...]
    flips: Flips | None
    p_holm: float | None
    verdict: str | None
    why: str
    counts: bool

    @property
    def no_worse(self) -> bool:
        """Whether more harm than the threshold is excluded."""
        return self.verdict in {BETTER, SAME, NO_WORSE}


def effects(
    pairs: Sequence[tuple[Block, Block]], metrics: Sequence[str], threshold: float, decide: bool
) -> list[Effect]:
    """Every metric at every quantile, then the share answered; tested only where `decide`."""
    rows = [row for metric in metrics for p in PS if (row := _latency(pairs, metric, p)) is not None]
    shares = tuple((a.answered, b.answered) for a, b in pairs)
    fewer = tuple(a - b for a, b in shares)
    rows.append(Effect(ANSWERED_SHARE, None, (), shares, fewer, None, None, None, "", counts=True))
    return _decided(rows, threshold) if decide else rows


def _latency(pairs: Sequence[tuple[Block, Block]], metric: str, p: float) -> Effect | None:
    """The row, its differences if all of them are numbers; None where no run has the metric."""
    seen = tuple((a.quantiles[metric, p], b.quantiles[metric, p]) for a, b in pairs)
    every = [q for pair in seen for q in pair]
    if not any(q.n for q in every):
        return None
    beyond = sum(q.value == math.inf for q in every)
    why, counts = "", True
    harm: tuple[float, ...] = ()
    if any(q.mark == TOO_FEW for q in every):
        fewest = min(q.n for q in every)
        why, counts = f"too few requests: a block has {fewest}", False
    elif beyond == len(every):
        why, counts = "falls among unanswered requests in every block", False
    elif beyond:
        why = f"falls among unanswered requests in {beyond} of {len(every)} blocks"
    elif any(not q.value for q in every):
        why, counts = "is 0 in a block", False
    else:
        logs = np.log([q.value or 1.0 for q in every]).reshape(-1, 2)
        harm = tuple(float(x) for x in logs[:, 1] - logs[:, 0])
    return Effect(metric, p, seen, (), harm, None, None, None, why, counts)


def _decided(rows: Sequence[Effect], threshold: float) -> list[Effect]:
    tested = [flips(np.array(row.harm)) if row.harm else None for row in rows]
    family = {i: found.p_value for i, found in enumerate(tested) if found is not None and any(rows[i].harm)}
    corrected = dict(zip(family, holm(list(family.values())), strict=True))
    out = []
    for i, (row, found) in enumerate(zip(rows, tested, strict=True)):
        if found is None:
            verdict = INCONCLUSIVE if row.counts else None
            out.append(replace(row, verdict=verdict))
            continue
        p_holm = corrected.get(i, 1.0)
        limit = POINTS if row.metric == ANSWERED_SHARE else math.log1p(threshold)
        verdict, why = judge(found, p_holm, limit)
        out.append(replace(row, flips=found, p_holm=p_holm, verdict=verdict, why=why))
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
