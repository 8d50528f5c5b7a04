"""The figures of a run by the formulas of another tool: `tailgauge report --as TOOL`.

Another tool is an entry of TOOLS. A formula maps the answers of the steady stage to the tool's numbers; how the tool sends
and warms up is not imitated. All leave failures out and give no intervals; so do these. Percentiles are by the tool's rule.

Read in the tools' code, in November 2026:

- vLLM bench: vllm-project/vllm, `vllm/benchmarks/serve.py` at 009e6d4a, `lib/endpoint_request_func.py` at 02cfb534.
- AIPerf: ai-dynamo/aiperf, `src/aiperf/metrics/types/ttft_metric.py` at 58028d5b, `inter_token_latency_metric.py` at 58dd5dea,
  `docs/metrics-reference.md` at 0176f594.
- GuideLLM 0.7.3: vllm-project/guidellm, `src/guidellm/schemas/request_stats.py`, `statistics.py`, `benchmark/schemas/metrics.py`,
  `backends/openai/http.py` at ee7a7745.
- genai-bench 0.0.5: sgl-project/genai-bench, `genai_bench/metrics/`, `user/openai_user.py` at 7fd04d82.
- MLPerf LoadGen 6.0.17, scenario Server: mlcommons/inference, `loadgen/results.cc`, `logging.cc`, `loadgen.cc` at b66003e1.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from tailgauge_analysis.metrics.latency import SUCCESSES, Row
from tailgauge_analysis.metrics.stability import Throughput
from tailgauge_analysis.metrics.steady import Steady
from tailgauge_analysis.stats.quantiles import Floats, Ints
from tailgauge_analysis.text.formatting import count, ms, percentile, plural
from tailgauge_analysis.text.section import Section, Table

PS = (0.5, 0.9, 0.95, 0.99)
MS, RATE, PER_S = "ms", "tokens/s", "requests/s"
_OF_TOKENS = ("tpot", None)  # our metrics for formulas of time and tokens
TOKENS, COMPLETED = "output_tokens_per_s", "completed_per_s"  # figures of ours that are no latency
READ = "2026-11"  # all of them
INTERPOLATED = "interpolated between two values"
WEIGHTED = (
    "the smallest value up to which the share is reached; of ITL and TPOT the share of tokens, not of answers"
)
RANKED = "the value behind the lowest int(p n)"


@dataclass(frozen=True, slots=True)
class Formula:
    """One number of a tool: its name, our metric for it (None: none), the formula, and why the two differ.

    `values`: one per request or gap in ns or `unit`, NaN if the tool has none; a single one for a total.
    `weights`: of the values, in mean and percentiles.
    """

    name: str
    ours: str | None
    formula: str
    why: str
    unit: str
    values: Callable[[Answers], Floats]
    weights: Callable[[Answers], Floats] | None = None


@dataclass(frozen=True, slots=True)
class Tool:
    """A tool, where its formulas were read, and its rule for percentiles."""

    name: str
    source: str
    rule: str
    formulas: tuple[Formula, ...]


class Answers:
    """Streamed answers of requests that are complete, one entry each, ns of the run clock; gaps by their answer.

    `misled`: what this run does to a formula of time and tokens.
    """

    def __init__(self, of_target: Steady) -> None:
        requests = of_target.requests
        kept = requests["streamed"] == True  # noqa: E712 - null where unanswered
        kept &= requests["first_content_at_ns"].notna() & requests["sent_at_ns"].notna()
        rows = requests[kept]

        def at_ns(name: str) -> Floats:
            return rows[f"{name}_at_ns"].to_numpy(np.float64)

        self.due, self.sent, self.end = at_ns("scheduled"), at_ns("sent"), at_ns("ended")
        self.content, self.last = at_ns("first_content"), at_ns("last_content")
        self.text = at_ns("first_text")
        self.event = np.where(np.isnan(at_ns("first_event")), self.content, at_ns("first_event"))
        of = np.repeat(kept.to_numpy(np.bool_), of_target.gap_counts)
        self.gaps = of_target.gaps_ns if of.all() else of_target.gaps_ns[of]  # there may be a hundred million
        counts = of_target.gap_counts[kept.to_numpy(np.bool_)]
        self.first_gap = np.full(len(rows), np.nan)
        self.first_gap[counts > 0] = self.gaps[(np.cumsum(counts) - counts)[counts > 0]]
        self.tokens = rows["output_tokens"].to_numpy(np.float64)
        misled = int((rows["pace_missing"].notna() | (rows["pace_tokens"] != self.tokens)).sum())
        why = f" Misleading here for {count(misled)} of {plural(len(rows), 'answer')}: not all counted tokens arrived one by one in this time."
        self.misled = why if misled else ""


def _tpot(answers: Answers, first: Floats) -> Floats:
    return (answers.last - first) / np.where(answers.tokens >= 2, answers.tokens - 1, np.nan)


def _tpot_to_end(answers: Answers) -> Floats:
    """To the end of the stream; unknown where that is less than 1 ms after the first content."""
    spent = answers.end - answers.content
    return np.where(spent >= 1e6, spent, np.nan) / np.where(answers.tokens >= 2, answers.tokens - 1, np.nan)


def _rate(tpot: Floats) -> Floats:
    return 1e9 / np.where(tpot > 0, tpot, np.nan)


def _role_gaps(answers: Answers) -> Floats:
    """Content gaps, and before them the one from the first event to the first content."""
    first = answers.content - answers.event
    return np.concatenate((first[first > 0], answers.gaps))


def _per_second(amount: float, start: Floats, end: Floats | float) -> Floats:
    seconds = (np.nanmax(end) - np.nanmin(start)) / 1e9
    return np.array([amount / seconds]) if seconds > 0 else np.empty(0)


_COORDINATED = "Their clock starts when the request is sent, so a client that cannot keep up looks fast; ours starts when it was due."
_TO_THE_END = "Theirs ends with the stream, after usage and end mark; ours with the last content. "


def _totals(tokens: str, requests: str) -> tuple[Formula, Formula]:
    """The clients compute them alike, under names of their own."""
    return (
        Formula(tokens, TOKENS, "output tokens of the answers / (end of the last - start of the first)",
            "From the first request to the last content, the slow end included. Ours counts tokens that arrived in the steady stage.",
            RATE, lambda a: _per_second(float(np.nansum(a.tokens)), a.sent, a.last)),
        Formula(requests, COMPLETED, "answers / (end of the last - start of the first)",
            "Theirs divides by a time that the slowest answer extends; ours counts those that ended in the steady stage, over its length. "
            "Failed requests are in neither; our offered view has them.",
            PER_S, lambda a: _per_second(float(len(a.sent)), a.sent, a.last)),
    )  # fmt: skip


VLLM = Tool("vLLM bench", "vllm/benchmarks/serve.py, vllm/benchmarks/lib/endpoint_request_func.py", INTERPOLATED, (
    Formula("TTFT", "ttft_sched", "first event with a choice (an empty one counts) - sent",
        "Chat streams open with an event that has a role and no text: their TTFT ends there, ours at the first content. " + _COORDINATED,
        MS, lambda a: a.event - a.sent),
    Formula("TPOT", "tpot", "(end of the answer - TTFT) / (output tokens - 1), left out below 2 tokens",
        "Their time starts at the role event, so part of the wait for the first token counts for the later ones.",
        MS, lambda a: _tpot(a, a.event)),
    Formula("ITL", "chunk_gap", "every gap between events with a choice, all requests in one pool",
        "A gap between chunks, as ours, but it includes the gap from the role event to the first content. "
        "The last event (finish reason, no text) counts as arriving with the last content, because its time is not recorded.",
        MS, _role_gaps),
    Formula("E2EL", "e2e_sched", "last event with a choice - sent", _COORDINATED, MS, lambda a: a.last - a.sent),
    *_totals("Output token throughput", "Request throughput"),
))  # fmt: skip

AIPERF = Tool("AIPerf", "src/aiperf/metrics/types/", INTERPOLATED, (
    Formula("Time to First Token", "ttft_sched", "first non-empty content of any kind - start of the request", _COORDINATED,
        MS, lambda a: a.content - a.sent),
    Formula("Time to First Output Token", "ttft_text", "first content other than thinking - start of the request",
        "The same event as our first text. " + _COORDINATED, MS, lambda a: a.text - a.sent),
    Formula("Time to Second Token", "chunk_gap", "second content - first content", "The first of our chunk gaps of each answer, not since the start.",
        MS, lambda a: a.first_gap),
    Formula("Inter Token Latency", "tpot", "(last content - first content) / (output tokens - 1)",
        "A mean per answer, as our TPOT, not a gap between tokens. vLLM bench uses ITL for something else. Tokens are those of the target's usage, "
        "as with `--use-server-token-count`; by default AIPerf counts them with a tokenizer of its own.",
        MS, lambda a: _tpot(a, a.content)),
    Formula("Inter Chunk Latency", "chunk_gap", "every gap between content chunks, all requests in one pool",
        "The same pool as our chunk gap. Long answers weigh more in both, but not in our worst chunk gap.", MS, lambda a: a.gaps),
    Formula("Request Latency", "e2e_sched", "last content - start of the request", _COORDINATED, MS, lambda a: a.last - a.sent),
    Formula("Output Token Throughput Per User", None, "1 / Inter Token Latency",
        "Our user tokens per second. A high percentile is a fast user; slow users are at the low end.",
        RATE, lambda a: _rate(_tpot(a, a.content))),
    *_totals("Output Token Throughput", "Request Throughput"),
))  # fmt: skip

GUIDELLM = Tool("GuideLLM", "0.7.3, src/guidellm/schemas/request_stats.py, statistics.py", WEIGHTED, (
    Formula("TTFT", "ttft_sched", "first content of any kind - start of the request", _COORDINATED, MS, lambda a: a.content - a.sent),
    Formula("TTFOT", "ttft_text", "first content other than thinking - start of the request",
        "The same event as our first text. " + _COORDINATED, MS, lambda a: a.text - a.sent),
    Formula("TPOT", "tpot", "(last content - start of the request) / output tokens, weighted by output tokens",
        "It includes the wait for the first token: a long prompt raises it. Our TPOT is their ITL. Long answers weigh more.",
        MS, lambda a: (a.last - a.sent) / np.where(a.tokens > 0, a.tokens, np.nan), lambda a: a.tokens),
    Formula("ITL", "tpot", "(last content - first content) / (output tokens - 1), weighted by output tokens - 1",
        "A mean per answer, as our TPOT, but long answers weigh more: its mean is all time over all tokens.",
        MS, lambda a: _tpot(a, a.content), lambda a: a.tokens - 1),
    Formula("Request Latency", "e2e_sched", "end of the stream - start of the request", _TO_THE_END + _COORDINATED, MS, lambda a: a.end - a.sent),
    *_totals("Output Tokens Per Second (mean)", "Requests Per Second (mean)"),
))  # fmt: skip

GENAI_BENCH = Tool("genai-bench", "0.0.5, genai_bench/metrics/, genai_bench/user/openai_user.py", INTERPOLATED, (
    Formula("TTFT", "ttft_sched", "first content or thinking - start of the request",
        "It opens a connection for each request, within its TTFT; here are the connections of this run. " + _COORDINATED,
        MS, lambda a: a.content - a.sent),
    Formula("TPOT", "tpot", "(end of the stream - first content) / (output tokens - 1), left out below 2 tokens or 1 ms",
        _TO_THE_END + "A slow usage event or a short answer makes theirs larger.", MS, _tpot_to_end),
    Formula("Output Inference Speed", None, "1 / TPOT", "Our user tokens per second, but to the end of the stream.",
        RATE, lambda a: _rate(_tpot_to_end(a))),
    Formula("End-to-End Latency", "e2e_sched", "end of the stream - start of the request", _TO_THE_END + _COORDINATED, MS, lambda a: a.end - a.sent),
    *_totals("Mean Output Throughput", "Requests Per Second"),
))  # fmt: skip

MLPERF = Tool("MLPerf LoadGen", "6.0.17, scenario Server, loadgen/results.cc, logging.cc", RANKED, (
    Formula("First Token latency", "ttft_sched", "first content - scheduled",
        "The same time as ours, since scheduled. LoadGen trusts the system under test to report its first token.", MS, lambda a: a.content - a.due),
    Formula("Time per Output Token", "tpot", "(last content - first content) / (output tokens - 1)",
        "The same number as our TPOT. An answer of one token is an error in LoadGen, here it is left out.", MS, lambda a: _tpot(a, a.content)),
    Formula("Latency", "e2e_sched", "last content - scheduled", "The same time as ours, since scheduled.", MS, lambda a: a.last - a.due),
    Formula("Completed tokens per second", TOKENS, "output tokens of the answers / (end of the request that was due last - start)",
        "It ends with the request that was due last, not with the one that ended last, and starts with the test (here: when the first was due). "
        "Ours counts tokens that arrived in the steady stage.", RATE, lambda a: _per_second(float(np.nansum(a.tokens)), a.due, a.last[-1])),
    Formula("Completed samples per second", COMPLETED, "(answers - 1) / (end of the request that was due last - start)",
        "Of n answers n - 1 count, to the same end. Ours counts those that ended in the steady stage, over its length.",
        PER_S, lambda a: _per_second(len(a.sent) - 1.0, a.due, a.last[-1])),
))  # fmt: skip

TOOLS = {"vllm": VLLM, "aiperf": AIPERF, "guidellm": GUIDELLM, "genai-bench": GENAI_BENCH, "mlperf": MLPERF}


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
    percentiles: dict[str, dict[str, float | None]] = {}
    for row in rows:
        if row.view == SUCCESSES and row.quantiles:
            by_p = {quantile.p: quantile.value for quantile in row.quantiles}
            percentiles[row.metric.name] = {percentile(p): by_p.get(p) for p in PS}
    metrics: list[ToolMetric] = []
    if len(answers.sent):
        metrics = [_metric(formula, tool.rule, answers, percentiles, totals) for formula in tool.formulas]
    return ToolMetrics(tool.name, tool.source, READ, tool.rule, len(answers.sent), tuple(metrics))


def _metric(
    formula: Formula,
    rule: str,
    answers: Answers,
    our_percentiles: dict[str, dict[str, float | None]],
    totals: dict[str, float | None],
) -> ToolMetric:
    values = formula.values(answers)
    weights = formula.weights(answers) if formula.weights else None
    has_value = ~np.isnan(values)
    # The quantiles sort in place: a series that others read is copied.
    if not has_value.all() or values is answers.gaps or values is answers.first_gap:
        values = values[has_value]
        if weights is not None:
            weights = weights[has_value]
    scale = 1e-6 if formula.unit == MS else 1.0
    is_total = formula.ours in totals
    mean = None
    by_p: dict[str, float] = {}
    if len(values):
        mean = float(np.average(values, weights=weights)) * scale
        if not is_total:
            quantiles = _quantiles(values, weights, rule)
            by_p = {percentile(p): float(q) * scale for p, q in zip(PS, quantiles, strict=True)}
    return ToolMetric(
        name=formula.name,
        ours=formula.ours,
        formula=formula.formula,
        why=formula.why + answers.misled if formula.ours in _OF_TOKENS else formula.why,
        unit=formula.unit,
        n=len(answers.sent) if is_total else len(values),
        mean=mean,
        percentiles=by_p or None,
        our_value=totals.get(formula.ours or ""),
        our_percentiles=our_percentiles.get(formula.ours or ""),
    )


def _quantiles(values: Floats, weights: Floats | None, rule: str) -> Floats:
    """The tool's percentiles; sorts in place."""
    if rule == INTERPOLATED:
        return np.quantile(values, PS, overwrite_input=True)
    if rule == RANKED:
        values.sort()
        return values[[int(len(values) * p) for p in PS]]
    order = np.argsort(values)
    reached = np.cumsum(np.ones(len(values)) if weights is None else weights[order])
    at: Ints = order[np.searchsorted(reached, np.array(PS) * reached[-1])]
    return values[at]


