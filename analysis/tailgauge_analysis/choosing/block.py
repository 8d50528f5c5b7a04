"""One block of one model: a run with its share of the traffic, as few numbers as the choice needs.

Rule: the steady stage, requests as offered, failures slowest. The cost is that of every call whose usage came.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction

import numpy as np
import pandas as pd

from tailgauge import records
from tailgauge.pricing import Usage
from tailgauge_analysis import metrics
from tailgauge_analysis.cache.cost import tariff
from tailgauge_analysis.experiment.reading import Reading
from tailgauge_analysis.hedging.copies import PROMPT
from tailgauge_analysis.metrics import BY_NAME, CHUNK
from tailgauge_analysis.quantiles import Floats
from tailgauge_analysis.runfile import Json, table
from tailgauge_analysis.steady import Steady

_TOKENS = (
    *PROMPT,
    "cache_creation_5m_input_tokens",
    "cache_creation_1h_input_tokens",
    "output_tokens",
)


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
        int((ended != records.CANCELLED).sum()), int((ended == records.OK).sum()), cost, unit, why,
    )  # fmt: skip


def _ms(name: str, stage: Steady) -> Floats:
    metric = BY_NAME[name]
    if metric.level == CHUNK:
        return stage.gaps_ns / 1e6
    ns = metric.ns(stage)
    values: Floats = np.where(np.isnan(ns), metrics.failed(stage, metric), ns / 1e6)
    return values[~np.isnan(values)]


def _cost(attempts: pd.DataFrame, run: Json) -> tuple[float | None, str, str]:
    prices, total = tariff(run), Fraction(0)
    told = attempts[attempts["output_tokens"].notna()]
    models = told["model"].where(told["model"].notna() & (told["model"] != ""), told["asked_model"])
    for model, rows in told.groupby(models.fillna(""), sort=True, observed=True):
        entry = prices.price(str(model))
        if entry is None:
            return None, "", prices.why or f"no price for {model or 'an unnamed model'}"
        kinds, counts = np.unique(
            rows[list(_TOKENS)].fillna(-1).to_numpy(np.int64), axis=0, return_counts=True
        )
        for row, n in zip(kinds.tolist(), counts.tolist(), strict=True):
            usage = {key: None if value < 0 else value for key, value in zip(_TOKENS, row, strict=True)}
            total += n * entry.cost(Usage.of(usage))
    return float(total), prices.unit, ""
