"""Service-level objectives (pass, fail or inconclusive) and goodput.

An objective is decided on the bounds of the 95% interval in the offered view (the pooled chunk gap has only one view). The
whole interval within the bound: pass. The whole interval beyond it: fail. Otherwise the run was too short: inconclusive. A
quantile with too few samples has no upper bound and cannot pass.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from tailgauge.errors import Exit
from tailgauge.rows import schema
from tailgauge.thresholds import INVALID
from tailgauge_analysis.metrics import pace
from tailgauge_analysis.metrics.latency import OFFERED, SUCCESSES, row, sample
from tailgauge_analysis.metrics.metrics import BY_NAME, CHUNK, PACED, Metric
from tailgauge_analysis.metrics.steady import Steady
from tailgauge_analysis.stats.binomial import Stopping, clopper_pearson, needed, stopping
from tailgauge_analysis.stats.quantiles import TOO_FEW, Quantile, effective_n
from tailgauge_analysis.text.json_values import Json, number, table, text

PASS = "pass"  # noqa: S105 - an outcome, not a password
FAIL = "fail"
INCONCLUSIVE = "inconclusive"


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
    """Every objective of the scenario, decided."""
    return [
        _outcome(name, spec, steady)
        for name, spec in table(scenario, "slo").items()
        if isinstance(spec, dict)
    ]


def _outcome(name: str, spec: Json, steady: Steady) -> Outcome:
    named = text(spec.get("metric"))
    metric = BY_NAME.get(named)
    p, max_ms = number(spec.get("quantile", 0.99)), number(spec.get("max_ms"))
    if metric is None or p is None or max_ms is None or not 0 < p < 1:
        why = "the scenario names no known metric, quantile or bound"
        return Outcome(name, named or "unknown", p or 0.0, max_ms or 0.0, OFFERED, INCONCLUSIVE, None, why)
    view = OFFERED if metric.offered else SUCCESSES
    quantile = row(metric, steady, view, (p,)).quantiles[0]
    outcome, why = decide(quantile, max_ms)
    beyond = _beyond(metric, steady, view, max_ms)
    unknown = _unknown(metric, steady, p)
    if unknown and (outcome != FAIL or beyond <= (1 - p) * len(steady.requests)):
        outcome, why = INCONCLUSIVE, unknown
    elif outcome == INCONCLUSIVE and quantile.n:
        why += more(beyond, quantile)
    early = stopping(beyond, quantile.n, quantile.n_eff, p)
    return Outcome(name, metric.name, p, max_ms, view, outcome, quantile, why, early)


def _beyond(metric: Metric, steady: Steady, view: str, max_ms: float) -> int:
    """How many values are above the bound; gaps may be a hundred million, so no copy of them is made."""
    if metric.level == CHUNK:
        return int((metric.ns(steady) > max_ms * 1e6).sum())
    return int((sample(metric, steady, view)[0] > max_ms).sum())


def _unknown(metric: Metric, steady: Steady, p: float) -> str:
    """Why a percentile rests on too few answers: more than 1 - p have no value that would be known otherwise."""
    if metric.name not in PACED:
        return ""
    missing = pace.missing(steady.requests)
    return missing["sentence"] if missing["answers"] > (1 - p) * missing["of"] else ""


def decide(quantile: Quantile, max_ms: float) -> tuple[str, str]:
    """The outcome of one bound, and why."""
    if quantile.low is not None and quantile.low > max_ms:
        return FAIL, "the whole interval is above the bound"
    if quantile.high is not None and quantile.high <= max_ms and quantile.mark != TOO_FEW:
        return PASS, "the whole interval is within the bound"
    if quantile.mark == TOO_FEW or quantile.high is None:
        return INCONCLUSIVE, f"{quantile.n_eff:,} effective samples give no upper bound: run longer"
    return INCONCLUSIVE, "the bound lies inside the interval: run longer"


def more(beyond: int, quantile: Quantile) -> str:
    """How much longer: the effective samples that would meet the bound with as many beyond it."""
    if beyond >= quantile.n * (1 - quantile.p):
        return ""
    enough = needed(beyond, quantile.p)
    if enough <= quantile.n_eff:
        return ""
    return f" ({beyond:,} beyond it: {enough:,} effective samples needed, {quantile.n_eff:,} measured)"


def goodput_of(decided: list[Outcome], steady: Steady) -> Goodput | None:
    """Good requests of those offered, without users who left; None without an objective, or where too many paces are unknown."""
    good = good_of(decided, steady)
    if good is None or any(_unknown(BY_NAME[o.metric], steady, o.p) for o in decided if o.quantile):
        return None
    return goodput(good[(steady.requests["ended"] != schema.CANCELLED).to_numpy(np.bool_)], steady.seconds)


def good_of(decided: list[Outcome], steady: Steady) -> npt.NDArray[np.bool_] | None:
    """Which requests ended ok within every objective's bound; None without an objective.

    A bound on the pooled gap holds for each gap, so a request's worst one is compared. A bound on what a request does not
    have, as the join of a single call, does not apply to it; an answer whose pace is unknown does not meet a bound on it.
    """
    bounds = [(BY_NAME[o.metric], o.max_ms) for o in decided if o.quantile is not None]
    ended = steady.requests["ended"]
    if not bounds:
        return None
    good = (ended == schema.OK).to_numpy(np.bool_, copy=True)
    for metric, max_ms in bounds:
        ns = (BY_NAME["chunk_gap_worst"] if metric.level == CHUNK else metric).ns(steady)
        good &= ~(ns > max_ms * 1e6)  # a comparison with nothing is False
        if metric.name in PACED:
            good &= steady.requests["pace_missing"].isna().to_numpy(np.bool_)
    return good


def exit_code(verdict: str, lost: int, decided: list[Outcome]) -> Exit:
    """What the caller exits with, interruption and an unusable target apart."""
    if verdict == INVALID or lost:
        return Exit.INVALID
    if any(o.outcome == FAIL for o in decided):
        return Exit.SLO_FAILED
    return Exit.INVALID if any(o.outcome == INCONCLUSIVE for o in decided) else Exit.OK


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


def goodput(good: npt.NDArray[np.bool_], seconds: float) -> Goodput | None:
    """Goodput of offered requests in order of arrival; None without any. The interval is Clopper-Pearson on n_eff."""
    n = len(good)
    if not n:
        return None
    share, n_eff = float(good.mean()), effective_n(good)
    low, high = clopper_pearson(share * n_eff, n_eff)
    k = int(good.sum())
    return Goodput(n, k, n_eff, share, low, high, k / seconds if seconds > 0 else None)
