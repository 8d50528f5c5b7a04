"""The outcome of an objective: pass, fail or inconclusive.

An objective on a latency is decided on the share of requests beyond its bound, in the offered view (the pooled chunk gap has
only one view). The whole 95% interval of that share within what the quantile allows, and that of the quantile within the
bound: pass. The whole interval of the share above: fail. Otherwise the run was too short: inconclusive, and so where the
quantile rests on few slow episodes and the bound is near it. One on another figure is decided on its interval.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Annotated, Any

from tailgauge.scenario.figures import MOST
from tailgauge.scenario.objective import Objective
from tailgauge_analysis.metrics.latency import OFFERED
from tailgauge_analysis.metrics.steady import Steady
from tailgauge_analysis.objectives.objective import Criterion
from tailgauge_analysis.objectives.precision import half_width, is_known, precision_text
from tailgauge_analysis.objectives.text import line_of, share_interval
from tailgauge_analysis.stats.binomial import needed
from tailgauge_analysis.stats.proportions import Proportion
from tailgauge_analysis.stats.quantiles import FEW_EPISODES, TOO_FEW, Quantile, n_min
from tailgauge_analysis.text.formatting import count, plain, share, share_range
from tailgauge_analysis.text.json_values import one_of, text
from tailgauge_analysis.text.quantile import VALUE, quantile
from tailgauge_analysis.text.section import ObjectiveLine

PASS = "pass"  # noqa: S105 - an outcome, not a password
FAIL = "fail"
INCONCLUSIVE = "inconclusive"
NEAR = 2  # times a figure that rests on few episodes: a bound within is not decided
TINY = 1e-12  # rounding of a share


@dataclass(frozen=True, slots=True)
class Measured:
    """A figure with its 95% interval; `why`: what is missing where it has none; `share`: the share that it is."""

    value: float | None = None
    low: float | None = None
    high: float | None = None
    n: int = 0
    n_eff: int = 0
    why: str = ""
    share: Proportion | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ObjectiveResult:
    """One objective and its outcome. `label`: `ttft p95 (chat)`; value, interval and bound in the unit of the figure."""

    name: str
    label: str
    metric: str
    outcome: Annotated[str, one_of(PASS, FAIL, INCONCLUSIVE)]
    gate: bool = True
    why: str
    line: ObjectiveLine
    title: str = ""
    unit: str = ""
    traffic: str | None = None
    tag: str | None = None
    p: float | None = None
    view: str = OFFERED
    bound: float | None = None
    value: float | None = None
    low: float | None = None
    high: float | None = None
    n: int = 0
    n_eff: int = 0
    half_width: float | None = None
    precision: str = ""


def unreadable(name: str, spec: Any) -> ObjectiveResult:
    """The outcome of an objective that cannot be read."""
    fields = spec if isinstance(spec, dict) else {}
    why = "the scenario names no known metric, quantile or bound"
    label = plain(name, 60)
    return ObjectiveResult(
        name=name,
        label=label,
        metric=text(fields.get("metric")) or "unknown",
        outcome=INCONCLUSIVE,
        gate=fields.get("gate") is not False,
        why=why,
        line=ObjectiveLine(label, INCONCLUSIVE.upper(), "", "", "", why),
    )


def decided(criterion: Criterion, measured: Measured, seconds: float) -> ObjectiveResult:
    """Decide an objective on a figure of a stage of so many seconds."""
    outcome, why = decide_figure(criterion.objective, measured, seconds)
    return _result(criterion, measured, outcome, why)


def decided_latency(criterion: Criterion, stage: Steady) -> ObjectiveResult:
    """Decide an objective on a latency of a stage."""
    objective = criterion.objective
    part = criterion.part(stage)
    estimate = criterion.row(part).quantiles[0]
    beyond = criterion.beyond(part)
    outcome, why = decide(beyond, estimate, objective.bound)
    unknown = criterion.unknown(part)
    is_few = estimate.n > 0 and estimate.mark == TOO_FEW and outcome == INCONCLUSIVE and not unknown
    if unknown and (outcome != FAIL or beyond.k <= objective.allowed * len(part.requests)):
        outcome = INCONCLUSIVE
        why = unknown
    elif is_few:
        why = f"not enough {objective.figure.counted}: {estimate.n:,} of the {n_min(estimate.p):,} needed"
    shown = quantile(estimate)
    measured = Measured(shown["value"], shown["low"], shown["high"], estimate.n, estimate.n_eff)
    result = _result(criterion, measured, outcome, why)
    if shown["value_is"] != VALUE and beyond.value is not None and not is_few:  # it lies among failures, say
        result = replace(result, line=_late(result.line, objective, beyond))
    if objective.precision is None:
        return result
    precision = precision_text(estimate, objective.precision, part, is_over=True)
    if outcome == INCONCLUSIVE and not unknown:
        is_near = is_known(estimate, objective.precision)
        why = f"{precision}: the bound is too near, ask for less" if is_near else precision
    line = replace(result.line, why=why)
    return replace(result, why=why, line=line, half_width=half_width(estimate), precision=precision)


def _late(line: ObjectiveLine, objective: Objective, beyond: Proportion) -> ObjectiveLine:
    """The line with the share beyond the bound, where the quantile has no value."""
    return replace(
        line,
        value=f"{share(beyond.value)} of {objective.figure.counted}",
        bound=f"> {objective.figure.text(objective.bound)}",
        interval=share_interval(beyond.low, beyond.high),
    )


def _result(criterion: Criterion, measured: Measured, outcome: str, why: str) -> ObjectiveResult:
    objective = criterion.objective
    metric = criterion.metric
    ends = (measured.value, measured.low, measured.high)
    value, low, high = (None if end is None or not math.isfinite(end) else end for end in ends)
    return ObjectiveResult(
        name=criterion.name,
        label=objective.label,
        metric=objective.metric if metric is None else metric.name,
        outcome=outcome,
        gate=objective.gate,
        why=why,
        line=line_of(objective, outcome, ends, why),
        title=objective.figure.meaning if metric is None else metric.title,
        unit=objective.figure.unit,
        traffic=objective.traffic,
        tag=objective.tag,
        p=None if metric is None else objective.quantile,
        view=criterion.view,
        bound=objective.bound,
        value=value,
        low=low,
        high=high,
        n=measured.n,
        n_eff=measured.n_eff,
    )


def decide(beyond: Proportion, estimate: Quantile, max_ms: float) -> tuple[str, str]:
    """The outcome of a bound on a latency, and why."""
    if beyond.low is None or beyond.high is None:
        return INCONCLUSIVE, "nothing was measured"
    allowed = 1 - estimate.p
    seen = f"{share(beyond.value)} beyond the bound"
    if beyond.value is None:
        seen = "what lies beyond the bound cannot be observed"
    why = f"{seen} (95% CI {share_range(beyond.low, beyond.high)}), {share(allowed)} allowed"
    if estimate.mark == FEW_EPISODES and _is_near(estimate.value or 0.0, max_ms):
        return INCONCLUSIVE, f"{why}; the slow ones came in few episodes ({estimate.episodes}): run longer"
    outcome = _compare(beyond.low, beyond.high, allowed)
    if outcome == PASS and estimate.high is not None and estimate.high > max_ms:
        outcome = INCONCLUSIVE  # slow periods further up widen the interval of the quantile
    if outcome != INCONCLUSIVE:
        return outcome, why
    confidence = 0.975 if beyond.value else 0.95
    more = _samples(1.0 if beyond.value is None else beyond.value, allowed, beyond.n_eff, confidence)
    return INCONCLUSIVE, f"{why}: run longer{more}"


def decide_figure(objective: Objective, measured: Measured, seconds: float) -> tuple[str, str]:
    """The outcome of a bound on a figure with an interval, and why it is inconclusive."""
    if measured.value is None or measured.low is None or measured.high is None:
        return INCONCLUSIVE, measured.why or "nothing was measured"
    figure = objective.figure
    bad = measured.value if figure.sign == MOST else 1 - measured.value
    counted = measured.share
    if counted is not None and counted.mark == FEW_EPISODES and _is_near(bad, objective.allowed):
        return INCONCLUSIVE, f"they came in few episodes ({counted.episodes}): run longer"
    if figure.sign == MOST:
        outcome = _compare(measured.low, measured.high, objective.bound)
    else:
        outcome = _compare(-measured.high, -measured.low, -objective.bound)
    if outcome != INCONCLUSIVE:
        return outcome, ""
    if counted is None:
        more = _seconds(objective, measured, seconds)
    else:
        more = _samples(bad, objective.allowed, measured.n_eff, 0.975)
    return INCONCLUSIVE, f"the interval includes the bound: run longer{more}"


def _compare(low: float, high: float, allowed: float) -> str:
    """The outcome of an interval of what should be small."""
    if low > allowed + TINY:
        return FAIL
    return PASS if high <= allowed + TINY else INCONCLUSIVE


def _is_near(value: float, bound: float) -> bool:
    return value / NEAR <= bound <= value * NEAR


def _samples(bad: float, allowed: float, n_eff: int, confidence: float) -> str:
    """How many effective samples pass although as many are bad; empty where more would not help."""
    if bad >= allowed or allowed <= 0:
        return ""
    enough = needed(math.ceil(bad * n_eff - 1e-9), 1 - allowed, confidence)
    return f" ({enough:,} effective samples needed, {n_eff:,} measured)"


def _seconds(objective: Objective, measured: Measured, seconds: float) -> str:
    """How long a run decides it if the figure stays what it is; empty where it would fail."""
    value = measured.value or 0.0
    is_most = objective.figure.sign == MOST
    if value == objective.bound or (value < objective.bound) != is_most:
        return ""
    reach = (measured.high or 0.0) - value if is_most else value - (measured.low or 0.0)
    times = (reach / abs(value - objective.bound)) ** 2
    if not math.isfinite(times):
        return ""
    return f" (about {count(math.ceil(seconds * times))} s needed, {count(seconds)} s measured)"
