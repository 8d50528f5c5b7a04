"""The answer of the model choice: which models meet the objectives, and which of them costs least.

Exit code 0 if a model meets every objective, 1 if none does, 5 if that is inconclusive.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from tailgauge.errors import Exit
from tailgauge.experiments.answer import Answer, AnswerTable, Case
from tailgauge.experiments.models.judge import ModelObjective, ModelResult, cheapest
from tailgauge_analysis.metrics.metrics import BY_NAME
from tailgauge_analysis.metrics.slo import FAIL, INCONCLUSIVE, PASS
from tailgauge_analysis.text.formatting import figures, listed, ms, ms_or_failed, percentile, plural, share
from tailgauge_analysis.text.quantile import plain_values

NOTHING = "No answer: every run was INVALID, or there was no time for one."
NONE = "–"
SAME = 0.0005  # of shares: an interval narrower than this is one number


def answer(found: Sequence[ModelResult], remarks: Sequence[str]) -> Answer:
    """The answer from all models."""
    if not found:
        return Answer(
            "models", NOTHING, _table(()), {"models": [], "meet": [], "cheapest": None}, Exit.INCONCLUSIVE, "",
            (Case("models", INCONCLUSIVE, NOTHING),), tuple(remarks),
        )  # fmt: skip
    best = cheapest(found)
    meet = [one.name for one in found if one.outcome == PASS]
    facts = {"models": [_facts(one) for one in found], "meet": meet, "cheapest": best.name if best else None}
    codes = {one.outcome for one in found}
    code = Exit.OK if PASS in codes else Exit.INCONCLUSIVE if INCONCLUSIVE in codes else Exit.FAILED
    return Answer(
        "models", _sentence(found, best), _table(found), facts, code, _smallest(found),
        tuple(Case(one.name, one.outcome, "; ".join(map(_text, one.objectives))) for one in found),
        (*remarks, *_remarks(found)),
    )  # fmt: skip


def _sentence(found: Sequence[ModelResult], best: ModelResult | None) -> str:
    by = {word: [one.name for one in found if one.outcome == word] for word in (PASS, INCONCLUSIVE)}
    meets = "meets" if len(by[PASS]) == 1 else "meet"
    parts = [
        f"{listed(by[PASS], None)} {meets} every objective."
        if by[PASS]
        else "No model was shown to meet every objective."
    ]
    if best is not None and best.per_1000 is not None:
        others = [one for one in found if one is not best and one.outcome == PASS and one.dearer is not None]
        costs = "It costs" if len(by[PASS]) == 1 else f"{best.name} costs least:"
        parts.append(
            f"{costs} {', '.join([f'{_cost(best.per_1000)} {best.unit} per 1,000 requests', *map(_less, others)])}."
        )
    for one in found:
        missed = next((objective for objective in one.objectives if objective.outcome == FAIL), None)
        if missed is not None:
            parts.append(f"{one.name} does not: {_text(missed)}.")
    if by[INCONCLUSIVE]:
        parts.append(f"Inconclusive: {listed(by[INCONCLUSIVE], None)}.")
    return " ".join(parts)


def _cost(per_1000: tuple[float, float, float]) -> str:
    """The cost, with its interval if that is wider than one number."""
    value, low, high = map(figures, per_1000)
    return value if low == value == high else f"{value} ({low} – {high})"


def _less(one: ModelResult) -> str:
    """How much less than this one the cheapest costs."""
    assert one.dearer is not None  # the caller checks
    ends = [one.dearer.mean, one.dearer.low, one.dearer.high]
    value, low, high = (None if end is None else -math.expm1(-end) for end in ends)
    word = "less" if (value or 0) >= 0 else "more"
    between = (
        "" if low is None or high is None or high - low < SAME else f" ({_signed(low)} – {_signed(high)})"
    )
    return f"{share(abs(value or 0.0))} {word} than {one.name}{between}"


def _signed(value: float) -> str:
    return share(value) if value >= 0 else f"−{share(-value)}"


def _text(one: ModelObjective) -> str:
    q = one.quantile
    return (
        f"{percentile(one.p)} of {_title(one.metric)} {ms_or_failed(q.value)} ms ({ms_or_failed(q.low)} – {ms_or_failed(q.high)}), allowed {ms(one.max_ms)}"
    )  # fmt: skip


def _title(metric: str) -> str:
    """The metric in words: TTFT since scheduled, end to end since scheduled."""
    title = BY_NAME[metric].title
    return title if title[:2].isupper() else title[:1].lower() + title[1:]


def _table(found: Sequence[ModelResult]) -> AnswerTable:
    objectives = [one.name for one in found[0].objectives] if found else []
    header = (
        "model", "blocks", "requests", "answered (of requests)", "p50, ms", "p95, ms", "p99, ms", *objectives, "meets all",
        "cost of 1,000", "95% interval", "relative to the cheapest", "95% interval",
    )  # fmt: skip
    caption = (
        "One row per model; all got the same traffic, in blocks in random order. p50 to p99: end to end since scheduled, failures "
        "slowest. Each objective: its quantile with 95% interval, and its outcome."
    )
    return AnswerTable(caption, header, tuple(map(_row, found)))


def _row(one: ModelResult) -> tuple[str, ...]:
    cost = one.per_1000
    dearer = one.dearer
    return (
        one.name, f"{one.blocks}", f"{one.requests:,}", share(one.answered / one.requests if one.requests else None),
        *(ms_or_failed(q.value) for q in one.took), *(f"{ms_or_failed(o.quantile.value)} ({ms_or_failed(o.quantile.low)} – {ms_or_failed(o.quantile.high)}): {o.outcome}" for o in one.objectives),
        one.outcome, NONE if cost is None else figures(cost[0]), NONE if cost is None else f"{figures(cost[1])} – {figures(cost[2])}",
        NONE if dearer is None else f"{math.exp(dearer.mean):.3g}x",
        NONE if dearer is None or dearer.low is None or dearer.high is None else f"{math.exp(dearer.low):.3g} – {math.exp(dearer.high):.3g}",
    )  # fmt: skip


def _facts(one: ModelResult) -> dict[str, object]:
    facts: dict[str, object] = plain_values(one)
    return facts | {"outcome": one.outcome}


def _smallest(found: Sequence[ModelResult]) -> str:
    """How far from its bound an objective must be to be decided: half the width of the intervals."""
    halves = [
        (q.high - q.low) / 2 / q.value
        for one in found
        for q in (objective.quantile for objective in one.objectives)
        if q.value and q.low is not None and q.high is not None and math.isfinite(q.high)
    ]
    return f"an objective whose bound is {share(float(np.median(halves)))} away" if halves else ""


def _remarks(found: Sequence[ModelResult]) -> list[str]:
    fewest = min(one.blocks for one in found)
    out = [f"Cost of {one.name} unknown: {one.why}." for one in found if one.why]
    if fewest < max(one.blocks for one in found):
        out.append(
            f"Some runs were INVALID: the fewest valid blocks of a model are {plural(fewest, 'block')}."
        )
    return out
