"""Whether a rate is sustained: pass, fail or inconclusive.

Runs at one rate are one sample. By themselves they pass if the upper 95% bound of the refused share is within what is
allowed, the backlog does not grow, and the objectives are met: those of [slo], or the required share of good requests.
They fail if the lower bound of the refused share is above it, the backlog grows, or the objectives are missed. Where no
run was refused and no header names a limit, refusals are not counted: a rate passes if its backlog was seen not to grow.

A bucket that is full at first hides a slightly excessive rate for minutes. So once a limit, or the capacity, is known
with its interval, a rate below it passes and one above it fails, unless its runs contradict that. Below: if they fail.
Above a limit: if they began with a burst that emptied the bucket, and yet clearly less than the allowed share was
refused; such a rate never passes. Above the capacity: if the backlog grew less than it would have; such a rate passes,
because a target may do more than it does when many calls wait.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, groupby
from operator import attrgetter

from tailgauge.scenario.experiment import Headroom as Settings
from tailgauge_analysis import (
    FAIL,
    INCONCLUSIVE,
    PASS,
    Bucket,
    Costs,
    Floats,
    Proportion,
    counted,
)
from tailgauge_analysis import (
    worst_outcome as worst,
)

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
class Met:
    """Requests within an objective, and the share of them that it needs."""

    within: Proportion
    needed: float

    @property
    def missed(self) -> bool:
        """Whether fewer were, as measured."""
        return self.within.value is not None and self.within.value < self.needed

    @property
    def outcome(self) -> str:
        """By the interval."""
        if (1.0 if self.within.high is None else self.within.high) < self.needed:
            return FAIL
        return PASS if (self.within.low or 0.0) >= self.needed else INCONCLUSIVE


@dataclass(frozen=True, slots=True)
class RateResult:
    """A run at one rate. `emptied`: it began with a burst, so that the bucket was empty. `growth_per_s`: of the backlog, None
    if that could not be judged; `saturated`: it grew by much, so what was served is all that the target can do.
    """

    rate_per_s: float
    emptied: bool
    seconds: float
    requests: int
    refused: Proportion
    overloaded: int
    kinds: Mapping[str, int]  # 429s
    objectives: tuple[Met, ...]
    served: Rate
    growth_per_s: float | None
    detectable_per_s: float  # growth that would have been seen
    growing: bool
    saturated: bool
    answer_s: float  # of nine in ten at most
    buckets: tuple[Bucket, ...]
    charges: Charges
    offered: Mapping[Trace, Costs]  # at today's rate


class JudgedRate:
    """The runs at one rate; `alone`: the outcome without any known limit; `leans`: the more likely one if that is
    inconclusive. `unseen_per_s`: growth of the backlog that its runs may have missed.
    """

    def __init__(
        self, runs: Sequence[RateResult], settings: Settings, known: Rate | None, met: str,
        *, by_capacity: bool, refuses: bool
    ) -> None:  # fmt: skip
        first = runs[0]
        self.rate_per_s, self.emptied, self.runs = first.rate_per_s, first.emptied, tuple(runs)
        self.refused = refused = _pooled([one.refused for one in runs])
        self.objectives = _together(runs)
        self.unseen_per_s = _unseen(runs)
        growing = sum(one.growing for one in runs) * 2 > len(runs)
        alone = _alone(refused, settings, met, growing=growing)
        if not refuses:
            unseen = all(one.growth_per_s is None for one in runs)
            alone = FAIL if growing else INCONCLUSIVE if unseen and met == PASS else met
        outcome = alone
        if known is not None and by_capacity:
            outcome = _by_capacity(known, runs, alone, met)
        elif known is not None:
            spared = (refused.high or 0.0) < settings.refused
            outcome = _by_limit(known, first, alone, contradicted=first.emptied and spared)
        elif first.emptied and alone == FAIL:
            outcome = INCONCLUSIVE  # it was made to refuse: without a known limit that proves little
        if outcome == PASS and met != PASS:
            outcome = alone
        too_much = (refused.value or 0.0) > settings.refused or any(one.missed for one in self.objectives)
        self.outcome, self.alone = outcome, alone
        self.leans = alone if alone != INCONCLUSIVE else FAIL if too_much else PASS


Runs = Sequence[RateResult]
Tried = Sequence[JudgedRate]


def judged(runs: Runs, settings: Settings, known: Rate | None, *, by_capacity: bool) -> list[JudgedRate]:
    """Every tried rate, ascending. `known`: the sustainable rate, and whether capacity decides it."""
    key = attrgetter("rate_per_s", "emptied")
    ascending = [list(group) for _, group in groupby(sorted(runs, key=key), key)]
    refuses = is_limited(runs) or any(one.refused.k for one in runs)
    return [
        JudgedRate(of, settings, known, met, by_capacity=by_capacity, refuses=refuses)
        for of, met in zip(ascending, _met(ascending), strict=True)
    ]


def is_limited(runs: Runs) -> bool:
    """Whether a header named a limit, or a 429 came."""
    return any(one.buckets or one.kinds for one in runs)


def _alone(refused: Proportion, settings: Settings, met: str, *, growing: bool) -> str:
    low, high = refused.low or 0.0, 1.0 if refused.high is None else refused.high
    if growing or low > settings.refused or met == FAIL:
        return FAIL
    return PASS if high <= settings.refused and met == PASS else INCONCLUSIVE


def _together(runs: Runs) -> tuple[Met, ...]:
    """The objectives over several runs."""
    of_each = zip(*(one.objectives for one in runs), strict=True)
    return tuple(Met(_pooled([one.within for one in same]), same[0].needed) for same in of_each)


def _met(ascending: Sequence[Runs]) -> Iterator[str]:
    """The outcome of the objectives at each rate. More load makes no answer faster: a rate also passes if it does so together
    with the runs at higher rates, and fails if it does so together with those at lower ones.
    """
    for at in range(len(ascending)):
        above, below = ascending[at:], ascending[at::-1]
        with_higher, with_lower = (
            [worst(one.outcome for one in _together([*chain(*of[:n])])) for n in range(1, len(of) + 1)]
            for of in (above, below)
        )
        passes = PASS in with_higher or not ascending[at][0].objectives
        yield FAIL if FAIL in with_lower else PASS if passes else INCONCLUSIVE


def _by_limit(known: Rate, first: RateResult, alone: str, *, contradicted: bool) -> str:
    if first.rate_per_s <= known.low and not first.emptied:
        return INCONCLUSIVE if alone == FAIL else PASS
    if first.rate_per_s >= known.high:
        return INCONCLUSIVE if contradicted else FAIL
    return INCONCLUSIVE


def _by_capacity(known: Rate, runs: Runs, alone: str, met: str) -> str:
    """What the runs say, but for a backlog that grew by chance, or by chance did not."""
    rate = runs[0].rate_per_s
    if rate <= known.low:
        return FAIL if met == FAIL else INCONCLUSIVE if alone == FAIL else PASS
    if alone != PASS:
        return alone
    grew = sum(one.growth_per_s or 0.0 for one in runs) / len(runs)
    return PASS if grew + _unseen(runs) < rate - known.high else INCONCLUSIVE


def _unseen(runs: Runs) -> float:
    return sum(one.detectable_per_s for one in runs) / len(runs) / math.sqrt(len(runs))


def _pooled(several: Sequence[Proportion]) -> Proportion:
    return counted(*(sum(getattr(one, name) for one in several) for name in ("k", "n", "n_eff")))
