"""The answer of the model choice: which models meet the objectives, and which of them costs least.

PASS if a model meets every objective, FAIL if none does.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from tailgauge.experiments.answer import NONE, NOTHING, Answer, answered, estimate
from tailgauge.experiments.models.judge import PS, ModelResult, cheapest
from tailgauge_analysis import (
    FAIL,
    INCONCLUSIVE,
    PASS,
    Cell,
    Column,
    Result,
    Table,
    Value,
    figures,
    listed,
    ms,
    ms_or_failed,
    percentile,
    plural,
    quantile_cell,
    share,
    with_interval,
)

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
    outcomes = (PASS, INCONCLUSIVE, FAIL)
    by = {word: tuple(one.name for one in found if one.outcome == word) for word in outcomes}
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


def _costs(found: Sequence[ModelResult], best: ModelResult | None) -> Iterator[str]:
    if best is None:
        return
    dearer = [(one.name, one.dearer.mean) for one in found if one.outcome == PASS and one.dearer is not None]
    by_name = [(name, share(abs(math.expm1(-by))), "less" if by >= 0 else "more") for name, by in dearer]
    yield ", ".join([f"{best.name} costs least", *(f"{by} {word} than {name}" for name, by, word in by_name)])


def _missed(found: Sequence[ModelResult]) -> Iterator[str]:
    """The first objective that each model misses."""
    for one in found:
        if of := next((of for of in one.objectives if of.outcome == FAIL), None):
            measured = with_interval(quantile_cell(of.quantile), " ms")
            yield f"{one.name} misses {of.label} < {ms(of.max_ms)} ms: {measured}"


def _table(found: Sequence[ModelResult]) -> Table:
    columns: tuple[Column[ModelResult], ...] = (
        ("model", lambda one: one.name),
        ("meets all", lambda one: Value(one.outcome.lower(), outcome=one.outcome)),
        ("cost of 1,000", lambda one: NONE if one.per_1000 is None else estimate(*one.per_1000, figures)),
        ("relative cost", _relative),
        *((f"{of.label}, ms", partial(_objective, at)) for at, of in enumerate(found[0].objectives)),
        *((f"{percentile(p)}, ms", partial(_took, at)) for at, p in enumerate(PS)),
        ("answered", lambda one: share(one.answered / one.requests if one.requests else None)),
        ("requests", lambda one: f"{one.requests:,}"),
        ("blocks", lambda one: f"{one.blocks}"),
    )
    unit = next((one.unit for one in found if one.unit), "")
    return Table.of("", found, columns, f"{NOTE} Cost: in {unit}." if unit else NOTE)


def _relative(one: ModelResult) -> Cell:
    of = one.dearer
    if of is None:
        return NONE
    low, high = (None if end is None else math.exp(end) for end in (of.low, of.high))
    return estimate(math.exp(of.mean), low, high, "{:.3g}x".format)


def _objective(at: int, one: ModelResult) -> Value:
    of = one.objectives[at]
    return replace(quantile_cell(of.quantile), outcome=of.outcome)


def _took(at: int, one: ModelResult) -> str:
    return ms_or_failed(one.took[at].value)


def _smallest(found: Sequence[ModelResult]) -> str:
    """How far from its bound an objective must be to be decided: half the width of the intervals."""
    quantiles = [of.quantile for one in found for of in one.objectives]
    halves = [
        (q.high - q.low) / 2 / q.value
        for q in quantiles
        if q.value and q.low is not None and q.high is not None and math.isfinite(q.high)
    ]
    return f"an objective whose bound is {share(float(np.median(halves)))} away" if halves else ""


def _notes(found: Sequence[ModelResult]) -> Iterator[str]:
    yield from (f"cost of {one.name} unknown: {one.why}" for one in found if one.why)
    fewest = min(one.blocks for one in found)
    if fewest < max(one.blocks for one in found):
        yield f"some runs were INVALID: the fewest valid blocks of a model are {plural(fewest, 'block')}"
