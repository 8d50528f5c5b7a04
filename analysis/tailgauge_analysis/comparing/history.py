"""A run judged by a baseline: regression, no regression beyond x%, or not enough history.

The spread between the earlier runs is the noise: by logarithms, an unchanged run lies within Student's t times s sqrt(1 + 1/n) of
their mean. Where the run's own interval is wider than theirs, the difference of the variances is added. From 20 runs on, a
slower run must also lie beyond all but one in twenty of them, whatever their distribution. The primary row is held against
the margin at 5%; the others against theirs at 1% for all of them together.
"""

from __future__ import annotations

import math
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from tailgauge.errors import Exit
from tailgauge.thresholds import INVALID
from tailgauge_analysis.comparing.baseline import BaselineRun, Figure, load, of_run
from tailgauge_analysis.comparing.block import METRICS, PS
from tailgauge_analysis.comparing.comparability import SEED, VERSIONS, Facts, differences, refusals
from tailgauge_analysis.comparing.comparison import cells, change, measured, name_of
from tailgauge_analysis.comparing.effects import (
    ANSWERED_SHARE,
    NO_WORSE,
    UNEQUAL,
    WORSE,
    Effect,
    decisive,
    named,
)
from tailgauge_analysis.stats.binomial import student, student_beyond
from tailgauge_analysis.stats.quantiles import NORMAL_975, Floats
from tailgauge_analysis.text.formatting import figures, ms, plain, plural, share
from tailgauge_analysis.text.quantile import plain_values
from tailgauge_analysis.text.section import (
    EXITS,
    FAIL,
    INCONCLUSIVE,
    PASS,
    ObjectiveLine,
    Report,
    Result,
    Section,
    Table,
)
from tailgauge_analysis.text.tables import text_table

SCHEMA_VERSION = 1
FEWEST, RANKED = 5, 20  # runs: of a history, and of one whose ranks count too
LEVEL, OTHERS = 0.95, 0.01  # of the primary row, one-sided; of all others together
FOUND = 0.9  # of the runs that are worse by the smallest detectable change
WORK = 0.995  # quantile of t beyond which a run's work is other work
DRIFT_FROM, DRIFT, SHUFFLES = 8, 0.01, 1999
REGRESSION, NO_REGRESSION, TOO_SHORT, UNLIKE = (
    "regression",
    "no regression",
    "not enough history",
    "not comparable",
)
OUTCOMES = {REGRESSION: FAIL, NO_REGRESSION: PASS}
HEADER = ("offered requests, ms", "verdict", "change", "history", "run", "p", "worse than", "why")
MOST_ROWS = 3  # in the sentence
COMPUTED = (
    "History: geometric mean of the runs. A change has its 90% prediction interval: one unchanged build in twenty lies above it, one "
    "below. p: chance of a run so slow if it is worse by the margin. The first row decides at 5%, the others at 1% for all together."
)


@dataclass(frozen=True, slots=True)
class Judgement:
    """The fields are the keys of `tailgauge compare --baseline --json`. Changes and shares are fractions."""

    schema_version: int
    verdict: str
    against: tuple[str, ...]
    remarks: tuple[str, ...]
    threshold: float
    run_id: str
    growth_per_s: float | None
    history: tuple[str, ...]
    rows: tuple[Effect, ...]

    @property
    def exit_code(self) -> Exit:
        """INVALID of what cannot be compared."""
        return Exit.INVALID if self.against else EXITS[OUTCOMES.get(self.verdict, INCONCLUSIVE)]


def compare(place: str, folder: Path, threshold: float, allow: Sequence[str]) -> Report:
    """The report of a run against the baseline in a folder or at a URL."""
    runs, new = load(place), of_run(folder)
    return report(judge(runs, new, threshold, allow), [*runs, new])


def judge(
    runs: Sequence[BaselineRun], new: BaselineRun, threshold: float = 0.05, allow: Sequence[str] = ()
) -> Judgement:
    """The new run against the others, which are in order of time; worse by more than `threshold` is a regression."""
    others = [run for run in runs if run.run_id != new.run_id]
    reasons = against(others, new, allow)
    rows = _rows(others, new, threshold) if others and not reasons else []
    if reasons:
        verdict = UNLIKE
    elif len(others) < FEWEST or not any(row.verdict for row in rows):
        verdict = TOO_SHORT
    else:
        is_worse = new.growth_per_s is not None or any(row.verdict == WORSE for row in rows)
        verdict = REGRESSION if is_worse else NO_REGRESSION
    remarks = [f"{new.run_id} is in the baseline itself: left out"] if len(others) < len(runs) else []
    if rows:
        remarks += _drift(others, rows[0])
    return Judgement(
        SCHEMA_VERSION, verdict, tuple(reasons), tuple(remarks), threshold, new.run_id, new.growth_per_s,
        tuple(run.run_id for run in others), tuple(rows),
    )  # fmt: skip


