"""The answer of the model choice: which models meet the objectives, and which of them costs least.

PASS if a model meets every objective, FAIL if none does.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from tailgauge.experiments.answer import Answer, answered, estimate
from tailgauge.experiments.models.judge import ModelObjective, ModelResult, cheapest
from tailgauge_analysis.text.cells import quantile_cell, with_interval
from tailgauge_analysis.text.formatting import figures, listed, ms, ms_or_failed, plural, share
from tailgauge_analysis.text.section import FAIL, INCONCLUSIVE, PASS, Cell, Result, Table, Value

NOTHING = "no answer: every run was INVALID, or there was no time for one"
NONE = "–"
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


def answer(found: Sequence[ModelResult]) -> Answer:
    """The answer from all models."""
    best = cheapest(found)
    by = {
        word: tuple(one.name for one in found if one.outcome == word) for word in (PASS, INCONCLUSIVE, FAIL)
    }
    finding = Models(tuple(found), by[PASS], best.name if best else None)
    if not found:
        return Answer("models", Result(INCONCLUSIVE, NOTHING), finding)
    outcome = next(word for word in by if by[word])
    meets = f"{listed(by[PASS], None)} {'meets' if len(by[PASS]) == 1 else 'meet'} every objective"
    text = meets if by[PASS] else "no model was shown to meet every objective"
    details = [*_costs(found, best), *_missed(found)]
    if by[INCONCLUSIVE]:
        details.append(f"inconclusive: {listed(by[INCONCLUSIVE], None)}")
    result = Result(outcome, text, details=tuple(details))
    return answered("models", "Models", result, finding, [_table(found)], _notes(found), _smallest(found))


def _costs(found: Sequence[ModelResult], best: ModelResult | None) -> list[str]:
    if best is None:
        return []
    less = [
        f"{share(abs(math.expm1(-one.dearer.mean)))} {'less' if one.dearer.mean >= 0 else 'more'} than {one.name}"
        for one in found
        if one.outcome == PASS and one.dearer is not None
    ]
    return [", ".join([f"{best.name} costs least", *less])]


def _missed(found: Sequence[ModelResult]) -> list[str]:
    """The first objective that each model misses."""
    missed = [(one.name, next((o for o in one.objectives if o.outcome == FAIL), None)) for one in found]
    return [
        f"{name} misses {one.label} < {ms(one.max_ms)} ms: {with_interval(quantile_cell(one.quantile), ' ms')}"
        for name, one in missed
        if one is not None
    ]


def _table(found: Sequence[ModelResult]) -> Table:
    objectives = [f"{one.label}, ms" for one in found[0].objectives]
    header = (
        "model", "meets all", "cost of 1,000", "relative cost", *objectives, "p50, ms", "p95, ms", "p99, ms",
        "answered", "requests", "blocks",
    )  # fmt: skip
    unit = next((one.unit for one in found if one.unit), "")
    note = f"{NOTE} Cost: in {unit}." if unit else NOTE
    return Table("", header, tuple(map(_row, found)), note)


def _row(one: ModelResult) -> tuple[Cell, ...]:
    relative: Cell = NONE
    if one.dearer is not None:
        of = one.dearer
        low, high = (None if end is None else math.exp(end) for end in (of.low, of.high))
        relative = estimate(math.exp(of.mean), low, high, "{:.3g}x".format)
    return (
        one.name, Value(one.outcome.lower(), outcome=one.outcome), NONE if one.per_1000 is None else estimate(*one.per_1000, figures),
        relative, *map(_objective, one.objectives), *(ms_or_failed(q.value) for q in one.took),
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


def _notes(found: Sequence[ModelResult]) -> list[str]:
    fewest = min(one.blocks for one in found)
    out = [f"cost of {one.name} unknown: {one.why}" for one in found if one.why]
    if fewest < max(one.blocks for one in found):
        out.append(
            f"some runs were INVALID: the fewest valid blocks of a model are {plural(fewest, 'block')}"
        )
    return out
