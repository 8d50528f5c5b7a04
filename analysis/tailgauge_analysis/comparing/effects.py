"""How B differs from A, metric by metric, and the verdict on it.

Pairs of blocks in, one `Effect` per metric and quantile out. A pair's figure is ln q_p(B) - ln q_p(A), read as a relative
change; for the share of answered requests it is the difference of the shares. Mean and interval are those of the sign-flip
test. `harm` > 0: B is worse. The first row is the primary one: it is tested alone. The p-values of all others are those of the
family, without rows that differ in no pair. Where the blocks of a pair differ in size, the quantile of the larger one is that
of so many requests as the smaller one has.

The verdict compares the interval with the threshold t (a factor 1 + t, or its inverse):
  worse    the whole interval beyond +t, and the p-value at most 5%
  better   the same beyond -t
  no difference   the whole interval between -t and +t
  no worse        its upper end at most +t, and none of the above
  inconclusive    everything else
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from tailgauge.thresholds import FEWEST_PAIRS
from tailgauge_analysis.comparing.block import PS, Block, view
from tailgauge_analysis.metrics.metrics import BY_NAME
from tailgauge_analysis.stats.quantiles import CONFIDENCE, TOO_FEW, Floats, Quantile, log_at_size
from tailgauge_analysis.stats.sign_flips import Flips, detectable, family, flips
from tailgauge_analysis.text.formatting import percentile

WORSE, BETTER, SAME, NO_WORSE = "worse", "better", "no difference", "no worse"
INCONCLUSIVE = "inconclusive"
ANSWERED_SHARE = "answered"
POINTS = 0.01  # threshold of a share
UNEQUAL = 0.01  # tokens
MOST_LOG = 20.0  # beyond, a factor says nothing
FALLBACKS = (0.95, 0.5)  # where the primary row has too few requests


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
    p_family: float | None = None  # of the primary row its own
    verdict: str | None = None
    why: str = ""
    counts: bool = True
    # Change that so many pairs, at least six, show in 80% of repetitions; of runs, in 90%.
    smallest: float | None = None
    limit: float | None = None  # of a run against earlier ones: what is worse than chance and the threshold

    @property
    def is_share(self) -> bool:
        """Whether changes are differences of shares."""
        return self.metric == ANSWERED_SHARE


Pairs = Sequence[tuple[Block, Block]]
Primary = tuple[str, float]  # metric and quantile
Compared = tuple[Effect, Floats]  # with the harm of each pair, empty if it was not compared


def effects(
    pairs: Pairs, metrics: Sequence[str], primary: Primary, threshold: float, decide: bool
) -> list[Effect]:  # fmt: skip
    """Every metric at every quantile, then the share answered, the primary row first; tested only where `decide`."""
    rows = [row for metric in metrics for p in PS if (row := _latency(pairs, metric, p, threshold))]
    rows.append(_answered(pairs))
    first = rows.pop(decisive([row for row, _ in rows], primary, metrics))
    rows = [_with_power(first), *rows]
    return _decided(rows) if decide else [row for row, _ in rows]


def decisive(rows: Sequence[Effect], primary: Primary, metrics: Sequence[str]) -> int:
    """Which row decides: the primary one, the next of its kind where that has no figure, else the share answered, the last."""
    wanted = (primary, *((metric, p) for metric in metrics for p in FALLBACKS))
    found = {(row.metric, row.p): i for i, row in enumerate(rows) if row.counts}
    return next((found[one] for one in wanted if one in found), len(rows) - 1)


def named(metric: str, p: float | None, threshold: float, blocks: tuple[BlockPair, ...] = ()) -> Effect:
    """A row without figures: a percentile of a metric, or the share answered."""
    if p is None:
        title = "Complete answers, of all offered"
        return Effect(ANSWERED_SHARE, title, None, "offered", "share", None, "", POINTS, blocks)
    of = BY_NAME[metric]
    return Effect(metric, of.title, of.since, view(of), of.unit, p, percentile(p), threshold, blocks)


def unequal_work(pairs: Sequence[tuple[Mapping[str, float], Mapping[str, float]]]) -> list[str]:
    """`5.0% more output tokens a call`, for what B got more or less of than A: the interval without 0 where pairs allow one."""
    found = []
    for kind in dict.fromkeys(name for pair in pairs for one in pair for name in one):
        if not all(kind in one for pair in pairs for one in pair):
            continue
        change = np.array([math.log(b[kind] / a[kind]) for a, b in pairs])
        mean, seen = float(np.expm1(change.mean())), flips(change)
        is_chance = seen.low is not None and seen.high is not None and seen.low <= 0 <= seen.high
        if abs(mean) > UNEQUAL and not is_chance:
            found.append(f"{abs(mean) * 100:.1f}% {'more' if mean > 0 else 'fewer'} {kind} a call")
    return found


def _latency(pairs: Pairs, metric: str, p: float, threshold: float) -> Compared | None:
    """The row, compared if all blocks have a number; None where no run has the metric."""
    seen = [(a.quantiles[metric, p], b.quantiles[metric, p]) for a, b in pairs]
    every = [q for pair in seen for q in pair]
    if not any(q.n for q in every):
        return None
    blocks = tuple(BlockPair(a, b, None) for a, b in seen)
    row = named(metric, p, threshold, blocks)
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
    logs = np.array([_logs(a, b, metric, p) for a, b in pairs])
    harm = logs[:, 1] - logs[:, 0]
    a, b = map(float, np.exp(logs.mean(axis=0)))
    return _with_changes(replace(row, a=a, b=b), harm, np.expm1(harm), math.expm1(harm.mean()))


def _logs(a: Block, b: Block, metric: str, p: float) -> tuple[float, float]:
    """The logarithms of a pair's quantiles, as if both blocks had as many requests."""
    of = [block.quantiles[metric, p].value or 1.0 for block in (a, b)]
    values = [block.ordered.get(metric) for block in (a, b)]
    if values[0] is None or values[1] is None or len(values[0]) == len(values[1]):
        return math.log(of[0]), math.log(of[1])
    n = min(len(one) for one in values if one is not None)
    found = [log_at_size(one, p, n) for one in values if one is not None]
    return (found[0], found[1]) if np.isfinite(found).all() else (math.log(of[0]), math.log(of[1]))