def against(runs: Sequence[BaselineRun], new: BaselineRun, allow: Sequence[str] = ()) -> list[str]:
    """Why the run cannot be held against the others: INVALID, another scenario, target, machine or version, other work."""
    if new.verdict == INVALID:
        return [f"{new.run_id} is INVALID: {new.reason}"]
    if not runs:
        return []
    found = differences([(_equal(run), _equal(new)) for run in runs], allow)
    one_seed = len(runs) > 1 and len({run.seed for run in runs}) == 1
    found = [one for one in found if one.group != SEED or one_seed]
    return refusals(found, "the baseline", "this run") or _other_work(runs, new)


def refused(runs: Sequence[BaselineRun], new: BaselineRun, allow: Sequence[str]) -> list[str]:
    """Why the run cannot join the others."""
    if new.growth_per_s is not None:
        return [
            f"the target does not sustain the rate: the backlog grows by {figures(new.growth_per_s)} requests/s"
        ]
    if new.dry_run and any(run.seed == new.seed for run in runs if run.run_id != new.run_id):
        return [
            f"seed {new.seed} is in the baseline, and a dry run repeats itself exactly: use another --seed"
        ]
    return against(runs, new, allow)


def _equal(run: BaselineRun) -> Facts:
    """Versions of what the harness uses may differ."""
    return {
        (group, key): value
        for group, of in run.facts.items()
        for key, value in of.items()
        if group != VERSIONS or key == "tailgauge"
    }


def _other_work(runs: Sequence[BaselineRun], new: BaselineRun) -> list[str]:
    """Tokens of a call beyond what the lengths of answers and prompts vary between runs."""
    found = []
    for kind, got in new.work.items():
        logs = np.log([run.work[kind] for run in runs if kind in run.work])
        if len(logs) > 1:
            more = math.log(got) - float(logs.mean())
            if abs(more) > max(math.log1p(UNEQUAL), student(len(logs) - 1, WORK) * _spread(logs)):
                sign = "more" if more > 0 else "fewer"
                found.append(
                    f"other work: {abs(math.expm1(more)):.1%} {sign} {kind} a call than the baseline"
                )
    return found


def _spread(values: Floats) -> float:
    """Standard deviation of another value's difference from the mean of these."""
    return float(values.std(ddof=1)) * math.sqrt(1 + 1 / len(values))


def _rows(runs: Sequence[BaselineRun], new: BaselineRun, threshold: float) -> list[Effect]:
    """The primary row first."""
    keys = [*((metric, p) for metric in METRICS for p in PS), (ANSWERED_SHARE, None)]
    rows = [row for key in keys if (row := _compared(runs, new, *key, threshold)) is not None]
    rows.insert(0, rows.pop(decisive(rows, new.primary, METRICS)))
    tests = sum(row.counts for row in rows[1:])
    levels = [(LEVEL, 1), *[(1 - OTHERS / max(1, tests), tests)] * (len(rows) - 1)]
    return [_judged(runs, new, row, *at) if row.counts else row for row, at in zip(rows, levels, strict=True)]


def _compared(
    runs: Sequence[BaselineRun], new: BaselineRun, metric: str, p: float | None, threshold: float
) -> Effect | None:
    """The row with the figures of both sides; None where no run has the metric."""
    of, one = [run.figure(metric, p) for run in runs], new.figure(metric, p)
    if one is None and not any(of):
        return None
    row = named(metric, p, threshold)
    known = [figure for figure in of if figure is not None]
    if one is None or len(known) < len(of):
        return replace(row, why="too few requests in a run", counts=False)
    lost = sum(figure.value is None for figure in known)
    if lost:
        where = f"falls among unanswered requests in {lost} of {len(known)} earlier runs"
        return replace(row, why=where, counts=False)
    if not all(figure.value for figure in (*known, one) if figure.value is not None) and not row.is_share:
        return replace(row, why="is 0 in a run", counts=False)
    if one.value is not None and math.isnan(_harm(one)[1]):
        return replace(row, why="too few effective requests", counts=False)
    return row


