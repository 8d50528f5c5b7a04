"""The figures of a run by the formulas of another tool: `tailgauge report --as TOOL`.

The tools and the texts of their formulas are in definitions.toml; a formula names its function here. It maps the answers of
the steady stage to the tool's numbers; how the tool sends and warms up is not imitated. All leave failures out and give no
intervals; so do these. Percentiles are by the tool's rule.
"""

from __future__ import annotations

import tomllib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
from pydantic import TypeAdapter

from tailgauge_analysis.metrics.latency import SUCCESSES, Row
from tailgauge_analysis.metrics.steady import Steady
from tailgauge_analysis.metrics.throughput import Throughput
from tailgauge_analysis.stats.quantiles import TOO_FEW, Floats, Ints, Quantile
from tailgauge_analysis.text.formatting import count, ms, percentile, plural
from tailgauge_analysis.text.section import Column, Section, Table, Value

EVENTS = (
    "scheduled",
    "sent",
    "first_event",
    "first_content",
    "first_text",
    "last_content",
    "ended",
)
QUANTILES = (0.5, 0.9, 0.95, 0.99)
OF_TOKENS = ("tpot", None)  # our metrics for formulas of time and tokens
MISLED = 0.01  # share of the answers, from which a formula of time and tokens is marked
MISLEADING = "misleading"
TOO_FEW_SAMPLES = "too few samples"
TOKENS = "output_tokens_per_s"  # figures of ours that are no latency
COMPLETED = "completed_per_s"
READ = "2026-11"  # all of them
MEAN = "mean"
SIGNS = ("*", "**", "***", "****")  # of the reasons why a figure may not be believed
INTERPOLATED = "interpolated between two values"
RANKED = "the value behind the lowest int(p n)"


@dataclass(frozen=True, slots=True, kw_only=True)
class Formula:
    """One number of a tool: its name, our metric for it (None: none), the formula, and why the two differ.

    `values`, a name in VALUES: one per request or gap in ns or `unit`, NaN if the tool has none; a single one for a total.
    `weights`, likewise: of the values, in mean and percentiles.
    """

    name: str
    formula: str
    why: str
    unit: str
    values: str
    ours: str | None = None
    weights: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Tool:
    """A tool, where its formulas were read, its rule for percentiles, and the statistics that it prints, by our names."""

    name: str
    source: str
    rule: str
    prints: dict[str, str]
    formulas: tuple[Formula, ...]


TABLE = tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8"))
TOOLS = TypeAdapter(dict[str, Tool]).validate_python(TABLE)


class Answers:
    """Streamed answers of requests that are complete, one entry each, ns of the run clock; gaps by their answer.

    `misled`: what this run does to a formula of time and tokens; `is_misled`: to more than MISLED of the answers.
    """

    def __init__(self, stage: Steady) -> None:
        """Keep the times, tokens and chunk gaps of the streamed answers; requests without a first content are left out.

        Gaps are in one array, those of an answer after those of the one before. `first_gap` is NaN of an answer without one.
        """
        requests = stage.requests
        has_times = requests["first_content_at_ns"].notna() & requests["sent_at_ns"].notna()
        is_answer = (requests["streamed"].eq(True) & has_times).to_numpy(np.bool_)
        rows = requests[is_answer]
        times = {name: rows[f"{name}_at_ns"].to_numpy(np.float64) for name in EVENTS}
        self.due = times["scheduled"]
        self.sent = times["sent"]
        self.content = times["first_content"]
        self.text = times["first_text"]
        self.event = np.where(np.isnan(times["first_event"]), self.content, times["first_event"])
        self.last = times["last_content"]
        self.end = times["ended"]
        has_gap = np.repeat(is_answer, stage.gap_counts)
        # There may be a hundred million gaps: they are not copied if all count.
        self.gaps = stage.gaps_ns
        if not has_gap.all():
            self.gaps = stage.gaps_ns[has_gap]
        counts = stage.gap_counts[is_answer]
        self.first_gap = np.full(len(rows), np.nan)
        self.first_gap[counts > 0] = self.gaps[(np.cumsum(counts) - counts)[counts > 0]]
        self.tokens = rows["output_tokens"].to_numpy(np.float64)
        # The formulas divide the time from first to last content by all tokens, also by those that did not arrive in it.
        is_other = rows["pace_missing"].notna() | (rows["pace_tokens"] != self.tokens)
        misled = int((is_other | rows["pace_ambiguous"]).sum())
        affected = f"{count(misled)} of {plural(len(rows), 'answer')}"
        warning = f" Misleading here for {affected}: not all counted tokens arrived one by one in this time."
        self.misled = warning if misled else ""
        self.is_misled = misled > MISLED * len(rows)


