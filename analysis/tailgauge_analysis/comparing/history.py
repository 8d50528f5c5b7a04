"""Rows of a run (B) against the runs of its baseline (A): regression, no regression beyond x%, or not enough history.

The spread between the earlier runs is the noise: by logarithms, an unchanged run lies within Student's t times s sqrt(1 + 1/n) of
their mean. Where the run's own interval is wider than theirs, the difference of the variances is added. The primary row is held
against the threshold at 5%, the others at 1% for all of them together. A worse run is also worse than each earlier one: a few
slow runs among them stretch the spread by less than they are slow.
"""

from __future__ import annotations

import math
import textwrap
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from tailgauge.thresholds import INVALID
from tailgauge_analysis.comparing import comparison
from tailgauge_analysis.comparing.baseline import load
from tailgauge_analysis.comparing.comparability import (
    HOSTS,
    SEED,
    VERSIONS,
    Difference,
    Facts,
    differences,
    refusals,
)
from tailgauge_analysis.comparing.comparison import (
    NO_REGRESSION,
    REGRESSION,
    TOO_SHORT,
    Comparison,
    Method,
    conclude,
)
from tailgauge_analysis.comparing.effect import (
    NO_VALUE,
    NO_WORSE,
    RATIO,
    UNEQUAL,
    WORSE,
    Effect,
    deciding_first,
    latency_row,
    row_templates,
    without_comparison,
)
from tailgauge_analysis.comparing.pairs import THRESHOLD
from tailgauge_analysis.comparing.run_summary import METRICS, RunSummary, summarize
from tailgauge_analysis.stats.prediction import Prediction, varies_between
from tailgauge_analysis.text.formatting import figures, ms, plain, plural, text_table
from tailgauge_analysis.text.section import FAIL, PASS, ObjectiveLine, Report

FEWEST = 5  # runs of a history
# Levels of the tests: of the primary row, one-sided, and of all others together.
LEVEL = 0.95
BOTH_SIDES = (1 + LEVEL) / 2
OTHERS = 0.01
FOUND = 0.9  # of the runs that are worse by the smallest detectable change
WORK = 0.995  # share of the runs with equal work that pass for such, on one side
TITLE = "Run against its baseline"
SIDES = ("the baseline", "this run")
METHOD = Method(
    name="baseline",
    title=TITLE,
    sides=("history", "run"),
    computed="“history” is the geometric mean of the baseline's runs, with the interval in which 95% of such runs lie. A change has its 90% "
    "prediction interval: one unchanged build in twenty lies above it, one below. p is the chance of a run as slow as this if the build is "
    "worse by the threshold. The first row decides at 5%, the others at 1% together.",
)
Runs = Sequence[RunSummary]


def compare(place: str, folder: Path, threshold: float, allow: Sequence[str]) -> Report:
    """Return the answer on a run by the baseline in a folder or at a URL."""
    return judge(load(place, may_be_new=True), summarize(folder), threshold, allow)


def judge(
    runs: Runs, new: RunSummary, threshold: float = THRESHOLD, allow: Sequence[str] = ()
) -> Report:
    """Return the report on a new run against the earlier `runs`, which are in order of time.

    Worse by more than `threshold`, a share, and than chance explains is a regression. The new run is left out of the earlier
    ones. `allow`: differences of the runs that do not rule a comparison out.
    """
    history = [run for run in runs if run.run_id != new.run_id]
    differs = _differences(history, new, allow)
    against = _against(history, new, differs)
    rows = []
    if history and not against:
        rows = _rows(history, new, threshold)
    remarks = []
    if len(history) < len(runs):
        remarks.append(f"{new.run_id} is in the baseline itself: left out")
    if rows:
        remarks += [f"differs: {difference.text(SIDES)}" for difference in differs]
    verdict, sentence = _answer(history, new, rows)
    draft = Comparison(
        method=METHOD,
        threshold=threshold,
        against=tuple(against),
        remarks=tuple(remarks),
        rows=tuple(rows),
        growth_per_s=(None, new.growth_per_s),
        verdict=comparison.NOT_COMPARABLE if against else verdict,
        sentence=sentence,
    )
    report = comparison.report(
        conclude(draft), [run.verdict for run in (*history, new)], dry_run=new.dry_run
    )
    return replace(
        report,
        run_id=f"{new.run_id}-baseline",
        title=TITLE,
        about=(new.run_id,),
        started_at=new.started_at,
        result=replace(report.result, objectives=tuple(_lines(rows)), details=tuple(remarks)),
        summary=_summary(history, rows),
        data={**report.data, "run_id": new.run_id, "history": [run.run_id for run in history]},
    )


