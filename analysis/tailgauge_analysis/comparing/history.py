"""A run judged by a baseline: regression, no regression beyond x%, or not enough history.

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

from tailgauge.errors import Exit
from tailgauge.thresholds import INVALID
from tailgauge_analysis.comparing import comparability, effects
from tailgauge_analysis.comparing.baseline import BaselineRun, Figure, load, of_run
from tailgauge_analysis.comparing.block import METRICS, PS
from tailgauge_analysis.comparing.comparability import SEED, VERSIONS, Difference, Facts
from tailgauge_analysis.comparing.comparison import OUTCOMES as OF_ROW
from tailgauge_analysis.comparing.comparison import cells, change, measured, name_of
from tailgauge_analysis.comparing.design import NOT_COMPARABLE
from tailgauge_analysis.comparing.effects import ANSWERED_SHARE, NO_WORSE, WORSE, Effect, named
from tailgauge_analysis.stats.binomial import student, student_beyond
from tailgauge_analysis.stats.quantiles import Floats
from tailgauge_analysis.text import section
from tailgauge_analysis.text.formatting import figures, listed, ms, plain, plural, share, text_table
from tailgauge_analysis.text.quantile import plain_values
from tailgauge_analysis.text.section import ObjectiveLine, Report

SCHEMA_VERSION = 1
FEWEST, RANKED = 5, 20  # runs: of a history, and of one whose ranks count too
LEVEL, OTHERS = 0.95, 0.01  # of the primary row, one-sided; of all others together
FOUND = 0.9  # of the runs that are worse by the smallest detectable change
WORK = 0.99  # share of the runs with equal work that pass for such
DRIFT_FROM, DRIFT, SHUFFLES = 8, 0.01, 1999
REGRESSION, NO_REGRESSION, TOO_SHORT = "regression", "no regression", "not enough history"
OUTCOMES = {REGRESSION: section.FAIL, NO_REGRESSION: section.PASS}
TITLE = "Run against its baseline"
HEADER = ("offered requests, ms", "verdict", "change", "history", "run", "p", "worse than", "why")
Runs = Sequence[BaselineRun]
Rows = Sequence[Effect]
COMPUTED = (
    "History: geometric mean of the runs. A change has its 90% prediction interval: one unchanged build in twenty lies above it, one "
    "below. p: chance of a run so slow if it is worse by the threshold. The first row decides at 5%, the others at 1% together."
)


def compare(place: str, folder: Path, threshold: float, allow: Sequence[str]) -> Report:
    """The answer on a run by the baseline in a folder or at a URL."""
    return judge(load(place, may_be_new=True), of_run(folder), threshold, allow)


def judge(runs: Runs, new: BaselineRun, threshold: float = 0.05, allow: Sequence[str] = ()) -> Report:
    """The answer on a run by others, which are in order of time; worse by more than `threshold` is a regression."""
    others = [run for run in runs if run.run_id != new.run_id]
    reasons = against(others, new, allow)
    rows = _rows(others, new, threshold) if others and not reasons else []
    verdict, text = _answer(others, new, reasons, rows)
    outcome = OUTCOMES.get(verdict, section.INCONCLUSIVE)
    remarks = [f"{new.run_id} is in the baseline itself: left out"] if len(others) < len(runs) else []
    if rows:
        remarks += comparability.allowed(_differences(others, new, allow), "the baseline", "this run")
        remarks += _drift(others, rows[0])
    table = section.Table(TITLE, HEADER, tuple(map(cells, rows)), prose=(1, 7))
    exit_code = Exit.INVALID if reasons else section.EXITS[outcome]
    return Report(
        f"{new.run_id}-baseline", TITLE, (new.run_id,), new.started_at, new.dry_run,
        section.Result(outcome, text, tuple(_lines(rows)), tuple(remarks)), measured([run.verdict for run in (*others, new)], reasons),
        _summary(others, rows), (section.Section("baseline", TITLE, text, tables=(table,) * bool(rows), computed=(COMPUTED,)),),
        exit_code, data={
            "schema_version": SCHEMA_VERSION, "verdict": verdict, "against": reasons, "remarks": remarks,
            "threshold": threshold, "run_id": new.run_id, "growth_per_s": new.growth_per_s, "history": [run.run_id for run in others],
            "rows": plain_values(rows), "outcome": outcome, "exit_code": int(exit_code),
        },
    )  # fmt: skip


def _answer(runs: Runs, new: BaselineRun, reasons: Sequence[str], rows: Rows) -> tuple[str, str]:
    """The verdict, and the sentence that says it."""
    worse = [row for row in rows if row.verdict == WORSE]
    if reasons:
        return NOT_COMPARABLE, f"Not comparable: {reasons[0]}"
    if not any(row.verdict for row in rows):
        why = f"{len(runs)} of {FEWEST} runs" if len(runs) < FEWEST else rows[0].why
        return TOO_SHORT, f"Not enough history: {why}"
    if new.growth_per_s is not None:
        by = f"the backlog grows by {figures(new.growth_per_s)} requests/s"
        return REGRESSION, f"Regression: not stable at this rate: {by}"
    if worse:
        row, more = worse[0], f" and {plural(len(worse) - 1, 'other figure')}" if worse[1:] else ""
        return REGRESSION, f"Regression: {name_of(row)} {row.why or change(row, row.change)}{more}"
    row = rows[0]
    most = max(row.threshold, -(row.low or 0.0) if row.is_share else row.high or 0.0)
    text = f"{math.ceil(most * 100 - 1e-9)}{' points' if row.is_share else '%'}"
    return NO_REGRESSION, f"No regression beyond {text}: {name_of(row)} {change(row, row.change)}"


def refused(runs: Runs, new: BaselineRun, allow: Sequence[str]) -> list[str]:
    """Why the run cannot join the others."""
    grows = new.growth_per_s
    if grows is not None:
        return [f"the target does not sustain the rate: the backlog grows by {figures(grows)} requests/s"]
    if new.dry_run and any(run.seed == new.seed for run in runs if run.run_id != new.run_id):
        return [f"it repeats a dry run of the baseline with seed {new.seed}: use another --seed"]
    return against(runs, new, allow)


def against(runs: Runs, new: BaselineRun, allow: Sequence[str]) -> list[str]:
    """Why the run cannot be held against the others: INVALID, another scenario, target, machine or version, other work."""
    if new.verdict == INVALID:
        return [f"{new.run_id} is INVALID: {new.reason}"]
    refused = comparability.refusals(_differences(runs, new, allow), "the baseline", "this run")
    return refused or _other_work(runs, new)


def _differences(runs: Runs, new: BaselineRun, allow: Sequence[str]) -> list[Difference]:
    """The seed counts where all runs have the same."""
    found = comparability.differences([(_equal(run), _equal(new)) for run in runs], allow) if runs else []
    one_seed = len(runs) > 1 and len({run.seed for run in runs}) == 1
    return [one for one in found if one.group != SEED or one_seed]


def _equal(run: BaselineRun) -> Facts:
    """Versions of what the harness uses may differ."""
    each = [((group, key), value) for group, of in run.facts.items() for key, value in of.items()]
    return {(group, key): value for (group, key), value in each if group != VERSIONS or key == "tailgauge"}


def _other_work(runs: Runs, new: BaselineRun) -> list[str]:
    """Tokens of a call beyond what the lengths of answers and prompts vary between runs."""
    found = []
    for kind, got in new.work.items():
        logs = np.log([run.work[kind] for run in runs if kind in run.work])
        more = math.log(got) - float(logs.mean()) if len(logs) > 1 else 0.0
        least = math.log1p(effects.UNEQUAL)
        if abs(more) > least and abs(more) > student(len(logs) - 1, WORK) * _spread(logs):
            size = f"{abs(math.expm1(more)):.1%} {'more' if more > 0 else 'fewer'}"
            found.append(f"other work: {size} {kind} a call than the baseline")
    return found


def _spread(values: Floats) -> float:
    """Standard deviation of another value's difference from the mean of these."""
    return float(values.std(ddof=1)) * math.sqrt(1 + 1 / len(values))


