"""One row of a comparison: a figure of A and of B, how they differ, and the verdict on it.

An estimate is B against A with its 95% interval: log(B / A), or B - A. The first row decides and is tested alone; the
p-values of all others are adjusted together (Holm). Where no row decides, all are adjusted. The verdict holds the interval
against the threshold t (a factor 1 + t or its inverse, or a difference of t):
  worse    the whole interval beyond t on the worse side, and the p-value at most 5%
  better   the same on the other side
  no difference   the whole interval within t
  no worse        its worse end within t, and none of the above
  inconclusive    everything else
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain, product
from typing import Literal, TypeVar

import numpy as np

from tailgauge.thresholds import FEWEST_PAIRS
from tailgauge_analysis.comparing.run_summary import (
    ANSWERED_SHARE,
    METRICS,
    QUANTILES,
    Primary,
    RunFigure,
    RunSummary,
)
from tailgauge_analysis.metrics.metrics import BY_NAME, UNIT
from tailgauge_analysis.stats.estimate import Estimate, holm, paired
from tailgauge_analysis.stats.quantiles import CONFIDENCE, Floats
from tailgauge_analysis.text.formatting import ms, percentile, plural, share

WORSE = "worse"
BETTER = "better"
SAME = "no difference"
NO_WORSE = "no worse"
INCONCLUSIVE = "inconclusive"
NO_VALUE = "has no value: too many requests have no complete answer"  # why a row has none
SHARE_THRESHOLD = 0.01
UNEQUAL = 0.01  # tokens
LARGEST_LOG = 20.0  # beyond, a factor says nothing
FALLBACKS = (0.95, 0.5)  # where the primary row has too few requests

Scale = Literal["ratio", "share", "ms"]
RATIO: Scale = "ratio"
SHARE: Scale = "share"
MS: Scale = "ms"
Size = TypeVar("Size", float, Floats)
Interval = tuple[float | None, float | None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Effect:
    """A row. `a` and `b` are the figures; `change`, `low`, `high`: b / a - 1, or b - a (`scale`), and its interval.

    `changes`: of each pair. `why`: why there is no figure or no clearer verdict; `counts` is false if nothing could be
    compared. `smallest`: change that so many pairs, at least six, show in 80% of repetitions; of runs, in 90%. Of a run against
    earlier ones, `limit`: what is worse than chance and the threshold; `a_interval`: where 95% of such runs lie; `varies`:
    whether they differ by more than their own intervals say.
    """

    metric: str
    title: str
    label: str = ""
    p: float | None = None
    unit: str = UNIT
    scale: Scale = RATIO
    more_is_worse: bool = True
    threshold: float
    a: float | None = None
    b: float | None = None
    a_interval: Interval | None = None
    b_interval: Interval | None = None
    change: float | None = None
    low: float | None = None
    high: float | None = None
    changes: tuple[float, ...] = ()
    pairs: int = 0
    worse_in: int = 0
    p_value: float | None = None
    p_family: float | None = None  # of the deciding row its own
    verdict: str | None = None
    why: str = ""
    counts: bool = True
    smallest: float | None = None
    limit: float | None = None
    varies: bool = False

    @property
    def name(self) -> str:
        """`TTFT since scheduled p99`."""
        return f"{self.title} {self.label}".strip()

    @property
    def is_different(self) -> bool:
        """Whether a difference is shown."""
        return self.verdict in {WORSE, BETTER}

    @property
    def margin(self) -> float:
        """The threshold on the scale of an estimate."""
        if self.scale == RATIO:
            return math.log1p(self.threshold)
        return self.threshold

    def figures(self, runs: Iterable[RunSummary]) -> list[RunFigure | None]:
        """Return the figure of each run."""
        return [run.figure(self.metric, self.p) for run in runs]

    def harm(self, difference: Size) -> Size:
        """Return a difference with the sign with which more is worse."""
        return difference if self.more_is_worse else -difference

    def value_of(self, size: float) -> float:
        """Return a figure from its size on the scale of a difference."""
        if self.scale == RATIO:
            return math.exp(size)
        return size

    def change_of(self, difference: float | None) -> float | None:
        """Return a difference as a change: of a logarithm, relative; None if it is too large to say anything."""
        if difference is None or self.scale != RATIO:
            return difference
        if abs(difference) > LARGEST_LOG:
            return None
        return math.expm1(difference)

    def change_text(self, change: float | None) -> str:
        """`+12.3%`, `-1.2 pt` (percentage points), `+1.80 ms`."""
        if change is None:
            return "–"
        if self.scale == MS:
            return f"{'+' if change > 0 else ''}{ms(change)} ms"
        unit = "%" if self.scale == RATIO else " pt"
        if abs(change) < 5e-5:
            return f"0{unit}"
        decimals = 1 if abs(change) >= 0.0095 else 2
        return f"{change * 100:+.{decimals}f}{unit}"

    def value_text(self, value: float | None) -> str:
        """Return a figure with its unit; milliseconds without."""
        if self.scale == SHARE:
            return share(value)
        if value is None or self.unit == UNIT:
            return ms(value)
        return f"{ms(value)} {self.unit}"


Compared = tuple[Effect, Estimate | None]


def latency_row(metric: str, p: float, threshold: float) -> Effect:
    """Return a percentile of a metric in the offered view, without figures."""
    title = BY_NAME[metric].title
    unit = BY_NAME[metric].unit
    return Effect(
        metric=metric, title=title, label=percentile(p), p=p, unit=unit, threshold=threshold
    )


def row_templates(metrics: Sequence[str], threshold: float) -> list[Effect]:
    """Return rows without figures: every metric at every percentile, then the share answered."""
    answered = Effect(
        metric=ANSWERED_SHARE,
        title="Complete answers, of all offered",
        unit="share",
        scale=SHARE,
        more_is_worse=False,
        threshold=SHARE_THRESHOLD,
    )
    rows = []
    for metric in metrics:
        rows += [latency_row(metric, p, threshold) for p in QUANTILES]
    return [*rows, answered]


def without_comparison(row: Effect, figures: Sequence[RunFigure | None]) -> Effect:
    """Return the row with why figures of runs cannot be compared; as it is where they can."""
    measured = [figure for figure in figures if figure]
    lost = sum(figure.value is None for figure in measured)
    if len(measured) < len(figures):
        return replace(row, why="too few requests in a run", counts=False)
    if lost:
        reason = f"has no value in {lost} of {plural(len(measured), 'run')}: too many requests have no complete answer"
        return replace(row, why=reason, counts=lost < len(measured))
    if any(figure.value == 0 and figure.p for figure in measured):
        return replace(row, why="is 0 in a run", counts=False)
    return row


def deciding_first(rows: Sequence[Compared], primary: Primary) -> list[Compared]:
    """Put the row that decides first: the primary one, the next of its kind where that has no figure, else the last."""
    deciding = _deciding(rows, primary)
    return sorted(rows, key=lambda compared: compared[0] is not deciding)


def _deciding(rows: Sequence[Compared], primary: Primary) -> Effect:
    by_key = {(row.metric, row.p): row for row, _ in rows if row.counts}
    for key in (primary, *product(METRICS, FALLBACKS)):
        if key in by_key:
            return by_key[key]
    return rows[-1][0]


def with_power(compared: Compared) -> Compared:
    """Add the smallest change that so many pairs, at least six, show in 8 of 10 repetitions."""
    row, estimate = compared
    if estimate is None:
        return compared
    smallest = row.margin + estimate.smallest(row.pairs, FEWEST_PAIRS)
    return replace(row, smallest=row.change_of(smallest)), estimate


def decide(compared: Sequence[Compared], *, first_decides: bool = True) -> list[Effect]:
    """Return the rows with interval, p-values and verdict; in order, and as they are where they do not count.

    The first row is tested alone, the p-values of all others are adjusted together (Holm). Without `first_decides` all are
    adjusted. A row that counts and has no estimate is inconclusive.
    """
    separate = 1 if first_decides else 0
    p_values = []
    for row, estimate in compared[separate:]:
        if row.counts and estimate is not None:
            p_values.append(estimate.p_value)
    adjusted = iter(holm(p_values))
    rows = []
    for place, (row, estimate) in enumerate(compared):
        if not row.counts:
            rows.append(row)
        elif estimate is None:
            rows.append(replace(row, verdict=INCONCLUSIVE))
        else:
            p_family = estimate.p_value
            if place >= separate:
                p_family = next(adjusted)
            rows.append(_decided(row, estimate, p_family))
    return rows


def _decided(row: Effect, estimate: Estimate, p_family: float) -> Effect:
    low, high = sorted((row.harm(estimate.low), row.harm(estimate.high)))
    verdict, reason = judge(low, high, p_family, row.margin)
    return replace(
        row,
        low=row.change_of(estimate.low),
        high=row.change_of(estimate.high),
        p_value=estimate.p_value,
        p_family=p_family,
        verdict=verdict,
        why=reason,
    )


def judge(low: float, high: float, p_family: float, margin: float) -> tuple[str, str]:
    """Return the verdict on an interval in which more is worse, and why it is not a clearer one."""
    is_worse = low > margin
    if is_worse or high < -margin:
        if p_family <= 1 - CONFIDENCE:
            return WORSE if is_worse else BETTER, ""
        verdict = INCONCLUSIVE if is_worse else NO_WORSE
        return verdict, "not significant among so many tests: measure more"
    if high <= margin:
        if low >= -margin:
            return SAME, ""
        return NO_WORSE, "possibly better"
    if low > 0:
        return INCONCLUSIVE, "worse, but possibly by less than the threshold"
    return INCONCLUSIVE, "the interval is too wide"


def overall(rows: Sequence[Effect]) -> str:
    """Return the first row's verdict, unless another one is worse or it is unknown whether as many requests were answered."""
    if any(row.verdict == WORSE for row in rows):
        return WORSE
    counted = [row for row in rows if row.counts]
    verdicts = {row.metric: row.verdict for row in counted}
    if verdicts.get(ANSWERED_SHARE) == INCONCLUSIVE or set(verdicts) <= {ANSWERED_SHARE}:
        return INCONCLUSIVE
    return counted[0].verdict or INCONCLUSIVE


def unequal_work(pairs: Iterable[tuple[Mapping[str, float], Mapping[str, float]]]) -> list[str]:
    """`5.0% more output tokens a call`: what B got more or less of than A, where the interval of pairs excludes 0."""
    sides = list(chain.from_iterable(pairs))
    texts = []
    for kind in dict.fromkeys(chain.from_iterable(sides)):
        if not all(kind in side for side in sides):
            continue
        logs = np.diff(np.log([side[kind] for side in sides]))[::2]
        change = math.expm1(logs.mean())
        estimate = paired(logs)
        is_chance = estimate is not None and estimate.low <= 0 <= estimate.high
        if abs(change) > UNEQUAL and not is_chance:
            texts.append(
                f"{abs(change) * 100:.1f}% {'more' if change > 0 else 'fewer'} {kind} per call"
            )
    return texts