def _judged(runs: Sequence[BaselineRun], new: BaselineRun, row: Effect, level: float, tests: int) -> Effect:
    """The row with its figures, and with a verdict where there are runs enough."""
    of, one = ([run.figure(row.metric, row.p) for run in side] for side in (runs, [new]))
    (harm, *harms), (own, *errors) = zip(*(_harm(figure) for figure in (*one, *of) if figure), strict=True)
    earlier, n = np.array(harms), len(harms)
    mean, by = float(earlier.mean()), harm - float(earlier.mean())

    def value(of: float) -> float:
        return -of if row.is_share else math.exp(of)

    def changed(by: float) -> float:
        return -by if row.is_share else math.expm1(by)

    worse_in = int((earlier < harm).sum())
    row = replace(row, a=value(mean), pairs=n, worse_in=worse_in)
    if not math.isfinite(harm):
        why = "falls among unanswered requests"
        return replace(row, verdict=WORSE if n >= FEWEST else None, why=why)
    row = replace(row, b=value(harm), change=changed(by))
    if n < FEWEST:
        return row
    more = max(0.0, own**2 - float(np.square(np.nan_to_num(errors)).mean()))
    scale = max(1e-9, math.hypot(_spread(earlier), math.sqrt(more)))

    def reach(level: float, ranked: Floats) -> float:
        """How far above the mean an unchanged run may lie."""
        beyond = ranked[n - max(1, math.floor((1 - level) * (n + 1) + 1e-9))] if n >= RANKED else -math.inf
        return max(student(n - 1, level) * scale, float(beyond))

    above, below = np.sort(earlier - mean), np.sort(mean - earlier)
    margin = row.threshold if row.is_share else math.log1p(row.threshold)
    needed = margin + reach(level, above)
    p_value = student_beyond((by - margin) / scale, n - 1)
    low, high = sorted((changed(by - reach(LEVEL, above)), changed(by + reach(LEVEL, below))))
    return replace(
        row, low=low, high=high, limit=value(mean + needed), verdict=WORSE if by > needed else NO_WORSE, p_value=p_value,
        p_family=min(1.0, tests * p_value), smallest=changed(needed + student(n - 1, FOUND) * scale),
    )  # fmt: skip


def _harm(of: Figure) -> tuple[float, float]:
    """The larger the worse: a logarithm, or a share without its sign; and its standard error within the run."""
    if of.value is None:
        return math.inf, math.nan
    ends = [end for end in (of.low, of.high) if end]
    if of.p is None:
        return -of.value, float(np.mean([abs(end - of.value) for end in ends])) / NORMAL_975
    apart = [abs(math.log(end / of.value)) for end in ends]
    return math.log(of.value), float(np.mean(apart)) / NORMAL_975 if apart else math.nan


def _drift(runs: Sequence[BaselineRun], row: Effect) -> list[str]:
    """The step at which the later runs differ most from the earlier ones, if chance and the margin do not explain it."""
    known = [figure for run in runs if (figure := run.figure(row.metric, row.p))]
    n = len(known)
    if n < max(DRIFT_FROM, len(runs)) or not row.counts:
        return []
    series = np.array([_harm(figure)[0] for figure in known])
    orders = np.random.default_rng(n).permuted(np.tile(series, (SHUFFLES, 1)), axis=1)
    sums = np.cumsum(np.vstack([series, orders]) - series.mean(), axis=1)[:, 1:-2]
    sizes = np.arange(2, n - 1)
    sizes_apart = np.abs(sums) / np.sqrt(sizes * (n - sizes))
    at = int(sizes[sizes_apart[0].argmax()])
    by = float(series[at:].mean() - series[:at].mean())
    p_value = float((sizes_apart.max(axis=1) >= sizes_apart[0].max() - 1e-12).mean())
    limit = row.threshold if row.is_share else math.log1p(row.threshold)
    if p_value > DRIFT or abs(by) <= limit:
        return []
    before, since = (run.facts.get(VERSIONS, {}) for run in runs[at - 1 : at + 1])
    newer = [f"{name} {of} -> {since[name]}" for name, of in before.items() if since.get(name, of) != of]
    size = change(row, -by if row.is_share else math.expm1(by))
    why = f" ({plain(', '.join(newer), 120)})" if newer else ""
    return [
        f"the baseline drifts: {name_of(row)} {size} from {runs[at].run_id} on{why}. Drop the runs before, else their spread hides a change"
    ]


