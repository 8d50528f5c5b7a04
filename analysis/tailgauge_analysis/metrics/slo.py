"""Service-level objectives (pass, fail or inconclusive), the health of the target, and goodput.

An objective is decided on the share of requests beyond its bound, in the offered view (the pooled chunk gap has only one
view). The whole 95% interval of that share within what the quantile allows, and that of the quantile within the bound: pass.
The whole interval of the share above: fail. Otherwise the run was too short: inconclusive, and so where the quantile rests
on few slow episodes and the bound is near it.

Health is the share of the offered requests that got a complete answer. Without an objective of the scenario on it, 99% are
expected, and a share of 99% passes whatever its interval.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from tailgauge.rows import schema
from tailgauge_analysis.metrics import pace
from tailgauge_analysis.metrics.latency import OFFERED, SUCCESSES, offered_waits, row
from tailgauge_analysis.metrics.metrics import BY_NAME, CHUNK, PACED, Metric
from tailgauge_analysis.metrics.steady import Steady
from tailgauge_analysis.stats.binomial import Stopping, needed, stopping
from tailgauge_analysis.stats.proportions import Proportion, proportion
from tailgauge_analysis.stats.quantiles import FEW_EPISODES, Quantile
from tailgauge_analysis.text.formatting import share, share_range
from tailgauge_analysis.text.json_values import Json, number, table, text

PASS = "pass"  # noqa: S105 - an outcome, not a password
FAIL = "fail"
INCONCLUSIVE = "inconclusive"

COMPLETE = "complete"  # the metric of an objective on health
HEALTHY = 0.99  # without one
NEAR = 2  # times a quantile that rests on few slow episodes: a bound within is not decided


@dataclass(frozen=True, slots=True)
class Outcome:
    """One objective and its outcome."""

    name: str
    metric: str
    p: float
    max_ms: float
    view: str
    outcome: str
    quantile: Quantile | None
    why: str
    stopping: Stopping | None = None


def outcomes(scenario: Json, steady: Steady) -> list[Outcome]:
    """Every objective of the scenario on a latency, decided."""
    return [
        _outcome(name, spec, steady)
        for name, spec in table(scenario, "slo").items()
        if isinstance(spec, dict) and spec.get("metric") != COMPLETE
    ]


def figures(scenario: Json) -> list[tuple[Metric, float, str]]:
    """Metric, percentile and view of each objective on a latency."""
    found = (_figure(spec) for spec in table(scenario, "slo").values() if isinstance(spec, dict))
    return list(filter(None, found))


def _figure(spec: Json) -> tuple[Metric, float, str] | None:
    """Metric, percentile and view of an objective; None where the scenario names none that we know."""
    metric, p = BY_NAME.get(text(spec.get("metric"))), number(spec.get("quantile", 0.99))
    if metric is None or p is None or not 0 < p < 1:
        return None
    return metric, p, OFFERED if metric.offered else SUCCESSES


def _outcome(name: str, spec: Json, steady: Steady) -> Outcome:
    figure, max_ms = _figure(spec), number(spec.get("max_ms"))
    if figure is None or max_ms is None:
        named, asked = text(spec.get("metric")) or "unknown", number(spec.get("quantile", 0.99)) or 0.0
        why = "the scenario names no known metric, quantile or bound"
        return Outcome(name, named, asked, max_ms or 0.0, OFFERED, INCONCLUSIVE, None, why)
    metric, p, view = figure
    found = row(metric, steady, view, (p,))
    if metric.level == CHUNK:  # may be a hundred million: no copy of them is made
        late = metric.ns(steady) > max_ms * 1e6
        beyond = proportion(late, steady.gap_counts)
    else:
        beyond = found.beyond(max_ms)
    quantile = found.quantiles[0]
    outcome, why = decide(beyond, quantile, max_ms)
    unknown = _unknown(metric, steady, p)
    if unknown and (outcome != FAIL or beyond.k <= (1 - p) * len(steady.requests)):
        outcome, why = INCONCLUSIVE, unknown
    early = stopping(beyond.k, beyond.n, beyond.n_eff, p)
    return Outcome(name, metric.name, p, max_ms, view, outcome, quantile, why, early)


def _unknown(metric: Metric, steady: Steady, p: float) -> str:
    """Why a percentile rests on too few answers: more than 1 - p have no value that would be known otherwise."""
    if metric.name not in PACED:
        return ""
    missing = pace.missing(steady.requests)
    return missing["sentence"] if missing["answers"] > (1 - p) * missing["of"] else ""


def decide(beyond: Proportion, quantile: Quantile, max_ms: float) -> tuple[str, str]:
    """The outcome of one bound, and why."""
    if beyond.low is None or beyond.high is None:
        return INCONCLUSIVE, "nothing was measured"
    seen = (
        "what lies beyond the bound cannot be observed"
        if beyond.value is None
        else f"{share(beyond.value)} beyond the bound"
    )
    allowed = 1 - quantile.p
    why = f"{seen} (95% CI {share_range(beyond.low, beyond.high)}), {share(allowed)} allowed"
    value = quantile.value or 0.0
    if quantile.mark == FEW_EPISODES and value / NEAR <= max_ms <= value * NEAR:
        return INCONCLUSIVE, f"{why}; the slow ones came in few episodes ({quantile.episodes}): run longer"
    if beyond.low > allowed + 1e-12:
        return FAIL, why
    reaches = quantile.high is not None and quantile.high > max_ms  # slow periods further up widen it as well
    if beyond.high <= allowed + 1e-12 and not reaches:
        return PASS, why
    return INCONCLUSIVE, f"{why}: run longer{_more(beyond, quantile.p)}"


def _more(beyond: Proportion, p: float) -> str:
    """How much longer: the effective samples with which a bound passes although as many are beyond it."""
    if beyond.value is None or beyond.value >= 1 - p:
        return ""
    late = math.ceil(beyond.value * beyond.n_eff - 1e-9)
    enough = needed(late, p, 0.975 if late else 0.95)
    return f" ({enough:,} effective samples needed, {beyond.n_eff:,} measured)"


@dataclass(frozen=True, slots=True)
class Health:
    """Offered requests with a complete answer. `objective`: the bound is the default one."""

    offered: int
    complete: int
    n_eff: int
    share: float
    low: float
    high: float
    outcome: str
    bound: float
    objective: bool


def health(scenario: Json, steady: Steady) -> Health | None:
    """None where nothing was offered."""
    complete = proportion((steady.requests["ended"] == schema.OK).to_numpy(np.bool_))
    if complete.value is None or complete.low is None or complete.high is None:
        return None
    asked = [number(table(scenario["slo"], name).get("min_share")) for name in table(scenario, "slo")]
    bounds = [bound for bound in asked if bound is not None]
    bound = max(bounds, default=HEALTHY)
    enough = complete.low if bounds else complete.value
    outcome = PASS if enough >= bound else FAIL if complete.high < bound else INCONCLUSIVE
    return Health(
        complete.n, complete.k, complete.n_eff, complete.value, complete.low, complete.high, outcome, bound, not bounds
    )  # fmt: skip


def goodput_of(decided: list[Outcome], steady: Steady, warmup: Steady) -> Goodput | None:
    """Good requests of all that were offered; None without an objective, or where too many paces are unknown. The rate
    is of those that ended in the steady stage, those of the warm-up among them.
    """
    good, before = good_of(decided, steady), good_of(decided, warmup)
    if good is None or before is None:
        return None
    if any(_unknown(BY_NAME[o.metric], steady, o.p) for o in decided if o.quantile):
        return None
    ended = sum(
        int((stage.holds(stage.requests["ended_at_ns"]) & which).sum())
        for stage, which in ((steady, good), (warmup, before))
    )
    return goodput(good, ended / steady.seconds if steady.seconds else None)


def good_of(decided: list[Outcome], steady: Steady) -> npt.NDArray[np.bool_] | None:
    """Which requests ended ok within every objective's bound; None without an objective.

    A bound on the pooled gap holds for each gap, so a request's worst one is compared. A bound on what a request does not
    have, as the join of a single call, does not apply to it; an answer whose pace is unknown does not meet a bound on it.
    One that its user left is good if it met every bound before.
    """
    bounds = [(BY_NAME[o.metric], o.max_ms) for o in decided if o.quantile is not None]
    ended = steady.requests["ended"]
    if not bounds:
        return None
    ok, left = ((ended == one).to_numpy(np.bool_) for one in (schema.OK, schema.CANCELLED))
    good = ok | left
    for metric, max_ms in bounds:
        every = offered_waits(BY_NAME["chunk_gap_worst"] if metric.level == CHUNK else metric, steady)
        good &= (every.seen & (every.ms <= max_ms)) | (ok & ~every.seen)
        if metric.name in PACED:
            good &= steady.requests["pace_missing"].isna().to_numpy(np.bool_)
    return good


@dataclass(frozen=True, slots=True)
class Goodput:
    """Good requests of those offered, with the 95% interval of the share."""

    offered: int
    good: int
    n_eff: int
    share: float
    low: float
    high: float
    per_s: float | None


def goodput(good: npt.NDArray[np.bool_], per_s: float | None) -> Goodput | None:
    """Goodput of offered requests in order of arrival; None without any. The interval is Clopper-Pearson on n_eff."""
    found = proportion(good)
    if found.value is None or found.low is None or found.high is None:
        return None
    return Goodput(found.n, found.k, found.n_eff, found.value, found.low, found.high, per_s)