def _answer(runs: Runs, new: RunSummary, rows: Sequence[Effect]) -> tuple[str, str]:
    """Return verdict and sentence: not enough history, a regression, or none beyond how many percent.

    `runs`: the history; `new`: the run, which regresses too where the target did not sustain its rate.
    """
    if not any(row.verdict for row in rows):
        reason = f"the baseline has {len(runs)} of {FEWEST} runs"
        if rows and len(runs) >= FEWEST:
            reason = rows[0].why
        return TOO_SHORT, f"Not enough history: {reason}"
    if new.growth_per_s is not None:
        return REGRESSION, f"Regression: not stable at this rate, {_grows(new)}"
    worse = [row for row in rows if row.verdict == WORSE]
    deciding = (worse or rows)[0]
    change = f"{deciding.name} {deciding.why or deciding.change_text(deciding.change)}"
    if worse:
        text = f"Regression: {change}"
        if len(worse) > 1:
            text += f" and {plural(len(worse) - 1, 'other figure')}"
        return REGRESSION, text
    # The change that is excluded: the worse end of the interval, at least the threshold, rounded up.
    end = deciding.high if deciding.more_is_worse else deciding.low
    percent = math.ceil(max(deciding.threshold, deciding.harm(end or 0.0)) * 100 - 1e-9)
    return (
        NO_REGRESSION,
        f"No regression beyond {percent}{'%' if deciding.p else ' points'}: {change}",
    )


def _grows(run: RunSummary) -> str:
    return f"the backlog grows by {figures(run.growth_per_s or 0.0)} requests/s"


# --- what must be equal ---------------------------------------------------------------------------------------------


def refused(runs: Runs, new: RunSummary, allow: Sequence[str]) -> list[str]:
    """Return why the run cannot join the others."""
    if new.growth_per_s is not None:
        return [f"the target does not sustain the rate: {_grows(new)}"]
    if new.dry_run and any(run.seed == new.seed for run in runs if run.run_id != new.run_id):
        return [f"it repeats a dry run of the baseline with seed {new.seed}: use another --seed"]
    return _against(runs, new, _differences(runs, new, allow))


def _against(runs: Runs, new: RunSummary, differs: Sequence[Difference]) -> list[str]:
    """Return why the run cannot be held against the others: INVALID, another scenario, target, machine or version, other work."""
    if new.verdict == INVALID:
        return [f"{new.run_id} is INVALID: {new.reason}"]
    return refusals(differs, SIDES) or list(_other_work(runs, new))


def _differences(runs: Runs, new: RunSummary, allow: Sequence[str]) -> list[Difference]:
    """Return the seed counts where all runs have the same."""
    if not runs:
        return []
    differing = differences([_equal(run) for run in runs], [_equal(new)] * len(runs), allow)
    if len(runs) > 1 and len({run.seed for run in runs}) == 1:
        return differing
    return [difference for difference in differing if difference.group != SEED]


def _equal(run: RunSummary) -> Facts:
    """Versions of what the harness uses may differ, and the name of a build machine."""
    versions = {"tailgauge": run.facts[VERSIONS].get("tailgauge", "")}
    hosts = dict(run.facts[HOSTS])
    hosts.pop("master.host", None)
    return {**run.facts, VERSIONS: versions, HOSTS: hosts}


