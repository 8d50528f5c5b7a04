"""Rows of B against A from pairs of runs, A1 B1 A2 B2 ...: the mean difference of the runs' own figures.

A pair's difference is ln q_p(B) - ln q_p(A), read as a relative change; for the share of answered requests it is that of the
shares. Mean, interval and p-value are those of the paired t-test.

Runs that are not comparable are not read: their differences are the answer. UsageError for wrong arguments, RunDataError for
a folder without a run.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from statistics import median

import numpy as np

from tailgauge.errors import UsageError
from tailgauge.thresholds import FEWEST_PAIRS, INVALID
from tailgauge_analysis.comparing import comparison
from tailgauge_analysis.comparing.comparability import differences, facts_of
from tailgauge_analysis.comparing.comparison import STABLE, Comparison, Kind, RunPair, conclude
from tailgauge_analysis.comparing.effect import (
    Compared,
    Primary,
    answered_row,
    decide,
    deciding_first,
    latency_row,
    paired,
    unequal_work,
    with_power,
)
from tailgauge_analysis.comparing.run_summary import METRICS, PS, RunSummary, primary, summarize
from tailgauge_analysis.metrics.metrics import BY_NAME, UNIT
from tailgauge_analysis.reading import run_record
from tailgauge_analysis.stats.quantiles import TOO_FEW
from tailgauge_analysis.text.formatting import plain
from tailgauge_analysis.text.json_values import Json
from tailgauge_analysis.text.section import Report

THRESHOLD = 0.05
ENOUGH = 20  # pairs
# The rank of a quantile jumps with the number of values: where runs differ so much in size, so many lie beyond it.
UNEVEN, BEYOND = 1.1, 10
BLOCK_E2E = 5  # a run or block lasts at least so many end-to-end p99
NEEDED = f"{FEWEST_PAIRS} are needed to distinguish a difference from chance at 5%"
KIND = Kind(
    name="comparison",
    title="A/B comparison",
    computed="Figures of a variant are geometric means over its runs, so that B / A is the change. Interval and p are those of "
    "the paired t-test: the first row is tested alone, the others together (Holm). Percentiles with too few requests in a run "
    "are not compared.",
)
ONE_EACH = (
    "one run each: a difference cannot be distinguished from drift; two equal runs, compared by their intervals, "
    "differ 7 times in 10 or more. Run 20 or more pairs, one after the other, in random order within each pair"
)
ONE_DRY_RUN_EACH = "one run each: the chance difference of two equal dry runs is unknown. Compare more pairs, each with its own seed"


def compare(
    folders: Sequence[Path],
    allow: Sequence[str] = (),
    threshold: float = THRESHOLD,
    metrics: Sequence[str] = (),
) -> Comparison:
    """Compare the runs A1 B1 A2 B2 ...; `threshold` is the smallest change to report, 0.05 for 5%."""
    metrics = metrics or METRICS
    for name in metrics:
        if name not in BY_NAME:
            raise UsageError(f"--metric {name}: no such metric; choose from {', '.join(BY_NAME)}")
        if BY_NAME[name].unit != UNIT:
            raise UsageError(f"--metric {name}: rates are not compared; use its inverse, tpot")

    def read() -> list[RunSummary]:
        return [summarize(folder, metrics) for folder in folders]

    return weigh(_records(folders), read, allow, threshold, metrics)


def weigh(
    records: Sequence[Json],
    read: Callable[[], Sequence[RunSummary]],
    allow: Sequence[str],
    threshold: float,
    metrics: Sequence[str],
) -> Comparison:
    """Compare the runs of these records; rows are read if the records are comparable."""
    facts = [facts_of(record) for record in records]
    differs = differences(list(zip(facts[::2], facts[1::2], strict=True)), allow)
    found = Comparison(kind=KIND, threshold=threshold, differs=tuple(differs))
    refused = [difference.refusal(KIND.sides) for difference in differs if not difference.allowed]
    if refused:
        return conclude(replace(found, against=tuple(refused)))
    runs = read()
    pairs = [RunPair(a=a, b=b) for a, b in zip(runs[::2], runs[1::2], strict=True)]
    work = unequal_work([(pair.a.work, pair.b.work) for pair in pairs])
    found = replace(found, pairs=len(pairs), runs=tuple(pairs), unequal=tuple(work))
    invalid = [f"{run.run_id} is INVALID: {plain(run.reason, 200)}" for run in runs if run.verdict == INVALID]
    growth = (_growth([pair.a for pair in pairs]), _growth([pair.b for pair in pairs]))
    if growth != STABLE and not invalid:
        return conclude(replace(found, growth_per_s=growth))
    against = [*invalid, *_against(pairs)]
    rows = _rows(pairs, metrics, primary(records[0]["scenario"], metrics), threshold)
    decided = [row for row, _ in rows] if against else decide(rows)
    remarks = tuple(_remarks(pairs))
    return conclude(replace(found, against=tuple(against), remarks=remarks, rows=tuple(decided)))


def report(found: Comparison) -> Report:
    """Return the report of `tailgauge compare`."""
    runs = [run for pair in found.runs for run in (pair.a, pair.b)]
    return comparison.report(found, [run.verdict for run in runs], dry_run=any(run.dry_run for run in runs))


def _records(folders: Sequence[Path]) -> list[Json]:
    """Return the record of each run; each run once."""
    if len(folders) < 2 or len(folders) % 2:
        raise UsageError(f"compare takes runs in pairs, as A B or A1 B1 A2 B2; {len(folders)} given")
    by_run: dict[str, Path] = {}
    records = []
    for folder in folders:
        run_record.check(folder)
        run, _ = run_record.read([folder])
        if run["run_id"] in by_run:
            both = f"{folder} and {by_run[run['run_id']]}"
            raise UsageError(f"{both} are the same run, {run['run_id']}: give each run once")
        by_run[run["run_id"]] = folder
        records.append(run)
    return records


# --- rows -----------------------------------------------------------------------------------------------------------


def _rows(
    pairs: Sequence[RunPair], metrics: Sequence[str], primary: Primary, threshold: float
) -> list[Compared]:
    """Return every metric at every quantile, then the share answered; the deciding row first."""
    rows = []
    for metric in metrics:
        if any(run.quantiles[metric, p].n for p in PS for pair in pairs for run in (pair.a, pair.b)):
            rows += [_latency(pairs, metric, p, threshold) for p in PS]
    rows.append(_answered(pairs))
    first, *others = deciding_first(rows, primary, metrics)
    return [with_power(first), *others]


def _latency(pairs: Sequence[RunPair], metric: str, p: float, threshold: float) -> Compared:
    """Return the row, compared if all runs have a number."""
    row = latency_row(metric, p, threshold)
    quantiles = [run.quantiles[metric, p] for pair in pairs for run in (pair.a, pair.b)]
    if len(pairs) == 1:
        a, b = quantiles
        row = replace(row, a=a.value, b=b.value, a_interval=(a.low, a.high), b_interval=(b.low, b.high))
    sizes = [quantile.n for quantile in quantiles]
    is_uneven = max(sizes) > UNEVEN * min(sizes) and min(sizes) * (1 - p) < BEYOND
    if is_uneven or any(quantile.mark == TOO_FEW for quantile in quantiles):
        return replace(row, why=f"too few requests: a run has {min(sizes)}", counts=False), None
    failed = sum(quantile.value == math.inf for quantile in quantiles)
    if failed:
        is_every = failed == len(quantiles)
        place = "every run" if is_every else f"{failed} of {len(quantiles)} runs"
        return replace(row, why=f"falls among unanswered requests in {place}", counts=not is_every), None
    if not all(quantile.value for quantile in quantiles):
        return replace(row, why="is 0 in a run"), None
    logs = np.log([quantile.value for quantile in quantiles]).reshape(-1, 2)
    a, b = np.exp(logs.mean(axis=0)).tolist()
    changes = logs[:, 1] - logs[:, 0]
    row = replace(
        row,
        a=a,
        b=b,
        change=math.expm1(changes.mean()),
        changes=tuple(np.expm1(changes).tolist()),
        pairs=len(pairs),
        worse_in=int((changes > 0).sum()),
    )
    return row, paired(changes)


def _answered(pairs: Sequence[RunPair]) -> Compared:
    shares = np.array([(pair.a.answered, pair.b.answered) for pair in pairs])
    a, b = shares.mean(axis=0).tolist()
    changes = shares[:, 1] - shares[:, 0]
    row = replace(
        answered_row(),
        a=a,
        b=b,
        change=b - a,
        changes=tuple(changes.tolist()),
        pairs=len(pairs),
        worse_in=int((changes < 0).sum()),
    )
    return row, paired(changes)


# --- the design: what order, number and verdicts of the runs allow to conclude ------------------------------------------


def _growth(runs: Sequence[RunSummary]) -> float | None:
    """Return the median growth in the runs of a variant, if at least half of them are unstable."""
    growths = [run.growth_per_s for run in runs if run.growth_per_s is not None]
    return median(growths) if 2 * len(growths) >= len(runs) else None


def _against(pairs: Sequence[RunPair]) -> list[str]:
    runs = [run for pair in pairs for run in (pair.a, pair.b)]
    dry_run = all(run.dry_run for run in runs)
    reasons = []
    if len(pairs) == 1:
        reasons.append(ONE_DRY_RUN_EACH if dry_run else ONE_EACH)
    elif len(pairs) < FEWEST_PAIRS:
        reasons.append(f"{len(pairs)} pairs, {NEEDED}")
    if not dry_run:
        reasons += _order(runs)
    elif len({pair.a.seed for pair in pairs}) < len(pairs):
        reasons.append(
            "pairs have the same seed: a dry run repeats itself exactly. Give each pair its own seed"
        )
    return reasons


def _order(runs: Sequence[RunSummary]) -> list[str]:
    """Runs of a pair must follow each other, and none may run beside another."""
    times = [
        (run.began, run.ended, place // 2, run.run_id)
        for place, run in enumerate(runs)
        if run.began is not None and run.ended is not None
    ]
    if len(times) < len(runs):
        return ["a run does not record when it began and ended, so the order of A and B is unknown"]
    times.sort()
    for (_, ended, _, earlier), (began, _, _, later) in pairwise(times):
        if began < ended:
            return [f"{earlier} and {later} ran at the same time: each loaded the other"]
    order = [pair for _, _, pair, _ in times]
    if order[::2] != order[1::2]:
        return ["the runs of a pair did not follow each other: drift between them looks like a difference"]
    return []


def few_pairs(pairs: int) -> list[str]:
    """Return the remark on a number of pairs that is enough, and no more."""
    return [f"{pairs} pairs; {ENOUGH} or more narrow the interval"] if FEWEST_PAIRS <= pairs < ENOUGH else []


def _remarks(pairs: Sequence[RunPair]) -> list[str]:
    runs = [run for pair in pairs for run in (pair.a, pair.b)]
    remarks = few_pairs(len(pairs))
    if all(run.dry_run for run in runs):
        return remarks
    a_first = {(pair.a.began or 0.0) < (pair.b.began or 0.0) for pair in pairs}
    if len(pairs) >= FEWEST_PAIRS and len(a_first) == 1:
        drift = "drift within a pair counts as a difference. Randomize the order"
        remarks.append(f"{'A' if a_first == {True} else 'B'} came first in every pair: {drift}")
    if len(pairs) > 1 and len({pair.a.seed for pair in pairs}) == 1:
        remarks.append("all pairs have the same seed, so the same prompts: a cache may hold them")
    short = sum(run.seconds < BLOCK_E2E * (run.e2e_p99_s or 0.0) for run in runs)
    if short:
        shorter = f"{short} of {len(runs)} runs are shorter than {BLOCK_E2E} times their end-to-end p99"
        remarks.append(f"{shorter}: consecutive runs influence each other")
    return remarks