def report(found: Judgement, runs: Sequence[BaselineRun]) -> Report:
    """The report of `tailgauge compare --baseline`; `runs`: those of the history, and last the one that was judged."""
    *history, new = runs
    outcome = OUTCOMES.get(found.verdict, INCONCLUSIVE)
    title = "Run against its baseline"
    table = Table(title, HEADER, tuple(map(cells, found.rows)), prose=(1, 7))
    section = Section(
        "baseline", title, _sentence(found), tables=(table,) * bool(found.rows), computed=(COMPUTED,)
    )
    return Report(
        run_id=f"{found.run_id}-baseline", title=title, about=(found.run_id,), started_at=new.started_at,
        dry_run=new.dry_run, result=Result(outcome, _sentence(found), _lines(found.rows), found.remarks),
        measurement=measured([run.verdict for run in runs], found.against), summary=_summary(found, history),
        sections=(section,), exit_code=found.exit_code,
        data={**plain_values(found), "outcome": outcome, "exit_code": int(found.exit_code)},
    )  # fmt: skip


def _sentence(found: Judgement) -> str:
    """The answer."""
    if found.against:
        return f"Not comparable: {found.against[0]}"
    first = found.rows[0] if found.rows else None
    of_first = f"{name_of(first)} {change(first, first.change)}" if first and first.change is not None else ""
    if found.verdict == TOO_SHORT:
        n = len(found.history)
        why = f"{n} of {FEWEST} runs" if n < FEWEST or first is None else first.why
        return f"Not enough history: {', '.join(filter(None, (why, of_first)))}"
    if found.growth_per_s is not None:
        return f"Regression: not stable at this rate: the backlog grows by {figures(found.growth_per_s)} requests/s"
    worse = [row for row in found.rows if row.verdict == WORSE]
    if worse:
        each = [
            f"{name_of(row)} {change(row, row.change) if row.change is not None else row.why}"
            for row in worse
        ]
        more = f" and {len(each) - MOST_ROWS} more" if len(each) > MOST_ROWS else ""
        return f"Regression: {', '.join(each[:MOST_ROWS])}{more}"
    return f"No regression beyond {_at_most(first)}: {of_first}" if first else ""


def _at_most(row: Effect) -> str:
    """The largest change that the run allows, rounded up."""
    worst = max(row.threshold, -(row.low or 0.0) if row.is_share else row.high or 0.0)
    return f"{math.ceil(worst * 100 - 1e-9)}{' points' if row.is_share else '%'}"


def _lines(rows: Sequence[Effect]) -> tuple[ObjectiveLine, ...]:
    """A line for each row with a verdict: the value, and the limit that it must not exceed."""
    lines = []
    for row in rows:
        if row.verdict is not None:
            shown, is_worse = (
                share if row.is_share else (lambda value: f"{ms(value)} ms"),
                row.verdict == WORSE,
            )
            values = (
                ("", "")
                if row.limit is None
                else (shown(row.b), f"{'<>'[is_worse != row.is_share]} {shown(row.limit)}")
            )
            lines.append(ObjectiveLine(name_of(row), FAIL if is_worse else PASS, *values, why=row.why))
    return tuple(lines)


def _summary(found: Judgement, history: Sequence[BaselineRun]) -> tuple[tuple[str, str], ...]:
    """What the history is, and which change it finds."""
    if not history:
        return ()
    first, *_, last = (history[0].started_at[:10], history[-1].started_at[:10])
    lines = [("history", f"{plural(len(history), 'run')} from {first} to {last}")]
    row = found.rows[0] if found.rows else None
    if row is not None and row.smallest is not None:
        lines.append(("finds", f"{change(row, row.smallest)} or more in 9 of 10 runs, of {name_of(row)}"))
    return tuple(lines)


def listing(runs: Sequence[BaselineRun], width: int) -> list[str]:
    """A line for each run of a baseline, and what it finds."""
    found = judge(runs, replace(runs[-1], run_id=""))
    row = found.rows[0] if found.rows else named(*runs[-1].primary, 0.0)
    cells_of = [(run, run.figure(row.metric, row.p)) for run in runs]
    shown = share if row.is_share else ms
    lines = [
        (plain(run.run_id, 48), run.verdict, *((shown(one.value), f"{one.n:,}") if one else ("–", "–")))
        for run, one in cells_of
    ]
    header = ("run", "measured", name_of(row), "requests")
    notes = [f"{label:<10}{text}" for label, text in _summary(found, runs)]
    notes += [line for text in (*found.against, *found.remarks) for line in textwrap.wrap(text, width)]
    return [*text_table(header, lines, width), "", *notes]