def _other_work(runs: Runs, new: RunSummary) -> Iterator[str]:
    """Yield tokens of a call beyond what the lengths of answers and prompts vary between runs."""
    for kind, tokens in new.work.items():
        earlier = []
        for run in runs:
            if kind in run.work:
                earlier.append(run.work[kind])
        if len(earlier) < 2:
            continue
        prediction = Prediction.of(np.log(earlier))
        excess = math.log(tokens) - prediction.mean
        if abs(excess) > max(math.log1p(UNEQUAL), prediction.reach(WORK)):
            size = f"{abs(math.expm1(excess)):.1%} {'more' if excess > 0 else 'fewer'}"
            yield f"the work differs: {size} {kind} per call than in the baseline"


# --- rows -----------------------------------------------------------------------------------------------------------


def _rows(runs: Runs, new: RunSummary, threshold: float) -> list[Effect]:
    """Return a row for each figure of the run and its history, each with its verdict, the deciding one first.

    Figures that no run has are left out. A row that cannot be compared has the reason and no verdict.
    """
    rows = []
    for template in row_templates(METRICS, threshold):
        *earlier, figure = template.figures((*runs, new))
        # A new percentile among failures is a regression, so that it is compared; one of an earlier run is not.
        is_lost = figure is not None and figure.value is None
        compared = earlier
        if not is_lost:
            compared = [*earlier, figure]
        row = without_comparison(template, compared)
        if figure and figure.value and math.isnan(figure.error):
            row = replace(row, why="too few effective requests")
        if figure or any(earlier):
            rows.append((replace(row, counts=not row.why), None))
    deciding, *secondary = [row for row, _ in deciding_first(rows, new.primary)]
    tests = max(1, sum(row.counts for row in secondary))
    judged = [_judged(deciding, runs, new, LEVEL, 1)]
    level = 1 - OTHERS / tests
    for row in secondary:
        judged.append(_judged(row, runs, new, level, tests))
    return judged


def _judged(row: Effect, runs: Runs, new: RunSummary, level: float, tests: int) -> Effect:
    """Return the row with its figures, and with a verdict where there are enough runs.

    The run is worse if it exceeds the mean of the history by the row's margin and by what chance gives at this level. `tests`:
    how many rows share the level. Harm is the figure on the scale of the test, with more always worse.
    """
    if not row.counts:
        return row
    measured = [figure for figure in row.figures((*runs, new)) if figure is not None]
    *earlier, figure = measured
    harms = row.harm(np.array([run_figure.size for run_figure in earlier]))
    harm = row.harm(figure.size)
    mean = float(harms.mean())
    excess = harm - mean
    row = replace(
        row,
        a=row.value_of(row.harm(mean)),
        b=figure.value,
        pairs=len(harms),
        worse_in=int((harms < harm).sum()),
    )
    if figure.value is None:
        row = replace(row, why=NO_VALUE)
    else:
        row = replace(row, change=row.change_of(row.harm(excess)))
    if len(harms) < FEWEST:
        return row
    errors = np.nan_to_num([run_figure.error for run_figure in earlier])
    # Where the new run is known less well than the earlier ones, the difference of the variances is added.
    prediction = Prediction.of(harms, np.nan_to_num(figure.error) ** 2 - np.square(errors).mean())
    needed = row.margin + prediction.limit(level)
    row = replace(
        row,
        verdict=WORSE if excess > needed else NO_WORSE,
        limit=row.value_of(row.harm(mean + needed)),
        smallest=row.change_of(row.harm(needed + prediction.reach(FOUND))),
        a_interval=_range(row, mean, prediction.reach(BOTH_SIDES)),
        b_interval=(figure.low, figure.high),
        varies=varies_between(harms, errors),
    )
    if figure.value is None:
        return row
    reach = prediction.reach(LEVEL)
    low, high = sorted((row.harm(excess - reach), row.harm(excess + reach)))
    p_value = prediction.chance(excess - row.margin)
    return replace(
        row,
        low=row.change_of(low),
        high=row.change_of(high),
        p_value=p_value,
        p_family=min(1.0, tests * p_value),
    )


