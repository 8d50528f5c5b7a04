"""Metrics of a run by the formulas of other tools.

Another tool is a row of TOOLS. A formula maps the answers of the steady stage to the tool's numbers; how the tool sends
and warms up is not imitated. Both tools leave failures out, interpolate between ranks and give no intervals; so do these.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from tailgauge_analysis.metrics.latency import SUCCESSES, Row
from tailgauge_analysis.metrics.steady import Steady
from tailgauge_analysis.metrics.throughput import Throughput
from tailgauge_analysis.stats.quantiles import Floats
from tailgauge_analysis.text.formatting import count, ms, percentile, plural
from tailgauge_analysis.text.section import Section, Table

PS = (0.5, 0.9, 0.95, 0.99)
MS, RATE, PER_S = "ms", "tokens/s", "requests/s"
_OF_TOKENS = ("tpot", None)  # our metrics for formulas of time and tokens
TOKENS, COMPLETED = "output_tokens_per_s", "completed_per_s"  # figures of ours that are no latency


@dataclass(frozen=True, slots=True)
class Formula:
    """One number of a tool: its name, our metric for it (None: none), the formula, and why the two differ.

    `values`: one per request or gap in ns or `unit`, NaN if the tool has none; a single one for a total.
    """

    name: str
    ours: str | None
    formula: str
    why: str
    unit: str
    values: Callable[[Answers], Floats]


@dataclass(frozen=True, slots=True)
class Tool:
    """A tool, where its formulas were read, and when."""

    name: str
    source: str
    read: str
    formulas: tuple[Formula, ...]


@dataclass(frozen=True, slots=True)
class Answers:
    """Streamed answers of requests that ended ok, one entry each, ns of the run clock; gaps by their answer."""

    sent: Floats
    event: Floats
    content: Floats
    text: Floats
    last: Floats
    tokens: Floats
    gaps: Floats
    misled: str  # what this run does to a formula of time and tokens


def _tpot(answers: Answers, first: Floats) -> Floats:
    return (answers.last - first) / np.where(answers.tokens >= 2, answers.tokens - 1, np.nan)


def _per_user(answers: Answers) -> Floats:
    tpot = _tpot(answers, answers.content)
    return 1e9 / np.where(tpot > 0, tpot, np.nan)


def _role_gaps(answers: Answers) -> Floats:
    """Content gaps, and before them the one from the first event to the first content."""
    first = answers.content - answers.event
    return np.concatenate((first[first > 0], answers.gaps))


def _per_second(amount: float, start: Floats, end: Floats) -> Floats:
    seconds = (np.nanmax(end) - np.nanmin(start)) / 1e9
    return np.array([amount / seconds]) if seconds > 0 else np.empty(0)


_COORDINATED = (
    "Their clock starts when the request is sent, so a client that cannot keep up looks fast; "
    "ours starts when it was due."
)


def _totals(tokens: str, requests: str) -> tuple[Formula, Formula]:
    """Both tools compute them alike, under names of their own."""
    return (
        Formula(
            tokens, TOKENS, "output tokens of the answers / (end of the last - start of the first)",
            "From the first request to the last content, the slow end included. Ours counts tokens that arrived in the steady stage.",
            RATE, lambda a: _per_second(float(np.nansum(a.tokens)), a.sent, a.last),
        ),
        Formula(
            requests, COMPLETED, "answers / (end of the last - start of the first)",
            "Theirs divides by a time that the slowest answer extends; ours counts those that ended in the steady stage, over its length. "
            "Failed requests are in neither; our offered view has them.",
            PER_S, lambda a: _per_second(float(len(a.sent)), a.sent, a.last),
        ),
    )  # fmt: skip


VLLM = Tool(
    "vLLM bench", "vllm/benchmarks/serve.py, vllm/benchmarks/lib/endpoint_request_func.py", "2026-11",
    (
        Formula(
            "TTFT", "ttft_sched", "first event with a choice (an empty one counts) - sent",
            "Chat streams open with an event that has a role and no text: their TTFT ends there, ours at the first content. " + _COORDINATED,
            MS, lambda a: a.event - a.sent,
        ),
        Formula(
            "TPOT", "tpot", "(end of the answer - TTFT) / (output tokens - 1), left out below 2 tokens",
            "Their time starts at the role event, so part of the wait for the first token counts for the later ones.",
            MS, lambda a: _tpot(a, a.event),
        ),
        Formula(
            "ITL", "chunk_gap", "every gap between events with a choice, all requests in one pool",
            "A gap between chunks, as ours, but it includes the gap from the role event to the first content. "
            "The last event (finish reason, no text) counts as arriving with the last content, because its time is not recorded.",
            MS, _role_gaps,
        ),
        Formula(
            "E2EL", "e2e_sched", "last event with a choice - sent", _COORDINATED, MS, lambda a: a.last - a.sent
        ),
        *_totals("Output token throughput", "Request throughput"),
    ),
)  # fmt: skip

AIPERF = Tool(
    "AIPerf", "src/aiperf/metrics/types/", "2026-11",
    (
        Formula(
            "Time to First Token", "ttft_sched", "first non-empty content of any kind - start of the request", _COORDINATED,
            MS, lambda a: a.content - a.sent,
        ),
        Formula(
            "Time to First Output Token", "ttft_text", "first content other than thinking - start of the request",
            "The same event as our first text. " + _COORDINATED, MS, lambda a: a.text - a.sent,
        ),
        Formula(
            "Inter Token Latency", "tpot", "(last content - first content) / (output tokens - 1)",
            "The same number as our TPOT: a mean per answer, not a gap between tokens. vLLM bench uses ITL for something else.",
            MS, lambda a: _tpot(a, a.content),
        ),
        Formula(
            "Inter Chunk Latency", "chunk_gap", "every gap between content chunks, all requests in one pool",
            "The same pool as our chunk gap. Long answers weigh more in both, but not in our worst chunk gap.", MS, lambda a: a.gaps,
        ),
        Formula(
            "Request Latency", "e2e_sched", "last content - start of the request", _COORDINATED, MS, lambda a: a.last - a.sent
        ),
        Formula(
            "Output Token Throughput Per User", None, "1 / Inter Token Latency",
            "Our user tokens per second. A high percentile is a fast user; slow users are at the low end.",
            RATE, _per_user,
        ),
        *_totals("Output Token Throughput", "Request Throughput"),
    ),
)  # fmt: skip

TOOLS = (VLLM, AIPERF)


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
    mean: float | None
    percentiles: dict[str, float] | None
    our_value: float | None
    our_percentiles: dict[str, float | None] | None


@dataclass(frozen=True, slots=True)
class ToolMetrics:
    """The steady stage under another tool's formulas."""

    tool: str
    source: str
    read: str
    """year and month of the formulas"""
    answers: int
    metrics: tuple[ToolMetric, ...]


