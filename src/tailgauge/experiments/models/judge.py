"""All blocks of each model together: does it meet the objectives, and what do 1,000 requests cost.

An objective is decided as in the report of any run (metrics/slo.py), on the values of all blocks. Costs have a bootstrap
interval over blocks. Two models are compared block by block within a round, by a sign-flip test, because drift affects
all models of a round alike. A block is of the steady stage: requests as offered, failures slowest.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import pandas as pd

from tailgauge.experiments.course import RunReading
from tailgauge.rows import schema
from tailgauge.thresholds import FEWEST_PAIRS
from tailgauge_analysis import (
    BY_NAME,
    FAIL,
    INCONCLUSIVE,
    OFFERED,
    PASS,
    Flips,
    Json,
    Quantile,
    Waits,
    criteria,
    flips,
    no_price,
    spent,
    tariff,
    waits,
    with_usage,
)
from tailgauge_analysis import (
    decide_objective as decide,
)
from tailgauge_analysis import (
    ratio_interval as ratio,
)

PS = (0.5, 0.95, 0.99)


@dataclass(frozen=True, slots=True)
class ModelBlock:
    """One run of one model. `waits`: those of each objective's metric in order of arrival, by the objective's name; `took`:
    end to end. `cost` in `unit`, None if a model has no price, and `why`.
    """

    name: str
    waits: Mapping[str, Waits]
    took: Waits
    requests: int
    answered: int
    cost: float | None
    unit: str
    why: str


@dataclass(frozen=True, slots=True)
class ModelObjective:
    """One objective of one model."""

    label: str
    max_ms: float
    quantile: Quantile
    outcome: str
    why: str


@dataclass(frozen=True, slots=True)
class ModelResult:
    """One model. `per_1000`: cost of 1,000 requests with its interval, None without prices; `dearer`: differences of the
    logarithm of that cost from the cheapest that meets every objective, None of that one itself.
    """

    name: str
    blocks: int
    requests: int
    answered: int
    took: tuple[Quantile, ...]
    objectives: tuple[ModelObjective, ...]
    per_1000: tuple[float, float, float] | None
    unit: str
    why: str
    dearer: Flips | None = None

    @property
    def outcome(self) -> str:
        """Pass if every objective passes, fail if one fails."""
        outcomes = {one.outcome for one in self.objectives}
        return FAIL if FAIL in outcomes else PASS if outcomes == {PASS} else INCONCLUSIVE


def block(name: str, price: float, reading: RunReading) -> ModelBlock:
    """Result of a run; `price`: of an input token at the simulated endpoint, which has no currency."""
    stage, run = reading.steady, reading.frames.run
    cost, unit, why = _cost(stage.attempts, run)
    if run["target"].get("simulated") and cost is not None:
        cost *= price
    ended = stage.requests["ended"]
    wanted = [(one, metric) for one in criteria(run["scenario"]) if (metric := one.metric)]
    of_each = {one.name: waits(metric, one.part(stage), OFFERED) for one, metric in wanted}
    took = waits(BY_NAME["e2e_sched"], stage, OFFERED)
    answered = int(ended.isin(schema.COMPLETE).sum())
    return ModelBlock(name, of_each, took, len(ended), answered, cost, unit, why)


def _cost(attempts: pd.DataFrame, run: Json) -> tuple[float | None, str, str]:
    """Mean cost of the calls with usage, and its unit; or why there is none."""
    prices = tariff(run)
    counted = with_usage(attempts)
    total, unpriced = spent(counted, prices.price)
    if total is None:
        return None, "", no_price(unpriced, prices.why)
    return float(total), prices.unit, ""


def choice(names: Sequence[str], rounds: Sequence[Mapping[str, ModelBlock]], slo: Json) -> list[ModelResult]:
    """Results in the order of `names`, without models that have no block."""
    blocks = {name: [one[name] for one in rounds if name in one] for name in names}
    found = [_result(name, of, slo) for name, of in blocks.items() if of]
    best = cheapest(found)
    if best is None:
        return found
    return [one if one is best else _compared(one, best, rounds) for one in found]


def cheapest(found: Sequence[ModelResult]) -> ModelResult | None:
    """The cheapest of those that meet every objective; None if none does or costs are unknown."""
    able = [one for one in found if one.outcome == PASS and one.per_1000 is not None]
    return min(able, key=lambda one: one.per_1000 or (0.0,), default=None)


def _result(name: str, blocks: Sequence[ModelBlock], slo: Json) -> ModelResult:
    objectives = []
    for one in criteria({"slo": slo}):
        if one.metric is None:
            continue
        p, max_ms = one.objective.quantile, one.objective.bound
        waits = Waits.joined([block.waits[one.name] for block in blocks])
        (quantile,) = waits.quantiles((p,))
        outcome, why = decide(waits.beyond(max_ms), quantile, max_ms)
        objectives.append(ModelObjective(one.objective.label, max_ms, quantile, outcome.upper(), why))
    took = Waits.joined([block.took for block in blocks]).quantiles(PS)
    requests = sum(block.requests for block in blocks)
    return ModelResult(
        name, len(blocks), requests, sum(block.answered for block in blocks), tuple(took), tuple(objectives),
        _per_1000(blocks), blocks[0].unit, next((block.why for block in blocks if block.why), ""),
    )  # fmt: skip


def _per_1000(blocks: Sequence[ModelBlock]) -> tuple[float, float, float] | None:
    costs = [block.cost for block in blocks]
    sizes = np.array([block.requests for block in blocks], np.float64)
    if any(cost is None for cost in costs) or not sizes.sum():
        return None
    spent = np.array(costs, np.float64)
    low, high = ratio(spent, sizes, block=1.0)
    return 1000 * float(spent.sum() / sizes.sum()), 1000 * low, 1000 * high


def _compared(one: ModelResult, best: ModelResult, rounds: Sequence[Mapping[str, ModelBlock]]) -> ModelResult:
    """The same, with its cost relative to the cheapest."""
    pairs = [(of[one.name], of[best.name]) for of in rounds if one.name in of and best.name in of]
    logs = [
        np.log(a.cost / a.requests) - np.log(b.cost / b.requests)
        for a, b in pairs
        if a.cost and b.cost and a.requests and b.requests
    ]
    if len(logs) < FEWEST_PAIRS:
        return one
    return replace(one, dearer=flips(np.array(logs, np.float64)))
