"""Goodput: complete requests that meet every latency objective that applies to them; its section is sections/objectives.py.

Whether an objective itself is met is decided in outcome.py, the share of complete requests in health.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from tailgauge.rows import schema
from tailgauge_analysis.metrics.latency import offered_waits
from tailgauge_analysis.metrics.metrics import BY_NAME, CHUNK, PACED
from tailgauge_analysis.metrics.steady import Steady
from tailgauge_analysis.objectives.objective import Criterion, on_latency
from tailgauge_analysis.stats.proportions import Proportion
from tailgauge_analysis.stats.quantiles import Mask
from tailgauge_analysis.text.json_values import Json


@dataclass(frozen=True, slots=True)
class FeatureGoodput:
    """Good requests of one traffic table; `objectives`: how many latencies judge them."""

    traffic: str
    objectives: int
    good: Proportion


@dataclass(frozen=True, slots=True)
class Goodput:
    """Good requests of those offered; and by traffic table, whose numbers add up to it."""

    good: Proportion
    per_s: float | None
    by_traffic: tuple[FeatureGoodput, ...] = ()


def goodput(scenario: Json, steady: Steady, warmup: Steady | None) -> Goodput | None:
    """Good requests of all that were offered; None without an objective on a latency, or where too many paces are unknown.
    The rate is of those that ended in the steady stage, those of the warm-up among them.
    """
    wanted = on_latency(scenario)
    if warmup is None or not wanted or not len(steady.requests) or unknown_pace(wanted, steady):
        return None
    good = good_requests(wanted, steady)
    ended = _ended_good(steady, good) + _ended_good(warmup, good_requests(wanted, warmup))
    per_s = None
    if steady.seconds:
        per_s = ended / steady.seconds
    return Goodput(steady.share(good), per_s, _by_traffic(wanted, good, steady))


def _ended_good(stage: Steady, good: Mask) -> int:
    return int((stage.holds(stage.requests["ended_at_ns"]) & good).sum())


def unknown_pace(wanted: Sequence[Criterion], steady: Steady) -> str:
    """Return why it is not known which requests are good; empty where it is."""
    reasons = (criterion.unknown(criterion.part(steady)) for criterion in wanted)
    return next(filter(None, reasons), "")


def _by_traffic(
    wanted: Sequence[Criterion], good: Mask, steady: Steady
) -> tuple[FeatureGoodput, ...]:
    names = sorted(steady.requests["traffic"].unique())
    if len(names) < 2:
        return ()
    judged = [criterion.of(steady.requests) for criterion in wanted]
    features = []
    for name in names:
        is_of_table = (steady.requests["traffic"] == name).to_numpy(np.bool_)
        part = steady.only(is_of_table, gaps=False)
        objectives = sum(bool(mask[is_of_table].any()) for mask in judged)
        features.append(FeatureGoodput(str(name), objectives, part.share(good[is_of_table])))
    return tuple(features)


def good_requests(wanted: Sequence[Criterion], steady: Steady) -> Mask:
    """Return which requests got a complete answer within the bound of every objective on a latency that is about them.

    A bound on the pooled gap holds for each gap, so a request's worst one is compared. A bound on what a request does not
    have, as the join of a single call, does not apply to it; an answer whose pace is unknown does not meet a bound on it.
    One that its user left is good if it met every bound before, and there was one.
    """
    ended = steady.requests["ended"]
    is_complete = ended.isin(schema.COMPLETE).to_numpy(np.bool_)
    good = is_complete | (ended == schema.CANCELLED).to_numpy(np.bool_)
    judged = np.zeros(len(good), np.bool_)
    for criterion in wanted:
        metric = criterion.metric
        if metric is None:  # an objective on something else than a latency
            continue
        is_about = criterion.of(steady.requests)
        if metric.level == CHUNK:
            waits = offered_waits(BY_NAME["chunk_gap_worst"], steady)
        else:
            waits = offered_waits(metric, steady)
        # A complete answer without a wait does not have what the metric measures.
        meets = (waits.seen & (waits.ms <= criterion.objective.bound)) | (is_complete & ~waits.seen)
        if metric.name in PACED:
            meets &= steady.requests["pace_missing"].isna().to_numpy(np.bool_)
        good &= meets | ~is_about
        judged |= is_about
    return good & (is_complete | judged)
