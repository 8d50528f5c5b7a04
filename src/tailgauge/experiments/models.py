"""Model choice: which models meet the objectives on the same traffic, and what each costs.

A round is one block per model, each a run, in random order: drift affects all models alike. All models of a round have the same
arrivals and sizes. An objective is decided as in the report of any run, on the values of all blocks of a model; costs have a
bootstrap interval over blocks, the cost relative to the cheapest one over rounds. A block has the requests of its steady
stage, as they were offered; failures count as the slowest. PASS if a model meets every objective, FAIL if none does.
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
from tailgauge.experiments.course import SEED_STEP, Base, Planner, RunReading, Step, Steps, warm_up
from tailgauge.protocols.protocol import SIMULATED
from tailgauge.rows import schema
from tailgauge.scenario.experiment import RUN_S
from tailgauge.schedule.settings import TRACE
from tailgauge.thresholds import FEWEST_PAIRS
from tailgauge_analysis import (
    BLUE,
    FAIL,
    GREEN,
    GREY,
    INCONCLUSIVE,
    OFFERED,
    PASS,
    RED,
    Card,
    Cell,
    Column,
    Json,
    Panel,
    Picture,
    PlotCurve,
    Quantile,
    Result,
    Table,
    Value,
    Waits,
    criteria,
    decide_objective,
    estimate_curve,
    figures,
    listed,
    ms,
    no_price,
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

FEWEST = 2  # models
TOGETHER = 2  # rounds that one child runs
STARTS_S = 8.0  # of a child beside that of its runs
# Length of a block in seconds.
SHORTEST_S = 4.0
LONGEST_S = 120.0
WARMUP_SHARE = 0.2  # of a block, before it
NOTE = "Each row is one model. All models got the same traffic, in blocks in random order. The column of an objective has its quantile and its outcome."
NONE_MEETS = "no model was shown to meet every objective"
Interval = tuple[float, float, float]  # value, low, high


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelBlock:
    """One run of one model. `waits`: those of each objective's metric, by the objective's name. `cost` in `unit`, None if a
    model has no price, and why.
    """

    round: int
    name: str
    waits: Mapping[str, Waits]
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
        for start in rounds[::TOGETHER]:
            steps: list[Step] = []
            for number in rounds[start : start + TOGETHER]:
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
        """Return a block of every model, in random order."""
        seed = self._scenario.seed + SEED_STEP * number
        names = list(self._settings.among)
        Random(seed).shuffle(names)
        warmup_s = WARMUP_SHARE * self._block_s
        steps = []
        for name in names:
            overrides = (*self._overrides(name), *warm_up(warmup_s))
            title = f"round {number + 1}: {name}"
            steps.append(
                Step(title, overrides, warmup_s + self._block_s, seed, given=(number, name))
            )
        return steps

    def _overrides(self, name: str) -> list[tuple[str, Any]]:
        settings = self._settings.among[name]
        traffic = {}
        for table, values in self._traffic.items():
            traffic[table] = dict(values)
            if settings.model is not None:
                traffic[table]["model"] = settings.model
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
    if base.scenario.target.url == SIMULATED and any(
        model.profile is None for model in among.values()
    ):
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
    """Return what one run of one model shows. `number`: its round, from 0.

    `price`: of an input token at the simulated endpoint, which has no currency. `cost`: of all answered calls, None with
    the reason where a model has no price. Waits are those of the requests as offered, by objective.
    """
    stage = reading.steady
    run = reading.frames.run
    objectives = criteria(run["scenario"])
    ended = stage.requests["ended"]
    prices = tariff(run)
    total, unpriced = spent(with_usage(stage.attempts), prices.price)
    cost = None
    no_cost = ""
    if total is None:
        no_cost = no_price(unpriced, prices.why)
    else:
        cost = float(total)
        if run["target"].get("simulated"):
            cost *= price
    waits_of = {}
    for row in objectives:
        if row.metric:
            waits_of[row.name] = waits(row.metric, row.part(stage), OFFERED)
    return ModelBlock(
        round=number,
        name=name,
        waits=waits_of,
        requests=len(ended),
        answered=int(ended.isin(schema.COMPLETE).sum()),
        cost=cost,
        unit=prices.unit,
        no_cost=no_cost,
    )


def choice(names: Sequence[str], blocks: Sequence[ModelBlock], slo: Json) -> list[ModelResult]:
    """Return the results of the models in the order of `names`, without those that have no block.

    `slo`: the objectives, as in the scenario file. Where one model is the cheapest that meets every objective, the others
    get their cost relative to it, over the rounds that have a block of both.
    """
    blocks_of = {}
    models = []
    for name in names:
        blocks_of[name] = [block for block in blocks if block.name == name]
        if blocks_of[name]:
            models.append(_result(name, blocks_of[name], slo))
    best = cheapest(models)
    if best is None:
        return models
    best_costs = {block.round: block.cost for block in blocks_of[best.name]}
    for place, model in enumerate(models):
        # Costs of the rounds that have a block of both models.
        costs = []
        compared_costs = []
        for block in blocks_of[model.name]:
            if block.round in best_costs:
                costs.append(block.cost)
                compared_costs.append(best_costs[block.round])
        if model is not best and len(costs) >= FEWEST_PAIRS:
            models[place] = replace(model, relative_cost=_ratio(costs, compared_costs))
    return models


def cheapest(models: Sequence[ModelResult]) -> ModelResult | None:
    """Return the cheapest of those that meet every objective; None if none does or costs are unknown."""
    priced = [model for model in models if model.outcome == PASS and model.per_1000 is not None]
    return min(priced, key=lambda model: model.per_1000 or (), default=None)


def _result(name: str, blocks: Sequence[ModelBlock], slo: Json) -> ModelResult:
    """Return one model's result: objectives decided on the waits of all its blocks together, costs over blocks.

    Cost per 1,000 requests is None where one block has no cost.
    """
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
    requests = 0
    answered_requests = 0
    costs = []
    thousands = []
    for block in blocks:
        requests += block.requests
        answered_requests += block.answered
        costs.append(block.cost)
        thousands.append(block.requests / 1000)
    return ModelResult(
        name=name,
        outcome=worst_outcome(objective.outcome for objective in objectives),
        blocks=len(blocks),
        requests=requests,
        answered=answered_requests,
        objectives=tuple(objectives),
        per_1000=_ratio(costs, thousands),
        unit=blocks[0].unit,
        no_cost=next((block.no_cost for block in blocks if block.no_cost), ""),
    )


def _ratio(numerators: Sequence[Any], denominators: Sequence[Any]) -> Interval | None:
    """Ratio of the sums with its interval over blocks; None where one is unknown."""
    if None in numerators or None in denominators:
        return None
    low, high = ratio_interval(
        np.array(numerators, np.float64), np.array(denominators, np.float64), block=1.0
    )
    return sum(numerators) / sum(denominators), low, high


# --- answer -------------------------------------------------------------------------------------------------------


def answer(models: Sequence[ModelResult]) -> Answer:
    """Return which models meet every objective, and what each costs.

    PASS if one does, INCONCLUSIVE if none was shown to but one may, else FAIL. Without a model that has a block:
    INCONCLUSIVE.
    """
    best = cheapest(models)
    meet = []
    unsure = []
    notes = []
    for model in models:
        if model.outcome == PASS:
            meet.append(model.name)
        elif model.outcome == INCONCLUSIVE:
            unsure.append(model.name)
        if model.no_cost:
            notes.append(f"cost of {model.name} unknown: {model.no_cost}")
    finding = Models(tuple(models), tuple(meet), best.name if best else None)
    if not models:
        return Answer("models", Result(INCONCLUSIVE, NOTHING), finding)
    details = [*_savings(models, best), *_misses(models)]
    if unsure:
        details.append(f"inconclusive: {listed(unsure, None)}")
    if meet:
        sentence = f"{listed(meet, None)} {'meets' if len(meet) == 1 else 'meet'} every objective"
        result = Result(PASS, sentence, details=tuple(details))
    else:
        result = Result(INCONCLUSIVE if unsure else FAIL, NONE_MEETS, details=tuple(details))
    return answered(
        "models",
        "Models",
        result,
        finding,
        [_table(models)],
        notes=notes,
        pictures=tuple(_pictures(models, best)),
        card=_card(models, best),
    )


def _card(models: Sequence[ModelResult], best: ModelResult | None) -> Card | None:
    """Return the cheapest model that meets every objective; None where none was shown to, or costs are unknown."""
    if best is None or best.per_1000 is None:
        return None
    cost, low, high = best.per_1000
    ends = ""
    if figures(low) != figures(high):
        ends = f" (CI {figures(low)} – {figures(high)})"
    lines = [f"{figures(cost)} {best.unit} per 1,000 requests{ends}"]
    for model in models:
        if model.relative_cost is not None:
            misses = " and misses an objective" if model.outcome == FAIL else ""
            lines.append(f"{model.name} costs {model.relative_cost[0]:.3g}x as much{misses}")
    detail = "costs least of the models that meet every objective"
    return Card(
        label="models", value=Value(best.name), detail=detail, lines=tuple(lines), tone="good"
    )


def _pictures(models: Sequence[ModelResult], best: ModelResult | None) -> Iterator[Picture]:
    """Yield a picture of cost against the first objective's latency, a point for each model, coloured by what it meets.

    Nothing where fewer than two models have a cost, or no latency is known.
    """
    priced = [model for model in models if model.per_1000 is not None and model.objectives]
    if len(priced) < FEWEST:
        return
    curves = []
    for name, colour in (
        ("cheapest that meets all", GREEN),
        ("meets all", BLUE),
        ("inconclusive", GREY),
        ("misses one", RED),
    ):
        rows = []
        labels = []
        for model in priced:
            quantile = model.objectives[0].quantile
            is_known = quantile.value is not None and math.isfinite(quantile.value)
            if _state(model, best) == name and is_known and model.per_1000 is not None:
                rows.append((model.per_1000[0], quantile.value, quantile.low, quantile.high))
                labels.append(model.name)
        if rows:
            points = estimate_curve(name, rows)
            curves.append(replace(points, style="points", colour=colour, labels=labels))
    objective = priced[0].objectives[0]
    costs = [model.per_1000[0] for model in priced if model.per_1000 is not None]
    ends = (0.0, 1.1 * max(costs))
    bound = PlotCurve(
        ends, (objective.max_ms, objective.max_ms), "objective", colour=RED, dash="dash"
    )
    if curves:
        yield Picture(
            name="models",
            title="Cost against latency",
            caption="Each point is a model, with the 95% interval of its latency. Better is further down and to the left.",
            panels=(Panel(f"{objective.label}, ms", (*curves, bound)),),
            x=f"cost of 1,000 requests ({priced[0].unit})",
        )


def _state(model: ModelResult, best: ModelResult | None) -> str:
    if model is best:
        return "cheapest that meets all"
    return {PASS: "meets all", FAIL: "misses one"}.get(model.outcome, "inconclusive")


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
    """Yield the first objective that each model misses."""
    for model in models:
        miss = next((row for row in model.objectives if row.outcome == FAIL), None)
        if miss is not None:
            measured = with_interval(quantile_cell(miss.quantile), " ms")
            yield f"{model.name} misses {miss.label} < {ms(miss.max_ms)} ms: {measured}"


def _table(models: Sequence[ModelResult]) -> Table:
    columns: list[Column[ModelResult]] = [
        ("model", lambda model: model.name),
        ("meets all", lambda model: Value(model.outcome.lower(), outcome=model.outcome)),
        ("cost of 1,000", lambda model: _interval(model.per_1000, figures)),
        ("relative cost", lambda model: _interval(model.relative_cost, "{:.3g}x".format)),
    ]
    for place, objective in enumerate(models[0].objectives):
        columns.append((f"{objective.label}, ms", partial(_objective, place)))
    columns += [
        ("answered", _answered_share),
        ("requests", lambda model: f"{model.requests:,}"),
    ]
    unit = next((model.unit for model in models if model.unit), "")
    note = NOTE
    if unit:
        note += f" Costs are in {unit}."
    return Table.of("", models, columns, note)


def _answered_share(model: ModelResult) -> Cell:
    if not model.requests:
        return share(None)
    return share(model.answered / model.requests)


def _interval(ends: Interval | None, text_of: Any) -> Cell:
    if ends is None:
        return NONE
    return estimate(*ends, text_of)


def _objective(place: int, model: ModelResult) -> Value:
    objective = model.objectives[place]
    return replace(quantile_cell(objective.quantile), outcome=objective.outcome)
