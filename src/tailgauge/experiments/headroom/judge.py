"""Whether a rate is sustained: pass, fail or inconclusive.

Runs at one rate are one sample. By themselves they pass if the upper 95% bound of the refused share is within what is
allowed, the backlog does not grow, and the lower bound of the good share meets its target; they fail if the lower bound
of the refused share is above it, the backlog grows, or the upper bound of the good share is below its target.

A bucket that is full at first hides a slightly excessive rate for minutes. So once a limit, or the capacity, is known
with its interval, a rate below it passes and one above it fails, unless its runs contradict that. Below: if they fail.
Above: if they began with a burst that emptied the bucket and made calls wait, and yet clearly less than the allowed share
was refused (by a limit), or the waiting calls were worked off (by capacity). Such a rate never passes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tailgauge.scenario.experiment import Headroom as Settings
from tailgauge_analysis.sections.rate_limits.buckets import Bucket
from tailgauge_analysis.sections.rate_limits.costs import Costs
from tailgauge_analysis.stats.proportions import Proportion, counted
from tailgauge_analysis.stats.quantiles import Floats
from tailgauge_analysis.text.section import FAIL, INCONCLUSIVE, PASS

DRAINED = 0.5  # of those that waited at the beginning
Trace = tuple[str, str, bool]  # kind of limit, how it counts, with the cache or without


@dataclass(frozen=True, slots=True)
class Rate:
    """Per second, with its 95% interval."""

    value: float
    low: float
    high: float


@dataclass(frozen=True, slots=True)
class Charges:
    """What each request costs, by kind of limit, and without the cache where that differs."""

    cached: Mapping[str, Floats]
    uncached: Mapping[str, Floats]


@dataclass(frozen=True, slots=True)
class RateResult:
    """A run at one rate. `emptied`: it began with a burst, so that the bucket was empty, or calls waited."""

    rate_per_s: float
    emptied: bool
    seconds: float
    requests: int
    refused: Proportion
    overloaded: int
    kinds: Mapping[str, int]  # 429s
    good: Proportion | None  # within every objective; None if there is none
    served: Rate
    waiting: tuple[float, float]  # requests in flight at the beginning and at the end
    growing: bool  # the backlog
    buckets: tuple[Bucket, ...]
    charges: Charges
    offered: Mapping[Trace, Costs]  # at today's rate


@dataclass(frozen=True, slots=True)
class JudgedRate:
    """The runs at one rate; `alone`: the outcome without any known limit; `leans`: the more likely one if that is
    inconclusive.
    """

    rate_per_s: float
    emptied: bool
    runs: tuple[RateResult, ...]
    refused: Proportion
    good: Proportion | None
    outcome: str
    alone: str
    leans: str


def judged(
    runs: Sequence[RateResult], settings: Settings, known: Rate | None, *, by_capacity: bool
) -> list[JudgedRate]:
    """Every tried rate, ascending. `known`: the sustainable rate, and whether capacity decides it."""
    groups: dict[tuple[float, bool], list[RateResult]] = {}
    for one in runs:
        groups.setdefault((one.rate_per_s, one.emptied), []).append(one)
    return [_judged(groups[key], settings, known, by_capacity=by_capacity) for key in sorted(groups)]


def _judged(
    runs: Sequence[RateResult], settings: Settings, known: Rate | None, *, by_capacity: bool
) -> JudgedRate:
    first = runs[0]
    refused = _pooled([one.refused for one in runs])
    good = _pooled([one.good for one in runs if one.good is not None]) if settings.good > 0 else None
    growing = sum(one.growing for one in runs) * 2 > len(runs)
    alone = _alone(refused, good, settings, growing=growing)
    outcome = alone
    if known is not None:
        worked_off = not growing and not _still_waiting(runs)
        spared = worked_off if by_capacity else (refused.high or 0.0) < settings.refused
        outcome = _by_limit(known, first, alone, contradicted=first.emptied and spared)
        if outcome == PASS and good is not None and (good.low or 0.0) < settings.good:
            outcome = alone
    elif first.emptied and alone == FAIL:
        outcome = INCONCLUSIVE  # it was made to refuse: without a known limit that proves little
    too_much = (refused.value or 0.0) > settings.refused or (
        good is not None and (good.value or 0.0) < settings.good
    )
    leans = alone if alone != INCONCLUSIVE else FAIL if too_much else PASS
    return JudgedRate(first.rate_per_s, first.emptied, tuple(runs), refused, good, outcome, alone, leans)


def _alone(refused: Proportion, good: Proportion | None, settings: Settings, *, growing: bool) -> str:
    low, high = refused.low or 0.0, 1.0 if refused.high is None else refused.high
    if growing or low > settings.refused or (good is not None and (good.high or 0.0) < settings.good):
        return FAIL
    fine = good is None or (good.low or 0.0) >= settings.good
    return PASS if high <= settings.refused and fine else INCONCLUSIVE


def _by_limit(known: Rate, first: RateResult, alone: str, *, contradicted: bool) -> str:
    if first.rate_per_s <= known.low and not first.emptied:
        return INCONCLUSIVE if alone == FAIL else PASS
    if first.rate_per_s >= known.high:
        return INCONCLUSIVE if contradicted else FAIL
    return INCONCLUSIVE


def _still_waiting(runs: Sequence[RateResult]) -> bool:
    """Whether those that waited at the beginning were not worked off."""
    begun, ended = (sum(one.waiting[end] for one in runs) for end in (0, 1))
    return begun > 0 and ended >= DRAINED * begun


def _pooled(several: Sequence[Proportion]) -> Proportion:
    return counted(*(sum(getattr(one, name) for one in several) for name in ("k", "n", "n_eff")))