def _tpot(answers: Answers, span: Floats) -> Floats:
    return span / np.where(answers.tokens >= 2, answers.tokens - 1, np.nan)


def _our_tpot(answers: Answers) -> Floats:
    return _tpot(answers, answers.last - answers.content)


def _tpot_to_end(answers: Answers) -> Floats:
    """To the end of the stream; unknown where that is less than 1 ms after the first content."""
    span = answers.end - answers.content
    return _tpot(answers, np.where(span >= 1e6, span, np.nan))


def _speed(tpot: Floats) -> Floats:
    return 1e9 / np.where(tpot > 0, tpot, np.nan)


def _role_gaps(answers: Answers) -> Floats:
    """Content gaps, and before them the one from the first event to the first content."""
    first_gaps = answers.content - answers.event
    return np.concatenate((first_gaps[first_gaps > 0], answers.gaps))


def _per_s(amount: float, start: Floats, end: Floats | float) -> Floats:
    seconds = (np.nanmax(end) - np.nanmin(start)) / 1e9
    if seconds > 0:
        return np.array([amount / seconds])
    return np.empty(0)


def _tokens(answers: Answers) -> float:
    return float(np.nansum(answers.tokens))


VALUES: Mapping[str, Callable[[Answers], Floats]] = {
    "content_since_due": lambda answers: answers.content - answers.due,
    "last_since_due": lambda answers: answers.last - answers.due,
    "event_since_sent": lambda answers: answers.event - answers.sent,
    "content_since_sent": lambda answers: answers.content - answers.sent,
    "text_since_sent": lambda answers: answers.text - answers.sent,
    "last_since_sent": lambda answers: answers.last - answers.sent,
    "end_since_sent": lambda answers: answers.end - answers.sent,
    "last_since_sent_per_token": lambda answers: (
        (answers.last - answers.sent) / np.where(answers.tokens > 0, answers.tokens, np.nan)
    ),
    "first_gap": lambda answers: answers.first_gap,
    "gaps": lambda answers: answers.gaps,
    "role_gaps": _role_gaps,
    "tpot": _our_tpot,
    "tpot_from_event": lambda answers: _tpot(answers, answers.last - answers.event),
    "tpot_to_end": _tpot_to_end,
    "speed": lambda answers: _speed(_our_tpot(answers)),
    "speed_to_end": lambda answers: _speed(_tpot_to_end(answers)),
    "tokens": lambda answers: answers.tokens,
    "later_tokens": lambda answers: answers.tokens - 1,
    "tokens_per_s": lambda answers: _per_s(_tokens(answers), answers.sent, answers.last),
    "answers_per_s": lambda answers: _per_s(len(answers.sent), answers.sent, answers.last),
    "tokens_per_s_until_last_due": lambda answers: _per_s(
        _tokens(answers), answers.due, answers.last[-1]
    ),
    "answers_per_s_until_last_due": lambda answers: _per_s(
        len(answers.sent) - 1.0, answers.due, answers.last[-1]
    ),
}


@dataclass(frozen=True, slots=True)
class ToolMetric:
    """One number of a tool over this run, in `unit`, beside ours."""

    name: str
    ours: str | None
    """the closest metric here"""
    formula: str
    why: str
    """why the two differ"""
    unit: str
    n: int
    """0: no answer has it"""
    mean: float | None
    percentiles: dict[str, float] | None
    our_value: float | None
    our_percentiles: dict[str, float | None] | None
    marks: dict[str, str]
    """why a percentile, of the tool or ours, may not be believed; empty where it may"""


