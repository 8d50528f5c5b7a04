"""The health of the target: the share of the offered requests that got a complete answer, ok or cut.

Requests whose errors no objective bounds are expected to be complete to 99%, and a share of 99% passes whatever its
interval.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from tailgauge.rows import schema
from tailgauge.scenario.figures import ERRORS
from tailgauge_analysis.metrics.steady import Steady
from tailgauge_analysis.objectives.objective import criteria
from tailgauge_analysis.objectives.outcome import FAIL, INCONCLUSIVE, PASS
from tailgauge_analysis.objectives.text import share_interval
from tailgauge_analysis.stats.proportions import Proportion, proportion
from tailgauge_analysis.text.formatting import plural, share
from tailgauge_analysis.text.json_values import Json
from tailgauge_analysis.text.section import ObjectiveLine

COMPLETE = "complete"
HEALTHY = 0.99  # complete answers, without an objective


@dataclass(frozen=True, slots=True)
class Health:
    """Offered requests with a complete answer. `judged`: those of them whose errors no objective of the scenario bounds, and
    the outcome of the default one on these; empty without any.
    """

    complete: Proportion
    outcome: str
    bound: float
    judged: Proportion


def health(scenario: Json, steady: Steady) -> Health | None:
    """None where nothing was offered. A slow reader's answer is an answer: its request counts like any other."""
    is_complete = steady.requests["ended"].isin(schema.COMPLETE).to_numpy(np.bool_)
    if not len(is_complete):
        return None
    is_judged = np.ones(len(is_complete), np.bool_)
    for criterion in criteria(scenario):
        if criterion.objective.metric in ERRORS:
            is_judged &= ~criterion.of(steady.requests)
    judged = proportion(is_complete[is_judged])
    return Health(proportion(is_complete), _outcome(judged), HEALTHY, judged)


def _outcome(judged: Proportion) -> str:
    if judged.value is None or judged.high is None:
        return ""
    if judged.value >= HEALTHY:
        return PASS
    return FAIL if judged.high < HEALTHY else INCONCLUSIVE


def line(target: Health) -> ObjectiveLine | None:
    """The default objective as decided; None where every request has one of the scenario's."""
    judged = target.judged
    if judged.value is None:
        return None
    sign = "<" if judged.value < target.bound else ">="
    return ObjectiveLine(
        name=COMPLETE,
        outcome=target.outcome.upper(),
        value=f"{share(judged.value)} of {plural(judged.n, 'request')}",
        bound=f"{sign} {100 * target.bound:g}%",
        interval=share_interval(judged.low, judged.high),
        why="the interval includes the bound: run longer" if target.outcome == INCONCLUSIVE else "",
    )
