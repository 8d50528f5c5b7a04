"""The answer of the model choice: which models meet the objectives, and which of them costs least.

PASS if a model meets every objective, FAIL if none does.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from tailgauge.experiments.answer import Answer
from tailgauge.experiments.models.judge import ModelObjective, ModelResult, cheapest
from tailgauge_analysis.metrics.metrics import BY_NAME
from tailgauge_analysis.text.cells import quantile_cell, with_interval
from tailgauge_analysis.text.formatting import figures, listed, ms, ms_or_failed, percentile, plural, share
from tailgauge_analysis.text.section import FAIL, INCONCLUSIVE, PASS, Cell, Result, Section, Table, Value

NOTHING = "no answer: every run was INVALID, or there was no time for one"
NONE = "–"
SAME = 0.0005  # of shares: an interval narrower than this is one number
NOTE = (
    "One row per model; all got the same traffic, in blocks in random order. p50 to p99: end to end since scheduled, failures "
    "slowest. Each objective: its quantile and its outcome."
)


@dataclass(frozen=True, slots=True)
class Models:
    """What was found; `meet`: those that meet every objective."""

    models: tuple[ModelResult, ...]
    meet: tuple[str, ...]
    cheapest: str | None


def answer(found: Sequence[ModelResult], remarks: Sequence[str]) -> Answer:
    """The answer from all models."""
    best = cheapest(found)
    by = {
        word: tuple(one.name for one in found if one.outcome == word) for word in (PASS, INCONCLUSIVE, FAIL)
    }
    finding = Models(tuple(found), by[PASS], best.name if best else None)
    if not found:
        return Answer("models", Result(INCONCLUSIVE, NOTHING, details=tuple(remarks)), finding)
    outcome = next(word for word in by if by[word])
    meets = f"{listed(by[PASS], None)} {'meets' if len(by[PASS]) == 1 else 'meet'} every objective"
    sentence = meets if by[PASS] else "no model was shown to meet every objective"
    details = [*_costs(found, best), *_missed(found)]
    if by[INCONCLUSIVE]:
        details.append(f"inconclusive: {listed(by[INCONCLUSIVE], None)}")
    return Answer(
        "models", Result(outcome, sentence, details=(*details, *remarks, *_remarks(found))), finding,
        (Section("models", "Models", tables=(_table(found),)),), _smallest(found),
    )  # fmt: skip


def _costs(found: Sequence[ModelResult], best: ModelResult | None) -> list[str]:
    if best is None or best.per_1000 is None:
        return []
    others = [_less(one) for one in found if one.outcome == PASS and one.dearer is not None]
    cost = with_interval(_cost(best.per_1000), f" {best.unit} per 1,000 requests")
    return [", ".join([f"{best.name} costs least: {cost}", *others])]


def _cost(per_1000: tuple[float, float, float]) -> Value:
    """The cost, with its interval if that is wider than one number."""
    value, low, high = map(figures, per_1000)
    return Value(value, "" if low == value == high else f"{low} – {high}")


def _less(one: ModelResult) -> str:
    """How much less than this one the cheapest costs."""
    assert one.dearer is not None  # the caller checks
    ends = [one.dearer.mean, one.dearer.low, one.dearer.high]
    value, low, high = (None if end is None else -math.expm1(-end) for end in ends)
    word = "less" if (value or 0) >= 0 else "more"
    narrow = low is None or high is None or high - low < SAME
    between = "" if narrow else f" ({_signed(low or 0.0)} – {_signed(high or 0.0)})"
    return f"{share(abs(value or 0.0))} {word} than {one.name}{between}"


def _signed(value: float) -> str:
    return share(value) if value >= 0 else f"−{share(-value)}"


def _missed(found: Sequence[ModelResult]) -> list[str]:
    """The first objective that each model misses."""
    missed = [(one.name, next((o for o in one.objectives if o.outcome == FAIL), None)) for one in found]
    return [f"{name} does not: {_text(one)}" for name, one in missed if one is not None]


def _text(one: ModelObjective) -> str:
    title = BY_NAME[one.metric].title
    shown = with_interval(quantile_cell(one.quantile), " ms")
    return f"{title if title[:2].isupper() else title.lower()} {percentile(one.p)} {shown}, allowed {ms(one.max_ms)} ms"


def _table(found: Sequence[ModelResult]) -> Table:
    objectives = [one.name for one in found[0].objectives]
    header = (
        "model", "meets all", "cost of 1,000", "relative to the cheapest", *objectives, "p50, ms", "p95, ms", "p99, ms",
        "answered", "requests", "blocks",
    )  # fmt: skip
    return Table("Models", header, tuple(map(_row, found)), NOTE)


def _row(one: ModelResult) -> tuple[Cell, ...]:
    cost, dearer = one.per_1000, one.dearer
    relative = Value(NONE)
    if dearer is not None:
        known = dearer.low is not None and dearer.high is not None
        ends = f"{math.exp(dearer.low or 0.0):.3g} – {math.exp(dearer.high or 0.0):.3g}" if known else ""
        relative = Value(f"{math.exp(dearer.mean):.3g}x", ends)
    return (
        one.name, Value(one.outcome.lower(), outcome=one.outcome), NONE if cost is None else _cost(cost), relative,
        *map(_objective, one.objectives), *(ms_or_failed(q.value) for q in one.took),
        share(one.answered / one.requests if one.requests else None), f"{one.requests:,}", f"{one.blocks}",
    )  # fmt: skip


def _objective(one: ModelObjective) -> Value:
    cell = quantile_cell(one.quantile)
    return Value(cell.text, cell.interval, cell.mark, one.outcome)


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
    out = [f"cost of {one.name} unknown: {one.why}" for one in found if one.why]
    if fewest < max(one.blocks for one in found):
        out.append(
            f"some runs were INVALID: the fewest valid blocks of a model are {plural(fewest, 'block')}"
        )
    return out