def definitions(of_target: Steady, ours: list[Row], rates: Throughput) -> list[ToolMetrics]:
    """One for each tool; empty without a streamed answer."""
    answers = _answers(of_target)
    if not len(answers.sent):
        return []
    totals = {TOKENS: rates.output_tokens_per_s, COMPLETED: rates.completed_per_s}
    known = {
        row.metric.name: {percentile(p): by_p.get(p) for p in PS}
        for row in ours
        if row.view == SUCCESSES and (by_p := {q.p: q.value for q in row.quantiles})
    }
    return [
        ToolMetrics(
            tool.name, tool.source, tool.read, len(answers.sent),
            tuple(_metric(formula, answers, known, totals) for formula in tool.formulas),
        )
        for tool in TOOLS
    ]  # fmt: skip


def _answers(of_target: Steady) -> Answers:
    requests = of_target.requests
    kept = requests["streamed"] == True  # noqa: E712 - null where unanswered
    kept &= requests["first_content_at_ns"].notna() & requests["sent_at_ns"].notna()
    rows = requests[kept]
    names = ("sent", "first_event", "first_content", "first_text", "last_content")
    sent, event, content, text, last = (rows[f"{name}_at_ns"].to_numpy(np.float64) for name in names)
    event = np.where(np.isnan(event), content, event)
    of = np.repeat(kept.to_numpy(np.bool_), of_target.gap_counts)
    gaps = of_target.gaps_ns if of.all() else of_target.gaps_ns[of]  # there may be a hundred million
    tokens = rows["output_tokens"].to_numpy(np.float64)
    misled = int((rows["pace_missing"].notna() | (rows["pace_tokens"] != tokens)).sum())
    why = f" Misleading here for {count(misled)} of {plural(len(rows), 'answer')}: not all counted tokens arrived one by one in this time."
    return Answers(sent, event, content, text, last, tokens, gaps, why if misled else "")


def _metric(
    formula: Formula,
    answers: Answers,
    known: dict[str, dict[str, float | None]],
    totals: dict[str, float | None],
) -> ToolMetric:
    values = formula.values(answers)
    missing = np.isnan(values)
    if missing.any() or values is answers.gaps:  # the quantiles below sort in place
        values = values[~missing]
    scale, total = 1e-6 if formula.unit == MS else 1.0, formula.ours in totals
    quantiles = np.quantile(values, PS, overwrite_input=True) if len(values) and not total else ()
    by_p = {percentile(p): float(q) * scale for p, q in zip(PS, quantiles, strict=False)}
    return ToolMetric(
        formula.name, formula.ours, formula.formula,
        formula.why + (answers.misled if formula.ours in _OF_TOKENS else ""), formula.unit,
        len(answers.sent) if total else len(values), float(values.mean()) * scale if len(values) else None,
        by_p or None, totals.get(formula.ours or ""), known.get(formula.ours or ""),
    )  # fmt: skip


def section(found: Sequence[ToolMetrics]) -> Section | None:
    """The section, folded; None without a streamed answer."""
    if not found:
        return None
    header = ("their metric", "mean", "p50", "p99", "n", "our metric", "p50", "p99")
    tables = tuple(Table(f"{one.tool} ({one.source}, {one.read})", header, tuple(map(_row, one.metrics)), prose=(5,)) for one in found)  # fmt: skip
    formulas = tuple(f"{one.tool}, {m.name}: {m.formula}. {m.why}" for one in found for m in one.metrics)
    return Section(
        "definitions", "Metrics as other tools define them",
        "The same answers under the formulas of other tools. Their percentiles are interpolated and have no intervals.",
        (), tables, (), (), formulas, is_folded=True,
    )  # fmt: skip


def _row(one: ToolMetric) -> tuple[str, ...]:
    theirs, ours = one.percentiles or {}, one.our_percentiles or {}
    total = "–" if one.our_value is None else ms(one.our_value)
    return (
        f"{one.name} ({one.unit})", ms(one.mean), ms(theirs.get("p50")), ms(theirs.get("p99")), count(one.n), one.ours or "–",
        ms(ours.get("p50")) if ours else total, ms(ours.get("p99")),
    )  # fmt: skip
