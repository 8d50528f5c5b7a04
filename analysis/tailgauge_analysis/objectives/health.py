"""The health of the target: the share of the offered requests that got a complete answer, ok or cut.

Requests whose errors no objective bounds are expected to be complete to 99%. Beside objectives of the scenario this can only
fail. Without any it passes where its interval shows 99%; where more failed than chance explains, but together, it is
inconclusive; else the result is that requests completed.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import numpy as np

from tailgauge.rows import schema
from tailgauge.scenario.figures import BOUNDS_EVERY_FAILURE
from tailgauge_analysis.metrics.steady import Steady
from tailgauge_analysis.objectives.objective import criteria
from tailgauge_analysis.objectives.outcome import FAIL, INCONCLUSIVE, PASS, correlation_doubt
from tailgauge_analysis.objectives.text import share_interval
from tailgauge_analysis.stats.binomial import clopper_pearson
from tailgauge_analysis.stats.proportions import Proportion
from tailgauge_analysis.stats.quantiles import confidence
from tailgauge_analysis.text.formatting import count, plural, share
from tailgauge_analysis.text.json_values import Json, one_of
from tailgauge_analysis.text.section import Numbers, ObjectiveLine

COMPLETE = "complete"
COMPLETED = "completed"
HEALTHY = 0.99  # complete answers, without an objective
NO_OBJECTIVE = "no objective"


@dataclass(frozen=True, slots=True)
class Health:
    """Offered requests with a complete answer. `judged`: those of them whose errors no objective of the scenario bounds, and
    the outcome of the default one on these; empty where it decides nothing.
    """

    complete: Proportion
    outcome: Annotated[str, one_of(PASS, FAIL, INCONCLUSIVE, COMPLETED, "")]
    bound: float
    judged: Proportion


def health(scenario: Json, steady: Steady) -> Health | None:
    """Return the share of the offered requests with a complete answer, and its outcome; None where nothing was offered.

    Judged are requests whose errors no objective bounds. Beside objectives of any kind only a failure has an outcome. A request
    that was read slowly on purpose counts like any other.
    """
    is_complete = steady.requests["ended"].isin(schema.COMPLETE).to_numpy(np.bool_)
    if not len(is_complete):
        return None
    objectives = criteria(scenario)
    is_judged = np.ones(len(is_complete), np.bool_)
    for criterion in objectives:
        if criterion.objective.metric in BOUNDS_EVERY_FAILURE:
            is_judged &= ~criterion.of(steady.requests)
    complete = steady.share(is_complete)
    judged = complete
    if not is_judged.all():
        judged = steady.only(is_judged, gaps=False).share(is_complete[is_judged])
    outcome = _outcome(judged)
    if objectives and outcome != FAIL:
        outcome = ""
    return Health(complete, outcome, HEALTHY, judged)


def _outcome(judged: Proportion) -> str:
    if judged.low is None or judged.high is None:
        return ""
    if judged.high < HEALTHY:
        return FAIL
    if judged.low >= HEALTHY and not correlation_doubt(
        judged, 1 - (judged.value or 0.0), 1 - HEALTHY
    ):
        return PASS
    # More failed than chance explains if each failed by itself; a run of one outage does not tell how often they come.
    _, high = clopper_pearson(judged.k, judged.n, confidence())
    if high < HEALTHY:
        return INCONCLUSIVE
    return COMPLETED


def line(target: Health) -> ObjectiveLine | None:
    """Return the default objective as decided; None where it decides nothing."""
    judged = target.judged
    if not target.outcome or judged.value is None:
        return None
    sign = "<" if judged.value < target.bound else "≥"
    required = NO_OBJECTIVE
    if target.outcome != COMPLETED:
        required = f"≥ {100 * target.bound:g}% by default"
    return ObjectiveLine(
        name=COMPLETE,
        outcome=target.outcome.upper(),
        value=f"{share(judged.value)} of {plural(judged.n, 'request')}",
        bound=f"{sign} {100 * target.bound:g}%",
        interval=share_interval(judged.low, judged.high),
        why=_reason(target),
        numbers=Numbers(
            value=judged.value, bound=target.bound, low=judged.low, high=judged.high, unit="share"
        ),
        required=required,
    )


def _reason(target: Health) -> str:
    if target.outcome == COMPLETED:
        return not_excluded(target)
    if target.outcome != INCONCLUSIVE:
        return ""
    if not target.judged.episodes:
        return "failures are correlated, so that the run does not show how often they occur"
    periods = plural(target.judged.episodes, "period")
    return f"failures came in {periods} of the run, which does not show how often they occur"


def completed_text(target: Health) -> str:
    """`6 of 6 requests completed`."""
    return f"{count(target.judged.k)} of {plural(target.judged.n, 'request')} completed"


def not_excluded(target: Health) -> str:
    """`95% CI: up to 1.5% of requests fail`; empty without an interval."""
    low = target.judged.low
    if low is None:
        return ""
    return f"95% CI: up to {share(1 - low)} of requests fail"
