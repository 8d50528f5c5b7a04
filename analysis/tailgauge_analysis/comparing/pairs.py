"""Rows of B against A from pairs of runs, A1 B1 A2 B2 ...: the mean difference of the runs' own figures.

A pair's difference is ln q_p(B) - ln q_p(A), read as a relative change; for the share of answered requests it is that of the
shares. Mean, interval and p-value are those of the paired t-test.

UsageError for wrong arguments, RunDataError for a folder without a run.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from statistics import median

import numpy as np

from tailgauge.errors import UsageError
from tailgauge.suggestions import nearest
from tailgauge.thresholds import FEWEST_PAIRS, INVALID
from tailgauge_analysis.comparing import comparison
from tailgauge_analysis.comparing.comparability import differences, refusals
from tailgauge_analysis.comparing.comparison import STABLE, Comparison, Method, conclude
from tailgauge_analysis.comparing.effect import (
    Compared,
    Effect,
    decide,
    deciding_first,
    row_templates,
    unequal_work,
    with_power,
    without_comparison,
)
from tailgauge_analysis.comparing.run_summary import METRICS, RunFigure, RunSummary, summarize
from tailgauge_analysis.metrics.metrics import BY_NAME, UNIT
from tailgauge_analysis.reading import run_record
from tailgauge_analysis.stats.estimate import paired
from tailgauge_analysis.text.section import Report

THRESHOLD = 0.05
ENOUGH = 20  # pairs
# The rank of a quantile jumps with the number of values: where runs differ so much in size, so many lie beyond it.
UNEVEN = 1.1
BEYOND = 10
BLOCK_E2E = 5  # a run or block lasts at least so many end-to-end p99
NEEDED = f"{FEWEST_PAIRS} are needed to distinguish a difference from chance at 5%"
ALONE = (
    "compare takes runs in pairs, as A B or A1 B1 A2 B2; 1 given: judge one run with --baseline DIR"
)
METHOD = Method(
    name="comparison",
    title="A/B comparison",
    computed="Figures of a variant are geometric means over its runs, so that B / A is the change. Interval and p are those of "
    "the paired t-test: the first row is tested alone, the others together (Holm). Percentiles with too few requests in a run "
    "are not compared.",
)
ONE_EACH = (
    "A and B have one run each: a difference cannot be distinguished from drift. The intervals of two equal runs "
    "show a difference 7 times in 10 or more. Run 20 or more pairs, one after the other, in random order within each pair"
)
ONE_DRY_RUN_EACH = "A and B have one run each: the chance difference of two equal dry runs is unknown. Compare more pairs, each with its own seed"


def compare(
    folders: Sequence[Path],
    allow: Sequence[str] = (),
    threshold: float = THRESHOLD,
    metrics: Sequence[str] = (),
) -> Comparison:
    """Compare the runs A1 B1 A2 B2 ...; `threshold` is the smallest change to report, 0.05 for 5%."""
    metrics = metrics or METRICS
    check_metrics(metrics)
    if len(folders) < 2 or len(folders) % 2:
        raise UsageError(
            f"compare takes runs in pairs, as A B or A1 B1 A2 B2; {len(folders)} given"
        )
    _refuse_repeated_runs(folders)
    runs = [summarize(folder, metrics) for folder in folders]
    return weigh(runs, allow, threshold, metrics)


def check_metrics(names: Sequence[str]) -> None:
    """Raise UsageError of a name that is no metric, or of a rate."""
    for name in names:
        if name not in BY_NAME:
            near = nearest(name, BY_NAME, 2) or f"; choose from {', '.join(BY_NAME)}"
            raise UsageError(f"--metric {name}: no such metric{near}")
        if BY_NAME[name].unit != UNIT:
            raise UsageError(f"--metric {name}: rates are not compared; use its inverse, tpot")


def _refuse_repeated_runs(folders: Sequence[Path]) -> None:
    """Raise UsageError of a run that is given twice, RunDataError of a folder without a run."""
    by_run: dict[str, Path] = {}
    for folder in folders:
        run_record.check(folder)
        run_id = run_record.read([folder])[0]["run_id"]
        if run_id in by_run:
            raise UsageError(
                f"{folder} and {by_run[run_id]} are the same run, {run_id}: give each run once"
            )
        by_run[run_id] = folder


def weigh(
    runs: Sequence[RunSummary],
    allow: Sequence[str] = (),
    threshold: float = THRESHOLD,
    metrics: Sequence[str] = METRICS,
) -> Comparison:
    """Compare these runs, A1 B1 A2 B2 ..., as far as their design allows.

    Differences that are not allowed end the comparison before any row. Other reasons against it, as an INVALID run or too few
    pairs, keep the rows but give them no verdict. A target that does not sustain a variant decides by itself.
    """
    a_runs = runs[::2]
    b_runs = runs[1::2]
    differs = differences([run.facts for run in a_runs], [run.facts for run in b_runs], allow)
    draft = Comparison(
        method=METHOD,
        threshold=threshold,
        differs=tuple(differs),
        pairs=len(a_runs),
        runs=tuple(runs),
    )
    against = []
    for run in runs:
        if run.verdict == INVALID:
            against.append(f"{run.run_id} is INVALID: {run.reason}")
    refused = refusals(differs, METHOD.sides)
    if refused:
        return conclude(replace(draft, against=(*against, *refused)))
    growth = (_growth(a_runs), _growth(b_runs))
    if growth != STABLE and not against:
        return conclude(replace(draft, growth_per_s=growth))
    against += _against(runs)
    rows = deciding_first(list(_rows(runs, metrics, threshold)), runs[0].primary)
    rows[0] = with_power(rows[0])
    decided = [row for row, _ in rows]
    if not against:
        decided = decide(rows)
    works = []
    for a, b in zip(a_runs, b_runs, strict=True):
        works.append((a.work, b.work))
    draft = replace(
        draft,
        against=tuple(against),
        remarks=tuple(_remarks(runs)),
        rows=tuple(decided),
        unequal=tuple(unequal_work(works)),
    )
    return conclude(draft)


def report(draft: Comparison) -> Report:
    """Return the report of `tailgauge compare`."""
    is_dry_run = any(run.dry_run for run in draft.runs)
    return comparison.report(draft, [run.verdict for run in draft.runs], dry_run=is_dry_run)


# --- rows -----------------------------------------------------------------------------------------------------------


def _rows(
    runs: Sequence[RunSummary], metrics: Sequence[str], threshold: float
) -> Iterator[Compared]:
    """Yield every metric that a run has at every percentile, then the share answered."""
    measured: set[str] = set()
    for run in runs:
        measured.update(figure.metric for figure in run.figures)
    for row in row_templates(metrics, threshold):
        if row.metric in measured:
            yield _compared(row, row.figures(runs))


def _compared(row: Effect, figures: Sequence[RunFigure | None]) -> Compared:
    """Return the row with the figures of A1 B1 A2 B2 ... and its estimate; None for that, and the reason, where they cannot be compared.

    `size` of a figure is what is compared, the logarithm of a percentile. A single pair shows the intervals of its runs.
    """
    measured = [figure for figure in figures if figure]
    if len(figures) == len(measured) == 2:
        a, b = measured
        row = replace(
            row, a=a.value, b=b.value, a_interval=(a.low, a.high), b_interval=(b.low, b.high)
        )
    row = without_comparison(row, figures)
    requests = [figure.n for figure in measured]
    fewest = min(requests, default=0)
    is_uneven = fewest * UNEVEN < max(requests, default=0)
    if row.p and is_uneven and fewest * (1 - row.p) < BEYOND:
        row = replace(
            row, why=f"too few requests for runs of unequal size: a run has {fewest}", counts=False
        )
    if row.why:
        return row, None
    sizes = np.array([figure.size for figure in measured])
    a_sizes = sizes[::2]
    b_sizes = sizes[1::2]
    differences = b_sizes - a_sizes
    changes = []
    for difference in differences.tolist():
        changes.append(row.change_of(difference) or 0.0)
    row = replace(
        row,
        a=row.value_of(float(a_sizes.mean())),
        b=row.value_of(float(b_sizes.mean())),
        change=row.change_of(float(differences.mean())),
        changes=tuple(changes),
        pairs=len(differences),
        worse_in=int((row.harm(differences) > 0).sum()),
    )
    return row, paired(differences)


# --- the design: what order, number and verdicts of the runs allow to conclude ------------------------------------------


def _growth(runs: Sequence[RunSummary]) -> float | None:
    """Return the median growth in the runs of a variant, if at least half of them are unstable."""
    growths = []
    for run in runs:
        if run.growth_per_s is not None:
            growths.append(run.growth_per_s)
    if 2 * len(growths) < len(runs):
        return None
    return median(growths)


def _against(runs: Sequence[RunSummary]) -> list[str]:
    pairs = len(runs) // 2
    dry_run = all(run.dry_run for run in runs)
    reasons = []
    if pairs == 1:
        reasons.append(ONE_DRY_RUN_EACH if dry_run else ONE_EACH)
    elif pairs < FEWEST_PAIRS:
        reasons.append(f"{pairs} pairs, {NEEDED}")
    if not dry_run:
        reasons += _order(runs)
    elif len({run.seed for run in runs[::2]}) < pairs:
        reasons.append(
            "pairs have the same seed: a dry run repeats itself exactly. Give each pair its own seed"
        )
    return reasons


def _order(runs: Sequence[RunSummary]) -> list[str]:
    """Runs of a pair must follow each other, and none may run beside another."""
    if any(run.began is None or run.ended is None for run in runs):
        return ["a run does not record when it began and ended, so the order of A and B is unknown"]
    ordered = sorted(runs, key=lambda run: run.began or 0.0)
    for earlier, later in pairwise(ordered):
        if (later.began or 0.0) < (earlier.ended or 0.0):
            return [
                f"{earlier.run_id} and {later.run_id} ran at the same time: each loaded the other"
            ]
    pair_of = {run.run_id: place // 2 for place, run in enumerate(runs)}
    order = [pair_of[run.run_id] for run in ordered]
    if order[::2] != order[1::2]:
        return [
            "the runs of a pair did not follow each other: drift between them looks like a difference"
        ]
    return []


def few_pairs(pairs: int) -> list[str]:
    """Return the remark on a number of pairs that is enough, and no more."""
    if not FEWEST_PAIRS <= pairs < ENOUGH:
        return []
    return [f"{pairs} pairs; {ENOUGH} or more narrow the interval"]


def _remarks(runs: Sequence[RunSummary]) -> list[str]:
    """Return what weakens a comparison of A1 B1 A2 B2 ... without ruling it out: order, seeds, short runs, few pairs."""
    a_runs = runs[::2]
    b_runs = runs[1::2]
    pairs = len(a_runs)
    remarks = few_pairs(pairs)
    if all(run.dry_run for run in runs):
        return remarks
    a_first = 0
    for a, b in zip(a_runs, b_runs, strict=True):
        if (a.began or 0.0) < (b.began or 0.0):
            a_first += 1
    if pairs >= FEWEST_PAIRS and a_first in {0, pairs}:
        drift = "drift within a pair counts as a difference. Randomize the order"
        remarks.append(f"{'A' if a_first else 'B'} came first in every pair: {drift}")
    if pairs > 1 and len({run.seed for run in a_runs}) == 1:
        remarks.append("all pairs have the same seed, so the same prompts: a cache may hold them")
    short = sum(run.seconds < BLOCK_E2E * (run.e2e_p99_s or 0.0) for run in runs)
    if short:
        shorter = (
            f"{short} of {len(runs)} runs are shorter than {BLOCK_E2E} times their end-to-end p99"
        )
        remarks.append(f"{shorter}: consecutive runs influence each other")
    return remarks
