"""One block of one model: a run with its share of the traffic, as few numbers as the choice needs.

Rule: the steady stage, requests as offered, failures slowest. The cost is that of every call whose usage came.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import pandas as pd

from tailgauge.experiments.reading import Reading
from tailgauge.rows import schema
from tailgauge_analysis.metrics.latency import OFFERED, sample
from tailgauge_analysis.metrics.metrics import BY_NAME
from tailgauge_analysis.metrics.steady import Steady
from tailgauge_analysis.sections.cache.cost import no_price, spent, tariff
from tailgauge_analysis.stats.quantiles import Floats
from tailgauge_analysis.text.json_values import Json, table


@dataclass(frozen=True, slots=True)
class Block:
    """`ms`: values of each objective's metric in order of arrival, by the objective's name; `took`: end to end. `cost`
    in `unit`, None where a model has no price, and `why`.
    """

    name: str
    ms: Mapping[str, Floats]
    took: Floats
    requests: int
    answered: int
    cost: float | None
    unit: str
    why: str


def block(name: str, price: float, reading: Reading) -> Block:
    """Of a run; `price` is that of a token of input at the simulated endpoint, which knows no currency."""
    stage, run = reading.steady, reading.frames.run
    asked = table(run["scenario"], "slo")
    cost, unit, why = _cost(stage.attempts, run)
    if run["target"].get("simulated") and cost is not None:
        cost *= price
    ended = stage.requests["ended"]
    return Block(
        name, {key: _ms(str(one["metric"]), stage) for key, one in asked.items()}, _ms("e2e_sched", stage),
        int((ended != schema.CANCELLED).sum()), int((ended == schema.OK).sum()), cost, unit, why,
    )  # fmt: skip


def _ms(name: str, stage: Steady) -> Floats:
    return sample(BY_NAME[name], stage, OFFERED)[0]


def _cost(attempts: pd.DataFrame, run: Json) -> tuple[float | None, str, str]:
    prices = tariff(run)
    told = attempts[attempts["output_tokens"].notna()]
    models = told["model"].where(told["model"].notna() & (told["model"] != ""), told["asked_model"])
    total, unpriced = spent(told, models.fillna(""), prices.price)
    if total is None:
        return None, "", no_price(unpriced, prices.why)
    return float(total), prices.unit, ""