def _rows(runs: Runs, new: BaselineRun, threshold: float) -> list[Effect]:
    """The primary row first; metrics that no run has are left out."""
    known: list[tuple[Effect, list[Figure]]] = []
    for metric, p in (*((metric, p) for metric in METRICS for p in PS), (ANSWERED_SHARE, None)):
        of = [figure for run in (*runs, new) if (figure := run.figure(metric, p))]
        if of:
            why = _lacks(of, len(runs))
            known.append((replace(named(metric, p, threshold), why=why, counts=not why), of))
    known.insert(0, known.pop(effects.decisive([row for row, _ in known], new.primary, METRICS)))
    tests = sum(row.counts for row, _ in known[1:])
    levels = [(LEVEL, 1), *[(1 - OTHERS / max(1, tests), tests)] * (len(known) - 1)]
    return [_judged(row, of, *at) if row.counts else row for (row, of), at in zip(known, levels, strict=True)]


def _lacks(of: Sequence[Figure], runs: int) -> str:
    """Why figures of so many runs, and the new one's, cannot be compared."""
    *earlier, new = of
    lost = sum(figure.value is None for figure in earlier)
    if len(earlier) < runs:
        return "too few requests in a run"
    if lost:
        return f"falls among unanswered requests in {lost} of {plural(runs, 'earlier run')}"
    if any(figure.value == 0 and figure.p for figure in of):
        return "is 0 in a run"
    return "too few effective requests" if new.value is not None and math.isnan(new.error) else ""