def _with_power(compared: Compared) -> Compared:
    """With the smallest change that it can show."""
    row, harm = compared
    spread = float(harm.std(ddof=1)) if len(harm) > 1 else math.inf
    limit = row.threshold if row.is_share else math.log1p(row.threshold)
    shown = limit + spread * detectable(max(FEWEST_PAIRS, len(harm))) if math.isfinite(spread) else math.inf
    smallest = shown if row.is_share or shown > MOST_LOG else math.expm1(shown)
    return replace(row, smallest=smallest if math.isfinite(shown) else None), harm


def _answered(pairs: Pairs) -> Compared:
    """The share of offered requests that was answered."""
    shares = np.array([(a.answered, b.answered) for a, b in pairs])
    blocks = tuple(BlockPair(float(x), float(y), None) for x, y in shares)
    a, b = map(float, shares.mean(axis=0))
    row = replace(named(ANSWERED_SHARE, None, POINTS, blocks), a=a, b=b)
    change = shares[:, 1] - shares[:, 0]
    return _with_changes(row, -change, change, change.mean())


def _with_changes(row: Effect, harm: Floats, changes: Floats, mean: float) -> Compared:
    blocks = tuple(replace(one, change=float(by)) for one, by in zip(row.blocks, changes, strict=True))
    worse_in = int((harm > 0).sum())
    return replace(row, blocks=blocks, change=float(mean), pairs=len(harm), worse_in=worse_in), harm


def _decided(rows: Sequence[Compared]) -> list[Effect]:
    tested = [flips(harm) if len(harm) else None for _, harm in rows]
    differ = [i for i, (_, harm) in enumerate(rows) if harm.any()]
    p_values = dict(zip(differ, family([rows[i][1] for i in differ]), strict=True))
    if tested[0] is not None:
        p_values[0] = tested[0].p_value
    out = []
    for i, ((row, _), found) in enumerate(zip(rows, tested, strict=True)):
        if found is None:
            out.append(replace(row, verdict=INCONCLUSIVE if row.counts else None))
            continue
        p_family = p_values.get(i, 1.0)
        verdict, why = judge(found, p_family, row.threshold if row.is_share else math.log1p(row.threshold))
        decided = replace(row, p_value=found.p_value, p_family=p_family, verdict=verdict, why=why)
        if found.low is not None and found.high is not None:
            low, high = sorted(-end if row.is_share else math.expm1(end) for end in (found.low, found.high))
            decided = replace(decided, low=low, high=high)
        out.append(decided)
    return out


def judge(found: Flips, p_value: float, limit: float) -> tuple[str, str]:
    """The verdict, and why it is not a clearer one."""
    if found.low is None or found.high is None:
        return INCONCLUSIVE, "too few pairs for an interval"
    beyond = WORSE if found.low > limit else BETTER if found.high < -limit else None
    if beyond and p_value <= 1 - CONFIDENCE:
        return beyond, ""
    if beyond:
        verdict = INCONCLUSIVE if beyond == WORSE else NO_WORSE
        return verdict, "not significant among so many tests: run more pairs"
    if found.high <= limit:
        return (SAME, "") if found.low >= -limit else (NO_WORSE, "possibly better")
    why = "worse, but possibly by less than the threshold" if found.low > 0 else "the interval is too wide"
    return INCONCLUSIVE, why


def overall(rows: Sequence[Effect]) -> str:
    """The primary row's verdict, unless another one is worse or it is not known whether as many requests were answered."""
    verdicts = [row.verdict for row in rows if row.counts]
    if WORSE in verdicts:
        return WORSE
    answered = next(row.verdict for row in rows if row.is_share)
    if len(verdicts) < 2 or answered == INCONCLUSIVE:
        return INCONCLUSIVE
    return rows[0].verdict or INCONCLUSIVE