@dataclass(frozen=True, slots=True)
class ToolMetrics:
    """The steady stage under another tool's formulas."""

    tool: str
    source: str
    read: str
    """year and month of the formulas"""
    rule: str
    """how the tool takes a percentile"""
    answers: int
    metrics: tuple[ToolMetric, ...]
    """empty without a streamed answer"""


def translate(name: str, stage: Steady, rows: Sequence[Row], rates: Throughput) -> ToolMetrics:
    """Return the figures of the stage by the formulas of TOOLS[name], with ours beside them."""
    tool = TOOLS[name]
    answers = Answers(stage)
    totals = {TOKENS: rates.output_tokens_per_s, COMPLETED: rates.completed_per_s}
    percentiles: dict[str, dict[str, Quantile]] = {}
    for row in rows:
        if row.view == SUCCESSES and row.n:
            percentiles[row.metric.name] = {percentile(q.p): q for q in row.quantiles}
    metrics: list[ToolMetric] = []
    if len(answers.sent):
        for formula in tool.formulas:
            metrics.append(_metric(formula, tool.rule, answers, percentiles, totals))
    return ToolMetrics(
        tool=tool.name,
        source=tool.source,
        read=READ,
        rule=tool.rule,
        answers=len(answers.sent),
        metrics=tuple(metrics),
    )


def _metric(
    formula: Formula,
    rule: str,
    answers: Answers,
    our_rows: Mapping[str, Mapping[str, Quantile]],
    totals: dict[str, float | None],
) -> ToolMetric:
    """Return one number of a tool over the answers: its mean and percentiles, and our metric beside it.

    `our_rows`: our percentiles by metric and label, as `p50`. `totals`: our rates by name; a formula beside one of them has one
    value and no percentiles. `rule`: how the tool takes a percentile.
    """
    values = VALUES[formula.values](answers)
    weights = None
    if formula.weights:
        weights = VALUES[formula.weights](answers)
    has_value = ~np.isnan(values)
    # The quantiles sort in place: a series that others read is copied.
    if not has_value.all() or values is answers.gaps or values is answers.first_gap:
        values = values[has_value]
        if weights is not None:
            weights = weights[has_value]
    scale = 1e-6 if formula.unit == "ms" else 1.0
    is_total = formula.ours in totals
    mean = None
    by_p: dict[str, float] = {}
    if len(values):
        mean = float(np.average(values, weights=weights)) * scale
        if not is_total:
            for p, value in zip(QUANTILES, _quantiles(values, weights, rule), strict=True):
                by_p[percentile(p)] = float(value) * scale
    ours = our_rows.get(formula.ours or "")
    our_percentiles = None
    if ours is not None:
        our_percentiles = _values_by_label(ours)
    why = formula.why
    # The warning on formulas of time and tokens; empty where this run does not mislead them.
    if formula.ours in OF_TOKENS:
        why += answers.misled
    n = len(values)
    if is_total:
        n = len(answers.sent)
    return ToolMetric(
        name=formula.name,
        ours=formula.ours,
        formula=formula.formula,
        why=why,
        unit=formula.unit,
        n=n,
        mean=mean,
        percentiles=by_p or None,
        our_value=totals.get(formula.ours or ""),
        our_percentiles=our_percentiles,
        marks=_marks(formula, answers, ours or {}),
    )


def _values_by_label(ours: Mapping[str, Quantile]) -> dict[str, float | None]:
    """Return the values of our percentiles; None where there are too few samples."""
    values = {}
    for label in map(percentile, QUANTILES):
        quantile = ours[label]
        values[label] = None if quantile.mark == TOO_FEW else quantile.value
    return values


def _marks(formula: Formula, answers: Answers, ours: Mapping[str, Quantile]) -> dict[str, str]:
    """Return the marks of our percentiles, which the tool's have too; all of a formula that this run misleads."""
    if formula.ours in OF_TOKENS and answers.is_misled:
        return dict.fromkeys(map(percentile, QUANTILES), MISLEADING)
    marks: dict[str, str] = {}
    for p in QUANTILES:
        quantile = ours.get(percentile(p))
        if quantile is not None and quantile.mark:
            marks[percentile(p)] = TOO_FEW_SAMPLES if quantile.mark == TOO_FEW else quantile.mark
    return marks


