"""The outcome of an objective: pass, fail or inconclusive.

An objective on a latency is decided on the share of requests beyond its bound, in the offered view (the pooled chunk gap has
only one view), any other objective on its figure. The whole 95% interval above what is allowed: fail. Below: pass, unless those that
miss the bound came in few episodes, or the interval of the quantile reaches beyond the bound. Otherwise the run was too short:
inconclusive. No mark undoes a failure: the interval has its own effective sample size, from its own episodes. If all miss
the bound, the interval is that of independent values.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Any

from tailgauge.scenario.figures import LATENCY, LEAST, MOST, PER_S, REQUESTS, SHARE
from tailgauge.scenario.objective import Objective
from tailgauge_analysis.metrics.latency import OFFERED, Row
from tailgauge_analysis.metrics.steady import Steady
from tailgauge_analysis.objectives.objective import Criterion
from tailgauge_analysis.objectives.precision import half_width, is_known, precision_text
from tailgauge_analysis.objectives.text import finite, line_of, share_interval, value_text
from tailgauge_analysis.stats.binomial import clopper_pearson, detectable, needed
from tailgauge_analysis.stats.dependence import NEIGHBOURS, WAVES
from tailgauge_analysis.stats.proportions import Proportion
from tailgauge_analysis.stats.quantiles import FEW_EPISODES, TOO_FEW, Quantile, confidence, normal
from tailgauge_analysis.text.formatting import count, plain, plural, share, share_range
from tailgauge_analysis.text.json_values import one_of, text
from tailgauge_analysis.text.quantile import VALUE, quantile
from tailgauge_analysis.text.section import Numbers, ObjectiveLine

PASS = "pass"  # noqa: S105 - an outcome, not a password
FAIL = "fail"
INCONCLUSIVE = "inconclusive"
POWER = 0.8  # of the runs that find the smallest violation that is named
OF_ORDER = ("", NEIGHBOURS, WAVES)  # what limits n_eff and is no group of requests
ONE_END = 0.975  # confidence of one end of a 95% interval
MANY = 100_000  # chances for an episode, each small
# The unit of a number for programs; that of a cost is its currency.
UNITS = {LATENCY: "ms", SHARE: "share", PER_S: "per_s"}
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
    """Return the outcome of an objective that cannot be read."""
    fields = spec if isinstance(spec, dict) else {}
    reason = "the scenario names no known metric, quantile or bound"
    label = plain(name, 60)
    return ObjectiveResult(
        name=name,
        label=label,
        metric=text(fields.get("metric")) or "unknown",
        outcome=INCONCLUSIVE,
        gate=fields.get("gate") is not False,
        why=reason,
        line=ObjectiveLine(label, INCONCLUSIVE.upper(), value="", bound="", why=reason),
    )


def decided(criterion: Criterion, measured: Measured, seconds: float) -> ObjectiveResult:
    """Decide an objective on a figure of a stage of so many seconds."""
    measured = _of_all(criterion.objective, measured)
    outcome, reason = decide_figure(criterion.objective, measured, seconds)
    finds = finds_figure(criterion.objective, measured)
    return _result(criterion, measured, outcome, reason, finds)


def decided_latency(
    criterion: Criterion, stage: Steady, rows: Sequence[Row] = ()
) -> ObjectiveResult:
    """Return the outcome of an objective on a latency: from the share of requests beyond its bound, and from its quantile.

    `rows`: latencies of the stage that are computed already. Where TPOT is unknown of some requests it is
    inconclusive, unless enough of the others miss the bound. An objective that asks for a precision also gets what the run reached.
    """
    objective = criterion.objective
    criterion = criterion.on(stage)
    part = criterion.part(stage)
    estimate = criterion.estimate(part, rows)
    violations = with_sure_low_end(criterion.beyond(part))
    outcome, reason = decide(violations, estimate, objective.bound, objective.figure.counted)
    missing_pace = criterion.unknown(part)
    poll_interval = criterion.between_polls(part)
    if poll_interval and outcome == INCONCLUSIVE:
        reason = f"{reason.partition(': run longer')[0]}; {poll_interval}"
    # Too few requests for the quantile; the number that is needed is a better reason than the share.
    is_few = (
        estimate.n > 0 and estimate.mark == TOO_FEW and outcome == INCONCLUSIVE and not missing_pace
    )
    if missing_pace and (outcome != FAIL or violations.k <= objective.allowed * len(part.requests)):
        outcome = INCONCLUSIVE
        reason = missing_pace
    elif is_few:
        reason = f"not enough {objective.figure.counted}: {estimate.n:,} of the {objective.needs():,} needed"
    numbers = quantile(estimate)
    measured = Measured(
        numbers["value"], numbers["low"], numbers["high"], estimate.n, estimate.n_eff
    )
    result = _result(criterion, measured, outcome, reason, finds_latency(objective, violations))
    # The share beyond the bound is shown where the quantile has no value, or an interval that includes the bound of a failure.
    has_no_value = numbers["value_is"] != VALUE  # it lies among failures, say
    low = estimate.low
    reaches_within = outcome == FAIL and low is not None and low <= objective.bound
    if (has_no_value or reaches_within) and violations.value is not None and not is_few:
        result = replace(result, line=_late(result.line, objective, violations))
    if objective.precision is None:
        return result
    precision = precision_text(estimate, objective.precision, part, is_over=True)
    if outcome == INCONCLUSIVE and not missing_pace:
        reason = precision
        if is_known(estimate, objective.precision):
            reason += ": the bound is too near, ask for less"
    line = replace(result.line, why=reason)
    return replace(
        result, why=reason, line=line, half_width=half_width(estimate), precision=precision
    )


def _late(line: ObjectiveLine, objective: Objective, violations: Proportion) -> ObjectiveLine:
    """Return the line with the share beyond the bound, where the quantile has no value."""
    return replace(
        line,
        value=f"{share(violations.value)} of {objective.figure.counted}",
        bound=f"> {objective.figure.text(objective.bound)}",
        interval=share_interval(violations.low, violations.high),
    )


def _result(
    criterion: Criterion, measured: Measured, outcome: str, reason: str, finds: str
) -> ObjectiveResult:
    objective = criterion.objective
    metric = criterion.metric
    ends = (measured.value, measured.low, measured.high)
    value, low, high = map(finite, ends)
    unit = UNITS.get(objective.figure.unit, objective.figure.unit)
    numbers = Numbers(value=value, bound=objective.bound, low=low, high=high, unit=unit)
    return ObjectiveResult(
        name=criterion.name,
        label=objective.label,
        metric=objective.metric if metric is None else metric.name,
        outcome=outcome,
        gate=objective.gate,
        why=reason,
        line=replace(line_of(objective, outcome, ends, reason), finds=finds, numbers=numbers),
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


def decide(
    violations: Proportion, estimate: Quantile, max_ms: float, counted: str = REQUESTS
) -> tuple[str, str]:
    """Return the outcome of a bound on a latency, and why.

    `violations`: the share of `counted` beyond the bound; `estimate`: the quantile; `max_ms`: the bound. Fail or pass where the 95% interval
    of the share lies on one side of what is allowed, 1 - p. A pass becomes inconclusive where slow periods may make the interval too
    narrow, or where the interval of the quantile reaches beyond the bound.
    """
    # Where all are beyond the bound, the low end is at least that of independent values.
    violations = with_sure_low_end(violations)
    if violations.low is None or violations.high is None:
        return INCONCLUSIVE, "nothing was measured"
    allowed = 1 - estimate.p
    observed = f"{share(violations.value)} of {counted} are beyond the bound"
    if violations.value is None:
        observed = "what lies beyond the bound cannot be observed"
    comparison = f"{observed} (95% CI {share_range(violations.low, violations.high)}), {share(allowed)} are allowed"
    outcome = _compare(violations.low, violations.high, allowed)
    if outcome == FAIL:
        return FAIL, comparison
    if outcome == PASS:
        reason = correlation_doubt(violations, violations.value or 0.0, allowed)
        if not reason and estimate.high is not None and estimate.high > max_ms:
            reason = "the interval of the percentile reaches beyond the bound"
        if reason:
            return INCONCLUSIVE, f"{comparison}; {reason}: run longer"
        return PASS, comparison
    # Where none is beyond the bound, the upper end is one-sided: the rule of three, of `Waits.beyond`.
    level = ONE_END if violations.value else 0.95
    samples = _samples_needed_text(
        1.0 if violations.value is None else violations.value, allowed, violations.n_eff, level
    )
    return INCONCLUSIVE, f"{comparison}: run longer{samples}"


def with_sure_low_end(bad: Proportion) -> Proportion:
    """Return the share of what misses a bound; where all do, its low end is at least that of independent values."""
    if bad.value != 1.0 or bad.low is None:
        return bad
    return replace(bad, low=max(bad.low, _least_of_all(bad.n)))


def _least_of_all(n: int) -> float:
    """Return the low end of the interval of n of n independent values."""
    return clopper_pearson(n, n, confidence())[0]


def _of_all(objective: Objective, measured: Measured) -> Measured:
    """Return a figure; where it is a share that all miss, with the interval of independent ones."""
    proportion = measured.share
    if proportion is None or measured.low is None or measured.high is None:
        return measured
    low = _least_of_all(proportion.n)
    if objective.figure.sign == MOST and proportion.value == 1.0:
        return replace(measured, low=max(measured.low, low))
    if objective.figure.sign == LEAST and proportion.value == 0.0:
        return replace(measured, high=min(measured.high, 1 - low))
    return measured


def correlation_doubt(violations: Proportion, bad: float, allowed: float) -> str:
    """Return why the share `bad` of what misses a bound may be larger than its interval says; empty where nothing speaks for it."""
    if violations.mark == FEW_EPISODES:
        # As many episodes as such a run may have where it had these few.
        episodes_high = clopper_pearson(violations.episodes, MANY, confidence())[1] * MANY
        is_rare = bad * episodes_high / violations.episodes <= allowed
        if is_rare:
            return ""
        return f"the misses came in only {plural(violations.episodes, 'period')} of the run"
    if violations.mark and violations.limited_by not in OF_ORDER:
        return f"values of the same {violations.limited_by} are correlated, and the run has too few such groups"
    return ""


def decide_figure(objective: Objective, measured: Measured, seconds: float) -> tuple[str, str]:
    """Return the outcome of a bound on a figure other than a latency, and why it is inconclusive.

    The figure passes or fails where its 95% interval lies on one side of the bound. `seconds`: length of the stage, from which
    follows how long a run would decide it.
    """
    if measured.value is None or measured.low is None or measured.high is None:
        return INCONCLUSIVE, measured.why or "nothing was measured"
    figure = objective.figure
    proportion = measured.share
    if figure.sign == MOST:
        bad = measured.value
        outcome = _compare(measured.low, measured.high, objective.bound)
    else:
        bad = 1 - measured.value
        outcome = _compare(-measured.high, -measured.low, -objective.bound)
    if proportion is not None and outcome == PASS:
        reason = correlation_doubt(proportion, bad, objective.allowed)
        if reason:
            return INCONCLUSIVE, f"{reason}: run longer"
    if outcome != INCONCLUSIVE:
        return outcome, ""
    if proportion is None:
        needed_text = _time_needed_text(objective, measured, seconds)
    else:
        needed_text = _samples_needed_text(bad, objective.allowed, measured.n_eff, ONE_END)
    return INCONCLUSIVE, f"the interval includes the bound: run longer{needed_text}"


def _compare(low: float, high: float, allowed: float) -> str:
    """Return the outcome of an interval of what should be small."""
    if low > allowed + TINY:
        return FAIL
    return PASS if high <= allowed + TINY else INCONCLUSIVE


def finds_latency(objective: Objective, violations: Proportion) -> str:
    """Return the smallest share beyond a bound that four of five such runs would find: `7.6% of requests beyond 800 ms`."""
    smallest = detectable(objective.allowed, violations.n_eff, confidence(), POWER)
    if smallest is None:
        return ""
    return f"{share(smallest)} of {objective.figure.counted} beyond {objective.figure.text(objective.bound)}"


def finds_figure(objective: Objective, measured: Measured) -> str:
    """Return the value nearest to the bound that four of five such runs would find to miss it: `2.3%`, `2.7/s`."""
    is_most = objective.figure.sign == MOST
    if measured.share is not None:
        smallest = detectable(objective.allowed, measured.n_eff, confidence(), POWER)
        if smallest is None:
            return ""
        if is_most:
            return share(smallest)
        return share(1 - smallest)
    if measured.value is None or measured.low is None or measured.high is None:
        return ""
    # Half of the interval, and what a value beyond the bound may be nearer to it by chance in one of five runs.
    factor = 1 + normal(2 * POWER - 1) / normal(confidence())
    if is_most:
        smallest = objective.bound + (measured.high - measured.value) * factor
    else:
        smallest = objective.bound - (measured.value - measured.low) * factor
    if not 0 < smallest < math.inf:
        return ""
    return value_text(objective.figure, smallest)


def _samples_needed_text(bad: float, allowed: float, n_eff: int, level: float) -> str:
    """Return how many independent values pass although as many are bad; empty where more would not help."""
    if bad >= allowed or allowed <= 0:
        return ""
    enough = needed(math.ceil(bad * n_eff - 1e-9), 1 - allowed, level)
    if enough <= n_eff:  # what is left is how well few episodes tell n_eff
        return ""
    return f" ({enough:,} independent values needed, these count as {n_eff:,})"


def _time_needed_text(objective: Objective, measured: Measured, seconds: float) -> str:
    """Return how long a run decides it if the figure stays what it is; empty where it would fail."""
    value = measured.value or 0.0
    is_most = objective.figure.sign == MOST
    if value == objective.bound or (value < objective.bound) != is_most:
        return ""
    reach = value - (measured.low or 0.0)
    if is_most:
        reach = (measured.high or 0.0) - value
    times = (reach / abs(value - objective.bound)) ** 2
    if not math.isfinite(times):
        return ""
    return f" (about {count(math.ceil(seconds * times))} s needed, {count(seconds)} s measured)"
