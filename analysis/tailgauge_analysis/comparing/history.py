"""Rows of a run (B) against the runs of its baseline (A): regression, no regression beyond x%, or not enough history.

The spread between the earlier runs is the noise: by logarithms, an unchanged run lies within Student's t times s sqrt(1 + 1/n) of
their mean. Where the run's own interval is wider than theirs, the difference of the variances is added. From 20 runs on, a
slower run must also lie beyond all but one in twenty of them, whatever their distribution. The primary row is held against
the threshold at 5%, the others at 1% for all of them together.
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
from tailgauge_analysis.comparing.baseline import BaselineFigure, BaselineRun, load, of_run
from tailgauge_analysis.comparing.comparability import SEED, VERSIONS, Difference, Facts, differences
from tailgauge_analysis.comparing.comparison import (
    NO_REGRESSION,
    REGRESSION,
    TOO_SHORT,
    Comparison,
    Kind,
    conclude,
)
from tailgauge_analysis.comparing.effect import (
    NO_WORSE,
    UNEQUAL,
    WORSE,
    Effect,
    answered_row,
    deciding_first,
    latency_row,
)
from tailgauge_analysis.comparing.pairs import THRESHOLD
from tailgauge_analysis.comparing.run_summary import METRICS, PS
from tailgauge_analysis.stats.prediction import Prediction, step
from tailgauge_analysis.text.formatting import figures, listed, ms, plain, plural, text_table
from tailgauge_analysis.text.section import FAIL, PASS, ObjectiveLine, Report

FEWEST = 5  # runs of a history
LEVEL, OTHERS = 0.95, 0.01  # of the primary row, one-sided; of all others together
FOUND = 0.9  # of the runs that are worse by the smallest detectable change
WORK = 0.995  # share of the runs with equal work that pass for such, on one side
DRIFT_FROM, DRIFT = 8, 0.01
TITLE = "Run against its baseline"
SIDES = ("the baseline", "this run")
KIND = Kind(
    name="baseline",
    title=TITLE,
    sides=("history", "run"),
    computed="History: geometric mean of the runs. A change has its 90% prediction interval: one unchanged build in twenty lies above it, "
    "one below. p: chance of a run so slow if it is worse by the threshold. The first row decides at 5%, the others at 1% together.",
)
Runs = Sequence[BaselineRun]
Figures = Sequence[BaselineFigure]


def compare(place: str, folder: Path, threshold: float, allow: Sequence[str]) -> Report:
    """Return the answer on a run by the baseline in a folder or at a URL."""
    return judge(load(place, may_be_new=True), of_run(folder), threshold, allow)


def judge(runs: Runs, new: BaselineRun, threshold: float = THRESHOLD, allow: Sequence[str] = ()) -> Report:
    """Return the answer on a run by others, which are in order of time; worse by more than `threshold` is a regression."""
    others = [run for run in runs if run.run_id != new.run_id]
    differs = _differences(others, new, allow)
    against = _against(others, new, differs)
    rows = _rows(others, new, threshold) if others and not against else []
    remarks = [f"{new.run_id} is in the baseline itself: left out"] if len(others) < len(runs) else []
    if rows:
        remarks += [f"differs: {one.key}: {one.values(SIDES)}" for one in differs]
        remarks += _drift(others, rows[0])
    verdict, sentence = _answer(others, new, rows)
    found = Comparison(
        kind=KIND,
        threshold=threshold,
        against=tuple(against),
        remarks=tuple(remarks),
        rows=tuple(rows),
        growth_per_s=(None, new.growth_per_s),
        verdict=comparison.NOT_COMPARABLE if against else verdict,
        sentence=sentence,
    )
    made = comparison.report(conclude(found), [run.verdict for run in (*others, new)], dry_run=new.dry_run)
    return replace(
        made,
        run_id=f"{new.run_id}-baseline",
        title=TITLE,
        about=(new.run_id,),
        started_at=new.started_at,
        result=replace(made.result, objectives=tuple(_lines(rows)), details=tuple(remarks)),
        summary=_summary(others, rows),
        data={**made.data, "run_id": new.run_id, "history": [run.run_id for run in others]},
    )


def _answer(runs: Runs, new: BaselineRun, rows: Sequence[Effect]) -> tuple[str, str]:
    """Return the verdict, and the sentence that says it."""
    if not any(row.verdict for row in rows):
        reason = rows[0].why if rows and len(runs) >= FEWEST else f"{len(runs)} of {FEWEST} runs"
        return TOO_SHORT, f"Not enough history: {reason}"
    if new.growth_per_s is not None:
        grows = f"the backlog grows by {figures(new.growth_per_s)} requests/s"
        return REGRESSION, f"Regression: not stable at this rate: {grows}"
    worse = [row for row in rows if row.verdict == WORSE]
    if worse:
        row = worse[0]
        more = f" and {plural(len(worse) - 1, 'other figure')}" if len(worse) > 1 else ""
        return REGRESSION, f"Regression: {row.name} {row.why or row.change_text(row.change)}{more}"
    row = rows[0]
    end = row.high if row.more_is_worse else row.low
    percent = math.ceil(max(row.threshold, row.harm(end or 0.0)) * 100 - 1e-9)
    size = f"{percent}%" if row.more_is_worse else f"{percent} points"
    return NO_REGRESSION, f"No regression beyond {size}: {row.name} {row.change_text(row.change)}"


# --- what must be equal ---------------------------------------------------------------------------------------------


def refused(runs: Runs, new: BaselineRun, allow: Sequence[str]) -> list[str]:
    """Return why the run cannot join the others."""
    if new.growth_per_s is not None:
        grows = f"the backlog grows by {figures(new.growth_per_s)} requests/s"
        return [f"the target does not sustain the rate: {grows}"]
    if new.dry_run and any(run.seed == new.seed for run in runs if run.run_id != new.run_id):
        return [f"it repeats a dry run of the baseline with seed {new.seed}: use another --seed"]
    return _against(runs, new, _differences(runs, new, allow))


def _against(runs: Runs, new: BaselineRun, differs: Sequence[Difference]) -> list[str]:
    """Return why the run cannot be held against the others: INVALID, another scenario, target, machine or version, other work."""
    if new.verdict == INVALID:
        return [f"{new.run_id} is INVALID: {new.reason}"]
    refusals = [difference.refusal(SIDES) for difference in differs if not difference.allowed]
    return refusals or list(_other_work(runs, new))


def _differences(runs: Runs, new: BaselineRun, allow: Sequence[str]) -> list[Difference]:
    """The seed counts where all runs have the same."""
    if not runs:
        return []
    found = differences([(_equal(run), _equal(new)) for run in runs], allow)
    has_one_seed = len(runs) > 1 and len({run.seed for run in runs}) == 1
    return [difference for difference in found if difference.group != SEED or has_one_seed]


def _equal(run: BaselineRun) -> Facts:
    """Versions of what the harness uses may differ."""
    facts = {}
    for group, values in run.facts.items():
        for key, value in values.items():
            if group != VERSIONS or key == "tailgauge":
                facts[group, key] = value
    return facts


def _other_work(runs: Runs, new: BaselineRun) -> Iterator[str]:
    """Yield tokens of a call beyond what the lengths of answers and prompts vary between runs."""
    for kind, tokens in new.work.items():
        logs = np.log([run.work[kind] for run in runs if kind in run.work])
        if len(logs) < 2:
            continue
        prediction = Prediction(logs)
        more = math.log(tokens) - prediction.mean
        if abs(more) > max(math.log1p(UNEQUAL), prediction.margin(WORK)):
            size = f"{abs(math.expm1(more)):.1%} {'more' if more > 0 else 'fewer'}"
            yield f"other work: {size} {kind} a call than the baseline"


# --- rows -----------------------------------------------------------------------------------------------------------


def _rows(runs: Runs, new: BaselineRun, threshold: float) -> list[Effect]:
    """Return the primary row first; metrics that no run has are left out."""
    rows = [latency_row(metric, p, threshold) for metric in METRICS for p in PS]
    known = []
    for row in (*rows, answered_row()):
        earlier = [figure for run in runs if (figure := run.figure(row.metric, row.p))]
        figure = new.figure(row.metric, row.p)
        if earlier or figure:
            why = _lacks(earlier, figure, len(runs))
            known.append((replace(row, why=why, counts=not why), None))
    ordered = [row for row, _ in deciding_first(known, new.primary, METRICS)]
    tests = sum(row.counts for row in ordered[1:])
    judged = []
    for place, row in enumerate(ordered):
        level = 1 - OTHERS / max(1, tests) if place else LEVEL
        judged.append(_judged(row, runs, new, level, tests if place else 1) if row.counts else row)
    return judged


def _lacks(earlier: Figures, new: BaselineFigure | None, runs: int) -> str:
    """Return why the figures cannot be compared."""
    lost = sum(figure.value is None for figure in earlier)
    if new is None or len(earlier) < runs:
        return "too few requests in a run"
    if lost:
        return f"falls among unanswered requests in {lost} of {plural(runs, 'earlier run')}"
    if any(figure.value == 0 and figure.p for figure in (*earlier, new)):
        return "is 0 in a run"
    return "too few effective requests" if new.value is not None and math.isnan(new.error) else ""


def _judged(row: Effect, runs: Runs, new: BaselineRun, level: float, tests: int) -> Effect:
    """Return the row with its figures, and with a verdict where there are enough runs."""
    *earlier, figure = [run.figure(row.metric, row.p) for run in (*runs, new)]
    known = [other for other in earlier if other]
    if figure is None:
        return row
    harms = np.array([other.harm for other in known])
    errors = np.nan_to_num([other.error for other in known])
    own = max(0.0, float(np.nan_to_num(figure.error) ** 2 - np.square(errors).mean()))
    mean = float(harms.mean())
    by = figure.harm - mean
    row = replace(
        row, a=_value(row, mean), b=figure.value, pairs=len(known), worse_in=int((harms < figure.harm).sum())
    )
    if figure.value is None:
        row = replace(row, why="falls among unanswered requests")
    else:
        row = replace(row, change=row.change_of(row.harm(by)))
    if len(known) < FEWEST:
        return row
    prediction = Prediction(harms, math.sqrt(own))
    needed = row.margin + prediction.reach(level)
    row = replace(
        row,
        verdict=WORSE if by > needed else NO_WORSE,
        limit=_value(row, mean + needed),
        smallest=row.change_of(row.harm(needed + prediction.margin(FOUND))),
    )
    if figure.value is None:
        return row
    p_value = prediction.chance(by - row.margin)
    ends = (by - prediction.reach(LEVEL), by + prediction.reach(LEVEL, -1))
    low, high = sorted(row.harm(end) for end in ends)
    return replace(
        row,
        low=row.change_of(low),
        high=row.change_of(high),
        p_value=p_value,
        p_family=min(1.0, tests * p_value),
    )


def _value(row: Effect, harm: float) -> float:
    return math.exp(harm) if row.p else -harm


def _drift(runs: Runs, row: Effect) -> Iterator[str]:
    """Yield the step at which the later runs differ most, if neither chance nor the threshold explains it."""
    harms = [figure.harm for run in runs if (figure := run.figure(row.metric, row.p))]
    found = step(np.array(harms), DRIFT) if row.counts and len(harms) >= DRIFT_FROM else None
    if found is None:
        return
    place, harm = found
    change = row.change_of(row.harm(harm)) or 0.0
    if abs(change) <= row.threshold:
        return
    before = runs[place - 1].facts.get(VERSIONS, {})
    since = runs[place].facts.get(VERSIONS, {})
    newer = [f"{name} {old} -> {since[name]}" for name, old in before.items() if since.get(name, old) != old]
    cause = f" ({plain(listed(newer, 3), 120)})" if newer else ""
    size = f"{row.name} {row.change_text(change)}"
    hides = "Drop the runs before, else their spread hides a change"
    yield f"the baseline drifts: {size} from {runs[place].run_id} on{cause}. {hides}"


# --- texts ----------------------------------------------------------------------------------------------------------


def _lines(rows: Sequence[Effect]) -> Iterator[ObjectiveLine]:
    """Yield a line for each row with a verdict: the value, and the limit that it must not exceed."""
    for row in rows:
        if row.limit is None:
            continue
        unit = " ms" if row.p else ""
        is_worse = row.verdict == WORSE
        sign = ">" if is_worse == row.more_is_worse else "<"
        yield ObjectiveLine(
            name=row.name,
            outcome=FAIL if is_worse else PASS,
            value=f"{row.value_text(row.b)}{unit}",
            bound=f"{sign} {row.value_text(row.limit)}{unit}",
            why=row.why,
        )


def _summary(runs: Runs, rows: Sequence[Effect]) -> tuple[tuple[str, str], ...]:
    """Return what the history is, and which change it finds."""
    days = [run.started_at[:10] for run in runs]
    lines = [("history", f"{plural(len(days), 'run')} from {days[0]} to {days[-1]}")] if days else []
    if rows and rows[0].smallest is not None:
        size = rows[0].change_text(rows[0].smallest)
        lines.append(("finds", f"{size} or more in 9 of 10 runs, of {rows[0].name}"))
    return tuple(lines)


def listing(runs: Runs, width: int) -> list[str]:
    """Return a line for each run of a baseline, and what it finds."""
    metric, p = runs[-1].primary
    row = latency_row(metric if metric in METRICS else METRICS[0], p, THRESHOLD)
    lines = []
    for run in runs:
        figure = run.figure(row.metric, p)
        cells = ("–", "–")
        if figure:
            cells = (f"{ms(figure.value)} ({ms(figure.low)} – {ms(figure.high)})", f"{figure.n:,}")
        lines.append((plain(run.run_id, 48), run.verdict, *cells))
    found = judge(runs, replace(runs[-1], run_id=""))
    notes = [f"{label:<10}{plain(text)}" for label, text in found.summary]
    for text in (*found.data["against"], *found.result.details):
        notes += textwrap.wrap(plain(text), width)
    header = ("run", "measured", f"{row.name}, ms", "requests")
    return [*text_table(header, lines, width), "", *notes]