def _quantiles(values: Floats, weights: Floats | None, rule: str) -> Floats:
    """Return the tool's percentiles; sorts in place."""
    if rule == INTERPOLATED:
        return np.quantile(values, QUANTILES, overwrite_input=True)
    if rule == RANKED:
        values.sort()
        return values[[int(len(values) * p) for p in QUANTILES]]
    order = np.argsort(values)
    ordered_weights = np.ones(len(values))
    if weights is not None:
        ordered_weights = weights[order]
    totals = np.cumsum(ordered_weights)
    indexes: Ints = order[np.searchsorted(totals, np.array(QUANTILES) * totals[-1])]
    return values[indexes]


def section(translated: ToolMetrics) -> Section:
    """Return the section of the report."""
    tool = translated.tool
    title = f"Metrics as {tool} defines them"
    if not translated.metrics:
        answer = f"No streamed answer is complete: {tool} has no figures for this run."
        return Section("definitions", title, answer)
    columns: tuple[Column[ToolMetric], ...] = (
        ("their metric", lambda metric: f"{metric.name} ({metric.unit})"),
        ("mean", lambda metric: Value(ms(metric.mean), mark=_mark_of_mean(metric))),
        ("p50", lambda metric: _cell(metric, metric.percentiles, "p50")),
        ("p99", lambda metric: _cell(metric, metric.percentiles, "p99")),
        ("n", lambda metric: count(metric.n or None)),
        ("our metric", lambda metric: metric.ours or "–"),
        ("p50", lambda metric: _cell(metric, metric.our_percentiles, "p50", metric.our_value)),
        ("p99", lambda metric: _cell(metric, metric.our_percentiles, "p99")),
    )
    source = f"{tool} ({translated.source}, {translated.read})"
    formulas = []
    for metric in translated.metrics:
        formulas.append(f"{metric.name}: {metric.formula}. {metric.why}")
    return Section(
        "definitions",
        title,
        f"The table has the figures of the same answers by the formulas of {tool}, beside ours. The figures of {tool} have no intervals.",
        tables=(Table.of(source, translated.metrics, columns, prose=(5,)),),
        computed=(f"A percentile is {translated.rule}.", *formulas),
    )


def printed(name: str, translated: ToolMetrics) -> Table:
    """Return the table that `report --as NAME` prints: rows and columns have the names of the tool.

    A figure that may not be trusted has a sign of SIGNS, one for each reason; the note below the table explains the signs.
    """
    tool = TOOLS[name]
    reasons: set[str] = set()
    for metric in translated.metrics:
        reasons.update(metric.marks.values())
    signs = dict(zip(sorted(reasons), SIGNS, strict=False))

    def cell(metric: ToolMetric, statistic: str) -> str:
        if statistic == MEAN:
            value = metric.mean
            mark = _mark_of_mean(metric)
        else:
            value = (metric.percentiles or {}).get(statistic)
            mark = metric.marks.get(statistic, "")
        if value is None:
            return "–"
        return f"{ms(value)}{signs.get(mark, '')}"

    columns: list[Column[ToolMetric]] = [("", lambda metric: f"{metric.name} ({metric.unit})")]
    for statistic, title in tool.prints.items():
        columns.append((title, partial(cell, statistic=statistic)))
    legend = "; ".join(f"{sign} {mark}" for mark, sign in signs.items())
    title = f"As {tool.name} defines them, {plural(translated.answers, 'answer')}"
    return Table.of(title, translated.metrics, columns, legend)


def _cell(
    metric: ToolMetric,
    percentiles: Mapping[str, float | None] | None,
    p: str,
    total: float | None = None,
) -> Value:
    value = total
    if percentiles:
        value = percentiles.get(p)
    if value is None:
        return Value(ms(value))
    return Value(ms(value), mark=metric.marks.get(p, ""))


def _mark_of_mean(metric: ToolMetric) -> str:
    """Return the mark that all percentiles have."""
    marks = set(metric.marks.values())
    if len(marks) == 1 and len(metric.marks) == len(QUANTILES):
        return marks.pop()
    return ""