def _judged(row: Effect, of: Sequence[Figure], level: float, tests: int) -> Effect:
    """The row with its figures, the last one against the others; with a verdict where there are enough of them."""
    earlier, new, n = np.array([figure.harm for figure in of[:-1]]), of[-1], len(of) - 1
    mean = float(earlier.mean())
    by, value, is_answered = new.harm - mean, new.value, new.value is not None
    row = replace(row, a=_value(row, mean), b=value, pairs=n, worse_in=int((earlier < new.harm).sum()))
    known = {"change": _change(row, by)} if is_answered else {"why": "falls among unanswered requests"}
    row = replace(row, **known)
    if n < FEWEST:
        return row
    errors = np.nan_to_num([figure.error for figure in of])
    more = max(0.0, float(errors[-1] ** 2 - np.square(errors[:-1]).mean()))
    scale = max(1e-9, math.hypot(_spread(earlier), math.sqrt(more)))

    def reach(level: float, apart: Floats) -> float:
        """How far from the mean an unchanged run may lie."""
        outside = max(1, math.floor((1 - level) * (n + 1) + 1e-9))
        by_rank = float(np.sort(apart)[-outside]) if n >= RANKED else 0.0
        return max(student(n - 1, 2 * level - 1) * scale, by_rank)

    margin = row.threshold if row.is_share else math.log1p(row.threshold)
    needed = margin + reach(level, earlier - mean)
    row = replace(
        row, verdict=WORSE if by > needed else NO_WORSE, limit=_value(row, mean + needed),
        smallest=_change(row, needed + student(n - 1, 2 * FOUND - 1) * scale),
    )  # fmt: skip
    if not is_answered:
        return row
    p_value = student_beyond((by - margin) / scale, n - 1)
    ends = (by - reach(LEVEL, earlier - mean), by + reach(LEVEL, mean - earlier))
    low, high = sorted(_change(row, end) for end in ends)
    return replace(row, low=low, high=high, p_value=p_value, p_family=min(1.0, tests * p_value))