def _range(row: Effect, mean: float, spread: float) -> tuple[float, float]:
    """Return where 95% of such runs lie."""
    ends = (row.harm(mean - spread), row.harm(mean + spread))
    low, high = sorted(map(row.value_of, ends))
    if row.scale == RATIO:
        return low, high
    return max(0.0, low), min(1.0, high)


def _between_text(row: Effect) -> str:
    """`95% of such runs lie within 302 – 421 ms`; empty of a history that is too short."""
    if row.a_interval is None:
        return ""
    low, high = map(row.value_text, row.a_interval)
    unit = " ms" if row.p else ""
    text = f"95% of such runs lie within {low} – {high}{unit}"
    if row.varies:
        text += ", wider than the interval of one run"
    return text


# --- texts ----------------------------------------------------------------------------------------------------------


def _lines(rows: Sequence[Effect]) -> Iterator[ObjectiveLine]:
    """Yield a line for each row with a verdict: the value, and the limit that it must not exceed."""
    for row in rows:
        if row.limit is None:
            continue
        unit = " ms" if row.p else ""
        is_worse = row.verdict == WORSE
        sign = ">" if is_worse == row.more_is_worse else "<"
        reason = row.why
        if not reason and row.varies:
            reason = _between_text(row)
        detectable = ""
        if row.smallest is not None:
            detectable = row.change_text(row.smallest)
        yield ObjectiveLine(
            name=row.name,
            outcome=FAIL if is_worse else PASS,
            value=f"{row.value_text(row.b)}{unit}",
            bound=f"{sign} {row.value_text(row.limit)}{unit}",
            interval=_interval_text(row),
            why=reason,
            finds=detectable,
        )


def _interval_text(row: Effect) -> str:
    """Return the run's own interval; empty where an end is missing."""
    if row.b_interval is None or None in row.b_interval:
        return ""
    low, high = map(row.value_text, row.b_interval)
    return f"{low} – {high}"


def _summary(runs: Runs, rows: Sequence[Effect]) -> tuple[tuple[str, str], ...]:
    """Return what the history is, how its runs differ, and which change it finds."""
    lines = []
    if runs:
        days = f"from {runs[0].started_at[:10]} to {runs[-1].started_at[:10]}"
        lines.append(("history", f"{plural(len(runs), 'run')} {days}"))
    if rows and rows[0].a_interval is not None:
        lines.append(("spread", f"{rows[0].name}: {_between_text(rows[0])}"))
    if rows and rows[0].smallest is not None:
        size = rows[0].change_text(rows[0].smallest)
        lines.append(("detects", f"{rows[0].name}: 9 of 10 runs would show a change of {size}"))
    return tuple(lines)


def listing(runs: Runs, width: int) -> list[str]:
    """Return a line for each run of a baseline, and what it finds."""
    metric, p = runs[-1].primary
    title = latency_row(metric, p, THRESHOLD).name
    lines = []
    for run in runs:
        figure = run.figure(metric, p)
        cells = ("–", "–", "–")
        if figure is not None:
            cells = (ms(figure.value), f"{ms(figure.low)} – {ms(figure.high)}", f"{figure.n:,}")
        lines.append((plain(run.run_id, 48), run.verdict, *cells))
    report = judge(runs, replace(runs[-1], run_id=""))
    notes = [f"{label:<10}{plain(text)}" for label, text in report.summary]
    for text in (*report.data["against"], *report.result.details):
        notes += textwrap.wrap(plain(text), width)
    return [
        *text_table(("run", "measured", f"{title}, ms", "95% interval", "requests"), lines, width),
        "",
        *notes,
    ]