def section(translated: ToolMetrics) -> Section:
    """The section of the report."""
    tool = translated.tool
    title = f"Metrics as {tool} defines them"
    if not translated.metrics:
        answer = f"No streamed answer is complete: {tool} has no figures for this run."
        return Section("definitions", title, answer)
    header = ("their metric", "mean", "p50", "p99", "n", "our metric", "p50", "p99")
    rows = tuple(_row(metric) for metric in translated.metrics)
    source = f"{tool} ({translated.source}, {translated.read})"
    formulas = [f"{metric.name}: {metric.formula}. {metric.why}" for metric in translated.metrics]
    return Section(
        "definitions",
        title,
        f"The same answers under the formulas of {tool}, beside ours. Its figures have no intervals.",
        tables=(Table(source, header, rows, prose=(5,)),),
        computed=(f"A percentile is {translated.rule}.", *formulas),
    )


def _row(metric: ToolMetric) -> tuple[str, ...]:
    theirs = metric.percentiles or {}
    ours = metric.our_percentiles or {}
    our_value = ms(metric.our_value)
    return (
        f"{metric.name} ({metric.unit})",
        ms(metric.mean),
        ms(theirs.get("p50")),
        ms(theirs.get("p99")),
        count(metric.n) if metric.n else "–",
        metric.ours or "–",
        ms(ours.get("p50")) if ours else our_value,
        ms(ours.get("p99")),
    )