def _value(row: Effect, harm: float) -> float:
    return -harm if row.is_share else math.exp(harm)


def _change(row: Effect, by: float) -> float:
    return -by if row.is_share else math.expm1(by)


def _drift(runs: Runs, row: Effect) -> list[str]:
    """The step at which the later runs differ most from the earlier ones, if neither chance nor the threshold explains it."""
    series = np.array([figure.harm for run in runs if (figure := run.figure(row.metric, row.p))])
    n = len(series)
    if n < DRIFT_FROM or not row.counts:
        return []
    sizes = np.arange(2, n - 1)
    orders = np.random.default_rng(n).permuted(np.tile(series, (SHUFFLES, 1)), axis=1)
    sums = np.cumsum(np.vstack([series, orders]) - series.mean(), axis=1)[:, 1:-2]
    apart = np.abs(sums) / np.sqrt(sizes * (n - sizes))
    at = int(sizes[apart[0].argmax()])
    by = float(series[at:].mean() - series[:at].mean())
    if (apart.max(axis=1) >= apart[0].max() - 1e-12).mean() > DRIFT or abs(_change(row, by)) <= row.threshold:
        return []
    before, since = (run.facts.get(VERSIONS, {}) for run in runs[at - 1 : at + 1])
    newer = [f"{name} {of} -> {since[name]}" for name, of in before.items() if since.get(name, of) != of]
    why = f" ({plain(listed(newer, 3), 120)})" if newer else ""
    size = f"{name_of(row)} {change(row, _change(row, by))}"
    hides = "Drop the runs before, else their spread hides a change"
    return [f"the baseline drifts: {size} from {runs[at].run_id} on{why}. {hides}"]


def _lines(rows: Rows) -> Iterator[ObjectiveLine]:
    """A line for each row with a verdict: the value, and the limit that it must not exceed."""
    for row in rows:
        if row.limit is not None:
            value, limit = (share(of) if row.is_share else f"{ms(of)} ms" for of in (row.b, row.limit))
            bound = f"{'<>'[(row.verdict == WORSE) != row.is_share]} {limit}"
            yield ObjectiveLine(name_of(row), OF_ROW[row.verdict or ""], value, bound, why=row.why)


def _summary(runs: Runs, rows: Rows) -> tuple[tuple[str, str], ...]:
    """What the history is, and which change it finds."""
    days = [run.started_at[:10] for run in runs]
    lines = [("history", f"{plural(len(days), 'run')} from {days[0]} to {days[-1]}")] if days else []
    if rows and rows[0].smallest is not None:
        size = f"{change(rows[0], rows[0].smallest)} or more"
        lines.append(("finds", f"{size} in 9 of 10 runs, of {name_of(rows[0])}"))
    return tuple(lines)


def listing(runs: Runs, width: int) -> list[str]:
    """A line for each run of a baseline, and what it finds."""
    metric, p = runs[-1].primary
    row, lines = named(metric if metric in METRICS else METRICS[0], p, 0.0), []
    for run in runs:
        one = run.figure(row.metric, p)
        cells = (f"{ms(one.value)} ({ms(one.low)} – {ms(one.high)})", f"{one.n:,}") if one else ("–", "–")
        lines.append((plain(run.run_id, 48), run.verdict, *cells))
    errors = [(one.error, run) for run in runs if (one := run.figure(row.metric, p))]
    known = sorted((pair for pair in errors if not math.isnan(pair[0])), key=lambda pair: pair[0])
    usual = known[len(known) // 2][1] if known else runs[-1]  # with an interval as most runs have it
    found = judge(runs, replace(usual, run_id=""))
    notes = [f"{label:<10}{plain(text)}" for label, text in found.summary]
    for text in (*found.data["against"], *found.result.details):
        notes += textwrap.wrap(plain(text), width)
    header = ("run", "measured", f"{name_of(row)}, ms", "requests")
    return [*text_table(header, lines, width), "", *notes]
