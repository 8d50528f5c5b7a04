"""One run as a block of one model: a few numbers of its steady stage, requests as offered, failures slowest."""

from __future__ import annotations

import pandas as pd

from tailgauge.experiments.models.judge import ModelBlock
from tailgauge.experiments.reading import RunReading
from tailgauge.rows import schema
from tailgauge_analysis.metrics.latency import OFFERED, waits
from tailgauge_analysis.metrics.metrics import BY_NAME
from tailgauge_analysis.metrics.slo import criteria
from tailgauge_analysis.sections.cache.cost import no_price, spent, tariff
from tailgauge_analysis.text.json_values import Json


def block(name: str, price: float, reading: RunReading) -> ModelBlock:
    """Result of a run; `price`: of an input token at the simulated endpoint, which has no currency."""
    stage, run = reading.steady, reading.frames.run
    cost, unit, why = _cost(stage.attempts, run)
    if run["target"].get("simulated") and cost is not None:
        cost *= price
    ended = stage.requests["ended"]
    return ModelBlock(
        name, {one.name: waits(metric, one.part(stage), OFFERED) for one in criteria(run["scenario"]) if (metric := one.metric)},
        waits(BY_NAME["e2e_sched"], stage, OFFERED),
        int((ended != schema.CANCELLED).sum()), int((ended == schema.OK).sum()), cost, unit, why,
    )  # fmt: skip


def _cost(attempts: pd.DataFrame, run: Json) -> tuple[float | None, str, str]:
    """Mean cost of the calls with usage, and its unit; or why there is none."""
    prices = tariff(run)
    counted = attempts[attempts["output_tokens"].notna()]
    models = counted["model"].where(
        counted["model"].notna() & (counted["model"] != ""), counted["asked_model"]
    )
    total, unpriced = spent(counted, models.fillna(""), prices.price)
    if total is None:
        return None, "", no_price(unpriced, prices.why)
    return float(total), prices.unit, ""
