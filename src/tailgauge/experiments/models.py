"""Model choice: which models meet the objectives on the same traffic, and what each costs.

A round is one block per model, each a run, in random order: drift affects all models alike. All models of a round have the same
arrivals and sizes. An objective is decided as in the report of any run, on the values of all blocks of a model; costs have a
bootstrap interval over blocks, the cost relative to the cheapest one over rounds. A block is of the steady stage: requests as
offered, failures slowest. PASS if a model meets every objective, FAIL if none does.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from random import Random
from typing import Any

import numpy as np

from tailgauge.experiments.answer import NONE, NOTHING, Answer, answered, estimate
from tailgauge.experiments.course import RUN_S, SEED_STEP, Base, Planner, RunReading, Step, Steps, warm_up
from tailgauge.protocols.protocol import SIMULATED
from tailgauge.rows import schema
from tailgauge.schedule.settings import TRACE
from tailgauge.thresholds import FEWEST_PAIRS
from tailgauge_analysis import (
    BY_NAME,
    FAIL,
    INCONCLUSIVE,
    OFFERED,
    PASS,
    Cell,
    Column,
    Json,
    Quantile,
    Result,
    Table,
    Value,
    Waits,
    criteria,
    decide_objective,
    figures,
    listed,
    ms,
    ms_or_failed,
    no_price,
    percentile,
    plural,
    quantile_cell,
    ratio_interval,
    share,
    spent,
    tariff,
    waits,
    with_interval,
    with_usage,
    worst_outcome,
)

PS = (0.5, 0.95, 0.99)
FEWEST = 2  # models
TOGETHER = 2  # rounds that one child runs
STARTS_S = 8.0  # of a child beside that of its runs
SHORTEST_S, LONGEST_S = 4.0, 120.0  # of a block
WARMUP_SHARE = 0.2  # of a block, before it
NOTE = (
    "One row per model; all got the same traffic, in blocks in random order. p50 to p99: end to end since scheduled, failures "
    "slowest. Each objective: its quantile and its outcome."
)
Interval = tuple[float, float, float]  # value, low, high


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelBlock:
    """One run of one model. `waits`: those of each objective's metric, by the objective's name; `took`: end to end.
    `cost` in `unit`, None if a model has no price, and why.
    """

    round: int
    name: str
    waits: Mapping[str, Waits]
    took: Waits
    requests: int
    answered: int
    cost: float | None
    unit: str = ""
    no_cost: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelObjective:
    """One objective of one model."""

    label: str
    max_ms: float
    quantile: Quantile
    outcome: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelResult:
    """One model. `per_1000`: cost of 1,000 requests, None without prices; `relative_cost`: to the cheapest that meets every
    objective, in the rounds of both; None of that one itself.
    """

    name: str
    outcome: str
    blocks: int
    requests: int
    answered: int
    took: tuple[Quantile, ...]
    objectives: tuple[ModelObjective, ...]
    per_1000: Interval | None
    unit: str
    no_cost: str
    relative_cost: Interval | None = None


@dataclass(frozen=True, slots=True)
class Models:
    """What was found; `meet`: those that meet every objective."""

    models: tuple[ModelResult, ...]
    meet: tuple[str, ...]
    cheapest: str | None


class ModelsPlanner(Planner):
    """Run every round. A step is given its round and its model."""

    def __init__(self, base: Base) -> None:
        super().__init__(base)
        _check(base)
        self._settings = base.table.models
        self._block_s = self._settings.block_s or _block_s(base)
        tree = base.tree()
        self._traffic: dict[str, dict[str, Any]] = tree.get("traffic", {"main": {}})
        self._slo = tree["slo"]

    def steps(self) -> Steps:
        """Run every round, some of them together."""
        rounds = range(self._settings.rounds)
        for first in rounds[::TOGETHER]:
            steps: list[Step] = []
            for number in rounds[first : first + TOGETHER]:
                steps += self._round(number)
            yield from self.run(steps, again=False)

    def measure(self, step: Step, reading: RunReading) -> ModelBlock:
        """Return the block of a run."""
        number, name = step.given
        return model_block(number, name, reading, price=self._settings.among[name].price)

    def answer(self) -> Answer:
        """Answer from what was kept."""
        return answer(choice(list(self._settings.among), self.results, self._slo))

    def _round(self, number: int) -> list[Step]:
        """A block of every model, in random order."""
        seed = self._scenario.seed + SEED_STEP * number
        names = list(self._settings.among)
        Random(seed).shuffle(names)
        warmup_s = WARMUP_SHARE * self._block_s
        steps = []
        for name in names:
            overrides = (*self._overrides(name), *warm_up(warmup_s))
            title = f"round {number + 1}: {name}"
            steps.append(Step(title, overrides, warmup_s + self._block_s, seed, given=(number, name)))
        return steps

    def _overrides(self, name: str) -> list[tuple[str, Any]]:
        settings = self._settings.among[name]
        model = {} if settings.model is None else {"model": settings.model}
        traffic = {table: {**values, **model} for table, values in self._traffic.items()}
        overrides: list[tuple[str, Any]] = [("traffic", traffic), ("arrival.shape", None)]
        if settings.profile is not None:
            overrides.append(("simulated.profile", settings.profile))
        return overrides


def _check(base: Base) -> None:
    """UsageError if there is nothing to choose from, or nothing to choose by."""
    base.today(TRACE)
    among = base.table.models.among
    key = "experiment.models.among"
    if len(among) < FEWEST:
        raise base.refused(key, f"expected two models or more, as [{key}.small] with model = '...'")
    slo = base.scenario.slo
    if not slo or any(objective.max_ms is None for objective in slo.values()):
        expected = "expected at least one table [slo.NAME], each with max_ms"
        raise base.refused("slo", f"models are chosen by their objectives: {expected}")
    if base.scenario.target.url == SIMULATED and any(model.profile is None for model in among.values()):
        text = "the simulated endpoint answers alike for every model: expected a `profile` for each"
        raise base.refused(key, text)


def _block_s(base: Base) -> float:
    rounds = base.table.models.rounds
    children = math.ceil(rounds / TOGETHER)
    runs = rounds * len(base.table.models.among)
    fits_s = (base.table.minutes * 60 - children * STARTS_S) / runs - RUN_S
    return min(LONGEST_S, max(SHORTEST_S, fits_s / (1 + WARMUP_SHARE)))


# --- results ------------------------------------------------------------------------------------------------------


def model_block(number: int, name: str, reading: RunReading, *, price: float) -> ModelBlock:
    """Read a run; `price`: of an input token at the simulated endpoint, which has no currency."""
    stage = reading.steady
    run = reading.frames.run
    objectives = criteria(run["scenario"])
    ended = stage.requests["ended"]
    prices = tariff(run)
    total, unpriced = spent(with_usage(stage.attempts), prices.price)
    cost = None if total is None else float(total)
    if cost is not None and run["target"].get("simulated"):
        cost *= price
    return ModelBlock(
        round=number,
        name=name,
        waits={row.name: waits(row.metric, row.part(stage), OFFERED) for row in objectives if row.metric},
        took=waits(BY_NAME["e2e_sched"], stage, OFFERED),
        requests=len(ended),
        answered=int(ended.isin(schema.COMPLETE).sum()),
        cost=cost,
        unit=prices.unit,
        no_cost=no_price(unpriced, prices.why) if cost is None else "",
    )


def choice(names: Sequence[str], blocks: Sequence[ModelBlock], slo: Json) -> list[ModelResult]:
    """Judge the models in the order of `names`, without those that have no block."""
    by_name = {name: [block for block in blocks if block.name == name] for name in names}
    models = [_result(name, of_model, slo) for name, of_model in by_name.items() if of_model]
    best = cheapest(models)
    if best is None:
        return models
    compared = []
    for model in models:
        ratio = None if model is best else _relative_cost(by_name[model.name], by_name[best.name])
        compared.append(replace(model, relative_cost=ratio))
    return compared


def cheapest(models: Sequence[ModelResult]) -> ModelResult | None:
    """The cheapest of those that meet every objective; None if none does or costs are unknown."""
    costs = [(model.per_1000, model) for model in models if model.outcome == PASS]
    known = [(cost, model) for cost, model in costs if cost is not None]
    return min(known, key=lambda pair: pair[0], default=(None, None))[1]


def _result(name: str, blocks: Sequence[ModelBlock], slo: Json) -> ModelResult:
    objectives = []
    for row in criteria({"slo": slo}):
        bound = row.objective.bound
        all_waits = Waits.joined([block.waits[row.name] for block in blocks])
        (quantile,) = all_waits.quantiles((row.objective.quantile,))
        outcome, _ = decide_objective(all_waits.beyond(bound), quantile, bound)
        objective = ModelObjective(
            label=row.objective.label, max_ms=bound, quantile=quantile, outcome=outcome.upper()
        )
        objectives.append(objective)
    requests = [float(block.requests) for block in blocks]
    per_request = _ratio([block.cost for block in blocks], requests)
    return ModelResult(
        name=name,
        outcome=worst_outcome(objective.outcome for objective in objectives),
        blocks=len(blocks),
        requests=sum(block.requests for block in blocks),
        answered=sum(block.answered for block in blocks),
        took=tuple(Waits.joined([block.took for block in blocks]).quantiles(PS)),
        objectives=tuple(objectives),
        per_1000=None if per_request is None else tuple(1000 * end for end in per_request),
        unit=blocks[0].unit,
        no_cost=next((block.no_cost for block in blocks if block.no_cost), ""),
    )


def _relative_cost(blocks: Sequence[ModelBlock], best: Sequence[ModelBlock]) -> Interval | None:
    """The cost over that of the cheapest, in the rounds of both."""
    costs = {block.round: block.cost for block in best}
    common = [block for block in blocks if block.round in costs]
    if len(common) < FEWEST_PAIRS:
        return None
    return _ratio([block.cost for block in common], [costs[block.round] for block in common])


def _ratio(over: Sequence[float | None], under: Sequence[float | None]) -> Interval | None:
    """Ratio of the sums with its interval over blocks; None where one is unknown, or there is nothing to divide by."""
    known = np.array([over, under], np.float64)
    if np.isnan(known).any() or not known[1].sum():
        return None
    low, high = ratio_interval(known[0], known[1], block=1.0)
    return float(known[0].sum() / known[1].sum()), low, high


# --- answer -------------------------------------------------------------------------------------------------------


def answer(models: Sequence[ModelResult]) -> Answer:
    """Answer from all models."""
    best = cheapest(models)
    by_outcome = {outcome: _names(models, outcome) for outcome in (PASS, INCONCLUSIVE, FAIL)}
    meet = by_outcome[PASS]
    finding = Models(tuple(models), tuple(meet), best.name if best else None)
    if not models:
        return Answer("models", Result(INCONCLUSIVE, NOTHING), finding)
    sentence = "no model was shown to meet every objective"
    if meet:
        sentence = f"{listed(meet, None)} {'meets' if len(meet) == 1 else 'meet'} every objective"
    details = [*_savings(models, best), *_misses(models)]
    if by_outcome[INCONCLUSIVE]:
        details.append(f"inconclusive: {listed(by_outcome[INCONCLUSIVE], None)}")
    outcome = next(outcome for outcome, names in by_outcome.items() if names)
    result = Result(outcome, sentence, details=tuple(details))
    tables = [_table(models)]
    return answered("models", "Models", result, finding, tables, _notes(models), _smallest(models))


def _names(models: Sequence[ModelResult], outcome: str) -> list[str]:
    return [model.name for model in models if model.outcome == outcome]


def _savings(models: Sequence[ModelResult], best: ModelResult | None) -> Iterator[str]:
    if best is None:
        return
    text = f"{best.name} costs least"
    for model in models:
        if model.outcome == PASS and model.relative_cost is not None:
            saving = 1 - 1 / model.relative_cost[0]
            text += f", {share(abs(saving))} {'less' if saving >= 0 else 'more'} than {model.name}"
    yield text


def _misses(models: Sequence[ModelResult]) -> Iterator[str]:
    """The first objective that each model misses."""
    for model in models:
        missed = next((row for row in model.objectives if row.outcome == FAIL), None)
        if missed is not None:
            measured = with_interval(quantile_cell(missed.quantile), " ms")
            yield f"{model.name} misses {missed.label} < {ms(missed.max_ms)} ms: {measured}"


def _table(models: Sequence[ModelResult]) -> Table:
    columns: list[Column[ModelResult]] = [
        ("model", lambda model: model.name),
        ("meets all", lambda model: Value(model.outcome.lower(), outcome=model.outcome)),
        ("cost of 1,000", lambda model: _interval(model.per_1000, figures)),
        ("relative cost", lambda model: _interval(model.relative_cost, "{:.3g}x".format)),
    ]
    for place, objective in enumerate(models[0].objectives):
        columns.append((f"{objective.label}, ms", partial(_objective, place)))
    for place, p in enumerate(PS):
        columns.append((f"{percentile(p)}, ms", partial(_took, place)))
    columns += [
        ("answered", lambda model: share(model.answered / model.requests if model.requests else None)),
        ("requests", lambda model: f"{model.requests:,}"),
        ("blocks", lambda model: f"{model.blocks}"),
    ]
    unit = next((model.unit for model in models if model.unit), "")
    return Table.of("", models, columns, f"{NOTE} Cost: in {unit}." if unit else NOTE)


def _interval(ends: Interval | None, text_of: Any) -> Cell:
    return NONE if ends is None else estimate(*ends, text_of)


def _objective(place: int, model: ModelResult) -> Value:
    objective = model.objectives[place]
    return replace(quantile_cell(objective.quantile), outcome=objective.outcome)


def _took(place: int, model: ModelResult) -> str:
    return ms_or_failed(model.took[place].value)


def _smallest(models: Sequence[ModelResult]) -> str:
    """How far from its bound an objective must be to be decided: half the width of the intervals."""
    halves = []
    for model in models:
        for objective in model.objectives:
            q = objective.quantile
            if q.value and q.low is not None and q.high is not None and math.isfinite(q.high):
                halves.append((q.high - q.low) / 2 / q.value)
    return f"an objective whose bound is {share(float(np.median(halves)))} away" if halves else ""


def _notes(models: Sequence[ModelResult]) -> Iterator[str]:
    yield from (f"cost of {model.name} unknown: {model.no_cost}" for model in models if model.no_cost)
    blocks = [model.blocks for model in models]
    if min(blocks) < max(blocks):
        yield f"some runs were INVALID: the fewest valid blocks of a model are {plural(min(blocks), 'block')}"
