"""Whether a rate is sustained: pass, fail or inconclusive.

Rule: levels of one rate are one sample. By themselves they pass if the upper 95% bound of the refused share is within
what is borne, nothing grows, and the lower bound of the good share meets its target; they fail if the lower bound of
the refused share is above it, something grows, or the upper bound of the good share is below its target.

A bucket that is full at first hides a rate that is somewhat too high for minutes. So once a limit, or the capacity, is
known with its interval, a rate below it passes and one above it fails, unless its own levels contradict that: below, if
they fail; above, if they began with a burst, so that the bucket was empty and calls waited, and yet surely less than what
is borne was refused (by a limit), or those that waited were worked off (by capacity). Such a level never passes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tailgauge.experiments.answer import FAIL, OPEN, PASS
from tailgauge.experiments.headroom.rate_result import Level, Rate
from tailgauge_analysis.stats.proportions import Proportion, counted

DRAINED = 0.5  # of those that waited at the beginning


@dataclass(frozen=True, slots=True)
class Asked:
    """What a sustained rate must keep: share refused at most, share of good requests at least (0: no such bound)."""

    refused: float
    good: float


@dataclass(frozen=True, slots=True)
class Judged:
    """The levels of one rate; `alone` is what they say without any limit that is known, `leans` what is more likely where that
    is inconclusive.
    """

    rate_per_s: float
    emptied: bool
    levels: tuple[Level, ...]
    refused: Proportion
    good: Proportion | None
    outcome: str
    alone: str
    leans: str


def judged(levels: Sequence[Level], asked: Asked, known: Rate | None, *, by_capacity: bool) -> list[Judged]:
    """Every rate that was tried, ascending. `known`: the sustainable rate, and whether capacity decides it."""
    groups: dict[tuple[float, bool], list[Level]] = {}
    for one in levels:
        groups.setdefault((one.rate_per_s, one.emptied), []).append(one)
    return [_judged(groups[key], asked, known, by_capacity=by_capacity) for key in sorted(groups)]


def _judged(levels: Sequence[Level], asked: Asked, known: Rate | None, *, by_capacity: bool) -> Judged:
    first = levels[0]
    refused = _pooled([one.refused for one in levels])
    good = _pooled([one.good for one in levels if one.good is not None]) if asked.good > 0 else None
    growing = sum(one.growing for one in levels) * 2 > len(levels)
    alone = _alone(refused, good, asked, growing=growing)
    outcome = alone
    if known is not None:
        worked_off = not growing and not _still(levels)
        spared = worked_off if by_capacity else (refused.high or 0.0) < asked.refused
        outcome = _with(known, first, alone, contradicted=first.emptied and spared)
        if outcome == PASS and good is not None and (good.low or 0.0) < asked.good:
            outcome = alone
    elif first.emptied and alone == FAIL:
        outcome = OPEN  # it was made to refuse: without a known limit that says little
    too_much = (refused.value or 0.0) > asked.refused or (
        good is not None and (good.value or 0.0) < asked.good
    )
    leans = alone if alone != OPEN else FAIL if too_much else PASS
    return Judged(first.rate_per_s, first.emptied, tuple(levels), refused, good, outcome, alone, leans)


def _alone(refused: Proportion, good: Proportion | None, asked: Asked, *, growing: bool) -> str:
    low, high = refused.low or 0.0, 1.0 if refused.high is None else refused.high
    if growing or low > asked.refused or (good is not None and (good.high or 0.0) < asked.good):
        return FAIL
    fine = good is None or (good.low or 0.0) >= asked.good
    return PASS if high <= asked.refused and fine else OPEN


def _with(known: Rate, first: Level, alone: str, *, contradicted: bool) -> str:
    if first.rate_per_s <= known.low and not first.emptied:
        return OPEN if alone == FAIL else PASS
    if first.rate_per_s >= known.high:
        return OPEN if contradicted else FAIL
    return OPEN


def _still(levels: Sequence[Level]) -> bool:
    """Whether those that waited at the beginning were not worked off."""
    begun, ended = (sum(one.waiting[end] for one in levels) for end in (0, 1))
    return begun > 0 and ended >= DRAINED * begun


def _pooled(several: Sequence[Proportion]) -> Proportion:
    return counted(*(sum(getattr(one, name) for one in several) for name in ("k", "n", "n_eff")))
